//! Which of the kernel's functions mean what, by address. Of the 100,000 and more of /proc/kallsyms only those that tell
//! something are kept; names of others are looked up once, at the end.
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
//! So reclaim of many pages in few cgroups is `reclaim` and hardly `memcg_walk`; reclaim that visits thousands of cgroups with nothing to
//! take is both. The walk goes over live cgroups as well: whether there are many dead ones is another question.
//!
//! Samples by the kernel's clock come with an interrupt: they cannot fall where interrupts are off, and fall on what switches
//! them on again. Flushing statistics holds a lock that way; the sample still has the flush in its chain.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SymbolSamples {
    pub symbol: String,
    pub samples: u64,
}

use crate::Root;

pub(super) const KALLSYMS: &str = "/proc/kallsyms";

/// Goes over cgroups, wherever it stands in the chain.
pub(super) const WALK: u8 = 1 << 0;
/// Of reclaim, once for each cgroup: a step of the walk if it is the innermost.
pub(super) const STEP: u8 = 1 << 1;
pub(super) const RECLAIM: u8 = 1 << 2;
/// The idle task, waiting.
pub(super) const IDLE: u8 = 1 << 3;
/// Work that interrupts something else, also the idle task.
pub(super) const INTERRUPT: u8 = 1 << 4;

/// By the whole name, without what the compiler adds after a dot (`.isra.0`, `.constprop.0`, `.part.0`, `.cold`).
const FUNCTIONS: &[(u8, &[&str])] = &[
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
const FAMILIES: &[(u8, &str)] = &[
    (IDLE, "intel_idle"),
    (IDLE, "acpi_idle_"),
    (IDLE, "mwait_idle_"),
    (IDLE, "cpuidle_enter"),
    (INTERRUPT, "asm_sysvec_"),
    (INTERRUPT, "sysvec_"),
];

/// No function is longer; bounds what a missing neighbour can cover.
const LONGEST_FUNCTION: u64 = 64 << 10;

/// Far more than are listed.
const MAX_RANGES: usize = 4096;

#[derive(Debug, thiserror::Error)]
pub(super) enum NoSymbols {
    #[error("{KALLSYMS}: {0}")]
    Unreadable(io::Error),
    #[error("{KALLSYMS} hides the kernel's addresses")]
    Hidden,
    #[error("{KALLSYMS} has no function of memory cgroups or reclaim")]
    Foreign,
}

/// What an address tells.
#[derive(Debug, Default)]
pub(super) struct Symbols {
    /// Not overlapping, sorted: start, end, meaning.
    ranges: Vec<(u64, u64, u8)>,
}

impl Symbols {
    pub fn read(root: &Root) -> Result<Symbols, NoSymbols> {
        Symbols::parse(open(root).map_err(NoSymbols::Unreadable)?)
    }

    fn parse(text: impl BufRead) -> Result<Symbols, NoSymbols> {
        let meanings = meanings();
        let mut ranges: Vec<(u64, u64, u8)> = Vec::new();
        // The last one found, which ends where the next function begins.
        let mut open: Option<(u64, u8)> = None;
        let mut seen = false;
        each_symbol(text, |symbol| {
            seen |= symbol.address != 0;
            if let Some((start, meaning)) = open
                && symbol.address != start
            {
                let end = symbol.address.clamp(start, start.saturating_add(LONGEST_FUNCTION));
                ranges.push((start, end, meaning));
                open = None;
            }
            let meaning = if symbol.is_code() { meaning_of(&meanings, symbol.base_name()) } else { 0 };
            if meaning != 0 && symbol.address != 0 {
                let others = open.map_or(0, |(_, others)| others);
                open = Some((symbol.address, others | meaning));
            }
            // The kernel's own come first, in the order of their addresses; nothing that we look for is in a module.
            symbol.module.is_none() && ranges.len() < MAX_RANGES
        })
        .map_err(NoSymbols::Unreadable)?;
        if let Some((start, meaning)) = open {
            ranges.push((start, start.saturating_add(LONGEST_FUNCTION), meaning));
        }
        if !seen {
            return Err(NoSymbols::Hidden);
        }
        if !ranges.iter().any(|&(_, _, meaning)| meaning & (WALK | RECLAIM) != 0) {
            return Err(NoSymbols::Foreign);
        }
        ranges.sort_unstable();
        Ok(Symbols { ranges })
    }

    /// The meanings of the function at this address; 0 if it tells nothing.
    pub fn meaning(&self, address: u64) -> u8 {
        let next = self.ranges.partition_point(|&(start, _, _)| start <= address);
        match next.checked_sub(1).and_then(|i| self.ranges.get(i)) {
            Some(&(_, end, meaning)) if address < end => meaning,
            _ => 0,
        }
    }
}

/// The functions with most of these addresses, at most `most`. Addresses without a function are left out.
pub(super) fn name_functions(
    root: &Root,
    addresses: &HashMap<u64, u64>,
    most: usize,
) -> io::Result<Vec<SymbolSamples>> {
    name_from(open(root)?, addresses, most)
}

fn name_from(text: impl BufRead, addresses: &HashMap<u64, u64>, most: usize) -> io::Result<Vec<SymbolSamples>> {
    /// The function before an address that is nearest so far. Kernels allow 512 bytes for a name; people read 64.
    #[derive(Clone, Copy)]
    struct Nearest {
        address: u64,
        samples: u64,
        start: u64,
        name: [u8; 64],
        length: usize,
    }
    let mut nearest: Vec<Nearest> = addresses
        .iter()
        .map(|(&address, &samples)| Nearest { address, samples, start: 0, name: [0; 64], length: 0 })
        .collect();
    nearest.sort_unstable_by_key(|n| n.address);
    each_symbol(text, |symbol| {
        if symbol.address != 0 && symbol.is_code() {
            let first = nearest.partition_point(|n| n.address < symbol.address);
            let reach = symbol.address.saturating_add(LONGEST_FUNCTION);
            for near in nearest[first..].iter_mut().take_while(|n| n.address < reach) {
                if symbol.address > near.start {
                    let name = symbol.base_name();
                    near.start = symbol.address;
                    near.length = name.len().min(near.name.len());
                    near.name[..near.length].copy_from_slice(&name[..near.length]);
                }
            }
        }
        true
    })?;
    let mut functions: HashMap<String, u64> = HashMap::new();
    for near in nearest.iter().filter(|n| n.start != 0) {
        let name = String::from_utf8_lossy(&near.name[..near.length]).into_owned();
        *functions.entry(name).or_default() += near.samples;
    }
    let mut functions: Vec<SymbolSamples> =
        functions.into_iter().map(|(symbol, samples)| SymbolSamples { symbol, samples }).collect();
    functions.sort_by(|a, b| b.samples.cmp(&a.samples).then_with(|| a.symbol.cmp(&b.symbol)));
    functions.truncate(most);
    Ok(functions)
}

fn open(root: &Root) -> io::Result<BufReader<File>> {
    Ok(BufReader::with_capacity(64 << 10, File::open(root.path(KALLSYMS))?))
}

/// One line: `ffffffff81234560 t shrink_node`, for a module with its name after a tab: `\t[xfs]`.
struct Symbol<'a> {
    address: u64,
    kind: u8,
    name: &'a [u8],
    module: Option<&'a [u8]>,
}

