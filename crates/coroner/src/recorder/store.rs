//! The thread that owns the segments: it takes what was seen, brings it into the file once a second, begins a new segment when
//! it is time, and lets the oldest go when the directory is full.
//!
//! The others hand over and go on. What they hand over is bounded in bytes: if this thread cannot keep up (a disk that hangs), what
//! is too much is counted as lost.

use super::appender::Appender;
use super::segments::Segments;
use super::status::Status;
use crate::output::warn;
use coroner_evidence::recording::{RecordingError, RollupRow, segments as names};
use coroner_evidence::{Clocks, Evidence};
use coroner_profile::import::Report;
use coroner_profile::live::{Live, LiveFormat};
use coroner_profile::recording::{Origin, SampleWriter};
use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What kill -9 may take.
const COMMIT_EVERY: Duration = Duration::from_millis(1000);
/// Records come in at the end of their second; a commit that would be due a moment later is made with them.
const COMMIT_EARLY: Duration = Duration::from_millis(150);
/// Records that wait for a disk with room. Half a minute of 64 cores.
const MOST_RECORD_BYTES: usize = 8 << 20;
/// Handed over and not taken yet.
const MOST_IN_FLIGHT: usize = 16 << 20;
const MOST_MESSAGES: usize = 4096;
/// Names of stacks and functions in memory; more than this begin a new segment.
const MOST_DICTIONARY_BYTES: usize = 12 << 20;
/// A wall clock that was set by more than this begins a new segment.
const CLOCK_JUMP: i128 = 500_000_000;

/// Records of the perf rings: one after the other, and where those of each core end.
#[derive(Debug, Default)]
pub struct Records {
    pub bytes: Vec<u8>,
    pub ends: Vec<(u32, usize)>,
}

enum Message {
    Seen(Box<Evidence>),
    /// The first of a new segment: everything is told anew in it.
    Anew(Box<Evidence>, Clocks),
    Records(Records),
    Rollup(RollupRow),
    Stop,
}

/// How other threads reach the store.
#[derive(Clone)]
pub struct Handle {
    messages: SyncSender<Message>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    in_flight: AtomicUsize,
    wants_anew: AtomicBool,
    /// Nanoseconds since 1970 from which on segments are to stay; 0 if none need to.
    needed_from: AtomicU64,
    /// Evidence that could not be handed over.
    refused: AtomicU64,
}

