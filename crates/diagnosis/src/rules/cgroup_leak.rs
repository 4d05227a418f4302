//! Are there thousands of live but empty cgroups?
//!
//! Something creates cgroups and never removes them (abandoned scopes, a container runtime that lost track). Agents walk all of
//! them every few seconds, and memory cgroups run out of IDs at 65,535: then no container can start.

use super::{not_seen, time_words};
use crate::case::Case;
use crate::code::Code;
use crate::finding::{Answer, Fact, FactKey, Finding, Severity, Subject, SubjectKind};
use crate::ties::{Ties, When};
use crate::units::paths::shell_word;
use crate::words::{count, duration_words, percent};
use crate::zombies::makers::{self, MakerShare};
use coroner_evidence::{About, CgroupCensus, CgroupOwner, CrowdedParent, Evidence, Time, probe};
use std::time::Duration;

/// A large node has some 100 pods and a few hundred cgroups that are empty by design (slices, parents of containers); this is
/// several times that.
const MANY_EMPTY: u64 = 2_000;

/// And more than this share of the live ones is empty.
const MOST: f64 = 0.5;

/// Memory cgroups have 16-bit IDs (MEM_CGROUP_ID_MAX in mm/memcontrol.c), and live ones keep theirs.
const IDS: u64 = 65_535;

/// Leaves time to act before no container can start.
const IDS_NEARLY_GONE: f64 = 0.8;

pub fn examine(case: &Case<'_>) -> Answer {
    let evidence = case.evidence;
    let Some(census) = evidence.cgroup_censuses.iter().max_by_key(|c| c.at) else {
        return not_seen(
            evidence.why_unseen_about(probe::CGROUPS, &[About::MemoryCgroups, About::DeadCgroups, About::DeadNames]),
            "cgroups were not counted",
            "run on the node, where the memory cgroups are mounted",
        );
    };
    if let Some(severity) = severity(census) {
        return found(evidence, census, severity, None);
    }
    // It may be over at the end of the window.
    let from = evidence.window().map_or(Time::default(), |window| window.from);
    let many = || evidence.cgroup_censuses.iter().filter(|c| c.at >= from).filter_map(|c| Some((c, severity(c)?)));
    if let Some((worst, severity)) = many().max_by_key(|(census, severity)| (*severity, census.empty, census.live)) {
        let at = || many().map(|(census, _)| census.at);
        let over = at().min().zip(at().max()).map(|(from, until)| Over { from, until, live: census.live });
        return found(evidence, worst, severity, over);
    }
    match census.empty {
        Some(empty) => Answer::Fine(format!("{} live cgroups, {} of them empty", count(census.live), count(empty))),
        None if census.live < MANY_EMPTY => {
            Answer::Fine(format!("only {} live cgroups, empty or not", count(census.live)))
        }
        None => Answer::CannotTell {
            because: format!(
                "{} live cgroups, but not all processes are visible, so how many are empty is unknown",
                count(census.live)
            ),
            how_to_see: "run as root, without hidepid, in the host's PID namespace".to_owned(),
        },
    }
}

/// Far fewer are there at the end of the window.
struct Over {
    from: Time,
    until: Time,
    live: u64,
}

/// `None` if there are not too many.
fn severity(census: &CgroupCensus) -> Option<Severity> {
    if census.live as f64 >= IDS_NEARLY_GONE * IDS as f64 {
        return Some(Severity::Critical);
    }
    let empty = census.empty?;
    (empty >= MANY_EMPTY && empty as f64 > MOST * census.live as f64).then_some(Severity::Warning)
}

