//! What the kernel did while it was watched, as time instead of samples, by core, thread and kind.

use crate::ties::Task;
use coroner_evidence::{Evidence, KernelWork, Time, Window, WorkKind, WorkRow};
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

/// All stretches together. Cheap: a view on the evidence.
#[derive(Debug, Clone, Copy)]
pub struct Work<'e> {
    stretches: &'e [KernelWork],
}

/// What one thread did in the kernel.
#[derive(Debug, Clone)]
pub struct TaskWork {
    pub task: Task,
    pub time: Duration,
    /// On which cores, the most first.
    pub cores: Vec<(u32, Duration)>,
    pub kinds: BTreeMap<WorkKind, Duration>,
    /// The function that it was found in most.
    pub symbol: Option<String>,
    /// From the first to the last stretch in which it was at it.
    pub when: Window,
}

impl TaskWork {
    pub fn of(&self, kinds: impl Fn(WorkKind) -> bool) -> Duration {
        self.kinds
            .iter()
            .filter(|(kind, _)| kinds(**kind))
            .fold(Duration::ZERO, |sum, (_, time)| sum.saturating_add(*time))
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

    /// How long it was sampled.
    pub fn over(&self) -> Duration {
        let sampled = self.stretches.iter().filter(|stretch| stretch.rate_hz > 0);
        sampled.fold(Duration::ZERO, |sum, stretch| sum.saturating_add(stretch.to.since(stretch.from)))
    }

    pub fn cores(&self) -> u32 {
        self.stretches.last().map_or(0, |stretch| stretch.cores)
    }

    /// Samples that are missing: all times are at least what is said.
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

    /// Time of all cores together.
    pub fn time(&self, of: impl Fn(&WorkRow) -> bool) -> Duration {
        self.time_within(None, of)
    }

    /// Of the stretches whose middle lies within the window.
    pub fn time_within(&self, window: Option<Window>, of: impl Fn(&WorkRow) -> bool) -> Duration {
        let rows = self.rows(window).filter(|(_, row)| of(row));
        rows.fold(Duration::ZERO, |sum, (stretch, row)| sum.saturating_add(time_of(stretch, row.samples)))
    }

    /// 1.0 is one core all the time.
    pub fn cores_of(&self, of: impl Fn(WorkKind) -> bool) -> f64 {
        self.time(|row| of(row.kind)).as_secs_f64() / self.over().as_secs_f64().max(0.001)
    }

    /// The threads that did this, the most first.
    pub fn tasks(&self, of: impl Fn(&WorkRow) -> bool) -> Vec<TaskWork> {
        let mut tasks: HashMap<(u32, u32, &str), Gathered<'_>> = HashMap::new();
        for (stretch, row) in self.rows(None).filter(|(_, row)| of(row)) {
            let time = time_of(stretch, row.samples);
            let seen = tasks.entry((row.tid, row.pid, &row.comm)).or_insert_with(|| Gathered::new(stretch));
            seen.time = seen.time.saturating_add(time);
            seen.when.from = seen.when.from.min(stretch.from);
            seen.when.to = seen.when.to.max(stretch.to);
            add(seen.cores.entry(row.core).or_default(), time);
            add(seen.kinds.entry(row.kind).or_default(), time);
            if let Some(symbol) = &row.symbol {
                add(seen.symbols.entry(symbol).or_default(), time);
            }
        }
        let mut tasks: Vec<TaskWork> = tasks
            .into_iter()
            .map(|((tid, pid, comm), seen)| {
                let mut cores: Vec<(u32, Duration)> = seen.cores.into_iter().collect();
                cores.sort_by_key(|(core, time)| (Reverse(*time), *core));
                let symbol = seen.symbols.into_iter().max_by_key(|(name, time)| (*time, Reverse(*name)));
                TaskWork {
                    task: Task { tid, pid, comm: comm.to_owned() },
                    time: seen.time,
                    cores,
                    kinds: seen.kinds,
                    symbol: symbol.map(|(name, _)| name.to_owned()),
                    when: seen.when,
                }
            })
            .collect();
        tasks.sort_by_key(|task| (Reverse(task.time), task.task.tid));
        tasks
    }

    /// The functions that this was in, the most first.
    pub fn symbols(&self, of: impl Fn(&WorkRow) -> bool) -> Vec<(&'e str, u64)> {
        let mut symbols: HashMap<&str, u64> = HashMap::new();
        for (_, row) in self.rows(None).filter(|(_, row)| of(row)) {
            if let Some(symbol) = &row.symbol {
                let samples = symbols.entry(symbol).or_default();
                *samples = samples.saturating_add(row.samples);
            }
        }
        let mut symbols: Vec<(&str, u64)> = symbols.into_iter().collect();
        symbols.sort_by_key(|(name, samples)| (Reverse(*samples), *name));
        symbols
    }

    pub fn samples(&self, of: impl Fn(&WorkRow) -> bool) -> u64 {
        self.rows(None).filter(|(_, row)| of(row)).fold(0, |sum, (_, row)| sum.saturating_add(row.samples))
    }
}

struct Gathered<'e> {
    time: Duration,
    when: Window,
    cores: BTreeMap<u32, Duration>,
    kinds: BTreeMap<WorkKind, Duration>,
    symbols: BTreeMap<&'e str, Duration>,
}

impl Gathered<'_> {
    fn new(stretch: &KernelWork) -> Self {
        Gathered {
            time: Duration::ZERO,
            when: Window { from: stretch.from, to: stretch.to },
            cores: BTreeMap::new(),
            kinds: BTreeMap::new(),
            symbols: BTreeMap::new(),
        }
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
        let tasks = work.tasks(|row| row.kind.is_memcg_walk());
        assert_eq!(tasks.len(), 1);
        assert_eq!(tasks[0].task.name(), "kubelet[7]");
        assert_eq!(tasks[0].cores[0], (1, Duration::from_millis(1700)));
        assert_eq!(tasks[0].symbol.as_deref(), Some("stats_walk_fn"));
        let first = Window { from: Time::from_secs(1), to: Time::from_secs(2) };
        assert_eq!(work.time_within(Some(first), |row| row.core == 1), Duration::from_millis(900));
        assert!(Work::of(&Evidence::default()).is_none());
    }
}
