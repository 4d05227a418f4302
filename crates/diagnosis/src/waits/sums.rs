//! The wait ledger summed up by thread, process, cgroup, unit or pod.
//!
//! The kernel charges a wait to the thread that was current on the core. Interrupts and the hypervisor take time from whoever is
//! current; their share of that core in that interval, by /proc/stat, is taken off and charged to them.

use super::blocks::Sleeps;
use super::precedence::{Precedence, Weights};
use coroner_evidence::cgroups::CgroupOwner;
use coroner_evidence::tasks::SchedulingClass;
use coroner_evidence::{
    Account, Block, Charge, CoreSet, CoreTicks, Evidence, LedgerMethod, Order, Party, Runner, Source, ThreadSample,
    Time, WaitLedger, Window,
};
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

/// What rows stand for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum By {
    Thread,
    #[default]
    Process,
    Cgroup,
    Unit,
    Pod,
}

impl By {
    pub const ALL: [By; 5] = [By::Thread, By::Process, By::Cgroup, By::Unit, By::Pod];

    pub fn as_str(self) -> &'static str {
        match self {
            By::Thread => "thread",
            By::Process => "process",
            By::Cgroup => "cgroup",
            By::Unit => "unit",
            By::Pod => "pod",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum WhoKind {
    Thread,
    Process,
    /// Processes that lived shorter than a second, by parent and name.
    ShortLived,
    Kernel,
    Cgroup,
    Unit,
    Pod,
    Interrupts,
    Hypervisor,
    /// The core was idle: on its way.
    Idle,
    /// Many with a little each.
    Others,
    Unknown,
}

impl WhoKind {
    pub fn as_str(self) -> &'static str {
        match self {
            WhoKind::Thread => "thread",
            WhoKind::Process => "process",
            WhoKind::ShortLived => "short-lived",
            WhoKind::Kernel => "kernel",
            WhoKind::Cgroup => "cgroup",
            WhoKind::Unit => "unit",
            WhoKind::Pod => "pod",
            WhoKind::Interrupts => "interrupts",
            WhoKind::Hypervisor => "hypervisor",
            WhoKind::Idle => "idle",
            WhoKind::Others => "others",
            WhoKind::Unknown => "unknown",
        }
    }
}

/// Who lost or took time.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Who {
    pub kind: WhoKind,
    pub name: String,
    pub pid: Option<u32>,
    pub tid: Option<u32>,
    /// Of short-lived processes.
    pub parent_pid: Option<u32>,
    pub cgroup: Option<String>,
}

impl Who {
    fn named(kind: WhoKind, name: impl Into<String>) -> Who {
        Who { kind, name: name.into(), pid: None, tid: None, parent_pid: None, cgroup: None }
    }
}

/// Why the other one came first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Why {
    Deadline,
    RealTime,
    /// The waiter is of the idle class.
    IdleClass,
    Nice,
    /// Equal threads take turns; between cgroups, by their weights.
    Turns,
    Weights,
    Interrupts,
    Hypervisor,
    /// Nobody did: it was about to run.
    WakeUp,
    Unknown,
}

impl Why {
    pub fn as_str(self) -> &'static str {
        match self {
            Why::Deadline => "deadline",
            Why::RealTime => "real-time",
            Why::IdleClass => "idle-class",
            Why::Nice => "nice",
            Why::Turns => "turns",
            Why::Weights => "weights",
            Why::Interrupts => "interrupts",
            Why::Hypervisor => "hypervisor",
            Why::WakeUp => "wake-up",
            Why::Unknown => "unknown",
        }
    }

    /// For people.
    pub fn in_words(self) -> &'static str {
        match self {
            Why::Deadline => "SCHED_DEADLINE goes before every other class",
            Why::RealTime => "real-time threads go before ordinary ones",
            Why::IdleClass => "the waiter is SCHED_IDLE or SCHED_BATCH",
            Why::Nice => "the other is less nice",
            Why::Turns => "ordinary threads take turns",
            Why::Weights => "its cgroup weighs more",
            Why::Interrupts => "interrupts go before all threads",
            Why::Hypervisor => "the hypervisor ran something else",
            Why::WakeUp => "the core was idle: it was about to run",
            Why::Unknown => "not known",
        }
    }
}

