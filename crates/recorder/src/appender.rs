//! Writes evidence into the file, and keeps account of what could not be written.

use crate::warn;
use coroner_evidence::recording::{FindingRow, PROBE, RecordingError, Writer};
use coroner_evidence::{CoreTicks, Evidence, Process, Thread, ThreadSample, Unseen, Wall};
use coroner_profile::recording::SampleWriter;
use std::time::{Duration, SystemTime};

/// How often [`Appender::take`] commits; the recorder's store has its own pace.
const COMMIT_EVERY: Duration = Duration::from_secs(1);
/// Evidence that does not fit on the disk waits in two parts. When the newer part is this old, the older part is dropped: 30 to
/// 60 s are kept …
const PART: Duration = Duration::from_secs(30);
/// … within this limit, as the recorder must stay small.
const MOST_WAITING_BYTES: usize = 16 << 20;

pub struct Appender {
    writer: Writer,
    /// Not in the file yet.
    waiting: Evidence,
    waiting_bytes: usize,
    /// Everything before this is in the file, in `older`, or dropped.
    waiting_from: SystemTime,
    /// What has waited for longer, and since when.
    older: Option<(Evidence, SystemTime)>,
    older_bytes: usize,
    tried: SystemTime,
    /// Dropped, but not noted in the file yet.
    gap: Option<Gap>,
    complained: bool,
    pub lost: Duration,
    /// Number of core readings in the file.
    pub looks: usize,
}

struct Gap {
    from: SystemTime,
    to: SystemTime,
    why: String,
}

impl Gap {
    fn unseen(&self) -> Unseen {
        let seconds = self.to.duration_since(self.from).unwrap_or_default().as_secs_f64();
        let (from, to) = (Wall::from(self.from), Wall::from(self.to));
        Unseen {
            about: None,
            probe: PROBE.to_owned(),
            what: format!("{seconds:.1} seconds of this recording, {from} to {to}"),
            why: self.why.clone(),
            how_to_see: "free disk space and record again".to_owned(),
        }
    }
}

impl Appender {
    pub fn new(writer: Writer) -> Appender {
        let now = SystemTime::now();
        Appender {
            writer,
            waiting: Evidence::default(),
            waiting_bytes: 0,
            waiting_from: now,
            older: None,
            older_bytes: 0,
            tried: now,
            gap: None,
            complained: false,
            lost: Duration::ZERO,
            looks: 0,
        }
    }

    /// Takes a fragment, and commits when it is time.
    pub fn take(&mut self, fragment: Evidence) {
        self.hold(fragment);
        if self.is_due() {
            let _ = self.try_commit();
        }
    }

    /// Whether it is time for the next commit.
    pub fn is_due(&self) -> bool {
        // A wall clock that was set back must not delay it.
        self.tried.elapsed().map_or(true, |since| since >= COMMIT_EVERY)
    }

    /// Whether the last commit failed.
    pub fn is_stuck(&self) -> bool {
        self.complained
    }

    /// Takes a fragment for the next commit.
    pub fn hold(&mut self, fragment: Evidence) {
        self.waiting_bytes += bytes_of(&fragment);
        self.waiting.append(fragment);
    }

    pub fn writer(&mut self) -> &mut Writer {
        &mut self.writer
    }

    /// Writes what waits into the file. What does not fit keeps waiting, within bounds.
    pub fn try_commit(&mut self) -> Result<(), RecordingError> {
        self.try_commit_with(&mut SampleWriter::default())
    }

    /// The same, with pending samples.
    pub fn try_commit_with(&mut self, samples: &mut SampleWriter) -> Result<(), RecordingError> {
        self.try_parts(samples)?;
        if std::mem::take(&mut self.complained) {
            warn("the disk can be written again; recording continues");
        }
        Ok(())
    }

    /// The same without samples. More follows that may not fit, so it does not report yet that the disk can be written again.
    pub fn try_commit_first(&mut self) -> Result<(), RecordingError> {
        self.try_parts(&mut SampleWriter::default())
    }

    fn try_parts(&mut self, samples: &mut SampleWriter) -> Result<(), RecordingError> {
        self.tried = SystemTime::now();
        self.commit(samples).map_err(|error| {
            if !std::mem::replace(&mut self.complained, true) {
                warn(&format!(
                    "{error}; recording continues in memory; only the last {} s or more are kept",
                    PART.as_secs()
                ));
            }
            if self.waiting_bytes + self.older_bytes > MOST_WAITING_BYTES {
                self.give_up(&error);
            } else if self.waiting_from.elapsed().is_ok_and(|since| since > PART) {
                self.give_up_older(&error);
            }
            error
        })
    }

    /// The last commit: everything; failing that, what is described only once; failing that, a note of the gap.
    pub fn take_leave(&mut self) -> Result<(), RecordingError> {
        let none = &mut SampleWriter::default();
        let Err(_) = self.commit(none) else { return Ok(()) };
        self.writer.use_reserve();
        let Err(error) = self.commit(none) else { return Ok(()) };
        self.give_up(&error);
        let Err(_) = self.commit(none) else { return Ok(()) };
        (self.waiting, self.older) = (Evidence::default(), None);
        self.commit(none)
    }

