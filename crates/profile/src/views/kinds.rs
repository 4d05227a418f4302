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

/// Functions in which an idle core waits (kernel/sched/idle.c, drivers/cpuidle, drivers/acpi, arch/*; 5.4 to 6.18). A sample of
/// the idle task is idle only if one of them is the leaf: what runs above them, softirq work first of all, is work.
const WAITING: &[&str] = &[
    // kernel/sched/idle.c, with what the compiler leaves of it
    "default_idle_call",
    "cpuidle_idle_call",
    "call_cpuidle",
    "cpu_idle_poll",
    "do_idle",
    "cpu_startup_entry",
    "tick_nohz_idle_enter",
    "tick_nohz_idle_exit",
    // drivers/cpuidle
    "cpuidle_enter",
    "cpuidle_enter_state",
    "cpuidle_enter_s2idle",
    "poll_idle",
    "default_enter_idle",
    "haltpoll_select",
    // x86
    "arch_cpu_idle",
    "default_idle",
    "x86_idle",
    "native_safe_halt",
    "pv_native_safe_halt",
    "native_halt",
    "mwait_idle",
    "mwait_idle_with_hints",
    "amd_e400_idle",
    "tdx_safe_halt",
    "tdx_halt",
    "__tdx_hypercall",
    "xen_safe_halt",
    "xen_hypercall_sched_op",
    "intel_idle",
    "intel_idle_irq",
    "intel_idle_ibrs",
    "intel_idle_xstate",
    "intel_idle_hlt",
    "intel_idle_hlt_irq",
    "intel_idle_s2idle",
    "acpi_safe_halt",
    "acpi_idle_do_entry",
    "acpi_idle_enter",
    "acpi_idle_enter_bm",
    "acpi_idle_enter_s2idle",
    "acpi_processor_ffh_cstate_enter",
    // The instruction that ends an interrupt: the core is back where it waited, and the next tick finds it there.
    "native_irq_return_iret",
    // arm64
    "cpu_do_idle",
    "cpu_v7_do_idle",
    "arch_cpu_idle_enter",
    "arch_cpu_idle_exit",
    "acpi_idle_lpi_enter",
    "acpi_processor_ffh_lpi_enter",
    "arm_cpuidle_suspend",
    "psci_enter_idle_state",
    "__psci_enter_domain_idle_state",
    "psci_enter_domain_idle_state",
    "psci_cpu_suspend_enter",
    "psci_suspend_finisher",
    "cpu_suspend",
    "__cpu_suspend_enter",
    "__invoke_psci_fn_hvc",
    "__invoke_psci_fn_smc",
    "__arm_smccc_hvc",
    "__arm_smccc_smc",
    // powerpc, s390, riscv
    "snooze_loop",
    "stop_loop",
    "dedicated_cede_loop",
    "enabled_wait",
    "psw_idle",
    "sbi_cpuidle_enter_state",
];
/// The kernel is on its way back from an interrupt to what it interrupted: schedule() above it is not interrupt work.
const LEAVING: &[&str] = &[
    "irqentry_exit",
    "irqentry_exit_to_user_mode",
    "irqentry_exit_cond_resched",
    "raw_irqentry_exit_cond_resched",
    "dynamic_irqentry_exit_cond_resched",
    "exit_to_user_mode_loop",
    "exit_to_user_mode_prepare",
    "preempt_schedule_irq",
    // x86 to 5.7
    "prepare_exit_to_usermode",
    "exit_to_usermode_loop",
    "retint_user",
    "retint_kernel",
    "swapgs_restore_regs_and_return_to_usermode",
    // arm64
    "arm64_preempt_schedule_irq",
    "exit_to_user_mode",
    "arm64_exit_to_user_mode",
    "arm64_exit_to_kernel_mode",
    "exit_to_kernel_mode",
    "do_notify_resume",
    "ret_to_user",
    "work_pending",
];