/// Why the waiter did not run elsewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeptBy {
    /// It may run on these cores only: by the cpuset of this cgroup, or by its affinity.
    Cores { cores: CoreSet, cpuset: Option<String> },
    /// It may run anywhere, and waited for a core with others.
    Scheduler,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Charged {
    pub to: Who,
    pub core: u32,
    pub ns: u64,
    pub why: Why,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockedOn {
    /// A file or device if known, else the kernel function.
    pub what: String,
    pub function: Option<String>,
    pub ns: u64,
    pub longest_ns: u64,
    pub goes_on: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    pub who: Who,
    pub ran_ns: u64,
    pub waited_ns: u64,
    pub throttled_ns: u64,
    pub blocked_ns: u64,
    pub longest_wait_ns: u64,
    /// Largest first.
    pub charged: Vec<Charged>,
    pub blocked_on: Vec<BlockedOn>,
    /// `None`: not known.
    pub kept_by: Option<KeptBy>,
}

impl Row {
    pub fn lost_ns(&self) -> u64 {
        self.waited_ns.saturating_add(self.throttled_ns).saturating_add(self.blocked_ns)
    }
}

/// How well the books agree with themselves and with the kernel's own counters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Balance {
    pub watched_ns: u64,
    pub waited_ns: u64,
    pub charged_ns: u64,
    pub unbooked_ns: u64,
    /// Threads that lived through an interval, and those of them whose times do not add up to it.
    pub threads: u64,
    pub out_of_balance: u64,
    /// Threads whose schedstat was read at both ends; their times in the ledger and there.
    pub compared: u64,
    pub ran_ns: u64,
    pub schedstat_ran_ns: u64,
    pub compared_waited_ns: u64,
    pub schedstat_waited_ns: u64,
    /// By thread here; by core in the cgroups' cpu.stat. The same if each cgroup with a quota has one busy thread for each core.
    pub throttled_ns: u64,
    pub cgroup_throttled_ns: u64,
}

#[derive(Debug, Clone, PartialEq)]
pub struct WaitSums {
    pub window: Window,
    pub method: LedgerMethod,
    /// Those who lost most first.
    pub rows: Vec<Row>,
    pub balance: Balance,
}

/// How the ledger compares with itself and with the kernel's counters; `None` if there is none.
pub fn balance(evidence: &Evidence) -> Option<Balance> {
    let mut balance = Balance::default();
    evidence.waits.iter().for_each(|ledger| balance.add(ledger));
    balance.compare(evidence);
    (!evidence.waits.is_empty()).then_some(balance)
}

/// `None` if there is no ledger.
pub fn sum_up(evidence: &Evidence, by: By) -> Option<WaitSums> {
    let (first, last) = (evidence.waits.first()?, evidence.waits.last()?);
    let names = Names::of(evidence);
    let mut rows: BTreeMap<Who, Sum> = BTreeMap::new();
    for ledger in &evidence.waits {
        let interval = Interval {
            parties: ledger.parties.iter().map(|party| (party.id, party)).collect(),
            taken: TakenByCore::of(&evidence.core_times, ledger),
            weights: Weights::of(evidence, ledger),
        };
        let parties = &interval.parties;
        for account in &ledger.accounts {
            let Some(party) = parties.get(&account.party) else { continue };
            rows.entry(names.who(party, account.tid, by)).or_default().add(account, &names);
        }
        for charge in &ledger.charges {
            let Some(victim) = parties.get(&charge.victim) else { continue };
            let row = rows.entry(names.who(victim, charge.tid, by)).or_default();
            row.charge(charge, victim, &interval, &names, by);
        }
        for block in &ledger.blocks {
            let Some(party) = parties.get(&block.party) else { continue };
            rows.entry(names.who(party, block.tid, by)).or_default().block(block, ledger);
        }
    }
    let mut rows: Vec<Row> = rows.into_iter().map(|(who, sum)| sum.row(who, &evidence.waits)).collect();
    rows.order_by(|a, b| b.lost_ns().cmp(&a.lost_ns()).then_with(|| a.who.cmp(&b.who)));
    let is_estimate = evidence.waits.iter().any(|ledger| ledger.method == LedgerMethod::Estimate);
    let method = if is_estimate { LedgerMethod::Estimate } else { LedgerMethod::Bpf };
    let window = Window { from: first.from, to: last.to };
    Some(WaitSums { window, method, rows, balance: balance(evidence)? })
}

