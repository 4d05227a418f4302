//! Do the cloud instance's limits delay or drop packets?
//!
//! AWS shapes traffic per instance, and the ENA driver counts each packet that was queued or dropped for it. Tuning the node does
//! not help, only less traffic or a larger instance. Other NICs have no such counters.

use crate::case::Case;
use crate::code::Code;
use crate::cores::words::listed;
use crate::finding::{Answer, Fact, FactKey, Finding, Severity, Subject, SubjectKind};
use crate::ties::{self, Ties};
use crate::words::plural;
use coroner_evidence::{Evidence, Order, Source, probe};
use std::collections::BTreeSet;

const SUFFIX: &str = "_allowance_exceeded";
const SOURCE: &str = "ethtool -S";

/// What a counter means and what helps.
fn meaning(name: &str) -> (&'static str, &'static str) {
    match name {
        "bw_in_allowance_exceeded" => (
            "inbound bandwidth",
            "Receive less at a time, or use an instance with more baseline bandwidth (small ones only burst).",
        ),
        "bw_out_allowance_exceeded" => (
            "outbound bandwidth",
            "Send less at a time (traffic shaping, fewer parallel uploads), or use an instance with more baseline bandwidth.",
        ),
        "pps_allowance_exceeded" => (
            "packets per second",
            "Send larger packets (jumbo frames: MTU 9001 inside the VPC; batching), or use a larger instance.",
        ),
        "conntrack_allowance_exceeded" => (
            "connections tracked by security groups",
            "New connections fail. Reuse connections, use a larger instance, or let the security groups allow all of this traffic in both directions: then it is not tracked. This is not the node's own conntrack table.",
        ),
        "linklocal_allowance_exceeded" => (
            "packets to DNS, metadata and time services (1024 per second)",
            "Cache DNS on the node (node-local DNS, nscd) and query the metadata service less often. A larger instance does not help.",
        ),
        _ => ("another allowance", "See the AWS page on ENA network performance metrics."),
    }
}

pub fn examine(case: &Case<'_>) -> Answer {
    let evidence = case.evidence;
    let counters = &evidence.counters;
    let mut findings = Vec::new();
    let mut devices_with = BTreeSet::new();
    let mut earlier: Vec<String> = Vec::new();
    let mut looked_once = false;
    for device in counters.subjects(Source::Ethtool) {
        let mut rising = Vec::new();
        for name in counters.names(Source::Ethtool, device) {
            if !name.ends_with(SUFFIX) {
                continue;
            }
            devices_with.insert(device);
            let Some(delta) = counters.delta(Source::Ethtool, device, name) else { continue };
            looked_once = true;
            if delta.amount() > 0 {
                rising.push((name, delta));
            } else if delta.to.value > 0 {
                earlier.push(format!("{device} {name} {}", delta.to.value));
            }
        }
        if !rising.is_empty() {
            rising.order_by_key(|(_, delta)| std::cmp::Reverse(delta.amount()));
            findings.push(finding(evidence, device, &rising));
        }
    }
    if !findings.is_empty() {
        return Answer::Findings(findings);
    }

    let is_ena = |driver: &Option<String>| driver.as_deref() == Some("ena");
    let silent: BTreeSet<String> = evidence
        .nics
        .iter()
        .filter(|nic| is_ena(&nic.driver) && !devices_with.contains(nic.name.as_str()))
        .map(|nic| nic.display_name())
        .collect();
    if let Some(device) = silent.first() {
        return Answer::CannotTell {
            because: format!("the ena driver of {device} does not count hits of the instance's limits"),
            how_to_see: "install Amazon's ena driver 2.2.10 or later (in-tree drivers may lack the counters)"
                .to_owned(),
        };
    }
    if !looked_once {
        return match evidence.why_unseen(probe::NICS) {
            Some(unseen) if evidence.nics.is_empty() => {
                Answer::CannotTell { because: unseen.why.clone(), how_to_see: unseen.how_to_see.clone() }
            }
            _ if evidence.nics.is_empty() => Answer::CannotTell {
                because: "no network device was seen".to_owned(),
                how_to_see: "run in the node's own network namespace".to_owned(),
            },
            _ => Answer::Fine("no NIC has ENA's allowance counters; others do not count instance limits".to_owned()),
        };
    }
    if evidence.window().is_none_or(|w| w.length().is_zero()) && counters_read_once(evidence) {
        return Answer::CannotTell {
            because: "the counters of instance limits were read only once".to_owned(),
            how_to_see: "watch for a few seconds: --for 5s".to_owned(),
        };
    }
    Answer::Fine(if earlier.is_empty() {
        format!("{}, no instance limit ever exceeded", plural(devices_with.len() as u64, "ENA device", "ENA devices"))
    } else {
        format!("no instance limit exceeded while we watched; since the driver was loaded: {}", listed(&earlier, 3))
    })
}