/// Entries of hard interrupts and the loop of soft ones, 5.4 to 6.18.
fn is_interrupt(symbol: &str) -> bool {
    const EXACT: &[&str] = &[
        // kernel/softirq.c
        "handle_softirqs",
        "__do_softirq",
        "do_softirq",
        "__softirqentry_text_start",
        "__irq_exit_rcu",
        "irq_exit_rcu",
        "irq_exit",
        "run_ksoftirqd",
        "run_ktimerd",
        "net_rx_action",
        "net_tx_action",
        // kernel/irq
        "handle_irq_event",
        "handle_irq_event_percpu",
        "__handle_irq_event_percpu",
        "generic_handle_irq",
        "__handle_domain_irq",
        "handle_domain_irq",
        "generic_handle_domain_irq",
        "generic_handle_arch_irq",
        // x86 since 5.8; FRED since 6.9
        "common_interrupt",
        "__common_interrupt",
        "asm_common_interrupt",
        "fred_extint",
        "exc_nmi",
        "asm_exc_nmi",
        "fred_exc_nmi",
        "exc_xen_hypervisor_callback",
        "asm_exc_xen_hypervisor_callback",
        "xen_pv_evtchn_do_upcall",
        "xen_evtchn_do_upcall",
        // x86 to 5.7
        "do_IRQ",
        "ret_from_intr",
        "do_nmi",
        "nmi",
        "end_repeat_nmi",
        "scheduler_ipi",
        "reschedule_interrupt",
        "apic_timer_interrupt",
        "call_function_interrupt",
        "call_function_single_interrupt",
        "irq_work_interrupt",
        "thermal_interrupt",
        "spurious_interrupt",
        "error_interrupt",
        "x86_platform_ipi",
        "xen_hypervisor_callback",
        "xen_hvm_callback_vector",
        "hyperv_callback_vector",
        "hyperv_vector_handler",
        "hv_stimer0_callback_vector",
        // arm64
        "el1_irq",
        "el0_irq",
        "el0_irq_naked",
        "el0_irq_compat",
        "el1_interrupt",
        "el0_interrupt",
        "__el0_irq_handler_common",
        "__el0_fiq_handler_common",
        "call_on_irq_stack",
        "do_interrupt_handler",
        "gic_handle_irq",
    ];
    // `sysvec_apic_timer_interrupt`, `asm_sysvec_call_function`, `smp_apic_timer_interrupt`, `el1h_64_irq_handler`.
    let vector = |symbol: &str| {
        let el = ["el1h_", "el1t_", "el0t_"].iter().any(|level| symbol.starts_with(level));
        el && ["_irq", "_irq_handler", "_fiq", "_fiq_handler"].iter().any(|end| symbol.ends_with(end))
    };
    let old = |symbol: &str| symbol.starts_with("smp_") && symbol.ends_with("_interrupt");
    let sysvec = symbol.trim_start_matches("asm_").trim_start_matches("fred_").trim_start_matches("__");
    EXACT.contains(&symbol) || sysvec.starts_with("sysvec_") || old(symbol) || vector(symbol)
}

/// A name without what compilers put behind it: `do_idle.constprop.0`, `acpi_idle_do_entry.isra.0`, `do_softirq.part.0`.
fn plain(symbol: &str) -> &str {
    symbol.split_once('.').map_or(symbol, |(name, _)| name)
}

