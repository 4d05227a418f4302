//! What a core was doing: a program's code, the kernel's for it, interrupts, or nothing.

use serde::{Deserialize, Serialize};

use crate::model::{Dictionary, FrameId, Place, Sample, StackId, TaskId};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    User,
    Kernel,
    /// Hard and soft interrupts, whoever they interrupted.
    Irq,
    Idle,
}

/// Functions in which an idle core waits (kernel/sched/idle.c, drivers/cpuidle, arch/*). A sample of the idle task is idle only
/// if one of them is the leaf: what runs above them, softirq work first of all, is work.
const WAITING: &[&str] = &[
    "default_idle",
    "default_idle_call",
    "arch_cpu_idle",
    "native_safe_halt",
    "pv_native_safe_halt",
    "xen_safe_halt",
    "acpi_safe_halt",
    "acpi_idle_do_entry",
    "acpi_idle_enter",
    "acpi_processor_ffh_cstate_enter",
    "intel_idle",
    "intel_idle_irq",
    "intel_idle_ibrs",
    "intel_idle_hlt",
    "intel_idle_xstate",
    "mwait_idle",
    "mwait_idle_with_hints",
    "amd_e400_idle",
    "poll_idle",
    "cpu_idle_poll",
    "cpuidle_enter_state",
    "cpuidle_enter",
    "cpuidle_idle_call",
    "call_cpuidle",
    "do_idle",
    "cpu_startup_entry",
    "cpu_do_idle",
    "cpu_v7_do_idle",
    "psci_cpu_suspend_enter",
    "__cpu_suspend_enter",
    "snooze_loop",
    "stop_loop",
    "haltpoll_select",
    "kvm_halt_poll",
    "tick_nohz_idle_enter",
    "tick_nohz_idle_exit",
    "do_idle.constprop.0",
    "native_irq_return_iret",
];
/// The kernel is on its way back from an interrupt to what it interrupted: schedule() above it is not interrupt work.
const LEAVING: &[&str] = &[
    "irqentry_exit",
    "irqentry_exit_to_user_mode",
    "exit_to_user_mode_loop",
    "raw_irqentry_exit_cond_resched",
    "preempt_schedule_irq",
];

fn is_interrupt(symbol: &str) -> bool {
    const EXACT: &[&str] = &[
        "handle_softirqs",
        "__do_softirq",
        "do_softirq",
        "do_softirq_own_stack",
        "__irq_exit_rcu",
        "irq_exit_rcu",
        "irq_exit",
        "run_ksoftirqd",
        "common_interrupt",
        "__common_interrupt",
        "do_IRQ",
        "handle_irq_event",
        "handle_irq_event_percpu",
        "__handle_irq_event_percpu",
        "net_rx_action",
        "gic_handle_irq",
        "el1_interrupt",
        "el0_interrupt",
        "exc_nmi",
    ];
    EXACT.contains(&symbol)
        || symbol.starts_with("sysvec_")
        || symbol.starts_with("__sysvec_")
        || symbol.starts_with("smp_apic_")
}

/// Tells the kind of samples. What it learns of frames, stacks and tasks it keeps.
#[derive(Clone, Debug, Default)]
pub struct Kinds {
    frames: Vec<Traits>,
    /// For each stack: interrupt work, kernel leaf, waiting leaf.
    stacks: Vec<u8>,
    idle_tasks: Vec<bool>,
}

#[derive(Clone, Copy, Debug)]
struct Traits {
    interrupt: bool,
    leaving: bool,
    kernel: bool,
    waiting: bool,
}

const INTERRUPT: u8 = 1;
const KERNEL: u8 = 2;
const WAIT: u8 = 4;

impl Kinds {
    /// The kind of a sample. `names` is the same at each call, but for what was added to it.
    pub fn kind(&mut self, names: &Dictionary, sample: &Sample) -> Kind {
        let stack = self.stack(names, sample.stack);
        while self.idle_tasks.len() <= sample.task.0 as usize {
            let task = names.task(TaskId(self.idle_tasks.len() as u32));
            self.idle_tasks.push(task.is_idle_task(&names.strings));
        }
        let idle_task = self.idle_tasks[sample.task.0 as usize];
        let empty = sample.stack == StackId::EMPTY;
        if stack & INTERRUPT != 0 {
            Kind::Irq
        } else if idle_task && (empty || stack & WAIT != 0) {
            Kind::Idle
        } else if stack & KERNEL != 0 || idle_task {
            Kind::Kernel
        } else {
            Kind::User
        }
    }

    fn stack(&mut self, names: &Dictionary, id: StackId) -> u8 {
        // A stack's parent has a smaller number, so what it is is known already.
        while self.stacks.len() <= id.0 as usize {
            let Some((below, leaf)) = names.stacks.split(StackId(self.stacks.len() as u32)) else {
                self.stacks.push(0);
                continue;
            };
            let frame = self.frame(names, leaf);
            let interrupted = self.stacks[below.0 as usize] & INTERRUPT != 0;
            let interrupt = frame.interrupt || (interrupted && !frame.leaving);
            self.stacks.push(
                if interrupt { INTERRUPT } else { 0 }
                    | if frame.kernel { KERNEL } else { 0 }
                    | if frame.waiting { WAIT } else { 0 },
            );
        }
        self.stacks[id.0 as usize]
    }

    fn frame(&mut self, names: &Dictionary, id: FrameId) -> Traits {
        while self.frames.len() <= id.0 as usize {
            let frame = names.frames.get(FrameId(self.frames.len() as u32));
            let symbol = frame.symbol(&names.strings);
            let kernel = frame.place == Place::Kernel;
            self.frames.push(Traits {
                interrupt: kernel && is_interrupt(symbol),
                leaving: kernel && LEAVING.contains(&symbol),
                kernel,
                // Without symbols nothing can be told; an idle task most often idles.
                waiting: kernel && (WAITING.contains(&symbol) || symbol.is_empty()),
            });
        }
        self.frames[id.0 as usize]
    }
}
