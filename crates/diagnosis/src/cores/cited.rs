//! What several rules say of a core in the same words, and the facts they cite.

use super::timeline::Shares;
use super::waits::{Harm, Victim};
use super::words::{listed, percent, percent_value, span};
use super::{Cores, FullCore};
use crate::finding::Fact;
use coroner_evidence::CoreSet;

/// Victims named in a sentence; all others are counted.
const MOST_VICTIMS: usize = 3;

/// `user 0 %, system 99 %, softirq 1 %`; what is nothing is left out, but for user and system.
pub fn shares_text(shares: &Shares) -> String {
    let mut parts = vec![format!("user {}", percent(shares.user)), format!("system {}", percent(shares.system))];
    for (name, share) in
        [("irq", shares.irq), ("softirq", shares.softirq), ("steal", shares.steal), ("iowait", shares.iowait)]
    {
        if share >= 0.005 {
            parts.push(format!("{name} {}", percent(share)));
        }
    }
    parts.join(", ")
}

/// `ksoftirqd/1[22] 2.9 s (still waiting), kworker/1:0[31] 1.2 s and 3 more`
pub fn victims_text(victims: &[Victim]) -> String {
    let each: Vec<String> = victims
        .iter()
        .map(|v| {
            let how = match (v.harm, v.still_waiting) {
                (_, true) => " (still waiting)",
                (Harm::Crowded, _) => " (taking turns, and it may run nowhere else)",
                (Harm::Starved, _) => "",
            };
            format!("{}{} {}{how}", v.who.name(), v.who.belongs_to(), span(v.waited_ns))
        })
        .collect();
    listed(&each, MOST_VICTIMS)
}

pub fn owner_facts(full: &FullCore) -> Vec<Fact> {
    match full.ownership.owner() {
        Some(owner) => {
            let source = match owner.who() {
                Some(who) => format!("/proc/{}/task/{}/schedstat", who.pid.unwrap_or(who.tid), who.tid),
                None => "/proc/stat, /proc/softirqs, /proc/interrupts".to_owned(),
            };
            let mut facts = vec![
                Fact::new("owner", owner.name(), "", source.clone()),
                Fact::new("owner's share of the busy time", percent_value(owner.share), "%", source.clone()),
            ];
            if let Some(who) = owner.who() {
                facts.push(Fact::new("owner's scheduling class", who.scheduling(), "", source));
            }
            facts
        }
        None => Vec::new(),
    }
}

pub fn victim_fact(victim: &Victim) -> Fact {
    let who = &victim.who;
    let source = format!("/proc/{}/task/{}/schedstat", who.pid.unwrap_or(who.tid), who.tid);
    Fact::new(format!("{} waited", who.name()), victim.waited_ns / 1_000_000, "ms", source)
}

/// All cores but one, for taskset and smp_affinity_list.
pub fn elsewhere(cores: &Cores, core: u32) -> String {
    let others = CoreSet::new(cores.timeline.lines.keys().copied().filter(|c| *c != core));
    if others.is_empty() { core.to_string() } else { others.to_string() }
}
