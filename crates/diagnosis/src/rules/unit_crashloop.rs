//! Does a systemd unit start, die and start again?
//!
//! An agent that nobody uses and that cannot start is restarted for ever: it costs CPU, and each start leaves a cgroup behind that
//! memory may pin (see zombie-memcgs). systemd's NRestarts tells, with two traps: `systemctl reset-failed` sets it back, and an
//! administrator's restart changes the invocation without being a crash.

use crate::code::Code;
use crate::finding::{Answer, Fact, Finding, Severity, Subject, SubjectKind};
use crate::log_events;
use crate::words::{age_words, count, duration_words, rate};
use coroner_evidence::{Evidence, Time, Unit, probe};
use std::collections::BTreeMap;
use std::time::Duration;

/// One or two automatic restarts are a crash; a loop begins with the third. (systemd itself gives up at 5 starts within 10 s,
/// but only where the unit's restarts come that fast.)
const LOOP: u32 = 3;

/// A loop too slow for the window shows in its history: at least so many restarts …
const SLOW_LOOP: u32 = 10;
/// … with no more than this between two of them on average since boot …
const SLOW_LOOP_PERIOD: Duration = Duration::from_secs(3600);
/// … and the last start no longer ago than two such periods. A unit that failed while the node booted and runs since then is not
/// looping.
const SLOW_LOOP_PERIODS: u32 = 2;

/// Units that must not be disabled on advice: without them nobody gets in, or nothing runs.
const PROTECTED: &[&str] = &[
    "ssh",
    "sshd",
    "kubelet",
    "containerd",
    "docker",
    "crio",
    "dbus",
    "dbus-broker",
    "NetworkManager",
    "networking",
    "wpa_supplicant",
    "polkit",
    "getty",
    "serial-getty",
    "cloud-init",
    "amazon-ssm-agent",
    "google-guest-agent",
    "walinuxagent",
    "waagent",
    "k3s",
    "rke2-server",
    "rke2-agent",
    "nvidia-persistenced",
    "nvidia-fabricmanager",
    "chronyd",
    "rpcbind",
    "lvm2-monitor",
    "multipathd",
    "iscsid",
    "dracut",
];

#[derive(Debug)]
struct Loop<'e> {
    /// As it was seen last.
    unit: &'e Unit,
    /// Automatic restarts while we watched, and between which looks.
    in_window: Option<(u64, Duration)>,
    how: How,
}

#[derive(Debug, PartialEq, Eq)]
enum How {
    /// Restarted while we watched.
    Seen,
    /// Waits for its next automatic restart.
    Waiting,
    /// Its history since boot says so.
    History,
    /// Restarted, but too seldom to call it a loop.
    Once,
}

pub fn examine(evidence: &Evidence) -> Answer {
    if evidence.units.is_empty() {
        return match evidence.why_unseen(probe::UNITS) {
            Some(u) => Answer::CannotTell { because: u.why.clone(), how_to_see: u.how_to_see.clone() },
            None => Answer::CannotTell {
                because: "no systemd units were seen".to_owned(),
                how_to_see: "run on the node itself, where systemd's D-Bus socket can be reached".to_owned(),
            },
        };
    }
    let mut looks: BTreeMap<&str, Vec<&Unit>> = BTreeMap::new();
    for unit in &evidence.units {
        looks.entry(unit.name.as_str()).or_default().push(unit);
    }
    let now = log_events::end_of(evidence);
    let uptime = uptime(evidence);
    let seen = looks.len() as u64;
    let mut loops: Vec<Loop> = looks.into_values().filter_map(|looks| judge(&looks, now, uptime)).collect();
    loops.sort_by_key(|l| {
        let in_window = l.in_window.map_or(0, |(n, _)| n);
        std::cmp::Reverse((l.how != How::Once, in_window, l.unit.restarts))
    });
    let findings: Vec<Finding> = loops.iter().map(|l| finding(l, now, uptime)).collect();
    Answer::from_findings(findings, || format!("{} units, none restarts again and again", count(seen)))
}

