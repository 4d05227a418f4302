//! Somebody makes the kernel walk all memory cgroups, and most of them live: the walker itself is the cause.

use super::{Cause, Root};
use crate::code::Code;
use crate::verdict::{Proof, Proofs};
use crate::words::count;

pub const CAUSE: Cause = Cause {
    codes: &[Code::MemcgWalk],
    judge: |case, finding| {
        let walker = finding.ties.culprits.first()?;
        let live = case.memcgs().map(|(_, live)| live);
        Some(Root::of(
            finding,
            format!(
                "{}{} makes the kernel go through all memory cgroups again and again",
                walker.name(),
                case.home_of(walker.pid)
            ),
            Proofs {
                identity: Proof::shown(format!("{} was sampled in the walk", walker.name())),
                order: Proof::shown("cause and effect were measured together"),
                size: match live {
                    Some(live) => Proof::shown(format!("{} live memory cgroups to go through", count(live))),
                    None => Proof::not_seen("how many cgroups there are is not known"),
                },
            },
            "It walks as long as it is told to: see what it reads, and how often.",
        ))
    },
};