impl<'a> Symbol<'a> {
    fn parse(line: &'a [u8]) -> Option<Symbol<'a>> {
        let (address, rest) = line.split_at_checked(line.iter().position(|&b| b == b' ')?)?;
        let address = u64::from_str_radix(std::str::from_utf8(address).ok()?, 16).ok()?;
        let [b' ', kind, b' ', name @ ..] = rest else { return None };
        let end = name.iter().position(|&b| b == b'\t').unwrap_or(name.len());
        let (name, module) = name.split_at(end);
        (!name.is_empty()).then_some(Symbol { address, kind: *kind, name, module: module.get(1..) })
    }

    fn is_code(&self) -> bool {
        matches!(self.kind, b't' | b'T' | b'w' | b'W')
    }

    fn base_name(&self) -> &'a [u8] {
        // A leading dot is part of the name.
        match self.name.iter().skip(1).position(|&b| b == b'.') {
            Some(dot) => &self.name[..=dot],
            None => self.name,
        }
    }
}

/// Until `each` says false. Lines that are none of this kind are skipped, and so is the rest of one that is endless.
fn each_symbol(mut text: impl BufRead, mut each: impl FnMut(Symbol<'_>) -> bool) -> io::Result<()> {
    const LONGEST_LINE: u64 = 1024;
    let mut line = Vec::new();
    loop {
        line.clear();
        let mut limited = io::Read::take(&mut text, LONGEST_LINE);
        if limited.read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        if let Some(symbol) = Symbol::parse(line.strip_suffix(b"\n").unwrap_or(&line))
            && !each(symbol)
        {
            return Ok(());
        }
    }
}

fn meanings() -> HashMap<&'static [u8], u8> {
    let mut meanings = HashMap::new();
    for (meaning, names) in FUNCTIONS {
        for name in *names {
            *meanings.entry(name.as_bytes()).or_default() |= meaning;
        }
    }
    meanings
}

