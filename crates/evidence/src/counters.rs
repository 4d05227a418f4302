//! Plain counters and gauges: most of what the kernel reports is a number with a name.
//!
//! A series is (source, subject, name): (softnet, "cpu1", "dropped"). Counters are stored as the kernel gives them, cumulative;
//! [`Counters::delta`] is the only arithmetic. A probe writes every series at its first look, then only those that moved. Most
//! interrupts never fire, so their series exist only if they moved, with the value before and after.

use crate::time::Time;
use coroner_report::named;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::time::Duration;

named! {
    /// Where a number comes from; decides what subject and name mean.
    pub enum Source {
        /// /proc/interrupts. Subject `cpuN`; name is the interrupt's number or letters (`38`, `TLB`, `LOC`).
        Interrupts = "interrupts",
        /// /proc/softirqs. Subject `cpuN`; name as in the file (`NET_RX`).
        Softirqs = "softirqs",
        /// /proc/net/softnet_stat. Subject `cpuN`; names `processed`, `dropped`, `time_squeeze`, `received_rps`, `flow_limit`.
        Softnet = "softnet",
        /// /proc/schedstat, where the kernel has it. Subject `cpuN`; names `run_ns`, `wait_ns`, `slices`.
        Schedstat = "schedstat",
        /// /proc/vmstat. Subject empty; name as in the file.
        Vmstat = "vmstat",
        /// /proc/meminfo, in bytes. Subject empty; name as in the file.
        Meminfo = "meminfo",
        /// /sys/kernel/slab, caches of memory cgroups only. Subject is the cache; names `objects` (in use), `bytes` (of its slabs).
        Slab = "slab",
        /// /proc/pressure. Subject `cpu`, `memory`, `io`, `irq`; names `some_us`, `full_us` (total stall time in µs).
        Pressure = "pressure",
        /// /sys/class/net/DEV/statistics. Subject DEV; name as in the file.
        NicStatistics = "nic",
        /// Driver statistics from the ethtool ioctl. Subject DEV; name as the driver gives it.
        Ethtool = "ethtool",
        /// /sys/class/net/DEV/queues/tx-N/tx_timeout. Subject DEV; name `tx-N`.
        TxTimeout = "tx-timeout",
        /// CPU quota of a cgroup. Subject is its path; names `quota_us`, `period_us` (gauges), `nr_periods`, `nr_throttled`,
        /// `throttled_us`.
        CgroupCpu = "cgroup-cpu",
        /// Memory of a cgroup. Subject is its path; names `limit_bytes`, `high_bytes` (v2 memory.high), `usage_bytes` (gauges), and
        /// events: `limit_hits` (v2 memory.events max, v1 failcnt), `high_hits`, `oom`, `oom_kill`.
        CgroupMemory = "cgroup-memory",
        /// The kernel's own counts. Subject is the hierarchy (`memory`, `unified`); names `tracked`, `live`, `dying`.
        CgroupTree = "cgroup-tree",
        /// /proc/sys/net/netfilter. Subject empty; names `nf_conntrack_count`, `nf_conntrack_max`.
        Conntrack = "conntrack",
        /// Our own stack sampling. Subject `cpuN`; names `lost` (the ring or the store was full), `throttled_us` (throttled by the
        /// kernel).
        Sampler = "sampler",
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Point {
    pub at: Time,
    pub value: u64,
}

/// How much a counter moved between two moments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delta {
    pub from: Point,
    pub to: Point,
}

impl Delta {
    /// Zero if the counter went backwards (it was reset).
    pub fn amount(&self) -> u64 {
        self.to.value.saturating_sub(self.from.value)
    }

    pub fn over(&self) -> Duration {
        self.to.at.since(self.from.at)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Series {
    pub source: Source,
    pub subject: String,
    pub name: String,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(from = "Vec<(Series, Vec<Point>)>", into = "Vec<(Series, Vec<Point>)>")]
pub struct Counters {
    series: Vec<(Series, Vec<Point>)>,
    index: HashMap<Source, HashMap<String, HashMap<String, usize>>>,
}

impl Counters {
    pub fn push(&mut self, source: Source, subject: &str, name: &str, at: Time, value: u64) {
        let i = self.series_index(source, subject, name);
        self.series[i].1.push(Point { at, value });
    }

    fn series_index(&mut self, source: Source, subject: &str, name: &str) -> usize {
        let names = self.index.entry(source).or_default();
        // Looked up twice rather than by `entry`, which would allocate the two strings on every push.
        if !names.contains_key(subject) {
            names.insert(subject.to_owned(), HashMap::new());
        }
        let names = names.get_mut(subject).expect("inserted above");
        if let Some(&i) = names.get(name) {
            return i;
        }
        let i = self.series.len();
        names.insert(name.to_owned(), i);
        let series = Series { source, subject: subject.to_owned(), name: name.to_owned() };
        self.series.push((series, Vec::new()));
        i
    }

    /// All values of a series, oldest first. Empty if it was never seen.
    pub fn points(&self, source: Source, subject: &str, name: &str) -> &[Point] {
        self.index
            .get(&source)
            .and_then(|subjects| subjects.get(subject))
            .and_then(|names| names.get(name))
            .map_or(&[], |&i| self.series[i].1.as_slice())
    }

    pub fn last(&self, source: Source, subject: &str, name: &str) -> Option<u64> {
        self.points(source, subject, name).last().map(|p| p.value)
    }

    /// From the first to the last value; zero movement if there is only one, `None` if the series was never seen.
    pub fn delta(&self, source: Source, subject: &str, name: &str) -> Option<Delta> {
        let points = self.points(source, subject, name);
        Some(Delta { from: *points.first()?, to: *points.last()? })
    }

    /// How much a counter moved; `None` if it was never seen.
    pub fn moved(&self, source: Source, subject: &str, name: &str) -> Option<u64> {
        self.delta(source, subject, name).map(|d| d.amount())
    }

    /// When a counter last moved, if that was long before `end`: at least three times its longest pause between two moves, since the
    /// interval of looks at a counter that does not move is unknown.
    pub fn stopped(&self, source: Source, subject: &str, name: &str, end: Time) -> Option<Time> {
        const LONG: u32 = 3;
        let points = self.points(source, subject, name);
        let moves: Vec<Time> =
            points.windows(2).filter(|two| two[0].value != two[1].value).map(|two| two[1].at).collect();
        let longest_pause = moves.windows(2).map(|two| two[1].since(two[0])).max()?;
        let last = *moves.last()?;
        (end.since(last) > longest_pause.saturating_mul(LONG)).then_some(last)
    }

    /// The subjects of a source, sorted.
    pub fn subjects(&self, source: Source) -> Vec<&str> {
        let mut subjects: Vec<&str> =
            self.index.get(&source).map(|s| s.keys().map(String::as_str).collect()).unwrap_or_default();
        subjects.sort_unstable();
        subjects
    }

    /// The names under a source and subject, sorted.
    pub fn names(&self, source: Source, subject: &str) -> Vec<&str> {
        let mut names: Vec<&str> = self
            .index
            .get(&source)
            .and_then(|s| s.get(subject))
            .map(|n| n.keys().map(String::as_str).collect())
            .unwrap_or_default();
        names.sort_unstable();
        names
    }

    pub fn has(&self, source: Source) -> bool {
        self.index.contains_key(&source)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&Series, &[Point])> {
        self.series.iter().map(|(series, points)| (series, points.as_slice()))
    }

    pub fn is_empty(&self) -> bool {
        self.series.is_empty()
    }

    pub fn append(&mut self, later: Counters) {
        for (series, points) in later.series {
            let i = self.series_index(series.source, &series.subject, &series.name);
            self.series[i].1.extend(points);
        }
    }
}

/// Equal if they hold the same series with the same points, whatever the order of the series.
impl PartialEq for Counters {
    fn eq(&self, other: &Counters) -> bool {
        self.series.len() == other.series.len()
            && self.iter().all(|(s, points)| other.points(s.source, &s.subject, &s.name) == points)
    }
}

impl From<Vec<(Series, Vec<Point>)>> for Counters {
    fn from(series: Vec<(Series, Vec<Point>)>) -> Counters {
        let mut counters = Counters::default();
        for (s, points) in series {
            let i = counters.series_index(s.source, &s.subject, &s.name);
            counters.series[i].1.extend(points);
        }
        counters
    }
}

impl From<Counters> for Vec<(Series, Vec<Point>)> {
    fn from(counters: Counters) -> Vec<(Series, Vec<Point>)> {
        counters.series
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_has_stopped_if_it_pauses_for_much_longer_than_ever_before() {
        let mut counters = Counters::default();
        let stopped = |counters: &Counters, end| counters.stopped(Source::Softnet, "cpu1", "dropped", Time(end));
        for (at, value) in [(10, 5), (100, 5), (102, 6), (104, 9), (107, 11)] {
            counters.push(Source::Softnet, "cpu1", "dropped", Time(at), value);
        }
        assert_eq!(stopped(&counters, 116), None, "looks are up to three apart");
        assert_eq!(stopped(&counters, 117), Some(Time(107)));
        let mut once = Counters::default();
        once.push(Source::Softnet, "cpu1", "dropped", Time(1), 0);
        once.push(Source::Softnet, "cpu1", "dropped", Time(2), 1);
        assert_eq!(stopped(&once, 1000), None, "one move says nothing about the next");
    }
}
