//! What else stops when a unit stops.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::{Manager, ManagerError, UNIT, Value};

/// The most dependants that are listed; more is an error.
const MOST_DEPENDANTS: usize = 256;
/// The most units that are asked for StopWhenUnneeded and their state.
const MOST_ASKED: usize = 4096;
/// A bus that answers slowly must not block the caller for hours.
const PATIENCE: Duration = Duration::from_secs(30);

// The relations are those of systemd's unit-dependency-atom.c; PropagatesStopTo, Upholds and UpheldBy since version 249.
/// A stop propagates along these (UNIT_ATOM_PROPAGATE_STOP).
const STOPS_ALONG: [&str; 5] = ["RequiredBy", "RequisiteOf", "BoundBy", "ConsistsOf", "PropagatesStopTo"];
/// Units pulled in along these may become unneeded when it stops (UNIT_ATOM_ADD_STOP_WHEN_UNNEEDED_QUEUE).
const PULLS_IN: [&str; 5] = ["Requires", "Requisite", "Wants", "BindsTo", "Upholds"];
/// The reverse: units that, while up, keep another one needed (UNIT_ATOM_PINS_STOP_WHEN_UNNEEDED).
const NEEDED_BY: [&str; 5] = ["RequiredBy", "RequisiteOf", "WantedBy", "BoundBy", "UpheldBy"];

struct Search<'m> {
    manager: &'m mut Manager,
    name: &'m str,
    until: Instant,
    found: Vec<String>,
    /// Found units whose relations are still to be read.
    queue: Vec<String>,
    /// Units that were asked for StopWhenUnneeded.
    asked: BTreeSet<String>,
    /// Units that are up with StopWhenUnneeded, and what keeps them up now.
    kept_up_by: BTreeMap<String, Vec<String>>,
    states: BTreeMap<String, String>,
}

impl Manager {
    /// What else stops: units that require it, are bound to it or part of it, and so on; and those with StopWhenUnneeded that nothing
    /// else needs. Too many is an error: a unit that the node needs might be among them.
    pub fn stops_with(&mut self, name: &str) -> Result<Vec<String>, ManagerError> {
        let mut search = Search {
            manager: self,
            name,
            until: Instant::now() + PATIENCE,
            found: Vec::new(),
            queue: vec![name.to_owned()],
            asked: BTreeSet::new(),
            kept_up_by: BTreeMap::new(),
            states: BTreeMap::new(),
        };
        while let Some(unit) = search.queue.pop() {
            search.follow(&unit)?;
            if search.queue.is_empty()
                && let Some(unneeded) = search.unneeded()
            {
                search.add(unneeded)?;
            }
        }
        Ok(search.found)
    }
}

impl Search<'_> {
    fn follow(&mut self, unit: &str) -> Result<(), ManagerError> {
        let object = self.manager.load(unit)?;
        for other in self.related(&object, &STOPS_ALONG)? {
            self.add(other)?;
        }
        for other in self.related(&object, &PULLS_IN)? {
            if other != self.name && self.asked.insert(other.clone()) {
                self.bounded(self.asked.len() + self.states.len(), MOST_ASKED)?;
                self.ask(other)?;
            }
        }
        Ok(())
    }

    fn add(&mut self, other: String) -> Result<(), ManagerError> {
        if self.stops(&other) {
            return Ok(());
        }
        self.found.push(other.clone());
        self.queue.push(other);
        self.bounded(self.found.len(), MOST_DEPENDANTS)
    }

    /// Notes what keeps the unit up, if it has StopWhenUnneeded.
    fn ask(&mut self, unit: String) -> Result<(), ManagerError> {
        let object = self.manager.load(&unit)?;
        let flag = |value: Value<'_>| if let Value::Flag(flag) = value { Some(flag) } else { None };
        if self.manager.property(&object, UNIT, "StopWhenUnneeded", flag)? != Some(true)
            || matches!(self.state(&unit)?, "inactive" | "failed")
        {
            return Ok(());
        }
        let mut keepers = Vec::new();
        for other in self.related(&object, &NEEDED_BY)? {
            self.bounded(self.asked.len() + self.states.len(), MOST_ASKED)?;
            // A unit that is stopping or unknown keeps nothing up.
            if matches!(self.state(&other)?, "active" | "activating" | "reloading" | "refreshing") {
                keepers.push(other);
            }
        }
        self.kept_up_by.insert(unit, keepers);
        Ok(())
    }

    /// A unit that becomes unneeded, given the units known to stop.
    fn unneeded(&self) -> Option<String> {
        let mut candidates = self.kept_up_by.iter().filter(|(unit, _)| !self.stops(unit));
        let (unit, _) = candidates.find(|(_, keepers)| keepers.iter().all(|keeper| self.stops(keeper)))?;
        Some(unit.clone())
    }

    fn stops(&self, unit: &str) -> bool {
        unit == self.name || self.found.iter().any(|found| found == unit)
    }

    fn state(&mut self, unit: &str) -> Result<&str, ManagerError> {
        if !self.states.contains_key(unit) {
            let object = self.manager.load(unit)?;
            let state = self.manager.text(&object, UNIT, "ActiveState")?;
            self.states.insert(unit.to_owned(), state);
        }
        Ok(self.states.get(unit).map_or("", String::as_str))
    }

    fn related(&mut self, object: &str, relations: &[&str]) -> Result<Vec<String>, ManagerError> {
        let mut all = Vec::new();
        for relation in relations {
            all.extend(self.manager.texts(object, UNIT, relation)?);
        }
        Ok(all)
    }

    fn bounded(&self, number: usize, most: usize) -> Result<(), ManagerError> {
        if number > most {
            return Err(ManagerError::TooMany { unit: self.name.to_owned(), most });
        }
        if Instant::now() > self.until {
            let what = format!("finding units that stop with {}", self.name);
            return Err(ManagerError::TooSlow { what, after: PATIENCE });
        }
        Ok(())
    }
}
