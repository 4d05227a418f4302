//! The ledger without BPF, from what is read of threads anyway.
//!
//! - Ran and waited: schedstat between two samples of a thread. It has a wait only when that ends, so a thread in state R whose counters stand
//!   still is waiting; what we tell of such a wait is taken off when schedstat has it.
//! - Throttled: schedstat counts it as waiting. The cgroup's cpu.stat tells how much of it at most.
//! - Blocked: state D at both ends of a step, or half of the step if at one.
//! - Who had the core: who ran on it in the same interval, by how long. What nobody is known to have had is charged to nobody.
//! - Short-lived processes: most are gone before a sample. Their parent's time for children that it has waited for (cutime, cstime) tells how
//!   much they ran, and those that were met tell where.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use coroner_evidence::tasks::{SchedTimes, SchedulingClass};
use coroner_evidence::{
    Account, Block, Charge, Evidence, LedgerMethod, Order, Party, Process, Runner, Source, Thread, ThreadSample, Time,
    WaitLedger,
};

use super::places::Places;
use super::tables::Identity;
use super::{LEAST_BLOCK, MOST_OPEN_BLOCKS, competing};
use crate::Root;
use crate::tasks::{parse_schedstat, parse_stat};

/// As in bpf/waits.bpf.c.
const SHORT_LIVED: Duration = Duration::from_secs(1);
/// A sleeping thread is read at least this often before an interval begins; it slept until then if it was not reported.
const BETWEEN_LOOKS: Duration = Duration::from_millis(250);
/// Parents of short-lived processes whose children's time is read.
const MOST_PARENTS: usize = 16;
/// Gone threads and processes are looked for when there are this many more.
const MORE: usize = 1024;

#[derive(Debug, Default)]
pub(super) struct Estimate {
    root: Root,
    from: Time,
    /// Whether all threads were reported once: others are new.
    began: bool,
    threads: HashMap<u32, Known>,
    processes: HashMap<u32, Process>,
    /// Threads and processes that were left when last tidied up.
    kept: usize,
    /// Throttled time by cgroup, as last read and in this interval.
    throttled: HashMap<String, (u64, u64)>,
    /// Ticks of waited-for children, by parent.
    reaped: HashMap<u32, u64>,
}

/// A thread.
#[derive(Debug)]
struct Known {
    about: Thread,
    last: Option<ThreadSample>,
    /// Since it was last seen asleep, and in no account yet.
    open_ns: u64,
    /// Told of the wait that goes on.
    told_wait_ns: u64,
    waits_since: Option<Time>,
    blocked_since: Option<Time>,
    /// The functions it is blocked in, and the file.
    place: (Vec<String>, Option<String>),
    sums: Sums,
}

/// In this interval.
#[derive(Debug, Default, PartialEq)]
struct Sums {
    ran: u64,
    waited: u64,
    blocked: u64,
    longest_wait: u64,
    longest_block: u64,
    runs: u64,
    /// Ran and waited.
    by_core: BTreeMap<u32, [u64; 2]>,
}

impl Known {
    fn new(about: Thread) -> Known {
        Known {
            about,
            last: None,
            open_ns: 0,
            told_wait_ns: 0,
            waits_since: None,
            blocked_since: None,
            place: Default::default(),
            sums: Sums::default(),
        }
    }

    fn take(&mut self, ns: u64) -> u64 {
        let part = ns.min(self.open_ns);
        self.open_ns -= part;
        part
    }

