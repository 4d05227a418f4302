//! Incidents have their own thread: the disk with their files may hang, most likely during an incident, and must not block the
//! main loop.

use super::incidents::Incidents;
use super::trigger::{Over, Trigger};
use coroner_evidence::{Clocks, Wall};
use coroner_probes::root::read_clocks;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// How often to check the children and the end of the window while an incident is open.
const TURN_EVERY: Duration = Duration::from_millis(200);
const IDLE: Duration = Duration::from_secs(1);
/// Most triggers waiting for a hanging disk; more are dropped. There are hardly ever two.
const MOST_WAITING: usize = 256;

pub struct IncidentThread {
    noticed: Sender<(News, Clocks)>,
    /// Triggers not taken yet.
    waiting: Arc<AtomicUsize>,
    told: Arc<Mutex<Overview>>,
    thread: JoinHandle<()>,
}

enum News {
    Begun(Trigger),
    Over(Over),
}

/// What other threads need to know of the incidents.
#[derive(Debug, Clone, Default)]
pub struct Overview {
    pub needed_from: Option<Wall>,
    pub escalation: Option<(u32, u32)>,
    pub counts: BTreeMap<String, u64>,
    pub bytes: u64,
}

impl IncidentThread {
    pub fn start(incidents: Incidents) -> std::io::Result<IncidentThread> {
        let (noticed, receiver) = channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        let told = Arc::new(Mutex::new(Overview::default()));
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

    /// Never dropped: there are no more ends than beginnings, and without its end an incident would last for ever.
    pub fn end(&self, over: Over, clocks: Clocks) {
        let _ = self.noticed.send((News::Over(over), clocks));
    }

    pub fn told(&self) -> Overview {
        lock(&self.told).clone()
    }

    /// Freezes what is open as it is.
    pub fn finish(self) -> Overview {
        drop(self.noticed);
        let _ = self.thread.join();
        lock(&self.told).clone()
    }
}

fn run(mut incidents: Incidents, noticed: &Receiver<(News, Clocks)>, waiting: &AtomicUsize, told: &Mutex<Overview>) {
    loop {
        let wait = if incidents.needed_from().is_some() { TURN_EVERY } else { IDLE };
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
        *lock(told) = Overview { escalation, ..of(&incidents) };
    }
    incidents.finish(read_clocks());
    *lock(told) = of(&incidents);
}

fn of(incidents: &Incidents) -> Overview {
    Overview {
        needed_from: incidents.needed_from(),
        escalation: None,
        counts: incidents.counts().clone(),
        bytes: incidents.bytes(),
    }
}

fn lock(told: &Mutex<Overview>) -> MutexGuard<'_, Overview> {
    // Plain values, valid even if a holder of the lock panicked.
    told.lock().unwrap_or_else(PoisonError::into_inner)
}
