//! The thread that empties the perf rings, whatever the other threads wait for: with each commit in peace, five times a second where much
//! is written (a high rate, a storm of processes). What comes is committed at once, so that kill -9 takes no more than a second.
//!
//! It only copies: what the bytes mean is found out by the store. What the store cannot take is counted as lost.

use super::status::Status;
use super::store::{COMMIT_EVERY, Handle, Records};
use coroner_evidence::{Counters, Evidence, Source, Time};
use coroner_probes::root::now;
use coroner_probes::sampler::{CoreLosses, Sampler};
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

const PEACE: Duration = COMMIT_EVERY;
const BUSY: Duration = Duration::from_millis(200);
/// From so many bytes of one core at once on, its ring (half a megabyte, less beyond 64 cores) is emptied more often.
const MUCH: usize = 48 << 10;
/// From this rate on, too.
const HIGH_RATE: u32 = 200;
/// How often it is asked which cores there are.
const FOLLOW_EVERY: Duration = Duration::from_secs(5);
/// How long a core may take from stamping a record to having it in its ring.
const SETTLED: Duration = Duration::from_millis(5);
/// Copied at once; the rest of a ring follows in the next piece.
const PIECE: usize = 1 << 20;

/// The core to be sampled more often, and the rate; `None` for none.
type Escalation = Option<(u32, u32)>;

pub struct Rings {
    escalations: Sender<Escalation>,
    escalated: Escalation,
    thread: JoinHandle<()>,
}

impl Rings {
    pub fn start(sampler: Sampler, store: Handle, status: Arc<Mutex<Status>>) -> anyhow::Result<Rings> {
        let (escalations, receiver) = channel();
        let mut reader = Reader {
            rate_hz: sampler.rate_hz(),
            sampler,
            store,
            status,
            escalated: None,
            lost_behind: BTreeMap::new(),
            told: BTreeMap::new(),
            drained_bytes: 0,
        };
        let thread = std::thread::Builder::new().name("rings".to_owned()).spawn(move || reader.run(&receiver))?;
        Ok(Rings { escalations, escalated: None, thread })
    }

    pub fn escalate(&mut self, to: Escalation) {
        if self.escalated != to {
            self.escalated = to;
            let _ = self.escalations.send(to);
        }
    }

    /// Ends sampling; what is in the rings is handed over.
    pub fn finish(self) {
        drop(self.escalations);
        let _ = self.thread.join();
    }
}

struct Reader {
    sampler: Sampler,
    rate_hz: u32,
    store: Handle,
    status: Arc<Mutex<Status>>,
    escalated: Escalation,
    /// Read and not taken by the store, by core.
    lost_behind: BTreeMap<u32, u64>,
    /// Losses as they were told last.
    told: BTreeMap<u32, (u64, u64)>,
    /// What came with the last round over the rings; the next one brings about as much.
    drained_bytes: usize,
}

impl Reader {
    fn run(&mut self, escalations: &Receiver<Escalation>) {
        let mut drained = now();
        let mut told = now();
        let mut followed = now();
        let mut busiest = 0;
        loop {
            let busy = busiest > MUCH || self.rate_hz > HIGH_RATE || self.escalated.is_some();
            let due = drained + if busy { BUSY } else { PEACE };
            match escalations.recv_timeout(due.since(now())) {
                Ok(to) => self.escalate(to),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if now() < due {
                continue;
            }
            drained = now();
            busiest = self.drain();
            if drained.since(told) >= PEACE - BUSY / 2 {
                told = drained;
                let mut evidence = Evidence::default();
                if drained.since(followed) >= FOLLOW_EVERY - BUSY / 2 {
                    followed = drained;
                    self.sampler.follow_cores(&mut evidence);
                }
                self.tell_losses(&mut evidence);
                if evidence != Evidence::default() {
                    self.store.seen(evidence);
                }
            }
        }
        self.escalate(None);
        let _ = self.drain();
    }

    fn escalate(&mut self, to: Escalation) {
        // A core that went offline, or a kernel that refuses: the usual rate is better than none.
        if let Some((core, _)) = self.escalated.take() {
            let _ = self.sampler.relax(core);
        }
        if let Some((core, rate_hz)) = to
            && self.sampler.escalate(core, rate_hz).is_ok()
        {
            self.escalated = to;
        }
    }

    /// The most bytes that one core had.
    fn drain(&mut self) -> usize {
        // Written a moment after it is stamped.
        let all_until = now() - SETTLED;
        let room = (self.drained_bytes + self.drained_bytes / 8).min(PIECE);
        let mut records = Records { bytes: Vec::with_capacity(room), ..Records::default() };
        let mut drained_bytes = 0;
        let mut bytes: (u32, usize) = (u32::MAX, 0);
        let mut busiest = 0;
        let (store, lost) = (&self.store, &mut self.lost_behind);
        let mut hand_over = |records: Records| {
            if let Err(refused) = store.records(records) {
                for (core, samples) in refused.samples() {
                    *lost.entry(core).or_default() += samples;
                }
            }
        };
        self.sampler.drain(&mut |core, record| {
            bytes = if bytes.0 == core { (core, bytes.1 + record.len()) } else { (core, record.len()) };
            busiest = busiest.max(bytes.1);
            drained_bytes += record.len();
            if records.bytes.len() + record.len() > PIECE {
                hand_over(std::mem::take(&mut records));
            }
            records.bytes.extend_from_slice(record);
            match records.ends.last_mut() {
                Some((last, end)) if *last == core => *end = records.bytes.len(),
                _ => records.ends.push((core, records.bytes.len())),
            }
        });
        records.all_until = Some(all_until);
        hand_over(records);
        self.drained_bytes = drained_bytes;
        busiest
    }

    /// A gap in the samples is a symptom: it stands in the recording beside them.
    fn tell_losses(&mut self, evidence: &mut Evidence) {
        let losses: Vec<CoreLosses> = self.sampler.losses();
        let at = now();
        let mut status = self.status.lock().unwrap_or_else(PoisonError::into_inner);
        let behind: BTreeMap<u32, u64> = status.own.lost_behind_rings.clone();
        for losses in losses {
            let CoreLosses { core, lost, throttled_ns } = losses;
            let refused = self.lost_behind.get(&core).copied().unwrap_or(0);
            let lost = lost + refused + behind.get(&core).copied().unwrap_or(0);
            status.own.lost_samples.insert(core, lost);
            status.own.throttled_samples.insert(core, losses.held_back(self.rate_hz));
            if self.told.insert(core, (lost, throttled_ns)) != Some((lost, throttled_ns)) {
                tell(&mut evidence.counters, at, core, lost, throttled_ns);
            }
        }
    }
}

fn tell(counters: &mut Counters, at: Time, core: u32, lost: u64, throttled_ns: u64) {
    let subject = format!("cpu{core}");
    counters.push(Source::Sampler, &subject, "lost", at, lost);
    counters.push(Source::Sampler, &subject, "throttled_us", at, throttled_ns / 1000);
}
