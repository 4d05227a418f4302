//! Something makes cgroups and does not remove them.

use super::{Cause, Root};
use crate::code::Code;
use crate::verdict::{Proof, Proofs};

pub const CAUSE: Cause = Cause {
    codes: &[Code::CgroupLeak],
    judge: |_, finding| {
        let maker = finding.ties.culprits.first();
        let place = &finding.subject.name;
        Some(Root::of(
            finding,
            match maker {
                Some(maker) => format!("{} makes cgroups below {place} and does not remove them", maker.name()),
                None => format!("something that was not seen makes cgroups below {place} and does not remove them"),
            },
            Proofs {
                identity: Proof::shown(format!("they are all below {place}")),
                order: match maker {
                    Some(maker) => Proof::shown(format!("{} was seen making them", maker.name())),
                    None => Proof::not_seen("who makes them: none was made while watching"),
                },
                size: Proof::shown(finding.title.clone()),
            },
            "Removing the empty ones does not stop whatever makes them.",
        ))
    },
};
