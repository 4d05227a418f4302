//! Has a unit failed that is not restarted?
//!
//! A timer's job that fails now and then, or a service that failed and stays down, does no harm by itself: nothing restarts it,
//! nothing piles up. It is worth knowing, but not a loop.

use super::unit_crashloop::{ended_words, units_unseen};
use crate::case::Case;
use crate::code::Code;
use crate::finding::{Answer, Fact, FactKey, Finding, Severity, Subject, SubjectKind};
use crate::log_events;
use crate::ties::Ties;
use crate::units::loops::{is_job, latest, looks, loops};
use crate::units::paths::{operand, shell_word};
use crate::words::{age_words, count, duration_words, list, plural};
use coroner_evidence::{Evidence, Unit, Wall};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Units reported one by one; where more have failed, they likely share a cause.
const REPORTED: usize = 10;

/// What systemd logs when a unit has failed.
const FAILED_LINE: &str = "Failed with result '";

pub fn examine(case: &Case<'_>) -> Answer {
    let evidence = case.evidence;
    if evidence.units.is_empty() {
        return units_unseen(evidence);
    }
    let looks = looks(evidence);
    let looping: BTreeSet<&str> = loops(evidence).iter().map(|l| l.unit.name.as_str()).collect();
    let seen = looks.len() as u64;
    let mut log: BTreeMap<&str, Vec<Wall>> = BTreeMap::new();
    for line in evidence.unit_log.iter().filter(|l| l.text.contains(FAILED_LINE)) {
        log.entry(line.unit.as_str()).or_default().push(line.at);
    }
    let failing: Vec<Failing<'_>> = looks
        .iter()
        .filter(|(name, _)| !looping.contains(*name) && !name.ends_with(".scope"))
        .filter_map(|(name, looks)| judge(looks, log.remove(name).unwrap_or_default()))
        .collect();
    let scene = Scene {
        timers: looks.iter().filter_map(|(name, looks)| Some((*name, *looks.last()?))).collect(),
        now: log_events::end_of(evidence).zip(evidence.clocks.last()).map(|(now, clock)| clock.wall_of(now)),
        evidence,
    };
    let mut findings: Vec<Finding> = failing.iter().take(REPORTED).map(|f| finding(f, &scene)).collect();
    if failing.len() > REPORTED {
        findings.push(and_more(&failing[REPORTED..]));
    }
    Answer::from_findings(findings, || format!("{}, none failed", plural(seen, "unit", "units")))
}

struct Failing<'e> {
    /// The last look that saw it failed.
    failed: &'e Unit,
    is_job: bool,
    /// It is failed now; false if it succeeded since.
    down: bool,
    /// Runs seen to fail, and all runs seen.
    runs: (u64, u64),
    /// Failures in the journal, ns since 1970, oldest first.
    logged: Vec<Wall>,
}

fn judge<'e>(looks: &[&'e Unit], mut logged: Vec<Wall>) -> Option<Failing<'e>> {
    logged.sort_unstable();
    logged.dedup();
    let latest = latest(looks)?;
    let is_job = is_job(looks);
    let down = latest.active_state == "failed";
    // By the result: SuccessExitStatus= may make any exit code a success.
    let badly = |u: &Unit| u.result.as_deref().is_some_and(|r| !matches!(r, "success" | "exec-condition"));
    let has_failed = |u: &&&Unit| u.active_state == "failed" || is_job && badly(u);
    let failed = looks.iter().rev().find(has_failed).copied();
    // A service that is up again is fine; a job may fail the next time.
    let failed = failed.filter(|_| down || is_job).or_else(|| (is_job && !logged.is_empty()).then_some(latest))?;
    let run = |u: &&Unit| (u.invocation_id.clone(), u.main_started);
    let all: BTreeSet<_> =
        looks.iter().filter(|u| u.invocation_id.is_some() || u.main_started.is_some()).map(run).collect();
    let bad: BTreeSet<_> = looks.iter().filter(has_failed).map(run).collect();
    Some(Failing { failed, is_job, down, runs: (bad.len() as u64, all.len().max(bad.len()) as u64), logged })
}

struct Scene<'e> {
    timers: BTreeMap<&'e str, &'e Unit>,
    now: Option<Wall>,
    evidence: &'e Evidence,
}

impl<'e> Scene<'e> {
    /// The timer that starts it, as last seen.
    fn timer_of(&self, unit: &Unit) -> Option<&'e Unit> {
        let named = unit.triggered_by.iter().filter(|by| by.ends_with(".timer"));
        let triggers = || self.timers.values().find(|t| t.name.ends_with(".timer") && t.triggers.contains(&unit.name));
        named.filter_map(|by| self.timers.get(by.as_str())).next().or_else(triggers).copied()
    }

    fn ago(&self, at: Wall) -> Option<Duration> {
        Some(self.now?.since(at))
    }
}