/// A counter that does not move is recorded once. Only if no other counter was read later is it unknown whether it moved.
fn counters_read_once(evidence: &Evidence) -> bool {
    let times = || evidence.counters.iter().flat_map(|(_, points)| points.iter().map(|p| p.at));
    times().min() == times().max()
}

fn finding(evidence: &Evidence, device: &str, rising: &[(&str, coroner_evidence::Delta)]) -> Finding {
    let mut detail = String::new();
    let mut facts = Vec::new();
    let mut remedies: Vec<&str> = Vec::new();
    for (name, delta) in rising {
        let (what, remedy) = meaning(name);
        detail.push_str(&format!("{name} rose by {} in {:.1} s: {what}. ", delta.amount(), delta.over().as_secs_f64()));
        facts.push(Fact::new(FactKey::Allowance, delta.amount(), SOURCE).of(name));
        facts.push(Fact::new(FactKey::AllowanceEver, delta.to.value, SOURCE).of(name));
        remedies.push(remedy);
    }
    detail.push_str("AWS queued or dropped these packets outside the node.");
    let (what, _) = meaning(rising[0].0);
    let more = if rising.len() > 1 { format!(" (and {} more)", rising.len() - 1) } else { String::new() };
    Finding {
        code: Code::NicAllowance,
        ties: Ties { queues: vec![ties::device_named(&evidence.nics, device)], ..Ties::default() },
        severity: Severity::Warning,
        subject: Subject::new(SubjectKind::Nic, device),
        title: format!("{device} exceeded a limit of its AWS instance: {what}{more}"),
        detail,
        evidence: facts,
        remedy: remedies.join(" "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cores::scene;
    use coroner_evidence::Time;

    fn with(counters: &[(&str, u64, u64)]) -> Evidence {
        let mut evidence = Evidence { nics: vec![scene::nic("eth0", 0)], ..Evidence::default() };
        evidence.counters.push(Source::Vmstat, "", "pgfault", Time::from_secs(1), 1);
        evidence.counters.push(Source::Vmstat, "", "pgfault", Time::from_secs(6), 2);
        for (name, before, after) in counters {
            evidence.counters.push(Source::Ethtool, "eth0", name, Time::from_secs(1), *before);
            if after != before {
                evidence.counters.push(Source::Ethtool, "eth0", name, Time::from_secs(6), *after);
            }
        }
        evidence
    }

    #[test]
    fn a_rising_allowance_is_named_with_what_helps() {
        let Answer::Findings(found) = examine(&Case::of(&with(&[
            ("bw_in_allowance_exceeded", 4, 4),
            ("pps_allowance_exceeded", 100, 350),
            ("conntrack_allowance_exceeded", 0, 1),
            ("rx_drops", 0, 70),
        ]))) else {
            panic!()
        };
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].subject.name.as_str(), found[0].severity), ("eth0", Severity::Warning));
        assert!(
            found[0].title.contains("packets per second") && found[0].title.contains("1 more"),
            "{}",
            found[0].title
        );
        assert!(found[0].detail.contains("rose by 250 in 5.0 s"), "{}", found[0].detail);
        assert!(found[0].remedy.contains("jumbo frames") && found[0].remedy.contains("security groups"));
        assert!(!found[0].detail.contains("bw_in"), "{}", found[0].detail);
    }

    #[test]
    fn limits_exceeded_earlier_are_mentioned_but_fine() {
        let Answer::Fine(why) = examine(&Case::of(&with(&[("bw_in_allowance_exceeded", 42, 42)]))) else { panic!() };
        assert!(why.contains("bw_in_allowance_exceeded 42"), "{why}");
        // A newly loaded driver starts from 0.
        assert!(matches!(examine(&Case::of(&with(&[("bw_in_allowance_exceeded", 42, 0)]))), Answer::Fine(_)));
    }

    #[test]
    fn a_driver_without_these_counters_cannot_tell() {
        assert!(
            matches!(examine(&Case::of(&with(&[("tx_timeout", 0, 0)]))), Answer::CannotTell { because, .. } if because.contains("eth0"))
        );
    }

    #[test]
    fn other_nics_have_no_allowances() {
        let mut evidence = with(&[("rx_drops", 0, 3)]);
        evidence.nics[0].driver = Some("virtio_net".into());
        assert!(matches!(examine(&Case::of(&evidence)), Answer::Fine(_)));
    }

    #[test]
    fn nothing_seen_is_not_fine() {
        assert!(matches!(examine(&Case::of(&Evidence::default())), Answer::CannotTell { .. }));
        let mut once = Evidence { nics: vec![scene::nic("eth0", 0)], ..Evidence::default() };
        once.counters.push(Source::Ethtool, "eth0", "bw_in_allowance_exceeded", Time::from_secs(1), 3);
        assert!(matches!(examine(&Case::of(&once)), Answer::CannotTell { .. }));
    }
}
