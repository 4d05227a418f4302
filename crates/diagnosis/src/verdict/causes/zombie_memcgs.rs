//! Dead cgroups whose maker is unknown or gone.

use super::{Cause, Root};
use crate::case::Case;
use crate::code::Code;
use crate::finding::Finding;
use crate::verdict::{Proof, Proofs, risk};
use crate::zombies::Growth;

pub const CAUSE: Cause = Cause { codes: &[Code::ZombieMemcgs], judge };

fn judge(case: &Case<'_>, finding: &Finding) -> Option<Root> {
    let report = case.zombies();
    let maker = finding.ties.culprits.first();
    let place = &finding.subject.name;
    let named = report.is_some_and(|report| report.scan.method.is_bpf());
    Some(Root {
        because: match maker {
            Some(maker) => {
                format!("{} makes and removes cgroups, but leftover memory keeps them from being freed", maker.name())
            }
            None if place.starts_with('/') => {
                format!("cgroups below {place} were removed, but leftover memory keeps them from being freed")
            }
            None => "cgroups were removed, but leftover memory keeps them from being freed".to_owned(),
        },
        proofs: Proofs {
            identity: match named {
                true => Proof::shown("their names were read"),
                false => Proof::not_seen("whose they were: their names could not be read"),
            },
            order: match (maker, crate::zombies::growth::growth(case.evidence)) {
                (Some(maker), _) => Proof::shown(format!("{} was seen making them", maker.comm)),
                (None, Growth::Steady { .. }) => {
                    Proof::shown("they were there before, and their number did not grow while watching")
                }
                (None, _) => Proof::not_seen("who makes them"),
            },
            size: Proof::shown(finding.title.clone()),
        },
        remedy: finding.remedy.clone(),
        not_fixed: "Dropping caches frees nothing that is locked, mapped or in tmpfs. A reboot frees them all, but \
                    they come back as long as something makes them."
            .to_owned(),
        risk: risk::when_zombies_hurt(case, None),
    })
}
