//! Disable a unit: stop it, and remove the links that start it at boot.

use super::unit_links::{self, Link};
use super::{Done, Hands, StepError, Undone};
use crate::guards;
use crate::tree::Tree;
use coroner_diagnosis::units::paths::operand;
use coroner_diagnosis::units::protected::why_protected_by;
use coroner_diagnosis::words::plural;
use coroner_probes::units::{ManagerError, UnitNow};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::time::{Duration, Instant};

const LINKS: &str = "/etc/systemd/system";

/// systemd waits 90 s before it kills a unit that does not stop.
const STOP: Duration = Duration::from_secs(100);
/// A unit that fails again does so soon; a slow one is left to systemd.
const START: Duration = Duration::from_secs(20);
/// A start job ends when the program runs, not when it works: it must stay up this long.
const STAYS_UP: Duration = Duration::from_secs(2);
/// A crashlooping unit is down for a moment between two starts; only longer than this is down for good.
const DOWN: Duration = Duration::from_millis(500);
const LOOK: Duration = Duration::from_millis(100);

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DisableUnit {
    pub unit: String,
    /// Links start it at boot. If not, it is only stopped.
    pub has_links: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnitBefore {
    pub active_state: String,
    pub sub_state: String,
    pub file_state: String,
    /// Its links in /etc/systemd/system and those of its `Also=` units; `None` if its files are out of reach.
    pub links: Option<Vec<Link>>,
}

impl UnitBefore {
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
    pub fn prepare(&self, hands: &mut Hands<'_>) -> Result<UnitBefore, StepError> {
        let now = guards::may_switch_off(&self.unit, hands)?;
        // Without these links, undo enables it as its unit file says.
        let links = match hands.root.is_some() {
            true => {
                let tree = hands.checked_root()?;
                let mut units = unit_links::also(&fragment(&tree, &now.fragment)?);
                for also in &units {
                    if let Some(why) = why_protected_by(hands.catalogue(), also) {
                        return Err(StepError::refused(format!(
                            "disabling {} also disables {also} (Also=), which is protected: {why}",
                            self.unit
                        )));
                    }
                }
                units.extend(now.names.iter().cloned());
                units.push(self.unit.clone());
                let links = unit_links::of_units(&tree, &units);
                Some(links.map_err(|e| StepError::io(&tree.shown(LINKS), e))?)
            }
            false => None,
        };
        Ok(UnitBefore { active_state: now.active_state, sub_state: now.sub_state, file_state: now.file_state, links })
    }

    pub fn act(&self, before: &UnitBefore, hands: &mut Hands<'_>) -> Result<Done, StepError> {
        // Check again: somebody may depend on it by now, or run inside it.
        guards::may_switch_off(&self.unit, hands)?;
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
                "{} was stopped but is {} again: something starts it ({}); `systemctl mask` prevents that",
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

    /// Its state shortly after it was started, or once it is down for good.
    fn after_start(&self, hands: &mut Hands<'_>) -> Result<UnitNow, StepError> {
        let until = Instant::now() + STAYS_UP;
        let mut down_since: Option<Instant> = None;
        loop {
            let now = hands.manager()?.unit(&self.unit)?;
            match is_up(&now.active_state) {
                true => down_since = None,
                false => _ = down_since.get_or_insert_with(Instant::now),
            }
            let is_down = down_since.is_some_and(|since| since.elapsed() >= DOWN);
            if is_down || (down_since.is_none() && Instant::now() >= until) {
                return Ok(now);
            }
            std::thread::sleep(LOOK);
        }
    }

    pub fn undo(&self, before: &UnitBefore, hands: &mut Hands<'_>, _force: bool) -> Result<Undone, StepError> {
        let now = hands.manager()?.unit(&self.unit)?;
        if now.load_state == "not-found" {
            return Ok(Undone::ChangedSince(format!(
                "systemd no longer knows {}: was its package removed?",
                self.unit
            )));
        }
        if now.file_state.starts_with("masked") && !before.file_state.starts_with("masked") {
            return Ok(Undone::ChangedSince(format!(
                "{} is masked, but not by this step: run `systemctl unmask {}`, then undo again",
                self.unit,
                operand(&self.unit)
            )));
        }
        let (mut did, mut left_alone) = (Vec::new(), Vec::new());
        match &before.links {
            Some(links) => {
                let tree = hands.checked_root()?;
                let (made, in_the_way) =
                    unit_links::restore(&tree, links).map_err(|e| StepError::io(&tree.shown(LINKS), e))?;
                if made > 0 {
                    hands.manager()?.reload()?;
                    did.push(format!("{} restored", plural(made as u64, "link", "links")));
                }
                left_alone = in_the_way;
            }
            None if before.was_enabled() && !is_enabled(&now.file_state) => {
                let manager = hands.manager()?;
                manager.enable(&self.unit)?;
                manager.reload()?;
                did.push("enabled as its unit file says".to_owned());
            }
            None => {}
        }
        let is_to_start = before.was_up() && !is_up(&now.active_state);
        if is_to_start {
            match hands.manager()?.start(&self.unit, START) {
                Ok(()) => did.push("started".to_owned()),
                Err(ManagerError::TooSlow { .. }) => did.push("is starting".to_owned()),
                Err(error) => return Err(error.into()),
            }
        }
        let now = match is_to_start {
            true => self.after_start(hands)?,
            false => hands.manager()?.unit(&self.unit)?,
        };
        let state = format!("{} is {}, {}", self.unit, now.active_state, or_none(&now.file_state));
        if is_to_start && !is_up(&now.active_state) {
            // A oneshot that ran and ended well is as it was; one that was up, or that failed, is not.
            let ended_well = now.active_state == "inactive" && matches!(now.result.as_str(), "success" | "");
            let how = if now.result.is_empty() { String::new() } else { format!(" ({})", now.result) };
            if !ended_well || before.active_state != "activating" {
                return Err(StepError::failed(format!(
                    "{state}: it was started but did not stay up{how}; before, it was {} ({}). See `journalctl -u {} -n 100`, \
                     then run `systemctl start`",
                    before.active_state, before.sub_state, self.unit
                )));
            }
            did.push(format!("ran to completion{how}"));
        }
        if before.was_enabled() && !is_enabled(&now.file_state) {
            return Err(StepError::failed(format!("{state}; it was {} before", before.file_state)));
        }
        if !left_alone.is_empty() {
            return Ok(Undone::ChangedSince(format!("{state}; not touched: {}", left_alone.join(", "))));
        }
        Ok(match did.is_empty() {
            true => Undone::AlreadySo(format!("{state}, as before")),
            false => Undone::Restored(format!("{state}: {}", did.join(", "))),
        })
    }
}

/// The text of the unit file, empty if it has none. An unreadable one is an error: it may name protected units.
fn fragment(tree: &Tree, path: &str) -> Result<String, StepError> {
    if path.is_empty() {
        return Ok(String::new());
    }
    match tree.read_to_string(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(String::new()),
        read => read.map_err(|e| StepError::io(&tree.shown(path), e)),
    }
}

fn or_none(state: &str) -> &str {
    if state.is_empty() { "no unit file" } else { state }
}
