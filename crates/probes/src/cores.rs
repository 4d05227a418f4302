//! How each core spends its time (/proc/stat), and how long threads wait for it (/proc/schedstat, where the kernel has it).

use coroner_evidence::cores::MAX_CORES;
use coroner_evidence::{CoreTicks, CoreTimes, Evidence, Source, Time, probe};

use crate::counter_file::{CoreNames, CounterFile, Moved, Words, core_number, lines};
use crate::root::{ParseError, Root};

const STAT: &str = "/proc/stat";
const SCHEDSTAT: &str = "/proc/schedstat";

/// Reads /proc/stat; meant for ten looks a second.
///
/// The kernel generates the whole file for its first byte (fs/proc/stat.c is one `show`), so a shorter read would save nothing;
/// parsing stops after the core lines.
#[derive(Debug)]
pub struct CoreTimeReader {
    file: CounterFile,
    /// Expected number of cores.
    cores: usize,
}

impl CoreTimeReader {
    pub fn new(root: &Root) -> CoreTimeReader {
        CoreTimeReader { file: CounterFile::new(root, STAT), cores: 0 }
    }

    pub fn look(&mut self, at: Time, evidence: &mut Evidence) {
        const WHAT: &str = "how each core spends its time";
        let Some(text) = self.file.look(probe::CORES, WHAT, evidence) else { return };
        let (cores, bad) = parse_stat(text, self.cores);
        if let Some(error) = bad {
            evidence.unseen(probe::CORES, WHAT, format!("{STAT}: {error}"), "please report this file");
        }
        if !cores.is_empty() {
            self.cores = cores.len();
            evidence.core_times.push(CoreTimes { at, cores });
        }
    }
}

/// The cores of /proc/stat, and the first core line that could not be parsed. Offline cores have no line.
pub fn parse_stat(text: &[u8], expected_cores: usize) -> (Vec<CoreTicks>, Option<ParseError>) {
    let mut cores = Vec::with_capacity(expected_cores.min(MAX_CORES));
    let mut bad = None;
    let mut seen_total = false;
    for (number, line) in lines(text) {
        if !line.starts_with(b"cpu") || cores.len() == MAX_CORES {
            break;
        }
        let mut words = Words(line);
        if words.word() == Some(b"cpu") {
            seen_total = true;
            continue;
        }
        match core_ticks(line) {
            Some(ticks) => cores.push(ticks),
            None => {
                bad.get_or_insert_with(|| ParseError::new(number, "cpuN and at least eight numbers"));
            }
        }
    }
    if cores.is_empty() && bad.is_none() {
        let line = if seen_total { 2 } else { 1 };
        bad = Some(ParseError::new(line, "a core line such as cpu0"));
    }
    (cores, bad)
}

fn core_ticks(line: &[u8]) -> Option<CoreTicks> {
    let mut words = Words(line);
    // The order of fs/proc/stat.c since 2.6.11; guest and guest_nice, which follow, are part of user and nice.
    Some(CoreTicks {
        core: core_number(words.word()?)?,
        user: words.number()?,
        nice: words.number()?,
        system: words.number()?,
        idle: words.number()?,
        iowait: words.number()?,
        irq: words.number()?,
        softirq: words.number()?,
        steal: words.number()?,
    })
}

/// Reads /proc/schedstat. Its absence (CONFIG_SCHEDSTATS off) is common and not noted as unseen: the schedstat of each thread
/// has the same information.
#[derive(Debug)]
pub struct SchedstatReader {
    file: CounterFile,
    names: CoreNames,
    moved: Moved,
}

impl SchedstatReader {
    pub fn new(root: &Root) -> SchedstatReader {
        SchedstatReader {
            file: CounterFile::new(root, SCHEDSTAT),
            names: CoreNames::default(),
            moved: Moved::new(Source::Schedstat),
        }
    }

    pub fn look(&mut self, at: Time, evidence: &mut Evidence) {
        let Ok(text) = self.file.read() else { return };
        match parse_schedstat(text) {
            Ok(cores) => {
                self.moved.begin();
                for core in cores {
                    let subject = self.names.get(core.core);
                    self.moved.note(subject, "run_ns", at, core.run_ns, evidence);
                    self.moved.note(subject, "wait_ns", at, core.wait_ns, evidence);
                    self.moved.note(subject, "slices", at, core.slices, evidence);
                }
            }
            Err(error) => evidence.unseen(
                probe::RUN_QUEUE,
                "how long threads wait for each core",
                format!("{SCHEDSTAT}: {error}"),
                "please report this file; waits are still read per thread",
            ),
        }
    }
}

/// The run queue counters of a core: nanoseconds since boot, except `slices`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CoreQueue {
    pub core: u32,
    pub run_ns: u64,
    pub wait_ns: u64,
    pub slices: u64,
}

/// Versions 15 to 17 differ only in the domain lines (Documentation/scheduler/sched-stats.rst); earlier versions predate cgroup v2.
pub fn parse_schedstat(text: &[u8]) -> Result<Vec<CoreQueue>, ParseError> {
    let mut lines = lines(text);
    let version = lines.next().and_then(|(_, line)| {
        let mut words = Words(line);
        (words.word()? == b"version").then(|| words.number()).flatten()
    });
    if version.is_none_or(|v| v < 15) {
        return Err(ParseError::new(1, "version 15 or later"));
    }
    let mut cores = Vec::new();
    for (number, line) in lines.filter(|(_, line)| line.starts_with(b"cpu")).take(MAX_CORES) {
        let core = core_queue(line).ok_or_else(|| ParseError::new(number, "cpuN and at least nine numbers"))?;
        cores.push(core);
    }
    Ok(cores)
}

fn core_queue(line: &[u8]) -> Option<CoreQueue> {
    let mut words = Words(line);
    let core = core_number(words.word()?)?;
    for _ in 0..6 {
        words.word()?;
    }
    Some(CoreQueue { core, run_ns: words.number()?, wait_ns: words.number()?, slices: words.number()? })
}

#[cfg(test)]
mod tests;