fn finding(f: &Failing<'_>, scene: &Scene<'_>) -> Finding {
    let unit = f.failed;
    let name = &unit.name;
    let ended = ended_words(unit);
    let clock = scene.evidence.clocks.last();
    let exited = unit.main_exited.zip(clock).map(|(at, clock)| clock.wall_of(at));
    let last_failed = exited.into_iter().chain(f.logged.last().copied()).max().and_then(|at| scene.ago(at));
    let when = last_failed.map(|age| format!(", {}", age_words(age, Duration::ZERO))).unwrap_or_default();
    let title = match (f.is_job, f.down) {
        (true, true) => format!("{name} failed on its last run{ended}{when}"),
        (true, false) => format!(
            "{name} fails now and then{ended}; last{}",
            last_failed.map_or(" while we watched".to_owned(), |age| format!(" {}", age_words(age, Duration::ZERO)))
        ),
        (false, _) => format!("{name} failed and stays down{ended}{when}"),
    };

    let source = format!("systemd: {name}");
    let mut facts =
        vec![Fact::new(FactKey::State, format!("{} ({})", unit.active_state, unit.sub_state), source.clone())];
    if let Some(result) = &unit.result {
        facts.push(Fact::new(FactKey::Result, result.clone(), source.clone()));
    }
    if let (Some(_), Some(status)) = (&unit.exit_kind, unit.exit_status) {
        facts.push(Fact::new(FactKey::ExitStatusOrSignal, status, source.clone()));
    }
    if let Some(age) = last_failed {
        facts.push(Fact::new(FactKey::FailedLast, age.as_secs(), source.clone()));
    }
    let mut detail = if f.is_job {
        "It is a job that runs and exits; nothing restarts it when it fails. ".to_owned()
    } else if f.runs.1 > 1 {
        "Something other than its Restart= started it again while we watched: another unit, a script or a person. "
            .to_owned()
    } else {
        "Nothing restarts it; it costs nothing while it is down. ".to_owned()
    };
    let (bad, all) = f.runs;
    if f.is_job && all > 1 {
        detail.push_str(&format!("{} of {} runs seen failed. ", count(bad), count(all)));
        facts.push(Fact::new(FactKey::RunsFailed, bad, source.clone()));
        facts.push(Fact::new(FactKey::RunsSeen, all, source.clone()));
    }
    if let (Some(first), true) = (f.logged.first(), f.logged.len() > 1) {
        let first = scene.ago(*first).map(|age| format!(", the first {}", age_words(age, Duration::ZERO)));
        let (failures, first) = (count(f.logged.len() as u64), first.unwrap_or_default());
        detail.push_str(&format!("Its journal shows {failures} failures{first}. "));
        facts.push(Fact::new(FactKey::JournalFailures, f.logged.len() as u64, format!("journal: {name}")));
    }
    if let Some(timer) = scene.timer_of(unit) {
        let next = timer.next_trigger.zip(scene.now).filter(|(next, now)| next >= now);
        let words = match next {
            Some((next, now)) => {
                let left = next.since(now);
                facts.push(Fact::new(FactKey::RunsNextIn, left.as_secs(), format!("systemd: {}", timer.name)));
                format!("{} runs it next in {}.", timer.name, duration_words(left))
            }
            None => format!("{} starts it.", timer.name),
        };
        detail.push_str(&words);
    }
    let (unit, word) = (operand(name), shell_word(name));
    Finding {
        code: Code::UnitFailing,
        ties: Ties::of_unit(name, None),
        severity: Severity::Info,
        subject: Subject::new(SubjectKind::Unit, name.clone()),
        title,
        detail: detail.trim_end().to_owned(),
        evidence: facts,
        remedy: format!(
            "See why: `systemctl status {unit}` and `journalctl -u {word} -n 100`. Once fixed, `systemctl reset-failed {unit}` clears the \
             failed state; that alone repairs nothing, and a timer or the next boot starts the unit again."
        ),
    }
}

