//! Move a thread to other cores: one that keeps others off a core, or one that is kept off.

use super::threads::{ThreadRef, parse_cores};
use super::{Done, Hands, StepError, Undone};
use serde::{Deserialize, Serialize};
use serde_json::json;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveThread {
    pub thread: ThreadRef,
    /// As taskset writes them: `0,2-5`.
    pub cores: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Before {
    pub cores: String,
}

impl MoveThread {
    pub fn prepare(&self, _hands: &mut Hands<'_>) -> Result<Before, StepError> {
        self.thread.must_live()?;
        parse_cores(&self.cores)?;
        Ok(Before { cores: self.thread.affinity()?.to_string() })
    }

    pub fn act(&self, before: &Before, _hands: &mut Hands<'_>) -> Result<Done, StepError> {
        self.thread.must_live()?;
        self.thread.set_affinity(&parse_cores(&self.cores)?)?;
        let now = self.thread.affinity()?.to_string();
        let words = format!("{} may now run on cores {now}; before: {}", self.thread.name(), before.cores);
        let mut done = Done::new(words, json!({ "cores": now }));
        if now == before.cores {
            done.in_vain = Some(format!("it may run on cores {now}, unchanged"));
        }
        Ok(done)
    }

    pub fn undo(&self, before: &Before, _hands: &mut Hands<'_>, force: bool) -> Result<Undone, StepError> {
        if !self.thread.lives() {
            return Ok(Undone::AlreadySo(format!("{} is gone", self.thread.name())));
        }
        let now = self.thread.affinity()?;
        let was = parse_cores(&before.cores)?;
        if now == was {
            return Ok(Undone::AlreadySo(format!("{} may run on cores {was}, as before the fix", self.thread.name())));
        }
        if now != parse_cores(&self.cores)? && !force {
            return Ok(Undone::ChangedSince(format!(
                "{} may now run on cores {now}; the fix set {}, before that it was {was}",
                self.thread.name(),
                self.cores
            )));
        }
        self.thread.set_affinity(&was)?;
        Ok(Undone::Restored(format!("{} may run on cores {was} again", self.thread.name())))
    }
}
