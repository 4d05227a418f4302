//! When reclaim frees too little, the kernel kills.

use super::{LinkRule, Linked, while_both};
use crate::case::Case;
use crate::cgroup_paths::is_same_or_below;
use crate::code::Code;
use crate::finding::Finding;
use crate::verdict::{Proof, Proofs};

pub const LINK: LinkRule = LinkRule { from: &[Code::MemoryReclaim], to: &[Code::OomKill], examine };

fn examine(_: &Case<'_>, cause: &Finding, effect: &Finding) -> Option<Linked> {
    let identity = match (cause.ties.cgroups.first(), effect.ties.cgroups.first()) {
        (Some(limited), Some(killed)) if is_same_or_below(killed, limited) => {
            Proof::shown(format!("both are about {limited}"))
        }
        // The node's own reclaim and the node's own kill.
        (None, None) => Proof::shown("both are about the whole node"),
        _ => return None,
    };
    Some(Linked {
        because: "memory ran out despite reclaim".to_owned(),
        proofs: Proofs {
            identity,
            order: while_both(cause, effect)?,
            size: Proof::not_seen("how full memory was at the time of the kill"),
        },
        evidence: Vec::new(),
    })
}
