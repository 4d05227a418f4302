//! What the kernel worked on, second by second, from the stacks of a profile: the same rows as the live probe
//! `coroner_probes::kernel_work` produces.
//!
//! Unlike for that probe, cores may be sampled faster for a while, and the event may be cycles instead of a clock. So weights are
//! added up as time and reported as samples at the usual rate.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use coroner_evidence::kernel_work::{WorkSum, rows_of, who};
use coroner_evidence::{KernelWork, Time, WorkRow};

use super::clocks::{Clocks, Ticking};
use super::kinds::Meanings;
use crate::model::{Dictionary, Sample, Seeded, StrId, Strings, TaskId};

const SECOND: u64 = 1_000_000_000;

/// Seconds stay open this long, for samples from late chunks.
const OPEN_SECONDS: u64 = 10;
/// Limit for the sums of all open seconds.
const MAX_SUMS: usize = 256 << 10;
/// After this many seconds without a sample, nothing was recorded.
const GAP: u64 = 2;

/// What is known about the sampled node.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sampled {
    /// The usual rate, used if the samples do not tell theirs.
    pub rate_hz: u32,
    pub cores: u32,
    /// Busy time of all cores together. Converts cycles to time.
    pub busy: Option<Duration>,
    /// Total number of lost samples.
    pub lost: u64,
}

/// Adds up samples that come roughly in time order.
#[derive(Default)]
pub struct WorkSums {
    clocks: Clocks,
    stacks: Meanings,
    open: BTreeMap<u64, HashMap<WorkSum<TaskId, StrId>, u64, Seeded>>,
    held: usize,
    /// Seconds before this are closed.
    closed: u64,
    seconds: Vec<Closed>,
    /// Weight of all samples, including user code and idle cores.
    weight: u64,
    periods: HashMap<u64, u64, Seeded>,
    ticking: Option<Ticking>,
    lost: u64,
    saw_kernel: bool,
    /// At least one kernel function had a name.
    has_names: bool,
}

/// A second whose rows have weights instead of sample counts.
struct Closed {
    second: u64,
    lost: u64,
    rows: Vec<WorkRow>,
}

impl WorkSums {
    /// `names` must be the same at each call; it may grow. `at` is the sample's time on the clock of the rows.
    pub fn add(&mut self, names: &Dictionary, sample: &Sample, at: Time) {
        if !self.clocks.wants(names, sample.event) {
            return;
        }
        let Some(core) = sample.core else { return };
        let ticking = self.clocks.of(names, sample.event);
        if self.ticking.is_none_or(|before| before < ticking) {
            // A better clock replaces what came before.
            *self =
                WorkSums { clocks: std::mem::take(&mut self.clocks), ticking: Some(ticking), ..WorkSums::default() };
        }
        let weight = ticking.time_of(sample).unwrap_or(sample.period.max(1));
        self.weight = self.weight.saturating_add(weight);
        let known = self.periods.len();
        match self.periods.get_mut(&weight) {
            Some(samples) => *samples += 1,
            None if known < MAX_PERIODS => drop(self.periods.insert(weight, 1)),
            None => {}
        }
        let second = at.0 / SECOND;
        if second < self.closed {
            self.lost += 1;
            return;
        }
        self.close_before(names, second.saturating_sub(OPEN_SECONDS));
        let stack = self.stacks.of(names, sample.stack);
        self.saw_kernel |= stack.is_in_kernel();
        self.has_names |= stack.is_in_kernel() && stack.has_names();
        let sums = self.open.entry(second).or_default();
        let Some(kind) = stack.work(names.task(sample.task).is_idle_task(&names.strings)) else { return };
        let innermost = names.stacks.split(sample.stack);
        let symbol = innermost.map_or(Strings::EMPTY, |(_, frame)| names.frames.get(frame).symbol);
        let key = WorkSum { core, task: sample.task, kind, symbol };
        match sums.get_mut(&key) {
            Some(sum) => *sum = sum.saturating_add(weight),
            None if self.held >= MAX_SUMS => self.lost += 1,
            None => {
                self.held += 1;
                sums.insert(key, weight);
            }
        }
    }

    /// No sample of a clock came.
    pub fn is_empty(&self) -> bool {
        self.seconds.is_empty() && self.open.is_empty()
    }

    /// There were kernel stacks, but no function has a name, so the kind of work is unknown.
    pub fn is_nameless(&self) -> bool {
        self.saw_kernel && !self.has_names
    }

    fn close_before(&mut self, names: &Dictionary, second: u64) {
        while let Some(first) = self.open.first_entry().filter(|first| *first.key() < second) {
            let (second, sums) = first.remove_entry();
            self.held -= sums.len();
            self.closed = second + 1;
            self.seconds.push(Closed { second, lost: std::mem::take(&mut self.lost), rows: rows(names, sums) });
        }
    }

