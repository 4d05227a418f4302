//! What each core did, who owned it and who waited for it, derived from the evidence.
//!
//! [`Cores::of`] is cheap (milliseconds for 192 cores and 300 looks), so each rule builds its own.

pub mod cited;
pub mod made;
pub mod owners;
#[cfg(test)]
pub mod scene;
pub mod threads;
pub mod timeline;
pub mod traffic;
pub mod waits;
pub mod words;

use coroner_evidence::{Evidence, Nic, NicQueue, ThreadSample, Time, Window};
use made::shared;
use owners::{Charges, Ownership, Sharer};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;
use threads::{ThreadSamples, Threads};
use timeline::{Averages, Saturation, Shares, Stretch, Timeline};
use waits::{Harm, Victim, Waits};

/// The other cores have room while their average is below this: threads that may move would have been moved there. With
/// two cores the average of the others is the one other core.
pub const ROOM: f64 = 0.8;

/// A thread that spends this part of its run time in the kernel is there for one thing.
pub const IN_KERNEL: f64 = 0.9;
/// In a longer watch one asks when it was.
const LONG_WATCH: Duration = Duration::from_secs(15);
/// A reign of at least this part of a stretch is the stretch.
const NEARLY_ALL: f64 = 0.9;
/// Threads that are pinned to a core share it if they have this part of its busy time together …
const SHARED: f64 = 0.8;
/// … and the first has at most so many times what the second has.
const ALIKE: f64 = 1.5;
/// Half of the time, with a little left to others: two threads that share a core wait half of the time each.
const HALF: f64 = 0.45;

/// Others have their turn so often on a core that is free to them: of the kernel's own threads alone some run there each second.
const TURNS_PER_SECOND: f64 = 2.0;

pub struct Cores<'a> {
    pub evidence: &'a Evidence,
    pub timeline: Arc<Timeline>,
    pub threads: Threads<'a>,
    pub charges: Arc<Charges>,
    pub waits: Arc<Waits>,
    /// Each device once, as last seen.
    pub nics: Vec<&'a Nic>,
}

/// A core that was full for a second or more, with all that matters about it.
#[derive(Debug, Clone)]
pub struct FullCore {
    pub core: u32,
    /// The stretch that tells most: one thread's before many's, of equals the longest.
    pub stretch: Stretch,
    /// How many there were, and how long together.
    pub stretches: usize,
    pub total_ns: u64,
    /// The average of the other cores meanwhile; `None` on a node with one core.
    pub others: Option<Shares>,
    /// The average of all cores meanwhile: what a dashboard shows.
    pub node: Shares,
    pub ownership: Ownership,
    pub victims: Vec<Victim>,
    /// The threads that are pinned to it and work there.
    pub pinned: Vec<Sharer>,
}

impl FullCore {
    /// Threads that are pinned to this core have it together, about alike: none of them owns it, and none can leave.
    pub fn is_shared_by_pinned(&self) -> bool {
        let [first, second, ..] = self.pinned.as_slice() else { return false };
        let together = self.pinned.iter().fold(0.0, |sum, s| sum + s.share);
        let by_rank = self.ownership.owner().and_then(|o| o.who()).is_some_and(|who| who.class.is_real_time());
        !by_rank && together >= SHARED && first.share <= ALIKE * second.share
    }

    /// They share it, and one of them waited for about half of the time or more.
    pub fn is_crowded_by_pinning(&self) -> bool {
        let half = HALF * self.stretch.window.length().as_nanos() as f64;
        let crowded = |v: &Victim| v.harm == Harm::Crowded || self.pinned.iter().any(|s| s.line == v.line);
        self.is_shared_by_pinned() && self.victims.iter().any(|v| crowded(v) && v.waited_ns as f64 >= half)
    }

    pub fn others_have_room(&self) -> bool {
        self.others.is_some_and(|others| others.busy() < ROOM)
    }

    /// A real-time thread keeps ordinary ones off: that is never a matter of taking turns, however full the node is.
    pub fn is_outranked(&self) -> bool {
        let real_time = self.ownership.owner().and_then(|o| o.who()).is_some_and(|who| who.class.is_real_time());
        real_time && self.victims.iter().any(|v| v.harm == Harm::Starved && !v.who.class.is_real_time())
    }

