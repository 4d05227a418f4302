//! Let another core serve an interrupt.

use super::threads::parse_cores;
use super::{Done, Hands, StepError, Undone};
use crate::guards;
use coroner_evidence::CoreSet;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::fs;
use std::path::PathBuf;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveInterrupt {
    pub irq: u32,
    /// As in smp_affinity_list: `0,2-5`.
    pub cores: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Before {
    pub cores: String,
}

impl MoveInterrupt {
    fn file(&self) -> PathBuf {
        format!("/proc/irq/{}/smp_affinity_list", self.irq).into()
    }

    fn read(&self) -> Result<CoreSet, StepError> {
        let text = fs::read_to_string(self.file()).map_err(|e| StepError::io(&self.file(), e))?;
        parse_cores(text.trim())
    }

    pub fn prepare(&self, _hands: &mut Hands<'_>) -> Result<Before, StepError> {
        parse_cores(&self.cores)?;
        if let Some(pid) = guards::irqbalance() {
            return Err(StepError::refused(format!(
                "irqbalance (pid {pid}) places the interrupts and would move it back: tell irqbalance itself \
                 (IRQBALANCE_ARGS=--banirq={} in its configuration), then move it",
                self.irq
            )));
        }
        Ok(Before { cores: self.read()?.to_string() })
    }

    pub fn act(&self, before: &Before, _hands: &mut Hands<'_>) -> Result<Done, StepError> {
        fs::write(self.file(), &self.cores).map_err(|e| {
            let why =
                if e.raw_os_error() == Some(libc::EIO) { " (the kernel manages this interrupt itself)" } else { "" };
            StepError::failed(format!("{}: {e}{why}", self.file().display()))
        })?;
        let now = self.read()?.to_string();
        let words = format!("interrupt {} goes to cores {now}, before to {}", self.irq, before.cores);
        let mut done = Done::new(words, json!({ "cores": now }));
        if now == before.cores {
            done.in_vain = Some(format!("it goes to cores {now}, as before"));
        }
        Ok(done)
    }

    pub fn undo(&self, before: &Before, _hands: &mut Hands<'_>, force: bool) -> Result<Undone, StepError> {
        let (now, was) = (self.read()?, parse_cores(&before.cores)?);
        if now == was {
            return Ok(Undone::AlreadySo(format!("interrupt {} goes to cores {was}, as before", self.irq)));
        }
        if now != parse_cores(&self.cores)? && !force {
            return Ok(Undone::ChangedSince(format!(
                "interrupt {} goes to cores {now} now; we had said {}, before it was {was}",
                self.irq, self.cores
            )));
        }
        fs::write(self.file(), was.to_string()).map_err(|e| StepError::io(&self.file(), e))?;
        Ok(Undone::Restored(format!("interrupt {} goes to cores {was} again", self.irq)))
    }
}