/// Tells the kind of samples. What it learns of frames, stacks and tasks it keeps.
#[derive(Clone, Debug, Default)]
pub struct Kinds {
    frames: Vec<Traits>,
    /// For each stack: interrupt work, kernel leaf, waiting leaf.
    stacks: Vec<u8>,
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
        let idle_task = role == Role::Idle;
        let empty = sample.stack == StackId::EMPTY;
        if stack & INTERRUPT != 0 || role == Role::Softirq {
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
            let symbol = plain(frame.symbol(&names.strings));
            let kernel = frame.place == Place::Kernel;
            self.frames.push(Traits {
                interrupt: kernel && is_interrupt(symbol),
                leaving: kernel && LEAVING.contains(&symbol),
                kernel,
                // Without symbols nothing can be told; an idle task most often idles.
                waiting: kernel && (WAITING.contains(&symbol) || symbol.is_empty() || symbol == "[unknown]"),
            });
        }
        self.frames[id.0 as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::views::made::Made;

    fn kind(comm: &str, tid: Option<u32>, root_first: &[&str]) -> Kind {
        let mut made = Made::default();
        let (task, stack) = (made.task_of(comm, tid, tid), made.stack(root_first));
        made.sample("cpu-clock", 0, 1, task, stack);
        Kinds::default().kind(&made.names, &made.samples[0])
    }

    #[test]
    fn an_idle_core_is_idle_only_if_nothing_is_above_its_waiting() {
        const LOOP: [&str; 2] = ["cpu_startup_entry_[k]", "do_idle_[k]"];
        for waits in [
            &["default_idle_call_[k]", "default_idle_[k]", "pv_native_safe_halt_[k]"][..],
            &["cpuidle_idle_call_[k]", "cpuidle_enter_[k]", "cpuidle_enter_state_[k]", "intel_idle_ibrs_[k]"],
            &["cpuidle_enter_state_[k]", "acpi_idle_enter_[k]", "acpi_idle_do_entry.isra.0_[k]"],
            &["default_idle_call_[k]", "xen_safe_halt_[k]"],
            &["default_idle_[k]", "native_irq_return_iret_[k]"],
            &["psci_enter_idle_state_[k]", "psci_cpu_suspend_enter_[k]", "cpu_suspend_[k]", "__arm_smccc_hvc_[k]"],
            &["[unknown]_[k]"],
            &["_[k]"],
            &[],
        ] {
            let stack: Vec<&str> = LOOP.iter().chain(waits).copied().collect();
            assert_eq!(kind("swapper", Some(0), &stack), Kind::Idle, "{stack:?}");
            // Folded stacks have no numbers, and only the suffix tells the kernel's functions.
            assert_eq!(kind("swapper", None, &stack), Kind::Idle, "{stack:?}");
            let above = [&stack[..], &["asm_common_interrupt_[k]", "ena_intr_msix_io_[k]"]].concat();
            assert_eq!(kind("swapper", Some(0), &above), Kind::Irq, "{above:?}");
        }
        assert_eq!(kind("swapper", Some(0), &["do_idle_[k]", "schedule_idle_[k]", "__schedule_[k]"]), Kind::Kernel);
        assert_eq!(kind("swapper", Some(0), &[]), Kind::Idle);
        // A program may have such a function.
        assert_eq!(kind("idler", Some(7), &["main", "default_idle"]), Kind::User);
    }

    #[test]
    fn interrupts_are_known_by_their_entries() {
        for entry in [
            "asm_sysvec_apic_timer_interrupt_[k]",
            "__sysvec_call_function_single_[k]",
            "fred_sysvec_reschedule_ipi_[k]",
            "common_interrupt_[k]",
            "do_IRQ_[k]",
            "smp_apic_timer_interrupt_[k]",
            "smp_call_function_single_interrupt_[k]",
            "el1h_64_irq_handler_[k]",
            "el0t_64_irq_[k]",
            "el1_irq_[k]",
            "do_softirq.part.0_[k]",
            "__do_softirq_[k]",
        ] {
            assert_eq!(kind("web", Some(7), &["main", entry, "work_[k]"]), Kind::Irq, "{entry}");
            // On the way back to the program somebody else is chosen: no interrupt's work.
            let back = ["main", entry, "irqentry_exit_to_user_mode_[k]", "schedule_[k]"];
            assert_eq!(kind("web", Some(7), &back), Kind::Kernel, "{entry}");
        }
        assert_eq!(kind("ksoftirqd/3", Some(30), &["ret_from_fork_[k]", "run_ksoftirqd_[k]"]), Kind::Irq);
        assert_eq!(kind("ksoftirqd/3", Some(30), &["tcp_v4_rcv_[k]"]), Kind::Irq);
        let napi = ["ret_from_fork_[k]", "kthread_[k]", "napi_threaded_poll_[k]", "__napi_poll_[k]"];
        assert_eq!(kind("napi/eth0-5", Some(31), &napi), Kind::Kernel);
        assert_eq!(kind("web", Some(7), &["main", "entry_SYSCALL_64_[k]", "ksys_read_[k]"]), Kind::Kernel);
        // An interrupt above an interrupt's end.
        let again = ["main", "sysvec_reboot_[k]", "irqentry_exit_[k]", "asm_common_interrupt_[k]"];
        assert_eq!(kind("web", Some(7), &again), Kind::Irq);
    }
}
