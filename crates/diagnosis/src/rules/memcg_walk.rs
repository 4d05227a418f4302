//! Does a thread make the kernel go through all memory cgroups?
//!
//! The walk visits the dead, too. It is told where it takes long because there are many: reclaim of a few full cgroups steps through cgroups as
//! well, and that is memory-reclaim.

use super::zombie_memcgs;
use crate::code::Code;
use crate::finding::{Answer, Finding, Severity, Subject, SubjectKind};
use crate::kernel_work::{ProcessWork, Work, not_sampled};
use crate::words::{count, percent};
use crate::zombies;
use coroner_evidence::{Evidence, WorkKind};

/// With fewer a walk takes less than a millisecond (0.07 to 0.3 µs to visit one in a hot cache, 70 to 270 µs for a whole dead one at worst).
const MANY: u64 = 1_000;
/// A fifth of one core all the time, or half of one for a second: whoever shares that core feels it.
const FELT: f64 = 0.2;
const FELT_FOR_A_SECOND: f64 = 0.5;
const WORTH_KNOWING: f64 = 0.05;
const MOST_FINDINGS: usize = 3;

pub fn examine(evidence: &Evidence) -> Answer {
    let Some(work) = Work::of(evidence) else { return not_sampled(evidence) };
    let report = zombies::report(evidence);
    let memcgs = zombie_memcgs::dead_and_live(evidence, report.as_ref());
    let all = memcgs.map(|(dead, live)| dead.saturating_add(live));
    let share = work.cores_of(WorkKind::is_memcg_walk);
    if let Some(all) = all.filter(|all| *all < MANY) {
        return Answer::Fine(format!("{} of one core, over {} memory cgroups", percent(share), count(all)));
    }
    let walkers = work.processes(|row| row.kind.is_memcg_walk());
    let telling = walkers.iter().filter(|walker| walker.share >= WORTH_KNOWING || walker.peak >= FELT_FOR_A_SECOND);
    let findings: Vec<Finding> = telling.take(MOST_FINDINGS).map(|walker| finding(walker, memcgs)).collect();
    Answer::from_findings(findings, || format!("{} of one core went into it", percent(share)))
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
        remedy: format!(
            "The walk is long because there are so many: see zombie-memcgs or cgroup-leak for who leaves them. Until they are gone, let {name} ask less \
             often, or keep it off cores that serve a NIC (`taskset -pc CORES {}`).",
            walker.thread.pid
        ),
        ties: walker.ties(),
    }
}
