//! What each core did, who owned it and who waited for it, derived from the evidence.
//!
//! Rules share one instance, [`crate::Case::cores`].

pub mod cited;
pub mod owners;
#[cfg(test)]
pub mod scene;
pub mod threads;
pub mod timeline;
pub mod traffic;
pub mod waits;
pub mod words;

use crate::finding::Answer;
use coroner_evidence::{Evidence, Nic, NicQueue, Order, ThreadSample, Time, Window, probe};
use owners::{Charges, Ownership, Sharer};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;
use threads::Threads;
use timeline::{Averages, Saturation, Shares, Stretch, Timeline};
use waits::{Harm, Victim, Waits};

/// The other cores have room if they average less than this: the scheduler would have moved threads there.
pub const ROOM: f64 = 0.8;

/// A thread with this share of its run time in the kernel is busy there, not just passing through.
pub const IN_KERNEL: f64 = 0.9;
/// After a longer watch a finding says when it happened.
const LONG_WATCH: Duration = Duration::from_secs(15);
/// A reign that covers this share of a stretch stands for all of it, unless more than `MUCH` is missing at an end.
const NEARLY_ALL: f64 = 0.9;
const MUCH: Duration = Duration::from_secs(2);
/// If many threads owned a core in turn, only this many get a finding: nobody reads fifty.
const MOST_OWNERS: usize = 3;
/// Threads pinned to a core share it if together they have this share of its busy time …
const SHARED: f64 = 0.8;
/// … and the first has at most this many times the run time of the second.
const ALIKE: f64 = 1.5;
/// Two threads that share a core each wait half of the time, less what others use.
const HALF: f64 = 0.45;

/// On a core that others can use, at least this many slices a second go to them: the kernel's own threads alone need some.
const TURNS_PER_SECOND: f64 = 2.0;

pub struct Cores<'a> {
    pub evidence: &'a Evidence,
    pub timeline: Timeline,
    pub threads: Threads<'a>,
    pub charges: Charges,
    pub waits: Waits,
    /// Each device once, as last seen.
    pub nics: Vec<&'a Nic>,
}

/// A core that was full for a second or more.
#[derive(Debug, Clone)]
pub struct FullCore {
    pub core: u32,
    /// The clearest stretch: one owned by a single thread first, then the longest.
    pub stretch: Stretch,
    /// All stretches, oldest first.
    pub windows: Vec<Window>,
    /// Their total length.
    pub total_ns: u64,
    /// Further owners that get no finding of their own: how many, and for how long in total.
    pub more_owners: (usize, u64),
    /// The average of the other cores meanwhile; `None` on a node with one core.
    pub others: Option<Shares>,
    /// The average of all cores meanwhile: what a dashboard shows.
    pub node: Shares,
    pub ownership: Ownership,
    pub victims: Vec<Victim>,
    /// The threads pinned to it that run there.
    pub pinned: Vec<Sharer>,
}

impl FullCore {
    /// Merges them: the first, with the windows of all.
    fn together(all: Vec<FullCore>) -> Option<FullCore> {
        let total_ns = all.iter().map(|f| f.total_ns).fold(0u64, u64::saturating_add);
        let mut windows: Vec<Window> = all.iter().flat_map(|f| f.windows.iter().copied()).collect();
        windows.order_by_key(|window| window.from);
        all.into_iter().next().map(|first| FullCore { windows, total_ns, ..first })
    }

    /// The thread that owns it, if a single one does.
    pub fn only_thread(&self) -> Option<u32> {
        self.ownership.owner().filter(|_| self.ownership.is_one_thread())?.who().map(|who| who.tid)
    }

    /// ` 3 more threads owned the core at other times, 6.6 s in total.`; empty if there were none.
    pub fn more_owners_text(&self) -> String {
        match self.more_owners {
            (0, _) => String::new(),
            (1, ns) => format!(" One more thread owned the core at another time, for {}.", words::span(ns)),
            (n, ns) => format!(" {n} more threads owned the core at other times, {} in total.", words::span(ns)),
        }
    }

    /// The end of its last full stretch.
    pub fn until(&self) -> Time {
        self.windows.iter().map(|window| window.to).max().unwrap_or(self.stretch.window.to)
    }

