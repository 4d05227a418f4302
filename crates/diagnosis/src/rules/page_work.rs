//! Do page faults or huge pages take the kernel's time?
//!
//! Both are everyday work of a job that uses memory, so they are info, never a warning. If they fill a core, the verdict names them.

use crate::case::Case;
use crate::code::Code;
use crate::finding::{Answer, Finding, Severity, Subject};
use crate::kernel_work::{ProcessWork, not_sampled};
use crate::words::{count, percent};
use coroner_evidence::{Source, WorkKind};

/// Share of one core worth knowing. Less for huge pages: a thread may make them for another one, while faults are its own.
const FAULTS: f64 = 0.2;
const HUGE: f64 = 0.1;
const MOST_FINDINGS: usize = 3;

pub fn page_faults(case: &Case<'_>) -> Answer {
    examine(case, WorkKind::PageFault, FAULTS)
}

pub fn huge_pages(case: &Case<'_>) -> Answer {
    examine(case, WorkKind::HugePages, HUGE)
}

fn examine(case: &Case<'_>, kind: WorkKind, worth_knowing: f64) -> Answer {
    let evidence = case.evidence;
    let Some(work) = case.work() else { return not_sampled(evidence) };
    let processes = work.processes(|row| row.kind == kind);
    let telling = processes.iter().filter(|process| process.share >= worth_knowing).take(MOST_FINDINGS);
    Answer::from_findings(telling.map(|process| finding(process, kind)).collect(), || {
        let share = work.share_words(|k| k == kind);
        let moved = |name: &str| evidence.counters.moved(Source::Vmstat, "", name);
        match (kind, moved("compact_stall"), moved("pgmajfault")) {
            (WorkKind::HugePages, Some(stalls), _) => {
                format!("huge pages took {share} of one core; stalls to compact memory: {}", count(stalls))
            }
            (WorkKind::PageFault, _, Some(major)) => {
                format!("page faults took {share} of one core; faults that read from disk: {}", count(major))
            }
            _ => format!("{} took {share} of one core", kind.words()),
        }
    })
}

fn finding(process: &ProcessWork, kind: WorkKind) -> Finding {
    let name = process.thread.name();
    let huge = kind == WorkKind::HugePages;
    Finding {
        code: if huge { Code::HugePages } else { Code::PageFaults },
        severity: Severity::Info,
        subject: Subject::process(process.thread.clone()),
        title: format!("{name} spent {} on {}", process.share_words(process.share), kind.words()),
        detail: format!(
            "{} of one core on average, {} in its busiest second. This is the cost of new memory, and often a symptom rather than a cause.",
            percent(process.share),
            percent(process.peak)
        ),
        evidence: process.facts(),
        remedy: match huge {
            true => "If it hurts: `echo defer+madvise > /sys/kernel/mm/transparent_hugepage/defrag`, or reserve huge pages at boot.",
            false => "If it hurts: make the allocator keep memory instead of returning it (jemalloc `dirty_decay_ms`, glibc M_TRIM_THRESHOLD).",
        }
        .to_owned(),
        ties: process.ties(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel_work::test_work::{row, second};
    use crate::rules::test_evidence::{cannot_tell, fine, one, start, watched};
    use coroner_evidence::Evidence;

    fn at_work(kind: WorkKind, samples: u64) -> Evidence {
        let mut evidence = watched(1);
        evidence.kernel_work = vec![second(start(1), vec![row(0, 70, "train", kind, samples)])];
        evidence
    }

    /// Chasing these once cost weeks: they are reported, but never as a warning.
    #[test]
    fn faults_and_huge_pages_are_info_and_never_a_warning() {
        let faults = one(page_faults(&Case::of(&at_work(WorkKind::PageFault, 95))));
        assert_eq!((faults.code, faults.severity), (Code::PageFaults, Severity::Info));
        assert!(faults.title.contains("train[70] spent 95 % of core 0 on page faults"), "{}", faults.title);
        let huge = one(huge_pages(&Case::of(&at_work(WorkKind::HugePages, 95))));
        assert_eq!((huge.code, huge.severity), (Code::HugePages, Severity::Info));
        assert!(huge.detail.contains("symptom rather than a cause"), "{}", huge.detail);
    }

    #[test]
    fn little_of_it_is_ruled_out_with_its_number() {
        assert!(fine(page_faults(&Case::of(&at_work(WorkKind::PageFault, 19)))).contains("19 %"));
        assert!(fine(huge_pages(&Case::of(&at_work(WorkKind::HugePages, 9)))).contains("9.0 %"));
        assert!(fine(huge_pages(&Case::of(&at_work(WorkKind::PageFault, 95)))).contains("0 %"), "other work");
        cannot_tell(page_faults(&Case::of(&watched(1))));
    }
}
