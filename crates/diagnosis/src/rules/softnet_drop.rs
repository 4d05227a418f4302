//! Did the kernel drop received packets because a core's backlog was full?
//!
//! /proc/net/softnet_stat, per core. `dropped` counts packets that found the backlog queue full (net.core.netdev_max_backlog;
//! net/core/dev.c, enqueue_to_backlog): loopback, veth, tunnels, RPS. Drivers that poll with NAPI drop in their own rings,
//! before this counter. `time_squeeze` counts polls that ended by budget with work left (net_rx_action): normal under load.

use crate::case::Case;
use crate::code::Code;
use crate::cores::cited::steer_packets;
use crate::cores::words::{listed, percent_value};
use crate::finding::{Answer, Fact, FactKey, Finding, Severity, Subject, SubjectKind};
use crate::ties::{Ties, When};
use crate::words::{count, plural};
use coroner_evidence::{Evidence, Order, Source, Time, Window, probe};
use std::collections::BTreeSet;

/// Fewer in one window are only info: a burst that retransmission repairs.
const SOME_DROPS: u64 = 10;
/// From here on jobs feel it …
const MANY_DROPS: u64 = 1_000;
/// … if this is also the share of the core's packets: TCP throughput collapses at about 1 % loss.
const MANY_PART: f64 = 0.01;
/// A core's polls run out of budget this often per second only if it cannot keep up; a few are normal.
const MANY_SQUEEZES_PER_SECOND: f64 = 100.0;
/// More cores than this become one finding about the node.
const MOST_CORES: usize = 4;

struct Core<'a> {
    /// `cpu3`
    subject: &'a str,
    processed: u64,
    dropped: u64,
    squeezed: u64,
    seconds: f64,
    /// The reads between which packets were dropped.
    dropped_when: Option<When>,
}

impl Core<'_> {
    fn number(&self) -> &str {
        self.subject.strip_prefix("cpu").unwrap_or(self.subject)
    }

    /// Dropped packets are not part of the processed ones.
    fn part(&self) -> f64 {
        self.dropped as f64 / (self.dropped as f64 + self.processed as f64).max(1.0)
    }

    fn severity(&self) -> Severity {
        match self.dropped {
            d if d >= MANY_DROPS && self.part() >= MANY_PART => Severity::Critical,
            d if d >= SOME_DROPS => Severity::Warning,
            _ => Severity::Info,
        }
    }

    fn ties(&self) -> Ties {
        Ties { cores: self.number().parse().into_iter().collect(), when: self.dropped_when, ..Ties::default() }
    }

    fn squeezes_per_second(&self) -> f64 {
        self.squeezed as f64 / self.seconds
    }
}

pub fn examine(case: &Case<'_>) -> Answer {
    let evidence = case.evidence;
    let moved = |subject: &str, name: &str| evidence.counters.moved(Source::Softnet, subject, name);
    let mut cores: Vec<Core> = evidence
        .counters
        .subjects(Source::Softnet)
        .into_iter()
        .filter_map(|subject| {
            Some(Core {
                subject,
                processed: moved(subject, "processed").unwrap_or(0),
                dropped: moved(subject, "dropped")?,
                squeezed: moved(subject, "time_squeeze").unwrap_or(0),
                seconds: 0.0,
                dropped_when: moved_when(evidence, subject, "dropped"),
            })
        })
        .collect();
    if cores.is_empty() {
        let unseen = evidence.why_unseen(probe::SOFTNET);
        return Answer::CannotTell {
            because: unseen.map_or_else(|| "/proc/net/softnet_stat was not read".to_owned(), |u| u.why.clone()),
            how_to_see: unseen.map_or_else(|| "run on the node".to_owned(), |u| u.how_to_see.clone()),
        };
    }
    // From the first to the last read: a counter that does not move is recorded only once.
    let times = || {
        let softnet = evidence.counters.iter().filter(|(series, _)| series.source == Source::Softnet);
        softnet.flat_map(|(_, points)| points.iter().map(|p| p.at))
    };
    let looked = times().max().zip(times().min()).map_or(0.0, |(last, first)| last.since(first).as_secs_f64());
    let watched = evidence.window().map_or(0.0, |w| w.length().as_secs_f64());
    let seconds = looked.max(watched);
    if seconds <= 0.0 {
        return Answer::CannotTell {
            because: "/proc/net/softnet_stat was read only once".to_owned(),
            how_to_see: "watch for a few seconds: --for 5s".to_owned(),
        };
    }
    for core in &mut cores {
        core.seconds = seconds;
    }
    let processed: u64 = cores.iter().map(|c| c.processed).fold(0, u64::saturating_add);

    let mut dropping: Vec<&Core> = cores.iter().filter(|c| c.dropped > 0).collect();
    dropping.order_by_key(|c| std::cmp::Reverse(c.dropped));
    let mut findings = if dropping.len() > MOST_CORES {
        vec![dropped_everywhere(case, &dropping)]
    } else {
        dropping.iter().map(|core| dropped(case, core)).collect()
    };
    let mut squeezed: Vec<&Core> =
        cores.iter().filter(|c| c.squeezes_per_second() >= MANY_SQUEEZES_PER_SECOND).collect();
    squeezed.order_by_key(|c| std::cmp::Reverse(c.squeezed));
    if let Some(worst) = squeezed.first() {
        findings.push(squeezes(worst, squeezed.len()));
    }
    Answer::from_findings(findings, || {
        let squeezes: u64 = cores.iter().map(|c| c.squeezed).fold(0, u64::saturating_add);
        format!(
            "0 of {processed} packets dropped on {} in {seconds:.1} s; polls out of budget: {squeezes}",
            plural(cores.len() as u64, "core", "cores")
        )
    })
}

