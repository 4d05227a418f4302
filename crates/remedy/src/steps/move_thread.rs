//! Move a thread to other cores: one that keeps others off a core, or one that is kept off.

use super::threads::{ThreadRef, cores_words, parse_cores};
use super::{Done, Hands, StepError, Undone};
use serde::{Deserialize, Serialize};
use serde_json::json;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveThread {
    pub thread: ThreadRef,
    /// `0,2-5`
    pub cores: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AffinityBefore {
    pub cores: String,
}

impl MoveThread {
    pub fn prepare(&self, _hands: &mut Hands<'_>) -> Result<AffinityBefore, StepError> {
        self.thread.must_live()?;
        parse_cores(&self.cores)?;
        Ok(AffinityBefore { cores: self.thread.affinity()?.to_string() })
    }

    pub fn act(&self, before: &AffinityBefore, _hands: &mut Hands<'_>) -> Result<Done, StepError> {
        self.thread.must_live()?;
        self.thread.set_affinity(&parse_cores(&self.cores)?)?;
        let now = self.thread.affinity()?.to_string();
        let words = format!("{} may now run on {}; before: {}", self.thread.name(), cores_words(&now), before.cores);
        let mut done = Done::new(words, json!({ "cores": now }));
        if now == before.cores {
            done.in_vain = Some(format!("it may still run on {}", cores_words(&now)));
        }
        Ok(done)
    }

    pub fn undo(&self, before: &AffinityBefore, _hands: &mut Hands<'_>, force: bool) -> Result<Undone, StepError> {
        if !self.thread.lives() {
            return Ok(Undone::AlreadySo(format!("{} is gone", self.thread.name())));
        }
        let now = self.thread.affinity()?;
        let was = parse_cores(&before.cores)?;
        if now == was {
            let (name, cores) = (self.thread.name(), cores_words(&was));
            return Ok(Undone::AlreadySo(format!("{name} may run on {cores}, as before the fix")));
        }
        if now != parse_cores(&self.cores)? && !force {
            return Ok(Undone::ChangedSince(format!(
                "{} may now run on {}; the fix set {}, before that it was {was}",
                self.thread.name(),
                cores_words(&now),
                self.cores
            )));
        }
        self.thread.set_affinity(&was)?;
        Ok(Undone::Restored(format!("{} may run on {} again", self.thread.name(), cores_words(&was))))
    }
}