    /// A thread in the kernel kept a kernel thread off for long in one go. No slice lasts that long: it could not be preempted, or
    /// its cgroup weighs far more than kernel threads do.
    pub fn is_stuck(&self) -> bool {
        let in_kernel =
            self.ownership.owner().is_some_and(|o| o.who().is_some() && o.system_share.is_some_and(|s| s >= IN_KERNEL));
        in_kernel && self.victims.iter().any(|v| v.who.kernel && v.longest_ns >= waits::VICTIM_WAITED_NS)
    }

    /// Somebody was kept off in a way that is no matter of turns, however full the node is.
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
    /// When it was full for a second or more.
    pub full_ns: u64,
    pub ownership: Ownership,
    /// `eth0 rx-3`: NIC queues that no other core serves.
    pub queues: Vec<String>,
}

impl<'a> Cores<'a> {
    /// `, from 10:22:24.0Z on`, where so much was watched that one must ask.
    pub fn when(&self, at: Time) -> String {
        let long = self.evidence.window().is_some_and(|window| window.length() > LONG_WATCH);
        let Some(clocks) = self.evidence.clocks.last().filter(|_| long) else { return String::new() };
        let tenths = clocks.real_ns_of(at) / 100_000_000;
        let of_day = tenths / 10 % 86_400;
        format!(", from {:02}:{:02}:{:02}.{}Z on", of_day / 3600, of_day / 60 % 60, of_day % 60, tenths % 10)
    }

    pub fn of(evidence: &'a Evidence) -> Cores<'a> {
        let timeline = shared(evidence, |parts| &mut parts.timeline, || Timeline::of(evidence));
        let samples = shared(evidence, |parts| &mut parts.samples, || ThreadSamples::of(evidence));
        let threads = Threads::of(evidence, &samples);
        let charges = shared(evidence, |parts| &mut parts.charges, || Charges::of(&threads));
        let waits = shared(evidence, |parts| &mut parts.waits, || Waits::of(evidence, &threads));
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
            .victims(&self.threads, core, window, |line| self.charges.run_ns(&self.timeline, core, line, window));
        let owner = ownership.owner().and_then(|o| o.who());
        let by_rank = owner.is_some_and(|who| who.class.is_real_time());
        // While the hypervisor has the core everybody on it waits, and nobody on the node is to blame.
        let stolen = self.timeline.shares(core, window).map_or(0.0, |s| s.steal) * window.length().as_nanos() as f64;
        victims.retain(|victim| {
            if victim.waited_ns.saturating_sub(stolen as u64) < waits::VICTIM_WAITED_NS {
                return false;
            }
            let is_owner = owner.is_some_and(|who| who.tid == victim.who.tid);
            // Who asked to be served last is not wronged by waiting for its equals.
            let humble = victim.who.nice > 0 && !by_rank;
            // We are not the patient; but that we were kept off by rank proves that everybody was.
            let ourselves = self.threads.lines[victim.line].is_observer() && !by_rank;
            !is_owner && !humble && !ourselves
        });
        victims
    }

    /// Its owner is at work in the kernel, and neither stuck there nor in anybody's way: whoever came ran at once, and the owner itself may
    /// go elsewhere.
    pub fn is_free(&self, full: &FullCore) -> bool {
        let may_leave = |who: &threads::Who| who.affinity.as_ref().is_some_and(|cores| cores.single().is_none());
        let owner = full.ownership.owner().and_then(|owner| owner.who());
        full.victims.is_empty()
            && owner.is_some_and(|who| !who.kernel && may_leave(who))
            && self.others_ran_at_once(full.core, full.stretch.window, &full.ownership)
    }

    /// Whether threads other than the owner ran on a core within a window, and none of them was seen to wait long for it.
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

    /// The queues that cannot do without this core.
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

    /// The cores that were full, each with the stretch that tells most of those that pass `accept`.
    pub fn full(&self, saturation: Saturation, accept: impl Fn(&FullCore) -> bool) -> Vec<FullCore> {
        let mut by_core: BTreeMap<u32, Vec<Stretch>> = BTreeMap::new();
        for stretch in self.timeline.stretches(saturation) {
            by_core.entry(stretch.core).or_default().push(stretch);
        }
        // Cores that were full together were full at the same time: the average is the same for all of them.
        let mut averages: HashMap<(Time, Time), Averages> = HashMap::new();
        let mut full = Vec::new();
        for (core, stretches) in by_core {
            let mut accepted: Vec<FullCore> = Vec::new();
            for stretch in stretches.into_iter().flat_map(|stretch| self.reigns(stretch)) {
                let window = stretch.window;
                let averages =
                    averages.entry((window.from, window.to)).or_insert_with(|| self.timeline.averages(window));
                accepted.push(self.full_core(stretch, averages));
            }
            accepted.retain(&accept);
            // What one thread did says more than what all did together, which may contain it.
            if accepted.iter().any(|f| f.ownership.is_one_thread()) {
                accepted.retain(|f| f.ownership.is_one_thread());
            }
            // The clearest first (in steps of a fifth), of equals the longest.
            let clarity = |f: &FullCore| f.ownership.owner().map_or(0, |o| (o.share * 5.0).round() as u32);
            accepted.sort_by_key(|f| std::cmp::Reverse((clarity(f), f.total_ns)));
            let mut apart: Vec<Window> = Vec::new();
            accepted.retain(|f| {
                let window = f.stretch.window;
                let is_apart = apart.iter().all(|a| window.to <= a.from || a.to <= window.from);
                apart.extend(is_apart.then_some(window));
                is_apart
            });
            let count = accepted.len();
            let total_ns = accepted.iter().map(|f| f.total_ns).fold(0u64, u64::saturating_add);
            if let Some(longest) = accepted.into_iter().next() {
                full.push(FullCore { core, stretches: count, total_ns, ..longest });
            }
        }
        full
    }

    /// A stretch in which the core was taken by one thread for a part of the time only is about that part.
    fn reigns(&self, stretch: Stretch) -> Vec<Stretch> {
        let reigns = self.charges.reigns(stretch.core, stretch.window);
        let whole = stretch.window.length().mul_f64(NEARLY_ALL);
        if stretch.saturation == Saturation::Kernel || reigns.is_empty() || reigns.iter().any(|r| r.length() >= whole) {
            return vec![stretch];
        }
        let line = self.timeline.lines.get(&stretch.core);
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
            stretches: 1,
            total_ns: stretch.window.length().as_nanos() as u64,
            others: averages.without(&stretch.shares),
            node: averages.all().unwrap_or_default(),
            victims: self.victims(stretch.core, stretch.window, &ownership),
            pinned: self.charges.pinned(&self.threads, &self.timeline, stretch.core, stretch.window),
            ownership,
            stretch,
        }
    }

