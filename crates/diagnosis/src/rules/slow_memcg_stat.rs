//! Are the kernel's memory statistics slow to read?
//!
//! kubelet and cAdvisor read them every few seconds. Where dead cgroups pile up on an old kernel, one read takes seconds of one
//! core's system time: the reader starves whatever shares that core.

use super::not_seen;
use crate::case::Case;
use crate::code::Code;
use crate::finding::{Answer, Fact, FactKey, Finding, Severity, Subject, SubjectKind};
use crate::ties::Ties;
use crate::words::duration_words;
use coroner_evidence::{About, Evidence, StatRead, probe};
use std::time::Duration;

/// A healthy read takes 10 to 150 µs (measured on 5.4 to 6.18). This is hundreds of times as much, and an agent that reads per
/// container pays it each time.
const SLOW_CPU: Duration = Duration::from_millis(50);

/// Wall time from which a read is slow, if enough of it was CPU time.
const SLOW_WALL: Duration = Duration::from_millis(100);

/// With a smaller share of CPU time the read waited for a core, and says nothing about cgroups.
const WORK_SHARE: f64 = 0.25;

/// kubelet's housekeeping (every 10 s) then costs a tenth of a core and holds its core for that long at a stretch: a fifth of the
/// 5 s after which ENA resets a device that is not polled.
const CRITICAL_CPU: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Speed {
    Fast,
    Slow,
    VerySlow,
    /// Slow by the wall clock; the CPU time, which would say why, is unknown.
    Unclear,
}

fn speed(read: &StatRead) -> Speed {
    let took = Duration::from_nanos(read.took_ns);
    let cpu = read.cpu_ns.map(Duration::from_nanos);
    let worked = cpu.map(|cpu| read.took_ns > 0 && cpu.as_nanos() as f64 >= WORK_SHARE * read.took_ns as f64);
    match (cpu, worked) {
        (Some(cpu), _) if cpu >= CRITICAL_CPU => Speed::VerySlow,
        // It had not finished when we stopped waiting.
        (_, Some(true) | None) if !read.finished => Speed::VerySlow,
        (_, Some(false)) if !read.finished => Speed::Slow,
        (Some(cpu), _) if cpu >= SLOW_CPU => Speed::Slow,
        (_, Some(true)) if took >= SLOW_WALL => Speed::Slow,
        (None, _) if took >= SLOW_WALL => Speed::Unclear,
        _ => Speed::Fast,
    }
}

/// The slowest read that was slow because of its own work.
pub(crate) fn slowest(evidence: &Evidence) -> Option<&StatRead> {
    let slow = |r: &&StatRead| matches!(speed(r), Speed::Slow | Speed::VerySlow);
    evidence.stat_reads.iter().filter(slow).max_by_key(|r| (speed(r) == Speed::VerySlow, r.cpu_ns.unwrap_or(r.took_ns)))
}

pub fn examine(case: &Case<'_>) -> Answer {
    let evidence = case.evidence;
    if evidence.stat_reads.is_empty() {
        return not_seen(
            evidence.why_unseen_about(probe::CGROUPS, &[About::StatsRead, About::DangerousStatsRead]),
            "no memory statistics were read",
            "run on the node, where the memory cgroups are mounted",
        );
    }
    let Some(read) = slowest(evidence) else {
        let worst = evidence.stat_reads.iter().max_by_key(|r| r.took_ns);
        let Some(worst) = worst else { return Answer::Fine(String::new()) };
        if speed(worst) == Speed::Unclear {
            return Answer::CannotTell {
                because: format!(
                    "reading {} took {}, but its CPU time is unknown: it may have waited for a core",
                    worst.path,
                    took(worst)
                ),
                how_to_see: "run again".to_owned(),
            };
        }
        // The fast file says nothing about one that was too slow to be read.
        if let Some(unseen) = evidence.why_unseen_about(probe::CGROUPS, &[About::DangerousStatsRead]) {
            return not_seen(Some(unseen), "", "");
        }
        return Answer::Fine(format!("reading {} took {}{}", worst.path, took(worst), cpu_words(worst)));
    };
    let very = speed(read) == Speed::VerySlow;
    let title = if read.finished {
        format!("Reading memory statistics takes {}{}", took(read), cpu_words(read))
    } else {
        format!("Reading memory statistics had not finished after {}", took(read))
    };
    let mut facts = vec![Fact::new(
        if read.finished { FactKey::ReadTime } else { FactKey::ReadTimeAtLeast },
        Duration::from_nanos(read.took_ns).as_secs_f64() * 1000.0,
        read.path.clone(),
    )];
    if let Some(cpu) = read.cpu_ns {
        facts.push(Fact::new(FactKey::ReadCpu, Duration::from_nanos(cpu).as_secs_f64() * 1000.0, read.path.clone()));
    }
    Answer::Findings(vec![Finding {
        code: Code::SlowMemcgStat,
        ties: Ties::default(),
        severity: if very { Severity::Critical } else { Severity::Warning },
        subject: Subject::new(SubjectKind::Node, "memory statistics"),
        title,
        detail: "kubelet, cAdvisor and other agents read these files every few seconds. Each read keeps one core in the kernel for that long, and \
                 everything else on that core waits, including the interrupts of network devices. Kernels before 5.8 (cgroup v1) walk every \
                 memory cgroup for it, dead ones included: check whether zombie-memcgs or cgroup-leak is reported too."
            .to_owned(),
        evidence: facts,
        remedy: "Fix the cause: zombie-memcgs or cgroup-leak, if reported. Until then, make agents read less often (kubelet \
                 --housekeeping-interval, cAdvisor --housekeeping_interval) and run only one of them. On Linux 5.13 or later these reads take \
                 microseconds."
            .to_owned(),
    }])
}