    pub fn finish(self, findings: &[FindingRow]) -> Result<(), RecordingError> {
        self.writer.finish(findings)
    }

    fn commit(&mut self, samples: &mut SampleWriter) -> Result<(), RecordingError> {
        if let Some((older, _)) = &self.older {
            self.writer.append(older)?;
            self.looks += older.core_times.len();
            (self.older, self.older_bytes) = (None, 0);
        }
        let told = self.gap.as_ref().map(Gap::unseen);
        let unseen = self.waiting.unseen.len();
        self.waiting.unseen.extend(told);
        if let Err(error) = samples.commit_with(&mut self.writer, &self.waiting) {
            self.waiting.unseen.truncate(unseen);
            return Err(error);
        }
        self.looks += self.waiting.core_times.len();
        self.waiting = Evidence::default();
        self.waiting_bytes = 0;
        self.waiting_from = SystemTime::now();
        self.gap = None;
        Ok(())
    }

    /// Drops everything that waits.
    fn give_up(&mut self, error: &RecordingError) {
        self.give_up_older(error);
        self.give_up_older(error);
    }

    /// Drops the older part of what waits, except what is recorded only once: later evidence makes no sense without it.
    /// The newer part becomes the older one.
    fn give_up_older(&mut self, error: &RecordingError) {
        let now = SystemTime::now();
        let newer = (std::mem::take(&mut self.waiting), self.waiting_from);
        self.older_bytes = std::mem::take(&mut self.waiting_bytes);
        self.waiting_from = now;
        let Some((lost, from)) = self.older.replace(newer) else { return };
        let to = self.older.as_ref().map_or(now, |(_, since)| *since);
        self.lost += to.duration_since(from).unwrap_or_default();
        let why = match error {
            RecordingError::DiskFull { .. } => "the disk was full".to_owned(),
            other => other.to_string(),
        };
        let from = self.gap.take().map_or(from, |gap| gap.from);
        self.gap = Some(Gap { from, to, why });
        let Evidence { node, mut clocks, mut processes, mut threads, cgroup_mounts, unseen, cost, .. } = lost;
        clocks.drain(..clocks.len().saturating_sub(1));
        if processes.len() * size_of::<Process>() + threads.len() * size_of::<Thread>() > MOST_WAITING_BYTES / 2 {
            (processes, threads) = Default::default();
        }
        let mut once =
            Evidence { node, clocks, processes, threads, cgroup_mounts, unseen, cost, ..Evidence::default() };
        if let Some((older, _)) = &mut self.older {
            once.append(std::mem::take(older));
            self.older_bytes = bytes_of(&once);
            *older = once;
        }
    }
}

/// Roughly its size in memory.
pub fn bytes_of(evidence: &Evidence) -> usize {
    let cores: usize = evidence.core_times.iter().map(|t| t.cores.len() * size_of::<CoreTicks>()).sum();
    let points: usize = evidence.counters.iter().map(|(_, points)| size_of_val(points)).sum();
    let log: usize = evidence.log.iter().map(|line| line.text.len() + 64).sum();
    let zombies: usize = evidence
        .zombie_scans
        .iter()
        .map(|scan| {
            let paths: usize = scan.zombies.iter().map(|z| z.path.len()).sum();
            // A file's path is about as large as the struct.
            paths + size_of_val(&*scan.zombies) + size_of_val(&*scan.holds) + size_of_val(&*scan.files) * 2
        })
        .sum();
    cores
        + points
        + log
        + zombies
        + evidence.thread_samples.len() * size_of::<ThreadSample>()
        // Names and paths are about as large as the structs.
        + evidence.processes.len() * size_of::<Process>() * 2
        + evidence.threads.len() * size_of::<Thread>() * 2
}

#[cfg(test)]
mod tests {
    use super::*;
    use coroner_evidence::recording::read;
    use coroner_evidence::{CoreTimes, LogLine, Node, Time};
    use std::path::Path;
    use std::process::Command;

    /// A small file system, unmounted on drop, also if the test fails.
    struct Tmpfs(tempfile::TempDir);

    impl Tmpfs {
        fn mount(size: &str) -> Option<Tmpfs> {
            let directory = tempfile::tempdir().unwrap();
            let options = format!("size={size},mode=755");
            let mut mount = Command::new("mount");
            mount.args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(directory.path());
            if mount.output().is_ok_and(|out| out.status.success()) {
                return Some(Tmpfs(directory));
            }
            coroner_lab::skip(&format!("needs root to mount a tmpfs of {size}"));
            None
        }

        fn path(&self) -> &Path {
            self.0.path()
        }
    }

    impl Drop for Tmpfs {
        fn drop(&mut self) {
            let _ = Command::new("umount").arg("-l").arg(self.path()).status();
        }
    }

    fn look(i: u64) -> Evidence {
        let cores = vec![CoreTicks::default(); 2];
        Evidence { core_times: vec![CoreTimes { at: Time::from_millis(i), cores }], ..Evidence::default() }
    }

