//! What the kernel was at work on, by samples of its stacks.
//!
//! A stack is put into one [`WorkKind`] by the functions in it. The functions are named here once; whoever has addresses only (a sampler)
//! looks up where these functions are, whoever has names (a profile) compares names.
//!
//! **What counts as stepping from cgroup to cgroup** ([`WALK`], [`STEP`]). A function that was inlined into its caller has no frame
//! of its own, and which ones are differs by kernel and compiler. Therefore two lists:
//! - any frame of the chain is a function that goes over cgroups: the iterators, the readers of statistics that use them, the
//!   flushing of per-core statistics (rstat). Functions that others use as well (`css_tryget`, `memcg_page_state`) are left
//!   out: under a walk their callers are in the chain.
//! - or the *innermost* frame is one of reclaim's that runs once for each cgroup (`shrink_node`, `shrink_lruvec`,
//!   `shrink_slab` …). Where there are pages to look at, work goes on in other functions below them (`shrink_folio_list`,
//!   `isolate_lru_folios`, a file system's shrinker), so that their own time is that of the visit. On Linux 6.18 five thousand
//!   empty ones spend a third in `mem_cgroup_iter` and more than half in these.
//!
//! So reclaim of many pages in few cgroups is [`WorkKind::Reclaim`]; reclaim that visits thousands of cgroups with nothing to take is
//! mostly [`WorkKind::ReclaimWalk`]. The walk goes over live cgroups as well: whether there are many dead ones is another question.
//!
//! Samples by the kernel's clock come with an interrupt: they cannot fall where interrupts are off, and fall on what switches
//! them on again. Flushing statistics holds a lock that way; the sample still has the flush in its chain.

use crate::Time;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::sync::LazyLock;

/// What the kernel did on all cores over a stretch of time, about a second of it at a time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelWork {
    pub from: Time,
    pub to: Time,
    /// Samples a second of each core.
    pub rate_hz: u32,
    pub cores: u32,
    /// Samples that the kernel had no room for, and those it held back.
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
    /// 0 for what interrupted an idle core.
    pub pid: u32,
    pub tid: u32,
    pub comm: String,
    pub kind: WorkKind,
    pub samples: u64,
    /// The innermost function that most of them were in, where it is known.
    pub symbol: Option<String>,
}

/// Each sample is of one kind: the first of these that its stack shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WorkKind {
    /// From memory cgroup to memory cgroup, to sum up or flush their statistics.
    StatsWalk,
    /// The same in memory reclaim.
    ReclaimWalk,
    /// Memory reclaim at its proper work.
    Reclaim,
    /// Page tables of other processes, for /proc/PID/smaps, clear_refs and their like.
    PageTables,
    /// Huge pages: compaction, collapsing, zeroing.
    HugePages,
    /// Other page faults.
    PageFault,
    /// Reading files of cgroups and of /sys.
    Kernfs,
    /// Packets that come in.
    Network,
    /// Other work of interrupts.
    Interrupt,
    Other,
    /// So little that nobody looked what it was.
    Unnamed,
}

impl WorkKind {
    pub const ALL: &[WorkKind] = &[
        WorkKind::StatsWalk,
        WorkKind::ReclaimWalk,
        WorkKind::Reclaim,
        WorkKind::PageTables,
        WorkKind::HugePages,
        WorkKind::PageFault,
        WorkKind::Kernfs,
        WorkKind::Network,
        WorkKind::Interrupt,
        WorkKind::Other,
        WorkKind::Unnamed,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            WorkKind::StatsWalk => "stats-walk",
            WorkKind::ReclaimWalk => "reclaim-walk",
            WorkKind::Reclaim => "reclaim",
            WorkKind::PageTables => "page-tables",
            WorkKind::HugePages => "huge-pages",
            WorkKind::PageFault => "page-fault",
            WorkKind::Kernfs => "kernfs",
            WorkKind::Network => "network",
            WorkKind::Interrupt => "interrupt",
            WorkKind::Other => "other",
            WorkKind::Unnamed => "unnamed",
        }
    }

    /// As a person would say it: `in …`.
    pub fn words(self) -> &'static str {
        match self {
            WorkKind::StatsWalk => "statistics over all memory cgroups",
            WorkKind::ReclaimWalk => "memory reclaim, going from cgroup to cgroup",
            WorkKind::Reclaim => "memory reclaim",
            WorkKind::PageTables => "page tables of other processes (smaps, clear_refs)",
            WorkKind::HugePages => "huge pages",
            WorkKind::PageFault => "page faults",
            WorkKind::Kernfs => "files of cgroups or of /sys",
            WorkKind::Network => "received packets",
            WorkKind::Interrupt => "interrupts",
            WorkKind::Other => "other work",
            WorkKind::Unnamed => "work that nobody looked at",
        }
    }

    pub fn parse(text: &str) -> Option<WorkKind> {
        WorkKind::ALL.iter().copied().find(|kind| kind.as_str() == text)
    }

    /// Steps from memory cgroup to memory cgroup.
    pub fn is_memcg_walk(self) -> bool {
        matches!(self, WorkKind::StatsWalk | WorkKind::ReclaimWalk)
    }

    pub fn is_reclaim(self) -> bool {
        matches!(self, WorkKind::Reclaim | WorkKind::ReclaimWalk)
    }
}