impl Handle {
    pub fn seen(&self, evidence: Evidence) {
        let bytes = super::appender::bytes_of(&evidence);
        if !self.hand_over(bytes, Message::Seen(Box::new(evidence))) {
            self.shared.refused.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub fn anew(&self, evidence: Evidence, clocks: Clocks) {
        let bytes = super::appender::bytes_of(&evidence);
        if !self.hand_over(bytes, Message::Anew(Box::new(evidence), clocks)) {
            self.shared.refused.fetch_add(1, Ordering::Relaxed);
            self.shared.wants_anew.store(true, Ordering::Relaxed);
        }
    }

    /// Gives the records back if they could not be handed over.
    pub fn records(&self, records: Records) -> Result<(), Records> {
        let bytes = records.bytes.len();
        if self.shared.in_flight.load(Ordering::Relaxed) + bytes > MOST_IN_FLIGHT {
            return Err(records);
        }
        self.shared.in_flight.fetch_add(bytes, Ordering::Relaxed);
        self.messages.try_send(Message::Records(records)).map_err(|error| {
            self.shared.in_flight.fetch_sub(bytes, Ordering::Relaxed);
            match error {
                std::sync::mpsc::TrySendError::Full(Message::Records(records))
                | std::sync::mpsc::TrySendError::Disconnected(Message::Records(records)) => records,
                _ => Records::default(),
            }
        })
    }

    /// A minute in numbers. Small, and lost only with everything else.
    pub fn rollup(&self, minute: RollupRow) {
        let _ = self.messages.try_send(Message::Rollup(minute));
    }

    fn hand_over(&self, bytes: usize, message: Message) -> bool {
        if self.shared.in_flight.fetch_add(bytes, Ordering::Relaxed) + bytes <= MOST_IN_FLIGHT
            && self.messages.try_send(message).is_ok()
        {
            return true;
        }
        self.shared.in_flight.fetch_sub(bytes, Ordering::Relaxed);
        false
    }

    /// Whether everything should be told anew, for a new segment. Asked once, it is no longer wanted.
    pub fn wants_anew(&self) -> bool {
        self.shared.wants_anew.swap(false, Ordering::Relaxed)
    }

    /// Segments that hold anything after this moment stay as long as there are others to let go.
    pub fn keep_from(&self, real_ns: Option<u64>) {
        self.shared.needed_from.store(real_ns.unwrap_or(0), Ordering::Relaxed);
    }
}

pub struct Store {
    handle: Handle,
    thread: JoinHandle<Result<(), RecordingError>>,
}

impl Store {
    /// Takes over a directory that is ours. `samples` says below which root names are looked up, and what records look like.
    pub fn start(
        segments: Segments,
        samples: Option<(PathBuf, LiveFormat)>,
        host: Option<String>,
        status: Arc<Mutex<Status>>,
    ) -> anyhow::Result<Store> {
        let (sender, receiver) = sync_channel(MOST_MESSAGES);
        let shared = Arc::new(Shared::default());
        let handle = Handle { messages: sender, shared: Arc::clone(&shared) };
        // Made where it lives: its parts do not go from thread to thread.
        let run = move || {
            let mut keeper = Keeper {
                segments,
                open: None,
                live: samples.map(|(root, format)| Live::new(&root, format)),
                host,
                records: VecDeque::new(),
                record_bytes: 0,
                rollups: Vec::new(),
                lost: BTreeMap::new(),
                samples: 0,
                failed_commits: 0,
                trouble: None,
                sealing: Vec::new(),
                shared,
                status,
            };
            keeper.run(&receiver)
        };
        let thread = std::thread::Builder::new().name("store".to_owned()).spawn(run)?;
        Ok(Store { handle, thread })
    }

    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Stores what was handed over, and seals the segment.
    pub fn finish(self) -> anyhow::Result<()> {
        // A full channel empties: its reader lives until it gets this.
        let _ = self.handle.messages.send(Message::Stop);
        match self.thread.join() {
            Ok(sealed) => Ok(sealed?),
            Err(_) => anyhow::bail!("the thread that writes the segments panicked; what it committed is safe"),
        }
    }

    pub fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }
}

/// What the thread has.
struct Keeper {
    segments: Segments,
    open: Option<OpenSegment>,
    /// `None` where stacks are not sampled.
    live: Option<Live>,
    host: Option<String>,
    /// Not decoded yet, the oldest first.
    records: VecDeque<Records>,
    record_bytes: usize,
    rollups: Vec<RollupRow>,
    /// Samples that we had to let go, by core.
    lost: BTreeMap<u32, u64>,
    samples: u64,
    failed_commits: u64,
    trouble: Option<String>,
    sealing: Vec<JoinHandle<()>>,
    shared: Arc<Shared>,
    status: Arc<Mutex<Status>>,
}

struct OpenSegment {
    path: PathBuf,
    file: Appender,
    samples: SampleWriter,
    origin: Origin,
    began: Instant,
    began_clocks: Clocks,
    /// Nobody was asked yet to tell everything anew.
    anew_asked: bool,
    source_told: bool,
    lost_seconds: f64,
}

impl Keeper {
    fn run(&mut self, messages: &Receiver<Message>) -> Result<(), RecordingError> {
        let mut due = Instant::now() + COMMIT_EVERY;
        loop {
            let mut early = Duration::ZERO;
            match messages.recv_timeout(due.saturating_duration_since(Instant::now())) {
                Ok(Message::Seen(evidence)) => self.hold(*evidence),
                Ok(Message::Anew(evidence, clocks)) => {
                    self.begin_segment(clocks);
                    self.hold(*evidence);
                    // So that a segment never stands there without what it begins with.
                    self.commit();
                }
                Ok(Message::Records(records)) => {
                    self.hold_records(records);
                    early = COMMIT_EARLY;
                }
                Ok(Message::Rollup(minute)) => self.rollups.push(minute),
                Ok(Message::Stop) | Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {}
            }
            if Instant::now() + early >= due {
                due = Instant::now() + COMMIT_EVERY;
                self.commit();
            }
        }
        self.commit();
        let sealed = self.open.take().map_or(Ok(()), |mut open| {
            let told = open.file.take_leave();
            open.file.finish(&[]).and(told)
        });
        for thread in self.sealing.drain(..) {
            let _ = thread.join();
        }
        self.segments.make_room(None, None);
        self.tell_status();
        sealed
    }

    fn hold(&mut self, evidence: Evidence) {
        self.shared.in_flight.fetch_sub(super::appender::bytes_of(&evidence), Ordering::Relaxed);
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
        while self.record_bytes > MOST_RECORD_BYTES {
            let Some(oldest) = self.records.pop_front() else { break };
            self.record_bytes -= oldest.bytes.len();
            for (core, samples) in oldest.samples() {
                *self.lost.entry(core).or_default() += samples;
            }
        }
    }

    /// Everything that waits goes into the file; then the directory is brought within its limit.
    fn commit(&mut self) {
        let result = self.store();
        match result {
            Ok(()) => self.trouble = None,
            Err(error) => {
                self.failed_commits += 1;
                self.trouble = Some(error.to_string());
            }
        }
        let needed = self.shared.needed_from.load(Ordering::Relaxed);
        let open = self.open.as_ref().map(|open| open.path.as_path());
        self.segments.make_room(open, Some(needed).filter(|n| *n > 0));
        if let Some(open) = &mut self.open {
            let full = self.segments.size_of_open(&open.path) > self.segments.largest()
                || self.live.as_ref().is_some_and(|live| live.dictionary_bytes() > MOST_DICTIONARY_BYTES);
            if full || open.began.elapsed() >= names::LONGEST - Duration::from_secs(2) {
                open.want_anew(&self.shared);
            }
        }
        self.sealing.retain(|thread| !thread.is_finished());
        self.tell_status();
    }