/// What charges of one ledger are looked up in.
struct Interval<'a> {
    parties: HashMap<u32, &'a Party>,
    taken: TakenByCore,
    weights: Weights<'a>,
}

#[derive(Debug, Default)]
struct Sum {
    ran_ns: u64,
    waited_ns: u64,
    throttled_ns: u64,
    blocked_ns: u64,
    longest_wait_ns: u64,
    charged: BTreeMap<(Who, u32, Why), u64>,
    blocked: BTreeMap<(String, Option<String>), Sleeps>,
    /// Of the thread that waited most in one interval.
    kept_by: Option<(u64, Option<KeptBy>)>,
}

impl Sum {
    fn add(&mut self, account: &Account, names: &Names<'_>) {
        self.ran_ns = self.ran_ns.saturating_add(account.ran_ns);
        self.waited_ns = self.waited_ns.saturating_add(account.waited_ns);
        self.throttled_ns = self.throttled_ns.saturating_add(account.throttled_ns);
        self.blocked_ns = self.blocked_ns.saturating_add(account.blocked_ns);
        self.longest_wait_ns = self.longest_wait_ns.max(account.longest_wait_ns);
        let waited = self.kept_by.as_ref().map_or(0, |(waited, _)| *waited);
        if account.waited_ns > waited
            && let Some(tid) = account.tid
        {
            self.kept_by = Some((account.waited_ns, names.kept_by(tid)));
        }
    }

    fn charge(&mut self, charge: &Charge, victim: &Party, interval: &Interval<'_>, names: &Names<'_>, by: By) {
        let runner = match charge.to {
            Runner::Party(id) => interval.parties.get(&id).copied(),
            Runner::Idle | Runner::Others | Runner::Unknown => None,
        };
        let mut left = charge.ns;
        let mut book = |to: Who, why: Why, ns: u64| {
            if ns > 0 {
                let sum = self.charged.entry((to, charge.core, why)).or_default();
                *sum = sum.saturating_add(ns);
            }
        };
        // What ksoftirqd and NAPI threads do is counted as softirq time too, but it is theirs.
        if charge.to != Runner::Idle && !runner.is_some_and(does_softirqs) {
            let (interrupts, hypervisor) = interval.taken.of_core(charge.core);
            let part = |share: f64| ((charge.ns as f64 * share) as u64).min(charge.ns);
            let (interrupts, hypervisor) = (part(interrupts), part(hypervisor));
            book(Who::named(WhoKind::Interrupts, "interrupts"), Why::Interrupts, interrupts);
            book(Who::named(WhoKind::Hypervisor, "hypervisor"), Why::Hypervisor, hypervisor);
            left = left.saturating_sub(interrupts).saturating_sub(hypervisor);
        }
        match (charge.to, runner) {
            (_, Some(party)) => {
                book(names.who(party, None, by.of_runner()), why(&interval.weights, victim, party), left)
            }
            (Runner::Idle, _) => book(Who::named(WhoKind::Idle, "idle core"), Why::WakeUp, left),
            (Runner::Others, _) => book(Who::named(WhoKind::Others, "many others"), Why::Turns, left),
            _ => book(Who::named(WhoKind::Unknown, "unknown"), Why::Unknown, left),
        }
    }

    fn block(&mut self, block: &Block, ledger: &WaitLedger) {
        let function = block.stack.first().cloned();
        let what = block.on.clone().or_else(|| function.clone()).unwrap_or_else(|| "unknown".to_owned());
        let key = (what, function);
        let sleeps = Sleeps::add(self.blocked.get(&key).copied(), block, ledger);
        self.blocked.insert(key, sleeps);
    }

