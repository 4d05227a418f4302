//! One timed read of the root's memory statistics, guarded: with tens of thousands of dead memory cgroups the read itself can
//! hurt the node.
//!
//! Before Linux 5.8, v1's memory.numa_stat at the root walks every memory cgroup, live and dead, for each NUMA node and kind of
//! page: about 70 µs each on a large node, on one core without a break. With 68,680 that is 4.8 s, and some NIC drivers reset the
//! device after 5 s without a poll. We refuse such a read and report the estimate ("would take about 4.8 s") instead; kubelet's
//! own reads show in the profile. memory.stat keeps totals since 5.2, so it is still read there; before 5.2 it walks as well.

use std::fs::File;
use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::{Duration, Instant};

use coroner_evidence::{About, Evidence, StatRead, Time, probe};
use rustix::time::ClockId;

use super::census::parse_proc_cgroups;
use super::mounts::Hierarchy;
use crate::Root;
use crate::root::{clock, now};

/// A read that takes longer is reported as unfinished.
const LIMIT: Duration = Duration::from_secs(2);

/// If the first file takes this long, the second is not read.
const SLOW_ENOUGH: Duration = Duration::from_millis(500);

const NUMA_STAT_WALKS_BEFORE: (u32, u32) = (5, 8);
const STAT_WALKS_BEFORE: (u32, u32) = (5, 2);

/// No walk over more memory cgroups than this: it would take 1.4 s of one core.
const MAX_WALKED: u64 = 20_000;
const NS_PER_MEMCG: u64 = 70_000;

#[derive(Debug)]
pub(super) struct StatReader {
    limit: Duration,
    out: Option<Out>,
}

impl Default for StatReader {
    fn default() -> StatReader {
        StatReader { limit: LIMIT, out: None }
    }
}

/// A reader thread.
#[derive(Debug)]
struct Out {
    messages: Receiver<Message>,
    /// Set when a read is overdue: the thread then reads no other file.
    stop: Arc<AtomicBool>,
    /// Start of the current read (our clock and an instant), its file, and whether it was reported as overdue.
    reading: Option<(Time, Instant, String, bool)>,
}

#[derive(Debug)]
enum Message {
    Starts(Time, Instant, String),
    Done(StatRead),
    Failed(String, std::io::Error),
}

impl StatReader {
    pub fn start(&mut self, root: &Root, memory: &Hierarchy, at: Time, evidence: &mut Evidence) {
        if self.out.is_some() {
            return;
        }
        let tracked =
            root.read("/proc/cgroups").ok().and_then(|text| parse_proc_cgroups(&text, "memory").ok().flatten());
        let kernel = root.read_line("/proc/sys/kernel/osrelease");
        let version = kernel.as_deref().and_then(parse_release);
        let mut files = Vec::new();
        // v2's memory.numa_stat is newer than the totals, so it never walked.
        let numa_walks_before = if memory.version == 1 { NUMA_STAT_WALKS_BEFORE } else { (0, 0) };
        for (file, walks_before) in [("memory.stat", STAT_WALKS_BEFORE), ("memory.numa_stat", numa_walks_before)] {
            let path = memory.file(file);
            match danger(version, tracked, walks_before) {
                None => files.push((root.path(&path), path)),
                Some(danger) => evidence.unseen_about(
                    probe::CGROUPS,
                    About::DangerousStatsRead,
                    format!("how long a read of {path} takes"),
                    format!(
                        "too dangerous to time: {} on Linux {}",
                        danger.describe(),
                        kernel.as_deref().unwrap_or("(unknown)")
                    ),
                    format!("drain the node, then: time cat {path}"),
                ),
            }
        }
        if files.is_empty() {
            return;
        }
        let (sender, messages) = channel();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        // `at` is from the caller's clock; the reads are timestamped relative to it.
        let offset = at.0 as i128 - now().0 as i128;
        let spawned = std::thread::Builder::new()
            .name("stat-read".to_owned())
            .spawn(move || read_all(files, &sender, &stopped, offset));
        match spawned {
            Ok(_) => self.out = Some(Out { messages, stop, reading: None }),
            Err(e) => evidence.unseen_about(
                probe::CGROUPS,
                About::StatsRead,
                "how long a read of the memory statistics takes",
                format!("cannot start a reader thread: {e}"),
                "raise the task limit",
            ),
        }
    }