fn found(evidence: &Evidence, census: &CgroupCensus, severity: Severity, over: Option<Over>) -> Answer {
    let at_least = if census.truncated { "at least " } else { "" };
    let live = count(census.live);
    // The parent with the most empty children, or the most children if emptiness is unknown.
    let parent = census.crowded.iter().max_by_key(|p| (p.empty.unwrap_or(0), p.children));
    let maker = parent.and_then(|parent| leaking(evidence, &parent.path));
    let share = census.live as f64 / IDS as f64;
    let title = match (severity, census.empty) {
        (Severity::Critical, _) => {
            format!("{at_least}{live} live memory cgroups: IDs run out at {}, then no container can start", count(IDS))
        }
        (_, Some(empty)) => {
            format!("{} empty cgroups that nobody removed, out of {at_least}{live} live ones", count(empty))
        }
        (_, None) => format!("{at_least}{live} live cgroups"),
    };
    let title = match &over {
        Some(over) => format!("{title}, {}", time_words(evidence, over.from, over.until)),
        None => title,
    };
    let mut detail = String::from(
        "An empty cgroup has no process in or below it. kubelet, cAdvisor and systemd walk all cgroups over and over, so their CPU time \
         grows with the count. ",
    );
    if severity == Severity::Critical {
        detail.push_str(&format!("Live cgroups use {} of all memory cgroup IDs. ", percent(share)));
    }
    if let Some(parent) = parent {
        let example = parent.example.as_ref().map(|e| format!(", such as {e}")).unwrap_or_default();
        detail.push_str(&format!("Most crowded: {} with {} children{example}.", parent.path, count(parent.children)));
    }
    if let (Some(maker), Some(churn)) = (&maker, makers::churn(evidence)) {
        detail.push_str(&format!(
            " {} created {} in the {} we watched, and removed {}.",
            maker.name(),
            count(maker.born),
            duration_words(churn.over()),
            count(maker.removed)
        ));
    }
    if let Some(over) = &over {
        detail.push_str(&format!(" There are {} live ones now.", count(over.live)));
    }
    let key = if census.truncated { FactKey::LiveCgroupsAtLeast } else { FactKey::LiveCgroups };
    let mut facts = vec![Fact::new(key, census.live, census.mount_point.clone())];
    if let Some(empty) = census.empty {
        facts.push(Fact::new(FactKey::EmptyCgroups, empty, "/proc/PID/cgroup of all processes"));
    }
    if let Some(p) = parent {
        facts.push(Fact::new(FactKey::ChildCgroups, p.children, census.mount_point.clone()).of(&p.path));
        if let Some(example) = &p.example {
            facts.push(Fact::new(FactKey::ExampleCgroup, example.clone(), census.mount_point.clone()));
        }
    }
    if let Some(maker) = &maker {
        facts.push(Fact::new(FactKey::BornOf, maker.born, "cgroup tracepoints").of(maker.name()));
        facts.push(Fact::new(FactKey::RemovedByIt, maker.removed, "cgroup tracepoints"));
    }
    facts.push(Fact::new(FactKey::MemcgIds, IDS, "mm/memcontrol.c MEM_CGROUP_ID_MAX"));
    Answer::Findings(vec![Finding {
        code: Code::CgroupLeak,
        ties: Ties {
            cgroups: parent.map(|p| p.path.clone()).into_iter().collect(),
            when: over.as_ref().map(|o| When { from: o.from, to: o.until, uncertainty: Duration::ZERO }),
            until: over.as_ref().map(|o| o.until),
            ..maker.as_ref().map(MakerShare::ties).unwrap_or_default()
        },
        severity,
        subject: Subject::new(SubjectKind::Cgroup, parent.map_or_else(|| "/".to_owned(), |p| p.path.clone())),
        title,
        detail,
        evidence: facts,
        remedy: remedy(census, parent, maker.as_ref()),
    }])
}

/// Who created most of what stays below this parent, and removed less than half of what it created.
fn leaking(evidence: &Evidence, parent: &str) -> Option<MakerShare> {
    let below = |path: &str| path == parent || path.strip_prefix(parent).is_some_and(|rest| rest.starts_with('/'));
    makers::shares(evidence)
        .into_iter()
        .filter(|share| share.maker.is_some() && below(&share.parent) && share.removed < share.born / 2)
        .max_by_key(|share| share.born - share.removed)
}