/// What the presence of a function in a stack tells: a set of bits.
pub type Meaning = u16;

/// Goes over cgroups, wherever it stands in the chain.
pub const WALK: Meaning = 1 << 0;
/// Of reclaim, once for each cgroup: a step of the walk if it is the innermost.
pub const STEP: Meaning = 1 << 1;
pub const RECLAIM: Meaning = 1 << 2;
/// The idle task, waiting.
pub const IDLE: Meaning = 1 << 3;
/// Work that interrupts something else, also the idle task.
pub const INTERRUPT: Meaning = 1 << 4;
pub const PAGE_TABLES: Meaning = 1 << 5;
pub const HUGE_PAGES: Meaning = 1 << 6;
pub const PAGE_FAULT: Meaning = 1 << 7;
pub const KERNFS: Meaning = 1 << 8;
pub const NETWORK: Meaning = 1 << 9;

/// By the whole name, without what the compiler adds after a dot (`.isra.0`, `.constprop.0`, `.part.0`, `.cold`).
pub const FUNCTIONS: &[(Meaning, &[&str])] = &[
    (
        WALK,
        &[
            // Iterators: kernel/cgroup/cgroup.c, mm/memcontrol.c.
            "mem_cgroup_iter",
            "css_next_child",
            "css_next_descendant_pre",
            "css_next_descendant_post",
            "css_rightmost_descendant",
            // Statistics that sum up what is below: of v1 until about 5.8, of v2 until 5.1. Later kernels flush (below), and then
            // print what is there: printing is no walk, so the v2 files and their formatting are not listed.
            "mem_cgroup_nr_lru_pages",
            "mem_cgroup_node_nr_lru_pages",
            "memcg_numa_stat_show",
            "memcg_stat_show",
            "memcg_sum_events",
            "tree_stat",
            "tree_events",
            "accumulate_memcg_tree",
            // rstat: kernel/cgroup/rstat.c, before 4.18 within cgroup.c; css_rstat from 6.16.
            "mem_cgroup_css_rstat_flush",
            "mem_cgroup_stat_aggregate",
            "mem_cgroup_flush_stats",
            "mem_cgroup_flush_stats_ratelimited",
            "mem_cgroup_flush_stats_delayed",
            "__mem_cgroup_flush_stats",
            "do_flush_stats",
            "flush_memcg_stats_dwork",
            "css_rstat_flush",
            "css_rstat_updated_list",
            "cgroup_rstat_flush",
            "cgroup_rstat_flush_locked",
            "cgroup_rstat_flush_irqsafe",
            "cgroup_rstat_flush_atomic",
            "cgroup_rstat_flush_hold",
            "cgroup_rstat_updated_list",
            "cgroup_rstat_cpu_pop_updated",
            // Over all memcgs when a shrinker is added.
            "memcg_expand_shrinker_maps",
            "expand_shrinker_info",
            "expand_one_shrinker_info",
        ],
    ),
    (
        // mm/vmscan.c, mm/shrinker.c, mm/memcontrol.c: bodies of loops over memcgs.
        STEP | RECLAIM,
        &[
            "shrink_node",
            "shrink_node_memcg",
            "shrink_node_memcgs",
            "shrink_zone",
            "shrink_lruvec",
            "shrink_slab",
            "shrink_slab_memcg",
            "shrink_many",
            "shrink_one",
            "get_scan_count",
            "prepare_scan_control",
            "prepare_scan_count",
            "lru_gen_shrink_node",
            "lru_gen_shrink_lruvec",
            "try_to_shrink_lruvec",
            "set_mm_walk",
            "lru_gen_age_node",
            "age_lruvec",
            "age_active_anon",
            "kswapd_age_node",
            "snapshot_refaults",
            "drop_slab",
            "drop_slab_node",
        ],
    ),
    (
        // Helpers of such a visit; others use them, too.
        STEP,
        &[
            "mem_cgroup_calculate_protection",
            "mem_cgroup_protected",
            "effective_protection",
            "page_counter_calculate_protection",
            "get_swappiness",
            "mem_cgroup_get_nr_swap_pages",
            "mem_cgroup_online",
            "lruvec_lru_size",
            "vmpressure",
            "blk_start_plug",
            "blk_finish_plug",
        ],
    ),
    (
        RECLAIM,
        &[
            "try_to_free_pages",
            "do_try_to_free_pages",
            "try_to_free_mem_cgroup_pages",
            "balance_pgdat",
            "kswapd_shrink_node",
            "node_reclaim",
            "__node_reclaim",
            "shrink_zones",
            "shrink_all_memory",
            "shrink_list",
            "shrink_active_list",
            "shrink_inactive_list",
            "shrink_folio_list",
            "shrink_page_list",
            "evict_folios",
            "evict_pages",
            "do_shrink_slab",
            "reclaim_pages",
            "reclaim_folio_list",
            "reclaim_page_list",
            "reclaim_high",
            "user_proactive_reclaim",
            "mem_cgroup_force_empty",
            "mem_cgroup_force_empty_write",
            "mem_cgroup_shrink_node",
            "mem_cgroup_soft_limit_reclaim",
            "memcg1_soft_limit_reclaim",
            "lru_gen_seq_write",
        ],
    ),
    (
        // Page tables of another process, for its files in /proc: fs/proc/task_mmu.c.
        PAGE_TABLES,
        &[
            "show_smap",
            "show_smaps_rollup",
            "smap_gather_stats",
            "smaps_pte_range",
            "smaps_pte_hole",
            "smaps_pte_hole_lookup",
            "smaps_hugetlb_range",
            "clear_refs_write",
            "clear_refs_pte_range",
            "pagemap_read",
            "pagemap_pmd_range",
            "pagemap_scan_pmd_entry",
            "show_numa_map",
            "gather_pte_stats",
        ],
    ),
    (
        // Files of cgroups and of /sys: fs/kernfs, kernel/cgroup, mm/memcontrol.c.
        KERNFS,
        &[
            "cgroup_seqfile_show",
            "cgroup_procs_show",
            "cgroup_stat_show",
            "cpu_stat_show",
            "cgroup_base_stat_cputime_show",
            "memory_stat_show",
            "memory_numa_stat_show",
            "memory_stat_format",
            "memcg_stat_format",
            "memcg1_stat_format",
            "memory_events_show",
            "mem_cgroup_read_u64",
            "kernfs_fop_open",
            "kernfs_fop_read",
            "kernfs_fop_read_iter",
            "kernfs_fop_readdir",
            "kernfs_seq_start",
            "kernfs_seq_show",
            "kernfs_iop_lookup",
            "kernfs_iop_getattr",
            "kernfs_iop_permission",
            "kernfs_dop_revalidate",
        ],
    ),
    (
        // mm/compaction.c, mm/khugepaged.c, and the zeroing of a huge page.
        HUGE_PAGES,
        &[
            "compact_zone",
            "compact_zone_order",
            "compact_node",
            "try_to_compact_pages",
            "__alloc_pages_direct_compact",
            "isolate_migratepages_block",
            "isolate_freepages_block",
            "kcompactd_do_work",
            "collapse_huge_page",
            "khugepaged_scan_mm_slot",
            "hpage_collapse_scan_pmd",
            "khugepaged_do_scan",
            "do_huge_pmd_anonymous_page",
            "__do_huge_pmd_anonymous_page",
            "clear_huge_page",
            "split_huge_page_to_list",
            "split_huge_page_to_list_to_order",
            "__split_huge_pmd",
        ],
    ),
    (
        // arch/*/mm/fault.c, mm/memory.c.
        PAGE_FAULT,
        &[
            "handle_mm_fault",
            "__handle_mm_fault",
            "do_user_addr_fault",
            "exc_page_fault",
            "asm_exc_page_fault",
            "do_page_fault",
            "__do_page_fault",
            "do_mem_abort",
            "do_translation_fault",
            "lock_mm_and_find_vma",
        ],
    ),
    (
        // net/core/dev.c: packets that come in.
        NETWORK,
        &[
            "net_rx_action",
            "net_tx_action",
            "__napi_poll",
            "napi_poll",
            "napi_threaded_poll",
            "napi_threaded_poll_loop",
            "process_backlog",
        ],
    ),
    (
        IDLE,
        &[
            "do_idle",
            "cpu_startup_entry",
            "cpu_idle_poll",
            "cpuidle_idle_call",
            "default_idle_call",
            "default_idle",
            "default_enter_idle",
            "arch_cpu_idle",
            "native_safe_halt",
            "pv_native_safe_halt",
            "acpi_safe_halt",
            "mwait_idle",
            "poll_idle",
            "cpu_do_idle",
        ],
    ),
    (
        INTERRUPT,
        &[
            // x86 before 5.8.
            "do_IRQ",
            "ret_from_intr",
            "apic_timer_interrupt",
            "reschedule_interrupt",
            "call_function_interrupt",
            "call_function_single_interrupt",
            "common_interrupt",
            "asm_common_interrupt",
            // arm64.
            "el1_irq",
            "el1h_64_irq",
            "el1_interrupt",
            "gic_handle_irq",
            // Everywhere. What other cores ask for is done by the idle task without an interrupt of its own.
            "irq_exit",
            "irq_exit_rcu",
            "__irq_exit_rcu",
            "do_softirq",
            "do_softirq_own_stack",
            "__do_softirq",
            "handle_softirqs",
            "flush_smp_call_function_from_idle",
            "flush_smp_call_function_queue",
            "__flush_smp_call_function_queue",
        ],
    ),
];

