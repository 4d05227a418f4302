//! The wait ledger: who ran, waited for a core, was throttled or blocked, and who had the core meanwhile.
//!
//! BPF programs on the scheduler's tracepoints keep sums in the kernel (bpf/waits.bpf.c); [`WaitReader::look`] makes the books of
//! each interval of them. docs/waits.md says what is counted and what it costs.
//!
//! The programs time some of their runs. When they have cost what an interval may cost, because threads switch often or memory is slow, they are
//! detached until it is over; [`WaitLedger::watched_ns`] tells.
//!
//! Without BPF there is an estimate, from what the other probes have seen ([`estimate`]).

mod books;
mod estimate;
mod kernel;
mod places;
mod tables;
mod threads;

#[cfg(test)]
mod host_tests;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Duration;

use coroner_evidence::tasks::SchedulingClass;
use coroner_evidence::{Block, CoreSet, Evidence, LedgerMethod, Order, Party, Runner, Time, WaitLedger, probe};

use crate::Root;
use crate::bpf::{Blind, Reason};
use crate::churn::pids_are_the_nodes;
use crate::root::now;
use books::{Books, Closed, OpenBlock};
use estimate::Estimate;
use kernel::Programs;
use places::Places;
use tables::{EndedBlock, Identity, Snapshot};
use threads::Candidate;

const WHAT: &str = "every wait for a core, and who had it meanwhile (the wait ledger is an estimate)";
const WHAT_AT_ALL: &str = "who waited for a core, and for whom";

/// Blocks that go on whose stack is read, longest first.
const MOST_OPEN_BLOCKS: usize = 64;
/// Shorter ones are only in the accounts.
const LEAST_BLOCK: Duration = Duration::from_millis(1);
/// Functions of shorter blocks are named only if the kernel's list of symbols was read anyway.
const WORTH_NAMING: Duration = Duration::from_millis(20);
/// A charge for which weights are read.
const LONG_CHARGE_NS: u64 = 10_000_000;
/// An interval that cost too much lasts no longer than this many others.
const LONGEST: u32 = 4;

/// How closely to watch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WaitPace {
    /// A ledger covers about this long.
    pub interval: Duration,
    /// The programs may take this share of a core; when an interval's is used up, its rest is not watched.
    pub most_cost: f64,
}

impl WaitPace {
    /// For a diagnosis: seconds tell when a trouble began.
    pub const CLOSE: WaitPace = WaitPace { interval: Duration::from_secs(1), most_cost: 0.025 };
    /// For a recorder, which runs all the time.
    pub const RECORDER: WaitPace = WaitPace { interval: Duration::from_secs(10), most_cost: 0.006 };
}

/// Watches from [`WaitReader::start`] until it is dropped.
#[derive(Debug)]
pub struct WaitReader {
    root: Root,
    pace: WaitPace,
    /// Or why they cannot run.
    programs: Result<Programs, Blind>,
    blindness_is_told: bool,
    /// If they could not run from the beginning.
    estimate: Option<Estimate>,
    books: Books,
    places: Places,
    candidates: Vec<Candidate>,
    /// When the interval began.
    from: Time,
    /// What the programs had cost when the interval began.
    cost_before: Duration,
    /// Of an interval whose rest is not watched.
    sliced: Option<WaitLedger>,
    /// How long that interval lasts: until a look came, it may have cost more than one allows.
    lasts: Duration,
    /// What blocked threads worked on when last looked at.
    worked_on: HashMap<u32, String>,
}

impl WaitReader {
    /// Never fails: what cannot be seen is reported at the first look.
    pub fn start(root: &Root, pace: WaitPace) -> WaitReader {
        WaitReader::with(root, pace, |root, places| {
            if root.is_live() && !pids_are_the_nodes(root) {
                return Err(Blind::new(
                    Reason::Kernel,
                    "the scheduler's events carry the node's pids, but /proc here shows a container's",
                    "run on the host, or with its pid namespace (docker run --pid=host)",
                ));
            }
            Programs::load(root, possible_cores(root), places.is_unified())
        })
    }