/// Time since boot at the end of what was watched.
fn uptime(evidence: &Evidence) -> Option<Duration> {
    evidence.clocks.last().map(|c| Duration::from_nanos(c.boot_ns))
}

fn judge<'e>(looks: &[&'e Unit], now: Option<Time>, uptime: Option<Duration>) -> Option<Loop<'e>> {
    let last = *looks.iter().max_by_key(|u| u.at)?;
    let first = *looks.iter().min_by_key(|u| u.at)?;
    let restarts = last.restarts.unwrap_or(0);
    let waiting = last.sub_state.starts_with("auto-restart");
    let started_anew = match (&first.invocation_id, &last.invocation_id) {
        (Some(a), Some(b)) => a != b,
        _ => first.main_started != last.main_started,
    };

    // Restarts while we watched. If the count went down, it was set back (reset-failed, or a start by hand) and what it shows now
    // has come since.
    let rose = match (first.restarts, last.restarts) {
        _ if std::ptr::eq(first, last) => 0,
        (Some(a), Some(b)) if b >= a => b - a,
        (Some(_), Some(b)) if started_anew => b,
        _ => 0,
    };
    let between = last.at.since(first.at);
    let in_window = (rose > 0).then_some((u64::from(rose), between));

    let how = if rose >= LOOP - 1 || (rose > 0 && restarts >= LOOP) {
        How::Seen
    } else if waiting && restarts >= LOOP {
        How::Waiting
    } else if looping_slowly(last, restarts, now, uptime) {
        How::History
    } else if rose > 0 {
        How::Once
    } else {
        return None;
    };
    Some(Loop { unit: last, in_window, how })
}

fn looping_slowly(unit: &Unit, restarts: u32, now: Option<Time>, uptime: Option<Duration>) -> bool {
    let (Some(now), Some(uptime), Some(started)) = (now, uptime, unit.main_started) else { return false };
    if restarts < SLOW_LOOP || unit.active_state == "failed" {
        return false;
    }
    let period = uptime / restarts;
    period <= SLOW_LOOP_PERIOD && now.since(started) <= period * SLOW_LOOP_PERIODS
}

fn finding(l: &Loop, now: Option<Time>, uptime: Option<Duration>) -> Finding {
    let unit = l.unit;
    let restarts = unit.restarts.unwrap_or(0);
    // Two or more in the window make a rate; else the average since boot is the better estimate (and a lower bound, if the count was
    // set back).
    let how_fast = match (l.in_window, uptime) {
        (Some((n, over)), _) if n >= 2 && over >= Duration::from_secs(1) => rate(n as f64, over),
        (_, Some(uptime)) if restarts > 0 => format!("{} on average since boot", rate(f64::from(restarts), uptime)),
        _ => "an unknown rate".to_owned(),
    };
    let ended = ended_words(unit);
    let title = match l.how {
        How::Once => format!("{} died and was restarted while we watched{ended}", unit.name),
        _ => format!("{} crashloops: {} restarts, {how_fast}{ended}", unit.name, count(u64::from(restarts))),
    };
    let mut detail = match l.how {
        How::Seen => "systemd restarted it automatically while we watched. ".to_owned(),
        How::Waiting => "It is dead and waits for its next automatic restart. ".to_owned(),
        How::History => {
            "It runs at the moment, but its restarts since boot and its recent start say that it loops slowly. "
                .to_owned()
        }
        How::Once => "Too few restarts to call it a loop. ".to_owned(),
    };
    if let Some(delay) = unit.restart_delay_us {
        detail.push_str(&format!(
            "systemd waits {} before each restart (RestartSec=). ",
            duration_words(Duration::from_micros(delay))
        ));
    }
    detail.push_str(
        "Each start makes a new cgroup, and memory that outlives it can keep the old one alive (see zombie-memcgs).",
    );

    let source = format!("systemd: {}", unit.name);
    let mut facts = Vec::new();
    if let Some(restarts) = unit.restarts {
        facts.push(Fact::new("automatic restarts (NRestarts)", restarts, "", source.clone()));
    }
    if let Some((n, over)) = l.in_window {
        facts.push(Fact::new(format!("of these within {}", duration_words(over)), n, "", source.clone()));
    }
    facts.push(Fact::new("state", format!("{} ({})", unit.active_state, unit.sub_state), "", source.clone()));
    if let Some(result) = &unit.result {
        facts.push(Fact::new("result", result.clone(), "", source.clone()));
    }
    if let (Some(started), Some(now)) = (unit.main_started, now) {
        facts.push(Fact::new("last start", age_words(now.since(started), Duration::ZERO), "", source.clone()));
    }
    if let Some(state) = &unit.unit_file_state {
        facts.push(Fact::new("enabled", state.clone(), "", source));
    }
    Finding {
        code: Code::UnitCrashloop,
        severity: if l.how == How::Once { Severity::Info } else { Severity::Warning },
        subject: Subject::new(SubjectKind::Unit, unit.name.clone()),
        title,
        detail,
        evidence: facts,
        remedy: remedy(&unit.name),
    }
}

