//! Does a thread make the kernel go through all memory cgroups?
//!
//! The walk visits the dead, too. It is told where it takes long because there are many: reclaim of a few full cgroups steps through cgroups as
//! well, and that is memory-reclaim.

use crate::case::Case;
use crate::code::Code;
use crate::finding::{Answer, Finding, Severity, Subject, SubjectKind};
use crate::kernel_work::{ProcessWork, not_sampled};
use crate::words::{count, percent};
use coroner_evidence::WorkKind;

/// With fewer a walk takes less than a millisecond (0.07 to 0.3 µs to visit one in a hot cache, 70 to 270 µs for a whole dead one at worst).
const MANY: u64 = 1_000;
/// A fifth of one core all the time, or half of one for a second: whoever shares that core feels it.
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
        return Answer::Fine(format!("{share} of one core, over {} memory cgroups", count(all)));
    }
    // The kernel frees cgroups by workers of its own: that ends the trouble.
    let frees = |comm: &str| comm.starts_with("kworker/") && comm.contains("cgroup_");
    let walkers = work.processes(|row| row.kind.is_memcg_walk() && !frees(&row.comm));
    let telling = walkers.iter().filter(|walker| walker.share >= WORTH_KNOWING || walker.peak >= FELT_FOR_A_SECOND);
    let findings: Vec<Finding> = telling.take(MOST_FINDINGS).map(|walker| finding(walker, memcgs)).collect();
    Answer::from_findings(findings, || format!("{share} of one core went into it"))
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
        subject: Subject::new(SubjectKind::Process, name.clone()),
        title: format!(
            "{name} spent {} going through {over}",
            walker.share_words(walker.peak.min(1.0).max(walker.share))
        ),
        detail: format!(
            "In the kernel {name} went from memory cgroup to memory cgroup{symbol}: {} of one core over what was sampled, {} in its busiest \
             second. Reclaim and statistics visit every cgroup, the dead included.",
            percent(walker.share),
            percent(walker.peak)
        ),
        evidence: walker.facts(),
        remedy: match walker.thread.comm.starts_with("kworker/") || walker.thread.comm.starts_with("kswapd") {
            true => format!(
                "The walk is long because there are so many: see zombie-memcgs or cgroup-leak for who leaves them. {name} is the kernel's own: it walks \
                 when memory is short, or when somebody reads statistics."
            ),
            false => format!(
                "The walk is long because there are so many: see zombie-memcgs or cgroup-leak for who leaves them. Until they are gone, let {name} ask \
                 less often; where it keeps others off a core, `coroner fix` says whether another one has room for it."
            ),
        },
        ties: walker.ties(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::FactKey;
    use crate::kernel_work::test_work::{row, second};
    use crate::rules::test_evidence::{cannot_tell, fact, fine, one, start, watched};
    use crate::zombies::test_scan::scan;
    use coroner_evidence::Evidence;
    use std::time::Duration;

    /// For five seconds kubelet has so many samples of a hundred in the walk, over so many dead cgroups and 50 live ones.
    fn walking(dead: usize, samples: &[u64]) -> Evidence {
        let mut evidence = watched(5);
        evidence.zombie_scans = vec![scan(vec!["/system.slice/ecs.service"; dead])];
        let walk = |samples| vec![row(1, 4711, "kubelet", WorkKind::StatsWalk, samples)];
        evidence.kernel_work =
            (0..).zip(samples).map(|(i, &n)| second(start(5) + Duration::from_secs(i), walk(n))).collect();
        evidence
    }

    #[test]
    fn who_walks_over_thousands_is_named_with_core_and_function() {
        let f = one(examine(&Case::of(&walking(5_000, &[90; 5]))));
        assert_eq!(f.severity, Severity::Warning);
        assert_eq!(f.subject, Subject::new(SubjectKind::Process, "kubelet[4711]"));
        assert_eq!(f.title, "kubelet[4711] spent 90 % of core 1 going through 5,000 dead and 50 live memory cgroups");
        assert_eq!(fact(&f, FactKey::MostlyIn), "stats_walk_fn");
        assert_eq!((f.ties.cores.as_slice(), f.ties.culprits[0].tid), (&[1][..], 4711));
    }

    #[test]
    fn one_second_of_it_is_felt_and_a_little_all_the_time_is_worth_knowing() {
        assert_eq!(one(examine(&Case::of(&walking(5_000, &[0, 0, 50, 0, 0])))).severity, Severity::Warning);
        assert_eq!(one(examine(&Case::of(&walking(5_000, &[20; 5])))).severity, Severity::Warning);
        assert_eq!(one(examine(&Case::of(&walking(5_000, &[19; 5])))).severity, Severity::Info);
        assert!(fine(examine(&Case::of(&walking(5_000, &[4; 5])))).contains("4.0 %"));
    }

    #[test]
    fn reclaim_that_steps_through_a_few_cgroups_is_no_walk() {
        assert!(fine(examine(&Case::of(&walking(949, &[100; 5])))).contains("over 999 memory cgroups"));
        one(examine(&Case::of(&walking(950, &[100; 5]))));
    }

    #[test]
    fn where_nobody_counted_them_the_walk_itself_tells() {
        let mut evidence = walking(0, &[80; 5]);
        evidence.zombie_scans.clear();
        assert!(one(examine(&Case::of(&evidence))).title.ends_with("going through all memory cgroups"));
    }

    #[test]
    fn without_samples_it_cannot_tell() {
        let (because, how) = cannot_tell(examine(&Case::of(&walking(5_000, &[]))));
        assert!(because.contains("not sampled") && !how.is_empty(), "{because}");
    }
}
