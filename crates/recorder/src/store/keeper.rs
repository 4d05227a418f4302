//! The store's thread.

use super::{COMMIT_EVERY, Message, Records, StoreShared};
use crate::appender::{Appender, bytes_of};
use crate::heaviest::Heaviest;
use crate::segments::Segments;
use crate::status::Status;
use crate::{memory, warn};
use coroner_evidence::recording::{RecordingError, RollupRow, segments as names};
use coroner_evidence::{Clocks, Evidence, Node, Unseen, Wall, probe};
use coroner_profile::import::ImportReport;
use coroner_profile::live::Live;
use coroner_profile::model::Clock;
use coroner_profile::recording::{Origin, SampleWriter};
use std::collections::{BTreeMap, VecDeque};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Records arrive as often as commits: a commit waits this much longer so that it takes them along.
const WITH_RECORDS: Duration = Duration::from_millis(150);
/// Most bytes of records waiting while the disk is full: half a minute of 64 cores.
const MOST_RECORD_BYTES: usize = 8 << 20;
/// Most bytes of stack and function names in memory; beyond this, a new segment begins.
const MOST_DICTIONARY_BYTES: usize = 12 << 20;
/// Describing everything again is expensive: if no segment can be created, retry no more often than this.
const ANEW_AGAIN: Duration = Duration::from_secs(15);
/// Within this time, everything that a segment begins with has come.
const BEGINNING: Duration = Duration::from_secs(6);
/// How often freed memory goes back to the kernel: a crowd of processes is gone sooner than a segment ends.
const GIVE_BACK_EVERY: Duration = Duration::from_secs(120);
/// No segment is shorter, unless its dictionary is full.
const YOUNGEST: Duration = Duration::from_secs(20);
/// If the wall clock is set by more than this, in nanoseconds, a new segment begins.
const CLOCK_JUMP: i128 = 500_000_000;

/// The thread's state.
pub struct Keeper {
    segments: Segments,
    open: Option<OpenSegment>,
    /// `None` if stacks are not sampled.
    live: Option<Live>,
    /// `None` if nobody is told.
    heaviest: Option<Heaviest>,
    host: Option<String>,
    /// As last described.
    node: Option<Node>,
    /// Not decoded yet, oldest first.
    records: VecDeque<Records>,
    record_bytes: usize,
    rollups: Vec<RollupRow>,
    /// Samples dropped, by core.
    lost: BTreeMap<u32, u64>,
    /// Time without a segment.
    lost_time: Duration,
    committed: Instant,
    samples: u64,
    failed_commits: u64,
    trouble: Option<String>,
    sealing: Vec<JoinHandle<()>>,
    gave_back: Instant,
    /// Set after a segment could not be created.
    anew_not_before: Instant,
    shared: Arc<StoreShared>,
    status: Arc<Mutex<Status>>,
}

struct OpenSegment {
    path: PathBuf,
    inode: Option<u64>,
    /// Its size after everything was described.
    began_with: u64,
    file: Appender,
    samples: SampleWriter,
    origin: Origin,
    began: Instant,
    began_clocks: Clocks,
    /// The main loop was asked to describe everything again.
    anew_asked: bool,
    source_told: bool,
    lost_seconds: f64,
}

impl Keeper {
    pub fn new(
        segments: Segments,
        live: Option<Live>,
        heaviest: Option<Heaviest>,
        host: Option<String>,
        shared: Arc<StoreShared>,
        status: Arc<Mutex<Status>>,
    ) -> Keeper {
        Keeper {
            segments,
            open: None,
            live,
            heaviest,
            host,
            node: None,
            records: VecDeque::new(),
            record_bytes: 0,
            rollups: Vec::new(),
            lost: BTreeMap::new(),
            lost_time: Duration::ZERO,
            committed: Instant::now(),
            samples: 0,
            failed_commits: 0,
            trouble: None,
            sealing: Vec::new(),
            gave_back: Instant::now(),
            anew_not_before: Instant::now() + ANEW_AGAIN,
            shared,
            status,
        }
    }

