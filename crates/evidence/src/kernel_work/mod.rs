//! What the kernel was working on, from samples of its stacks.
//!
//! A stack is put into one [`WorkKind`] by the names of its functions: [`meaning_of`] says what one function means, [`StackMeaning`]
//! what they mean together, for live, recorded and imported stacks alike. `functions.rs` has the lists.

mod functions;

pub use functions::{Meaning, OF_MODULES, USER_CODE};

use crate::order::Order;
use functions::{
    FUNCTIONS, HUGE_PAGES, IDLE, INTERRUPT, KERNEL, KERNFS, LEAVING, NAMED, NETWORK, PAGE_FAULT, PAGE_TABLES, RECLAIM,
    STEP, WALK, family_of,
};

use crate::Time;
use coroner_report::named;
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::LazyLock;

/// What the kernel did on all cores in about a second.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelWork {
    pub from: Time,
    pub to: Time,
    /// Samples per second and core.
    pub rate_hz: u32,
    pub cores: u32,
    /// Samples lost because the ring was full, and those the kernel throttled.
    pub lost: u64,
    /// Idle cores and user code are left out.
    pub rows: Vec<WorkRow>,
}

impl KernelWork {
    /// How many samples are of these kinds.
    pub fn samples(&self, of: impl Fn(WorkKind) -> bool) -> u64 {
        self.rows.iter().filter(|row| of(row.kind)).fold(0, |sum, row| sum.saturating_add(row.samples))
    }
}

/// Samples of one thread on one core at one kind of work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkRow {
    pub core: u32,
    /// 0 for interrupts of an idle core, and for small contributors put together.
    pub pid: u32,
    pub tid: u32,
    pub comm: String,
    pub kind: WorkKind,
    pub samples: u64,
    /// The innermost function of most of them, if known.
    pub symbol: Option<String>,
}

/// The key by which samples are summed: thread and function in the caller's own types.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WorkSum<Task, Function> {
    pub core: u32,
    pub task: Task,
    pub kind: WorkKind,
    /// The innermost function.
    pub symbol: Function,
}

/// Pid, tid and comm of a row, live and recorded alike. A thread that is exiting has no ids; one that exited before its name was
/// read has no name.
pub fn who(pid: Option<u32>, tid: Option<u32>, name: Option<&str>) -> (u32, u32, String) {
    let name = match (pid, tid) {
        (None, _) | (_, None) => "(exiting)",
        // kernel/events/core.c: perf_event_pid_type.
        (Some(0), _) => "(idle task or other pid namespace)",
        _ => name.unwrap_or("(gone)"),
    };
    (pid.unwrap_or(0), tid.unwrap_or(0), name.to_owned())
}

/// Most rows per second, without those put together. Only nodes with hundreds of cores have more, most with a single sample.
const MAX_ROWS: usize = 128;
/// Stands for many threads put together.
const OTHERS: &str = "(others)";

/// The rows of one second, largest first. `who` returns pid, tid and comm; an unnamed function is the empty string.
pub fn rows_of<'n, Task: Copy + Eq + Hash, Function>(
    sums: impl IntoIterator<Item = (WorkSum<Task, Function>, u64)>,
    who: impl Fn(Task) -> (u32, u32, String),
    name: impl Fn(Function) -> &'n str,
) -> Vec<WorkRow> {
    let mut found: HashMap<(u32, Task, WorkKind), HashMap<&str, u64>> = HashMap::new();
    for (WorkSum { core, task, kind, symbol }, samples) in sums {
        let sum = found.entry((core, task, kind)).or_default().entry(base_name(name(symbol))).or_default();
        *sum = sum.saturating_add(samples);
    }
    let row = |((core, task, kind), functions): ((u32, Task, WorkKind), HashMap<&str, u64>)| {
        let (pid, tid, comm) = who(task);
        let samples = functions.values().fold(0, |sum: u64, samples| sum.saturating_add(*samples));
        let named = functions.into_iter().filter(|(name, _)| !name.is_empty());
        let symbol = named.max_by_key(|(name, samples)| (*samples, Reverse(*name))).map(|(name, _)| name.to_owned());
        WorkRow { core, pid, tid, comm, kind, samples, symbol }
    };
    fewer_rows(found.into_iter().map(row).collect(), MAX_ROWS)
}

