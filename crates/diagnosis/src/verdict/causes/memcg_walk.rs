//! A thread makes the kernel walk all memory cgroups, most of them live: the walker itself is the cause.

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
                "{}{} makes the kernel walk all memory cgroups over and over",
                walker.name(),
                case.home_of(walker.pid)
            ),
            Proofs {
                identity: Proof::shown(format!("{} was sampled in the walk", walker.name())),
                order: Proof::shown("cause and effect were measured together"),
                size: match live {
                    Some(live) => Proof::shown(format!("{} live memory cgroups to walk", count(live))),
                    None => Proof::not_seen("how many cgroups there are"),
                },
            },
            "It keeps walking until its owner changes what it reads or how often.",
        ))
    },
};
