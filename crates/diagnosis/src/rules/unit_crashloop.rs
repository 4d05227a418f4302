//! Does a systemd unit die and get restarted over and over?
//!
//! An unused agent that cannot start is restarted forever: it costs CPU, and each start leaves a cgroup behind that memory may pin
//! (see zombie-memcgs). [`crate::units::loops`] tells a loop from an administrator's restarts.

use crate::case::Case;
use crate::code::Code;
use crate::finding::{Answer, Fact, FactKey, Finding, Severity, Subject, SubjectKind};
use crate::log_events;
use crate::ties::Ties;
use crate::units::cost::UnitCost;
use crate::units::loops::{FROM_BOOT, FROM_JOURNAL, How, Loop, Trend, loops};
use crate::units::paths::{operand, shell_word};
use crate::units::protected::is_protected;
use crate::words::{age_words, bytes, count, duration_words, list, plural, rate, times};
use coroner_evidence::{Clocks, Enablement, Evidence, Time, Unit, UnitFile, Wall, probe};
use std::collections::BTreeSet;
use std::time::Duration;

pub fn examine(case: &Case<'_>) -> Answer {
    let evidence = case.evidence;
    if evidence.units.is_empty() {
        return units_unseen(evidence);
    }
    let loops = loops(evidence);
    let seen: BTreeSet<&str> = evidence.units.iter().map(|u| u.name.as_str()).collect();
    if loops.is_empty() {
        return Answer::Fine(format!("{}, none crashloops", plural(seen.len() as u64, "unit", "units")));
    }
    let costs = case.unit_costs();
    let none = UnitCost::default();
    let scene = Scene { now: log_events::end_of(evidence), clock: evidence.clocks.last(), files: &evidence.unit_files };
    let findings = loops.iter().map(|l| finding(l, costs.get(&l.unit.name).unwrap_or(&none), &scene)).collect();
    Answer::Findings(findings)
}

/// The answer if systemd was not seen.
pub(super) fn units_unseen(evidence: &Evidence) -> Answer {
    match evidence.why_unseen(probe::UNITS) {
        Some(u) => Answer::CannotTell { because: u.why.clone(), how_to_see: u.how_to_see.clone() },
        None => Answer::CannotTell {
            because: "no systemd units were seen".to_owned(),
            how_to_see: "run on the node itself, where systemd's D-Bus socket can be reached".to_owned(),
        },
    }
}

struct Scene<'e> {
    now: Option<Time>,
    clock: Option<&'e Clocks>,
    files: &'e [UnitFile],
}

impl Scene<'_> {
    fn age(&self, at: Wall) -> Option<Duration> {
        Some(self.clock?.wall_of(self.now?).since(at))
    }

    /// `None` if its unit file was not seen.
    fn is_enabled(&self, unit: &str) -> Option<bool> {
        let file = self.files.iter().find(|f| f.name == unit)?;
        Some(!matches!(file.enablement, Enablement::Static | Enablement::Generated | Enablement::Transient))
    }
}

/// The rate: as watched, from the journal, or on average.
fn how_fast(l: &Loop<'_>) -> String {
    let (Some(per_hour), Some(over)) = (l.per_hour, l.rate_over) else { return "an unknown rate".to_owned() };
    let words = rate(per_hour, Duration::from_secs(3600));
    match l.rate_from {
        FROM_BOOT => format!("{words} on average since boot"),
        FROM_JOURNAL => format!("{words} over the last {} (journal)", duration_words(over)),
        _ => words,
    }
}

