//! What the samples say, summed up as they come: nothing of a sample is kept.

use std::collections::HashMap;

use super::record::Sample;
use super::symbols::{IDLE, INTERRUPT, RECLAIM, STEP, Symbols, WALK};

/// Tables keep at most so many entries; of a full one the smaller half goes. Totals stay exact.
const MAX_TASKS: usize = 4096;
const MAX_ADDRESSES: usize = 8192;

#[derive(Debug, Default)]
pub(super) struct Tally {
    pub kernel: u64,
    pub idle: u64,
    pub memcg_walk: u64,
    pub reclaim: u64,
    /// By process: who was in one of the two.
    pub tasks: HashMap<u32, TaskTally>,
    /// Innermost addresses of both.
    pub innermost: HashMap<u64, u64>,
    /// What processes are called that began while we sample. Few of them matter, so the table is simply emptied when full.
    pub names: HashMap<u32, String>,
}

#[derive(Debug, Default)]
pub(super) struct TaskTally {
    pub memcg_walk: u64,
    pub reclaim: u64,
    /// `None` until it was looked for.
    pub comm: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Work {
    Idle,
    Kernel { memcg_walk: bool, reclaim: bool },
}

/// What a chain of addresses, innermost first, was about.
pub(super) fn work(chain: impl Iterator<Item = u64>, symbols: &Symbols) -> Work {
    let (mut all, mut interrupted, mut innermost) = (0, false, true);
    for address in chain {
        let meaning = symbols.meaning(address);
        // An interrupt above the idle loop is work; the loop itself is none.
        if meaning & IDLE != 0 && !interrupted {
            return Work::Idle;
        }
        interrupted |= meaning & INTERRUPT != 0;
        all |= meaning & (WALK | RECLAIM);
        if innermost && meaning & STEP != 0 {
            all |= STEP;
        }
        innermost = false;
    }
    let reclaim = all & RECLAIM != 0;
    // Helpers of a step have other callers, too: a step is one only within reclaim.
    Work::Kernel { memcg_walk: all & WALK != 0 || (all & STEP != 0 && reclaim), reclaim }
}

impl Tally {
    pub fn add(&mut self, sample: Sample<'_>, symbols: &Symbols) {
        let (memcg_walk, reclaim) = match work(sample.chain(), symbols) {
            Work::Idle => {
                self.idle += 1;
                return;
            }
            Work::Kernel { memcg_walk, reclaim } => (u64::from(memcg_walk), u64::from(reclaim)),
        };
        self.kernel += 1;
        self.memcg_walk += memcg_walk;
        self.reclaim += reclaim;
        if memcg_walk + reclaim == 0 {
            return;
        }
        make_room(&mut self.tasks, MAX_TASKS, |task| task.memcg_walk + task.reclaim);
        let task = self.tasks.entry(sample.pid).or_default();
        task.memcg_walk += memcg_walk;
        task.reclaim += reclaim;
        if let Some(address) = sample.chain().next() {
            make_room(&mut self.innermost, MAX_ADDRESSES, |&samples| samples);
            *self.innermost.entry(address).or_default() += 1;
        }
    }
}

impl Tally {
    pub fn name(&mut self, pid: u32, name: &[u8]) {
        if self.names.len() >= MAX_TASKS {
            self.names.clear();
        }
        self.names.insert(pid, String::from_utf8_lossy(name).into_owned());
    }
}

/// Of a full table the half with less goes.
fn make_room<K: Copy + Eq + std::hash::Hash, V>(table: &mut HashMap<K, V>, most: usize, weight: impl Fn(&V) -> u64) {
    if table.len() < most {
        return;
    }
    let mut weights: Vec<(u64, K)> = table.iter().map(|(&key, value)| (weight(value), key)).collect();
    let half = weights.len() / 2;
    weights.select_nth_unstable_by_key(half, |&(weight, _)| weight);
    for (_, key) in &weights[..half] {
        table.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::{Record, parse, tests::sample};
    use super::super::symbols::tests::{TEXT, symbols};
    use super::*;

    const BASE: u64 = 0xffff_ffff_8100_0000;
    const SHRINK_NODE: u64 = BASE + 0x110;
    const ITER: u64 = BASE + 0x390;
    const FOLIOS: u64 = BASE + 0x410;
    const DO_IDLE: u64 = BASE + 0x510;
    const INTERRUPTED: u64 = BASE + 0x610;
    const OTHER: u64 = BASE + 0x710;

    fn of(chain: &[u64]) -> Work {
        work(chain.iter().copied(), &symbols(TEXT).unwrap())
    }

    fn kernel(memcg_walk: bool, reclaim: bool) -> Work {
        Work::Kernel { memcg_walk, reclaim }
    }

    #[test]
    fn idle_is_idle_only_if_nothing_sits_above_it() {
        assert_eq!(of(&[DO_IDLE]), Work::Idle);
        assert_eq!(of(&[OTHER, DO_IDLE]), Work::Idle, "what the idle loop does for itself");
        assert_eq!(of(&[OTHER, INTERRUPTED, DO_IDLE]), kernel(false, false), "softirq work on an idle core");
        assert_eq!(of(&[ITER, INTERRUPTED, DO_IDLE]), kernel(true, false));
        assert_eq!(of(&[]), kernel(false, false));
    }

    #[test]
    fn reclaim_of_pages_is_no_walk_over_cgroups() {
        assert_eq!(of(&[FOLIOS, SHRINK_NODE]), kernel(false, true));
        assert_eq!(of(&[OTHER, FOLIOS, SHRINK_NODE]), kernel(false, true));
        assert_eq!(of(&[SHRINK_NODE, OTHER]), kernel(true, true), "the loop over cgroups itself");
        assert_eq!(of(&[ITER, SHRINK_NODE]), kernel(true, true));
        assert_eq!(of(&[OTHER, ITER, OTHER]), kernel(true, false));
        assert_eq!(of(&[OTHER]), kernel(false, false));
    }

    #[test]
    fn tables_are_bounded_and_keep_the_heavy_ones() {
        let symbols = symbols(TEXT).unwrap();
        let mut tally = Tally::default();
        let mut add = |pid, chain: &[u64]| {
            let bytes = sample(pid, 1, chain);
            let Some(Record::Sample(sample)) = parse(&bytes) else { panic!("a sample") };
            tally.add(sample, &symbols);
        };
        for pid in 1..=3 * MAX_TASKS as u32 {
            add(pid, &[ITER]);
            add(7, &[ITER, SHRINK_NODE]);
        }
        let pids = 3 * MAX_TASKS as u64;
        assert_eq!((tally.kernel, tally.memcg_walk, tally.reclaim), (2 * pids, 2 * pids, pids));
        assert!(tally.tasks.len() <= MAX_TASKS, "{}", tally.tasks.len());
        assert_eq!(tally.tasks[&7].memcg_walk, pids + 1);
        assert_eq!(tally.tasks[&7].reclaim, pids);
        assert_eq!(tally.innermost, HashMap::from([(ITER, 2 * pids)]));
    }
}
