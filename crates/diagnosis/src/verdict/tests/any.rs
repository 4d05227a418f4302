//! Any findings: no panic, and nothing is invented.

use super::super::chain::is_remark;
use super::super::{Certainty, FindingRef, conclude};
use super::is_honest;
use crate::case::Case;
use crate::code::Code;
use crate::finding::{Fact, FactKey, Finding, Severity, Subject, SubjectKind};
use crate::rules::test_evidence::any::{evidence, number, time};
use crate::ties::{Queue, Task, Ties, When};
use coroner_report::TimeSpan;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use std::collections::BTreeSet;
use std::time::Duration;

fn task() -> impl Strategy<Value = Task> {
    (0u32..4, 0u32..3).prop_map(|(tid, pid)| Task { tid, pid, comm: "kubelet".to_owned() })
}

fn queue() -> impl Strategy<Value = Queue> {
    (select(&["eth0", "eth1"][..]), option::of(select(&["tx-5", "rx-0"][..]))).prop_map(|(nic, queue)| Queue {
        device: nic.to_owned(),
        queue: queue.map(str::to_owned),
        ..Queue::default()
    })
}

prop_compose! {
    fn ties()(
        cores in vec(0u32..4, 0..3), culprits in vec(task(), 0..2), victims in vec(task(), 0..2),
        cgroups in vec(select(&["/system.slice/ecs.service", "/a", "/"][..]), 0..2),
        pods in vec(select(&["ml/train", "ml/other"][..]), 0..2), units in vec(select(&["ecs.service", "x@1.service"][..]), 0..2), queues in vec(queue(), 0..2),
        when in option::of((time(), time(), number())),
    ) -> Ties {
        let when = when.map(|(from, to, off)| When { from: from.min(to), to: from.max(to), uncertainty: Duration::from_nanos(off) });
        Ties {
            cores, culprits, victims, queues, when, since: None, until: None, time: TimeSpan::default(),
            pods: pods.into_iter().map(str::to_owned).collect(),
            cgroups: cgroups.into_iter().map(str::to_owned).collect(),
            units: units.into_iter().map(str::to_owned).collect(),
        }
    }
}

const KINDS: &[SubjectKind] = &[
    SubjectKind::Node,
    SubjectKind::Core,
    SubjectKind::Nic,
    SubjectKind::Process,
    SubjectKind::Cgroup,
    SubjectKind::Unit,
    SubjectKind::Container,
];

prop_compose! {
    fn finding()(
        code in select(Code::ALL), severity in select(&[Severity::Info, Severity::Warning, Severity::Critical][..]),
        kind in select(KINDS), name in select(&["ecs.service", "1", "eth0", "kubelet[2]", ""][..]), ties in ties(),
        silent in option::of(number()), title in "[a-z]{9}",
    ) -> Finding {
        let facts = silent.map(|ms| Fact::new(FactKey::SinceNapi, ms, "kernel log"));
        Finding {
            code, severity, subject: Subject::new(kind, name), title, detail: "detail".to_owned(),
            evidence: facts.into_iter().collect(), remedy: "remedy".to_owned(), ties,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn conclusions_mention_only_known_findings(evidence in evidence(), findings in vec(finding(), 0..12)) {
        let mut case = Case::of(&evidence);
        case.findings = findings;
        let conclusion = conclude(&case);
        let findings = case.findings;
        let known: Vec<FindingRef> = findings.iter().map(Finding::reference).collect();
        is_honest(&conclusion);
        for verdict in &conclusion.verdicts {
            prop_assert!(known.contains(&verdict.root_cause));
            // Each link starts at the root or at an earlier effect.
            let mut reached = vec![&verdict.root_cause];
            for link in &verdict.chain {
                prop_assert!(known.contains(&link.from) && known.contains(&link.to));
                prop_assert!(reached.contains(&&link.from), "{:?} follows from nothing", link.from);
                prop_assert!(!link.because.is_empty());
                reached.push(&link.to);
            }
            prop_assert!(!verdict.chain.iter().any(|link| link.to == verdict.root_cause) || twice(&known, &verdict.root_cause));
            prop_assert!(verdict.context.iter().all(|more| known.contains(more)));
            prop_assert!(verdict.timeline.is_sorted_by_key(|moment| moment.at));
            prop_assert!(!verdict.risk.as_ref().is_some_and(|risk| risk.contains("NaN") || risk.contains("inf ")));
        }
        prop_assert!(conclusion.verdicts.is_sorted_by_key(|v| std::cmp::Reverse((v.severity, v.certainty))));
        // Every warning is either explained or unexplained.
        for finding in findings.iter().filter(|finding| finding.severity >= Severity::Warning) {
            let this = finding.reference();
            let explained = conclusion.verdicts.iter().any(|verdict| {
                verdict.root_cause == this || verdict.context.contains(&this) || verdict.chain.iter().any(|link| link.to == this)
            });
            let unexplained = conclusion.unexplained.iter().any(|open| open.finding == this);
            prop_assert!(explained || unexplained, "{this:?} is neither explained nor unexplained");
            prop_assert!(!(explained && unexplained) || twice(&known, &this), "{this:?} is both");
        }
        for open in &conclusion.unexplained {
            prop_assert!(known.contains(&open.finding) && !open.needs.is_empty() && !open.command.is_empty());
        }
        if findings.iter().all(|finding| finding.severity == Severity::Info) {
            prop_assert!(conclusion.verdicts.is_empty() && conclusion.unexplained.is_empty());
        }
    }

    /// The order of equal findings must not decide the cause.
    #[test]
    fn the_order_of_findings_does_not_matter(evidence in evidence(), findings in vec(finding(), 0..9), turn in 0usize..9) {
        let told = |findings: &[Finding]| -> BTreeSet<(Code, String, String, Certainty, usize)> {
            let mut case = Case::of(&evidence);
            case.findings = findings.to_vec();
            let conclusion = conclude(&case);
            // Which of two remarks on a unit becomes its verdict does depend on order.
            let verdicts = conclusion.verdicts.into_iter().filter(|v| !is_remark(v.root_cause.code));
            verdicts.map(|v| (v.root_cause.code, v.root_cause.subject.name, v.root_cause.title, v.certainty, v.chain.len())).collect()
        };
        let mut turned = findings.clone();
        turned.rotate_left(turn % findings.len().max(1));
        prop_assert_eq!(told(&findings), told(&turned));
    }
}

fn twice(known: &[FindingRef], this: &FindingRef) -> bool {
    known.iter().filter(|other| *other == this).count() > 1
}
