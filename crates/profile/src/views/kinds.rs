//! What a core was doing: a program's code, the kernel's for it, interrupts, or nothing.

use coroner_evidence::kernel_work::{Meaning, OF_MODULES, StackMeaning, USER_CODE, meaning_of};
use serde::{Deserialize, Serialize};

use crate::model::{Dictionary, FrameId, Place, Sample, StackId, TaskId, label};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    User,
    Kernel,
    /// Hard and soft interrupts, whoever they interrupted.
    Irq,
    Idle,
}

/// Tells the kind of samples. What it learns of stacks and tasks it keeps.
#[derive(Clone, Debug, Default)]
pub struct Kinds {
    stacks: Meanings,
    tasks: Vec<Role>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// Of a core.
    Idle,
    /// It has no other work than interrupts': ksoftirqd and, where timers have a thread, ktimers.
    Softirq,
    Other,
}

impl Kinds {
    /// The kind of a sample. `names` is the same at each call, but for what was added to it.
    pub fn kind(&mut self, names: &Dictionary, sample: &Sample) -> Kind {
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
            Kind::Irq
        } else if stack.is_idle(role == Role::Idle) {
            Kind::Idle
        } else if stack.is_in_kernel() {
            Kind::Kernel
        } else {
            Kind::User
        }
    }
}

/// What stacks mean, each found out once.
#[derive(Clone, Debug, Default)]
pub(super) struct Meanings {
    frames: Vec<Meaning>,
    stacks: Vec<StackMeaning>,
}

impl Meanings {
    pub fn of(&mut self, names: &Dictionary, id: StackId) -> StackMeaning {
        // A stack's parent has a smaller number, so its meaning is known already.
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
                Place::Kernel if label::is_module(names.strings.get(frame.module)) => {
                    meaning_of(frame.symbol(&names.strings)) & OF_MODULES
                }
                Place::Kernel => meaning_of(frame.symbol(&names.strings)),
                Place::User | Place::Jit => USER_CODE,
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

    fn kind(comm: &str, tid: Option<u32>, root_first: &[&str]) -> Kind {
        let mut made = Made::default();
        let (task, stack) = (made.task_of(comm, tid, tid), made.stack(root_first));
        made.sample("cpu-clock", 0, 1, task, stack);
        Kinds::default().kind(&made.names, &made.samples[0])
    }

    #[test]
    fn who_runs_and_what_sits_above_the_idle_loop_decide() {
        const LOOP: [&str; 2] = ["cpu_startup_entry_[k]", "do_idle_[k]"];
        for waits in [&["default_idle_call_[k]", "pv_native_safe_halt_[k]"][..], &["[unknown]_[k]"], &["_[k]"], &[]] {
            let stack: Vec<&str> = LOOP.iter().chain(waits).copied().collect();
            assert_eq!(kind("swapper", Some(0), &stack), Kind::Idle, "{stack:?}");
            // Folded stacks have no numbers, and only the suffix tells the kernel's functions.
            assert_eq!(kind("swapper", None, &stack), Kind::Idle, "{stack:?}");
            assert_eq!(kind("idle_inject/1", Some(40), &stack), Kind::Kernel, "{stack:?}");
            let above = [&stack[..], &["asm_common_interrupt_[k]", "ena_intr_msix_io_[k]"]].concat();
            assert_eq!(kind("swapper", Some(0), &above), Kind::Irq, "{above:?}");
        }
        assert_eq!(kind("swapper", Some(0), &[]), Kind::Idle);
        // A program may have such a function.
        assert_eq!(kind("idler", Some(7), &["main", "default_idle"]), Kind::User);
        assert_eq!(kind("web", Some(7), &["main", "entry_SYSCALL_64_[k]", "ksys_read_[k]"]), Kind::Kernel);
        assert_eq!(kind("web", Some(7), &["main", "do_softirq.part.0_[k]", "tcp_v4_rcv_[k]"]), Kind::Irq);
        assert_eq!(kind("ksoftirqd/3", Some(30), &["tcp_v4_rcv_[k]"]), Kind::Irq);
        let napi = ["ret_from_fork_[k]", "kthread_[k]", "napi_threaded_poll_[k]", "__napi_poll_[k]"];
        assert_eq!(kind("napi/eth0-5", Some(31), &napi), Kind::Kernel);
    }

    #[test]
    fn a_function_of_a_module_is_not_the_kernels() {
        let mut names = Dictionary::default();
        let mut meaning = |module: &str, symbol: &str| {
            let (symbol, module) = (names.strings.intern(symbol), names.strings.intern(module));
            let frame = names.frames.intern(Frame { symbol, module, place: Place::Kernel, inlined: false });
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
