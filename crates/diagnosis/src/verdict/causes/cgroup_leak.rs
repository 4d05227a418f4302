//! Somebody makes cgroups and does not remove them.

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
                None => format!("cgroups below {place} are made and not removed; who makes them was not seen"),
            },
            Proofs {
                identity: Proof::shown(format!("they all lie below {place}")),
                order: match maker {
                    Some(maker) => Proof::shown(format!("{} was seen making them", maker.name())),
                    None => Proof::not_seen("none was made while we watched"),
                },
                size: Proof::shown(finding.title.clone()),
            },
            "Removing the empty ones does not stop who makes them.",
        ))
    },
};