    pub fn collect(&mut self, evidence: &mut Evidence) -> bool {
        let Some(out) = &mut self.out else { return true };
        loop {
            match out.messages.try_recv() {
                Ok(Message::Starts(at, since, path)) => out.reading = Some((at, since, path, false)),
                Ok(Message::Done(read)) => {
                    out.reading = None;
                    evidence.stat_reads.push(read);
                }
                Ok(Message::Failed(path, e)) => {
                    out.reading = None;
                    // Not every kernel has both files at the root of v2.
                    if e.kind() != std::io::ErrorKind::NotFound {
                        evidence.unseen_about(
                            probe::CGROUPS,
                            About::StatsRead,
                            format!("how long a read of {path} takes"),
                            e.to_string(),
                            "run as root",
                        );
                    }
                }
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => {
                    self.out = None;
                    return true;
                }
            }
        }
        if let Some((at, since, path, told)) = &mut out.reading
            && !*told
            && since.elapsed() >= self.limit
        {
            *told = true;
            out.stop.store(true, Ordering::Relaxed);
            evidence.stat_reads.push(StatRead {
                at: *at,
                path: path.clone(),
                took_ns: since.elapsed().as_nanos() as u64,
                cpu_ns: None,
                finished: false,
            });
        }
        false
    }
}

fn read_all(files: Vec<(PathBuf, String)>, sender: &Sender<Message>, stop: &AtomicBool, offset: i128) {
    for (place, path) in files {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let at = Time((now().0 as i128 + offset).max(0) as u64);
        let started = Instant::now();
        if sender.send(Message::Starts(at, started, path.clone())).is_err() {
            return;
        }
        let cpu_started = clock(ClockId::ThreadCPUTime).0;
        let read = File::open(&place).and_then(read_and_forget);
        let took = started.elapsed();
        let cpu_ns = clock(ClockId::ThreadCPUTime).0.saturating_sub(cpu_started);
        let message = match read {
            Ok(()) => Message::Done(StatRead {
                at,
                path,
                took_ns: took.as_nanos() as u64,
                cpu_ns: Some(cpu_ns),
                finished: true,
            }),
            Err(e) => Message::Failed(path, e),
        };
        if sender.send(message).is_err() || took >= SLOW_ENOUGH {
            return;
        }
    }
}

