//! Raw samples, without names, until it is known whether names are worth their cost.
//!
//! Call chains form a tree from the outermost function inwards. They mostly overlap, so a new chain takes two or three nodes. All
//! tables are bounded; what does not fit is reported as lost or as [`WorkKind::Unnamed`](coroner_evidence::WorkKind).

use std::collections::HashMap;
use std::time::Duration;

use coroner_evidence::Time;
use coroner_evidence::kernel_work::{Meaning, StackMeaning};
use coroner_evidence::perf::RawSample;

/// Half a megabyte, two with the index. With 192 cores always in the kernel this fills in a few seconds.
const MAX_NODES: usize = 32 << 10;
const MAX_COUNTS: usize = 32 << 10;

pub(super) const SECOND: u64 = 1_000_000_000;

/// The node of all chains that did not fit.
pub(super) const NOWHERE: u32 = u32::MAX;

/// Share of a second: a core this much in the kernel may keep others waiting.
const BUSY_CORE: f64 = 0.3;
/// Share of one core for one process: above this it is worth knowing what it does in the kernel.
const BUSY_PROCESS: f64 = 0.05;
/// Share of one core for all processes together.
const BUSY_NODE: f64 = 0.1;
/// Fewer samples may be chance.
const LEAST_SAMPLES: f64 = 5.0;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Key {
    /// Since the start of the batch.
    pub second: u32,
    pub core: u32,
    /// 0 for the idle task and processes outside our pid namespace; `None` for one that is exiting.
    pub pid: Option<u32>,
    pub tid: Option<u32>,
    pub node: u32,
}

#[derive(Debug, Clone, Copy)]
struct ChainNode {
    /// The caller's index; its own for an outermost function.
    parent: u32,
    address: u64,
}

#[derive(Debug, Default)]
pub(super) struct Batch {
    pub from: Time,
    nodes: Vec<ChainNode>,
    index: HashMap<(u32, u64), u32>,
    pub counts: HashMap<Key, u64>,
    /// By second.
    pub lost: Vec<u64>,
    /// The last chain and its node: idle cores repeat the same chain.
    last: (Vec<u64>, u32),
    reader: Vec<u64>,
}

impl Batch {
    pub fn new(from: Time) -> Batch {
        Batch { from, ..Batch::default() }
    }

    pub fn add(&mut self, core: u32, sample: &RawSample<'_>) {
        let at = Time(sample.time.unwrap_or(0));
        let node = self.node(sample);
        let key = Key { second: self.second(at), core, pid: sample.pid, tid: sample.tid, node };
        if self.counts.len() >= MAX_COUNTS && !self.counts.contains_key(&key) {
            return self.lose(at, 1);
        }
        *self.counts.entry(key).or_default() += 1;
    }

    pub fn lose(&mut self, at: Time, samples: u64) {
        // Two hours; batches are shorter.
        const MOST: usize = 7200;
        let second = (self.second(at) as usize).min(MOST);
        if samples > 0 {
            self.lost.resize(self.lost.len().max(second + 1), 0);
            self.lost[second] = self.lost[second].saturating_add(samples);
        }
    }

    fn second(&self, at: Time) -> u32 {
        u32::try_from(at.0.saturating_sub(self.from.0) / SECOND).unwrap_or(u32::MAX)
    }

    /// Time to empty it.
    pub fn is_full(&self) -> bool {
        self.nodes.len() > MAX_NODES * 3 / 4 || self.counts.len() > MAX_COUNTS * 3 / 4
    }

    fn node(&mut self, sample: &RawSample<'_>) -> u32 {
        let mut chain = std::mem::take(&mut self.reader);
        chain.clear();
        chain.extend(sample.addresses());
        if chain != self.last.0 {
            self.last.1 = self.insert(&chain);
            std::mem::swap(&mut self.last.0, &mut chain);
        }
        self.reader = chain;
        self.last.1
    }

    fn insert(&mut self, chain: &[u64]) -> u32 {
        let mut node = NOWHERE;
        for &address in chain.iter().rev() {
            let next = self.nodes.len() as u32;
            node = match self.index.get(&(node, address)) {
                Some(&known) => known,
                None if self.nodes.len() >= MAX_NODES => return NOWHERE,
                None => {
                    self.nodes.push(ChainNode { parent: if node == NOWHERE { next } else { node }, address });
                    self.index.insert((node, address), next);
                    next
                }
            };
        }
        node
    }

    /// What the stack of each node means.
    pub fn meanings(&self, of: impl Fn(u64) -> Meaning) -> Vec<StackMeaning> {
        let mut meanings: Vec<StackMeaning> = Vec::with_capacity(self.nodes.len());
        for (number, node) in self.nodes.iter().enumerate() {
            // A caller has a smaller index.
            let caller =
                if node.parent as usize == number { StackMeaning::default() } else { meanings[node.parent as usize] };
            meanings.push(caller.calls(of(node.address)));
        }
        meanings
    }

    pub fn innermost(&self, node: u32) -> Option<u64> {
        self.nodes.get(node as usize).map(|node| node.address)
    }

    pub fn addresses(&self) -> Vec<u64> {
        let mut addresses: Vec<u64> = self.nodes.iter().map(|node| node.address).collect();
        addresses.sort_unstable();
        addresses.dedup();
        addresses
    }