    pub fn run(&mut self, messages: &Receiver<Message>) -> Result<(), RecordingError> {
        // So that records that come a moment later do not wait for another second.
        let every = COMMIT_EVERY + if self.live.is_some() { WITH_RECORDS } else { Duration::ZERO };
        let mut due = Instant::now() + every;
        loop {
            let mut early = Duration::ZERO;
            match messages.recv_timeout(due.saturating_duration_since(Instant::now())) {
                Ok(Message::Seen(evidence)) => self.hold(*evidence),
                Ok(Message::Anew(mut evidence, clocks)) => {
                    // Each segment names its node and boot from the first row on.
                    if evidence.node.is_none() {
                        evidence.node.clone_from(&self.node);
                    }
                    self.begin_segment(clocks);
                    self.hold(*evidence);
                    // So that a segment never exists without its beginning.
                    self.commit();
                }
                Ok(Message::Records(records)) => {
                    self.hold_records(records);
                    early = 2 * WITH_RECORDS;
                }
                Ok(Message::Rollup(minute)) => self.rollups.push(*minute),
                Ok(Message::Commit) => early = every,
                Ok(Message::Stop) | Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {}
            }
            if Instant::now() + early >= due {
                due = Instant::now() + every;
                self.commit();
            }
        }
        self.commit();
        if let (Some(heaviest), Some(live)) = (&mut self.heaviest, &self.live) {
            heaviest.tell(live.names());
        }
        let sealed = match self.open.take() {
            Some(mut open) => {
                let mut lost = open.samples.held();
                for (core, samples) in self.records.drain(..).flat_map(|records| records.samples()) {
                    *lost.entry(core).or_default() += samples;
                }
                self.lose(&mut open, lost);
                // Without it the loss stands only in the counters.
                let _ = open.tell_source(self.lost.values().sum());
                let told = open.file.take_leave();
                harmless(open.file.finish(&[])).and(told)
            }
            None => Err(RecordingError::Other {
                path: self.segments.directory().to_owned(),
                why: format!(
                    "nothing could be recorded: {}",
                    self.trouble.as_deref().unwrap_or("no data was collected")
                ),
            }),
        };
        for thread in self.sealing.drain(..) {
            let _ = thread.join();
        }
        self.segments.make_room(None, None);
        self.tell_status();
        sealed
    }

    fn hold(&mut self, evidence: Evidence) {
        if evidence.node.is_some() {
            self.node.clone_from(&evidence.node);
        }
        self.shared.in_flight.fetch_sub(bytes_of(&evidence), Ordering::Relaxed);
        if let Some(open) = &mut self.open {
            if let Some(clocks) = evidence.clocks.last()
                && (offset(clocks) - offset(&open.began_clocks)).abs() > CLOCK_JUMP
            {
                open.want_anew(&self.shared);
            }
            open.file.hold(evidence);
        }
    }

    fn hold_records(&mut self, records: Records) {
        self.shared.in_flight.fetch_sub(records.bytes.len(), Ordering::Relaxed);
        self.record_bytes += records.bytes.len();
        self.records.push_back(records);
        if self.record_bytes > MOST_RECORD_BYTES / 2 && self.trouble.is_none() {
            // A backlog, after the disk hung.
            self.commit();
        }
        while self.record_bytes > MOST_RECORD_BYTES {
            let Some(oldest) = self.records.pop_front() else { break };
            self.record_bytes -= oldest.bytes.len();
            for (core, samples) in oldest.samples() {
                *self.lost.entry(core).or_default() += samples;
            }
        }
    }

