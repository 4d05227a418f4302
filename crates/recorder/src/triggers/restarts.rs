//! Units and containers that start to crashloop.

use super::super::trigger::Trigger;
use super::trigger;
use coroner_diagnosis::Code;
use coroner_diagnosis::key::KeySubject;
use coroner_diagnosis::units::loops::{has_failed, is_job};
use coroner_evidence::{Evidence, Time, Unit};
use std::collections::{HashMap, VecDeque};
use std::time::Duration;

const WINDOW: Duration = Duration::from_secs(600);
/// Most units and containers tracked; far more than a node has. What was not seen for a day is forgotten first.
const MOST: usize = 20_000;
const FORGOTTEN: Duration = Duration::from_secs(24 * 3600);

pub struct RestartTriggers {
    threshold: u64,
    units: HashMap<String, UnitState>,
    containers: HashMap<String, (u64, Restarts)>,
}

#[derive(Debug, Default)]
struct UnitState {
    /// systemd's NRestarts.
    counted: Option<u32>,
    invocation: Option<String>,
    restarts: Restarts,
}

/// Restarts within the window.
#[derive(Debug, Default)]
struct Restarts {
    /// When, and how many: there may be several between two looks.
    seen: VecDeque<(Time, u64)>,
    last_look: Time,
    fired: bool,
}

impl Restarts {
    /// Takes the restarts since the last look. When a loop begins, returns how many there were within the window.
    fn take(&mut self, at: Time, new: u64, threshold: u64) -> Option<u64> {
        self.last_look = at;
        while self.seen.front().is_some_and(|(then, _)| at.since(*then) >= WINDOW) {
            self.seen.pop_front();
        }
        if self.seen.is_empty() {
            // A window without restarts ends a loop: slow loops wait for minutes (RestartSteps=, CrashLoopBackOff).
            self.fired = false;
        }
        if new == 0 {
            return None;
        }
        self.seen.push_back((at, new));
        let all = self.seen.iter().fold(0u64, |sum, (_, n)| sum.saturating_add(*n));
        let fires = all >= threshold && !self.fired;
        self.fired |= fires;
        fires.then_some(all)
    }
}

impl RestartTriggers {
    pub fn new(threshold: u64) -> RestartTriggers {
        RestartTriggers { threshold, units: HashMap::new(), containers: HashMap::new() }
    }

    pub fn look(&mut self, fragment: &Evidence, found: &mut Vec<Trigger>) {
        if self.threshold == 0 {
            return;
        }
        for unit in &fragment.units {
            self.unit(unit, found);
        }
        for container in &fragment.containers {
            let pod = container.pod.as_deref().map(|pod| format!("{pod}/")).unwrap_or_default();
            let name = format!("{pod}{}", container.name);
            let key = format!("{}/{}/{name}", container.runtime, container.pod_uid.as_deref().unwrap_or_default());
            forget(&mut self.containers, container.at, |(_, restarts)| restarts.last_look);
            let (counted, restarts) = self.containers.entry(key).or_insert((container.restarts, Restarts::default()));
            let new = container.restarts.saturating_sub(std::mem::replace(counted, container.restarts));
            if let Some(n) = restarts.take(container.at, new, self.threshold) {
                let text = format!("container {name} was restarted {n} times within ten minutes");
                found.push(trigger(
                    Code::ContainerCrashloop,
                    Some(KeySubject::Container(&name)),
                    name.as_str(),
                    None,
                    container.at,
                    text,
                ));
            }
        }
    }

    fn unit(&mut self, unit: &Unit, found: &mut Vec<Trigger>) {
        if !unit.name.ends_with(".service") {
            return;
        }
        forget(&mut self.units, unit.at, |state| state.restarts.last_look);
        // What systemd counted before the first look does not count.
        let state = self.units.entry(unit.name.clone()).or_default();
        let automatic = match (state.counted, unit.restarts) {
            (Some(before), Some(now)) if now >= before => u64::from(now - before),
            // Set back to 0 by `reset-failed` or a manual start, and counted again since.
            (Some(_), Some(now)) => u64::from(now),
            _ => 0,
        };
        let another = state.invocation.is_some()
            && unit.invocation_id.as_ref().is_some_and(|id| state.invocation.as_ref() != Some(id));
        // Something other than systemd starts it again. By hand or by a timer that is fine, unless it failed each time.
        let by_others = u64::from(another && automatic == 0 && !is_job(&[unit]) && has_failed(unit));
        state.counted = unit.restarts.or(state.counted);
        if unit.invocation_id.is_some() {
            state.invocation.clone_from(&unit.invocation_id);
        }
        if let Some(n) = state.restarts.take(unit.at, automatic.max(by_others), self.threshold) {
            let text = format!("{} was restarted {n} times within ten minutes", unit.name);
            found.push(trigger(
                Code::UnitCrashloop,
                Some(KeySubject::Unit(&unit.name)),
                unit.name.clone(),
                None,
                unit.at,
                text,
            ));
        }
    }
}