    /// `asleep_until`: if it was asleep before, at least until then.
    fn add(&mut self, sample: &ThreadSample, is_new: bool, asleep_until: Time) {
        let Some(times) = sample.sched else { return };
        let born = ThreadSample {
            at: Time::from_millis(sample.key.started.saturating_mul(10)).min(sample.at),
            sched: Some(SchedTimes { run_ns: 0, wait_ns: 0, slices: 0 }),
            state: 'R',
            ..*sample
        };
        let before = self.last.replace(*sample).filter(|last| last.key == sample.key).or(is_new.then_some(born));
        let is_blocked = sample.state == 'D';
        let Some((before, old)) = before.and_then(|before| Some((before, before.sched?))) else {
            self.blocked_since = is_blocked.then_some(sample.at);
            return;
        };
        let since = if matches!(before.state, 'R' | 'D') { before.at } else { before.at.max(asleep_until) };
        self.open_ns = self.open_ns.saturating_add(sample.at.since(since).as_nanos() as u64);
        let ran = self.take(times.run_ns.saturating_sub(old.run_ns));
        let ended = times.wait_ns.saturating_sub(old.wait_ns);
        let mut waited = self.take(ended.saturating_sub(self.told_wait_ns));
        let slices = times.slices.saturating_sub(old.slices);
        if ended > 0 {
            self.told_wait_ns = 0;
            self.sums.longest_wait = self.sums.longest_wait.max(ended / slices.max(1));
        }
        if (before.state, sample.state) == ('R', 'R') && times == old {
            let open = self.take(u64::MAX);
            waited += open;
            self.told_wait_ns += open;
            let began = *self.waits_since.get_or_insert(before.at);
            self.sums.longest_wait = self.sums.longest_wait.max(sample.at.since(began).as_nanos() as u64);
        } else {
            self.waits_since = None;
        }
        let was_blocked = before.state == 'D';
        let blocked = match (was_blocked, is_blocked) {
            (true, true) => self.take(u64::MAX),
            (true, false) | (false, true) => self.take(self.open_ns / 2),
            (false, false) => 0,
        };
        // It has not run meanwhile: one and the same sleep.
        let goes_on = was_blocked && is_blocked && slices == 0;
        if let Some(began) = self.blocked_since.filter(|_| was_blocked) {
            let until = if goes_on { sample.at } else { before.at };
            self.sums.longest_block = self.sums.longest_block.max(until.since(began).as_nanos() as u64);
        }
        if !goes_on {
            self.blocked_since = is_blocked.then_some(sample.at);
        }
        if sample.state != 'R' {
            self.open_ns = 0;
        }
        self.sums.ran += ran;
        self.sums.waited += waited;
        self.sums.blocked += blocked;
        self.sums.runs += slices;
        if ran + waited == 0 {
            return;
        }
        let only = self.about.affinity.as_ref().filter(|cores| cores.len() == 1).and_then(|cores| cores.iter().next());
        let (one, other) = only.map_or((before.core, sample.core), |core| (core, core));
        for (core, half) in [(one, [ran / 2, waited / 2]), (other, [ran - ran / 2, waited - waited / 2])] {
            let sum = self.sums.by_core.entry(core).or_default();
            *sum = [sum[0] + half[0], sum[1] + half[1]];
        }
    }
}

impl Estimate {
    pub fn new(root: &Root, from: Time) -> Estimate {
        Estimate { root: root.clone(), from, ..Estimate::default() }
    }

    pub fn from(&self) -> Time {
        self.from
    }

    /// Takes what was seen of threads, processes and quotas since the last call.
    pub fn note(&mut self, seen: &Evidence) {
        for process in &seen.processes {
            self.processes.insert(process.pid, process.clone());
        }
        for thread in &seen.threads {
            match self.threads.get_mut(&thread.key.tid).filter(|known| known.about.key == thread.key) {
                Some(known) => {
                    let affinity = thread.affinity.clone().or(known.about.affinity.take());
                    known.about = Thread { affinity, ..thread.clone() };
                }
                None => drop(self.threads.insert(thread.key.tid, Known::new(thread.clone()))),
            }
        }
        let asleep_until = Time(self.from.0.saturating_sub(BETWEEN_LOOKS.as_nanos() as u64));
        for sample in &seen.thread_samples {
            if let Some(known) = self.threads.get_mut(&sample.key.tid) {
                known.add(sample, self.began, asleep_until);
            }
        }
        self.began |= !seen.thread_samples.is_empty();
        for (series, points) in seen.counters.iter() {
            if series.source != Source::CgroupCpu || series.name != "throttled_us" {
                continue;
            }
            for point in points {
                let new = (point.value, 0);
                let known = self.throttled.entry(series.subject.clone()).or_insert(new);
                known.1 += point.value.saturating_sub(known.0).saturating_mul(1000);
                known.0 = point.value;
            }
        }
    }