    /// Why victims cannot be told, if so: (because, how to see).
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
                "run in the node's own PID namespace, where /proc shows every process (as root if hidepid is set)",
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
                "kernel threads could not be seen, which are the first to starve",
                "run as root in the node's own PID namespace, without hidepid",
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
mod tests {
    use super::scene::{Actor, Doing, Kind, Scene, time};
    use super::*;
    use crate::rules;
    use coroner_evidence::tasks::{SchedTimes, SchedulingClass};
    use coroner_evidence::{
        Clocks, CoreSet, CoreTicks, CoreTimes, MapSource, NicQueue, Process, QueueKind, Source, Thread, ThreadKey,
        ThreadSample,
    };
    use proptest::prelude::*;

    #[test]
    fn the_summary_shows_the_one_core_that_the_average_hides() {
        let evidence = Scene::new(96, 5.0)
            .load(39, 1.0, 4.0, Kind::System, 1.0)
            .load(7, 0.0, 5.0, Kind::User, 1.0)
            .with(
                Actor::new(50, "kubelet", 39)
                    .in_kernel()
                    .until(1.0, Doing::Sleep)
                    .until(4.0, Doing::Run)
                    .until(99.0, Doing::Sleep),
            )
            .nic("eth0", 39)
            .evidence();
        let summary = Cores::of(&evidence).summary(10).unwrap();
        assert_eq!((summary.cores.len(), summary.worst), (96, Some(39)));
        assert!(summary.average.busy() < 0.02, "{:?}", summary.average);
        let bad = &summary.cores[39];
        assert_eq!(bad.queues, ["eth0 rx-0"]);
        assert_eq!(bad.ownership.name(), "kubelet[50]");
        assert_eq!(bad.full_ns, 3_000_000_000);
        let strip: Vec<i64> = bad.strip.iter().map(|s| (s.unwrap().kernel() * 10.0).round() as i64).collect();
        assert_eq!(strip, [0, 0, 10, 10, 10, 10, 10, 10, 0, 0]);
    }

