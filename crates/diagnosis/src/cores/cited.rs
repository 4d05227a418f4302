//! Sentences about a core that several rules share, and the facts they cite.

use super::threads::Who;
use super::timeline::Shares;
use super::waits::{Harm, Victim};
use super::words::{listed, percent, percent_value, span};
use super::{Cores, FullCore};
use crate::finding::{Fact, FactKey};
use coroner_evidence::{CoreSet, Window};

/// Victims named in a sentence; the rest are counted.
const MOST_VICTIMS: usize = 3;

/// `user 0 %, system 99 %, softirq 1 %`; zero shares other than user and system are left out.
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
                (Harm::Crowded, _) => " (pinned to this core, taking turns)",
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
                Fact::new(FactKey::Owner, owner.name(), source.clone()),
                Fact::new(FactKey::OwnerShare, percent_value(owner.share), source.clone()),
            ];
            if let Some(who) = owner.who() {
                facts.push(Fact::new(FactKey::OwnerClass, who.scheduling(), source));
            }
            facts
        }
        None => Vec::new(),
    }
}

pub fn victim_fact(victim: &Victim) -> Fact {
    let who = &victim.who;
    let source = format!("/proc/{}/task/{}/schedstat", who.pid.unwrap_or(who.tid), who.tid);
    Fact::new(FactKey::Waited, victim.waited_ns / 1_000_000, source).of(who.name())
}

/// A core less busy than this can take another thread or interrupt.
const TAKES_MORE: f64 = 0.5;

/// Why a thread cannot be moved, with `TAKES_MORE` in words. Remedies and plans both say it.
pub const NO_ROOM: &str = "every other core was at least 50 % busy or serves a NIC queue";

/// The other cores that had room within a window, as a list for smp_affinity_list.
pub fn with_room(cores: &Cores, core: u32, window: Window) -> Option<String> {
    roomy(cores, core, window, |_| true)
}

/// The other cores that had room and on which no NIC queue depends, as a list for taskset.
pub fn with_room_for_thread(cores: &Cores, core: u32, window: Window) -> Option<String> {
    roomy(cores, core, window, |other| cores.queues(other).is_empty())
}

fn roomy(cores: &Cores, core: u32, window: Window, fit: impl Fn(u32) -> bool) -> Option<String> {
    let others = cores.timeline.lines.keys().copied().filter(|other| {
        *other != core && cores.timeline.shares(*other, window).is_some_and(|s| s.busy() < TAKES_MORE) && fit(*other)
    });
    let others = CoreSet::new(others);
    (!others.is_empty()).then(|| others.to_string())
}

/// What to do about a thread that fills a core: lower its priority, move it, stop it.
pub fn culprit_steps(cores: &Cores, core: u32, window: Window, who: &Who) -> Vec<String> {
    let (name, tid) = (who.name(), who.tid);
    if who.kernel {
        return vec![format!(
            "{name} is a kernel thread: do not change its scheduling class. See what it is doing: `cat /proc/{tid}/stack`, `perf record -C {core} -g -- sleep 5`."
        )];
    }
    let mut steps = Vec::new();
    if who.class.is_real_time() {
        steps.push(format!("Drop {name} to SCHED_OTHER: `chrt -o -p 0 {tid}`. It then takes turns with the others."));
    } else if who.nice < 0 {
        steps.push(format!("Reset its nice value: `renice -n 0 -p {tid}`."));
    }
    let or = if steps.is_empty() { "Move" } else { "Or move" };
    match with_room_for_thread(cores, core, window) {
        Some(others) => steps.push(format!("{or} {name} to a core with room: `taskset -pc {others} {tid}`.")),
        None => steps.push(format!("Moving it won't help: {NO_ROOM}.")),
    }
    steps.push("If it is not needed, stop it.".to_owned());
    steps
}