    fn store(&mut self) -> Result<(), RecordingError> {
        let Some(open) = &mut self.open else { return Ok(()) };
        open.file.try_commit()?;
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
                live.take(&records.bytes, &mut |names, sample| {
                    self.samples += 1;
                    // What is in the writer's hands stays there for another try, whatever it says now.
                    if let Err(error) = samples.take(writer, names, sample) {
                        stored = Err(error);
                    }
                });
                if stored.is_err() {
                    return stored;
                }
            }
            samples.commit(writer)?;
        }
        Ok(())
    }

    /// Ends the open segment and begins the next. Where none can be made (a full disk), the open one goes on.
    fn begin_segment(&mut self, clocks: Clocks) {
        if self.open.is_some() {
            self.commit();
        }
        let (path, writer) = match self.segments.create(clocks.real_ns) {
            Ok(made) => made,
            Err(error) => {
                let why = error.to_string();
                if self.trouble.as_ref() != Some(&why) {
                    warn(&format!("{why}; no new segment could be begun"));
                }
                self.trouble = Some(why);
                if let Some(open) = &mut self.open {
                    open.anew_asked = false;
                    open.began = Instant::now();
                } else {
                    self.shared.wants_anew.store(true, Ordering::Relaxed);
                }
                return;
            }
        };
        if let Some(live) = &mut self.live {
            live.begin_anew();
        }
        let origin = Origin { kind: "coroner record".to_owned(), file: None, host: self.host.clone() };
        let next = OpenSegment {
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
        }
    }

    /// Beside the recording, as a disk may take its time.
    fn seal(&mut self, mut segment: OpenSegment) {
        // Without it the loss stands only in the counters.
        let _ = segment.tell_source(self.lost.values().sum());
        let seal = move || {
            let told = segment.file.take_leave();
            if let Err(error) = segment.file.finish(&[]).and(told) {
                warn(&format!("{error}; the segment stays unsealed, and can be read"));
            }
        };
        match std::thread::Builder::new().name("seal".to_owned()).spawn(seal) {
            Ok(thread) => self.sealing.push(thread),
            // Dropped with what it holds: whole, and not sealed.
            Err(error) => warn(&format!("cannot seal a segment beside the recording: {error}")),
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
    }
}

impl OpenSegment {
    fn want_anew(&mut self, shared: &Shared) {
        if !std::mem::replace(&mut self.anew_asked, true) {
            shared.wants_anew.store(true, Ordering::Relaxed);
        }
    }

    /// Where the samples come from. Told at the beginning, so that an open segment is read like a sealed one.
    fn tell_source(&mut self, lost: u64) -> Result<(), RecordingError> {
        let clock =
            coroner_profile::model::Clock { clock_ns: self.began_clocks.at.0, wall_ns: self.began_clocks.real_ns };
        let report = Report { lost, ..Report::default() };
        self.file.writer().set_profile_source(&self.origin.row(Some(clock), Some(&report)))?;
        self.source_told = true;
        Ok(())
    }
}

fn offset(clocks: &Clocks) -> i128 {
    i128::from(clocks.real_ns) - i128::from(clocks.at.0)
}

impl Records {
    /// How many samples each core has here.
    pub fn samples(&self) -> BTreeMap<u32, u64> {
        const SAMPLE: u32 = 9; // include/uapi/linux/perf_event.h: PERF_RECORD_SAMPLE
        let mut counts = BTreeMap::new();
        let mut at = 0;
        for &(core, end) in &self.ends {
            while let Some(header) = self.bytes.get(at..at + 8).filter(|_| at < end) {
                let kind = u32::from_ne_bytes(header[..4].try_into().expect("four bytes"));
                let size = usize::from(u16::from_ne_bytes(header[6..].try_into().expect("two bytes")));
                if kind == SAMPLE {
                    *counts.entry(core).or_default() += 1;
                }
                at += size.max(8);
            }
            at = end;
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(kind: u32, size: u16) -> Vec<u8> {
        let mut bytes = vec![0; usize::from(size)];
        bytes[..4].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&size.to_ne_bytes());
        bytes
    }

    #[test]
    fn samples_that_are_let_go_are_counted_by_core() {
        let mut records = Records::default();
        for (core, kinds) in [(0, vec![9, 3, 9]), (5, vec![9])] {
            for kind in kinds {
                records.bytes.extend(record(kind, 24));
            }
            records.ends.push((core, records.bytes.len()));
        }
        assert_eq!(records.samples(), BTreeMap::from([(0, 2), (5, 1)]));
    }
}
