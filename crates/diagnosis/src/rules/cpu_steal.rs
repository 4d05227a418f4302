//! Does the hypervisor take CPU time from this node?

use crate::case::Case;
use crate::code::Code;
use crate::cores::timeline::{Shares, Timeline};
use crate::cores::words::{percent, percent_value};
use crate::finding::{Answer, Fact, FactKey, Finding, Severity, Subject, SubjectKind};
use crate::ties::Ties;
use coroner_evidence::Window;

/// Shares of the time that busy cores wanted. Dashboards alarm at a tenth; a short watch needs more to exclude a blip.
const WARNING: f64 = 0.2;
const CRITICAL: f64 = 0.4;
const WORTH_KNOWING: f64 = 0.05;
/// A node that wants less of its time than this loses hardly any.
const WANTED: f64 = 0.2;
/// A second counts if the core was at work in it: it ran for this share …
const AT_WORK: f64 = 0.25;
/// … or this share was stolen. An idle core waits for the hypervisor at each tick, which delays no job.
const HARDLY_LET: f64 = 0.8;

/// A longer watch is cut into this many parts, which are then longer than a second.
const MOST_PARTS: usize = 600;

pub fn examine(case: &Case<'_>) -> Answer {
    let cores = case.cores();
    let average = cores.window().and_then(|window| Some((window, cores.timeline.average(window)?)));
    let Some((window, average)) = average.filter(|_| cores.timeline.lasts()) else {
        return cores.not_watched();
    };
    let Some(stolen) = stolen_at_work(&cores.timeline, window) else {
        return Answer::Fine(format!(
            "{} of all core time was stolen; no core was busy for a whole second",
            percent(average.steal)
        ));
    };
    if average.busy() < WANTED {
        return Answer::Fine(format!(
            "the node wanted only {} of its core time; {} of all core time was stolen",
            percent(average.busy()),
            percent(average.steal)
        ));
    }
    if stolen < WORTH_KNOWING {
        return Answer::Fine(format!("{} of the CPU time that busy cores wanted was stolen", percent(stolen)));
    }
    let severity = match stolen {
        s if s >= CRITICAL => Severity::Critical,
        s if s >= WARNING => Severity::Warning,
        _ => Severity::Info,
    };
    let worst = cores.timeline.worst(|shares| shares.steal);
    let mut facts = vec![
        Fact::new(FactKey::StolenOfWanted, percent_value(stolen), "/proc/stat"),
        Fact::new(FactKey::Stolen, percent_value(average.steal), "/proc/stat"),
    ];
    if let Some((core, share)) = worst {
        facts.push(Fact::new(FactKey::StolenWorstSecond, percent_value(share), "/proc/stat").of(core));
    }
    Answer::Findings(vec![Finding {
        code: Code::CpuSteal,
        severity,
        subject: Subject::new(SubjectKind::Node, "hypervisor"),
        title: format!("the hypervisor took {} of the CPU time that this node wanted", percent(stolen)),
        detail: format!(
            "For {} of the time that busy cores wanted to run, the hypervisor ran something else. Threads that held a lock or polled a NIC stood \
             still meanwhile.",
            percent(stolen)
        ),
        evidence: facts,
        remedy: "Nothing on this node helps. If it is a burstable instance, its CPU credits are used up: take a larger or a non-burstable type. Otherwise \
                 contact the provider, or move the job to another machine."
            .to_owned(),
        ties: Ties { cores: cores.timeline.lines.keys().copied().collect(), when: Some(window.into()), ..Ties::default() },
    }])
}

/// The stolen share of the time that cores at work wanted, second by second; `None` if no core was at work.
fn stolen_at_work(timeline: &Timeline, window: Window) -> Option<f64> {
    let seconds = (window.length().as_secs_f64().round() as usize).clamp(1, MOST_PARTS);
    let cells = timeline.lines.values().flat_map(|line| line.strip(window, seconds)).flatten();
    let ran = |cell: &Shares| cell.busy() - cell.steal;
    let at_work = cells.filter(|cell| ran(cell) >= AT_WORK || cell.steal >= HARDLY_LET);
    let (steal, wanted) = at_work.fold((0.0, 0.0), |(s, w), cell| (s + cell.steal, w + cell.busy()));
    (wanted > 0.0).then(|| steal / wanted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::test_evidence::{cannot_tell, fact, fine, one, start, watched};
    use coroner_evidence::Evidence;
    use coroner_evidence::{CoreTicks, CoreTimes};
    use std::time::Duration;

    /// Two cores for four seconds, with these shares of the time run and stolen.
    fn node(had: f64, stolen: f64) -> Evidence {
        let mut evidence = watched(4);
        evidence.core_times = (0..=8u64)
            .map(|look| {
                let ticks = |share: f64| 1000 + (share * 50.0 * look as f64).round() as u64;
                let core = |core| CoreTicks {
                    core,
                    user: ticks(had),
                    steal: ticks(stolen),
                    idle: ticks(1.0 - had - stolen),
                    ..CoreTicks::default()
                };
                CoreTimes { at: start(4) + Duration::from_millis(500 * look), cores: vec![core(0), core(1)] }
            })
            .collect();
        evidence
    }

    #[test]
    fn a_neighbour_that_takes_half_of_the_time_is_critical() {
        let f = one(examine(&Case::of(&node(0.5, 0.5))));
        assert_eq!(f.severity, Severity::Critical);
        assert_eq!(f.title, "the hypervisor took 50 % of the CPU time that this node wanted");
        assert_eq!(fact(&f, FactKey::StolenOfWanted), 50.0);
        assert_eq!(f.ties.cores, [0, 1]);
    }

    #[test]
    fn it_is_a_share_of_the_wanted_time_not_of_all_time() {
        // 15 % of all time, but a third of what was wanted.
        assert_eq!(one(examine(&Case::of(&node(0.3, 0.15)))).severity, Severity::Warning);
        assert_eq!(one(examine(&Case::of(&node(0.9, 0.1)))).severity, Severity::Info);
        assert!(fine(examine(&Case::of(&node(0.96, 0.04)))).contains("4 %"));
        // A node that wants little loses little.
        fine(examine(&Case::of(&node(0.08, 0.08))));
    }

    #[test]
    fn an_idle_node_is_fine_unless_nearly_all_is_stolen() {
        assert!(fine(examine(&Case::of(&node(0.02, 0.23)))).contains("no core was busy"));
        assert_eq!(one(examine(&Case::of(&node(0.05, 0.9)))).severity, Severity::Critical);
        // Time stolen from an idle core does not count against a busy one.
        let mut evidence = node(0.9, 0.0);
        for (look, times) in (0..).zip(&mut evidence.core_times) {
            times.cores[1] = CoreTicks { core: 1, steal: look * 15, idle: look * 35, ..CoreTicks::default() };
        }
        fine(examine(&Case::of(&evidence)));
    }

    #[test]
    fn one_look_is_not_enough() {
        let mut evidence = node(0.5, 0.5);
        evidence.core_times.truncate(1);
        cannot_tell(examine(&Case::of(&evidence)));
    }
}