    /// The start of its first full stretch.
    pub fn since(&self) -> Time {
        self.windows.first().map_or(self.stretch.window.from, |window| window.from)
    }

    /// Whether both are about the same core at the same time.
    pub fn overlaps(&self, other: &FullCore) -> bool {
        let mut pairs = self.windows.iter().flat_map(|own| other.windows.iter().map(move |others| (own, others)));
        self.core == other.core && pairs.any(|(own, others)| own.from < others.to && others.from < own.to)
    }

    /// Threads pinned to this core share it about equally: none owns it, and none can leave.
    pub fn is_shared_by_pinned(&self) -> bool {
        let [first, second, ..] = self.pinned.as_slice() else { return false };
        let together = self.pinned.iter().fold(0.0, |sum, s| sum + s.share);
        let by_rank = self.ownership.owner().and_then(|o| o.who()).is_some_and(|who| who.class.is_real_time());
        !by_rank && together >= SHARED && first.share <= ALIKE * second.share
    }

    /// They share it, and one of them waited about half of the time or more.
    pub fn is_crowded_by_pinning(&self) -> bool {
        let half = HALF * self.stretch.window.length().as_nanos() as f64;
        let crowded = |v: &Victim| v.harm == Harm::Crowded || self.pinned.iter().any(|s| s.line == v.line);
        self.is_shared_by_pinned() && self.victims.iter().any(|v| crowded(v) && v.waited_ns as f64 >= half)
    }

    pub fn others_have_room(&self) -> bool {
        self.others.is_some_and(|others| others.busy() < ROOM)
    }

    /// A real-time thread keeps ordinary ones off: that is never just taking turns, however full the node is.
    pub fn is_outranked(&self) -> bool {
        let real_time = self.ownership.owner().and_then(|o| o.who()).is_some_and(|who| who.class.is_real_time());
        real_time && self.victims.iter().any(|v| v.harm == Harm::Starved && !v.who.class.is_real_time())
    }

    /// A thread in the kernel kept a kernel thread waiting longer than any slice lasts: it could not be preempted, or its cgroup
    /// far outweighs kernel threads.
    pub fn is_stuck(&self) -> bool {
        let in_kernel =
            self.ownership.owner().is_some_and(|o| o.who().is_some() && o.system_share.is_some_and(|s| s >= IN_KERNEL));
        in_kernel && self.victims.iter().any(|v| v.who.kernel && v.longest_ns >= waits::VICTIM_WAITED_NS)
    }

    /// A thread was kept off in a way that a full node does not explain.
    pub fn is_unfair(&self) -> bool {
        self.is_outranked() || self.is_stuck()
    }
}

/// All cores for the `cores` command.
#[derive(Debug, Clone, Serialize)]
pub struct Summary {
    #[serde(skip)]
    pub window: Window,
    /// The average of all cores over the window.
    pub average: Shares,
    /// The core that was busiest in the kernel, or else busiest, over any one second.
    pub worst: Option<u32>,
    pub cores: Vec<CoreSummary>,
}

#[derive(Debug, Clone, Serialize)]
pub struct CoreSummary {
    pub core: u32,
    /// Over the window.
    pub shares: Shares,
    /// The window in equal parts; `None` where the core was not seen.
    pub strip: Vec<Option<Shares>>,
    /// How long it was full, in stretches of a second or more.
    pub full_ns: u64,
    pub ownership: Ownership,
    /// `eth0 rx-3`: NIC queues that no other core serves.
    pub queues: Vec<String>,
}

impl<'a> Cores<'a> {
    /// The answer of a rule that needs a second of core times ([`Timeline::lasts`]) if there is none.
    pub fn not_watched(&self) -> Answer {
        let unseen = self.evidence.why_unseen(probe::CORES);
        Answer::CannotTell {
            because: unseen
                .map_or_else(|| "the cores were watched for less than a second".to_owned(), |u| u.why.clone()),
            how_to_see: unseen.map_or_else(|| "watch for at least 2 s: --for 5s".to_owned(), |u| u.how_to_see.clone()),
        }
    }

