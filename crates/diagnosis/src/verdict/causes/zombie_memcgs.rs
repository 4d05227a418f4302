//! Dead cgroups whose maker is not known, or no longer there.

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
                format!("{} makes and removes cgroups, and memory that they leave keeps them", maker.name())
            }
            None if place.starts_with('/') => {
                format!("cgroups below {place} were removed, and memory that they left keeps them")
            }
            None => "cgroups were removed, and memory that they left keeps them".to_owned(),
        },
        proofs: Proofs {
            identity: match named {
                true => Proof::shown("their names were read"),
                false => Proof::not_seen("their names could not be read"),
            },
            order: match (maker, crate::zombies::growth::growth(case.evidence)) {
                (Some(maker), _) => Proof::shown(format!("{} was seen making them", maker.comm)),
                (None, Growth::Steady { .. }) => {
                    Proof::shown("they were there before, and did not become more while we watched")
                }
                (None, _) => Proof::not_seen("who makes them was not seen"),
            },
            size: Proof::shown(finding.title.clone()),
        },
        remedy: finding.remedy.clone(),
        not_fixed: "Dropping caches frees nothing that is locked, mapped or in tmpfs. A reboot frees all, and they come again as \
                    long as somebody makes them."
            .to_owned(),
        risk: risk::when_zombies_hurt(case, None),
    })
}