    /// Ends the interval. `None` if the kernel does not tell how long threads wait.
    pub fn close(&mut self, to: Time, places: &Places) -> Option<WaitLedger> {
        self.look_at_blocked(to, places);
        let from = std::mem::replace(&mut self.from, to);
        let watched_ns = to.since(from).as_nanos() as u64;
        let mut books = Books { watched_ns, ..Books::default() };
        let has_times = self.threads.values().any(|known| known.last.is_some_and(|last| last.sched.is_some()));
        let mut tids: Vec<u32> =
            self.threads.iter().filter(|(_, known)| known.sums != Sums::default()).map(|(tid, _)| *tid).collect();
        tids.sort_unstable();
        let mut children: BTreeMap<u32, Children> = BTreeMap::new();
        for tid in tids {
            let Some(known) = self.threads.get_mut(&tid) else { continue };
            let sums = std::mem::take(&mut known.sums);
            let Some(known) = self.threads.get(&tid) else { continue };
            let (party, parent) = self.party(&known.about, to);
            let party = books.party(party);
            if let Some(parent) = parent {
                children.entry(parent).or_default().add(party, &sums);
            }
            let throttled = known_throttled(&self.throttled, books.parties[party as usize].cgroup.as_deref());
            books.add(tid, party, sums, throttled, known, to);
        }
        self.add_children(children, &mut books);
        self.throttled.values_mut().for_each(|known| known.1 = 0);
        self.tidy();
        let mut ledger = books.ledger(from, to);
        ledger.drop_trifles();
        ledger.weights = places.weights(&competing(&ledger));
        has_times.then_some(ledger)
    }

    /// Threads in state D are not reported while nothing happens to them.
    fn look_at_blocked(&mut self, to: Time, places: &Places) {
        let asleep_until = Time(self.from.0.saturating_sub(BETWEEN_LOOKS.as_nanos() as u64));
        let is_blocked = |known: &&mut Known| known.last.is_some_and(|last| last.state == 'D');
        for known in self.threads.values_mut().filter(is_blocked).take(MOST_OPEN_BLOCKS) {
            let Some(last) = known.last else { continue };
            let (pid, tid) = (known.about.pid, known.about.key.tid);
            let Some(sample) = sample(&self.root, pid, to, &last) else { continue };
            known.add(&sample, false, asleep_until);
            if sample.state == 'D' {
                let identity =
                    Identity { comm: known.about.comm.clone(), kernel: known.about.kernel, ..Identity::default() };
                known.place = (places.stack_of(pid, tid), places.works_on(pid, tid, Some(&identity)));
            }
        }
    }

    /// The party of a thread, and its parent if it is short-lived.
    fn party(&self, thread: &Thread, to: Time) -> (Party, Option<u32>) {
        let process = self.processes.get(&thread.pid);
        let born = process.map_or(thread.key.started, |process| process.started);
        let is_young = to.since(Time::from_millis(born.saturating_mul(10))) < SHORT_LIVED;
        let parent = process.map(|process| process.ppid).filter(|_| is_young && !thread.kernel);
        let is_real_time = matches!(thread.class, SchedulingClass::Fifo | SchedulingClass::RoundRobin);
        let party = Party {
            id: 0,
            pid: if parent.is_some() { None } else { Some(thread.pid) },
            parent_pid: parent,
            parent_comm: parent.and_then(|parent| Some(self.processes.get(&parent)?.comm.clone())),
            comm: process.map_or_else(|| thread.comm.clone(), |process| process.comm.clone()),
            kernel: thread.kernel,
            // Kernel threads are in the root cgroup unless they work for a program.
            cgroup: process
                .and_then(|process| process.cpu_cgroup.clone())
                .or_else(|| thread.kernel.then(|| "/".to_owned())),
            class: thread.class,
            rt_priority: if is_real_time { thread.rt_priority } else { 0 },
            nice: thread.nice,
            ended: 0,
        };
        (party, parent)
    }

