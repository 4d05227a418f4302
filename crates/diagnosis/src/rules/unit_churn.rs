//! Does a unit keep restarting something that systemd does not count?
//!
//! A supervisor (ecs-init, supervisord, runsv, a shell loop) that restarts what dies stays up itself: NRestarts stays 0, while each
//! start costs CPU and may leave a dead cgroup behind. [`crate::units::churn`] defines what counts as churn.

use super::unit_crashloop::{left_behind, leftovers, rounded};
use crate::case::Case;
use crate::code::Code;
use crate::finding::{Answer, Fact, FactKey, Finding, Severity, Subject, SubjectKind};
use crate::ties::Ties;
use crate::units::churn::{ChurnKind, Churning, births, churning};
use crate::units::cost::UnitCost;
use crate::units::paths::{operand, shell_word};
use crate::units::protected::is_protected;
use crate::words::{count, duration_words, plural, rate};
use coroner_evidence::{ChildExits, probe};

pub fn examine(case: &Case<'_>) -> Answer {
    let evidence = case.evidence;
    let churning = churning(evidence);
    if !churning.is_empty() {
        let costs = case.unit_costs();
        let none = UnitCost::default();
        let is_blind = evidence.why_unseen(probe::CHILD_EXITS).is_some();
        let findings = churning.iter().map(|c| finding(c, costs.get(&c.unit).unwrap_or(&none), is_blind));
        return Answer::Findings(findings.collect());
    }
    // Without either probe nobody can say that all is well.
    for (name, rows) in
        [(probe::CGROUP_CHURN, evidence.cgroup_churn.len()), (probe::CHILD_EXITS, evidence.child_exits.len())]
    {
        if let Some(unseen) = evidence.why_unseen(name).filter(|_| rows == 0) {
            return Answer::CannotTell { because: unseen.why.clone(), how_to_see: unseen.how_to_see.clone() };
        }
    }
    let Some(window) = evidence.window() else {
        return Answer::CannotTell {
            because: "cgroups and processes that come and go were not watched".to_owned(),
            how_to_see: "run as root for a few seconds".to_owned(),
        };
    };
    let failed: u64 = evidence.child_exits.iter().fold(0, |sum, row| sum.saturating_add(row.failed_young));
    Answer::Fine(format!(
        "in {}, {} cgroups were made and {} processes failed within 10 s of starting; no unit that stays up keeps doing this",
        duration_words(window.length()),
        count(births(evidence)),
        count(failed)
    ))
}

/// How a child ended: `exit status 5`, `signal 11`.
fn ended(row: &ChildExits) -> String {
    match (row.signal, row.exit_code) {
        (Some(signal), _) if signal != 0 => format!("signal {signal}"),
        (_, Some(code)) => format!("exit status {code}"),
        _ => "unknown exit status".to_owned(),
    }
}

/// Fewer dead cgroups may be strays.
const LEFT_BEHIND: u64 = 10;

/// `is_blind`: it is unknown whether children failed.
fn finding(c: &Churning<'_>, cost: &UnitCost, is_blind: bool) -> Finding {
    let how_fast = rate(c.times as f64, c.over);
    let uncounted = match c.restarts {
        Some(0) => "systemd counts no restarts".to_owned(),
        Some(n) => format!("systemd counts {}", plural(u64::from(n), "restart", "restarts")),
        None => "systemd does not count it".to_owned(),
    };
    let title = match (&c.kind, &c.failing) {
        (ChurnKind::Children(row), _) => {
            format!("{} keeps restarting {}, which fails ({how_fast}, {}); {uncounted}", c.unit, row.comm, ended(row))
        }
        (ChurnKind::Cgroups { .. }, Some(failing)) => format!(
            "{} keeps restarting {}, each time in a new cgroup ({how_fast}, {}); {uncounted}",
            c.unit,
            failing.last.comm,
            ended(failing.last)
        ),
        (ChurnKind::Cgroups { pattern, .. }, None) => {
            format!("{} keeps making and removing cgroups {pattern} ({how_fast}); {uncounted}", c.unit)
        }
    };
    let source = "tracepoints of cgroups and of processes that end";
    let mut facts = Vec::new();
    let mut detail = String::new();
    if let ChurnKind::Cgroups { born, removed, .. } = &c.kind {
        let what = c.kind.what();
        detail.push_str(&format!(
            "In {}, {} memory cgroups ({what}) were made and {} removed",
            duration_words(c.over),
            count(*born),
            count(*removed)
        ));
        detail.push_str(&c.maker.as_ref().map(|maker| format!(", by {maker}. ")).unwrap_or_else(|| ". ".to_owned()));
        facts.push(Fact::new(FactKey::CgroupNames, what, source));
        facts.push(Fact::new(FactKey::CgroupsMade, *born, source));
        facts.push(Fact::new(FactKey::CgroupsRemoved, *removed, source));
        if let Some(maker) = &c.maker {
            facts.push(Fact::new(FactKey::Maker, maker.clone(), source));
        }
    }
    if let Some(failing) = &c.failing {
        let row = failing.last;
        detail.push_str(&format!(
            "{}[{}] starts {}: {} of {} that ended had failed within 10 s of starting, the last with {}. ",
            row.parent_comm,
            row.parent_pid,
            row.comm,
            count(failing.failed_young),
            count(failing.exits),
            ended(row)
        ));
        facts.push(Fact::new(FactKey::ChildrenFailedYoung, failing.failed_young, source));
        facts.push(Fact::new(FactKey::ChildrenEnded, failing.exits, source));
        facts.push(Fact::new(FactKey::StartedBy, format!("{}[{}]", row.parent_comm, row.parent_pid), source));
        if let Some(code) = row.exit_code.filter(|_| row.signal.unwrap_or(0) == 0) {
            facts.push(Fact::new(FactKey::ExitStatus, code, source));
        }
        if let Some(signal) = row.signal.filter(|s| *s != 0) {
            facts.push(Fact::new(FactKey::Signal, signal, source));
        }
    } else {
        detail.push_str("Whether the processes in them fail is unknown. ");
    }
    facts.push(Fact::new(FactKey::ChurnPerHour, rounded(c.per_hour), source));
    if let Some(restarts) = c.restarts {
        facts.push(Fact::new(FactKey::RestartsMeanwhile, restarts, format!("systemd: {}", c.unit)));
    }
    if matches!(c.kind, ChurnKind::Cgroups { .. }) || cost.zombies.is_some_and(|n| n > 0) {
        detail.push_str(&left_behind(cost));
        facts.extend(leftovers(cost));
    }
    let kind = if c.is_container { SubjectKind::Container } else { SubjectKind::Unit };
    Finding {
        code: Code::UnitChurn,
        ties: match c.is_container {
            true => Ties::default(),
            false => Ties::of_unit(&c.unit, None),
        },
        // Without failures and leftovers it may be legitimate work.
        severity: match c.failing.is_some() || is_blind || cost.zombies.is_some_and(|n| n >= LEFT_BEHIND) {
            true => Severity::Warning,
            false => Severity::Info,
        },
        subject: Subject::new(kind, c.unit.clone()),
        title,
        detail: detail.trim_end().to_owned(),
        evidence: facts,
        remedy: remedy(c),
    }
}