/// Sorts rows, largest first. If there are more than `most`, those of the smallest processes are put together by core and kind.
fn fewer_rows(mut rows: Vec<WorkRow>, most: usize) -> Vec<WorkRow> {
    if rows.len() > most {
        let mut processes: HashMap<u32, u64> = HashMap::new();
        for row in &rows {
            let sum = processes.entry(row.pid).or_default();
            *sum = sum.saturating_add(row.samples);
        }
        rows.sort_by_cached_key(|row| {
            (Reverse(processes[&row.pid]), Reverse(row.samples), row.core, row.tid, row.kind)
        });
        let mut others: HashMap<(u32, WorkKind), WorkRow> = HashMap::new();
        for row in rows.split_off(most) {
            match others.get_mut(&(row.core, row.kind)) {
                // The larger ones come first.
                Some(sum) => sum.samples = sum.samples.saturating_add(row.samples),
                None => {
                    let key = (row.core, row.kind);
                    others.insert(key, WorkRow { pid: 0, tid: 0, comm: OTHERS.to_owned(), ..row });
                }
            }
        }
        rows.extend(others.into_values());
    }
    rows.order_by_key(|row| (Reverse(row.samples), row.core, row.tid, row.kind));
    rows
}

named! {
    /// Each sample has one kind: the first of these that its stack shows.
    pub enum WorkKind {
        /// Walking memory cgroups to sum up or flush their statistics.
        StatsWalk = "stats-walk",
        /// Walking memory cgroups in reclaim.
        ReclaimWalk = "reclaim-walk",
        /// Reclaiming memory.
        Reclaim = "reclaim",
        /// Page tables of other processes, for /proc/PID/smaps, clear_refs and the like.
        PageTables = "page-tables",
        /// Huge pages: compaction, collapsing, zeroing.
        HugePages = "huge-pages",
        /// Other page faults.
        PageFault = "page-fault",
        /// Reading files of cgroups and of /sys.
        Kernfs = "kernfs",
        /// Received packets.
        Network = "network",
        /// Other interrupt work.
        Interrupt = "interrupt",
        Other = "other",
        /// Not identified.
        Unnamed = "unnamed",
    }
}

impl WorkKind {
    /// For sentences: `in …`.
    pub fn words(self) -> &'static str {
        match self {
            WorkKind::StatsWalk => "statistics over all memory cgroups",
            WorkKind::ReclaimWalk => "memory reclaim, walking cgroups",
            WorkKind::Reclaim => "memory reclaim",
            WorkKind::PageTables => "page tables of other processes (smaps, clear_refs)",
            WorkKind::HugePages => "huge pages",
            WorkKind::PageFault => "page faults",
            WorkKind::Kernfs => "cgroup and /sys files",
            WorkKind::Network => "received packets",
            WorkKind::Interrupt => "interrupts",
            WorkKind::Other => "other work",
            WorkKind::Unnamed => "unidentified work",
        }
    }

    /// Walks memory cgroups.
    pub fn is_memcg_walk(self) -> bool {
        matches!(self, WorkKind::StatsWalk | WorkKind::ReclaimWalk)
    }

    pub fn is_reclaim(self) -> bool {
        matches!(self, WorkKind::Reclaim | WorkKind::ReclaimWalk)
    }
}

static MEANINGS: LazyLock<HashMap<&'static str, Meaning>> = LazyLock::new(|| {
    let mut meanings = HashMap::new();
    for (meaning, names) in FUNCTIONS {
        for name in *names {
            *meanings.entry(*name).or_insert(0) |= meaning;
        }
    }
    meanings
});

/// A function's name without the compiler's suffix after a dot: `do_idle.constprop.0`, `do_softirq.part.0`.
pub fn base_name(function: &str) -> &str {
    // A leading dot is part of the name.
    match function.bytes().skip(1).position(|byte| byte == b'.') {
        Some(dot) => function.get(..=dot).unwrap_or(function),
        None => function,
    }
}

/// What a kernel function means, by its name, which may be missing.
pub fn meaning_of(function: &str) -> Meaning {
    if function.is_empty() || function == "[unknown]" {
        return KERNEL;
    }
    let name = base_name(function);
    KERNEL | NAMED | MEANINGS.get(name).copied().unwrap_or(0) | family_of(name)
}

/// What the functions of a stack mean together. Built from the outermost to the innermost function.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StackMeaning(Meaning);

impl StackMeaning {
    /// Adds a function, called by the innermost one so far.
    #[inline]
    #[must_use]
    pub fn calls(self, function: Meaning) -> StackMeaning {
        // What was interrupted says nothing about the interrupt's work, nor about what follows it. User code interrupts nothing.
        let apart = function & KERNEL == 0 || function & (INTERRUPT | LEAVING) != 0;
        StackMeaning(function | if apart { 0 } else { self.0 & !STEP })
    }

