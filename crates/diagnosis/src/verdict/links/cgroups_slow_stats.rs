//! On old kernels each read of memory statistics walks every cgroup, dead or alive.

use super::{LinkRule, Linked};
use crate::case::Case;
use crate::code::Code;
use crate::finding::{FactKey, Finding};
use crate::verdict::{Proof, Proofs};
use crate::words::count;
use crate::zombies::cost::stats_walk;

/// Of all cgroups a read walks.
const MOSTLY: f64 = 0.5;

pub const LINK: LinkRule =
    LinkRule { from: &[Code::ZombieMemcgs, Code::CgroupLeak], to: &[Code::SlowMemcgStat], examine };

fn examine(case: &Case<'_>, cause: &Finding, effect: &Finding) -> Option<Linked> {
    let (dead, live) = case.memcgs()?;
    // Leaked cgroups are the live ones that are empty.
    let empty = case.evidence.cgroup_censuses.last().and_then(|census| census.empty);
    let number = if cause.code == Code::ZombieMemcgs { dead } else { empty? } as f64;
    let walks = case.evidence.cgroup_censuses.last().and_then(|census| stats_walk(case.evidence, census.version));
    // This kernel does not walk them, so the read is slow for another reason.
    if walks == Some(false) {
        return None;
    }
    Some(Linked {
        because: format!("each read walks {} memory cgroups", count(dead.saturating_add(live))),
        proofs: Proofs {
            identity: match walks {
                Some(true) => Proof::shown("this kernel walks all of them on each read"),
                _ => Proof::not_seen("whether this kernel walks them on each read"),
            },
            order: Proof::shown("they existed before the read"),
            size: match number >= MOSTLY * (dead.saturating_add(live)) as f64 {
                true => Proof::shown(format!(
                    "they are {} of the {} walked",
                    count(number as u64),
                    count(dead.saturating_add(live))
                )),
                false => Proof::not_seen(format!(
                    "they are only {} of the {} walked",
                    count(number as u64),
                    count(dead.saturating_add(live))
                )),
            },
        },
        evidence: effect.facts(&[FactKey::ReadTime, FactKey::ReadTimeAtLeast, FactKey::ReadCpu]),
    })
}
