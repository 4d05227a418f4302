//! What `coroner zombies` reads: dead cgroups, their cost, and, with --watch, who makes them.

use crate::cgroups::Cgroups;
use crate::churn::{ChurnOptions, ChurnReader, Way};
use crate::identity;
use crate::kernel_work::{KernelSampler, Naming, RATE_HZ};
use crate::memory::MemoryReader;
use crate::root::{Root, now, read_clocks};
use crate::slab::SlabReader;
use crate::zombies::{Bpf, LookOptions, look};
use coroner_evidence::{Evidence, Time};
use std::time::Duration;

const TURN_EVERY: Duration = Duration::from_secs(1);
/// How long to wait for the timed read of the root's statistics, which is reported as unfinished after 2 s.
const STAT_READ_PATIENCE: Duration = Duration::from_millis(2200);
/// Time limit of a scan.
const SCAN_LIMIT: Duration = Duration::from_secs(10);

#[derive(Debug, Clone)]
pub struct ZombieWatchOptions {
    pub root: Root,
    pub bpf: Bpf,
}

/// A watch for dead cgroups. `next_turn` returns what was seen since the last call, until the time is up.
pub struct ZombieWatch {
    options: ZombieWatchOptions,
    started: Time,
    until: Time,
    first: Option<Evidence>,
    done: bool,
    surroundings: Surroundings,
    /// `None` at the end.
    churn: Option<ChurnReader>,
    sampler: Option<KernelSampler>,
}

impl ZombieWatch {
    /// One look, as quick as possible.
    pub fn look_once(options: &ZombieWatchOptions) -> Evidence {
        let root = options.root.clone();
        // The rest is read in parallel with the scan.
        let surroundings = move || {
            let mut evidence = Evidence::default();
            let mut surroundings = Surroundings::new(&root);
            surroundings.look(&mut evidence);
            surroundings.time_stat_read(&mut evidence);
            identity::identify(&root, &mut evidence);
            surroundings.await_stat_read(&mut evidence);
            evidence
        };
        let mut evidence = Evidence::default();
        std::thread::scope(|scope| {
            let beside = std::thread::Builder::new().name("surroundings".to_owned()).spawn_scoped(scope, surroundings);
            scan(options, true, &mut evidence);
            if let Some(seen) = beside.ok().and_then(|thread| thread.join().ok()) {
                evidence.append(seen);
            }
        });
        evidence
    }

    /// Starts watching. Only the last scan also finds the files that pin the dead.
    pub fn start(options: &ZombieWatchOptions, duration: Duration) -> ZombieWatch {
        let root = &options.root;
        let mut first = Evidence::default();
        let mut surroundings = Surroundings::new(root);
        let only = (options.bpf == Bpf::No).then_some(Way::Perf);
        let churn = ChurnReader::start(root, &ChurnOptions { only, interval: TURN_EVERY });
        let sampler = KernelSampler::start(root, RATE_HZ, Naming::Always, now(), &mut first);
        surroundings.look(&mut first);
        scan(options, false, &mut first);
        surroundings.time_stat_read(&mut first);
        identity::identify(root, &mut first);
        let started = now();
        ZombieWatch {
            options: options.clone(),
            started,
            until: started + duration,
            first: Some(first),
            done: false,
            surroundings,
            churn: Some(churn),
            sampler: Some(sampler),
        }
    }

    pub fn elapsed(&self) -> Duration {
        now().since(self.started)
    }

    /// Ends the watch early: the next turn is the last.
    pub fn stop(&mut self) {
        self.until = self.until.min(now());
    }

    /// What was seen since the last call. Sleeps until the next turn; `None` when the time is up.
    pub fn next_turn(&mut self) -> Option<Evidence> {
        if let Some(first) = self.first.take() {
            return Some(first);
        }
        if self.done {
            return None;
        }
        std::thread::sleep((now() + TURN_EVERY).min(self.until).since(now()));
        let mut evidence = Evidence::default();
        self.done = now() >= self.until;
        if self.done {
            if let Some(churn) = self.churn.take() {
                churn.finish(now(), &mut evidence);
            }
            if let Some(sampler) = self.sampler.take() {
                sampler.finish(now(), &mut evidence);
            }
            scan(&self.options, true, &mut evidence);
            self.surroundings.look(&mut evidence);
            self.surroundings.await_stat_read(&mut evidence);
        } else {
            if let Some(churn) = &mut self.churn {
                churn.look(now(), &mut evidence);
            }
            if let Some(sampler) = &mut self.sampler {
                sampler.look(now(), &mut evidence);
            }
        }
        Some(evidence)
    }
}

fn scan(options: &ZombieWatchOptions, pins: bool, evidence: &mut Evidence) {
    let options = LookOptions { root: options.root.clone(), bpf: options.bpf, pins, time_limit: SCAN_LIMIT };
    if let Some(scan) = look(&options, evidence) {
        evidence.zombie_scans.push(scan);
    }
}

/// What the cost of the dead is derived from.
struct Surroundings {
    memory: MemoryReader,
    slab: SlabReader,
    cgroups: Cgroups,
}

impl Surroundings {
    fn new(root: &Root) -> Surroundings {
        Surroundings {
            memory: MemoryReader::new(root),
            slab: SlabReader::new(root),
            cgroups: Cgroups::new(root.clone()),
        }
    }

    fn look(&mut self, evidence: &mut Evidence) {
        evidence.clocks.push(read_clocks());
        self.memory.look(now(), evidence);
        self.slab.look(now(), evidence);
    }

    fn time_stat_read(&mut self, evidence: &mut Evidence) {
        self.cgroups.start_stat_read(now(), evidence);
    }

    fn await_stat_read(&mut self, evidence: &mut Evidence) {
        let until = now() + STAT_READ_PATIENCE;
        while !self.cgroups.collect_stat_read(evidence) && now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
