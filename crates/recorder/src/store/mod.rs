//! The thread that owns the segments: it writes evidence into the file every [`COMMIT_EVERY`], begins new segments and evicts the
//! oldest when the directory is full.
//!
//! Other threads hand over and go on. What is in flight is bounded in bytes: if this thread cannot keep up (a hanging disk), the
//! excess is counted as lost. [`keeper`] is the thread itself; this file is how others reach it.

mod keeper;
mod records;

pub use records::Records;

use super::heaviest::Heaviest;
use super::segments::Segments;
use super::status::Status;
use coroner_evidence::recording::{RecordingError, RollupRow};
use coroner_evidence::{Clocks, Evidence, Wall};
use coroner_profile::live::{Live, LiveFormat};
use keeper::Keeper;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// An event waits up to 100 ms for a look, and that up to 250 ms for its turn; with this, kill -9 loses at most a second.
pub const COMMIT_EVERY: Duration = Duration::from_millis(650);
/// Most bytes handed over but not taken yet.
const MOST_IN_FLIGHT: usize = 16 << 20;
const MOST_MESSAGES: usize = 4096;

enum Message {
    Seen(Box<Evidence>),
    /// The first fragment of a new segment: it describes everything again.
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
    shared: Arc<StoreShared>,
}

#[derive(Default)]
struct StoreShared {
    in_flight: AtomicUsize,
    wants_anew: AtomicBool,
    /// Segments from this time on (nanoseconds since 1970) must stay; 0: none.
    needed_from: AtomicU64,
    /// Fragments that could not be handed over.
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

    /// A minute's sums. Small, and lost only with everything else.
    pub fn rollup(&self, minute: RollupRow) {
        let _ = self.messages.try_send(Message::Rollup(Box::new(minute)));
    }

    /// Commits now what was handed over, instead of within the second.
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

    /// Whether everything should be described again, for a new segment. Clears the request.
    pub fn wants_anew(&self) -> bool {
        self.shared.wants_anew.swap(false, Ordering::Relaxed)
    }

    /// Segments with anything after this moment stay as long as there are others to evict.
    pub fn keep_from(&self, from: Option<Wall>) {
        self.shared.needed_from.store(from.unwrap_or_default().0, Ordering::Relaxed);
    }
}

pub struct Store {
    handle: Handle,
    thread: JoinHandle<Result<(), RecordingError>>,
}

impl Store {
    /// Takes over a directory that is locked by us. `samples`: the root for looking up names, and the format of records. `heaviest`: for
    /// a fleet, if there is one.
    pub fn start(
        segments: Segments,
        samples: Option<(PathBuf, LiveFormat)>,
        heaviest: Option<Heaviest>,
        host: Option<String>,
        status: Arc<Mutex<Status>>,
    ) -> anyhow::Result<Store> {
        let (sender, receiver) = sync_channel(MOST_MESSAGES);
        let shared = Arc::new(StoreShared::default());
        let handle = Handle { messages: sender, shared: Arc::clone(&shared) };
        // Created on its own thread: its parts are not Send.
        let run = move || {
            let live = samples.map(|(root, format)| Live::new(&root, format));
            let mut keeper = Keeper::new(segments, live, heaviest, host, shared, status);
            keeper.run(&receiver)
        };
        let thread = std::thread::Builder::new().name("store".to_owned()).spawn(run)?;
        Ok(Store { handle, thread })
    }

    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Stores what was handed over and seals the segment.
    pub fn finish(self) -> anyhow::Result<()> {
        // Does not block for long on a full channel: the reader runs until it gets this.
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
