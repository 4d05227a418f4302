//! Does a program hurt the node by watching it?
//!
//! /proc/PID/smaps and clear_refs walk every page table of a process and hold its memory-map lock meanwhile. A cgroup file is cheap to
//! read, thousands are not.

use crate::case::Case;
use crate::code::Code;
use crate::finding::{Answer, Finding, Severity, Subject};
use crate::kernel_work::{ProcessWork, not_sampled};
use crate::words::percent;
use coroner_evidence::WorkKind;

/// An agent that takes a tenth of a core (100m, a usual CPU request) for page tables alone does more than observe.
const PAGE_TABLES: f64 = 0.1;
/// Half of a core for a second: the observed process cannot map memory meanwhile.
const PAGE_TABLES_PEAK: f64 = 0.5;
/// Files of cgroups and /sys are also used by systemd, and by a container runtime that starts many containers.
const FILES: f64 = 0.25;
/// From this share of each threshold on it is reported as info.
const WORTH_KNOWING: f64 = 0.5;

pub fn examine(case: &Case<'_>) -> Answer {
    let evidence = case.evidence;
    let Some(work) = case.work() else { return not_sampled(evidence) };
    let of = |kind: WorkKind| {
        let processes = work.processes(move |row| row.kind == kind && row.pid != 0);
        processes.into_iter().filter(|process| !case.is_observer(process.thread.pid)).collect::<Vec<_>>()
    };
    let (tables, files) = (of(WorkKind::PageTables), of(WorkKind::Kernfs));
    let mut findings: Vec<Finding> = Vec::new();
    for process in tables.iter().filter(|p| p.share >= PAGE_TABLES * WORTH_KNOWING || p.peak >= PAGE_TABLES_PEAK) {
        let felt = process.share >= PAGE_TABLES || process.peak >= PAGE_TABLES_PEAK;
        findings.push(finding(process, WorkKind::PageTables, felt));
    }
    for process in files.iter().filter(|p| p.share >= FILES * WORTH_KNOWING) {
        findings.push(finding(process, WorkKind::Kernfs, process.share >= FILES));
    }
    Answer::from_findings(findings, || {
        format!(
            "reading page tables of processes took {} of one core, reading cgroup and /sys files {} (coroner's own reads included)",
            work.share_words(|kind| kind == WorkKind::PageTables),
            work.share_words(|kind| kind == WorkKind::Kernfs)
        )
    })
}

fn finding(process: &ProcessWork, kind: WorkKind, felt: bool) -> Finding {
    let name = process.thread.name();
    let (what, harm, remedy) = match kind {
        WorkKind::PageTables => (
            "page tables of processes (smaps, clear_refs)",
            "Meanwhile the observed process cannot change its memory map and waits.",
            "Turn off what asks for it (cAdvisor: `referenced_memory` in --disable_metrics, which replaces the default list: keep its other \
             entries; other agents: memory maps or \"referenced bytes\"), or \
             poll less often. smaps_rollup is cheaper than smaps.",
        ),
        _ => (
            "cgroup or /sys files",
            "Each read takes locks that are also needed to start and stop containers.",
            "Make it poll less often (kubelet --housekeeping-interval, cAdvisor --housekeeping_interval), and run only one agent that reads these \
             files. If there are thousands of cgroups, see cgroup-leak and zombie-memcgs.",
        ),
    };
    let symbol = process.symbol.as_ref().map(|symbol| format!(", mostly in {symbol}")).unwrap_or_default();
    Finding {
        code: Code::ObserverCost,
        severity: if felt { Severity::Warning } else { Severity::Info },
        subject: Subject::process(process.thread.clone()),
        title: format!("{name} spent {} reading {what}", process.share_words(process.share)),
        detail: format!(
            "In the kernel{symbol}, {name} took {} of one core on average, {} in its busiest second. {harm}",
            percent(process.share),
            percent(process.peak)
        ),
        evidence: process.facts(),
        remedy: remedy.to_owned(),
        ties: process.ties(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel_work::test_work::{row, second};
    use crate::rules::test_evidence::{cannot_tell, fine, one, start, watched};
    use coroner_evidence::Evidence;
    use coroner_evidence::Observer;
    use std::time::Duration;

    /// Ten seconds in which a process has this many of 100 samples per second in this work.
    fn watching(comm: &str, kind: WorkKind, samples: &[u64]) -> Evidence {
        let mut evidence = watched(10);
        let rows = |samples| vec![row(1, 800, comm, kind, samples)];
        evidence.kernel_work =
            (0..).zip(samples).map(|(i, &n)| second(start(10) + Duration::from_secs(i), rows(n))).collect();
        evidence
    }

    #[test]
    fn a_tenth_of_a_core_for_page_tables_is_a_warning() {
        let f = one(examine(&Case::of(&watching("cadvisor", WorkKind::PageTables, &[10; 10]))));
        assert_eq!(f.severity, Severity::Warning);
        assert_eq!(f.subject.name, "cadvisor[800]");
        assert!(f.remedy.contains("referenced_memory"), "{}", f.remedy);
        assert_eq!(
            one(examine(&Case::of(&watching("cadvisor", WorkKind::PageTables, &[9; 10])))).severity,
            Severity::Info
        );
        assert!(
            fine(examine(&Case::of(&watching("cadvisor", WorkKind::PageTables, &[4; 10]))))
                .contains("4.0 % of one core")
        );
    }

    #[test]
    fn one_busy_second_hurts_the_observed_process() {
        let once = [0, 0, 0, 60, 0, 0, 0, 0, 0, 0];
        assert_eq!(
            one(examine(&Case::of(&watching("cadvisor", WorkKind::PageTables, &once)))).severity,
            Severity::Warning
        );
    }

    #[test]
    fn cgroup_files_have_a_higher_threshold() {
        assert_eq!(one(examine(&Case::of(&watching("kubelet", WorkKind::Kernfs, &[24; 10])))).severity, Severity::Info);
        assert_eq!(
            one(examine(&Case::of(&watching("kubelet", WorkKind::Kernfs, &[25; 10])))).severity,
            Severity::Warning
        );
        fine(examine(&Case::of(&watching("systemd", WorkKind::Kernfs, &[12; 10]))));
    }

    #[test]
    fn coroner_itself_is_not_reported_but_whoever_has_its_name_is() {
        let mut evidence = watching("coroner", WorkKind::PageTables, &[90; 10]);
        evidence.observers = vec![Observer { pid: 800, ..Observer::default() }];
        fine(examine(&Case::of(&evidence)));
        evidence.observers[0].pid = 801;
        assert_eq!(one(examine(&Case::of(&evidence))).subject.name, "coroner[800]");
    }

    #[test]
    fn without_samples_it_cannot_tell() {
        cannot_tell(examine(&Case::of(&watched(10))));
    }
}