    /// ` from 10:22:24.0Z` if the watch was long; empty otherwise.
    pub fn when(&self, at: Time) -> String {
        let long = self.evidence.window().is_some_and(|window| window.length() > LONG_WATCH);
        let Some(clocks) = self.evidence.clocks.last().filter(|_| long) else { return String::new() };
        let tenths = clocks.wall_of(at).0 / 100_000_000;
        let of_day = tenths / 10 % 86_400;
        format!(" from {:02}:{:02}:{:02}.{}Z", of_day / 3600, of_day / 60 % 60, of_day % 60, tenths % 10)
    }

    pub fn of(evidence: &'a Evidence) -> Cores<'a> {
        let timeline = Timeline::of(evidence);
        let threads = Threads::of(evidence);
        let charges = Charges::of(&threads);
        let waits = Waits::of(evidence, &threads);
        let mut nics: BTreeMap<(&Option<String>, &str), &Nic> = BTreeMap::new();
        for nic in &evidence.nics {
            let latest = nics.entry((&nic.netns, &nic.name)).or_insert(nic);
            if nic.at >= latest.at {
                *latest = nic;
            }
        }
        Cores { evidence, timeline, threads, charges, waits, nics: nics.into_values().collect() }
    }

    /// From the first to the last look at the cores.
    pub fn window(&self) -> Option<Window> {
        let times = || self.evidence.core_times.iter().map(|look| look.at);
        Some(Window { from: times().min()?, to: times().max()? })
    }

    pub fn owner(&self, core: u32, window: Window) -> Ownership {
        self.charges.owner(self.evidence, &self.threads, &self.timeline, core, window)
    }

    /// Who was kept off a core within a window; the owner does not count.
    pub fn victims(&self, core: u32, window: Window, ownership: &Ownership) -> Vec<Victim> {
        let mut victims = self
            .waits
            .victims(&self.threads, core, &[window], |line| self.charges.run_ns(&self.timeline, core, line, window));
        let owner = ownership.owner().and_then(|o| o.who());
        let by_rank = owner.is_some_and(|who| who.class.is_real_time());
        // While the hypervisor has the core every thread on it waits, and nothing on the node is to blame.
        let stolen = self.timeline.shares(core, window).map_or(0.0, |s| s.steal) * window.length().as_nanos() as f64;
        victims.retain(|victim| {
            if victim.waited_ns.saturating_sub(stolen as u64) < waits::VICTIM_WAITED_NS {
                return false;
            }
            let is_owner = owner.is_some_and(|who| who.tid == victim.who.tid);
            // A niced thread asked to run last: waiting for ordinary ones does not harm it.
            let humble = victim.who.nice > 0 && !by_rank;
            // We are not the patient. But if a real-time thread kept us off, it kept everybody off.
            let ourselves = self.threads.lines[victim.line].observer && !by_rank;
            !is_owner && !humble && !ourselves
        });
        victims
    }

    /// Its owner works in the kernel without being stuck or in the way: other threads ran at once, and the owner may run on
    /// other cores.
    pub fn is_free(&self, full: &FullCore) -> bool {
        let may_leave = |who: &threads::Who| who.affinity.as_ref().is_some_and(|cores| cores.single().is_none());
        let owner = full.ownership.owner().and_then(|owner| owner.who());
        full.victims.is_empty()
            && owner.is_some_and(|who| !who.kernel && may_leave(who))
            && self.others_ran_at_once(full.core, full.stretch.window, &full.ownership)
    }

    /// Whether threads other than the owner ran on a core within a window, and none was seen to wait long for it.
    fn others_ran_at_once(&self, core: u32, window: Window, ownership: &Ownership) -> bool {
        let owner = ownership.owner().and_then(|o| o.who()).map(|who| who.tid);
        let inside =
            |pair: &&[ThreadSample]| pair.iter().all(|sample| sample.core == core && window.contains(sample.at));
        let turns = |pair: &[ThreadSample]| match (pair[0].sched, pair[1].sched) {
            (Some(before), Some(after)) => after.slices.saturating_sub(before.slices),
            _ => 0,
        };
        let others = self.threads.lines.iter().filter(|line| Some(line.key.tid) != owner);
        let ran: u64 = others.flat_map(|line| line.samples.windows(2).filter(inside).map(turns)).sum();
        let seconds = window.length().as_secs_f64();
        let is_other = |line: usize| Some(self.threads.lines[line].key.tid) != owner;
        ran as f64 >= TURNS_PER_SECOND * seconds
            && self.waits.longest_within(core, window, is_other) < waits::LONG_WAIT_NS
    }

    /// The NIC queues that no other core serves.
    pub fn queues(&self, core: u32) -> Vec<(&'a Nic, &'a NicQueue)> {
        self.nics
            .iter()
            .flat_map(|nic| nic.queues.iter().map(move |queue| (*nic, queue)))
            .filter(|(_, queue)| queue.needs_core(core))
            .collect()
    }

    /// `eth0 rx-3`
    pub fn queue_names(&self, core: u32) -> Vec<String> {
        self.queues(core).iter().map(|(nic, queue)| format!("{} {}", nic.display_name(), queue.label())).collect()
    }

    /// The cores that were full, each with its clearest stretch among those that pass `accept`.
    pub fn full(&self, saturation: Saturation, accept: impl Fn(&FullCore) -> bool) -> Vec<FullCore> {
        let by_core = self.full_apart(saturation, accept).into_values();
        by_core.filter_map(FullCore::together).collect()
    }

    /// The same, but one entry for each owner of a core: in a recording of minutes these are separate events. The clearest of
    /// each core come first.
    pub fn full_by_owner(&self, saturation: Saturation, accept: impl Fn(&FullCore) -> bool) -> Vec<FullCore> {
        let mut full = Vec::new();
        for apart in self.full_apart(saturation, accept).into_values() {
            let mut by_owner: Vec<(Option<u32>, Vec<FullCore>)> = Vec::new();
            for stretch in apart {
                let owner = stretch.only_thread();
                match by_owner.iter_mut().find(|(known, _)| *known == owner) {
                    Some((_, same)) => same.push(stretch),
                    None => by_owner.push((owner, vec![stretch])),
                }
            }
            let rest = by_owner.split_off(by_owner.len().min(MOST_OWNERS));
            let rest_ns = rest.iter().flat_map(|(_, same)| same).map(|f| f.total_ns).fold(0, u64::saturating_add);
            let told = full.len();
            full.extend(by_owner.into_iter().filter_map(|(_, same)| FullCore::together(same)));
            if let Some(first) = full.get_mut(told) {
                first.more_owners = (rest.len(), rest_ns);
            }
        }
        full
    }

    /// By core, the stretches that pass `accept` and do not overlap, the clearest first.
    fn full_apart(&self, saturation: Saturation, accept: impl Fn(&FullCore) -> bool) -> BTreeMap<u32, Vec<FullCore>> {
        let mut by_core: BTreeMap<u32, Vec<Stretch>> = BTreeMap::new();
        for stretch in self.timeline.stretches(saturation) {
            by_core.entry(stretch.core).or_default().push(stretch);
        }
        // Cores that were full at the same time share one average.
        let mut averages: HashMap<(Time, Time), Averages> = HashMap::new();
        let mut full = BTreeMap::new();
        for (core, stretches) in by_core {
            let mut accepted: Vec<FullCore> = Vec::new();
            for stretch in stretches.into_iter().flat_map(|stretch| self.reigns(stretch)) {
                let window = stretch.window;
                let averages =
                    averages.entry((window.from, window.to)).or_insert_with(|| self.timeline.averages(window));
                accepted.push(self.full_core(stretch, averages));
            }
            accepted.retain(&accept);
            // A stretch of one thread says more than a longer one that contains it.
            if accepted.iter().any(|f| f.ownership.is_one_thread()) {
                accepted.retain(|f| f.ownership.is_one_thread());
            }
            // The clearest first (the owner's share in steps of a fifth), then the longest.
            let clarity = |f: &FullCore| f.ownership.owner().map_or(0, |o| (o.share * 5.0).round() as u32);
            accepted.order_by_key(|f| std::cmp::Reverse((clarity(f), f.total_ns)));
            let mut apart: Vec<Window> = Vec::new();
            accepted.retain(|f| {
                let window = f.stretch.window;
                let is_apart = apart.iter().all(|a| window.to <= a.from || a.to <= window.from);
                apart.extend(is_apart.then_some(window));
                is_apart
            });
            full.insert(core, accepted);
        }
        full
    }

    /// If one thread had the core for part of a stretch only, that part becomes a stretch of its own.
    fn reigns(&self, stretch: Stretch) -> Vec<Stretch> {
        let reigns = self.charges.reigns(stretch.core, stretch.window);
        let whole = stretch.window.length().mul_f64(NEARLY_ALL);
        if stretch.saturation == Saturation::Kernel || reigns.is_empty() {
            return vec![stretch];
        }
        let line = self.timeline.lines.get(&stretch.core);
        if let Some(reign) = reigns.iter().find(|reign| reign.length() >= whole) {
            // A tenth of a long stretch is long, too: cut it off.
            let window = Window {
                from: if reign.from.since(stretch.window.from) > MUCH { reign.from } else { stretch.window.from },
                to: if stretch.window.to.since(reign.to) > MUCH { reign.to } else { stretch.window.to },
            };
            let shares = line.and_then(|line| line.shares(window)).unwrap_or(stretch.shares);
            return vec![Stretch { window, shares, ..stretch }];
        }
        reigns
            .into_iter()
            .filter_map(|window| Some(Stretch { window, shares: line?.shares(window)?, ..stretch }))
            .chain([stretch])
            .collect()
    }

    fn full_core(&self, stretch: Stretch, averages: &Averages) -> FullCore {
        let ownership = self.owner(stretch.core, stretch.window);
        FullCore {
            core: stretch.core,
            windows: vec![stretch.window],
            more_owners: (0, 0),
            total_ns: stretch.window.length().as_nanos() as u64,
            others: averages.without(&stretch.shares),
            node: averages.all().unwrap_or_default(),
            victims: self.victims(stretch.core, stretch.window, &ownership),
            pinned: self.charges.pinned(&self.threads, &self.timeline, stretch.core, stretch.window),
            ownership,
            stretch,
        }
    }

    /// Why waiting threads cannot be seen, if so: (because, how to see).
    pub fn waits_hidden(&self) -> Option<(String, String)> {
        use coroner_evidence::probe;
        let unseen = self.evidence.why_unseen(probe::TASKS).or(self.evidence.why_unseen(probe::RUN_QUEUE));
        let or_else = |because: &str, how: &str| match unseen {
            Some(unseen) => (format!("{because} ({})", unseen.why), unseen.how_to_see.clone()),
            None => (because.to_owned(), how.to_owned()),
        };
        if self.threads.lines.is_empty() {
            return Some(or_else(
                "no thread was sampled",
                "run in the host's PID namespace, where /proc shows every process (as root if hidepid is set)",
            ));
        }
        if !self.threads.show_waits() {
            return Some(or_else(
                "the run-queue waits of threads could not be read",
                "needs /proc/PID/task/TID/schedstat: run as root, on a kernel with CONFIG_SCHED_INFO",
            ));
        }
        if !self.threads.show_kernel_threads() {
            return Some(or_else(
                "kernel threads, the first to starve, are hidden",
                "run as root in the host's PID namespace, without hidepid",
            ));
        }
        None
    }

    /// Everything the `cores` command shows, the window cut into `parts`.
    pub fn summary(&self, parts: usize) -> Option<Summary> {
        let window = self.window()?;
        let mut full_ns: BTreeMap<u32, u64> = BTreeMap::new();
        for stretch in self.timeline.stretches(Saturation::Busy) {
            *full_ns.entry(stretch.core).or_default() += stretch.window.length().as_nanos() as u64;
        }
        let cores = self.timeline.lines.iter().filter_map(|(core, line)| {
            Some(CoreSummary {
                core: *core,
                shares: line.shares(window)?,
                strip: line.strip(window, parts),
                full_ns: full_ns.get(core).copied().unwrap_or(0),
                ownership: self.owner(*core, window),
                queues: self.queue_names(*core),
            })
        });
        let worst_kernel = self.timeline.worst(Shares::kernel).filter(|(_, share)| *share >= timeline::SATURATED);
        Some(Summary {
            window,
            average: self.timeline.average(window)?,
            worst: worst_kernel.or_else(|| self.timeline.worst(Shares::busy)).map(|(core, _)| core),
            cores: cores.collect(),
        })
    }
}

#[cfg(test)]
mod tests;