    pub fn is_in_kernel(self) -> bool {
        self.0 & KERNEL != 0
    }

    pub fn has_names(self) -> bool {
        self.0 & NAMED != 0
    }

    /// Interrupt work, whoever was interrupted.
    pub fn is_interrupt(self) -> bool {
        self.0 & INTERRUPT != 0
    }

    /// Whether a core with this stack was idle: only in its idle task, as a thread that runs the idle loop (idle injection) keeps
    /// others off the core; and only if no interrupt runs on top of the loop. The loop's own work (choosing a state) is idle time, as
    /// in /proc/stat. An idle task with unnamed functions counts as idle, as it mostly is.
    pub fn is_idle(self, of_idle_task: bool) -> bool {
        of_idle_task && !self.is_interrupt() && (self.0 & IDLE != 0 || !self.has_names())
    }

    /// What the kernel was working on; `None` in user code and on an idle core.
    pub fn work(self, of_idle_task: bool) -> Option<WorkKind> {
        if !self.is_in_kernel() || self.is_idle(of_idle_task) {
            return None;
        }
        let has = |meaning: Meaning| self.0 & meaning != 0;
        // Helpers of a step have other callers, too: they count only within reclaim.
        Some(match () {
            () if !self.has_names() => WorkKind::Unnamed,
            () if has(RECLAIM) && has(WALK | STEP) => WorkKind::ReclaimWalk,
            () if has(WALK) => WorkKind::StatsWalk,
            () if has(RECLAIM) => WorkKind::Reclaim,
            () if has(PAGE_TABLES) => WorkKind::PageTables,
            () if has(HUGE_PAGES) => WorkKind::HugePages,
            () if has(NETWORK) => WorkKind::Network,
            () if has(PAGE_FAULT) => WorkKind::PageFault,
            () if has(KERNFS) => WorkKind::Kernfs,
            () if has(INTERRUPT) => WorkKind::Interrupt,
            () => WorkKind::Other,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The innermost function first.
    fn stack(chain: &[&str]) -> StackMeaning {
        chain.iter().rev().fold(StackMeaning::default(), |stack, function| stack.calls(meaning_of(function)))
    }

    fn of(chain: &[&str]) -> Option<WorkKind> {
        stack(chain).work(false)
    }

    #[test]
    fn the_idle_loop_is_idle_only_without_an_interrupt_on_top() {
        const LOOP: [&str; 2] = ["do_idle", "cpu_startup_entry"];
        for waits in [
            &["pv_native_safe_halt", "default_idle", "default_idle_call"][..],
            &["intel_idle_ibrs", "cpuidle_enter_state", "cpuidle_enter", "cpuidle_idle_call"],
            &["acpi_idle_do_entry.isra.0", "acpi_idle_enter", "cpuidle_enter_state"],
            &["xen_safe_halt", "default_idle_call"],
            &["native_irq_return_iret", "default_idle"],
            &["__arm_smccc_hvc", "cpu_suspend", "psci_cpu_suspend_enter", "psci_enter_idle_state"],
            &["[unknown]"],
            &[""],
            // The idle loop's own work.
            &["menu_select"],
            &["__schedule", "schedule_idle"],
            &[],
        ] {
            let idle = [waits, &LOOP].concat();
            assert_eq!(stack(&idle).work(true), None, "{idle:?}");
            assert_eq!(stack(&idle).work(false), Some(WorkKind::Other), "a thread that injects idle time: {idle:?}");
            let above = [&["ena_intr_msix_io", "asm_common_interrupt"], &idle[..]].concat();
            assert_eq!(stack(&above).work(true), Some(WorkKind::Interrupt), "{above:?}");
            let packets = [&["kfree", "process_backlog", "net_rx_action", "handle_softirqs"], &idle[..]].concat();
            assert_eq!(stack(&packets).work(true), Some(WorkKind::Network), "{packets:?}");
        }
        // Without callers the innermost function decides. Without names nothing does; an idle task is mostly idle.
        assert!(stack(&["intel_idle"]).is_idle(true) && stack(&[""]).is_idle(true) && stack(&[]).is_idle(true));
        assert!(!StackMeaning::default().calls(USER_CODE).is_idle(true), "a thread of another pid namespace");
        assert_eq!(stack(&["", ""]).work(false), Some(WorkKind::Unnamed));
    }

    #[test]
    fn interrupts_are_not_blamed_on_what_they_interrupt() {
        for entry in [
            "asm_sysvec_apic_timer_interrupt",
            "__sysvec_call_function_single",
            "fred_sysvec_reschedule_ipi",
            "common_interrupt",
            "do_IRQ",
            "smp_apic_timer_interrupt",
            "smp_call_function_single_interrupt",
            "el1h_64_irq_handler",
            "el0t_64_irq",
            "el1_irq",
            "do_softirq.part.0",
            "__do_softirq",
        ] {
            let within = stack(&["work", entry, "mem_cgroup_iter", "shrink_node"]);
            assert!(within.is_interrupt(), "{entry}");
            assert_eq!(within.work(false), Some(WorkKind::Interrupt), "{entry}");
            // On return to user mode, another thread is scheduled.
            let back = stack(&["schedule", "irqentry_exit_to_user_mode", entry]);
            assert!(!back.is_interrupt(), "{entry}");
            assert_eq!(back.work(false), Some(WorkKind::Other), "{entry}");
        }
        assert!(stack(&["asm_common_interrupt", "irqentry_exit", "sysvec_reboot"]).is_interrupt());
        let interrupted =
            ["kfree", "net_rx_action", "handle_softirqs", "asm_common_interrupt", "mem_cgroup_iter", "shrink_node"];
        assert_eq!(of(&interrupted), Some(WorkKind::Network));
        assert_eq!(of(&[]), None);
    }

    #[test]
    fn reclaim_of_pages_is_no_walk_over_cgroups() {
        assert_eq!(of(&["shrink_folio_list", "shrink_node"]), Some(WorkKind::Reclaim));
        assert_eq!(of(&["kfree", "shrink_folio_list", "shrink_node"]), Some(WorkKind::Reclaim));
        assert_eq!(
            of(&["shrink_node.isra.0", "do_syscall_64"]),
            Some(WorkKind::ReclaimWalk),
            "the loop over cgroups itself"
        );
        assert_eq!(of(&["mem_cgroup_iter", "shrink_node"]), Some(WorkKind::ReclaimWalk));
        assert_eq!(of(&["css_tryget", "mem_cgroup_iter", "memcg_stat_show"]), Some(WorkKind::StatsWalk));
        assert_eq!(of(&["blk_start_plug", "ext4_writepages"]), Some(WorkKind::Other), "a helper with other callers");
    }

    #[test]
    fn the_most_specific_function_decides() {
        assert_eq!(of(&["smaps_pte_range", "walk_pgd_range", "kernfs_seq_show"]), Some(WorkKind::PageTables));
        assert_eq!(of(&["clear_page_erms", "do_anonymous_page", "__handle_mm_fault"]), Some(WorkKind::PageFault));
        assert_eq!(
            of(&["clear_page_erms", "do_huge_pmd_anonymous_page", "__handle_mm_fault"]),
            Some(WorkKind::HugePages)
        );
        assert_eq!(of(&["shrink_folio_list", "try_to_free_pages", "handle_mm_fault"]), Some(WorkKind::Reclaim));
        assert_eq!(of(&["memory_stat_format", "memory_stat_show", "kernfs_fop_read_iter"]), Some(WorkKind::Kernfs));
    }

    #[test]
    fn small_rows_are_put_together_and_no_sample_is_lost() {
        let row = |tid: u32, samples: u64| WorkRow {
            core: tid % 3,
            pid: tid,
            tid,
            comm: "x".to_owned(),
            kind: WorkKind::Other,
            samples,
            symbol: Some(format!("f{tid}")),
        };
        let all: Vec<WorkRow> = (1..100).map(|tid| row(tid, u64::from(tid))).collect();
        let sum = |rows: &[WorkRow]| rows.iter().map(|row| row.samples).sum::<u64>();
        let fewer = fewer_rows(all.clone(), 10);
        assert_eq!((fewer.len(), sum(&fewer)), (13, sum(&all)));
        assert!(fewer.windows(2).all(|pair| pair[0].samples >= pair[1].samples));
        let others: Vec<&WorkRow> = fewer.iter().filter(|row| row.comm == OTHERS).collect();
        assert!(others.iter().all(|row| (row.pid, row.tid) == (0, 0)), "{others:?}");
        let mut heaviest: Vec<u32> = fewer.iter().map(|row| row.tid).filter(|tid| *tid != 0).collect();
        heaviest.sort_unstable();
        assert_eq!(heaviest, (90..100).collect::<Vec<_>>());
        assert_eq!(fewer_rows(all.clone(), 99).len(), 99);
    }

    #[test]
    fn kinds_have_distinct_names() {
        for kind in WorkKind::ALL {
            assert_eq!(WorkKind::parse(kind.as_str()), Some(*kind));
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.as_str());
        }
    }
}