    /// Estimates, and reports why.
    pub fn without_bpf(root: &Root, pace: WaitPace) -> WaitReader {
        let blind = Blind::new(Reason::Unwanted, "BPF is turned off (--no-bpf)", "run without --no-bpf");
        WaitReader::with(root, pace, |_, _| Err(blind))
    }

    fn with(root: &Root, pace: WaitPace, load: impl FnOnce(&Root, &Places) -> Result<Programs, Blind>) -> WaitReader {
        let places = Places::new(root);
        let mut reader = WaitReader {
            root: root.clone(),
            pace,
            programs: load(root, &places),
            blindness_is_told: false,
            estimate: None,
            books: Books::default(),
            places,
            candidates: Vec::new(),
            from: now(),
            cost_before: Duration::ZERO,
            sliced: None,
            lasts: pace.interval,
            worked_on: HashMap::new(),
        };
        if reader.programs.is_ok() {
            reader.candidates = threads::find(&reader.root, &mut reader.places);
            reader.resume();
        } else {
            reader.estimate = Some(Estimate::new(root, reader.from));
        }
        reader
    }

    pub fn sees(&self) -> bool {
        self.programs.is_ok()
    }

    /// Reports again at the next look what cannot be seen.
    pub fn tell_anew(&mut self) {
        self.blindness_is_told = false;
    }

    /// Begins to see. `candidates` are threads that wanted to run or were blocked a moment ago.
    fn resume(&mut self) {
        let blocked: Vec<u32> = self.candidates.iter().filter(|c| c.is_blocked()).map(|c| c.tid).collect();
        let Ok(programs) = &mut self.programs else { return };
        if let Err(error) = programs.resume(&blocked) {
            return self.give_up(&error);
        }
        self.from = programs.epoch_start();
        // Those that are still so were so when the programs began to see.
        let (root, places) = (&self.root, &mut self.places);
        self.candidates.retain(|candidate| {
            let still = threads::again(root, candidate, places).is_some();
            if !still && candidate.is_blocked() {
                programs.was_not_blocked(candidate.tid);
            }
            still
        });
    }

    fn give_up(&mut self, error: &dyn std::error::Error) {
        let why = format!("the wait ledger's BPF programs failed: {error}");
        self.programs = Err(Blind::new(Reason::Kernel, why, "report this as a bug, with the kernel version"));
    }

    /// Reports the ledger of a finished interval. Call a few times a second. `evidence` has what others have seen since the last call, first
    /// of all threads.
    pub fn look(&mut self, at: Time, evidence: &mut Evidence) {
        if let Some(estimate) = &mut self.estimate {
            estimate.note(evidence);
            if at.since(estimate.from()) >= self.pace.interval {
                evidence.waits.extend(estimate.close(at, &self.places));
            }
        }
        let is_over = at.since(self.from) >= self.pace.interval;
        match &self.programs {
            Err(_) => self.tell_blindness(evidence),
            Ok(programs) if programs.runs() && self.paid_for(programs) > self.pace.interval => {
                self.lasts = self.paid_for(programs).min(self.pace.interval * LONGEST);
                self.sliced = self.close(true);
                if at.since(self.from) >= self.lasts {
                    self.tell_slice(at, evidence);
                }
            }
            Ok(programs) if programs.runs() && is_over => {
                let ledger = self.close(false);
                evidence.waits.extend(ledger);
            }
            Ok(programs) if !programs.runs() && at.since(self.from) >= self.lasts => self.tell_slice(at, evidence),
            Ok(_) => {}
        }
        // Reading may have failed.
        if self.programs.is_err() {
            self.tell_blindness(evidence);
        }
    }

    /// Reports the rest and stops watching.
    pub fn finish(mut self, at: Time, evidence: &mut Evidence) {
        let runs = self.programs.as_ref().is_ok_and(Programs::runs);
        let ledger = if runs { self.close(true) } else { self.sliced.take().map(|l| WaitLedger { to: at, ..l }) };
        let ledger = match &mut self.estimate {
            Some(estimate) => {
                estimate.note(evidence);
                estimate.close(at, &self.places)
            }
            None => ledger,
        };
        // A moment tells nothing.
        const LEAST: Duration = Duration::from_millis(20);
        evidence.waits.extend(ledger.filter(|ledger| ledger.to.since(ledger.from) >= LEAST));
        self.tell_blindness(evidence);
    }