/// From the last read before a counter first moved to the read after it last did.
fn moved_when(evidence: &Evidence, subject: &str, name: &str) -> Option<When> {
    let points = evidence.counters.points(Source::Softnet, subject, name);
    // A counter that does not move is not recorded: the read before is that of any other counter.
    let softnet = evidence.counters.iter().filter(|(series, _)| series.source == Source::Softnet);
    let looks: BTreeSet<Time> = softnet.flat_map(|(_, points)| points.iter().map(|point| point.at)).collect();
    let look_before = |at: Time| looks.range(..at).next_back().copied();
    let mut moves = points.windows(2).filter(|pair| pair[1].value > pair[0].value);
    let first = moves.next()?;
    let last = moves.next_back().unwrap_or(first);
    let from = look_before(first[1].at).map_or(first[0].at, |look| look.max(first[0].at));
    Some(Window { from, to: last[1].at }.into())
}

const SOURCE: &str = "/proc/net/softnet_stat";

fn facts(core: &Core) -> Vec<Fact> {
    vec![
        Fact::new(FactKey::Dropped, core.dropped, SOURCE),
        Fact::new(FactKey::Processed, core.processed, SOURCE),
        Fact::new(FactKey::DroppedShare, percent_value(core.part()), SOURCE),
        Fact::new(FactKey::Squeezed, core.squeezed, SOURCE),
        Fact::new(FactKey::Watched, (core.seconds * 1000.0) as u64, SOURCE),
    ]
}

fn remedy(case: &Case<'_>, core: &str) -> String {
    let cores = case.cores();
    let steer = core.parse().ok().zip(cores.window()).and_then(|(core, window)| steer_packets(cores, core, window));
    let steer = steer.map(|steer| format!(" {steer}")).unwrap_or_default();
    format!(
        "First check whether something else has core {core} (core-saturated, nic-core-starved): if so, that is the cause. \
         Otherwise make room for bursts: `sysctl -w net.core.netdev_max_backlog=5000` (until reboot).{steer} A longer backlog does not \
         help a core that is always full."
    )
}

fn dropped(case: &Case<'_>, core: &Core) -> Finding {
    let number = core.number();
    Finding {
        code: Code::SoftnetDrop,
        ties: core.ties(),
        severity: core.severity(),
        subject: Subject::new(SubjectKind::Core, number),
        title: format!("core {number} dropped {} in {:.1} s", plural(core.dropped, "packet", "packets"), core.seconds),
        detail: format!(
            "Core {number} handled {} packets and dropped {} ({} % lost) because its backlog was full. The dropped packets had \
             already been received: from loopback, veth, a tunnel or RPS.",
            count(core.processed),
            count(core.dropped),
            percent_value(core.part())
        ),
        evidence: facts(core),
        remedy: remedy(case, number),
    }
}

fn dropped_everywhere(case: &Case<'_>, cores: &[&Core]) -> Finding {
    let all: u64 = cores.iter().map(|c| c.dropped).fold(0, u64::saturating_add);
    let each: Vec<String> = cores.iter().map(|c| format!("core {}: {}", c.number(), count(c.dropped))).collect();
    let mut evidence = vec![Fact::new(FactKey::Dropped, all, SOURCE)];
    for core in cores.iter().take(MOST_CORES) {
        evidence.push(Fact::new(FactKey::DroppedOnCore, core.dropped, SOURCE).of(core.number()));
    }
    Finding {
        code: Code::SoftnetDrop,
        ties: Ties { cores: cores.iter().filter_map(|c| c.number().parse().ok()).collect(), ..cores[0].ties() },
        severity: cores.iter().map(|c| c.severity()).max().unwrap_or(Severity::Info).max(if all >= SOME_DROPS {
            Severity::Warning
        } else {
            Severity::Info
        }),
        subject: Subject::new(SubjectKind::Node, "node"),
        title: format!("{} cores dropped {} packets", cores.len(), count(all)),
        detail: format!("The backlogs of {} cores were full: {}.", cores.len(), listed(&each, MOST_CORES)),
        evidence,
        remedy: remedy(case, cores[0].number()),
    }
}