fn meaning_of(meanings: &HashMap<&[u8], u8>, name: &[u8]) -> u8 {
    let families = FAMILIES.iter().filter(|(_, prefix)| name.starts_with(prefix.as_bytes()));
    families.fold(meanings.get(name).copied().unwrap_or(0), |all, (meaning, _)| all | meaning)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    pub const TEXT: &str = "\
0000000000000000 A fixed_percpu_data
ffffffff81000000 T _stext
ffffffff81000100 t shrink_node
ffffffff81000300 t memcg_stat_show.constprop.0
ffffffff81000380 T alias_of_iter
ffffffff81000380 T mem_cgroup_iter
ffffffff81000400 T shrink_folio_list
ffffffff81000500 T do_idle
ffffffff81000600 T asm_sysvec_apic_timer_interrupt
ffffffff81000700 T something_else
ffffffff81000780 d mem_cgroup_iter
ffffffffc0000200 t xfs_late\t[xfs]
ffffffffc0000100 t shrink_slab\t[evil]
";

    pub fn symbols(text: &str) -> Result<Symbols, NoSymbols> {
        Symbols::parse(text.as_bytes())
    }

    #[test]
    fn a_function_reaches_to_the_next() {
        let symbols = symbols(TEXT).unwrap();
        let meaning = |low: u64| symbols.meaning(0xffff_ffff_8100_0000 + low);
        assert_eq!(meaning(0xff), 0);
        assert_eq!(meaning(0x100), STEP | RECLAIM);
        assert_eq!(meaning(0x2ff), STEP | RECLAIM);
        assert_eq!(meaning(0x300), WALK, "what the compiler appends is not part of the name");
        assert_eq!(meaning(0x3ff), WALK, "the second of two names counts");
        assert_eq!(meaning(0x400), RECLAIM);
        assert_eq!(meaning(0x500), IDLE);
        assert_eq!(meaning(0x600), INTERRUPT);
        assert_eq!(meaning(0x700), 0);
        assert_eq!(meaning(0x780), 0, "data is not code");
        assert_eq!(symbols.meaning(0xffff_ffff_c000_0100), 0, "a module's is not the kernel's");
    }

    #[test]
    fn hidden_or_foreign_symbols_are_told_apart() {
        let hidden = TEXT.lines().map(|l| format!("{:016x}{}\n", 0, &l[16..])).collect::<String>();
        assert!(matches!(symbols(&hidden), Err(NoSymbols::Hidden)));
        assert!(matches!(symbols(""), Err(NoSymbols::Hidden)));
        assert!(matches!(symbols("ffffffff81000000 T _stext\n"), Err(NoSymbols::Foreign)));
    }

    #[test]
    fn functions_are_named_with_most_samples_first() {
        let base = 0xffff_ffff_8100_0000;
        let addresses = HashMap::from([
            (base + 0x120, 2),
            (base + 0x180, 3),
            (base + 0x3a0, 9),
            (base + 0x720, 1),
            (0xffff_ffff_c000_0180, 4),
            (0xffff_ffff_c000_0280, 4),
            (0x10, 100),
        ]);
        let named = name_from(TEXT.as_bytes(), &addresses, 4).unwrap();
        let named: Vec<_> = named.iter().map(|s| (s.symbol.as_str(), s.samples)).collect();
        assert_eq!(named, [("alias_of_iter", 9), ("shrink_node", 5), ("shrink_slab", 4), ("xfs_late", 4)]);
    }

    #[test]
    fn this_kernel_has_the_functions_that_matter() {
        let symbols = match Symbols::read(&Root::live()) {
            Ok(symbols) => symbols,
            Err(error) => return coroner_lab::skip(&error.to_string()),
        };
        let all = symbols.ranges.iter().fold(0, |all, &(_, _, meaning)| all | meaning);
        assert_eq!(all, WALK | STEP | RECLAIM | IDLE | INTERRUPT);
        assert!(symbols.ranges.windows(2).all(|pair| pair[0].1 <= pair[1].0), "ranges overlap");
        assert!(symbols.ranges.len() < 400, "{}", symbols.ranges.len());
    }

    proptest! {
        #[test]
        fn any_text_is_read(text in proptest::collection::vec(prop_oneof![
            proptest::collection::vec(any::<u8>(), 0..60),
            "[0-9a-f]{1,17} [tTdDwW] (shrink_node|mem_cgroup_iter|do_idle|.{0,10})(\\.isra\\.0)?(\t\\[x\\])?".prop_map(String::into_bytes),
        ], 0..40), addresses in proptest::collection::hash_map(any::<u64>(), 1u64..100, 0..20)) {
            let text = text.join(&b'\n');
            if let Ok(symbols) = Symbols::parse(text.as_slice()) {
                for address in addresses.keys().chain(symbols.ranges.iter().map(|(start, _, _)| start)) {
                    symbols.meaning(*address);
                }
            }
            let named = name_from(text.as_slice(), &addresses, 5).unwrap();
            prop_assert!(named.len() <= 5);
            prop_assert!(named.iter().map(|s| s.samples).sum::<u64>() <= addresses.values().sum());
        }
    }
}