    /// The interval of a slice is over: the next one begins.
    fn tell_slice(&mut self, at: Time, evidence: &mut Evidence) {
        let sliced = self.sliced.take();
        self.resume();
        let to = if self.programs.is_ok() { self.from } else { at };
        evidence.waits.extend(sliced.map(|ledger| WaitLedger { to, ..ledger }));
    }

    fn tell_blindness(&mut self, evidence: &mut Evidence) {
        if let Err(blind) = &self.programs
            && !std::mem::replace(&mut self.blindness_is_told, true)
        {
            let what = if self.estimate.is_some() { WHAT } else { WHAT_AT_ALL };
            blind.note_as(evidence, probe::WAITS, what);
        }
    }

    /// Closes the books. With `pause`, nothing is seen until the next interval.
    fn close(&mut self, pause: bool) -> Option<WaitLedger> {
        let Ok(programs) = &mut self.programs else { return None };
        let mut snapshot = match programs.take(pause) {
            Ok(snapshot) => snapshot,
            Err(error) => {
                self.give_up(&error);
                return None;
            }
        };
        self.cost_before = programs.cost();
        let last_switch = |core| programs.last_switch(core);
        let untouched =
            threads::untouched(&self.root, &mut self.candidates, &mut snapshot, &mut self.places, last_switch);
        let closed = self.books.close(&snapshot, &untouched, pause);
        if pause {
            let books = &self.books;
            let pid_of = |party| books.identity(party).map(|identity| identity.pid);
            let mut carried = threads::carried(&self.root, &snapshot, pid_of, &mut self.places);
            carried.append(&mut self.candidates);
            self.candidates = carried;
        }
        self.from = snapshot.from;
        let ledger = self.ledger(&snapshot, closed);
        if !pause {
            self.from = snapshot.to;
        }
        Some(ledger)
    }

    /// The time that may cost what this interval has cost so far.
    fn paid_for(&self, programs: &Programs) -> Duration {
        programs.cost().saturating_sub(self.cost_before).div_f64(self.pace.most_cost)
    }

    fn ledger(&mut self, snapshot: &Snapshot, closed: Closed) -> WaitLedger {
        let blocks = self.blocks(snapshot, &closed.open_blocks);
        let Closed { accounts, charges, ended, open_blocks: _ } = closed;
        let mut used: HashSet<u32> = accounts.iter().map(|account| account.party).collect();
        used.extend(charges.iter().map(|charge| charge.victim));
        used.extend(charges.iter().filter_map(|charge| match charge.to {
            Runner::Party(party) => Some(party),
            _ => None,
        }));
        used.extend(blocks.iter().map(|block| block.party));
        used.extend(ended.keys());
        let mut used: Vec<u32> = used.into_iter().collect();
        used.sort_unstable();
        let party = |id: &u32| {
            let identity = self.books.identity(*id)?.clone();
            let cgroup = self.places.cgroup_of(&identity);
            Some(party(*id, identity, cgroup, ended.get(id).copied().unwrap_or(0)))
        };
        let parties: Vec<Party> = used.iter().filter_map(party).collect();
        let known: HashSet<u32> = parties.iter().map(|party| party.id).collect();
        let mut ledger = WaitLedger {
            from: snapshot.from,
            to: snapshot.to,
            method: LedgerMethod::Bpf,
            watched_ns: snapshot.to.since(snapshot.from).as_nanos() as u64,
            parties,
            accounts,
            charges,
            blocks,
            weights: Vec::new(),
            unbooked_ns: snapshot.unbooked_ns,
        };
        // The kernel's table of parties was full.
        ledger.accounts.retain(|account| known.contains(&account.party));
        ledger.charges.retain(|charge| known.contains(&charge.victim));
        ledger.blocks.retain(|block| known.contains(&block.party));
        ledger.drop_trifles();
        ledger.weights = self.places.weights(&competing(&ledger));
        ledger
    }

