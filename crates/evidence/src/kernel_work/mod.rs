//! What the kernel was at work on, by samples of its stacks.
//!
//! A stack is put into one [`WorkKind`] by the functions in it. The functions are named here once; whoever has addresses only (a sampler)
//! looks up where these functions are, whoever has names (a profile) compares names. Which function means what is in `functions.rs`.

mod functions;

pub use functions::{
    FAMILIES, FUNCTIONS, HUGE_PAGES, IDLE, INTERRUPT, KERNFS, Meaning, NETWORK, PAGE_FAULT, PAGE_TABLES, RECLAIM, STEP,
    WALK,
};

use crate::Time;
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
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
    /// 0 for what interrupted an idle core, and for what many did that did little.
    pub pid: u32,
    pub tid: u32,
    pub comm: String,
    pub kind: WorkKind,
    pub samples: u64,
    /// The innermost function that most of them were in, where it is known.
    pub symbol: Option<String>,
}

/// What many threads did together.
const OTHERS: &str = "(others)";

/// The most first, and of more than `most` rows those that weigh least put together by core and kind: a node has hundreds of cores.
pub fn fewer_rows(mut rows: Vec<WorkRow>, most: usize, weight: impl Fn(&WorkRow) -> u64) -> Vec<WorkRow> {
    if rows.len() > most {
        rows.sort_by_cached_key(|row| (Reverse(weight(row)), Reverse(row.samples), row.core, row.tid, row.kind));
        let mut others: HashMap<(u32, WorkKind), WorkRow> = HashMap::new();
        for row in rows.split_off(most) {
            match others.get_mut(&(row.core, row.kind)) {
                // Of the heavier ones, which come first.
                Some(sum) => sum.samples = sum.samples.saturating_add(row.samples),
                None => {
                    let key = (row.core, row.kind);
                    others.insert(key, WorkRow { pid: 0, tid: 0, comm: OTHERS.to_owned(), ..row });
                }
            }
        }
        rows.extend(others.into_values());
    }
    rows.sort_by_key(|row| (Reverse(row.samples), row.core, row.tid, row.kind));
    rows
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
    fn little_ones_are_put_together_and_no_sample_is_lost() {
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
        let fewer = fewer_rows(all.clone(), 10, |row| row.samples);
        assert_eq!((fewer.len(), sum(&fewer)), (13, sum(&all)));
        assert!(fewer.windows(2).all(|pair| pair[0].samples >= pair[1].samples));
        let others: Vec<&WorkRow> = fewer.iter().filter(|row| row.comm == OTHERS).collect();
        assert!(others.iter().all(|row| (row.pid, row.tid) == (0, 0)), "{others:?}");
        let mut heaviest: Vec<u32> = fewer.iter().map(|row| row.tid).filter(|tid| *tid != 0).collect();
        heaviest.sort_unstable();
        assert_eq!(heaviest, (90..100).collect::<Vec<_>>());
        assert_eq!(fewer_rows(all.clone(), 99, |_| 0).len(), 99);
    }

    #[test]
    fn kinds_have_names_of_their_own() {
        for kind in WorkKind::ALL {
            assert_eq!(WorkKind::parse(kind.as_str()), Some(*kind));
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.as_str());
        }
    }
}