    fn row(self, who: Who, ledgers: &[WaitLedger]) -> Row {
        let mut charged: Vec<Charged> =
            self.charged.into_iter().map(|((to, core, why), ns)| Charged { to, core, ns, why }).collect();
        charged.order_by(|a, b| b.ns.cmp(&a.ns).then_with(|| a.to.cmp(&b.to)));
        let on = |((what, function), sleeps): (_, Sleeps)| BlockedOn {
            what,
            function,
            ns: sleeps.ns,
            longest_ns: sleeps.longest_ns,
            goes_on: sleeps.go_on(ledgers),
        };
        let mut blocked_on: Vec<BlockedOn> = self.blocked.into_iter().map(on).collect();
        blocked_on.order_by_key(|on| Reverse(on.ns));
        Row {
            who,
            ran_ns: self.ran_ns,
            waited_ns: self.waited_ns,
            throttled_ns: self.throttled_ns,
            blocked_ns: self.blocked_ns,
            longest_wait_ns: self.longest_wait_ns,
            charged,
            blocked_on,
            kept_by: self.kept_by.and_then(|(_, kept_by)| kept_by),
        }
    }
}

/// Its softirq time is its own.
pub(super) fn does_softirqs(party: &Party) -> bool {
    party.kernel && (party.comm.starts_with("ksoftirqd/") || party.comm.starts_with("napi/"))
}

impl By {
    /// Ledgers know the party that had a core, not its thread.
    fn of_runner(self) -> By {
        if self == By::Thread { By::Process } else { self }
    }
}

/// Why `runner` came before `victim`.
fn why(weights: &Weights<'_>, victim: &Party, runner: &Party) -> Why {
    use SchedulingClass::{Batch, Deadline, Idle};
    let is_humble = |party: &Party| matches!(party.class, Batch | Idle);
    match weights.precedence(runner, victim) {
        Precedence::Class if runner.class == Deadline => Why::Deadline,
        Precedence::Class => Why::RealTime,
        Precedence::CgroupWeight { .. } => Why::Weights,
        _ if is_humble(victim) && !is_humble(runner) => Why::IdleClass,
        Precedence::Nice => Why::Nice,
        Precedence::Turns => Why::Turns,
    }
}

/// Names of threads and processes, and where threads may run.
struct Names<'a> {
    evidence: &'a Evidence,
    threads: HashMap<u32, &'a coroner_evidence::Thread>,
    processes: HashMap<u32, &'a coroner_evidence::Process>,
    /// `default/train-0`, by uid.
    pods: HashMap<&'a str, String>,
    cores: usize,
}