    /// The seconds in order.
    pub fn finish(mut self, names: &Dictionary, sampled: &Sampled) -> Vec<KernelWork> {
        self.close_before(names, u64::MAX);
        let rate_hz = self.rate_hz(sampled);
        let a_sample = self.weight_of_a_sample(rate_hz, sampled);
        let mut told: Vec<KernelWork> = Vec::new();
        let mut last: Option<u64> = None;
        let empty = |second: u64| KernelWork {
            from: Time(second * SECOND),
            to: Time((second + 1) * SECOND),
            rate_hz,
            cores: sampled.cores,
            lost: 0,
            rows: Vec::new(),
        };
        for Closed { second, lost, mut rows } in self.seconds {
            // With cycles an idle second has no samples.
            let quiet = last.map_or(second, |last| last + 1)..second;
            if quiet.end.saturating_sub(quiet.start) < GAP {
                told.extend(quiet.map(empty));
            }
            for row in &mut rows {
                row.samples = (row.samples as f64 / a_sample).round() as u64;
            }
            rows.retain(|row| row.samples > 0);
            told.push(KernelWork { lost, rows, ..empty(second) });
            last = Some(second);
        }
        if let Some(last) = told.last_mut() {
            last.lost = last.lost.saturating_add(self.lost).saturating_add(sampled.lost);
        }
        told
    }

    /// A timer's period gives its rate. If cores were sampled faster for a while, the slower rate is the usual one.
    fn rate_hz(&self, sampled: &Sampled) -> u32 {
        let all: u64 = self.periods.values().sum();
        let usual = self.periods.iter().filter(|(_, samples)| **samples * 10 >= all).map(|(period, _)| *period).max();
        match usual.filter(|_| self.ticking == Some(Ticking::Always)) {
            Some(period) if period > 1 => (((SECOND + period / 2) / period) as u32).clamp(1, 1000),
            _ => sampled.rate_hz.max(1),
        }
    }

    fn weight_of_a_sample(&self, rate_hz: u32, sampled: &Sampled) -> f64 {
        let rate = f64::from(rate_hz);
        let has_weights = self.periods.keys().any(|period| *period > 1);
        let busy = sampled.busy.map(|busy| busy.as_secs_f64()).filter(|busy| *busy > 0.0);
        match (self.ticking, busy) {
            (Some(Ticking::Always), _) if has_weights => SECOND as f64 / rate,
            (Some(Ticking::WhileBusy), Some(busy)) if has_weights => (self.weight as f64 / busy / rate).max(1.0),
            // Every sample counts 1.
            _ => (self.weight as f64 / self.periods.values().sum::<u64>().max(1) as f64).max(1.0),
        }
    }
}

const MAX_PERIODS: usize = 64;

/// By core, thread and kind, with weights instead of sample counts.
fn rows(names: &Dictionary, sums: HashMap<WorkSum<TaskId, StrId>, u64, Seeded>) -> Vec<WorkRow> {
    let who = |task| {
        let task = names.task(task);
        // perf writes `:TID` for a thread without a name.
        let comm = Some(names.strings.get(task.comm)).filter(|comm| !comm.is_empty() && !comm.starts_with(':'));
        who(task.pid, task.tid, comm)
    };
    rows_of(sums, who, |symbol| names.strings.get(symbol))
}

#[cfg(test)]
mod tests {
    use super::super::made::Made;
    use super::*;
    use coroner_evidence::WorkKind;

    const SAMPLED: Sampled = Sampled { rate_hz: 49, cores: 2, busy: None, lost: 0 };

    /// Adds this many samples with this period, spread over the second.
    fn put(
        made: &mut Made,
        event: &str,
        (second, core): (u64, u32),
        comm: &str,
        stack: &[&str],
        (n, period): (u64, u64),
    ) {
        let (pid, tid) = if comm == "swapper" { (0, 0) } else { (70, 71) };
        let task = made.task_of(comm, Some(pid), Some(tid));
        let stack = made.stack(stack);
        for i in 0..n {
            made.sample(event, core, second * SECOND + i * SECOND / n.max(1), task, stack);
            if let Some(last) = made.samples.last_mut() {
                last.period = period;
            }
        }
    }

    fn told(made: &Made, sampled: &Sampled) -> Vec<KernelWork> {
        let mut sums = WorkSums::default();
        for sample in &made.samples {
            sums.add(&made.names, sample, Time(sample.time.unwrap()));
        }
        sums.finish(&made.names, sampled)
    }

    fn row(core: u32, comm: &str, kind: WorkKind, samples: u64, symbol: &str) -> WorkRow {
        WorkRow { core, pid: 70, tid: 71, comm: comm.to_owned(), kind, samples, symbol: Some(symbol.to_owned()) }
    }

    const SYSCALL: &str = "do_syscall_64_[k]";
    const TICK: u64 = SECOND / 49;

