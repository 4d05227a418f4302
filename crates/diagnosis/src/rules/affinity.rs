//! Do pinned threads compete for one core?

use crate::case::Case;
use crate::code::Code;
use crate::cores::timeline::Saturation;
use crate::cores::words::{listed, percent, percent_value, span};
use crate::cores::{Cores, FullCore};
use crate::finding::{Answer, Fact, FactKey, Finding, Severity, Subject, SubjectKind};
use crate::ties::{Task, Ties};

const NAMED: usize = 4;

pub fn examine(case: &Case<'_>) -> Answer {
    let cores = case.cores();
    if !cores.timeline.lasts() {
        return cores.not_watched();
    }
    let shared = cores.full(Saturation::Busy, FullCore::is_shared_by_pinned);
    // Threads pinned evenly to all cores make a full node, not a crowded core.
    if shared.len() < cores.timeline.lines.len() {
        let crowded: Vec<Finding> =
            shared.iter().filter(|full| full.is_crowded_by_pinning()).map(|full| finding(cores, full)).collect();
        if !crowded.is_empty() {
            return Answer::Findings(crowded);
        }
    }
    if let Some((because, how_to_see)) = cores.waits_hidden() {
        return Answer::CannotTell { because, how_to_see };
    }
    let pinned = cores.threads.lines.iter().filter(|line| !line.is_kernel() && line.only_core().is_some()).count();
    Answer::Fine(match pinned {
        0 => "no thread is pinned to a core".to_owned(),
        1 => "only 1 thread is pinned to a single core".to_owned(),
        n => format!("{n} threads are pinned to a single core each, and no two of them compete for one"),
    })
}

fn finding(cores: &Cores, full: &FullCore) -> Finding {
    let who: Vec<_> = full.pinned.iter().map(|sharer| (cores.threads.lines[sharer.line].who(), sharer.share)).collect();
    let names: Vec<String> = who.iter().map(|(who, share)| format!("{} {}", who.name(), percent(*share))).collect();
    let core = full.core;
    let longest = full.victims.iter().map(|victim| victim.waited_ns).max().unwrap_or(0);
    let others = full.others.map_or(0.0, |others| others.busy());
    let mut evidence: Vec<Fact> = who
        .iter()
        .take(NAMED)
        .map(|(who, share)| {
            Fact::new(FactKey::PinnedShare, percent_value(*share), format!("/proc/{}/status", who.tid)).of(who.name())
        })
        .collect();
    evidence.push(Fact::new(FactKey::BusyOfOtherCores, percent_value(others), "/proc/stat"));
    Finding {
        code: Code::Affinity,
        severity: Severity::Warning,
        subject: Subject::new(SubjectKind::Core, core.to_string()),
        title: format!(
            "{} threads are pinned to core {core} and wait for each other, up to {} each",
            who.len(),
            span(longest)
        ),
        detail: format!(
            "They may run on core {core} only and share its busy time: {}. The other cores averaged {} busy.",
            listed(&names, NAMED),
            percent(others)
        ),
        evidence,
        remedy: match who.get(1) {
            Some((who, _)) => format!(
                "Move all but one to other cores: `taskset -pc CORES {}`. Usual cause: two jobs that both number their cores from 0. Fix it where they \
                 are pinned (cpuset, CPUAffinity=, the launcher).",
                who.tid
            ),
            None => String::new(),
        },
        ties: Ties {
            cores: vec![core],
            culprits: who.iter().map(|(who, _)| Task::from(who)).collect(),
            when: Some(full.stretch.window.into()),
            ..Ties::default()
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cores::scene::{Actor, Doing, Load, Scene};
    use crate::rules::test_evidence::{fact_of, fine, one};

    const HALF: Doing = Doing::Turns { run: 0.5, wait: 0.5, slices: 100.0 };

    /// Two jobs that both number their cores from 0.
    fn both_on_core_0() -> Scene {
        Scene::new(4, 5.0)
            .load(0, 0.0, 5.0, Load::User, 1.0)
            .with(Actor::new(60, "rank-0", 0).pinned().until(99.0, HALF))
            .with(Actor::new(61, "rank-1", 0).pinned().until(99.0, HALF))
    }

    #[test]
    fn threads_pinned_to_one_core_are_named_with_their_shares() {
        let f = one(examine(&Case::of(&both_on_core_0().evidence())));
        assert_eq!((f.severity, f.subject.name.as_str()), (Severity::Warning, "0"));
        assert!(f.title.contains("2 threads are pinned to core 0"), "{}", f.title);
        for word in ["rank-0[60] 50 %", "rank-1[61] 50 %", "The other cores averaged 0 % busy"] {
            assert!(f.detail.contains(word), "{word}: {}", f.detail);
        }
        assert_eq!(fact_of(&f, FactKey::PinnedShare, "rank-0[60]"), 50.0);
        assert_eq!(f.ties.culprits.len(), 2);
    }

    #[test]
    fn threads_that_may_run_elsewhere_are_not_crowded_by_pinning() {
        let scene = Scene::new(4, 5.0)
            .load(0, 0.0, 5.0, Load::User, 1.0)
            .with(Actor::new(60, "a", 0).until(99.0, HALF))
            .with(Actor::new(61, "b", 0).until(99.0, HALF));
        assert_eq!(fine(examine(&Case::of(&scene.evidence()))), "no thread is pinned to a core");
    }

    #[test]
    fn one_pinned_thread_per_core_is_fine() {
        let mut scene = Scene::new(2, 5.0).all_cores(Load::User, 1.0);
        for core in 0..2 {
            scene = scene.with(Actor::new(60 + core, "rank", core).pinned().until(99.0, Doing::Run));
        }
        assert!(fine(examine(&Case::of(&scene.evidence()))).starts_with("2 threads are pinned"));
    }

    #[test]
    fn threads_pinned_evenly_to_all_cores_make_a_full_node() {
        let mut scene = Scene::new(2, 5.0).all_cores(Load::User, 1.0);
        for n in 0..4 {
            scene = scene.with(Actor::new(60 + n, "rank", n % 2).pinned().until(99.0, HALF));
        }
        fine(examine(&Case::of(&scene.evidence())));
    }
}
