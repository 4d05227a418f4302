//! The thread that owns the segments: it takes what was seen, brings it into the file every [`COMMIT_EVERY`], begins a new segment when
//! it is time, and lets the oldest go when the directory is full.
//!
//! The others hand over and go on. What they hand over is bounded in bytes: if this thread cannot keep up (a disk that hangs), what
//! is too much is counted as lost. [`keeper`] is what the thread does, here is how it is reached.

mod keeper;
mod records;

pub use records::Records;

use super::segments::Segments;
use super::status::Status;
use coroner_evidence::recording::{RecordingError, RollupRow};
use coroner_evidence::{Clocks, Evidence};
use coroner_profile::live::{Live, LiveFormat};
use keeper::Keeper;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// What happens waits up to 100 ms for a look and that for its turn, up to 250 ms, before it comes here: kill -9 may take a second.
pub const COMMIT_EVERY: Duration = Duration::from_millis(650);
/// Handed over and not taken yet.
const MOST_IN_FLIGHT: usize = 16 << 20;
const MOST_MESSAGES: usize = 4096;

enum Message {
    Seen(Box<Evidence>),
    /// The first of a new segment: everything is told anew in it.
    Anew(Box<Evidence>, Clocks),
    Records(Records),
    Rollup(Box<RollupRow>),
    Commit,
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
        let bytes = crate::appender::bytes_of(&evidence);
        if !self.hand_over(bytes, Message::Seen(Box::new(evidence))) {
            self.shared.refused.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub fn anew(&self, evidence: Evidence, clocks: Clocks) {
        let bytes = crate::appender::bytes_of(&evidence);
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
                TrySendError::Full(Message::Records(records))
                | TrySendError::Disconnected(Message::Records(records)) => records,
                _ => Records::default(),
            }
        })
    }

    /// A minute in numbers. Small, and lost only with everything else.
    pub fn rollup(&self, minute: RollupRow) {
        let _ = self.messages.try_send(Message::Rollup(Box::new(minute)));
    }

    /// Stores now what was handed over, instead of within the second.
    pub fn commit(&self) {
        let _ = self.messages.try_send(Message::Commit);
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
            let live = samples.map(|(root, format)| Live::new(&root, format));
            let mut keeper = Keeper::new(segments, live, host, shared, status);
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
            Err(_) => anyhow::bail!("the thread that writes segments panicked; what it committed is safe"),
        }
    }

    pub fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }
}
