//! The thread that drains the perf rings, whatever the other threads wait for: once per commit when quiet, five times a second when
//! busy (a high rate, a storm of processes). The data is committed at once, so that kill -9 loses no more than a second.
//!
//! It only copies bytes; the store decodes them. What the store cannot take is counted as lost.

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

const QUIET: Duration = COMMIT_EVERY;
const BUSY: Duration = Duration::from_millis(200);
/// If one core had more bytes than this in a round, rings (half a megabyte each, less beyond 64 cores) are drained more often.
const MUCH: usize = 48 << 10;
/// Above this rate, too.
const HIGH_RATE: u32 = 200;
/// How often to check which cores are online.
const FOLLOW_EVERY: Duration = Duration::from_secs(5);
/// How long after its timestamp a record may still be on its way into the ring.
pub const SETTLED: Duration = Duration::from_millis(5);
/// Most bytes handed over at once; the rest follows in the next piece.
const PIECE: usize = 1 << 20;

/// The core to sample more often, and its rate.
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

    /// Stops sampling and hands over what is left in the rings.
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
    /// Samples that were read but that the store did not take, by core.
    lost_behind: BTreeMap<u32, u64>,
    /// Losses as last reported.
    told: BTreeMap<u32, (u64, u64)>,
    /// Bytes of the last round over the rings; the next one brings about as many.
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
            let due = drained + if busy { BUSY } else { QUIET };
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
            if drained.since(told) >= QUIET - BUSY / 2 {
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
        // If the core went offline or the kernel refuses, the usual rate is better than none.
        if let Some((core, _)) = self.escalated.take() {
            let _ = self.sampler.relax(core);
        }
        if let Some((core, rate_hz)) = to
            && self.sampler.escalate(core, rate_hz).is_ok()
        {
            self.escalated = to;
        }
    }

    /// Returns the most bytes that one core had.
    fn drain(&mut self) -> usize {
        // A record enters the ring a moment after its timestamp.
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

    /// A gap in the samples is itself a symptom, so it is recorded beside them.
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
            tell(&mut self.told, &mut evidence.counters, at, CoreLosses { core, lost, throttled_ns });
        }
    }
}

/// Notes a core's losses, if they differ from those last told.
pub fn tell(told: &mut BTreeMap<u32, (u64, u64)>, counters: &mut Counters, at: Time, losses: CoreLosses) {
    let CoreLosses { core, lost, throttled_ns } = losses;
    if told.insert(core, (lost, throttled_ns)) == Some((lost, throttled_ns)) {
        return;
    }
    let subject = format!("cpu{core}");
    counters.push(Source::Sampler, &subject, "lost", at, lost);
    counters.push(Source::Sampler, &subject, "throttled_us", at, throttled_ns / 1000);
}