    fn log(bytes: usize) -> Evidence {
        let line =
            LogLine { at: Time(1), stamp_us: 1, sequence: 1, level: 4, text: "x".repeat(bytes), ..LogLine::default() };
        Evidence { log: vec![line], ..look(7) }
    }

    fn take_now(recorder: &mut Appender, fragment: Evidence) {
        recorder.tried = SystemTime::UNIX_EPOCH;
        recorder.take(fragment);
    }

    fn missing(evidence: &Evidence) -> Vec<&Unseen> {
        evidence.unseen.iter().filter(|u| u.probe == PROBE).collect()
    }

    #[test]
    fn a_gap_from_a_full_disk_is_noted_in_the_file() {
        let Some(tmpfs) = Tmpfs::mount("2m") else { return };
        let path = tmpfs.path().join("a.coroner");
        let mut recorder = Appender::new(Writer::create(&path).unwrap());
        take_now(&mut recorder, Evidence { node: Some(Node::default()), ..look(1) });
        assert_eq!((recorder.looks, recorder.lost), (1, Duration::ZERO));
        // More than fits on the disk, and more than may wait.
        take_now(&mut recorder, log(MOST_WAITING_BYTES + 1));
        assert!(recorder.lost > Duration::ZERO && recorder.waiting.log.is_empty());
        take_now(&mut recorder, look(2));
        assert_eq!(recorder.looks, 2, "small things still fit");
        recorder.take_leave().unwrap();
        recorder.finish(&[]).unwrap();
        let evidence = read(&path).unwrap().evidence;
        let [told] = missing(&evidence)[..] else { panic!("{:?}", evidence.unseen) };
        assert!(told.what.contains("seconds of this recording"), "{told:?}");
        assert_eq!(told.why, "the disk was full");
        assert_eq!(evidence.core_times.len(), 2);
    }

    #[test]
    fn the_gap_is_noted_even_if_the_disk_stays_full_to_the_end() {
        let Some(tmpfs) = Tmpfs::mount("2m") else { return };
        let (path, ballast) = (tmpfs.path().join("a.coroner"), tmpfs.path().join("ballast"));
        let mut recorder = Appender::new(Writer::create(&path).unwrap());
        take_now(&mut recorder, look(1));
        // Fills the disk to the last byte: fails when nothing more fits.
        assert!(std::fs::write(&ballast, vec![7; 2 << 20]).is_err());
        take_now(&mut recorder, log(300_000));
        assert_eq!((recorder.waiting.log.len(), recorder.lost), (1, Duration::ZERO), "it waits for room");
        recorder.take_leave().unwrap();
        assert!(recorder.lost > Duration::ZERO);
        recorder.finish(&[]).unwrap();
        let recording = read(&path).unwrap();
        assert!(recording.about.sealed);
        assert_eq!(missing(&recording.evidence).len(), 1, "{:?}", recording.evidence.unseen);
    }

    #[test]
    fn of_evidence_that_waits_for_long_the_older_part_is_dropped() {
        let Some(tmpfs) = Tmpfs::mount("2m") else { return };
        let (path, ballast) = (tmpfs.path().join("a.coroner"), tmpfs.path().join("ballast"));
        let mut recorder = Appender::new(Writer::create(&path).unwrap());
        assert!(std::fs::write(&ballast, vec![7; 2 << 20]).is_err());
        for part in 0..4 {
            // Too large for the space left.
            take_now(&mut recorder, log(300_000));
            take_now(&mut recorder, Evidence { node: (part == 0).then(Node::default), ..look(10 + part) });
            recorder.waiting_from -= PART;
        }
        assert!(recorder.lost > Duration::ZERO);
        std::fs::remove_file(&ballast).unwrap();
        recorder.take_leave().unwrap();
        recorder.finish(&[]).unwrap();
        let evidence = read(&path).unwrap().evidence;
        let kept: Vec<Time> = evidence.core_times.iter().map(|look| look.at).collect();
        assert!(kept.contains(&Time::from_millis(13)) && kept.contains(&Time::from_millis(12)), "{kept:?}");
        assert!(!kept.contains(&Time::from_millis(10)) && evidence.node.is_some(), "{kept:?}");
        assert_eq!(missing(&evidence).len(), 1, "{:?}", evidence.unseen);
    }

    #[test]
    fn nothing_is_lost_if_the_disk_gets_room_in_time() {
        let Some(tmpfs) = Tmpfs::mount("2m") else { return };
        let (path, ballast) = (tmpfs.path().join("a.coroner"), tmpfs.path().join("ballast"));
        let mut recorder = Appender::new(Writer::create(&path).unwrap());
        assert!(std::fs::write(&ballast, vec![7; 2 << 20]).is_err());
        take_now(&mut recorder, log(300_000));
        take_now(&mut recorder, look(8));
        std::fs::remove_file(&ballast).unwrap();
        recorder.take_leave().unwrap();
        recorder.finish(&[]).unwrap();
        let evidence = read(&path).unwrap().evidence;
        assert_eq!((evidence.log.len(), evidence.core_times.len()), (1, 2));
        assert!(missing(&evidence).is_empty());
    }
}