impl<'a> Names<'a> {
    fn of(evidence: &'a Evidence) -> Names<'a> {
        Names {
            evidence,
            threads: evidence.threads.iter().map(|thread| (thread.key.tid, thread)).collect(),
            processes: evidence.processes.iter().map(|process| (process.pid, process)).collect(),
            pods: evidence
                .containers
                .iter()
                .filter_map(|c| {
                    let namespace = c.namespace.as_ref().map_or_else(String::new, |namespace| format!("{namespace}/"));
                    Some((c.pod_uid.as_deref()?, format!("{namespace}{}", c.pod.as_deref()?)))
                })
                .collect(),
            cores: evidence.core_times.last().map_or(0, |look| look.cores.len()),
        }
    }

    fn who(&self, party: &Party, tid: Option<u32>, by: By) -> Who {
        let owner = || {
            let known = party.pid.and_then(|pid| self.processes.get(&pid)).map(|process| process.owner.clone());
            let of_path = || party.cgroup.as_deref().map(CgroupOwner::of_path).unwrap_or_default();
            known.filter(CgroupOwner::is_known).unwrap_or_else(of_path)
        };
        let cgroup = || {
            let path = party.cgroup.clone().unwrap_or_else(|| "(cgroup gone)".to_owned());
            Who::named(WhoKind::Cgroup, path)
        };
        match by {
            By::Thread | By::Process => self.process(party, tid.filter(|_| by == By::Thread)),
            By::Cgroup => cgroup(),
            By::Unit => owner().unit.map_or_else(cgroup, |unit| Who::named(WhoKind::Unit, unit)),
            By::Pod => match owner() {
                CgroupOwner { pod_uid: Some(uid), .. } => {
                    Who::named(WhoKind::Pod, self.pods.get(uid.as_str()).cloned().unwrap_or(uid))
                }
                CgroupOwner { unit: Some(unit), .. } => Who::named(WhoKind::Unit, unit),
                _ => cgroup(),
            },
        }
    }

    fn process(&self, party: &Party, tid: Option<u32>) -> Who {
        let cgroup = party.cgroup.clone();
        let (kind, name) = match (party.pid, tid) {
            (None, _) => {
                let parent = party.parent_comm.as_deref().unwrap_or("?");
                (WhoKind::ShortLived, format!("short-lived {} of {parent}", party.comm))
            }
            (Some(pid), Some(tid)) if tid != pid => {
                (WhoKind::Thread, self.threads.get(&tid).map_or_else(|| party.comm.clone(), |t| t.comm.clone()))
            }
            (Some(_), tid) => {
                let kind = if party.kernel { WhoKind::Kernel } else { WhoKind::Process };
                (if tid.is_some() && !party.kernel { WhoKind::Thread } else { kind }, party.comm.clone())
            }
        };
        let parent_pid = if party.pid.is_none() { party.parent_pid } else { None };
        Who { kind, name, pid: party.pid, tid, parent_pid, cgroup }
    }

    fn kept_by(&self, tid: u32) -> Option<KeptBy> {
        let affinity = self.threads.get(&tid)?.affinity.as_ref()?;
        let cpuset = || self.evidence.kept_by_cpuset(tid, affinity).map(str::to_owned);
        Some(if affinity.len() < self.cores {
            KeptBy::Cores { cores: affinity.clone(), cpuset: cpuset() }
        } else {
            KeptBy::Scheduler
        })
    }
}

/// What share of each core interrupts and the hypervisor had.
pub(super) struct TakenByCore {
    shares: HashMap<u32, (f64, f64)>,
}

impl TakenByCore {
    pub(super) fn of(looks: &[coroner_evidence::CoreTimes], ledger: &WaitLedger) -> TakenByCore {
        let at = |time: Time| looks.partition_point(|look| look.at < time).min(looks.len().saturating_sub(1));
        let mut shares = HashMap::new();
        if let (Some(first), Some(last)) = (looks.get(at(ledger.from)), looks.get(at(ledger.to))) {
            for new in &last.cores {
                let old = first.cores.iter().find(|old| old.core == new.core);
                shares.extend(old.and_then(|old| taken(old, new)).map(|taken| (new.core, taken)));
            }
        }
        TakenByCore { shares }
    }

    pub(super) fn of_core(&self, core: u32) -> (f64, f64) {
        self.shares.get(&core).copied().unwrap_or((0.0, 0.0))
    }
}

/// Of the time that was not idle: nobody waits while a core is.
fn taken(old: &CoreTicks, new: &CoreTicks) -> Option<(f64, f64)> {
    let sum = |c: &CoreTicks| {
        [c.user, c.nice, c.system, c.irq, c.softirq, c.steal].iter().fold(0u64, |a, b| a.wrapping_add(*b))
    };
    let busy = sum(new).checked_sub(sum(old)).filter(|ticks| *ticks > 0)? as f64;
    let interrupts = |c: &CoreTicks| c.irq.saturating_add(c.softirq);
    let interrupts = interrupts(new).saturating_sub(interrupts(old)) as f64;
    let hypervisor = new.steal.saturating_sub(old.steal) as f64;
    Some(((interrupts / busy).min(1.0), (hypervisor / busy).min(1.0)))
}

impl Balance {
    fn add(&mut self, ledger: &WaitLedger) {
        self.watched_ns = self.watched_ns.saturating_add(ledger.watched_ns);
        self.unbooked_ns = self.unbooked_ns.saturating_add(ledger.unbooked_ns);
        self.charged_ns = ledger.charges.iter().map(|charge| charge.ns).fold(self.charged_ns, u64::saturating_add);
        for account in &ledger.accounts {
            self.waited_ns = self.waited_ns.saturating_add(account.waited_ns);
            self.throttled_ns = self.throttled_ns.saturating_add(account.throttled_ns);
            if account.tid.is_some() {
                self.threads += 1;
                // Threads that began meanwhile have less.
                self.out_of_balance += u64::from(account.total_ns() > ledger.watched_ns);
            }
        }
    }

