//! Reads network devices on their own thread.
//!
//! Driver statistics are read under the RTNL lock, which a device reset holds for seconds: just when the other probes must not
//! stop.

use crate::nic::NicReader;
use crate::root::{Root, now};
use coroner_evidence::{Evidence, probe};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// What to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NicRequest {
    Counters,
    /// Also which core serves each queue.
    MapAndCounters,
    /// As at the first look.
    Anew,
}

pub struct NicThread {
    questions: Sender<NicRequest>,
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
                if ask == NicRequest::Anew {
                    reader = NicReader::new(root.clone());
                }
                if ask != NicRequest::Counters {
                    reader.look_map(now(), &mut evidence);
                }
                reader.look_counters(now(), &mut evidence);
                if answer.send(evidence).is_err() {
                    return;
                }
            }
        };
        // Without a thread there is no answer, and `collect_last` reports that.
        let _ = std::thread::Builder::new().name("nics".to_owned()).spawn(work);
        NicThread { questions, answers, is_asked: false }
    }

    /// Requests a look; false if one is already pending.
    pub fn ask(&mut self, ask: NicRequest) -> bool {
        if self.is_asked {
            return false;
        }
        self.is_asked = self.questions.send(ask).is_ok();
        self.is_asked
    }

    /// Appends the answer if it arrives within `wait`.
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

    /// Like [`NicThread::collect`], for the last look: a missing answer is reported.
    pub fn collect_last(&mut self, wait: Duration, evidence: &mut Evidence) {
        self.collect(wait, evidence);
        if self.is_asked {
            evidence.unseen(
                probe::NICS,
                "final counters of network devices",
                format!("they did not respond within {:.1} s: a device may be resetting", wait.as_secs_f64()),
                "run again in a few seconds; `ip link` hangs too during a reset",
            );
        }
    }
}