    #[test]
    fn the_reign_of_one_thread_is_found_on_a_core_that_is_always_busy() {
        for seconds in [5.0, 10.0] {
            // Five or ten seconds of compiling on both cores; for three of them a real-time thread has core 1.
            let busy = Doing::Turns { run: 0.45, wait: 0.5, slices: 100.0 };
            let mut scene = Scene::new(2, seconds).all_cores(Kind::User, 1.0);
            for tid in [60, 61] {
                let cc = Actor::new(tid, "cc1plus", 1).until(1.0, busy).until(4.0, Doing::Wait).until(99.0, busy);
                scene = scene.with(cc);
            }
            let spin = Actor::new(50, "spin", 1).fifo(50).pinned();
            let throttled = Doing::Turns { run: 0.95, wait: 0.05, slices: 1.0 };
            scene = scene.with(spin.until(1.0, Doing::Sleep).until(4.0, throttled).until(99.0, Doing::Sleep));
            let evidence = scene.evidence();
            let crate::Answer::Findings(found) = rules::core_monopolised::examine(&evidence) else { panic!() };
            assert_eq!((found.len(), found[0].subject.name.as_str()), (1, "spin[50]"));
            let crate::Answer::Findings(found) = rules::core_saturated::examine(&evidence) else { panic!() };
            assert!(
                found[0].title.starts_with("core 1 was 100 % busy for 3.0 s, owned by spin[50]"),
                "{}",
                found[0].title
            );
        }
    }

    #[test]
    fn time_stolen_by_the_hypervisor_makes_no_victims() {
        let mut evidence = Scene::new(2, 5.0)
            .load(1, 0.0, 5.0, Kind::User, 0.6)
            .with(Actor::new(50, "train", 1).until(99.0, Doing::Turns { run: 0.6, wait: 0.4, slices: 5.0 }))
            .with(Actor::kernel(31, "kworker/1:1", 1).until(99.0, Doing::Turns { run: 0.0, wait: 0.3, slices: 5.0 }))
            .evidence();
        let victims = |evidence: &Evidence| {
            let cores = Cores::of(evidence);
            cores.full(Saturation::Busy, |_| true).iter().map(|f| f.victims.len()).sum::<usize>()
        };
        // The 40 % that are missing are stolen, or the kernel's own.
        for look in &mut evidence.core_times {
            look.cores[1].steal = look.cores[1].idle;
            look.cores[1].idle = 0;
        }
        assert_eq!(victims(&evidence), 0);
        for look in &mut evidence.core_times {
            look.cores[1].system += look.cores[1].steal;
            look.cores[1].steal = 0;
        }
        assert_eq!(victims(&evidence), 1);
    }

    #[test]
    fn a_thread_that_moved_is_charged_half_to_each_core() {
        let mut evidence = Scene::new(4, 2.0)
            .load(1, 0.0, 1.0, Kind::User, 1.0)
            .load(2, 1.0, 2.0, Kind::User, 1.0)
            .with(Actor::new(50, "mover", 1).until(99.0, Doing::Run).rarely_sampled())
            .evidence();
        evidence.thread_samples.last_mut().unwrap().core = 2;
        let cores = Cores::of(&evidence);
        for core in [1, 2] {
            let owner = cores.owner(core, cores.window().unwrap());
            let share = owner.owner().unwrap().share;
            assert!((0.9..=1.0).contains(&share), "core {core}: {share}");
        }
    }

    #[test]
    fn a_thread_born_while_we_watched_is_charged_from_its_birth() {
        let mut evidence = Scene::new(2, 5.0).load(1, 1.0, 4.0, Kind::User, 1.0).evidence();
        // Boot clock and monotonic clock are 7 s apart: the node slept.
        let boot_offset = 7_000_000_000;
        evidence.clocks[0].boot_ns += boot_offset;
        let key = ThreadKey { tid: 60, started: (time(1.0).0 + boot_offset) / 10_000_000 };
        let mut sample = evidence.thread_samples[0];
        sample = ThreadSample { key, core: 1, at: time(4.0), state: 'R', ..sample };
        sample.sched = Some(SchedTimes { run_ns: 3_000_000_000, wait_ns: 0, slices: 4 });
        evidence.thread_samples.push(sample);
        let cores = Cores::of(&evidence);
        let owner = cores.owner(1, Window { from: time(1.0), to: time(4.0) });
        assert_eq!(owner.name(), "thread[60]");
        assert!(owner.owner().unwrap().share > 0.95);
    }

    #[test]
    fn short_lived_processes_own_nothing_that_could_be_named() {
        let evidence = Scene::new(2, 5.0).load(1, 0.0, 5.0, Kind::System, 1.0).evidence();
        let cores = Cores::of(&evidence);
        let Ownership::Unknown(why) = cores.owner(1, cores.window().unwrap()) else { panic!() };
        assert!(why.contains("explain only 0 %"), "{why}");
    }