    /// With schedstat of the threads that were read close to both ends, and with the quotas' counters. Schedstat counts a wait when it ends.
    fn compare(&mut self, evidence: &Evidence) {
        let counters = &evidence.counters;
        for path in counters.subjects(Source::CgroupCpu) {
            let us = counters.moved(Source::CgroupCpu, path, "throttled_us").unwrap_or(0);
            self.cgroup_throttled_ns = self.cgroup_throttled_ns.saturating_add(us.saturating_mul(1000));
        }
        let (Some(first), Some(last)) = (evidence.waits.first(), evidence.waits.last()) else { return };
        let mut ours: HashMap<u32, (u64, u64)> = HashMap::new();
        for account in evidence.waits.iter().flat_map(|ledger| &ledger.accounts) {
            if let Some(tid) = account.tid {
                let sum = ours.entry(tid).or_default();
                *sum = (sum.0.saturating_add(account.ran_ns), sum.1.saturating_add(account.waited_ns));
            }
        }
        // Samples of a thread, by distance to the ends.
        let mut ends: HashMap<u32, [Option<&ThreadSample>; 2]> = HashMap::new();
        for sample in evidence.thread_samples.iter().filter(|sample| sample.sched.is_some()) {
            let pair = ends.entry(sample.key.tid).or_default();
            for (end, at) in pair.iter_mut().zip([first.from, last.to]) {
                let distance = |sample: &ThreadSample| sample.at.0.abs_diff(at.0);
                if distance(sample) < NEAR_NS && end.is_none_or(|known| distance(sample) < distance(known)) {
                    *end = Some(sample);
                }
            }
        }
        for (tid, ends) in ends {
            let ([Some(before), Some(after)], Some(ours)) = (ends, ours.get(&tid)) else { continue };
            let (Some(old), Some(new)) = (before.sched, after.sched) else { continue };
            // Samples and ledgers do not begin and end together.
            let scale = self.watched_ns as f64 / (after.at.since(before.at).as_nanos() as f64).max(1.0);
            let scaled = |new: u64, old: u64| (new.saturating_sub(old) as f64 * scale) as u64;
            let add = |to: &mut u64, ns: u64| *to = to.saturating_add(ns);
            self.compared += 1;
            add(&mut self.ran_ns, ours.0);
            add(&mut self.compared_waited_ns, ours.1);
            add(&mut self.schedstat_ran_ns, scaled(new.run_ns, old.run_ns));
            add(&mut self.schedstat_waited_ns, scaled(new.wait_ns, old.wait_ns));
        }
    }
}

/// A sample this close to an end of the ledger is compared with it.
const NEAR_NS: u64 = 500_000_000;

#[cfg(test)]
mod tests {
    use super::*;
    use coroner_evidence::{CgroupWeight, CoreTimes};

    const MS: u64 = 1_000_000;

    fn party(id: u32, pid: Option<u32>, comm: &str) -> Party {
        Party { id, pid, comm: comm.into(), cgroup: Some("/".into()), ..Party::default() }
    }

    fn ledger(parties: Vec<Party>, accounts: Vec<Account>, charges: Vec<Charge>) -> WaitLedger {
        let (from, to) = (Time(0), Time::from_secs(1));
        WaitLedger { from, to, watched_ns: 1000 * MS, parties, accounts, charges, ..WaitLedger::default() }
    }

    fn waited(party: u32, tid: u32, ns: u64) -> Account {
        Account { party, tid: Some(tid), waited_ns: ns, slept_ns: 1000 * MS - ns, ..Account::default() }
    }

    fn charge(victim: u32, tid: u32, to: Runner, ns: u64) -> Charge {
        Charge { victim, tid: Some(tid), to, core: 1, ns }
    }

