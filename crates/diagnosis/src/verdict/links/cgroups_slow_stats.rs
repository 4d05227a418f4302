//! On old kernels each read of memory statistics walks every cgroup, dead or alive.

use super::{LinkRule, Linked};
use crate::code::Code;
use crate::finding::Finding;
use crate::verdict::{Case, Proof, Proofs};
use crate::words::count;
use crate::zombies::cost::stats_walk;

pub const LINK: LinkRule =
    LinkRule { from: &[Code::ZombieMemcgs, Code::CgroupLeak], to: &[Code::SlowMemcgStat], examine };

fn examine(case: &Case<'_>, cause: &Finding, effect: &Finding) -> Option<Linked> {
    let (dead, live) = case.memcgs?;
    let number = if cause.code == Code::ZombieMemcgs { dead } else { live };
    let walks = case.evidence.cgroup_censuses.last().and_then(|census| stats_walk(case.evidence, census.version));
    // This kernel does not walk them to answer: the slow read has another reason.
    if walks == Some(false) {
        return None;
    }
    Some(Linked {
        because: format!("each read walks {} memory cgroups", count(number)),
        proofs: Proofs {
            identity: match walks {
                Some(true) => Proof::shown("on this kernel a read of these statistics walks all of them"),
                _ => Proof::not_seen("whether a read walks them depends on the kernel"),
            },
            order: Proof::shown("they were there before the read"),
            size: Proof::shown(effect.title.clone()),
        },
        evidence: effect.facts_about(&["time to read", "CPU time of that"]),
    })
}
