//! Dead cgroups whose maker is unknown or gone.

use super::{Cause, Root};
use crate::case::Case;
use crate::code::Code;
use crate::finding::Finding;
use crate::verdict::{Proof, Proofs, risk};
use crate::words::{count, list, percent};
use crate::zombies::growth::growth;
use crate::zombies::{Growth, MakerShare};

pub const CAUSE: Cause = Cause { codes: &[Code::ZombieMemcgs], judge };

/// From this share on, those whose maker was seen explain them all.
const MOST: f64 = 0.5;

fn judge(case: &Case<'_>, finding: &Finding) -> Option<Root> {
    let judged = case.judged_zombies()?;
    let (dead, _) = judged.dead_and_live();
    let leakers = judged.leakers(case.evidence);
    let place = &finding.subject.name;
    let named = judged.report.as_ref().is_some_and(|report| report.scan.method.is_bpf());
    let followed = leakers.iter().all(|share| share.left.is_some());
    let left = leakers.iter().fold(0u64, |sum, share| sum.saturating_add(share.left.unwrap_or(0)));
    Some(Root {
        because: match &leakers[..] {
            [] if place.starts_with('/') => {
                format!("cgroups below {place} were removed, but leftover memory keeps them from being freed")
            }
            [] => "cgroups were removed, but leftover memory keeps them from being freed".to_owned(),
            leakers => {
                let verb = if leakers.len() == 1 { "makes and removes" } else { "make and remove" };
                let names: Vec<String> = leakers.iter().map(|share| with_share(share, left)).collect();
                format!(
                    "{} {verb} cgroups, but leftover memory keeps them from being freed",
                    list(&names, LEAKERS_NAMED)
                )
            }
        },
        proofs: Proofs {
            identity: match (named, leakers.is_empty()) {
                (_, false) if followed => Proof::shown(format!(
                    "the {} that {} made while watching are among the dead, by id",
                    count(left),
                    if leakers.len() == 1 { "it" } else { "they" }
                )),
                (true, _) => Proof::shown("their names were read"),
                (false, _) => Proof::not_seen("whose they were: their names could not be read"),
            },
            order: match (&leakers[..], growth(case.evidence)) {
                ([first, ..], _) => {
                    Proof::shown(format!("{} was seen making them", first.maker.as_ref().map_or("it", |m| &m.comm)))
                }
                ([], Growth::Steady { .. }) => {
                    Proof::shown("they were there before, and their number did not grow while watching")
                }
                ([], _) => Proof::not_seen("who makes them"),
            },
            size: match leakers.is_empty() {
                true => Proof::shown(finding.title.clone()),
                false if !followed => Proof::not_seen(format!("how many of the {} it made", count(dead))),
                false if left as f64 >= MOST * dead as f64 => {
                    Proof::shown(format!("{} of the {} dead were made while watching", count(left), count(dead)))
                }
                false => Proof::not_seen(format!(
                    "who made the {} that were there before watching: only {} of the {} came since, though the names are alike",
                    count(dead.saturating_sub(left)),
                    count(left),
                    count(dead)
                )),
            },
        },
        remedy: finding.remedy.clone(),
        not_fixed: "Dropping caches frees nothing that is locked, mapped or in tmpfs. A reboot frees them all, but \
                    they come back as long as something makes them."
            .to_owned(),
        risk: risk::when_zombies_hurt(case),
    })
}

/// How many are named in one line.
const LEAKERS_NAMED: usize = 3;

/// `leak-a[70] (52 %)`
fn with_share(share: &MakerShare, all: u64) -> String {
    let name = share.maker.as_ref().map_or_else(|| share.name(), |maker| format!("{}[{}]", maker.comm, maker.pid));
    match share.left {
        Some(left) if left < all => format!("{name} ({})", percent(left as f64 / all as f64)),
        _ => name,
    }
}
