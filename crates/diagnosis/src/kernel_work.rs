//! What the kernel did while watched, as time instead of samples, by core, thread and kind.

use crate::cores::words::percent_value;
use crate::finding::{Answer, Fact, FactKey};
use crate::ties::{Task, Ties};
use crate::words::percent;
use coroner_evidence::{Evidence, KernelWork, Order, Time, Unseen, Window, WorkKind, WorkRow, probe};
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

/// Shorter stretches count as this many seconds: they say nothing about a whole one.
const SHORTEST: f64 = 0.5;

/// A smaller share is not worth mentioning.
const WORTH_SAYING: f64 = 0.0005;

/// All stretches together: a cheap view of the evidence.
#[derive(Debug, Clone, Copy)]
pub struct Work<'e> {
    stretches: &'e [KernelWork],
}

/// What one process did in the kernel.
#[derive(Debug, Clone)]
pub struct ProcessWork {
    /// Its thread with most of it.
    pub thread: Task,
    pub time: Duration,
    /// Of one core, over the sampled time; above 1 if several threads ran at once.
    pub share: f64,
    /// The same over its busiest second.
    pub peak: f64,
    /// By core, largest first.
    pub cores: Vec<(u32, Duration)>,
    /// The function it was sampled in most.
    pub symbol: Option<String>,
    /// From the first to the last second in which it did at least half of what it did at its peak.
    pub when: Window,
    /// When it was last seen doing any of it.
    pub until: Time,
}

impl ProcessWork {
    /// `94 % of core 39`; over several cores `130 % of a core`.
    pub fn share_words(&self, share: f64) -> String {
        let [(core, on_it), ..] = self.cores.as_slice() else { return percent(share) };
        match on_it.as_secs_f64() >= 0.9 * self.time.as_secs_f64() {
            true => format!("{} of core {core}", percent(share)),
            false => format!("{} of a core", percent(share)),
        }
    }

    pub fn ties(&self) -> Ties {
        Ties {
            cores: self.cores.iter().map(|(core, _)| *core).collect(),
            culprits: vec![self.thread.clone()],
            when: Some(self.when.into()),
            until: Some(self.until),
            ..Ties::default()
        }
    }

    pub fn facts(&self) -> Vec<Fact> {
        let source = "kernel samples on all cores";
        let mut facts = vec![
            Fact::new(FactKey::ShareOfCore, percent_value(self.share), source).of(self.thread.name()),
            Fact::new(FactKey::BusiestSecond, percent_value(self.peak), source),
        ];
        if let Some(symbol) = &self.symbol {
            facts.push(Fact::new(FactKey::MostlyIn, symbol.clone(), source));
        }
        facts
    }
}

/// The answer of a rule if the kernel was not sampled.
pub fn not_sampled(evidence: &Evidence) -> Answer {
    let unseen: Option<&Unseen> = evidence.why_unseen(probe::KERNEL_SAMPLES);
    Answer::CannotTell {
        because: unseen.map_or_else(|| "the kernel was not sampled".to_owned(), |unseen| unseen.why.clone()),
        how_to_see: unseen
            .map_or_else(|| "run on the node as root for a few seconds".to_owned(), |unseen| unseen.how_to_see.clone()),
    }
}

fn time_of(stretch: &KernelWork, samples: u64) -> Duration {
    if stretch.rate_hz == 0 {
        return Duration::ZERO;
    }
    Duration::from_secs_f64((samples as f64 / f64::from(stretch.rate_hz)).min(1e9))
}

impl<'e> Work<'e> {
    /// `None` if the kernel was not sampled.
    pub fn of(evidence: &'e Evidence) -> Option<Work<'e>> {
        let work = Work { stretches: &evidence.kernel_work };
        (!work.over().is_zero()).then_some(work)
    }

    /// The stretches that were sampled. If samples were lost, one without any was not: the buffers were full, and nobody could read them.
    fn sampled(&self) -> impl Iterator<Item = &'e KernelWork> {
        let lost = self.lost() > 0;
        self.stretches.iter().filter(move |stretch| stretch.rate_hz > 0 && !(lost && stretch.rows.is_empty()))
    }

    /// How long it was sampled.
    pub fn over(&self) -> Duration {
        self.sampled().fold(Duration::ZERO, |sum, stretch| sum.saturating_add(stretch.to.since(stretch.from)))
    }

    /// How long it was sampled in the stretches whose middle lies within the window.
    pub fn over_within(&self, window: Window) -> Duration {
        let middle = |stretch: &KernelWork| Time(stretch.from.0 / 2 + stretch.to.0 / 2);
        let inside = self.sampled().filter(|stretch| window.contains(middle(stretch)));
        inside.fold(Duration::ZERO, |sum, stretch| sum.saturating_add(stretch.to.since(stretch.from)))
    }

