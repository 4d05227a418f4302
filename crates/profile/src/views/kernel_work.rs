//! What the kernel was at work on, second by second, out of the stacks of a profile: the same as the probe of
//! `coroner_probes::kernel_work` tells of a node that is watched.
//!
//! A profile has what that probe has not: cores that were sampled faster for a while, and cycles instead of a clock. So here weights are
//! added up as time, and told as samples of the usual rate.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use coroner_evidence::kernel_work::{WorkSum, rows_of, who};
use coroner_evidence::{KernelWork, Time, WorkRow};

use super::clocks::{Clocks, Ticking};
use super::kinds::Meanings;
use crate::model::hash::Seeded;
use crate::model::{Dictionary, Sample, StrId, Strings, TaskId};

const SECOND: u64 = 1_000_000_000;

/// Seconds are closed when samples are so much later: those of late chunks still come.
const OPEN_SECONDS: u64 = 10;
/// What all open seconds may hold.
const MAX_SUMS: usize = 256 << 10;
/// Without any sample for so long, nothing was recorded.
const GAP: u64 = 2;

/// What is known of the node that the samples are of.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sampled {
    /// The usual rate; where the samples tell theirs, that counts.
    pub rate_hz: u32,
    pub cores: u32,
    /// How long cores were busy, all together. By this cycles become time.
    pub busy: Option<Duration>,
    /// Samples that never came, in all.
    pub lost: u64,
}

/// Adds up samples, in about the order of their times.
#[derive(Default)]
pub struct WorkSums {
    clocks: Clocks,
    stacks: Meanings,
    open: BTreeMap<u64, HashMap<WorkSum<TaskId, StrId>, u64, Seeded>>,
    held: usize,
    /// Before this, seconds are closed.
    closed: u64,
    seconds: Vec<Closed>,
    /// Of all samples, also of user code and of idle cores.
    weight: u64,
    periods: HashMap<u64, u64, Seeded>,
    ticking: Option<Ticking>,
    lost: u64,
    saw_kernel: bool,
    /// Some function of the kernel had a name.
    has_names: bool,
}

/// A second whose rows have weights for samples.
struct Closed {
    second: u64,
    lost: u64,
    rows: Vec<WorkRow>,
}

impl WorkSums {
    /// `names` is the same at each call, but for what was added to it; `at` is when the sample was taken, by the clock that rows are told by.
    pub fn add(&mut self, names: &Dictionary, sample: &Sample, at: Time) {
        if !self.clocks.wants(names, sample.event) {
            return;
        }
        let Some(core) = sample.core else { return };
        let ticking = self.clocks.of(names, sample.event);
        if self.ticking.is_none_or(|before| before < ticking) {
            // A clock is better than what came before it.
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

    /// No sample came that says anything of time.
    pub fn is_empty(&self) -> bool {
        self.seconds.is_empty() && self.open.is_empty()
    }

    /// There were stacks of the kernel, and none of its functions has a name: nobody knows what it did.
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
            // With cycles an idle second has no sample.
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

    /// A timer tells by its period how often it ticks. Where cores were sampled faster for a while, the slower rate is the usual one.
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
            // Then each sample is one.
            _ => (self.weight as f64 / self.periods.values().sum::<u64>().max(1) as f64).max(1.0),
        }
    }
}

const MAX_PERIODS: usize = 64;

/// By core, thread and kind, with the weights for samples.
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

    /// Cores and tasks and stacks, so many times within the second, each sample with this period.
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
    fn stacks_tell_who_did_what_where_and_when() {
        let mut made = Made::default();
        let walk = ["main", SYSCALL, "memory_stat_show_[k]", "css_rstat_flush_[k]"];
        put(&mut made, "cpu-clock", (5, 1), "kubelet", &walk, (49, TICK));
        put(&mut made, "cpu-clock", (5, 0), "kubelet", &["main", "work"], (49, TICK));
        put(&mut made, "cpu-clock", (6, 0), "swapper", &["do_idle_[k]", "pv_native_safe_halt_[k]"], (40, TICK));
        let packets = ["do_idle_[k]", "handle_softirqs_[k]", "net_rx_action_[k]", "kfree_[k]"];
        put(&mut made, "cpu-clock", (6, 0), "swapper", &packets, (9, TICK));
        // Something that says nothing of time.
        put(&mut made, "sched:sched_switch", (6, 0), "kubelet", &["schedule_[k]"], (500, 1));
        let [fifth, sixth] = &told(&made, &SAMPLED)[..] else { panic!("two seconds") };
        assert_eq!((fifth.from, fifth.to, fifth.rate_hz, fifth.cores), (Time(5 * SECOND), Time(6 * SECOND), 49, 2));
        assert_eq!(fifth.rows, [row(1, "kubelet", WorkKind::StatsWalk, 49, "css_rstat_flush")]);
        let idle = WorkRow {
            pid: 0,
            tid: 0,
            ..row(0, "(idle task, or of another pid namespace)", WorkKind::Network, 9, "kfree")
        };
        assert_eq!(sixth.rows, [idle]);
    }

    #[test]
    fn a_core_that_is_sampled_faster_does_not_do_more() {
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
    fn cycles_are_time_by_what_cores_were_busy() {
        let mut made = Made::default();
        // At 3 GHz a busy core has 3e9 of them in a second; user code has as many.
        put(&mut made, "cycles", (1, 1), "hog", &[SYSCALL, "smaps_pte_range_[k]"], (49, 3_000_000_000 / 49));
        put(&mut made, "cycles", (1, 0), "web", &["main"], (49, 3_000_000_000 / 49));
        // A core that is busy for a tenth of the time.
        put(&mut made, "cycles", (1, 0), "agent", &[SYSCALL, "kernfs_fop_open_[k]"], (30, 10_000_000));
        let busy = Some(Duration::from_millis(2100));
        let [second] = &told(&made, &Sampled { busy, ..SAMPLED })[..] else { panic!("one second") };
        let expected = [
            row(1, "hog", WorkKind::PageTables, 49, "smaps_pte_range"),
            row(0, "agent", WorkKind::Kernfs, 5, "kernfs_fop_open"),
        ];
        assert_eq!(second.rows, expected);
        // Nobody says how busy the cores were: then each sample is one, by its weight.
        let [second] = &told(&made, &SAMPLED)[..] else { panic!("one second") };
        assert_eq!(second.rows.iter().map(|row| row.samples).collect::<Vec<_>>(), [61, 6]);
    }

    #[test]
    fn kernel_functions_without_names_are_told_as_such_and_gaps_are_no_idle_time() {
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
    fn late_samples_are_put_where_they_belong_or_counted() {
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