fn ended_words(unit: &Unit) -> String {
    match (unit.exit_kind.as_deref(), unit.exit_status) {
        (Some("exited"), Some(status)) if status != 0 => format!(", exit status {status}"),
        (Some("killed" | "dumped"), Some(signal)) => format!(", killed by signal {signal}"),
        _ => match unit.result.as_deref() {
            Some(result) if result != "success" => format!(", {result}"),
            _ => String::new(),
        },
    }
}

/// Whether switching the unit off could lock people out or stop the node's work.
fn is_protected(name: &str) -> bool {
    let stem = name.rsplit_once('.').map_or(name, |(stem, _)| stem);
    let stem = stem.split('@').next().unwrap_or(stem);
    stem.starts_with("systemd-")
        || stem.starts_with("snap.amazon-ssm-agent")
        || stem == "user"
        || stem.starts_with("user-")
        || PROTECTED.contains(&stem)
}

fn remedy(name: &str) -> String {
    if is_protected(name) {
        return format!(
            "The node needs this unit: do not disable it. Look why it dies: `journalctl -u {name} -n 100`."
        );
    }
    format!(
        "See why it dies: `journalctl -u {name} -n 100`. If nobody uses it here, switch it off: `systemctl disable --now {name}`, and do the \
         same in the image the node was made from. That stops the restarts and new leftovers; cgroups that it already left behind stay \
         until what pins them goes or the node reboots."
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
    fn a_loop_that_turns_while_we_watch_is_told_with_its_rate() {
        let mut last = unit(END, "ecs.service", 128, "b");
        (last.exit_kind, last.exit_status) = (Some("exited".into()), Some(5));
        last.result = Some("exit-code".into());
        let f = one(examine(&seen(vec![unit(start(6), "ecs.service", 104, "a"), last])));
        assert_eq!(f.severity, Severity::Warning);
        assert_eq!(f.subject, Subject::new(SubjectKind::Unit, "ecs.service"));
        assert_eq!(f.title, "ecs.service crashloops: 128 restarts, 4.0 per second, exit status 5");
        assert_eq!(fact(&f, "of these within"), 24);
        assert!(f.remedy.contains("systemctl disable --now ecs.service"));
        assert!(f.remedy.contains("until what pins them goes or the node reboots"));
    }

    #[test]
    fn waiting_for_the_third_restart_is_a_loop_and_for_the_second_is_not() {
        let waiting = |restarts| {
            let mut u = unit(END, "x.service", restarts, "a");
            (u.active_state, u.sub_state) = ("activating".into(), "auto-restart".into());
            examine(&seen(vec![Unit { at: start(6), ..u.clone() }, u]))
        };
        let f = one(waiting(3));
        assert!(f.detail.contains("waits for its next"), "{}", f.detail);
        assert!(fine(waiting(2)).contains("1 units"));
    }

    #[test]
    fn an_administrators_restart_is_no_loop() {
        fine(examine(&seen(vec![unit(start(6), "x.service", 0, "a"), unit(END, "x.service", 0, "b")])));
        // Also of a unit that had restarted before: the start sets the count back.
        fine(examine(&seen(vec![unit(start(6), "x.service", 7, "a"), unit(END, "x.service", 0, "b")])));
    }

    #[test]
    fn a_count_that_was_set_back_still_shows_the_loop() {
        let f = one(examine(&seen(vec![unit(start(6), "x.service", 900, "a"), unit(END, "x.service", 4, "b")])));
        assert_eq!(fact(&f, "of these within"), 4);
    }

    #[test]
    fn one_crash_is_only_worth_knowing() {
        let f = one(examine(&seen(vec![unit(start(6), "x.service", 0, "a"), unit(END, "x.service", 1, "b")])));
        assert_eq!(f.severity, Severity::Info);
        assert!(f.title.contains("died and was restarted"));
    }

    #[test]
    fn a_failed_unit_that_stays_down_is_no_loop() {
        let mut u = unit(END, "x.service", 5, "a");
        (u.active_state, u.sub_state, u.result) = ("failed".into(), "failed".into(), Some("exit-code".into()));
        fine(examine(&seen(vec![Unit { at: start(6), ..u.clone() }, u])));
    }

    #[test]
    fn a_slow_loop_shows_in_its_history() {
        // 500 restarts in 55 hours: one in 400 s; started a minute ago.
        let mut u = unit(END, "x.service", 500, "a");
        u.main_started = Some(END - Duration::from_secs(60));
        let f = one(examine(&seen(vec![Unit { at: start(6), ..u.clone() }, u.clone()])));
        assert!(f.title.contains("9.0 per hour on average since boot"), "{}", f.title);
        // Ran for an hour since: it got over it.
        u.main_started = Some(END - Duration::from_secs(3600));
        fine(examine(&seen(vec![Unit { at: start(6), ..u.clone() }, u])));
    }

    #[test]
    fn losing_sight_of_a_unit_neither_sets_nor_clears() {
        fine(examine(&seen(vec![unit(start(6), "x.service", 2, "a")])));
        let mut u = unit(start(6), "x.service", 40, "a");
        u.sub_state = "auto-restart".into();
        one(examine(&seen(vec![u])));
    }

    #[test]
    fn what_the_node_needs_is_not_to_be_disabled() {
        for name in
            ["kubelet.service", "ssh.service", "systemd-logind.service", "dbus.service", "serial-getty@ttyS0.service"]
        {
            let f = one(examine(&seen(vec![unit(start(6), name, 3, "a"), unit(END, name, 9, "b")])));
            assert!(!f.remedy.contains("disable --now") && f.remedy.contains("journalctl -u"), "{name}: {}", f.remedy);
        }
        assert!(!is_protected("ecs.service"));
    }

    #[test]
    fn the_fastest_loop_comes_first() {
        let names: Vec<String> = findings(examine(&seen(vec![
            unit(start(6), "slow.service", 3, "a"),
            unit(END, "slow.service", 5, "b"),
            unit(start(6), "fast.service", 3, "a"),
            unit(END, "fast.service", 30, "b"),
        ])))
        .into_iter()
        .map(|f| f.subject.name)
        .collect();
        assert_eq!(names, ["fast.service", "slow.service"]);
    }

    #[test]
    fn without_systemd_it_says_why() {
        let mut evidence = watched(5);
        evidence.unseen(probe::UNITS, "units", "systemd does not run here", "run on the node");
        assert_eq!(cannot_tell(examine(&evidence)).0, "systemd does not run here");
    }
}