    pub fn cores(&self) -> u32 {
        self.stretches.last().map_or(0, |stretch| stretch.cores)
    }

    /// Lost samples: all times are lower bounds.
    pub fn lost(&self) -> u64 {
        self.stretches.iter().fold(0, |sum, stretch| sum.saturating_add(stretch.lost))
    }

    fn rows(&self, within: Option<Window>) -> impl Iterator<Item = (&'e KernelWork, &'e WorkRow)> {
        let inside = move |stretch: &&KernelWork| {
            let middle = Time(stretch.from.0 / 2 + stretch.to.0 / 2);
            within.is_none_or(|window| window.contains(middle))
        };
        self.stretches.iter().filter(inside).flat_map(|stretch| stretch.rows.iter().map(move |row| (stretch, row)))
    }

    /// Summed over all cores.
    pub fn time(&self, of: impl Fn(&WorkRow) -> bool) -> Duration {
        self.time_within(None, of)
    }

    /// Of the stretches whose middle lies within the window.
    pub fn time_within(&self, window: Option<Window>, of: impl Fn(&WorkRow) -> bool) -> Duration {
        let rows = self.rows(window).filter(|(_, row)| of(row));
        rows.fold(Duration::ZERO, |sum, (stretch, row)| sum.saturating_add(time_of(stretch, row.samples)))
    }

    /// 1.0 is one core throughout.
    pub fn cores_of(&self, of: impl Fn(WorkKind) -> bool) -> f64 {
        self.time(|row| of(row.kind)).as_secs_f64() / self.over().as_secs_f64().max(0.001)
    }

    /// The share of one core, as a range if some work is unnamed: small amounts are not classified.
    pub fn share_words(&self, of: impl Fn(WorkKind) -> bool) -> String {
        let (known, unknown) = (self.cores_of(of), self.cores_of(|kind| kind == WorkKind::Unnamed));
        match (known > 0.0, unknown >= WORTH_SAYING) {
            (_, false) => percent(known),
            (false, true) => format!("at most {}", percent(unknown)),
            (true, true) => format!("{} to {}", percent(known), percent(known + unknown)),
        }
    }

    /// The processes that did this, largest first.
    pub fn processes(&self, of: impl Fn(&WorkRow) -> bool) -> Vec<ProcessWork> {
        let mut processes: BTreeMap<u32, Gathered<'_>> = BTreeMap::new();
        for (stretch, row) in self.rows(None).filter(|(_, row)| of(row)) {
            let time = time_of(stretch, row.samples);
            let seen = processes.entry(row.pid).or_default();
            seen.time = seen.time.saturating_add(time);
            add(seen.threads.entry((row.tid, &row.comm)).or_default(), time);
            add(seen.cores.entry(row.core).or_default(), time);
            add(seen.seconds.entry((stretch.from, stretch.to)).or_default(), time);
            if let Some(symbol) = &row.symbol {
                add(seen.symbols.entry(symbol).or_default(), time);
            }
        }
        let over = self.over().as_secs_f64().max(0.001);
        let mut processes: Vec<ProcessWork> =
            processes.into_iter().filter_map(|(pid, seen)| seen.process(pid, over)).collect();
        processes.order_by_key(|process| (Reverse(process.time), process.thread.pid));
        processes
    }

    /// The functions this was in, most samples first.
    pub fn symbols(&self, of: impl Fn(&WorkRow) -> bool) -> Vec<(&'e str, u64)> {
        let mut symbols: HashMap<&str, u64> = HashMap::new();
        for (_, row) in self.rows(None).filter(|(_, row)| of(row)) {
            if let Some(symbol) = &row.symbol {
                let samples = symbols.entry(symbol).or_default();
                *samples = samples.saturating_add(row.samples);
            }
        }
        let mut symbols: Vec<(&str, u64)> = symbols.into_iter().collect();
        symbols.order_by_key(|(name, samples)| (Reverse(*samples), *name));
        symbols
    }

    pub fn samples(&self, of: impl Fn(&WorkRow) -> bool) -> u64 {
        self.rows(None).filter(|(_, row)| of(row)).fold(0, |sum, (_, row)| sum.saturating_add(row.samples))
    }
}

#[derive(Default)]
struct Gathered<'e> {
    time: Duration,
    threads: BTreeMap<(u32, &'e str), Duration>,
    cores: BTreeMap<u32, Duration>,
    seconds: BTreeMap<(Time, Time), Duration>,
    symbols: BTreeMap<&'e str, Duration>,
}

