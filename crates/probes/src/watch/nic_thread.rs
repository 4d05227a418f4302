//! Network devices are looked at by a thread of their own.
//!
//! Driver statistics are asked for under the RTNL lock, which a device that is being reset holds for seconds. That is the very
//! moment at which the other probes must not stand still.

use crate::nic::NicReader;
use crate::root::{Root, now};
use coroner_evidence::{Evidence, probe};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// What to look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    Counters,
    /// Also which core serves which queue.
    MapAndCounters,
    /// As at the first look.
    Anew,
}

pub struct NicThread {
    questions: Sender<Ask>,
    answers: Receiver<Evidence>,
    is_asked: bool,
}

impl NicThread {
    pub fn start(root: Root) -> NicThread {
        let (questions, asked) = channel();
        let (answer, answers) = channel();
        let mut reader = NicReader::new(root.clone());
        let work = move || {
            while let Ok(ask) = asked.recv() {
                let mut evidence = Evidence::default();
                if ask == Ask::Anew {
                    reader = NicReader::new(root.clone());
                }
                if ask != Ask::Counters {
                    reader.look_map(now(), &mut evidence);
                }
                reader.look_counters(now(), &mut evidence);
                if answer.send(evidence).is_err() {
                    return;
                }
            }
        };
        // Without a thread nobody answers, and `collect` says so.
        let _ = std::thread::Builder::new().name("nics".to_owned()).spawn(work);
        NicThread { questions, answers, is_asked: false }
    }

    /// Asks for a look, unless one is under way; false then.
    pub fn ask(&mut self, ask: Ask) -> bool {
        if self.is_asked {
            return false;
        }
        self.is_asked = self.questions.send(ask).is_ok();
        self.is_asked
    }

    /// Appends the answer, if it comes within `wait`.
    pub fn collect(&mut self, wait: Duration, evidence: &mut Evidence) {
        if !self.is_asked {
            return;
        }
        match self.answers.recv_timeout(wait) {
            Ok(answer) => {
                self.is_asked = false;
                evidence.append(answer);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => self.is_asked = false,
        }
    }

    /// The answer to the last question, which must come now.
    pub fn collect_last(&mut self, wait: Duration, evidence: &mut Evidence) {
        self.collect(wait, evidence);
        if self.is_asked {
            evidence.unseen(
                probe::NICS,
                "what network devices counted at the end",
                format!("they did not answer within {:.1} s: a device may be in a reset", wait.as_secs_f64()),
                "look again in a few seconds; `ip link` hangs, too, while it lasts",
            );
        }
    }
}