/// By the beginning of the name.
pub const FAMILIES: &[(Meaning, &str)] = &[
    (IDLE, "intel_idle"),
    (IDLE, "acpi_idle_"),
    (IDLE, "mwait_idle_"),
    (IDLE, "cpuidle_enter"),
    (INTERRUPT, "asm_sysvec_"),
    (INTERRUPT, "sysvec_"),
];

static MEANINGS: LazyLock<HashMap<&'static str, Meaning>> = LazyLock::new(|| {
    let mut meanings = HashMap::new();
    for (meaning, names) in FUNCTIONS {
        for name in *names {
            *meanings.entry(*name).or_insert(0) |= meaning;
        }
    }
    meanings
});

/// The meanings of a function by its name, with or without what the compiler adds after a dot; 0 if it tells nothing.
pub fn meaning_of(function: &str) -> Meaning {
    // A leading dot is part of the name.
    let base = match function.bytes().skip(1).position(|byte| byte == b'.') {
        Some(dot) => function.get(..=dot).unwrap_or(function),
        None => function,
    };
    let by_name = MEANINGS.get(base).copied().unwrap_or(0);
    by_name | FAMILIES.iter().filter(|(_, family)| base.starts_with(family)).fold(0, |all, (meaning, _)| all | meaning)
}