    /// Writes everything that waits into the file, then brings the directory within its limit.
    fn commit(&mut self) {
        let result = self.store();
        match result {
            Ok(()) if self.open.is_none() => {
                // `trouble` says so.
                if self.trouble.is_some() {
                    self.failed_commits += 1;
                    self.lost_time += self.committed.elapsed();
                }
                self.committed = Instant::now();
            }
            Ok(()) => {
                self.trouble = None;
                self.committed = Instant::now();
            }
            Err(error) => {
                self.failed_commits += 1;
                self.trouble = Some(error.to_string());
            }
        }
        if let (Some(heaviest), Some(live)) = (&mut self.heaviest, &self.live) {
            heaviest.tell_if_due(live.names());
        }
        let needed = self.shared.needed_from.load(Ordering::Relaxed);
        let open = self.open.as_ref().map(|open| open.path.as_path());
        self.segments.make_room(open, Some(needed).filter(|n| *n > 0).map(Wall));
        if let Some(open) = &mut self.open {
            let size = self.segments.size_of_open(&open.path);
            if open.began.elapsed() < BEGINNING {
                open.began_with = size;
            }
            if inode(&open.path) != open.inode {
                let why = format!("{} was removed or replaced by another program", open.path.display());
                if self.trouble.as_ref() != Some(&why) {
                    warn(&format!("{why}: its data is lost; trying to start a new segment"));
                }
                self.trouble = Some(why);
                open.want_anew(&self.shared);
            }
            // Otherwise what each segment begins with would be most of its content.
            let largest = self.segments.largest().max(open.began_with.saturating_mul(4));
            let full = (size > largest && open.began.elapsed() > YOUNGEST)
                || self.live.as_ref().is_some_and(|live| live.dictionary_bytes() > MOST_DICTIONARY_BYTES);
            let old = open.began.elapsed() >= names::LONGEST - Duration::from_secs(2);
            if (full || old) && Instant::now() >= self.anew_not_before {
                open.want_anew(&self.shared);
            }
        } else if Instant::now() >= self.anew_not_before {
            self.shared.wants_anew.store(true, Ordering::Relaxed);
            self.anew_not_before = Instant::now() + ANEW_AGAIN;
        }
        self.sealing.retain(|thread| !thread.is_finished());
        if self.gave_back.elapsed() > GIVE_BACK_EVERY {
            self.gave_back = Instant::now();
            memory::give_back();
        }
        self.tell_status();
    }

    fn store(&mut self) -> Result<(), RecordingError> {
        let Some(open) = &mut self.open else { return Ok(()) };
        if self.live.is_none() {
            open.file.try_commit()?;
        } else if self.trouble.is_some() || !open.source_told {
            // Evidence first: a file begins with it. Without room, samples keep waiting undecoded, which is bounded.
            open.file.try_commit_first()?;
        }
        if !open.source_told {
            open.tell_source(0)?;
        }
        while let Some(minute) = self.rollups.first() {
            open.file.writer().append_rollup(minute)?;
            self.rollups.remove(0);
        }
        if let Some(live) = &mut self.live {
            let OpenSegment { file, samples, .. } = open;
            let writer = file.writer();
            let mut stored = Ok(());
            while let Some(records) = self.records.pop_front() {
                self.record_bytes -= records.bytes.len();
                let all_until = records.all_until.map(|time| time.0);
                live.take(&records.bytes, all_until, &mut |names, sample| {
                    self.samples += 1;
                    if let Some(heaviest) = &mut self.heaviest {
                        heaviest.take(names, &sample);
                    }
                    // On failure, the writer keeps what it took for the next try.
                    if let Err(error) = samples.take(writer, names, sample) {
                        stored = Err(error);
                    }
                });
                std::mem::replace(&mut stored, Ok(()))?;
            }
            file.try_commit_with(samples)?;
        }
        Ok(())
    }

    /// Ends the open segment and begins the next. If none can be created (a full disk), the open one continues.
    fn begin_segment(&mut self, clocks: Clocks) {
        if self.open.is_some() {
            self.commit();
        }
        let (path, writer) = match self.segments.create(clocks.wall) {
            Ok(made) => made,
            Err(error) => {
                let why = error.to_string();
                // Not by comparing texts: the file name differs each time.
                if self.trouble.is_none() {
                    warn(&format!("{why}; cannot start a new segment"));
                }
                self.trouble = Some(why);
                self.anew_not_before = Instant::now() + ANEW_AGAIN;
                if let Some(open) = &mut self.open {
                    open.anew_asked = false;
                }
                return;
            }
        };
        if let Some(live) = &mut self.live {
            if let Some(heaviest) = &mut self.heaviest {
                heaviest.begin_anew(live.names());
            }
            live.begin_anew();
        }
        let origin = Origin { kind: "coroner record".to_owned(), file: None, host: self.host.clone() };
        let next = OpenSegment {
            inode: inode(&path),
            began_with: 0,
            path,
            file: Appender::new(writer),
            samples: SampleWriter::default(),
            origin,
            began: Instant::now(),
            began_clocks: clocks,
            anew_asked: false,
            source_told: false,
            lost_seconds: 0.0,
        };
        if let Some(before) = self.open.replace(next) {
            self.seal(before);
            self.gave_back = Instant::now();
            memory::give_back();
        }
    }

