//! Switch a unit off: stop it, and take away what starts it at boot.

use super::unit_links::{self, Link};
use super::{Done, Hands, StepError, Undone};
use crate::guards;
use coroner_diagnosis::units::protected::why_protected_by;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::fs;
use std::time::Duration;

/// systemd itself gives a unit 90 s before it kills it.
const STOP: Duration = Duration::from_secs(100);
/// A unit that fails again does so soon; one that takes long is left to systemd.
const START: Duration = Duration::from_secs(20);

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DisableUnit {
    pub unit: String,
    /// It has links that start it at boot. If not, it is only stopped.
    pub has_links: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Before {
    pub active_state: String,
    pub sub_state: String,
    pub file_state: String,
    /// Its links in /etc/systemd/system, and those of what is enabled with it; `None` if its files are out of reach.
    pub links: Option<Vec<Link>>,
}

impl Before {
    fn was_up(&self) -> bool {
        is_up(&self.active_state)
    }

    fn was_enabled(&self) -> bool {
        is_enabled(&self.file_state)
    }
}

fn is_up(active_state: &str) -> bool {
    matches!(active_state, "active" | "activating" | "reloading")
}

fn is_enabled(file_state: &str) -> bool {
    matches!(file_state, "enabled" | "enabled-runtime" | "linked" | "linked-runtime" | "alias" | "indirect")
}

impl DisableUnit {
    pub fn prepare(&self, hands: &mut Hands<'_>) -> Result<Before, StepError> {
        let now = guards::may_switch_off(&self.unit, hands)?;
        // Without them it is enabled again as its own file says.
        let links = match hands.root.is_some() {
            true => {
                let root = hands.checked_root()?;
                let file = fs::read_to_string(root.join(now.fragment.trim_start_matches('/'))).unwrap_or_default();
                let mut units = unit_links::also(&file);
                for also in &units {
                    if let Some(why) = why_protected_by(hands.catalogue(), also) {
                        return Err(StepError::refused(format!(
                            "to disable {} disables {also} as well (Also=), which is protected: {why}",
                            self.unit
                        )));
                    }
                }
                units.extend(now.names.iter().cloned());
                units.push(self.unit.clone());
                let links = unit_links::of_units(&root, &units);
                Some(links.map_err(|e| StepError::io(&root.join("etc/systemd/system"), e))?)
            }
            false => None,
        };
        Ok(Before { active_state: now.active_state, sub_state: now.sub_state, file_state: now.file_state, links })
    }

    pub fn act(&self, before: &Before, hands: &mut Hands<'_>) -> Result<Done, StepError> {
        let manager = hands.manager()?;
        if before.was_enabled() {
            manager.disable(&self.unit)?;
            manager.reload()?;
        }
        manager.stop(&self.unit, STOP)?;
        let now = manager.unit(&self.unit)?;
        let after = json!({"active_state": now.active_state, "sub_state": now.sub_state, "file_state": now.file_state});
        if is_up(&now.active_state) {
            return Err(StepError::failed(format!(
                "{} was stopped and is {} again: something starts it ({}); `systemctl mask` keeps it down",
                self.unit,
                now.active_state,
                if now.triggered_by.is_empty() { "a dependency".to_owned() } else { now.triggered_by.join(", ") }
            )));
        }
        if before.was_enabled() && is_enabled(&now.file_state) {
            return Err(StepError::failed(format!("{} is still {}", self.unit, now.file_state)));
        }
        let file = if now.file_state.is_empty() { String::new() } else { format!(", {}", now.file_state) };
        Ok(Done::new(format!("{} is {}{file}", self.unit, now.active_state), after))
    }

    pub fn undo(&self, before: &Before, hands: &mut Hands<'_>, _force: bool) -> Result<Undone, StepError> {
        let now = hands.manager()?.unit(&self.unit)?;
        if now.load_state == "not-found" {
            return Ok(Undone::ChangedSince(format!(
                "systemd knows no {} any more: was its package removed?",
                self.unit
            )));
        }
        if now.file_state.starts_with("masked") && !before.file_state.starts_with("masked") {
            return Ok(Undone::ChangedSince(format!(
                "{} is masked now, and not by this step: `systemctl unmask {0}`, then undo again",
                self.unit
            )));
        }
        let mut did = Vec::new();
        match &before.links {
            Some(links) => {
                let root = hands.checked_root()?;
                let (made, in_the_way) = unit_links::restore(&root, links)
                    .map_err(|e| StepError::io(&root.join("etc/systemd/system"), e))?;
                if made > 0 {
                    hands.manager()?.reload()?;
                    did.push(format!("{made} of its links made again"));
                }
                did.extend(in_the_way);
            }
            None if before.was_enabled() && !is_enabled(&now.file_state) => {
                let manager = hands.manager()?;
                manager.enable(&self.unit)?;
                manager.reload()?;
                did.push("enabled as its own file says".to_owned());
            }
            None => {}
        }
        if before.was_up() && !is_up(&now.active_state) {
            match hands.manager()?.start(&self.unit, START) {
                Ok(()) => did.push("started".to_owned()),
                Err(coroner_probes::units::ManagerError::TooSlow { .. }) => did.push("is starting".to_owned()),
                Err(error) => return Err(error.into()),
            }
        }
        let now = hands.manager()?.unit(&self.unit)?;
        let state = format!("{} is {}, {}", self.unit, now.active_state, or_none(&now.file_state));
        if before.was_enabled() && !is_enabled(&now.file_state) {
            return Err(StepError::failed(format!("{state}; it was {} before", before.file_state)));
        }
        Ok(match did.is_empty() {
            true => Undone::AlreadySo(format!("{state}, as before")),
            false => Undone::Restored(format!("{state}: {}", did.join(", "))),
        })
    }
}

fn or_none(state: &str) -> &str {
    if state.is_empty() { "without a file" } else { state }
}