/// What a stack was about, by the meanings of its kernel functions, the innermost first. `None` if the core was idle.
pub fn kind_of(chain: impl Iterator<Item = Meaning>) -> Option<WorkKind> {
    let (mut all, mut innermost) = (0, true);
    for meaning in chain {
        // The idle loop is no work.
        if meaning & IDLE != 0 {
            return None;
        }
        all |= meaning & !STEP;
        if innermost && meaning & STEP != 0 {
            all |= STEP;
        }
        innermost = false;
        // What stands outside was interrupted; if that is the idle loop, this is work all the same.
        if meaning & INTERRUPT != 0 {
            break;
        }
    }
    let has = |meaning: Meaning| all & meaning != 0;
    // Helpers of a step have other callers, too: a step is one only within reclaim.
    let kind = match () {
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
    };
    Some(kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(chain: &[&str]) -> Option<WorkKind> {
        kind_of(chain.iter().map(|function| meaning_of(function)))
    }

    #[test]
    fn idle_is_idle_only_if_nothing_sits_above_it() {
        assert_eq!(of(&["pv_native_safe_halt", "do_idle"]), None);
        assert_eq!(of(&["menu_select", "do_idle"]), None, "what the idle loop does for itself");
        assert_eq!(of(&["kfree", "handle_softirqs", "do_idle"]), Some(WorkKind::Interrupt));
        assert_eq!(
            of(&["kfree", "process_backlog", "net_rx_action", "handle_softirqs", "do_idle"]),
            Some(WorkKind::Network)
        );
        let interrupted =
            ["kfree", "net_rx_action", "handle_softirqs", "asm_common_interrupt", "mem_cgroup_iter", "shrink_node"];
        assert_eq!(of(&interrupted), Some(WorkKind::Network), "whoever was interrupted is not to blame");
        assert_eq!(of(&[]), Some(WorkKind::Other));
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
        assert_eq!(of(&["blk_start_plug", "ext4_writepages"]), Some(WorkKind::Other), "a helper of others, too");
    }

    #[test]
    fn the_most_telling_function_decides() {
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
    fn kinds_have_names_of_their_own() {
        for kind in WorkKind::ALL {
            assert_eq!(WorkKind::parse(kind.as_str()), Some(*kind));
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.as_str());
        }
    }
}
