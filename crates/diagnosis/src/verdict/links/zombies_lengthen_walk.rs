//! Whoever walks memory cgroups visits the dead ones, too.

use super::{LinkRule, Linked};
use crate::case::Case;
use crate::code::Code;
use crate::finding::{FactKey, Finding};
use crate::verdict::{Proof, Proofs};
use crate::words::{count, percent};

/// Where at least this part of all cgroups is dead, the walk is over the dead.
const MOSTLY_DEAD: f64 = 2.0 / 3.0;

/// Where there is one live cgroup for nine dead ones or fewer, no walk of this length can be over the live ones alone.
const ALL_BUT_FEW: f64 = 0.9;

/// A pass over a few cgroups is short, and what goes before and after it takes longer; where nearly all of the walker's kernel time
/// is the walk itself, there is much to walk.
const NEARLY_ALL: f64 = 0.8;

pub const LINK: LinkRule = LinkRule { from: &[Code::ZombieMemcgs], to: &[Code::MemcgWalk], examine };

fn examine(case: &Case<'_>, _: &Finding, effect: &Finding) -> Option<Linked> {
    let (dead, live) = case.memcgs()?;
    let part = dead as f64 / dead.saturating_add(live).max(1) as f64;
    // A walk over thousands of live ones has another cause.
    if part < 1.0 - MOSTLY_DEAD {
        return None;
    }
    Some(Linked {
        because: format!("the kernel goes from memory cgroup to memory cgroup, and {} of them are dead", count(dead)),
        proofs: Proofs {
            identity: match walked_share(case, effect) {
                Some(share) if share >= NEARLY_ALL && part >= ALL_BUT_FEW => Proof::shown(format!(
                    "{} of its kernel time is stepping from cgroup to cgroup; {} live ones alone are soon done",
                    percent(share),
                    count(live)
                )),
                _ => Proof::not_seen("where the walk begins: it may pass the dead by"),
            },
            order: match dead_at_first(case).is_some_and(|first| first.saturating_mul(2) >= dead) {
                true => Proof::shown("most of them were there when we began to look"),
                false => Proof::not_seen("how many there were when the walk began"),
            },
            size: match part >= MOSTLY_DEAD {
                true => Proof::shown(format!("{} of what the kernel steps through is dead", percent(part))),
                false => Proof::not_seen(format!("only {} of the cgroups are dead", percent(part))),
            },
        },
        evidence: effect.facts(&[FactKey::ShareOfCore, FactKey::MostlyIn]),
    })
}

/// How much of the walker's time in the kernel is the walk.
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