fn forget<T>(states: &mut HashMap<String, T>, now: Time, last_look: impl Fn(&T) -> Time) {
    if states.len() >= MOST {
        states.retain(|_, state| now.since(last_look(state)) < FORGOTTEN);
    }
    if states.len() >= MOST {
        states.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use coroner_evidence::Container;

    fn look(triggers: &mut RestartTriggers, unit: Unit) -> Vec<Trigger> {
        let mut found = Vec::new();
        triggers.look(&Evidence { units: vec![unit], ..Evidence::default() }, &mut found);
        found
    }

    fn unit(second: u64, restarts: u32) -> Unit {
        Unit {
            at: Time::from_secs(second),
            name: "ecs.service".into(),
            restarts: Some(restarts),
            invocation_id: Some(format!("{restarts:032}")),
            ..Unit::default()
        }
    }

    #[test]
    fn a_loop_fires_when_it_begins_and_again_after_it_ended() {
        let mut triggers = RestartTriggers::new(5);
        assert_eq!(look(&mut triggers, unit(0, 500)), [], "earlier restarts do not count");
        assert_eq!(look(&mut triggers, unit(10, 504)), []);
        let found = look(&mut triggers, unit(20, 505));
        assert_eq!((found[0].code.as_str(), found[0].subject.as_str()), ("unit-crashloop", "ecs.service"));
        assert_eq!(found[0].text, "ecs.service was restarted 5 times within ten minutes");
        for second in (30..3000).step_by(10) {
            assert_eq!(look(&mut triggers, unit(second, 505 + second as u32 / 10)), [], "still the same loop");
        }
        assert_eq!(look(&mut triggers, unit(3700, 804)), []);
        assert_eq!(look(&mut triggers, unit(3710, 810)).len(), 1);
    }

    #[test]
    fn slow_restarts_and_manual_starts_are_no_loop() {
        let mut triggers = RestartTriggers::new(5);
        for hour in 0..20u32 {
            assert_eq!(look(&mut triggers, unit(u64::from(hour) * 3600, hour)), []);
        }
        for n in 0..20u64 {
            let by_hand = Unit { invocation_id: Some(n.to_string()), ..unit(80_000 + n, 0) };
            assert_eq!(look(&mut triggers, by_hand), []);
        }
    }

    #[test]
    fn a_count_that_was_set_back_still_counts() {
        let mut triggers = RestartTriggers::new(5);
        assert_eq!(look(&mut triggers, unit(0, 7)), []);
        assert_eq!(look(&mut triggers, unit(10, 3)), []);
        assert_eq!(look(&mut triggers, unit(20, 5)).len(), 1);
    }

    #[test]
    fn a_unit_that_fails_each_time_another_program_starts_it_is_a_loop() {
        let mut triggers = RestartTriggers::new(5);
        let mut found = 0;
        for n in 0..7u64 {
            let failing = Unit {
                invocation_id: Some(n.to_string()),
                exit_kind: Some("exited".into()),
                exit_status: Some(1),
                ..unit(n * 15, 0)
            };
            found += look(&mut triggers, failing).len();
        }
        assert_eq!(found, 1);
    }

    #[test]
    fn containers_are_tracked_too() {
        let mut triggers = RestartTriggers::new(3);
        let mut found = Vec::new();
        for (second, restarts) in [(0, 40), (60, 41), (120, 42), (180, 43), (240, 44)] {
            let container = Container {
                at: Time::from_secs(second),
                runtime: "kubelet".into(),
                name: "agent".into(),
                pod: Some("agent-x7".into()),
                restarts,
                ..Container::default()
            };
            triggers.look(&Evidence { containers: vec![container], ..Evidence::default() }, &mut found);
        }
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].code.as_str(), found[0].subject.as_str()), ("container-crashloop", "agent-x7/agent"));
    }
}