    /// The idle loop's address, found without names: where most samples of the idle task are. Interrupts are elsewhere.
    pub fn idle_address(&self) -> Option<u64> {
        let mut addresses: HashMap<u64, u64> = HashMap::new();
        for (key, samples) in self.counts.iter().filter(|(key, _)| key.pid == Some(0)) {
            if let Some(address) = self.innermost(key.node) {
                *addresses.entry(address).or_default() += samples;
            }
        }
        addresses.into_iter().max_by_key(|&(address, samples)| (samples, address)).map(|(address, _)| address)
    }

    /// Whether a core or process is in the kernel so much that names are worth looking up. Our own work (`own`) is not counted.
    pub fn is_worth_naming(&self, rate_hz: u32, length: Duration, own: u32) -> bool {
        let idle = self.idle_address();
        let mut by_core: HashMap<(u32, u32), u64> = HashMap::new();
        let mut by_process: HashMap<u32, u64> = HashMap::new();
        for (key, samples) in &self.counts {
            if key.pid == Some(0) && self.innermost(key.node) == idle {
                continue;
            }
            *by_core.entry((key.second, key.core)).or_default() += samples;
            if let Some(pid) = key.pid.filter(|pid| *pid != 0 && *pid != own) {
                *by_process.entry(pid).or_default() += samples;
            }
        }
        let rate = f64::from(rate_hz);
        let busy_core = (BUSY_CORE * rate).max(LEAST_SAMPLES);
        let over = |share: f64| (share * rate * length.as_secs_f64()).max(LEAST_SAMPLES);
        by_core.values().any(|&samples| samples as f64 >= busy_core)
            || by_process.values().any(|&samples| samples as f64 >= over(BUSY_PROCESS))
            || by_process.values().sum::<u64>() as f64 >= over(BUSY_NODE)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub const HALT: u64 = 0xffff_ffff_8100_0510;

    impl Batch {
        /// Addresses from the innermost function to the outermost.
        fn chain(&self, node: u32) -> Vec<u64> {
            let Some(ChainNode { parent, address }) = self.nodes.get(node as usize).copied() else { return Vec::new() };
            let callers = if parent == node { Vec::new() } else { self.chain(parent) };
            [vec![address], callers].concat()
        }

        pub fn put(&mut self, core: u32, pid: u32, at: u64, chain: &[u64]) {
            let chain: Vec<u8> = chain.iter().flat_map(|address| address.to_ne_bytes()).collect();
            let (pid, tid) = (Some(pid), Some(pid + 1));
            self.add(core, &RawSample { pid, tid, time: Some(at), chain: &chain, ..RawSample::default() });
        }
    }

    #[test]
    fn chains_are_restored_and_share_common_callers() {
        let mut batch = Batch::new(Time(0));
        batch.put(0, 7, 1, &[10, 20, 30]);
        batch.put(0, 7, 2, &[11, 20, 30]);
        batch.put(1, 7, 2, &[10, 20, 30]);
        batch.put(0, 8, SECOND, &[]);
        assert_eq!(batch.nodes.len(), 4);
        let mut chains: Vec<(u32, u32, Vec<u64>)> =
            batch.counts.keys().map(|key| (key.second, key.core, batch.chain(key.node))).collect();
        chains.sort();
        let expected =
            [(0, 0, vec![10, 20, 30]), (0, 0, vec![11, 20, 30]), (0, 1, vec![10, 20, 30]), (1, 0, Vec::new())];
        assert_eq!(chains, expected);
    }

    #[test]
    fn samples_that_do_not_fit_are_counted() {
        let mut batch = Batch::new(Time(0));
        let samples = MAX_COUNTS as u64 + 100;
        for i in 0..samples {
            batch.put(0, i as u32 + 1, 1, &[1000 + i]);
        }
        assert!(batch.is_full());
        assert!(batch.nodes.len() <= MAX_NODES && batch.counts.len() <= MAX_COUNTS);
        assert_eq!(batch.counts.values().sum::<u64>() + batch.lost[0], samples);

        let mut batch = Batch::new(Time(0));
        for i in 0..MAX_NODES as u64 / 2 + 10 {
            batch.put(0, 7, 1, &[1000 + i, 100_000 + 2 * i]);
        }
        let nowhere: u64 = batch.counts.iter().filter(|(key, _)| key.node == NOWHERE).map(|(_, n)| n).sum();
        assert_eq!((nowhere, batch.lost.len()), (10, 0), "the process is still known");
    }

    #[test]
    fn idle_cores_and_our_own_work_are_not_worth_naming() {
        let of = |put: &dyn Fn(&mut Batch)| {
            let mut batch = Batch::new(Time(0));
            for i in 0..490 {
                batch.put(0, 0, i * SECOND / 49, &[HALT, HALT + 0x100]);
            }
            put(&mut batch);
            batch.is_worth_naming(49, Duration::from_secs(10), 99)
        };
        assert!(!of(&|_| {}));
        assert!(!of(&|batch| (0..40).for_each(|i| batch.put(1, 99, i * SECOND / 4, &[5, HALT + 0x900]))), "our own");
        let some = |n: u64, processes: u64| {
            move |batch: &mut Batch| {
                (0..n).for_each(|i| batch.put(1, 7 + (i % processes) as u32, i * SECOND / 8, &[5, HALT + 0x900]))
            }
        };
        assert!(!of(&some(24, 1)), "below 5 % of a core");
        assert!(of(&some(25, 1)));
        assert!(!of(&some(48, 10)), "below 10 %, by ten together");
        assert!(of(&some(49, 10)));
        let interrupts = |batch: &mut Batch| (0..15).for_each(|i| batch.put(1, 0, 3 * SECOND + i, &[5, 6, HALT]));
        assert!(of(&interrupts), "a core that serves interrupts is not idle");
    }
}