    fn blocks(&mut self, snapshot: &Snapshot, open: &[OpenBlock]) -> Vec<Block> {
        let worth = |block: &EndedBlock| block.ns >= WORTH_NAMING.as_nanos() as u64 && !block.frames.is_empty();
        if snapshot.blocks.iter().any(worth) {
            self.places.learn_functions();
        }
        let mut blocks: BTreeMap<(u32, u32, Vec<String>), Block> = BTreeMap::new();
        for ended in &snapshot.blocks {
            let key = (ended.party, ended.tid, self.places.stack(&ended.frames));
            let block = blocks.entry(key).or_default();
            block.ns += ended.ns;
            block.times += ended.times;
            block.longest_ns = block.longest_ns.max(ended.longest_ns);
            block.waker_comm = Some(ended.waker.clone()).filter(|waker| !waker.is_empty());
            block.on = self.worked_on.get(&ended.tid).cloned();
        }
        let mut open: Vec<&OpenBlock> = open.iter().filter(|block| block.ns >= LEAST_BLOCK.as_nanos() as u64).collect();
        open.order_by_key(|block| block.since);
        let mut worked_on = HashMap::new();
        for (at, block) in open.into_iter().enumerate() {
            let identity = self.books.identity(block.party);
            let pid = identity.map(|identity| identity.pid).filter(|pid| *pid != 0).unwrap_or(block.tid);
            let looked = at < MOST_OPEN_BLOCKS;
            let stack = if looked { self.places.stack_of(pid, block.tid) } else { Vec::new() };
            let on = if looked { self.places.works_on(pid, block.tid, identity) } else { None };
            worked_on.extend(on.clone().map(|on| (block.tid, on)));
            let row = blocks.entry((block.party, block.tid, stack)).or_default();
            row.ns += block.ns;
            row.times += 1;
            row.longest_ns = row.longest_ns.max(snapshot.to.since(Time(block.since)).as_nanos() as u64);
            row.since = Some(Time(block.since));
            row.on = on.or(row.on.take());
        }
        self.worked_on = worked_on;
        let row = |((party, tid, stack), block)| Block { party, tid: (tid != 0).then_some(tid), stack, ..block };
        blocks.into_iter().map(row).collect()
    }
}

/// The cgroups of those who waited long enough for their weight to matter, and of those who ran meanwhile.
fn competing(ledger: &WaitLedger) -> BTreeSet<&str> {
    let cgroups: HashMap<u32, &str> =
        ledger.parties.iter().filter_map(|party| Some((party.id, party.cgroup.as_deref()?))).collect();
    let long = ledger.charges.iter().filter(|charge| charge.ns >= LONG_CHARGE_NS);
    let both = long.flat_map(|charge| match charge.to {
        Runner::Party(runner) => [Some(charge.victim), Some(runner)],
        _ => [None, None],
    });
    both.flatten().filter_map(|party| cgroups.get(&party).copied()).collect()
}

fn party(id: u32, identity: Identity, cgroup: Option<String>, ended: u64) -> Party {
    let Identity { pid, parent, comm, parent_comm, policy, rt_priority, nice, kernel, .. } = identity;
    let is_real_time =
        matches!(SchedulingClass::from_policy(policy.into()), SchedulingClass::Fifo | SchedulingClass::RoundRobin);
    Party {
        id,
        pid: (pid != 0).then_some(pid),
        parent_pid: (parent != 0).then_some(parent),
        parent_comm: (!parent_comm.is_empty()).then_some(parent_comm),
        comm,
        kernel,
        cgroup,
        class: SchedulingClass::from_policy(policy.into()),
        rt_priority: if is_real_time { rt_priority } else { 0 },
        nice,
        ended,
    }
}

/// One more than the highest number a core may have.
fn possible_cores(root: &Root) -> u32 {
    let possible = root.read_line("/sys/devices/system/cpu/possible");
    let highest = possible.as_deref().and_then(CoreSet::parse_list).and_then(|cores| cores.iter().max());
    highest.map_or(512, |highest| highest.saturating_add(1)).min(8192)
}