    #[test]
    fn stacks_show_who_did_what_where_and_when() {
        let mut made = Made::default();
        let walk = ["main", SYSCALL, "memory_stat_show_[k]", "css_rstat_flush_[k]"];
        put(&mut made, "cpu-clock", (5, 1), "kubelet", &walk, (49, TICK));
        put(&mut made, "cpu-clock", (5, 0), "kubelet", &["main", "work"], (49, TICK));
        put(&mut made, "cpu-clock", (6, 0), "swapper", &["do_idle_[k]", "pv_native_safe_halt_[k]"], (40, TICK));
        let packets = ["do_idle_[k]", "handle_softirqs_[k]", "net_rx_action_[k]", "kfree_[k]"];
        put(&mut made, "cpu-clock", (6, 0), "swapper", &packets, (9, TICK));
        // An event that is no clock.
        put(&mut made, "sched:sched_switch", (6, 0), "kubelet", &["schedule_[k]"], (500, 1));
        let [fifth, sixth] = &told(&made, &SAMPLED)[..] else { panic!("two seconds") };
        assert_eq!((fifth.from, fifth.to, fifth.rate_hz, fifth.cores), (Time(5 * SECOND), Time(6 * SECOND), 49, 2));
        assert_eq!(fifth.rows, [row(1, "kubelet", WorkKind::StatsWalk, 49, "css_rstat_flush")]);
        let idle =
            WorkRow { pid: 0, tid: 0, ..row(0, "(idle task or other pid namespace)", WorkKind::Network, 9, "kfree") };
        assert_eq!(sixth.rows, [idle]);
    }

    #[test]
    fn a_core_that_is_sampled_faster_does_not_look_busier() {
        let mut made = Made::default();
        let reclaim = [SYSCALL, "shrink_node_[k]"];
        put(&mut made, "cpu-clock", (1, 1), "hog", &reclaim, (49, TICK));
        put(&mut made, "cpu-clock", (2, 1), "hog", &reclaim, (999, SECOND / 999));
        put(&mut made, "cpu-clock", (2, 0), "other", &[SYSCALL], (20, TICK));
        put(&mut made, "cpu-clock", (3, 1), "hog", &reclaim, (49, TICK));
        let samples: Vec<u64> = told(&made, &SAMPLED).iter().map(|s| s.samples(WorkKind::is_reclaim)).collect();
        assert_eq!(samples, [49, 49, 49]);
    }

    #[test]
    fn cycles_become_time_by_the_busy_time_of_the_cores() {
        let mut made = Made::default();
        // At 3 GHz a busy core has 3e9 of them in a second; user code has as many.
        put(&mut made, "cycles", (1, 1), "hog", &[SYSCALL, "smaps_pte_range_[k]"], (49, 3_000_000_000 / 49));
        put(&mut made, "cycles", (1, 0), "web", &["main"], (49, 3_000_000_000 / 49));
        // A core that is a tenth busy.
        put(&mut made, "cycles", (1, 0), "agent", &[SYSCALL, "kernfs_fop_open_[k]"], (30, 10_000_000));
        let busy = Some(Duration::from_millis(2100));
        let [second] = &told(&made, &Sampled { busy, ..SAMPLED })[..] else { panic!("one second") };
        let expected = [
            row(1, "hog", WorkKind::PageTables, 49, "smaps_pte_range"),
            row(0, "agent", WorkKind::Kernfs, 5, "kernfs_fop_open"),
        ];
        assert_eq!(second.rows, expected);
        // Busy time unknown: weights are divided by the mean period.
        let [second] = &told(&made, &SAMPLED)[..] else { panic!("one second") };
        assert_eq!(second.rows.iter().map(|row| row.samples).collect::<Vec<_>>(), [61, 6]);
    }

    #[test]
    fn unnamed_kernel_functions_are_noticed_and_gaps_are_not_idle_time() {
        let mut made = Made::default();
        put(&mut made, "cpu-clock", (1, 0), "hog", &["_[k]"], (10, TICK));
        put(&mut made, "cpu-clock", (2, 0), "hog", &["main"], (10, TICK));
        put(&mut made, "cpu-clock", (4, 0), "hog", &["main"], (10, TICK));
        put(&mut made, "cpu-clock", (60, 0), "hog", &["main"], (10, TICK));
        let seconds = told(&made, &SAMPLED);
        let from: Vec<u64> = seconds.iter().map(|second| second.from.0 / SECOND).collect();
        assert_eq!(from, [1, 2, 3, 4, 60]);
        assert_eq!(seconds[0].rows[0].kind, WorkKind::Unnamed);
        assert_eq!((seconds[0].rows[0].symbol.as_deref(), seconds[1].rows.len()), (None, 0));
    }

    #[test]
    fn late_samples_go_to_their_second_or_are_counted() {
        let mut made = Made::default();
        for second in [1, 8, 3, 40, 2] {
            put(&mut made, "cpu-clock", (second, 0), "hog", &[SYSCALL], (1, TICK));
        }
        let seconds = told(&made, &SAMPLED);
        let counts: Vec<(u64, u64)> = seconds.iter().map(|s| (s.from.0 / SECOND, s.samples(|_| true))).collect();
        assert_eq!(counts, [(1, 1), (2, 0), (3, 1), (8, 1), (40, 1)]);
        assert_eq!(seconds.iter().map(|second| second.lost).sum::<u64>(), 1);
    }
}
