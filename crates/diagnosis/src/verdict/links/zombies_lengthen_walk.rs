//! Whoever walks memory cgroups visits the dead ones, too.

use super::{LinkRule, Linked};
use crate::code::Code;
use crate::finding::Finding;
use crate::verdict::{Case, Proof, Proofs};
use crate::words::{count, percent};

/// Where at least this part of all cgroups is dead, the walk is over the dead.
const MOSTLY_DEAD: f64 = 2.0 / 3.0;

pub const LINK: LinkRule = LinkRule { from: &[Code::ZombieMemcgs], to: &[Code::MemcgWalk], examine };

fn examine(case: &Case<'_>, _: &Finding, effect: &Finding) -> Option<Linked> {
    let (dead, live) = case.memcgs?;
    let part = dead as f64 / dead.saturating_add(live).max(1) as f64;
    // A walk over thousands of live ones has another cause.
    if part < 1.0 - MOSTLY_DEAD {
        return None;
    }
    Some(Linked {
        because: format!("the kernel goes from memory cgroup to memory cgroup, and {} of them are dead", count(dead)),
        proofs: Proofs {
            identity: Proof::shown("the walk's functions go over the memory cgroups of this node, the dead included"),
            // They were counted at the first look, and the youngest are a small part.
            order: Proof::shown("they were there before the walk"),
            size: match part >= MOSTLY_DEAD {
                true => Proof::shown(format!("{} of what the kernel steps through is dead", percent(part))),
                false => Proof::not_seen(format!("only {} of the cgroups are dead", percent(part))),
            },
        },
        evidence: effect.facts_about(&["of one core", "mostly in"]),
    })
}
