//! What can cause what, one file each.
//!
//! A link says whether one finding caused another, with its proofs; `None` if something speaks against it.

mod cgroups_slow_stats;
mod kills_make_loop;
mod monopolist_fills_core;
mod node_fills_core;
mod reclaim_ends_in_kill;
mod starved_queue_resets_nic;
mod starver_fills_core;
mod taken_core_drops_packets;
mod taken_core_stalls_kernel;
mod taken_core_starves_nic;
mod taken_core_starves_threads;
mod taken_cores_leave_too_few;
mod unit_leaks_zombies;
mod work_fills_core;
mod zombies_lengthen_walk;

use super::{Proof, Proofs};
use crate::case::Case;
use crate::code::Code;
use crate::cores::timeline::Saturation;
use crate::finding::{Fact, Finding};
use crate::ties::When;
use crate::words::duration_words;
use std::time::Duration;

pub struct LinkRule {
    pub from: &'static [Code],
    pub to: &'static [Code],
    pub examine: fn(&Case<'_>, cause: &Finding, effect: &Finding) -> Option<Linked>,
}

#[derive(Debug, Clone)]
pub struct Linked {
    /// How the effect follows from the cause, in a sentence without its full stop.
    pub because: String,
    pub proofs: Proofs,
    pub evidence: Vec<Fact>,
}

pub const ALL: &[LinkRule] = &[
    unit_leaks_zombies::LINK,
    zombies_lengthen_walk::LINK,
    cgroups_slow_stats::LINK,
    work_fills_core::LINK,
    node_fills_core::LINK,
    monopolist_fills_core::LINK,
    taken_core_starves_nic::LINK,
    taken_core_starves_threads::LINK,
    starver_fills_core::LINK,
    taken_core_drops_packets::LINK,
    taken_core_stalls_kernel::LINK,
    taken_cores_leave_too_few::LINK,
    starved_queue_resets_nic::LINK,
    reclaim_ends_in_kill::LINK,
    kills_make_loop::LINK,
];

/// The surest link from one finding to another.
pub fn examine(case: &Case<'_>, cause: &Finding, effect: &Finding) -> Option<Linked> {
    ALL.iter()
        .filter(|link| link.from.contains(&cause.code) && link.to.contains(&effect.code))
        .filter_map(|link| (link.examine)(case, cause, effect))
        .max_by_key(|linked| linked.proofs.certainty())
}

/// For effects that last only as long as their cause: `None` if the two were at different times.
fn while_both(cause: &Finding, effect: &Finding) -> Option<Proof> {
    match (cause.ties.when, effect.ties.when) {
        (Some(before), Some(after)) => overlap(&before, &after),
        _ => Some(Proof::not_seen("when the two happened")),
    }
}

fn overlap(before: &When, after: &When) -> Option<Proof> {
    if before.surely_overlaps(after) {
        return Some(Proof::shown("the two overlap in time"));
    }
    let off = duration_words(before.uncertainty.saturating_add(after.uncertainty));
    before.overlaps(after).then(|| Proof::not_seen(format!("whether the two overlap: the clocks may be off by {off}")))
}

/// Every time at which the culprit of `cause` had this core. The finding itself tells only of the clearest, which comes first here.
fn times_on_core(case: &Case<'_>, cause: &Finding, core: u32) -> Vec<When> {
    let culprit = cause.ties.culprits.first().map(|culprit| culprit.tid);
    let full = case.cores().full_by_owner(Saturation::Busy, |full| full.core == core);
    let its = full.into_iter().filter(|full| culprit.is_some() && full.only_thread() == culprit);
    let others = its.flat_map(|full| full.windows).map(|window| When {
        from: window.from,
        to: window.to,
        uncertainty: Duration::ZERO,
    });
    cause.ties.when.into_iter().chain(others).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// In a cycle neither finding would be a root.
    #[test]
    fn codes_never_lead_back_to_themselves() {
        for start in Code::ALL {
            let mut seen: BTreeSet<Code> = BTreeSet::new();
            let mut next = vec![*start];
            while let Some(code) = next.pop() {
                for link in ALL.iter().filter(|link| link.from.contains(&code)) {
                    for &to in link.to {
                        assert_ne!(to, *start, "{start} leads back to itself");
                        if seen.insert(to) {
                            next.push(to);
                        }
                    }
                }
            }
        }
    }
}