    /// What short-lived processes ran that nobody saw.
    fn add_children(&mut self, children: BTreeMap<u32, Children>, books: &mut Books) {
        let mut most: Vec<(u32, Children)> = children.into_iter().collect();
        most.order_by_key(|(_, children)| std::cmp::Reverse(children.met));
        let mut reaped = HashMap::new();
        for (parent, met) in most.into_iter().take(MOST_PARENTS) {
            let Some(ticks) = ticks_of_children(&self.root, parent) else { continue };
            reaped.insert(parent, ticks);
            let Some(before) = self.reaped.get(&parent) else { continue };
            let unseen = (ticks.saturating_sub(*before) * TICK_NS).saturating_sub(met.ran);
            books.add_children(&met, unseen);
        }
        self.reaped = reaped;
    }

    /// Forgets who is gone.
    fn tidy(&mut self) {
        if self.threads.len() + self.processes.len() < 2 * self.kept + MORE {
            return;
        }
        let root = &self.root;
        let lives = |id: u32| root.path(&format!("/proc/{id}")).exists();
        self.threads.retain(|tid, _| lives(*tid));
        self.processes.retain(|pid, _| lives(*pid));
        self.kept = self.threads.len() + self.processes.len();
    }
}

/// Short-lived processes of one parent that were met.
#[derive(Debug, Default)]
struct Children {
    met: u64,
    ran: u64,
    /// Of the last one.
    party: u32,
    by_core: BTreeMap<u32, u64>,
}

impl Children {
    fn add(&mut self, party: u32, sums: &Sums) {
        self.met += 1;
        self.ran += sums.ran;
        self.party = party;
        for core in sums.by_core.keys() {
            *self.by_core.entry(*core).or_default() += 1;
        }
    }
}

/// Class, real-time priority, nice value, name, cgroup.
type Competes = (SchedulingClass, u8, i8, String, Option<String>);

/// The books of an interval.
#[derive(Debug, Default)]
struct Books {
    watched_ns: u64,
    ids: HashMap<(Option<u32>, Option<u32>, Competes), u32>,
    /// By id.
    parties: Vec<Party>,
    accounts: Vec<Account>,
    blocks: Vec<Block>,
    /// By core: thread, party, time.
    ran: BTreeMap<u32, Vec<(Option<u32>, u32, u64)>>,
    waited: BTreeMap<u32, Vec<(u32, u32, u64)>>,
}

impl Books {
    fn party(&mut self, party: Party) -> u32 {
        let Party { pid, parent_pid, class, rt_priority, nice, .. } = party;
        let competes = (class, rt_priority, nice, party.comm.clone(), party.cgroup.clone());
        *self.ids.entry((pid, parent_pid, competes)).or_insert_with(|| {
            let id = self.parties.len() as u32;
            self.parties.push(Party { id, ..party });
            id
        })
    }

    fn add(&mut self, tid: u32, party: u32, mut sums: Sums, throttled: u64, known: &Known, to: Time) {
        // Samples of an interval may reach back before it.
        let all = sums.ran.saturating_add(sums.waited).saturating_add(sums.blocked);
        let most = self.watched_ns as f64 / all.max(1) as f64;
        let cut = |ns: u64, part: f64| if part < 1.0 { (ns as f64 * part) as u64 } else { ns };
        let throttled = throttled.min(cut(sums.waited, most));
        let waits = 1.0 - throttled as f64 / cut(sums.waited, most).max(1) as f64;
        for (core, [ran, waited]) in std::mem::take(&mut sums.by_core) {
            self.ran.entry(core).or_default().push((Some(tid), party, cut(ran, most)));
            self.waited.entry(core).or_default().push((tid, party, cut(cut(waited, most), waits)));
        }
        let mut account = Account {
            party,
            tid: Some(tid),
            ran_ns: cut(sums.ran, most),
            waited_ns: cut(sums.waited, most) - throttled,
            throttled_ns: throttled,
            blocked_ns: cut(sums.blocked, most),
            longest_wait_ns: sums.longest_wait,
            runs: sums.runs,
            waits: sums.runs + u64::from(known.waits_since.is_some()),
            open_wait_ns: known.waits_since.map_or(0, |since| to.since(since).as_nanos() as u64),
            ..Account::default()
        };
        let told = account.ran_ns + account.waited_ns + throttled + account.blocked_ns;
        account.slept_ns = self.watched_ns.saturating_sub(told);
        if account.blocked_ns >= LEAST_BLOCK.as_nanos() as u64 {
            self.blocks.push(Block {
                party,
                tid: Some(tid),
                ns: account.blocked_ns,
                longest_ns: sums.longest_block,
                times: 1,
                since: known.blocked_since,
                stack: known.place.0.clone(),
                on: known.place.1.clone(),
                waker_comm: None,
            });
        }
        self.accounts.push(account);
    }