fn remedy(c: &Churning<'_>) -> String {
    if c.is_container {
        return "See why its child dies in the container's log (`kubectl logs` or `docker logs`). The container itself is up; restarting it \
                restarts the loop."
            .to_owned();
    }
    let (unit, word) = (operand(&c.unit), shell_word(&c.unit));
    let look =
        format!("See what it starts and why that dies: `journalctl -u {word} -n 100`, `systemd-cgls -u {word}`.");
    if is_protected(&c.unit) {
        return format!("{look} The node needs this unit: do not disable it.");
    }
    format!(
        "{look} If this node does not need it, disable it: `systemctl disable --now {unit}`, and in the image the node was made from too. \
         That stops new ones; cgroups that are already dead stay until the memory that pins them is freed or the node reboots. Restarting \
         the unit restarts the loop."
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::test_evidence::{cannot_tell, fact, fine, one, watched};
    use crate::units::churn::tests::{births, children, service};
    use crate::zombies::test_scan::scan;
    use coroner_evidence::Evidence;

    #[test]
    fn a_supervisor_is_named_with_what_it_starts_and_leaves_behind() {
        let mut evidence = watched(5);
        evidence.units = service("init-1.service");
        evidence.cgroup_churn =
            births("/system.slice/init-1.service", "agent.*", 15, "init-1", "/system.slice/init-1.service");
        evidence.child_exits = children("init-1", "agent", 15, 15, "/system.slice/init-1.service");
        evidence.zombie_scans = vec![scan((0..40).map(|i| format!("/system.slice/init-1.service/agent.{i}")))];
        let f = one(examine(&Case::of(&evidence)));
        assert_eq!((f.severity, &*f.subject.name), (Severity::Warning, "init-1.service"));
        assert_eq!(
            f.title,
            "init-1.service keeps restarting agent, each time in a new cgroup (3.0 per second, exit status 5); systemd counts no restarts"
        );
        assert!(f.detail.contains("It left 40 dead memory cgroups behind"), "{}", f.detail);
        assert_eq!(fact(&f, FactKey::DeadOfUnit), 40);
        assert_eq!(fact(&f, FactKey::RestartsMeanwhile), 0);
        assert!(f.remedy.contains("disable --now init-1.service") && f.remedy.contains("memory that pins them"));
    }

    #[test]
    fn a_child_that_fails_in_the_same_cgroup_is_reported_too() {
        let mut evidence = watched(60);
        evidence.child_exits = children("supervisord", "worker", 6, 6, "/system.slice/supervisor.service");
        let f = one(examine(&Case::of(&evidence)));
        assert_eq!(
            f.title,
            "supervisor.service keeps restarting worker, which fails (6.0 per minute, exit status 5); systemd does not count it"
        );
        assert!(!f.detail.contains("cgroup"), "{}", f.detail);
    }

    #[test]
    fn a_unit_the_node_needs_is_not_to_be_disabled() {
        let mut evidence = watched(5);
        evidence.cgroup_churn = births("/system.slice/ssh.service", "x*", 15, "x", "/system.slice/ssh.service");
        let f = one(examine(&Case::of(&evidence)));
        assert!(!f.remedy.contains("disable --now"), "{}", f.remedy);
    }

    #[test]
    fn quiet_is_fine_and_blind_cannot_tell() {
        let mut evidence = watched(5);
        assert!(fine(examine(&Case::of(&evidence))).contains("0 cgroups"));
        evidence.unseen(probe::CHILD_EXITS, "processes that end", "no BTF", "a newer kernel");
        assert_eq!(cannot_tell(examine(&Case::of(&evidence))).0, "no BTF");
        cannot_tell(examine(&Case::of(&Evidence::default())));
    }
}