    #[test]
    fn threads_of_one_process_own_a_core_together() {
        let mut scene = Scene::new(8, 5.0).load(3, 0.0, 5.0, Kind::User, 1.0);
        for n in 0..4 {
            let turns = Doing::Turns { run: 0.25, wait: 0.0, slices: 50.0 };
            scene = scene.with(Actor::new(101 + n, "worker", 3).of_process(100, "train").until(99.0, turns));
        }
        let evidence = scene.evidence();
        let cores = Cores::of(&evidence);
        assert_eq!(cores.owner(3, cores.window().unwrap()).name(), "train[100]");
    }

    /// 192 cores for 30 s, half of them full; 4,000 threads, 400 of them hot.
    #[test]
    fn a_big_node_is_examined_quickly() {
        let mut scene = Scene::new(192, 30.0).all_cores(Kind::User, 0.3);
        for core in 0..96 {
            scene = scene.load(core, 0.0, 30.0, Kind::System, 0.7);
        }
        for tid in 100..4100 {
            let core = tid % 192;
            let actor = Actor::new(tid, "worker", core);
            let turns = Doing::Turns { run: 0.3, wait: 0.3, slices: 20.0 };
            let actor = if tid % 10 == 0 { actor.until(99.0, turns) } else { actor.rarely_sampled() };
            scene = scene.with(actor);
        }
        let evidence = scene.evidence();
        // CPU time, not wall time: other work on the machine must not decide.
        let cpu_ms = || {
            let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
            text.split(' ').next().unwrap().parse::<f64>().unwrap() / 1e6
        };
        const RUNS: u32 = 10;
        let before = cpu_ms();
        for _ in 0..RUNS {
            let _ = rules::core_saturated::examine(&evidence);
            let _ = rules::core_monopolised::examine(&evidence);
            let _ = rules::nic_core_starved::examine(&evidence);
        }
        let each = (cpu_ms() - before) / f64::from(RUNS);
        eprintln!("192 cores, 300 looks, {} samples: {each:.1} ms of CPU", evidence.thread_samples.len());
        assert!(each < 100.0, "{each} ms");
    }

    fn any_time() -> impl Strategy<Value = Time> {
        prop_oneof![4 => (0u64..8_000).prop_map(Time::from_millis), 1 => any::<u64>().prop_map(Time)]
    }

    fn any_count() -> impl Strategy<Value = u64> {
        prop_oneof![4 => 0u64..2_000, 1 => any::<u64>()]
    }

    prop_compose! {
        fn any_look()(at in any_time(), cores in prop::collection::vec((0u32..4, prop::array::uniform8(any_count())), 0..5))
            -> CoreTimes
        {
            let cores = cores.into_iter().map(|(core, v)| CoreTicks {
                core, user: v[0], nice: v[1], system: v[2], idle: v[3], iowait: v[4], irq: v[5], softirq: v[6], steal: v[7],
            });
            CoreTimes { at, cores: cores.collect() }
        }
    }

    prop_compose! {
        fn any_sample()(
            at in any_time(), tid in 0u32..6, started in prop_oneof![0u64..800, any::<u64>()],
            state in prop::sample::select(vec!['R', 'S', 'D', '?']), core in 0u32..5,
            ticks in prop::array::uniform4(any_count()), sched in prop::option::of(prop::array::uniform3(any_count())),
        ) -> ThreadSample {
            ThreadSample {
                at, key: ThreadKey { tid, started: if tid % 2 == 0 { 5 } else { started } }, state, core,
                user_ticks: ticks[0], system_ticks: ticks[1], minor_faults: ticks[2], major_faults: ticks[3],
                sched: sched.map(|s| SchedTimes {
                    run_ns: s[0].saturating_mul(1_000_000), wait_ns: s[1].saturating_mul(1_000_000), slices: s[2],
                }),
            }
        }
    }

    prop_compose! {
        fn any_thread()(
            at in any_time(), tid in 0u32..6, pid in 0u32..6, kernel in any::<bool>(), policy in 0u64..9,
            nice in any::<i8>(), rt_priority in any::<u8>(),
            comm in prop::sample::select(vec!["spin", "ksoftirqd/1", "napi/eth0-8193", "napi/", "kworker/1:0", "", "coroner"]),
            affinity in prop::option::of(prop::collection::vec(0u32..4, 0..3)),
        ) -> Thread {
            Thread {
                at, key: ThreadKey { tid, started: 5 }, pid, comm: comm.to_owned(), kernel,
                class: SchedulingClass::from_policy(policy), rt_priority, nice, affinity: affinity.map(CoreSet::new),
            }
        }
    }