fn finding(l: &Loop<'_>, cost: &UnitCost, scene: &Scene<'_>) -> Finding {
    let unit = l.unit;
    let ended = ended_words(l.failed.unwrap_or(unit));
    let in_window = l.in_window.map_or(0, |(n, _)| n);
    let title = match (l.how, l.over_for) {
        (How::Once, _) if in_window > 1 => {
            format!("{} died and was restarted {} while we watched{ended}", unit.name, times(in_window))
        }
        (How::Once, _) => format!("{} died and was restarted while we watched{ended}", unit.name),
        (_, Some(quiet)) => format!(
            "{} crashlooped until {}: {} restarts, {}{ended}",
            unit.name,
            age_words(quiet, Duration::ZERO),
            count(l.restarts),
            how_fast(l)
        ),
        _ => match l.failed.is_none() && (unit.exit_kind.as_deref(), unit.exit_status) == (Some("exited"), Some(0)) {
            false => format!("{} crashloops: {} restarts, {}{ended}", unit.name, count(l.restarts), how_fast(l)),
            true => format!(
                "{} keeps exiting without an error and is restarted each time: {} restarts, {}",
                unit.name,
                count(l.restarts),
                how_fast(l)
            ),
        },
    };
    Finding {
        code: Code::UnitCrashloop,
        ties: Ties {
            since: l.since.and_then(|since| scene.age(since)).zip(scene.now).map(|(age, now)| now - age),
            until: l.over_for.zip(scene.now).map(|(quiet, now)| now - quiet),
            ..Ties::of_unit(&unit.name, unit.cgroup.as_deref())
        },
        severity: if l.is_loop() { Severity::Warning } else { Severity::Info },
        subject: Subject::new(SubjectKind::Unit, unit.name.clone()),
        title,
        detail: detail(l, cost, scene),
        evidence: facts(l, cost, scene),
        remedy: remedy(&unit.name, cost, scene.is_enabled(&unit.name)),
    }
}

/// If the beginning was not seen, an age is given only if it lies well before the window.
const TELLING_AGE: Duration = Duration::from_secs(600);

fn detail(l: &Loop<'_>, cost: &UnitCost, scene: &Scene<'_>) -> String {
    let mut detail = match (l.how, l.over_for) {
        (How::Seen, None) => "systemd restarted it automatically while we watched. ",
        (How::Seen, Some(_)) => {
            "systemd kept restarting it automatically while we watched, but it has stopped looping. "
        }
        (How::Waiting, _) => "It is down and waits for its next automatic restart. ",
        (How::History, _) => "It is up now, but its restarts and its recent start show a slow loop. ",
        (How::Once, _) => "Too few restarts to call it a loop. ",
    }
    .to_owned();
    if let Some(age) = l.since.and_then(|since| scene.age(since)).filter(|_| l.is_loop()) {
        if l.since_is_exact {
            detail.push_str(&format!("The loop began {}. ", age_words(age, Duration::ZERO)));
        } else if age >= TELLING_AGE {
            detail.push_str(&format!("The loop began {} or earlier. ", age_words(age, Duration::ZERO)));
        }
    }
    if let (Some(trend), Some(halves)) = (l.trend, l.halves) {
        let words = match trend {
            Trend::Worse => "It is getting worse",
            Trend::Steady => "Its rate is steady",
            Trend::Better => "It is getting better",
        };
        detail.push_str(&format!(
            "{words}: {} restarts in the older half ({}), {} in the newer. ",
            count(halves.older),
            duration_words(halves.each),
            count(halves.newer)
        ));
    }
    if let Some(delay) = l.unit.restart_delay_us {
        detail.push_str(&format!(
            "systemd waits {} before each restart (RestartSec=). ",
            duration_words(Duration::from_micros(delay))
        ));
    }
    detail.push_str(&left_behind(cost));
    detail
}

