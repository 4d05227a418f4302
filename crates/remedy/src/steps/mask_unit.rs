//! Mask a unit, so that nothing can start it.

use super::{Done, Hands, StepError, Undone};
use crate::guards;
use serde::{Deserialize, Serialize};
use serde_json::json;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MaskUnit {
    pub unit: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MaskBefore {
    pub file_state: String,
}

/// Where a mask goes.
const ADMIN: &str = "/etc/systemd/system/";

/// Whether an administrator's unit file is where the mask would go.
pub fn is_in_the_way(fragment: &str) -> bool {
    fragment.strip_prefix(ADMIN).is_some_and(|name| !name.contains('/'))
}

impl MaskUnit {
    pub fn prepare(&self, hands: &mut Hands<'_>) -> Result<MaskBefore, StepError> {
        let now = guards::may_switch_off(&self.unit, hands)?;
        if is_in_the_way(&now.fragment) && !now.file_state.starts_with("masked") {
            return Err(StepError::refused(format!(
                "{} is where the mask would go: move it away first, or leave the unit disabled",
                now.fragment
            )));
        }
        Ok(MaskBefore { file_state: now.file_state })
    }

    pub fn act(&self, before: &MaskBefore, hands: &mut Hands<'_>) -> Result<Done, StepError> {
        // Check again: somebody may depend on it by now.
        guards::may_switch_off(&self.unit, hands)?;
        let manager = hands.manager()?;
        if !before.file_state.starts_with("masked") {
            manager.mask(&self.unit)?;
            manager.reload()?;
        }
        let state = manager.file_state(&self.unit)?;
        match state.starts_with("masked") {
            true => Ok(Done::new(format!("{} is {state}", self.unit), json!({ "file_state": state }))),
            false => Err(StepError::failed(format!("{} is {state}, not masked", self.unit))),
        }
    }

    pub fn undo(&self, before: &MaskBefore, hands: &mut Hands<'_>, _force: bool) -> Result<Undone, StepError> {
        let manager = hands.manager()?;
        let now = manager.file_state(&self.unit)?;
        if before.file_state.starts_with("masked") || !now.starts_with("masked") {
            return Ok(Undone::AlreadySo(format!("{} is {now}", self.unit)));
        }
        manager.unmask(&self.unit)?;
        manager.reload()?;
        let now = manager.file_state(&self.unit)?;
        match now.starts_with("masked") {
            false => Ok(Undone::Restored(format!("{} is {now}", self.unit))),
            true => Err(StepError::failed(format!("{} is still {now}", self.unit))),
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn only_a_unit_file_in_etc_is_in_the_way() {
        assert!(super::is_in_the_way("/etc/systemd/system/own.service"));
        assert!(!super::is_in_the_way("/usr/lib/systemd/system/ecs.service"));
        assert!(!super::is_in_the_way("/etc/systemd/system/x.d/y.conf"));
    }
}
