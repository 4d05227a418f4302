//! What scenarios read to verify their problem: thread times, core times, packet counters.

use anyhow::{Context, Result, anyhow, ensure};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::collections::BTreeMap;
use std::fs;

/// The fields of /proc/PID/stat that the lab needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaskStat {
    pub parent: u32,
    pub start_time: u64,
    /// The core on which it ran last.
    pub core: u32,
    /// 0 ordinary, 1 SCHED_FIFO.
    pub policy: u32,
}

fn parse_stat(text: &str) -> Option<TaskStat> {
    // The name may contain spaces and parentheses, so start after the last `)`, at field 3 (state).
    let fields: Vec<&str> = text.get(text.rfind(')')? + 1..)?.split_ascii_whitespace().collect();
    let field = |n: usize| fields.get(n - 3).copied();
    Some(TaskStat {
        parent: field(4)?.parse().ok()?,
        start_time: field(22)?.parse().ok()?,
        core: field(39)?.parse().ok()?,
        policy: field(41)?.parse().ok()?,
    })
}

/// `None` if there is no such thread.
pub fn task_stat(tid: u32) -> Option<TaskStat> {
    parse_stat(&fs::read_to_string(format!("/proc/{tid}/stat")).ok()?)
}

pub fn start_time(pid: u32) -> Option<u64> {
    task_stat(pid).map(|s| s.start_time)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThreadTimes {
    pub ran_ns: u64,
    /// On a run queue.
    pub waited_ns: u64,
}

/// /proc/TID/schedstat; needs CONFIG_SCHED_INFO, which every distribution has.
pub fn thread_times(tid: u32) -> Result<ThreadTimes> {
    let path = format!("/proc/{tid}/schedstat");
    let text = fs::read_to_string(&path).with_context(|| path.clone())?;
    let mut numbers = text.split_ascii_whitespace().map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(ran_ns)), Some(Ok(waited_ns))) => Ok(ThreadTimes { ran_ns, waited_ns }),
        _ => Err(anyhow!("{path}: expected run time and wait time, got {text:?}")),
    }
}

/// Processes whose parent is `pid`.
pub fn children_of(pid: u32) -> Vec<u32> {
    processes().filter(|&p| task_stat(p).is_some_and(|s| s.parent == pid)).collect()
}

/// The threads of a process, in order.
pub fn threads_of(pid: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let mut tids: Vec<u32> = tasks.filter_map(|e| e.file_name().to_str()?.parse().ok()).collect();
    tids.sort_unstable();
    tids
}

/// Every process this process can see.
pub fn processes() -> impl Iterator<Item = u32> {
    fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(|e| e.file_name().to_str()?.parse().ok())
}

pub fn comm_of(pid: u32) -> Option<String> {
    fs::read_to_string(format!("/proc/{pid}/comm")).ok().map(|c| c.trim_end().to_owned())
}

/// Busy and total time per core since boot, in clock ticks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CoreTimes(BTreeMap<u32, (u64, u64)>);

impl CoreTimes {
    pub fn now() -> Result<CoreTimes> {
        Ok(CoreTimes(parse_core_times(&fs::read_to_string("/proc/stat").context("/proc/stat")?)))
    }

    /// How busy each core was since `before`, in percent.
    pub fn busy_percent_since(&self, before: &CoreTimes) -> BTreeMap<u32, u64> {
        let rates = self.0.iter().filter_map(|(core, (busy, total))| {
            let (busy_then, total_then) = before.0.get(core)?;
            let total = total.saturating_sub(*total_then);
            let percent = (busy.saturating_sub(*busy_then) * 100).checked_div(total)?;
            Some((*core, percent))
        });
        rates.collect()
    }
}

fn parse_core_times(text: &str) -> BTreeMap<u32, (u64, u64)> {
    let cores = text.lines().filter_map(|line| {
        let (name, rest) = line.split_once(' ')?;
        let core = name.strip_prefix("cpu")?.parse().ok()?;
        // user nice system idle iowait irq softirq steal; user already includes guest time.
        let ticks: Vec<u64> = rest.split_ascii_whitespace().take(8).map_while(|t| t.parse().ok()).collect();
        let idle = ticks.get(3)?.saturating_add(*ticks.get(4)?);
        let total = ticks.iter().fold(0u64, |sum, t| sum.saturating_add(*t));
        Some((core, (total.saturating_sub(idle), total)))
    });
    cores.collect()
}

/// CPU time of all cores since boot.
pub fn busy_ns() -> Result<u64> {
    let ticks: u64 = CoreTimes::now()?.0.values().map(|(busy, _)| busy).sum();
    Ok(ticks * ns_per_tick())
}