impl Gathered<'_> {
    fn process(self, pid: u32, over: f64) -> Option<ProcessWork> {
        let (&(tid, comm), _) = self.threads.iter().max_by_key(|(_, time)| **time)?;
        let mut cores: Vec<(u32, Duration)> = self.cores.into_iter().collect();
        cores.order_by_key(|(core, time)| (Reverse(*time), *core));
        let share = |(&(from, to), time): (&(Time, Time), &Duration)| {
            time.as_secs_f64() / to.since(from).as_secs_f64().max(SHORTEST)
        };
        let peak = self.seconds.iter().map(share).fold(0.0, f64::max);
        let mut at_it = self.seconds.iter().filter(|second| share(*second) >= peak / 2.0).map(|(second, _)| second);
        let first = at_it.next()?;
        let last = at_it.next_back().unwrap_or(first);
        let until = self.seconds.keys().map(|(_, to)| *to).max()?;
        let symbol = self.symbols.into_iter().max_by_key(|(name, time)| (*time, Reverse(*name)));
        Some(ProcessWork {
            thread: Task { tid, pid, comm: comm.to_owned() },
            time: self.time,
            share: self.time.as_secs_f64() / over,
            peak,
            cores,
            symbol: symbol.map(|(name, _)| name.to_owned()),
            when: Window { from: first.0, to: last.1 },
            until,
        })
    }
}

fn add(sum: &mut Duration, time: Duration) {
    *sum = sum.saturating_add(time);
}

#[cfg(test)]
pub(crate) mod test_work {
    use super::*;

    pub fn row(core: u32, tid: u32, comm: &str, kind: WorkKind, samples: u64) -> WorkRow {
        let symbol = Some(format!("{}_fn", kind.as_str().replace('-', "_")));
        WorkRow { core, pid: tid, tid, comm: comm.to_owned(), kind, samples, symbol }
    }

    /// A second of 100 Hz on two cores.
    pub fn second(from: Time, rows: Vec<WorkRow>) -> KernelWork {
        KernelWork { from, to: from + Duration::from_secs(1), rate_hz: 100, cores: 2, lost: 0, rows }
    }
}

#[cfg(test)]
mod tests {
    use super::test_work::{row, second};
    use super::*;

    #[test]
    fn samples_become_time_by_thread_core_and_kind() {
        let walk = |core, samples| row(core, 7, "kubelet", WorkKind::StatsWalk, samples);
        let evidence = Evidence {
            kernel_work: vec![
                second(Time::from_secs(1), vec![walk(1, 90), row(0, 9, "cat", WorkKind::Other, 10)]),
                second(Time::from_secs(2), vec![walk(1, 80), walk(0, 20)]),
            ],
            ..Evidence::default()
        };
        let work = Work::of(&evidence).unwrap();
        assert_eq!(work.over(), Duration::from_secs(2));
        assert!((work.cores_of(WorkKind::is_memcg_walk) - 0.95).abs() < 1e-9);
        let [kubelet] = &work.processes(|row| row.kind.is_memcg_walk())[..] else { panic!("one process") };
        assert_eq!(kubelet.thread.name(), "kubelet[7]");
        assert_eq!(kubelet.cores[0], (1, Duration::from_millis(1700)));
        assert_eq!(kubelet.symbol.as_deref(), Some("stats_walk_fn"));
        assert!((kubelet.share - 0.95).abs() < 1e-9 && (kubelet.peak - 1.0).abs() < 1e-9);
        let first = Window { from: Time::from_secs(1), to: Time::from_secs(2) };
        assert_eq!(work.time_within(Some(first), |row| row.core == 1), Duration::from_millis(900));
        assert!(Work::of(&Evidence::default()).is_none());
    }

    #[test]
    fn unclassified_work_is_not_called_zero() {
        let told = |rows| {
            let evidence = Evidence { kernel_work: vec![second(Time::from_secs(1), rows)], ..Evidence::default() };
            Work::of(&evidence).unwrap().share_words(|kind| kind == WorkKind::PageFault)
        };
        let (faults, unnamed) = (row(0, 7, "a", WorkKind::PageFault, 10), row(0, 8, "b", WorkKind::Unnamed, 3));
        assert_eq!(told(vec![faults.clone()]), "10 %");
        assert_eq!(told(vec![unnamed.clone()]), "at most 3.0 %");
        assert_eq!(told(vec![faults, unnamed]), "10 % to 13 %");
    }
}
