//! systemd units, queried over D-Bus.
//!
//! The bus of a starved node may hang, so a look runs on its own thread, which gives up after a time limit and keeps what it has.
//!
//! To spare PID 1, a look asks for single properties, and later looks only for what may have changed: every service that runs or ran
//! is asked for its invocation id, and for more if that changed. Services once seen restarting, waiting or starting are queried in
//! full at every look, even if `reset-failed` cleared their counts.

mod address;
mod conversation;
#[cfg(test)]
mod fake_systemd;
mod look;
mod manager;
mod place;
mod questions;
#[cfg(test)]
mod tests;
mod wire;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use coroner_evidence::{Evidence, Time, probe};

use crate::Root;
use look::{LookRequest, UnitsSeen};
use questions::KnownUnit;

pub use manager::{Manager, ManagerError, UnitNow};
pub use questions::Look;

/// A look that takes longer is abandoned.
const LIMIT: Duration = Duration::from_secs(3);

const HOW_TO_SEE: &str = "pass the node's system bus with --bus unix:path=…";
const HOW_IF_HUNG: &str = "check that PID 1 and the bus respond, or pass another bus with --bus unix:path=…";

/// Reads units repeatedly.
#[derive(Debug)]
pub struct UnitReader {
    root: Root,
    address: Option<String>,
    limit: Duration,
    looking: Option<Looking>,
    /// The units as last seen, by name.
    known: Arc<HashMap<String, KnownUnit>>,
    took: Duration,
    /// What the last look could not see, so that a long recording does not repeat it at every look.
    said: Option<String>,
}

/// A look in progress.
#[derive(Debug)]
struct Looking {
    since: Instant,
    /// The result, and how long it took.
    answer: Receiver<(Result<UnitsSeen, Blind>, Duration)>,
}

/// Why nothing was seen, and what to do about it.
#[derive(Debug)]
struct Blind {
    why: String,
    how_to_see: String,
}

impl Blind {
    fn new(why: impl fmt::Display) -> Blind {
        Blind { why: why.to_string(), how_to_see: HOW_TO_SEE.to_owned() }
    }

    fn hung(why: String) -> Blind {
        Blind { why, how_to_see: HOW_IF_HUNG.to_owned() }
    }
}

impl UnitReader {
    /// `address` is a D-Bus address; the default is the node's systemd, or its system bus.
    pub fn new(root: Root, address: Option<String>) -> UnitReader {
        UnitReader {
            root,
            address,
            limit: LIMIT,
            looking: None,
            known: Arc::default(),
            took: Duration::ZERO,
            said: None,
        }
    }

    /// Starts a look in the background, unless one is in progress. The first look always covers all units.
    pub fn start(&mut self, at: Time, look: Look) {
        if self.looking.is_some() {
            return;
        }
        let (sender, answer) = sync_channel(1);
        let since = Instant::now();
        let places = match address::places(&self.root, self.address.as_deref()) {
            Ok(places) => places,
            Err(blind) => {
                let _ = sender.send((Err(blind), Duration::ZERO));
                self.looking = Some(Looking { since, answer });
                return;
            }
        };
        let (root, known, done) = (self.root.clone(), self.known.clone(), sender.clone());
        // Leaves time to read the cgroup files and to hand over the result.
        let deadline = since + self.limit - self.limit / 10;
        let work = move || {
            let wanted = LookRequest { root: &root, places: &places, at, since, deadline, look, known: &known };
            let seen = look::look(&wanted);
            let _ = done.send((seen, since.elapsed()));
        };
        if let Err(e) = std::thread::Builder::new().name("units".to_owned()).spawn(work) {
            let blind = Blind::new(format_args!("cannot start a thread to query systemd: {e}"));
            let _ = sender.send((Err(blind), Duration::ZERO));
        }
        self.looking = Some(Looking { since, answer });
    }

    /// Reports again what could not be seen, if it still cannot.
    pub fn tell_anew(&mut self) {
        self.said = None;
    }

    /// Appends what the look saw; waits at most `wait` for it. True if no look is in progress any more: it is done, or it was
    /// abandoned after its limit of 3 s, which is then noted as unseen.
    pub fn collect(&mut self, wait: Duration, evidence: &mut Evidence) -> bool {
        let Some(looking) = &self.looking else { return true };
        let left = self.limit.saturating_sub(looking.since.elapsed());
        let (answer, took) = match looking.answer.recv_timeout(wait.min(left)) {
            Ok(answer) => answer,
            Err(RecvTimeoutError::Timeout) if looking.since.elapsed() < self.limit => return false,
            Err(RecvTimeoutError::Timeout) => {
                let why = format!("the bus did not answer within {:.1} s", self.limit.as_secs_f64());
                (Err(Blind::hung(why)), self.limit)
            }
            Err(RecvTimeoutError::Disconnected) => (Err(Blind::new("the query of systemd panicked")), Duration::ZERO),
        };
        self.took = took;
        self.looking = None;
        let (what, why, how_to_see) = match answer {
            Ok(seen) => {
                evidence.units.extend(seen.units);
                self.known = Arc::new(seen.known);
                let what = "restarts and results of some units";
                (what, seen.partly, "run again when PID 1 is less busy".to_owned())
            }
            // Keep what is known: unseen does not mean changed or gone.
            Err(blind) => ("which systemd units crash, restart or fail", Some(blind.why), blind.how_to_see),
        };
        let say = why.as_deref().map(|why| if self.known.is_empty() { why } else { what }.to_owned());
        if let Some(why) = why
            && self.said != say
        {
            evidence.unseen(probe::UNITS, what, why, how_to_see);
        }
        self.said = say;
        true
    }

    /// How long the last look took: most of it is work of PID 1 and the bus.
    pub fn took(&self) -> Duration {
        self.took
    }
}
