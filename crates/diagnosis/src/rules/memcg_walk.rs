//! Does a thread make the kernel walk all memory cgroups?
//!
//! The walk visits dead ones too. It is reported only where there are many: reclaim of a few full cgroups also steps through cgroups, and that
//! is memory-reclaim.

use crate::case::Case;
use crate::code::Code;
use crate::finding::{Answer, Finding, Severity, Subject};
use crate::kernel_work::{ProcessWork, not_sampled};
use crate::words::{count, percent};
use coroner_evidence::WorkKind;

/// With fewer, a walk takes less than a millisecond (a visit takes 0.07 to 0.3 µs in a hot cache; a whole dead one 70 to 270 µs at worst).
const MANY: u64 = 1_000;
/// A fifth of one core on average, or half of one for a second: threads that share the core notice.
const FELT: f64 = 0.2;
const FELT_FOR_A_SECOND: f64 = 0.5;
const WORTH_KNOWING: f64 = 0.05;
const MOST_FINDINGS: usize = 3;

pub fn examine(case: &Case<'_>) -> Answer {
    let Some(work) = case.work() else { return not_sampled(case.evidence) };
    let memcgs = case.memcgs();
    let all = memcgs.map(|(dead, live)| dead.saturating_add(live));
    let share = work.share_words(WorkKind::is_memcg_walk);
    if let Some(all) = all.filter(|all| *all < MANY) {
        return Answer::Fine(format!("walking {} memory cgroups took {share} of one core", count(all)));
    }
    // Workers that free dead cgroups walk too, but they end the trouble.
    let frees = |comm: &str| comm.starts_with("kworker/") && comm.contains("cgroup_");
    let walkers = work.processes(|row| row.kind.is_memcg_walk() && !frees(&row.comm));
    let telling = walkers.iter().filter(|walker| walker.share >= WORTH_KNOWING || walker.peak >= FELT_FOR_A_SECOND);
    let findings: Vec<Finding> = telling.take(MOST_FINDINGS).map(|walker| finding(walker, memcgs)).collect();
    Answer::from_findings(findings, || format!("walking memory cgroups took {share} of one core"))
}

fn finding(walker: &ProcessWork, memcgs: Option<(u64, u64)>) -> Finding {
    let name = walker.thread.name();
    let felt = walker.share >= FELT || walker.peak >= FELT_FOR_A_SECOND;
    let over = match memcgs {
        Some((dead, live)) => format!("{} dead and {} live memory cgroups", count(dead), count(live)),
        None => "all memory cgroups".to_owned(),
    };
    let symbol = walker.symbol.as_ref().map(|symbol| format!(", mostly in {symbol}")).unwrap_or_default();
    Finding {
        code: Code::MemcgWalk,
        severity: if felt { Severity::Warning } else { Severity::Info },
        subject: Subject::process(walker.thread.clone()),
        title: format!(
            "{name} spent up to {} walking {over}",
            walker.share_words(walker.peak.min(1.0).max(walker.share))
        ),
        detail: format!(
            "In the kernel{symbol}, {name} stepped from memory cgroup to memory cgroup: {} of one core on average, {} in its busiest second. \
             Reclaim and statistics visit every memory cgroup, dead ones included.",
            percent(walker.share),
            percent(walker.peak)
        ),
        evidence: walker.facts(),
        remedy: match walker.thread.comm.starts_with("kworker/") || walker.thread.comm.starts_with("kswapd") {
            true => format!(
                "The walk is long because there are so many cgroups: zombie-memcgs and cgroup-leak say where they come from. {name} is a kernel thread: \
                 it walks when memory is short, or when a program reads statistics."
            ),
            false => format!(
                "The walk is long because there are so many cgroups: zombie-memcgs and cgroup-leak say where they come from. Until they are gone, make \
                 {name} poll less often. If it keeps other threads off a core, `coroner fix` says whether another core has room for it."
            ),
        },
        ties: walker.ties(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::FactKey;
    use crate::finding::SubjectKind;
    use crate::kernel_work::test_work::{row, second};
    use crate::rules::test_evidence::{cannot_tell, fact, fine, one, start, watched};
    use crate::zombies::test_scan::scan;
    use coroner_evidence::Evidence;
    use std::time::Duration;

    /// Five seconds in which kubelet has this many of 100 samples per second in a walk over `dead` dead and 50 live cgroups.
    fn walking(dead: usize, samples: &[u64]) -> Evidence {
        let mut evidence = watched(5);
        evidence.zombie_scans = vec![scan(vec!["/system.slice/ecs.service"; dead])];
        let walk = |samples| vec![row(1, 4711, "kubelet", WorkKind::StatsWalk, samples)];
        evidence.kernel_work =
            (0..).zip(samples).map(|(i, &n)| second(start(5) + Duration::from_secs(i), walk(n))).collect();
        evidence
    }

    #[test]
    fn a_walker_over_thousands_is_named_with_core_and_function() {
        let f = one(examine(&Case::of(&walking(5_000, &[90; 5]))));
        assert_eq!(f.severity, Severity::Warning);
        assert_eq!((f.subject.kind, f.subject.name.as_str()), (SubjectKind::Process, "kubelet[4711]"));
        assert_eq!(f.title, "kubelet[4711] spent up to 90 % of core 1 walking 5,000 dead and 50 live memory cgroups");
        assert_eq!(fact(&f, FactKey::MostlyIn), "stats_walk_fn");
        assert_eq!((f.ties.cores.as_slice(), f.ties.culprits[0].tid), (&[1][..], 4711));
    }

    #[test]
    fn one_busy_second_is_a_warning_and_a_small_steady_share_is_info() {
        assert_eq!(one(examine(&Case::of(&walking(5_000, &[0, 0, 50, 0, 0])))).severity, Severity::Warning);
        assert_eq!(one(examine(&Case::of(&walking(5_000, &[20; 5])))).severity, Severity::Warning);
        assert_eq!(one(examine(&Case::of(&walking(5_000, &[19; 5])))).severity, Severity::Info);
        assert!(fine(examine(&Case::of(&walking(5_000, &[4; 5])))).contains("4.0 %"));
    }

    #[test]
    fn reclaim_that_steps_through_a_few_cgroups_is_no_walk() {
        assert!(fine(examine(&Case::of(&walking(949, &[100; 5])))).contains("walking 999 memory cgroups"));
        one(examine(&Case::of(&walking(950, &[100; 5]))));
    }

    #[test]
    fn a_walk_over_uncounted_cgroups_is_reported() {
        let mut evidence = walking(0, &[80; 5]);
        evidence.zombie_scans.clear();
        assert!(one(examine(&Case::of(&evidence))).title.ends_with("walking all memory cgroups"));
    }

    #[test]
    fn without_samples_it_cannot_tell() {
        let (because, how) = cannot_tell(examine(&Case::of(&walking(5_000, &[]))));
        assert!(because.contains("not sampled") && !how.is_empty(), "{because}");
    }
}