    /// Counts samples of an ending segment that did not fit on the disk.
    fn lose(&mut self, segment: &mut OpenSegment, lost: BTreeMap<u32, u64>) {
        let all: u64 = lost.values().sum();
        if all == 0 {
            return;
        }
        // Decoded ones had been counted as recorded.
        self.samples = self.samples.saturating_sub(segment.samples.held().values().sum());
        // When the recorder stops, the rings' thread, which reports losses, is gone by now.
        let mut status = self.status.lock().unwrap_or_else(PoisonError::into_inner);
        for (core, samples) in lost {
            *self.lost.entry(core).or_default() += samples;
            *status.own.lost_samples.entry(core).or_default() += samples;
        }
        drop(status);
        let unseen = Unseen {
            about: None,
            probe: probe::SAMPLES.to_owned(),
            what: format!("{all} stack samples at the end of this segment"),
            why: self.trouble.clone().unwrap_or_else(|| "they could not be stored".to_owned()),
            how_to_see: "free disk space and record again".to_owned(),
        };
        segment.file.hold(Evidence { unseen: vec![unseen], ..Evidence::default() });
    }

    /// On its own thread, as the disk may be slow.
    fn seal(&mut self, mut segment: OpenSegment) {
        let held = segment.samples.held();
        self.lose(&mut segment, held);
        // Without it the loss stands only in the counters.
        let _ = segment.tell_source(self.lost.values().sum());
        let seal = move || {
            let told = segment.file.take_leave();
            if let Err(error) = harmless(segment.file.finish(&[])).and(told) {
                warn(&format!("{error}; the segment was not closed properly but can be read"));
            }
        };
        match std::thread::Builder::new().name("seal".to_owned()).spawn(seal) {
            Ok(thread) => self.sealing.push(thread),
            // Dropping it leaves the segment complete, but not sealed.
            Err(error) => warn(&format!("cannot close a segment in the background: {error}")),
        }
    }

    fn tell_status(&mut self) {
        let disk = self.segments.bytes(self.open.as_ref().map(|open| open.path.as_path()));
        let mut status = self.status.lock().unwrap_or_else(PoisonError::into_inner);
        let own = &mut status.own;
        own.disk_bytes = disk;
        own.disk_limit_bytes = self.segments.limit();
        own.segments = self.segments.count() as u64;
        own.samples = self.samples;
        own.failed_commits = self.failed_commits;
        own.trouble.clone_from(&self.trouble);
        own.lost_behind_rings.clone_from(&self.lost);
        own.refused_fragments = self.shared.refused.load(Ordering::Relaxed);
        if let Some(open) = &mut self.open {
            let lost = open.file.lost.as_secs_f64();
            own.lost_seconds += lost - open.lost_seconds;
            open.lost_seconds = lost;
        }
        own.lost_seconds += std::mem::take(&mut self.lost_time).as_secs_f64();
        own.last_commit = Some(self.committed);
    }
}

impl OpenSegment {
    fn want_anew(&mut self, shared: &StoreShared) {
        if !std::mem::replace(&mut self.anew_asked, true) {
            shared.wants_anew.store(true, Ordering::Relaxed);
        }
    }

    /// Stores where the samples come from. Done at the beginning, so that an open segment reads like a sealed one.
    fn tell_source(&mut self, lost: u64) -> Result<(), RecordingError> {
        let clock = Clock { clock_ns: self.began_clocks.at.0, wall: self.began_clocks.wall };
        let report = ImportReport { lost, ..ImportReport::default() };
        self.file.writer().set_profile_source(&self.origin.row(Some(clock), Some(&report)))?;
        self.source_told = true;
        Ok(())
    }
}

/// A reader with the file open keeps the log in place; nothing is lost.
fn harmless(sealed: Result<(), RecordingError>) -> Result<(), RecordingError> {
    match sealed {
        Err(error @ RecordingError::NotAlone { .. }) => {
            warn(&error.to_string());
            Ok(())
        }
        other => other,
    }
}

fn inode(path: &Path) -> Option<u64> {
    std::fs::metadata(path).ok().map(|about| about.ino())
}

fn offset(clocks: &Clocks) -> i128 {
    i128::from(clocks.wall.0) - i128::from(clocks.at.0)
}