/// The dead cgroups of the unit, for people.
pub(super) fn left_behind(cost: &UnitCost) -> String {
    let Some(dead) = cost.zombies.filter(|n| *n > 0) else {
        return "Each start makes a new cgroup, and memory still charged to the old one can keep the kernel from freeing it (see zombie-memcgs)."
            .to_owned();
    };
    let holding = cost.zombie_bytes.map(|held| format!(", holding {}", bytes(held))).unwrap_or_default();
    let growing = cost.zombies_per_hour.filter(|rate| *rate > 0.0);
    let growing = growing.map(|n| format!(", growing by {}", rate(n, Duration::from_secs(3600)))).unwrap_or_default();
    let many = plural(dead, "dead memory cgroup", "dead memory cgroups");
    let mut text = format!("It left {many} behind{holding}{growing} (see zombie-memcgs).");
    if !cost.pinned_by.is_empty() {
        let files: Vec<&str> = cost.pinned_by.iter().map(|p| p.file.as_str()).collect();
        text.push_str(&format!(" Kept by {}.", list(&files, 3)));
    }
    text
}

fn facts(l: &Loop<'_>, cost: &UnitCost, scene: &Scene<'_>) -> Vec<Fact> {
    let unit = l.unit;
    let source = format!("systemd: {}", unit.name);
    let mut facts = Vec::new();
    if let Some(restarts) = unit.restarts {
        facts.push(Fact::new(FactKey::AutomaticRestarts, restarts, source.clone()));
    }
    if let Some((n, over)) = l.in_window {
        facts.push(Fact::new(FactKey::AutomaticRestartsWithin, n, source.clone()).over(over));
    }
    if let Some(per_hour) = l.per_hour.filter(|_| l.is_loop()) {
        facts.push(Fact::new(FactKey::RestartsPerHour, rounded(per_hour), source.clone()).of(l.rate_from));
    }
    if let Some(age) = l.since.and_then(|since| scene.age(since)).filter(|_| l.is_loop()) {
        let key = if l.since_is_exact { FactKey::LoopingFor } else { FactKey::LoopingForAtLeast };
        facts.push(Fact::new(key, age.as_secs(), source.clone()));
    }
    if let (Some(trend), Some(_)) = (l.trend, l.halves) {
        facts.push(Fact::new(FactKey::Trend, trend.as_str(), source.clone()));
    }
    facts.push(Fact::new(FactKey::State, format!("{} ({})", unit.active_state, unit.sub_state), source.clone()));
    if let Some((kind, status)) = l.failed.and_then(|u| Some((u.exit_kind.as_deref()?, u.exit_status?))) {
        let key = if kind == "exited" { FactKey::ExitStatus } else { FactKey::Signal };
        facts.push(Fact::new(key, status, source.clone()));
    }
    if let Some(result) = &l.failed.unwrap_or(unit).result {
        facts.push(Fact::new(FactKey::Result, result.clone(), source.clone()));
    }
    if let (Some(started), Some(now)) = (unit.main_started, scene.now) {
        facts.push(Fact::new(FactKey::LastStart, age_words(now.since(started), Duration::ZERO), source.clone()));
    }
    if let Some(state) = &unit.unit_file_state {
        facts.push(Fact::new(FactKey::Enabled, state.clone(), source));
    }
    facts.extend(leftovers(cost));
    facts
}

/// The same as facts.
pub(super) fn leftovers(cost: &UnitCost) -> Vec<Fact> {
    let source = "scan of dead memory cgroups, by path and by maker";
    let mut facts = Vec::new();
    let Some(dead) = cost.zombies else { return facts };
    facts.push(Fact::new(FactKey::DeadOfUnit, dead, source));
    if dead == 0 {
        return facts;
    }
    if let Some(held) = cost.zombie_bytes {
        facts.push(Fact::new(FactKey::DeadHold, held, source));
    }
    if let (Some(per_hour), Some(from)) = (cost.zombies_per_hour, cost.zombies_rate_from) {
        facts.push(Fact::new(FactKey::DeadPerHour, rounded(per_hour), source).of(from));
    }
    for pin in &cost.pinned_by {
        facts.push(Fact::new(FactKey::KeptBy, pin.zombies, source).of(&pin.file));
    }
    facts
}