fn remedy(census: &CgroupCensus, parent: Option<&CrowdedParent>, maker: Option<&MakerShare>) -> String {
    let scope =
        parent.and_then(|p| p.example.as_deref()).is_some_and(|e| e.ends_with(".scope") && e.starts_with("run-"));
    if scope {
        return "Abandoned scopes: something calls systemd-run or opens sessions, and systemd missed their end. List them: `systemctl list-units \
                'run-*.scope'`. Check what is inside, then clear them: `systemctl stop 'run-*.scope'`. Update systemd."
            .to_owned();
    }
    let Some(parent) = parent.filter(|p| p.path != "/") else {
        return "Find out who creates them: compare `systemd-cgls` with what should run here. Remove the empty ones with rmdir on a drained node; the \
                kernel refuses if a process is left. Fix the leak, or they come back."
            .to_owned();
    };
    let dir = shell_word(&format!("{}{}", census.mount_point.trim_end_matches('/'), parent.path));
    let who =
        CgroupOwner::of_path(&parent.path).unit.map(|unit| format!(" (they are below {unit})")).unwrap_or_default();
    let first = match maker {
        Some(maker) => format!("Stop {}, which creates them", maker.name()),
        None => format!("Find out who creates them{who}"),
    };
    format!(
        "{first}. Remove the empty ones on a drained node (the kernel refuses if a process is left): \
         `find {dir} -mindepth 1 -depth -type d -exec rmdir {{}} + 2>/dev/null`. Fix the leak, or they come back."
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::test_evidence::{END, cannot_tell, fact, fine, one, start, watched};
    use crate::ties::Task;
    use coroner_evidence::{CgroupChurn, Maker};

    fn with(live: u64, empty: Option<u64>) -> Evidence {
        let census = CgroupCensus {
            at: END,
            version: 2,
            mount_point: "/sys/fs/cgroup".into(),
            live,
            empty,
            crowded: vec![
                CrowdedParent { path: "/".into(), children: 9, empty: Some(1), dying: None, example: None },
                CrowdedParent {
                    path: "/system.slice".into(),
                    children: live,
                    empty,
                    dying: None,
                    example: Some("run-r8f3.scope".into()),
                },
            ],
            took_ns: 1,
            ..CgroupCensus::default()
        };
        Evidence { cgroup_censuses: vec![census], ..watched(5) }
    }

    #[test]
    fn who_creates_them_and_removes_hardly_any_is_named() {
        let mut evidence = with(2_400, Some(2_100));
        let row = |pid, comm: &str, born, removed| CgroupChurn {
            from: evidence.clocks[0].at,
            to: END,
            parent: "/system.slice".into(),
            pattern: "job-*".into(),
            example: "job-1".into(),
            born,
            removed,
            freed: 0,
            maker: Some(Maker { pid, comm: comm.into(), processes: 1, parent_pid: Some(1), ..Maker::default() }),
        };
        evidence.cgroup_churn = vec![row(70, "leaker", 30, 1), row(71, "tidy", 400, 400)];
        let f = one(examine(&Case::of(&evidence)));
        assert_eq!(f.ties.culprits.iter().map(Task::name).collect::<Vec<_>>(), ["leaker[70]"]);
        assert!(f.detail.contains("leaker[70] created 30 in the"), "{}", f.detail);
    }

    #[test]
    fn empty_cgroups_are_reported_with_their_parent_and_an_example() {
        let f = one(examine(&Case::of(&with(2_400, Some(2_100)))));
        assert_eq!(f.severity, Severity::Warning);
        assert_eq!(f.subject, Subject::new(SubjectKind::Cgroup, "/system.slice"));
        assert_eq!(fact(&f, FactKey::EmptyCgroups), 2_100);
        assert!(f.detail.contains("run-r8f3.scope"));
        assert!(f.remedy.contains("systemctl stop 'run-*.scope'"));
    }

    #[test]
    fn each_threshold_holds_at_its_edge() {
        one(examine(&Case::of(&with(2_400, Some(2_000)))));
        assert!(fine(examine(&Case::of(&with(2_400, Some(1_999))))).contains("1,999 of them empty"));
        fine(examine(&Case::of(&with(4_000, Some(2_000)))));
        one(examine(&Case::of(&with(3_999, Some(2_000)))));
        assert_eq!(one(examine(&Case::of(&with(52_428, Some(0))))).severity, Severity::Critical);
        fine(examine(&Case::of(&with(52_427, Some(0)))));
    }

    #[test]
    fn a_truncated_count_is_a_lower_bound() {
        let mut evidence = with(60_000, Some(59_000));
        evidence.cgroup_censuses[0].truncated = true;
        let f = one(examine(&Case::of(&evidence)));
        assert!(f.title.starts_with("at least 60,000"), "{}", f.title);
    }

    #[test]
    fn those_that_were_removed_within_the_window_are_told_with_their_time() {
        let mut evidence = with(2_400, Some(2_100));
        let at = |second, census: &CgroupCensus| CgroupCensus { at: start(second), ..census.clone() };
        let (many, few) = (evidence.cgroup_censuses[0].clone(), with(60, Some(20)).cgroup_censuses[0].clone());
        evidence.cgroup_censuses = vec![at(60, &many), at(4, &few), at(3, &many), at(2, &many), at(0, &few)];
        let f = one(examine(&Case::of(&evidence)));
        assert!(f.title.contains("2,100 empty cgroups") && f.title.contains(" until "), "{}", f.title);
        assert_eq!((f.ties.when.map(|when| when.from), f.ties.until), (Some(start(3)), Some(start(2))));
        assert!(f.detail.ends_with("There are 60 live ones now."), "{}", f.detail);
        // What was before the window is not meant.
        evidence.cgroup_censuses.drain(2..4);
        fine(examine(&Case::of(&evidence)));
    }

    #[test]
    fn unknown_emptiness_is_not_zero() {
        assert!(fine(examine(&Case::of(&with(300, None)))).contains("only 300"));
        assert!(cannot_tell(examine(&Case::of(&with(5_000, None)))).1.contains("root"));
        cannot_tell(examine(&Case::of(&watched(5))));
    }
}