fn took(read: &StatRead) -> String {
    duration_words(Duration::from_nanos(read.took_ns))
}

fn cpu_words(read: &StatRead) -> String {
    read.cpu_ns.map(|cpu| format!(" ({} of CPU)", duration_words(Duration::from_nanos(cpu)))).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::test_evidence::{END, cannot_tell, fact, fine, one, watched};

    fn read(took_ms: u64, cpu_ms: Option<u64>) -> StatRead {
        StatRead {
            at: END,
            path: "/sys/fs/cgroup/memory/memory.numa_stat".into(),
            took_ns: took_ms * 1_000_000,
            cpu_ns: cpu_ms.map(|ms| ms * 1_000_000),
            finished: true,
        }
    }

    fn with(read: StatRead) -> Evidence {
        Evidence { stat_reads: vec![read], ..watched(5) }
    }

    #[test]
    fn warning_from_50_ms_of_cpu_and_critical_from_a_second() {
        assert_eq!(one(examine(&Case::of(&with(read(60, Some(50)))))).severity, Severity::Warning);
        assert!(fine(examine(&Case::of(&with(read(60, Some(49)))))).contains("49 ms of CPU"));
        let f = one(examine(&Case::of(&with(read(4_900, Some(4_800))))));
        assert_eq!(f.severity, Severity::Critical);
        assert_eq!(fact(&f, FactKey::ReadCpu), 4_800.0);
    }

    #[test]
    fn a_fast_file_does_not_rule_out_one_that_was_not_read() {
        let mut evidence = with(read(1, Some(1)));
        evidence.unseen_about(
            probe::CGROUPS,
            About::DangerousStatsRead,
            "how long it takes",
            "too dangerous to time",
            "drain the node",
        );
        assert_eq!(cannot_tell(examine(&Case::of(&evidence))).0, "too dangerous to time");
    }

    #[test]
    fn waiting_for_a_core_is_not_slow() {
        fine(examine(&Case::of(&with(read(3_000, Some(1))))));
        // 100 ms with a quarter of CPU time is.
        one(examine(&Case::of(&with(read(100, Some(25))))));
        fine(examine(&Case::of(&with(read(100, Some(24))))));
    }

    #[test]
    fn an_unfinished_read_is_critical_if_it_used_cpu() {
        let unfinished = |cpu| StatRead { finished: false, ..read(2_000, cpu) };
        let f = one(examine(&Case::of(&with(unfinished(None)))));
        assert_eq!(f.severity, Severity::Critical);
        assert!(f.title.contains("had not finished after 2.0 s"), "{}", f.title);
        assert_eq!(one(examine(&Case::of(&with(unfinished(Some(1_900)))))).severity, Severity::Critical);
        assert_eq!(one(examine(&Case::of(&with(unfinished(Some(1)))))).severity, Severity::Warning);
    }

    #[test]
    fn an_unknown_cpu_time_is_not_guessed() {
        assert!(cannot_tell(examine(&Case::of(&with(read(500, None))))).0.contains("may have waited"));
        fine(examine(&Case::of(&with(read(1, None)))));
        cannot_tell(examine(&Case::of(&watched(5))));
    }
}
