//! Incidents on a thread of their own: their files lie on a disk that may hang, just when there is one, and the main loop must
//! go on looking.

use super::incidents::Incidents;
use super::run::read_clocks;
use super::trigger::{Over, Trigger};
use coroner_evidence::Clocks;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// While one is open its children and its window's end are looked after this often.
const TURN_EVERY: Duration = Duration::from_millis(200);
const IDLE: Duration = Duration::from_secs(1);
/// Triggers that a hanging disk keeps waiting; more are lost, and there are hardly ever two.
const MOST_WAITING: usize = 256;

pub struct IncidentThread {
    noticed: Sender<(News, Clocks)>,
    /// So many triggers were not taken yet.
    waiting: Arc<AtomicUsize>,
    told: Arc<Mutex<Told>>,
    thread: JoinHandle<()>,
}

enum News {
    Begun(Trigger),
    Over(Over),
}

/// What the others ask for.
#[derive(Debug, Clone, Default)]
pub struct Told {
    pub needed_from_real_ns: Option<u64>,
    pub escalation: Option<(u32, u32)>,
    pub counts: BTreeMap<String, u64>,
    pub bytes: u64,
}

impl IncidentThread {
    pub fn start(incidents: Incidents) -> std::io::Result<IncidentThread> {
        let (noticed, receiver) = channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        let told = Arc::new(Mutex::new(Told::default()));
        let (theirs, taken) = (Arc::clone(&told), Arc::clone(&waiting));
        let run = move || run(incidents, &receiver, &taken, &theirs);
        let thread = std::thread::Builder::new().name("incidents".to_owned()).spawn(run)?;
        Ok(IncidentThread { noticed, waiting, told, thread })
    }

    pub fn begin(&self, trigger: Trigger, clocks: Clocks) {
        if self.waiting.fetch_add(1, Ordering::Relaxed) < MOST_WAITING {
            let _ = self.noticed.send((News::Begun(trigger), clocks));
        } else {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Is never let go: there are no more ends than beginnings, and without its end an incident would go on for ever.
    pub fn end(&self, over: Over, clocks: Clocks) {
        let _ = self.noticed.send((News::Over(over), clocks));
    }

    pub fn told(&self) -> Told {
        lock(&self.told).clone()
    }

    /// What is open is frozen as it is.
    pub fn finish(self) -> Told {
        drop(self.noticed);
        let _ = self.thread.join();
        lock(&self.told).clone()
    }
}

fn run(mut incidents: Incidents, noticed: &Receiver<(News, Clocks)>, waiting: &AtomicUsize, told: &Mutex<Told>) {
    loop {
        let wait = if incidents.needed_from_real_ns().is_some() { TURN_EVERY } else { IDLE };
        match noticed.recv_timeout(wait) {
            Ok((News::Begun(trigger), clocks)) => {
                waiting.fetch_sub(1, Ordering::Relaxed);
                incidents.begin(trigger, clocks);
            }
            Ok((News::Over(over), clocks)) => incidents.end(&over, clocks),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        let clocks = read_clocks();
        incidents.turn(clocks);
        let escalation = incidents.escalation(clocks.at);
        *lock(told) = Told { escalation, ..of(&incidents) };
    }
    incidents.finish(read_clocks());
    *lock(told) = of(&incidents);
}

fn of(incidents: &Incidents) -> Told {
    Told {
        needed_from_real_ns: incidents.needed_from_real_ns(),
        escalation: None,
        counts: incidents.counts().clone(),
        bytes: incidents.bytes(),
    }
}

fn lock(told: &Mutex<Told>) -> MutexGuard<'_, Told> {
    // Plain values, right at any moment, whoever panicked.
    told.lock().unwrap_or_else(PoisonError::into_inner)
}