    #[test]
    fn a_process_is_charged_with_its_reason() {
        let fifo = Party { class: SchedulingClass::Fifo, rt_priority: 10, ..party(2, Some(20), "hog") };
        let one = ledger(
            vec![party(1, Some(10), "job"), fifo],
            vec![waited(1, 10, 600 * MS), waited(1, 11, 200 * MS)],
            vec![charge(1, 10, Runner::Party(2), 600 * MS), charge(1, 11, Runner::Idle, 200 * MS)],
        );
        let evidence = Evidence { waits: vec![one.clone(), one], ..Evidence::default() };
        let sums = sum_up(&evidence, By::Process).unwrap();
        assert_eq!((sums.rows.len(), sums.rows[0].waited_ns), (1, 1600 * MS));
        let told: Vec<_> = sums.rows[0].charged.iter().map(|c| (c.to.name.as_str(), c.why, c.ns)).collect();
        assert_eq!(told, [("hog", Why::RealTime, 1200 * MS), ("idle core", Why::WakeUp, 400 * MS)]);
        assert_eq!(sum_up(&evidence, By::Thread).unwrap().rows.len(), 2);
        assert_eq!((sums.balance.out_of_balance, sums.balance.threads), (0, 4));
        assert_eq!(sum_up(&Evidence::default(), By::Process), None);
    }

    #[test]
    fn interrupts_and_the_hypervisor_have_their_share() {
        let one = ledger(
            vec![party(1, Some(10), "job"), party(2, Some(20), "hog")],
            vec![waited(1, 10, 1000 * MS)],
            vec![charge(1, 10, Runner::Party(2), 1000 * MS)],
        );
        let look = |at, user, softirq, steal| CoreTimes {
            at,
            cores: vec![CoreTicks { core: 1, user, softirq, steal, ..CoreTicks::default() }],
        };
        let evidence = Evidence {
            waits: vec![one],
            core_times: vec![look(Time(0), 0, 0, 0), look(Time::from_secs(1), 50, 30, 20)],
            ..Evidence::default()
        };
        let sums = sum_up(&evidence, By::Process).unwrap();
        let told: Vec<_> = sums.rows[0].charged.iter().map(|c| (c.to.name.as_str(), c.ns / MS)).collect();
        assert_eq!(told, [("hog", 500), ("interrupts", 300), ("hypervisor", 200)]);
    }

    #[test]
    fn the_reason_is_what_the_scheduler_goes_by() {
        use SchedulingClass::{Deadline, Fifo, Idle};
        let of = |class, rt_priority, nice: i8, cgroup: &str| Party {
            class,
            rt_priority,
            nice,
            cgroup: Some(cgroup.into()),
            ..party(1, Some(1), "x")
        };
        let plain = of(SchedulingClass::Other, 0, 0, "/a");
        let read =
            [("/a", 100), ("/b", 1000), ("/c", 100)].map(|(path, weight)| CgroupWeight { path: path.into(), weight });
        let weights = Weights::new(read.iter(), 2);
        assert_eq!(why(&weights, &plain, &of(Deadline, 0, 0, "/a")), Why::Deadline);
        assert_eq!(why(&weights, &of(Fifo, 10, 0, "/a"), &of(Fifo, 20, 0, "/a")), Why::RealTime);
        assert_eq!(why(&weights, &of(Fifo, 20, 0, "/a"), &of(Fifo, 20, 0, "/a")), Why::Turns);
        assert_eq!(why(&weights, &of(Idle, 0, 0, "/a"), &plain), Why::IdleClass);
        assert_eq!(why(&weights, &plain, &of(SchedulingClass::Other, 0, -5, "/a")), Why::Nice);
        assert_eq!(why(&weights, &plain, &of(SchedulingClass::Other, 0, 0, "/b")), Why::Weights);
        assert_eq!(why(&weights, &plain, &of(SchedulingClass::Other, 0, -5, "/c")), Why::Turns);
    }

    #[test]
    fn short_lived_processes_are_named_by_their_parent() {
        let kid = Party { parent_pid: Some(7), parent_comm: Some("make".into()), ..party(2, None, "cc1") };
        let one = ledger(
            vec![party(1, Some(10), "job"), kid],
            vec![waited(1, 10, 500 * MS)],
            vec![charge(1, 10, Runner::Party(2), 500 * MS)],
        );
        let evidence = Evidence { waits: vec![one], ..Evidence::default() };
        let to = &sum_up(&evidence, By::Process).unwrap().rows[0].charged[0].to;
        assert_eq!(
            (to.name.as_str(), to.kind, to.parent_pid),
            ("short-lived cc1 of make", WhoKind::ShortLived, Some(7))
        );
    }
}