    prop_compose! {
        fn any_nic()(
            at in any_time(), core in prop::option::of(0u32..4), napi_tid in prop::option::of(0u32..6),
            irq in prop::option::of(any::<u32>()), name in prop::sample::select(vec!["eth0", "", "lo"]),
        ) -> Nic {
            let set = core.map(|c| CoreSet::new([c]));
            let queue = NicQueue {
                kind: QueueKind::Rx, index: 0, map: MapSource::Name, irq, irq_cores: set.clone(), napi_id: None, napi_tid,
                napi_cores: set.clone(), steering: set,
            };
            Nic { at, netns: None, name: name.to_owned(), driver: Some("ena".into()), bus: None, up: None, queues: vec![queue] }
        }
    }

    prop_compose! {
        fn any_evidence()(
            core_times in prop::collection::vec(any_look(), 0..40),
            thread_samples in prop::collection::vec(any_sample(), 0..60),
            threads in prop::collection::vec(any_thread(), 0..8),
            nics in prop::collection::vec(any_nic(), 0..3),
            clocks in prop::option::of((any_time(), any::<u64>(), any::<u64>())),
            points in prop::collection::vec((
                prop::sample::select(vec![Source::Softirqs, Source::Softnet, Source::Interrupts, Source::Ethtool, Source::CgroupCpu]),
                prop::sample::select(vec!["cpu0", "cpu1", "cpu", "eth0", "/a/b", ""]),
                prop::sample::select(vec!["NET_RX", "dropped", "time_squeeze", "38", "bw_in_allowance_exceeded", "throttled_us"]),
                any_time(), any_count(),
            ), 0..40),
            cgroup in prop::option::of(prop::sample::select(vec!["/a/b/c", "/", "", "a", "//"])),
        ) -> Evidence {
            let mut evidence = Evidence { core_times, thread_samples, threads, nics, ..Evidence::default() };
            evidence.clocks.extend(clocks.map(|(at, real_ns, boot_ns)| Clocks { at, real_ns, boot_ns }));
            for (source, subject, name, at, value) in points {
                evidence.counters.push(source, subject, name, at, value);
            }
            for pid in 0..4 {
                evidence.processes.push(Process {
                    at: Time(0), pid, started: 5, ppid: 0, comm: "p".into(), command: None, kernel: false,
                    memory_cgroup: None, cpu_cgroup: cgroup.map(str::to_owned), owner: Default::default(), ray: None,
                });
            }
            evidence
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]
        #[test]
        fn any_evidence_is_examined_without_panic(evidence in any_evidence(), parts in 0usize..50) {
            let _ = rules::core_saturated::examine(&evidence);
            let _ = rules::core_monopolised::examine(&evidence);
            let _ = rules::nic_core_starved::examine(&evidence);
            let _ = rules::softnet_drop::examine(&evidence);
            let _ = rules::nic_allowance::examine(&evidence);
            let cores = Cores::of(&evidence);
            if let Some(summary) = cores.summary(parts) {
                for core in &summary.cores {
                    let s = core.shares;
                    let sum = s.busy() + s.iowait + s.idle;
                    prop_assert!((0.0..=1.0001).contains(&sum), "{s:?}");
                    prop_assert_eq!(core.strip.len(), parts);
                }
            }
        }

        /// Fragments may arrive in any order: the answer is the same.
        #[test]
        fn the_order_of_samples_does_not_matter(seed in prop::collection::vec(any::<u32>(), 60)) {
            let evidence = Scene::new(2, 5.0)
                .load(1, 1.0, 4.0, Kind::User, 1.0)
                .with(Actor::new(50, "spin", 1).fifo(50).pinned().until(1.0, Doing::Sleep).until(4.0, Doing::Run))
                .with(Actor::kernel(31, "kworker/1:1", 1).until(1.0, Doing::Sleep).until(4.0, Doing::Wait).until(9.0, Doing::Run))
                .evidence();
            let mut shuffled = evidence.clone();
            for (i, random) in seed.iter().enumerate() {
                let (a, b) = (shuffled.thread_samples.len(), shuffled.core_times.len());
                shuffled.thread_samples.swap(i % a, *random as usize % a);
                shuffled.core_times.swap(i % b, *random as usize % b);
            }
            prop_assert_eq!(rules::core_saturated::examine(&evidence), rules::core_saturated::examine(&shuffled));
        }
    }
}
