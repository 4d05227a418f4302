//! A unit that is killed for want of memory again and again is restarted again and again.

use super::{LinkRule, Linked};
use crate::case::Case;
use crate::cgroup_paths::is_same_or_below;
use crate::code::Code;
use crate::finding::Finding;
use crate::verdict::{Proof, Proofs};

pub const LINK: LinkRule = LinkRule { from: &[Code::OomKill], to: &[Code::UnitCrashloop], examine };

fn examine(case: &Case<'_>, cause: &Finding, effect: &Finding) -> Option<Linked> {
    let of_unit = effect.ties.cgroups.first()?;
    let killed = cause.ties.cgroups.iter().find(|killed| is_same_or_below(killed, of_unit))?;
    let unit = case.evidence.units.iter().rev().find(|unit| unit.name == effect.subject.name)?;
    Some(Linked {
        because: format!("{} dies when the kernel kills in {killed}", unit.name),
        proofs: Proofs {
            identity: Proof::shown(format!("the kills are in {killed}, the cgroup of {}", unit.name)),
            order: Proof::not_seen("each restart was not compared with each kill"),
            size: match unit.result.as_deref() {
                Some("oom-kill") => Proof::shown("systemd says that it ended by an OOM kill"),
                _ => Proof::not_seen("systemd does not say that it ended by an OOM kill"),
            },
        },
        evidence: Vec::new(),
    })
}