fn and_more(rest: &[Failing<'_>]) -> Finding {
    let names: Vec<&str> = rest.iter().map(|f| f.failed.name.as_str()).collect();
    Finding {
        code: Code::UnitFailing,
        ties: Ties::default(),
        severity: Severity::Info,
        subject: Subject::new(SubjectKind::Node, "systemd"),
        title: plural(rest.len() as u64, "more unit failed", "more units failed"),
        detail: format!("{}.", list(&names, 20)),
        evidence: vec![Fact::new(FactKey::OtherFailedUnits, rest.len() as u64, "systemd")],
        remedy: "See them all: `systemctl list-units --failed`. So many failures usually share a cause: a full disk, a missing mount, the \
                 network."
            .to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::test_evidence::{END, fact, findings, fine, one, start, watched};
    use coroner_evidence::{Time, UnitLogLine};

    const NOW_NS: u64 = 1_750_000_000_000_000_000;

    fn unit(at: Time, name: &str, active: &str, result: &str, invocation: &str) -> Unit {
        Unit {
            at,
            name: name.into(),
            load_state: "loaded".into(),
            active_state: active.into(),
            sub_state: if active == "failed" { "failed".into() } else { "dead".into() },
            result: Some(result.into()),
            restarts: Some(0),
            invocation_id: Some(invocation.into()),
            service_type: Some("oneshot".into()),
            main_exited: Some(at - Duration::from_secs(30)),
            ..Unit::default()
        }
    }

    fn bad(at: Time, name: &str, invocation: &str) -> Unit {
        let mut u = unit(at, name, "failed", "exit-code", invocation);
        (u.exit_kind, u.exit_status) = (Some("exited".into()), Some(3));
        u
    }

    fn seen(units: Vec<Unit>) -> Evidence {
        Evidence { units, ..watched(60) }
    }

    #[test]
    fn a_job_that_failed_on_its_last_run_says_when_it_runs_next() {
        let mut job = bad(END, "report.service", "a");
        job.triggered_by = vec!["report.timer".into()];
        let timer = Unit {
            at: END,
            name: "report.timer".into(),
            active_state: "active".into(),
            next_trigger: Some(Wall(NOW_NS + 600_000_000_000)),
            ..Unit::default()
        };
        let f = one(examine(&Case::of(&seen(vec![job, timer]))));
        assert_eq!(f.severity, Severity::Info);
        assert_eq!(f.title, "report.service failed on its last run, exit status 3, 30 s ago");
        assert!(f.detail.contains("report.timer runs it next in 10 min"), "{}", f.detail);
        assert_eq!(fact(&f, FactKey::RunsNextIn), 600);
        assert!(f.remedy.contains("repairs nothing"));
    }

    #[test]
    fn a_job_that_fails_every_other_time_fails_now_and_then() {
        let f = one(examine(&Case::of(&seen(vec![
            bad(start(6), "report.service", "a"),
            unit(start(4), "report.service", "inactive", "success", "b"),
            bad(start(2), "report.service", "c"),
            unit(END, "report.service", "inactive", "success", "d"),
        ]))));
        assert!(f.title.starts_with("report.service fails now and then, exit status 3; last 32 s ago"), "{}", f.title);
        assert_eq!((fact(&f, FactKey::RunsFailed), fact(&f, FactKey::RunsSeen)), (2.into(), 4.into()));
    }

    #[test]
    fn the_journal_shows_failures_that_no_look_saw() {
        let mut evidence = seen(vec![unit(END, "report.service", "inactive", "success", "d")]);
        fine(examine(&Case::of(&evidence)));
        let line = |ago: u64| UnitLogLine {
            unit: "report.service".into(),
            at: Wall(NOW_NS - ago * 1_000_000_000),
            text: "report.service: Failed with result 'exit-code'.".into(),
            restart: None,
        };
        evidence.unit_log = vec![line(7200), line(3600)];
        let f = one(examine(&Case::of(&evidence)));
        assert_eq!(fact(&f, FactKey::JournalFailures), 2);
        assert!(f.detail.contains("2 failures, the first 2 h ago"), "{}", f.detail);
    }

    #[test]
    fn a_service_that_stays_down_is_reported_and_one_that_is_up_again_is_not() {
        let mut down = bad(END, "x.service", "a");
        down.service_type = Some("simple".into());
        let mut up = unit(END, "x.service", "active", "success", "b");
        up.service_type = down.service_type.clone();
        let f = one(examine(&Case::of(&seen(vec![down.clone()]))));
        assert!(f.title.starts_with("x.service failed and stays down, exit status 3"), "{}", f.title);
        fine(examine(&Case::of(&seen(vec![Unit { at: start(6), ..down }, up]))));
    }

    #[test]
    fn a_loop_is_left_to_unit_crashloop() {
        let mut u = bad(END, "x.service", "a");
        (u.restarts, u.active_state, u.sub_state) = (Some(9), "activating".into(), "auto-restart".into());
        u.service_type = Some("simple".into());
        fine(examine(&Case::of(&seen(vec![u]))));
    }

    #[test]
    fn very_many_are_reported_together() {
        let all =
            findings(examine(&Case::of(&seen((0..30).map(|i| bad(END, &format!("x{i}.service"), "a")).collect()))));
        assert_eq!(all.len(), REPORTED + 1);
        assert!(all[REPORTED].title.contains("20 more units"));
    }
}