    /// On the cores where others of them were met, as far as nobody else had those.
    fn add_children(&mut self, met: &Children, unseen_ns: u64) {
        let times: u64 = met.by_core.values().sum();
        let mut ran_ns = 0;
        for (core, met_there) in &met.by_core {
            let ran = self.ran.entry(*core).or_default();
            let taken = ran.iter().map(|(_, _, ns)| ns).sum::<u64>();
            let share = (unseen_ns as f64 * *met_there as f64 / times.max(1) as f64) as u64;
            let share = share.min(self.watched_ns.saturating_sub(taken));
            ran.push((None, met.party, share));
            ran_ns += share;
        }
        if let Some(party) = self.parties.get_mut(met.party as usize) {
            party.ended = met.met;
        }
        self.accounts.push(Account { party: met.party, ran_ns, ..Account::default() });
    }

    fn ledger(self, from: Time, to: Time) -> WaitLedger {
        let mut charges: BTreeMap<(u32, u32, u32, Runner), u64> = BTreeMap::new();
        for (core, waits) in &self.waited {
            let runs = self.ran.get(core).map_or(&[][..], Vec::as_slice);
            for (tid, victim, ns) in waits.iter().filter(|(_, _, ns)| *ns > 0) {
                let others = || runs.iter().filter(|(runner, _, _)| *runner != Some(*tid));
                let all: u64 = others().map(|(_, _, ran)| ran).sum();
                let scale = *ns as f64 / all.max(*ns) as f64;
                let mut left = *ns;
                for (_, party, ran) in others() {
                    let part = ((*ran as f64 * scale) as u64).min(left);
                    left -= part;
                    *charges.entry((*victim, *tid, *core, Runner::Party(*party))).or_default() += part;
                }
                *charges.entry((*victim, *tid, *core, Runner::Unknown)).or_default() += left;
            }
        }
        let charge = |((victim, tid, core, to), ns)| Charge { victim, tid: Some(tid), to, core, ns };
        WaitLedger {
            from,
            to,
            method: LedgerMethod::Estimate,
            watched_ns: self.watched_ns,
            parties: self.parties,
            accounts: self.accounts,
            charges: charges.into_iter().map(charge).filter(|charge| charge.ns > 0).collect(),
            blocks: self.blocks,
            weights: Vec::new(),
            unbooked_ns: 0,
        }
    }
}

/// What the quotas of a cgroup and its ancestors took, at most.
fn known_throttled(throttled: &HashMap<String, (u64, u64)>, cgroup: Option<&str>) -> u64 {
    let mut path = cgroup.unwrap_or_default().trim_end_matches('/');
    let mut most = 0;
    while !path.is_empty() {
        most = most.max(throttled.get(path).map_or(0, |known| known.1));
        path = path.rfind('/').map_or("", |at| &path[..at]);
    }
    most
}

/// `None` if it is gone.
fn sample(root: &Root, pid: u32, at: Time, last: &ThreadSample) -> Option<ThreadSample> {
    let tid = last.key.tid;
    let text = root.read(&format!("/proc/{pid}/task/{tid}/stat")).ok()?;
    let stat = parse_stat(text.as_bytes()).ok().filter(|stat| stat.started == last.key.started)?;
    let times = root.read(&format!("/proc/{pid}/task/{tid}/schedstat")).ok()?;
    let sched = parse_schedstat(times.as_bytes()).ok();
    Some(ThreadSample { at, state: char::from(stat.state), core: stat.core, sched, ..*last })
}

