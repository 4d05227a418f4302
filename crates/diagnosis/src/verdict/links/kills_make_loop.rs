//! A unit that the OOM killer keeps killing keeps being restarted.

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
        because: format!("{} dies when the OOM killer kills in {killed}", unit.name),
        proofs: Proofs {
            identity: Proof::shown(format!("the kills were in {killed}, which belongs to {}", unit.name)),
            order: Proof::not_seen("whether each restart followed a kill"),
            size: match unit.result.as_deref() {
                Some("oom-kill") => Proof::shown("systemd reports the result oom-kill"),
                _ => Proof::not_seen("systemd does not report the result oom-kill"),
            },
        },
        evidence: Vec::new(),
    })
}