pub(super) fn rounded(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

pub(super) fn ended_words(unit: &Unit) -> String {
    match (unit.exit_kind.as_deref(), unit.exit_status) {
        (Some("exited"), Some(status)) if status != 0 => format!(", exit status {status}"),
        (Some("killed" | "dumped"), Some(signal)) => format!(", killed by signal {signal}"),
        _ => match unit.result.as_deref() {
            Some(result) if result != "success" => format!(", result {result}"),
            _ => String::new(),
        },
    }
}

fn remedy(name: &str, cost: &UnitCost, enabled: Option<bool>) -> String {
    let (unit, word) = (operand(name), shell_word(name));
    if is_protected(name) {
        return format!("The node needs this unit: do not disable it. See why it dies: `journalctl -u {word} -n 100`.");
    }
    let left = match cost.zombies.filter(|n| *n > 0) {
        Some(1) => "the cgroup it already left behind stays".to_owned(),
        Some(n) => format!("the {} cgroups it already left behind stay", count(n)),
        None => "cgroups it already left behind stay".to_owned(),
    };
    let off = match enabled {
        // A unit that nothing enables cannot be disabled: another unit pulls it in, or somebody started it.
        Some(false) => format!(
            "stop it (`systemctl stop {unit}`) and remove what starts it (`systemctl list-dependencies --reverse {unit}`; \
             `systemctl mask {unit}` keeps it down meanwhile)"
        ),
        _ => format!(
            "disable it: `systemctl disable --now {unit}`, and in the image the node was made from too, or every new node enables it again"
        ),
    };
    format!(
        "See why it dies: `journalctl -u {word} -n 100`. If this node does not need it, {off}. That stops the restarts and new leftovers; \
         {left} until the pinning memory is freed or the node reboots."
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::test_evidence::{END, cannot_tell, fact, findings, fine, one, start, watched};

    fn unit(at: Time, name: &str, restarts: u32, invocation: &str) -> Unit {
        Unit {
            at,
            name: name.into(),
            load_state: "loaded".into(),
            active_state: "active".into(),
            sub_state: "running".into(),
            result: Some("success".into()),
            restarts: Some(restarts),
            invocation_id: Some(invocation.into()),
            main_started: Some(at - Duration::from_secs(1)),
            ..Unit::default()
        }
    }

    fn seen(looks: Vec<Unit>) -> Evidence {
        Evidence { units: looks, ..watched(6) }
    }

    #[test]
    fn a_loop_in_the_window_is_reported_with_its_rate() {
        let mut last = unit(END, "ecs.service", 128, "b");
        (last.exit_kind, last.exit_status) = (Some("exited".into()), Some(5));
        last.result = Some("exit-code".into());
        let f = one(examine(&Case::of(&seen(vec![unit(start(6), "ecs.service", 104, "a"), last]))));
        assert_eq!(f.severity, Severity::Warning);
        assert_eq!(f.subject, Subject::new(SubjectKind::Unit, "ecs.service"));
        assert_eq!(f.title, "ecs.service crashloops: 128 restarts, 4.0 per second, exit status 5");
        assert_eq!(fact(&f, FactKey::AutomaticRestartsWithin), 24);
        assert!(f.remedy.contains("systemctl disable --now ecs.service"));
        assert!(f.remedy.contains("until the pinning memory is freed or the node reboots"));
    }

    #[test]
    fn waiting_for_the_third_restart_is_a_loop_and_for_the_second_is_not() {
        let waiting = |restarts| {
            let mut u = unit(END, "x.service", restarts, "a");
            (u.active_state, u.sub_state) = ("activating".into(), "auto-restart".into());
            examine(&Case::of(&seen(vec![Unit { at: start(6), ..u.clone() }, u])))
        };
        let f = one(waiting(3));
        assert!(f.detail.contains("waits for its next"), "{}", f.detail);
        assert!(fine(waiting(2)).contains("1 unit,"));
    }

    #[test]
    fn an_administrators_restart_is_no_loop() {
        fine(examine(&Case::of(&seen(vec![unit(start(6), "x.service", 0, "a"), unit(END, "x.service", 0, "b")]))));
        // The same for a unit that had restarted before: a manual start resets the count.
        fine(examine(&Case::of(&seen(vec![unit(start(6), "x.service", 7, "a"), unit(END, "x.service", 0, "b")]))));
    }

    #[test]
    fn a_count_that_was_reset_still_shows_the_loop() {
        let f =
            one(examine(&Case::of(&seen(vec![unit(start(6), "x.service", 900, "a"), unit(END, "x.service", 4, "b")]))));
        assert_eq!(fact(&f, FactKey::AutomaticRestartsWithin), 4);
    }

    #[test]
    fn one_crash_is_info() {
        let f =
            one(examine(&Case::of(&seen(vec![unit(start(6), "x.service", 0, "a"), unit(END, "x.service", 1, "b")]))));
        assert_eq!(f.severity, Severity::Info);
        assert!(f.title.contains("died and was restarted"));
    }

    #[test]
    fn a_failed_unit_that_stays_down_is_no_loop() {
        let mut u = unit(END, "x.service", 5, "a");
        (u.active_state, u.sub_state, u.result) = ("failed".into(), "failed".into(), Some("exit-code".into()));
        fine(examine(&Case::of(&seen(vec![Unit { at: start(6), ..u.clone() }, u]))));
    }

    #[test]
    fn a_slow_loop_shows_in_its_history() {
        // 500 restarts in 55 hours: one in 400 s; started a minute ago.
        let mut u = unit(END, "x.service", 500, "a");
        u.main_started = Some(END - Duration::from_secs(60));
        let f = one(examine(&Case::of(&seen(vec![Unit { at: start(6), ..u.clone() }, u.clone()]))));
        assert!(f.title.contains("9.0 per hour on average since boot"), "{}", f.title);
        // Up for an hour since: it has recovered.
        u.main_started = Some(END - Duration::from_secs(3600));
        fine(examine(&Case::of(&seen(vec![Unit { at: start(6), ..u.clone() }, u]))));
    }

    #[test]
    fn losing_sight_of_a_unit_changes_nothing() {
        fine(examine(&Case::of(&seen(vec![unit(start(6), "x.service", 2, "a")]))));
        let mut u = unit(start(6), "x.service", 40, "a");
        u.sub_state = "auto-restart".into();
        one(examine(&Case::of(&seen(vec![u]))));
    }

    #[test]
    fn a_unit_the_node_needs_is_not_to_be_disabled() {
        for name in
            ["kubelet.service", "ssh.service", "systemd-logind.service", "dbus.service", "serial-getty@ttyS0.service"]
        {
            let f = one(examine(&Case::of(&seen(vec![unit(start(6), name, 3, "a"), unit(END, name, 9, "b")]))));
            assert!(!f.remedy.contains("disable --now") && f.remedy.contains("journalctl -u"), "{name}: {}", f.remedy);
        }
        assert!(!is_protected("ecs.service"));
    }

    #[test]
    fn the_fastest_loop_comes_first() {
        let names: Vec<String> = findings(examine(&Case::of(&seen(vec![
            unit(start(6), "slow.service", 3, "a"),
            unit(END, "slow.service", 5, "b"),
            unit(start(6), "fast.service", 3, "a"),
            unit(END, "fast.service", 30, "b"),
        ]))))
        .into_iter()
        .map(|f| f.subject.name)
        .collect();
        assert_eq!(names, ["fast.service", "slow.service"]);
    }

    #[test]
    fn without_systemd_it_says_why() {
        let mut evidence = watched(5);
        evidence.unseen(probe::UNITS, "units", "systemd does not run here", "run on the node");
        assert_eq!(cannot_tell(examine(&Case::of(&evidence))).0, "systemd does not run here");
    }
}
