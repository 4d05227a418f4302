//! Whether a unit starts without anybody asking for it.

use coroner_evidence::{Enablement, UnitFile};
use std::collections::HashMap;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Start {
    /// It starts, and this is why: `enabled`, `pulled in by multi-user.target`, `started by apt-daily.timer`.
    Yes(String),
    No(String),
}

/// Chains of timers and sockets are followed this far.
const MAX_CHAIN: usize = 4;

/// `units` by name: a timer or socket may start the unit.
pub fn start_of(unit: &UnitFile, units: &HashMap<&str, &UnitFile>) -> Start {
    start(unit, units, MAX_CHAIN)
}

fn start(unit: &UnitFile, units: &HashMap<&str, &UnitFile>, left: usize) -> Start {
    use Enablement::*;
    let state = unit.enablement;
    match state {
        Masked | MaskedRuntime => return Start::No("is masked".to_owned()),
        Bad => {
            let why = unit.bad.as_deref().unwrap_or("unknown");
            return Start::No(format!("cannot be loaded: {why}"));
        }
        // The target is judged instead.
        Alias => return Start::No("is only an alias".to_owned()),
        _ => {}
    }
    // A template does not run; its instances are units of their own.
    if unit.name.contains("@.") {
        return Start::No("is a template".to_owned());
    }
    // Of conditions with `|` only one needs to hold.
    let unmet = unit.conditions.iter().find(|c| c.holds == Some(false) && !c.value.starts_with('|'));
    if let Some(condition) = unmet {
        return Start::No(format!("does not start: {}={} is not met", condition.key, condition.value));
    }
    match state {
        Enabled => return Start::Yes("is enabled".to_owned()),
        EnabledRuntime => return Start::Yes("is enabled until the next boot".to_owned()),
        _ => {}
    }
    if let Some(pull) = unit.pulled_in_by.first() {
        return Start::Yes(format!("is pulled in by {}", pull.by));
    }
    if left > 0 {
        for name in &unit.triggered_by {
            if let Some(trigger) = units.get(name.as_str())
                && let Start::Yes(_) = start(trigger, units, left - 1)
            {
                return Start::Yes(format!("is started by {name}"));
            }
        }
    }
    Start::No(format!("is {state} and nothing pulls it in"))
}
