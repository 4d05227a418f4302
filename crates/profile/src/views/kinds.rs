//! What a core was doing: user code, kernel code, interrupts, or nothing.

use coroner_evidence::kernel_work::{Meaning, OF_MODULES, StackMeaning, USER_CODE, meaning_of};
use serde::{Deserialize, Serialize};

use crate::model::{Dictionary, FrameId, FramePlace, Sample, StackId, TaskId, label};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SampleKind {
    User,
    Kernel,
    /// Hard and soft interrupts, whoever they interrupted.
    Irq,
    Idle,
}

/// Classifies samples; caches what it learns about stacks and tasks.
#[derive(Clone, Debug, Default)]
pub struct Kinds {
    stacks: Meanings,
    tasks: Vec<Role>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// The idle task of a core.
    Idle,
    /// Does only interrupt work: ksoftirqd and, on RT kernels, ktimers.
    Softirq,
    Other,
}

impl Kinds {
    /// The kind of a sample. `names` must be the same at each call; it may grow.
    pub fn kind(&mut self, names: &Dictionary, sample: &Sample) -> SampleKind {
        let stack = self.stacks.of(names, sample.stack);
        while self.tasks.len() <= sample.task.0 as usize {
            let task = names.task(TaskId(self.tasks.len() as u32));
            let comm = names.strings.get(task.comm);
            self.tasks.push(match comm {
                _ if task.is_idle_task(&names.strings) => Role::Idle,
                _ if comm.starts_with("ksoftirqd/") || comm.starts_with("ktimers/") => Role::Softirq,
                _ => Role::Other,
            });
        }
        let role = self.tasks[sample.task.0 as usize];
        if stack.is_interrupt() || role == Role::Softirq {
            SampleKind::Irq
        } else if stack.is_idle(role == Role::Idle) {
            SampleKind::Idle
        } else if stack.is_in_kernel() {
            SampleKind::Kernel
        } else {
            SampleKind::User
        }
    }
}

/// Cached meanings of stacks.
#[derive(Clone, Debug, Default)]
pub(super) struct Meanings {
    frames: Vec<Meaning>,
    stacks: Vec<StackMeaning>,
}

impl Meanings {
    pub fn of(&mut self, names: &Dictionary, id: StackId) -> StackMeaning {
        // A stack's parent has a smaller id, so its meaning is known.
        while self.stacks.len() <= id.0 as usize {
            let stack = match names.stacks.split(StackId(self.stacks.len() as u32)) {
                Some((below, leaf)) => self.stacks[below.0 as usize].calls(self.of_frame(names, leaf)),
                None => StackMeaning::default(),
            };
            self.stacks.push(stack);
        }
        self.stacks[id.0 as usize]
    }

    fn of_frame(&mut self, names: &Dictionary, id: FrameId) -> Meaning {
        while self.frames.len() <= id.0 as usize {
            let frame = names.frames.get(FrameId(self.frames.len() as u32));
            self.frames.push(match frame.place {
                FramePlace::Kernel if label::is_module(names.strings.get(frame.module)) => {
                    meaning_of(frame.symbol(&names.strings)) & OF_MODULES
                }
                FramePlace::Kernel => meaning_of(frame.symbol(&names.strings)),
                FramePlace::User | FramePlace::Jit => USER_CODE,
            });
        }
        self.frames[id.0 as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Frame;
    use crate::views::made::Made;
    use coroner_evidence::WorkKind;

    fn kind(comm: &str, tid: Option<u32>, root_first: &[&str]) -> SampleKind {
        let mut made = Made::default();
        let (task, stack) = (made.task_of(comm, tid, tid), made.stack(root_first));
        made.sample("cpu-clock", 0, 1, task, stack);
        Kinds::default().kind(&made.names, &made.samples[0])
    }

    #[test]
    fn the_task_and_the_frames_above_the_idle_loop_decide() {
        const LOOP: [&str; 2] = ["cpu_startup_entry_[k]", "do_idle_[k]"];
        for waits in [&["default_idle_call_[k]", "pv_native_safe_halt_[k]"][..], &["[unknown]_[k]"], &["_[k]"], &[]] {
            let stack: Vec<&str> = LOOP.iter().chain(waits).copied().collect();
            assert_eq!(kind("swapper", Some(0), &stack), SampleKind::Idle, "{stack:?}");
            // Folded stacks have no tids, and only the suffix marks kernel functions.
            assert_eq!(kind("swapper", None, &stack), SampleKind::Idle, "{stack:?}");
            assert_eq!(kind("idle_inject/1", Some(40), &stack), SampleKind::Kernel, "{stack:?}");
            let above = [&stack[..], &["asm_common_interrupt_[k]", "ena_intr_msix_io_[k]"]].concat();
            assert_eq!(kind("swapper", Some(0), &above), SampleKind::Irq, "{above:?}");
        }
        assert_eq!(kind("swapper", Some(0), &[]), SampleKind::Idle);
        // A user function with that name.
        assert_eq!(kind("idler", Some(7), &["main", "default_idle"]), SampleKind::User);
        assert_eq!(kind("web", Some(7), &["main", "entry_SYSCALL_64_[k]", "ksys_read_[k]"]), SampleKind::Kernel);
        assert_eq!(kind("web", Some(7), &["main", "do_softirq.part.0_[k]", "tcp_v4_rcv_[k]"]), SampleKind::Irq);
        assert_eq!(kind("ksoftirqd/3", Some(30), &["tcp_v4_rcv_[k]"]), SampleKind::Irq);
        let napi = ["ret_from_fork_[k]", "kthread_[k]", "napi_threaded_poll_[k]", "__napi_poll_[k]"];
        assert_eq!(kind("napi/eth0-5", Some(31), &napi), SampleKind::Kernel);
    }

    #[test]
    fn a_module_function_is_not_the_kernels() {
        let mut names = Dictionary::default();
        let mut meaning = |module: &str, symbol: &str| {
            let (symbol, module) = (names.strings.intern(symbol), names.strings.intern(module));
            let frame = names.frames.intern(Frame { symbol, module, place: FramePlace::Kernel, inlined: false });
            let stack = names.stacks.push(StackId::EMPTY, frame);
            Meanings::default().of(&names, stack)
        };
        for own in ["", "[kernel.kallsyms]", "[kernel]", "[unknown]", "/usr/lib/debug/boot/vmlinux-6.1"] {
            assert_eq!(meaning(own, "mem_cgroup_iter").work(false), Some(WorkKind::StatsWalk), "{own}");
        }
        for module in ["[zfs]", "/lib/modules/6.1/extra/zfs.ko.xz"] {
            assert_eq!(meaning(module, "mem_cgroup_iter").work(false), Some(WorkKind::Other), "{module}");
        }
        assert!(meaning("[cpuidle_haltpoll]", "default_enter_idle").is_idle(true), "a driver for idle cores");
    }
}