fn read_and_forget(mut file: File) -> std::io::Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    let mut total = 0;
    // A statistics file has a few kilobytes per NUMA node; a larger file is something else.
    while total < 64 << 20 {
        match file.read(&mut buffer) {
            Ok(0) => break,
            Ok(n) => total += n,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

#[derive(Debug, PartialEq, Eq)]
enum Danger {
    Estimated { tracked: u64 },
    UnknownCount,
}

impl Danger {
    fn describe(&self) -> String {
        match self {
            Danger::Estimated { tracked } => {
                let seconds = tracked.saturating_mul(NS_PER_MEMCG) as f64 / 1e9;
                format!("{tracked} memory cgroups would take about {seconds:.1} s of one core")
            }
            Danger::UnknownCount => "an unknown number of memory cgroups would be walked".to_owned(),
        }
    }
}

/// Why not to read a file that walks all memory cgroups on kernels before `walks_before`. An unknown version counts as old.
fn danger(kernel: Option<(u32, u32)>, tracked: Option<u64>, walks_before: (u32, u32)) -> Option<Danger> {
    if kernel.unwrap_or((0, 0)) >= walks_before {
        return None;
    }
    match tracked {
        Some(tracked) if tracked > MAX_WALKED => Some(Danger::Estimated { tracked }),
        Some(_) => None,
        None => Some(Danger::UnknownCount),
    }
}

/// Why memory.stat of cgroups with many descendants must not be read here: the same walk, from another root.
pub(crate) fn why_not_read_sums(root: &Root, tracked: Option<u64>) -> Option<String> {
    let kernel = root.read_line("/proc/sys/kernel/osrelease");
    let danger = danger(kernel.as_deref().and_then(parse_release), tracked, STAT_WALKS_BEFORE)?;
    let kernel = kernel.as_deref().unwrap_or("(unknown)");
    Some(format!("too dangerous to read memory.stat: {} on Linux {kernel}", danger.describe()))
}

/// `5.4.0-1103-aws` → (5, 4).
pub(crate) fn parse_release(text: &str) -> Option<(u32, u32)> {
    let (major, rest) = text.trim().split_once('.')?;
    let minor = rest.split(|c: char| !c.is_ascii_digit()).next()?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rustix::fs::{FileType, Mode};
    use std::path::Path;

    fn node(kernel: &str, tracked: u64) -> (tempfile::TempDir, Root, Hierarchy) {
        let dir = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| crate::test_tree::write(dir.path(), path, text);
        write("proc/sys/kernel/osrelease", kernel);
        write("proc/cgroups", &format!("#subsys_name\thierarchy\tnum_cgroups\tenabled\nmemory\t4\t{tracked}\t1\n"));
        write("m/memory.stat", "cache 1\n");
        write("m/memory.numa_stat", "total=1 N0=1\n");
        let root = Root::at(dir.path());
        let memory = Hierarchy { version: 1, mount_point: "/m".into(), root: "/".into(), whole: true };
        (dir, root, memory)
    }

    fn collect_until(
        reader: &mut StatReader,
        evidence: &mut Evidence,
        mut enough: impl FnMut(&Evidence, bool) -> bool,
    ) {
        let started = Instant::now();
        loop {
            let done = reader.collect(evidence);
            if enough(evidence, done) {
                return;
            }
            assert!(started.elapsed() < Duration::from_secs(180), "nothing came back: {evidence:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn paths(evidence: &Evidence) -> Vec<&str> {
        evidence.stat_reads.iter().map(|r| r.path.as_str()).collect()
    }

    #[test]
    fn on_a_new_kernel_both_files_are_timed_whatever_the_count() {
        let (_dir, root, memory) = node("6.18.44", 68_680);
        let (mut reader, mut evidence) = (StatReader::default(), Evidence::default());
        reader.start(&root, &memory, Time::from_secs(1000), &mut evidence);
        collect_until(&mut reader, &mut evidence, |_, done| done);
        assert_eq!(paths(&evidence), ["/m/memory.stat", "/m/memory.numa_stat"]);
        for read in &evidence.stat_reads {
            assert!(read.finished && read.took_ns > 0 && read.cpu_ns.is_some());
            assert!(read.at.since(Time::from_secs(1000)) < Duration::from_secs(30), "stamped by the caller's clock");
        }
        assert_eq!(evidence.unseen, []);
    }

    #[test]
    fn on_an_old_kernel_a_dangerous_read_is_refused_and_estimated() {
        let (_dir, root, memory) = node("5.4.0-1103-aws", 68_680);
        let (mut reader, mut evidence) = (StatReader::default(), Evidence::default());
        reader.start(&root, &memory, Time::from_secs(1), &mut evidence);
        collect_until(&mut reader, &mut evidence, |_, done| done);
        assert_eq!(paths(&evidence), ["/m/memory.stat"]);
        let why = &evidence.unseen[0].why;
        assert!(why.contains("68680 memory cgroups would take about 4.8 s"), "{why}");
        assert!(why.contains("5.4.0-1103-aws"), "{why}");

        let (_dir, root, memory) = node("4.19.0-20-amd64", 30_000);
        let mut evidence = Evidence::default();
        let mut reader = StatReader::default();
        reader.start(&root, &memory, Time::from_secs(1), &mut evidence);
        assert!(reader.collect(&mut evidence), "no read is pending");
        assert_eq!((evidence.stat_reads.len(), evidence.unseen.len()), (0, 2));

        // A few cgroups on the same kernel are safe.
        let (_dir, root, memory) = node("4.19.0-20-amd64", 240);
        let mut evidence = Evidence::default();
        reader.start(&root, &memory, Time::from_secs(1), &mut evidence);
        collect_until(&mut reader, &mut evidence, |_, done| done);
        assert_eq!(evidence.stat_reads.len(), 2);
    }

    #[test]
    fn a_hanging_read_is_reported_once_not_repeated_and_reported_again_when_done() {
        let (dir, root, memory) = node("6.1.0", 10);
        // Opening a FIFO without a writer blocks.
        let fifo = dir.path().join("m/memory.stat");
        std::fs::remove_file(&fifo).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let (mut reader, mut evidence) = (StatReader::default(), Evidence::default());
        reader.limit = Duration::from_millis(50);
        reader.start(&root, &memory, Time::from_secs(1), &mut evidence);
        collect_until(&mut reader, &mut evidence, |e, _| !e.stat_reads.is_empty());
        let read = &evidence.stat_reads[0];
        assert!(!read.finished && read.took_ns >= 50_000_000 && read.cpu_ns.is_none());

        reader.start(&root, &memory, Time::from_secs(2), &mut evidence);
        assert!(!reader.collect(&mut evidence), "it is still pending");
        assert_eq!(evidence.stat_reads.len(), 1, "and reported only once");

        drop(open_writer(&fifo));
        collect_until(&mut reader, &mut evidence, |_, done| done);
        assert_eq!(paths(&evidence), ["/m/memory.stat", "/m/memory.stat"], "no second file is read");
        assert!(evidence.stat_reads[1].finished && evidence.stat_reads[1].at == evidence.stat_reads[0].at);
    }

    fn open_writer(fifo: &Path) -> File {
        File::options().write(true).open(fifo).unwrap()
    }

    #[test]
    fn releases() {
        assert_eq!(parse_release("6.18.44-fc-v445"), Some((6, 18)));
        assert_eq!(parse_release("5.4.0-1103-aws\n"), Some((5, 4)));
        assert_eq!(parse_release("6.1-rc3"), Some((6, 1)));
        assert_eq!(parse_release("next"), None);
        assert_eq!(danger(None, Some(30_000), (5, 8)), Some(Danger::Estimated { tracked: 30_000 }));
        assert_eq!(danger(Some((5, 4)), None, (5, 8)), Some(Danger::UnknownCount));
        assert_eq!(danger(Some((5, 8)), Some(30_000), (5, 8)), None);
    }

    proptest! {
        #[test]
        fn any_release_is_handled(text in "\\PC*") {
            parse_release(&text);
        }
    }
}