/// USER_HZ is 100 on all architectures that we build for.
const TICK_NS: u64 = 10_000_000;

/// What the children that a process has waited for ran.
fn ticks_of_children(root: &Root, pid: u32) -> Option<u64> {
    let text = root.read(&format!("/proc/{pid}/stat")).ok()?;
    let stat = parse_stat(text.as_bytes()).ok()?;
    Some(stat.child_ticks)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_tree::tree;
    use coroner_evidence::{CoreSet, ThreadKey};

    const MS: u64 = 1_000_000;
    const START: Time = Time(1_000_000 * MS);

    /// Began long ago, on core 1.
    fn about(tid: u32) -> Thread {
        Thread {
            key: ThreadKey { tid, started: 1 },
            pid: tid,
            comm: format!("t{tid}"),
            affinity: Some(CoreSet::new([1])),
            ..Thread::default()
        }
    }

    /// `at` is in ms after the start.
    fn sample(tid: u32, at: u64, state: char, ran: u64, waited: u64) -> ThreadSample {
        ThreadSample {
            at: Time(START.0 + at * MS),
            key: ThreadKey { tid, started: 1 },
            state,
            core: 1,
            sched: Some(SchedTimes { run_ns: ran * MS, wait_ns: waited * MS, slices: ran }),
            ..ThreadSample::default()
        }
    }

    fn process(pid: u32, cgroup: &str) -> Process {
        Process { pid, started: 1, comm: format!("p{pid}"), cpu_cgroup: Some(cgroup.into()), ..Process::default() }
    }

    /// A line of /proc/PID/stat on core 1.
    fn stat(pid: u32, state: char, cutime: u64) -> String {
        let rest = "0 ".repeat(14);
        format!("{pid} (x) {state} 1 0 0 0 0 0 0 0 0 0 0 0 {cutime} 0 20 0 1 0 1 0 0 {rest}1 0 0\n")
    }

    struct Node {
        _dir: tempfile::TempDir,
        root: Root,
        estimate: Estimate,
    }

    impl Node {
        fn new(files: &[(&str, &str)], threads: &[u32]) -> Node {
            let dir = tree(files);
            let root = Root::at(dir.path());
            let mut estimate = Estimate::new(&root, START);
            estimate.note(&Evidence {
                threads: threads.iter().map(|tid| about(*tid)).collect(),
                processes: threads.iter().map(|pid| process(*pid, "/job/a")).collect(),
                thread_samples: threads.iter().map(|tid| sample(*tid, 0, 'R', 0, 0)).collect(),
                ..Evidence::default()
            });
            Node { _dir: dir, root, estimate }
        }

        fn close(&mut self, at: u64, thread_samples: Vec<ThreadSample>) -> WaitLedger {
            self.estimate.note(&Evidence { thread_samples, ..Evidence::default() });
            self.estimate.close(Time(START.0 + at * MS), &Places::new(&self.root)).expect("a ledger")
        }
    }

    fn account(ledger: &WaitLedger, tid: u32) -> &Account {
        ledger.accounts.iter().find(|account| account.tid == Some(tid)).expect("an account")
    }

    #[test]
    fn a_wait_without_end_is_told_once() {
        let mut node = Node::new(&[], &[7, 8]);
        // 7 never runs while 8 does.
        let first = node.close(1000, vec![sample(7, 1000, 'R', 0, 0), sample(8, 1000, 'R', 990, 0)]);
        let told = account(&first, 7);
        assert_eq!((told.waited_ns, told.slept_ns, told.open_wait_ns), (1000 * MS, 0, 1000 * MS));
        let to =
            |charge: &Charge| first.parties.iter().find(|p| Runner::Party(p.id) == charge.to).map(|p| p.comm.clone());
        let charged: Vec<_> = first.charges.iter().map(|charge| (to(charge), charge.ns / MS)).collect();
        assert_eq!(charged, [(Some("p8".to_owned()), 990), (None, 10)], "nobody is known to have had the rest");
        // Then schedstat has all of it.
        let second = node.close(2000, vec![sample(7, 2000, 'S', 300, 1500), sample(8, 2000, 'R', 1690, 300)]);
        let told = account(&second, 7);
        assert_eq!((told.ran_ns, told.waited_ns, told.slept_ns), (300 * MS, 500 * MS, 200 * MS));
        assert_eq!(second.method, LedgerMethod::Estimate);
        for account in first.accounts.iter().chain(&second.accounts) {
            assert_eq!(account.total_ns(), 1000 * MS);
        }
    }

    #[test]
    fn what_the_quota_took_was_not_taken_by_others() {
        let mut node = Node::new(&[], &[7, 8]);
        for (at, us) in [(0, 5), (900, 600_005)] {
            let mut seen = Evidence::default();
            seen.counters.push(Source::CgroupCpu, "/job", "throttled_us", Time(START.0 + at * MS), us);
            node.estimate.note(&seen);
        }
        let ledger = node.close(1000, vec![sample(7, 1000, 'R', 200, 700), sample(8, 1000, 'R', 300, 0)]);
        let told = account(&ledger, 7);
        assert_eq!((told.ran_ns, told.waited_ns, told.throttled_ns), (200 * MS, 100 * MS, 600 * MS));
        assert_eq!(ledger.charges.iter().map(|charge| charge.ns).sum::<u64>(), 100 * MS);
    }

    #[test]
    fn a_thread_that_hangs_is_blocked() {
        let files = [
            ("/proc/7/task/7/stat", stat(7, 'D', 0)),
            ("/proc/7/task/7/schedstat", "0 0 0\n".to_owned()),
            ("/proc/7/task/7/stack", "[<0>] schedule+0x1/0x2\n[<0>] folio_wait_bit+0x1/0x2\n".to_owned()),
        ];
        let mut node = Node::new(&files.each_ref().map(|(path, text)| (*path, text.as_str())), &[7]);
        node.close(100, vec![sample(7, 100, 'D', 0, 0)]);
        // Nothing is reported of it from now on.
        let ledger = node.close(1100, vec![]);
        let [block] = ledger.blocks.as_slice() else { panic!("{ledger:?}") };
        assert_eq!((block.ns, block.since), (1000 * MS, Some(Time(START.0 + 100 * MS))));
        assert_eq!(block.stack, ["folio_wait_bit"]);
    }

    #[test]
    fn children_that_nobody_saw_are_known_by_their_parents_account() {
        let mut node = Node::new(&[("/proc/9/stat", &stat(9, 'S', 0))], &[7, 9]);
        let ticks = |at: u64| START.0 / MS / 10 + at / 10;
        for (second, child) in [(0, 20), (1, 21)] {
            let at = second * 1000;
            let key = ThreadKey { tid: child, started: ticks(at + 950) };
            let seen = Evidence {
                threads: vec![Thread { key, ..about(child) }],
                processes: vec![Process {
                    ppid: 9,
                    started: key.started,
                    comm: "kid".into(),
                    ..process(child, "/job/a")
                }],
                thread_samples: vec![ThreadSample { key, ..sample(child, at + 990, 'R', 5, 5) }],
                ..Evidence::default()
            };
            node.estimate.note(&seen);
            std::fs::write(node.root.path("/proc/9/stat"), stat(9, 'S', second * 60)).unwrap();
            let ledger = node.close(
                at + 1000,
                vec![
                    sample(7, at + 1000, 'R', (second + 1) * 300, (second + 1) * 700),
                    sample(9, at + 1000, 'S', 0, 0),
                ],
            );
            if second == 1 {
                let kid = ledger.parties.iter().find(|party| party.comm == "kid").expect("the short-lived");
                assert_eq!((kid.pid, kid.parent_pid, kid.parent_comm.as_deref()), (None, Some(9), Some("p9")));
                let of_7 = ledger.charges.iter().filter(|charge| charge.tid == Some(7));
                let to_kids = of_7.filter(|charge| charge.to == Runner::Party(kid.id));
                assert_eq!(to_kids.map(|charge| charge.ns / MS).sum::<u64>(), 600);
            }
        }
    }
}
