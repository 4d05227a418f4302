//! A walk of memory cgroups visits the dead ones too.

use super::{LinkRule, Linked};
use crate::case::Case;
use crate::code::Code;
use crate::finding::{FactKey, Finding};
use crate::verdict::{Proof, Proofs};
use crate::words::{count, percent, plural};

/// From this share of dead cgroups on, the walk is mostly over dead ones.
const MOSTLY_DEAD: f64 = 2.0 / 3.0;

/// With at most one live cgroup per nine dead ones, the live ones alone cannot make the walk this long.
const ALL_BUT_FEW: f64 = 0.9;

/// A walk over a few cgroups costs less than what surrounds it. If it is nearly all of the walker's kernel time, there is much to
/// walk.
const NEARLY_ALL: f64 = 0.8;

pub const LINK: LinkRule = LinkRule { from: &[Code::ZombieMemcgs], to: &[Code::MemcgWalk], examine };

fn examine(case: &Case<'_>, _: &Finding, effect: &Finding) -> Option<Linked> {
    let (dead, live) = case.memcgs()?;
    let part = dead as f64 / dead.saturating_add(live).max(1) as f64;
    // A walk over mostly live cgroups has another cause.
    if part < 1.0 - MOSTLY_DEAD {
        return None;
    }
    Some(Linked {
        because: format!("the kernel walks memory cgroups one by one, and {} of them are dead", count(dead)),
        proofs: Proofs {
            identity: match walked_share(case, effect) {
                Some(share) if share >= NEARLY_ALL && part >= ALL_BUT_FEW => Proof::shown(format!(
                    "the walk is {} of its kernel time: too much for {} alone",
                    percent(share),
                    plural(live, "live cgroup", "live cgroups")
                )),
                _ => Proof::not_seen("where the walk starts: it may skip the dead cgroups"),
            },
            order: match dead_at_first(case).is_some_and(|first| first.saturating_mul(2) >= dead) {
                true => Proof::shown("most of them were already dead when watching began"),
                false => Proof::not_seen("how many were dead when the walk began"),
            },
            size: match part >= MOSTLY_DEAD {
                true => Proof::shown(format!("{} of the memory cgroups are dead", percent(part))),
                false => Proof::not_seen(format!("only {} of the memory cgroups are dead", percent(part))),
            },
        },
        evidence: effect.facts(&[FactKey::ShareOfCore, FactKey::MostlyIn]),
    })
}

/// The walk's share of the walker's kernel time.
fn walked_share(case: &Case<'_>, walk: &Finding) -> Option<f64> {
    let (work, walker) = (case.work()?, walk.ties.culprits.first()?);
    let all = work.time(|row| row.pid == walker.pid).as_secs_f64();
    let walked = work.time(|row| row.pid == walker.pid && row.kind.is_memcg_walk()).as_secs_f64();
    (all > 0.0).then(|| walked / all)
}

fn dead_at_first(case: &Case<'_>) -> Option<u64> {
    let counted = case.evidence.cgroup_censuses.iter().map(|census| (census.at, census.dying));
    let scanned = case.evidence.zombie_scans.iter().map(|scan| (scan.at, scan.dead));
    counted.chain(scanned).filter_map(|(at, dead)| Some((at, dead?))).min().map(|(_, dead)| dead)
}