/// CPU time of a process's children that have ended.
pub fn children_ns(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // Fields 16 and 17; the first after the name is field 3.
    let fields: Vec<&str> = text.get(text.rfind(')')? + 1..)?.split_ascii_whitespace().collect();
    let field = |n: usize| fields.get(n - 3)?.parse::<u64>().ok();
    Some((field(16)? + field(17)?) * ns_per_tick())
}

fn ns_per_tick() -> u64 {
    1_000_000_000 / rustix::param::clock_ticks_per_second().max(1)
}

/// Counters of one network device in the namespace of process `pid`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DeviceCounters {
    pub rx_packets: u64,
    pub tx_packets: u64,
    pub tx_dropped: u64,
}

pub fn device_counters(pid: u32, device: &str) -> Result<DeviceCounters> {
    let path = format!("/proc/{pid}/net/dev");
    let text = fs::read_to_string(&path).with_context(|| path.clone())?;
    parse_device(&text, device).ok_or_else(|| anyhow!("{path}: no counters of {device}"))
}

fn parse_device(text: &str, device: &str) -> Option<DeviceCounters> {
    let line = text.lines().find_map(|l| l.trim_start().strip_prefix(device)?.strip_prefix(':'))?;
    let n: Vec<u64> = line.split_ascii_whitespace().map_while(|t| t.parse().ok()).collect();
    Some(DeviceCounters { rx_packets: *n.get(1)?, tx_packets: *n.get(9)?, tx_dropped: *n.get(11)? })
}

/// The cores this process may use, in order.
pub fn allowed_cores() -> Result<Vec<u32>> {
    let set = sched_getaffinity(None).context("cannot read the affinity of this process")?;
    Ok((0..CpuSet::MAX_CPU).filter(|&c| set.is_set(c)).map(|c| c as u32).collect())
}

/// Keeps the calling thread, or the thread `tid`, on these cores.
pub fn pin(tid: Option<u32>, cores: &[u32]) -> Result<()> {
    ensure!(!cores.is_empty(), "no core left to run on");
    let mut set = CpuSet::new();
    for &core in cores {
        ensure!((core as usize) < CpuSet::MAX_CPU, "core {core} is beyond CpuSet's limit");
        set.set(core as usize);
    }
    let pid = tid.and_then(|t| rustix::process::Pid::from_raw(t as i32));
    sched_setaffinity(pid, &set).with_context(|| format!("cannot pin to cores {cores:?}"))
}

/// Lets a thread run on every core the system has.
pub fn pin_anywhere(tid: u32) -> Result<()> {
    // The kernel ignores those that do not exist.
    let all: Vec<u32> = (0..CpuSet::MAX_CPU as u32).collect();
    pin(Some(tid), &all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_survives_a_name_with_brackets() {
        let text = "7 (a) b (c) R 3 7 7 0 -1 0 0 0 0 0 1 2 0 0 20 0 1 0 4242 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 17 5 50 1 0";
        assert_eq!(parse_stat(text), Some(TaskStat { parent: 3, start_time: 4242, core: 5, policy: 1 }));
        assert_eq!(parse_stat("7 (cut) R 3"), None);
        assert_eq!(parse_stat(""), None);
        let me = task_stat(std::process::id()).unwrap();
        assert!(me.start_time > 0 && me.parent > 0);
    }

    #[test]
    fn busy_is_a_share_of_the_elapsed_time() {
        let before =
            CoreTimes(parse_core_times("cpu  9 9 9 9 9\ncpu0 10 0 0 90 0 0 0 0 0 0\ncpu1 0 0 0 100 0 0 0 0 0 0\n"));
        let after =
            CoreTimes(parse_core_times("cpu0 85 0 0 115 0 0 0 0 0 0\ncpu1 0 0 0 150 50 0 0 0 0 0\ncpu9 1\nintr 5\n"));
        assert_eq!(after.busy_percent_since(&before), BTreeMap::from([(0, 75), (1, 0)]));
    }

    #[test]
    fn device_counters_by_exact_name() {
        let text = "Inter-|   Receive\n face |bytes\n  v12: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n v1:100 20 0 0 0 0 0 0 300 40 0 50 0 0 0 0\n";
        assert_eq!(parse_device(text, "v1"), Some(DeviceCounters { rx_packets: 20, tx_packets: 40, tx_dropped: 50 }));
        assert_eq!(parse_device(text, "v2"), None);
        device_counters(std::process::id(), "lo").unwrap();
    }

    #[test]
    fn this_thread_has_run() {
        assert!(thread_times(std::process::id()).unwrap().ran_ns > 0);
        assert!(!allowed_cores().unwrap().is_empty());
    }
}
