//! What starts again and again leaves a dead cgroup each time.

use super::{LinkRule, Linked};
use crate::code::Code;
use crate::finding::{Fact, Finding, SubjectKind};
use crate::verdict::{Case, Proof, Proofs};
use crate::words::{count, percent, rate};
use coroner_evidence::CgroupOwner;
use std::time::Duration;

/// With so few, and so small a part of all, somebody else is to blame.
const A_FEW: u64 = 20;
const PART: f64 = 0.1;
/// Most of them are its own: it explains the whole.
const MOST: f64 = 0.5;

pub const LINK: LinkRule = LinkRule {
    from: &[Code::UnitCrashloop, Code::UnitChurn, Code::ContainerCrashloop],
    to: &[Code::ZombieMemcgs],
    examine,
};

/// What one unit or pod left behind.
struct Left {
    /// `None` if the dead have no names here.
    own: Option<u64>,
    per_hour: Option<f64>,
}

fn examine(case: &Case<'_>, cause: &Finding, _: &Finding) -> Option<Linked> {
    let (dead, _) = case.memcgs?;
    let left = match cause.subject.kind {
        SubjectKind::Unit => {
            let cost = case.unit_costs.get(&cause.subject.name)?;
            Left { own: cost.zombies, per_hour: cost.zombies_per_hour }
        }
        _ => of_pod(case, cause.ties.pods.first()?),
    };
    examine_left(&left, cause, dead)
}

fn of_pod(case: &Case<'_>, uid: &str) -> Left {
    let named = case.zombies.as_ref().filter(|report| report.scan.method.is_bpf());
    let is_its = |path: &str| CgroupOwner::of_path(path).pod_uid.as_deref() == Some(uid);
    Left {
        own: named.map(|report| report.scan.zombies.iter().filter(|zombie| is_its(&zombie.path)).count() as u64),
        per_hour: case.zombies.as_ref().and_then(|report| {
            let group = report.groups.iter().find(|group| group.pod_uid.as_deref() == Some(uid))?;
            Some(group.per_hour?.value)
        }),
    }
}

fn examine_left(left: &Left, cause: &Finding, dead: u64) -> Option<Linked> {
    let unit = &cause.subject.name;
    let Some(own) = left.own else {
        return Some(Linked {
            because: format!("{unit} starts again and again, and each start makes a cgroup"),
            proofs: Proofs {
                identity: Proof::not_seen("whose the dead cgroups were could not be read: their names are needed"),
                order: Proof::not_seen("when they died is not known"),
                size: Proof::not_seen("how many of them are its own is not known"),
            },
            evidence: Vec::new(),
        });
    };
    let part = own as f64 / dead.max(1) as f64;
    if own < A_FEW && part < PART {
        return None;
    }
    let per_hour = left.per_hour.filter(|per_hour| *per_hour > 0.0);
    let mut evidence = vec![Fact::new(format!("dead cgroups of {unit}"), own, "", "names of the dead")];
    if let Some(per_hour) = per_hour {
        evidence.push(Fact::new("more of them", per_hour.round() as u64, "/h", "names of the dead"));
    }
    evidence.extend(cause.facts_about(&["restarts", "per hour"]));
    Some(Linked {
        because: format!("{} of the {} dead cgroups are its own: one is left with each start", count(own), count(dead)),
        proofs: Proofs {
            identity: Proof::shown(format!("the dead have the path of {unit}, or its processes made them")),
            order: match per_hour {
                Some(per_hour) => Proof::shown(format!(
                    "they become more as it restarts: {}",
                    rate(per_hour, Duration::from_secs(3600))
                )),
                None => Proof::not_seen("they did not become more while we watched"),
            },
            size: match part >= MOST {
                true => Proof::shown(format!("{} of all dead ones are its own", percent(part))),
                false => Proof::not_seen(format!("only {} of all dead ones are its own", percent(part))),
            },
        },
        evidence,
    })
}