fn squeezes(core: &Core, cores: usize) -> Finding {
    let number = core.number();
    let others = plural(cores as u64 - 1, "other core", "other cores");
    let more = if cores > 1 { format!(" {others} did the same.") } else { String::new() };
    Finding {
        code: Code::SoftnetDrop,
        ties: core.ties(),
        severity: Severity::Info,
        subject: Subject::new(SubjectKind::Core, number),
        title: format!("core {number} ran out of packet budget {:.0} times a second", core.squeezes_per_second()),
        detail: format!(
            "{} polls ended with packets left over in {:.1} s.{more} That alone is not loss: the rest is handled in the next \
             round. But packets arrive faster than net.core.netdev_budget (300 packets) or netdev_budget_usecs (2 ms) allows \
             per round, so latency grows.",
            core.squeezed, core.seconds
        ),
        evidence: facts(core),
        remedy: "Nothing, unless packets are dropped or latency matters: then spread the NIC queues over more cores \
                 (`ethtool -L DEV combined N`) or raise the budget (`sysctl -w net.core.netdev_budget=600`)."
            .to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::test_evidence;
    use coroner_evidence::Time;

    /// (core, processed, dropped, squeezed) within five seconds; no counter started at 0.
    fn seen(cores: &[(u32, u64, u64, u64)]) -> Evidence {
        let mut evidence = Evidence::default();
        for (core, processed, dropped, squeezed) in cores {
            let subject = format!("cpu{core}");
            for (name, amount) in [("processed", processed), ("dropped", dropped), ("time_squeeze", squeezed)] {
                evidence.counters.push(Source::Softnet, &subject, name, Time::from_secs(10), 7_000);
                if *amount > 0 {
                    evidence.counters.push(Source::Softnet, &subject, name, Time::from_secs(15), 7_000 + amount);
                }
            }
        }
        evidence
    }

    fn findings(evidence: &Evidence) -> Vec<Finding> {
        test_evidence::findings(examine(&Case::of(evidence)))
    }

    #[test]
    fn drops_are_found_on_their_core_and_graded() {
        for (processed, dropped, severity) in [
            (1_000_000, 1, Severity::Info),
            (1_000_000, 9, Severity::Info),
            (1_000_000, 10, Severity::Warning),
            (1_000_000, 5_000, Severity::Warning),
            (50_000, 5_000, Severity::Critical),
            (0, 999, Severity::Warning),
        ] {
            let found = findings(&seen(&[(0, 500, 0, 0), (3, processed, dropped, 0)]));
            assert_eq!(found.len(), 1);
            assert_eq!((found[0].subject.name.as_str(), found[0].severity), ("3", severity), "{processed} {dropped}");
        }
    }

    #[test]
    fn earlier_drops_do_not_count() {
        let Answer::Fine(why) = examine(&Case::of(&seen(&[(0, 500, 0, 3), (1, 200, 0, 0)]))) else { panic!() };
        assert!(why.contains("0 of 700 packets") && why.contains("5.0 s"), "{why}");
    }

    #[test]
    fn many_squeezes_are_info_and_few_are_fine() {
        assert!(matches!(examine(&Case::of(&seen(&[(0, 90_000, 0, 499)]))), Answer::Fine(_)));
        let found = findings(&seen(&[(0, 90_000, 0, 500)]));
        assert_eq!(found[0].severity, Severity::Info);
    }

    #[test]
    fn drops_on_many_cores_are_one_finding() {
        let cores: Vec<_> = (0..96).map(|core| (core, 1_000, 20, 0)).collect();
        let found = findings(&seen(&cores));
        assert_eq!((found.len(), found[0].subject.kind, found[0].severity), (1, SubjectKind::Node, Severity::Warning));
        assert!(found[0].title.contains("1,920"), "{}", found[0].title);
    }

    #[test]
    fn unread_or_read_once_is_not_fine() {
        assert!(matches!(examine(&Case::of(&Evidence::default())), Answer::CannotTell { .. }));
        let mut once = Evidence::default();
        once.counters.push(Source::Softnet, "cpu0", "dropped", Time::from_secs(1), 5);
        assert!(matches!(examine(&Case::of(&once)), Answer::CannotTell { .. }));
        let mut denied = Evidence::default();
        denied.unseen(probe::SOFTNET, "drops", "/proc/net/softnet_stat: Permission denied", "run as root");
        assert!(
            matches!(examine(&Case::of(&denied)), Answer::CannotTell { because, .. } if because.contains("Permission denied"))
        );
    }
}
