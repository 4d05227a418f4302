//! What starts again and again leaves a dead cgroup each time.

use super::{LinkRule, Linked};
use crate::case::Case;
use crate::code::Code;
use crate::finding::{Fact, FactKey, Finding, SubjectKind};
use crate::verdict::{Proof, Proofs};
use crate::words::{count, duration_words, percent};
use crate::zombies::Growth;
use crate::zombies::growth::RateFrom;
use coroner_evidence::CgroupOwner;

/// With so few, or so small a part of all, somebody else is to blame for what there is.
const A_FEW: u64 = 20;
const PART: f64 = 1.0 / 3.0;
/// A loop that leaves one with each start, and only that, makes as many as it starts; some are freed at once.
const AS_MANY: f64 = 0.5;
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
    /// How many more of them now, as opposed to an average since boot.
    per_hour: Option<f64>,
    /// That rate was watched; else it is by their births, many of which may have been at once.
    watched: bool,
}

fn examine(case: &Case<'_>, cause: &Finding, _: &Finding) -> Option<Linked> {
    let (dead, _) = case.memcgs()?;
    let left = match cause.subject.kind {
        SubjectKind::Unit => {
            let cost = case.unit_costs().get(&cause.subject.name)?;
            let from = cost.zombies_rate_from;
            let is_now = from != Some("since-boot");
            let per_hour = cost.zombies_per_hour.filter(|_| is_now);
            Left { own: cost.zombies, per_hour, watched: from == Some("watched") }
        }
        _ => of_pod(case, cause.ties.pods.first()?),
    };
    examine_left(case, &left, cause, dead)
}

fn of_pod(case: &Case<'_>, uid: &str) -> Left {
    let named = case.zombies().filter(|report| report.scan.method.is_bpf());
    let is_its = |path: &str| CgroupOwner::of_path(path).pod_uid.as_deref() == Some(uid);
    let rate = case.zombies().and_then(|report| {
        let group = report.groups.iter().find(|group| group.pod_uid.as_deref() == Some(uid))?;
        group.per_hour
    });
    Left {
        own: named.map(|report| report.scan.zombies.iter().filter(|zombie| is_its(&zombie.path)).count() as u64),
        per_hour: rate.filter(|rate| !matches!(rate.from, RateFrom::SinceBoot { .. })).map(|rate| rate.value),
        watched: rate.is_some_and(|rate| matches!(rate.from, RateFrom::Watched { .. })),
    }
}

fn examine_left(case: &Case<'_>, left: &Left, cause: &Finding, dead: u64) -> Option<Linked> {
    let unit = &cause.subject.name;
    let Some(own) = left.own else { return without_names(case, cause) };
    let part = own as f64 / dead.max(1) as f64;
    if own < A_FEW || part < PART {
        return None;
    }
    let per_hour = left.per_hour.filter(|per_hour| *per_hour > 0.0);
    let mut evidence = vec![Fact::new(FactKey::DeadOf, own, "names of the dead").of(unit)];
    if let Some(per_hour) = per_hour.filter(|_| left.watched) {
        evidence.push(Fact::new(FactKey::DeadMemcgsPerHour, per_hour.round() as u64, "names of the dead"));
    }
    evidence.extend(cause.facts(&[
        FactKey::Restarts,
        FactKey::RestartsPerHour,
        FactKey::RestartsMeanwhile,
        FactKey::ChurnPerHour,
    ]));
    Some(Linked {
        because: format!("{} of the {} dead cgroups are its own", count(own), count(dead)),
        proofs: Proofs {
            identity: Proof::shown(format!("the dead have the path of {unit}, or its processes made them")),
            order: match per_hour {
                Some(_) => Proof::shown("they become more while it restarts"),
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

/// Whose they are is not known: then at least they become more about as often as it starts.
fn without_names(case: &Case<'_>, cause: &Finding) -> Option<Linked> {
    let restarts = cause.number(FactKey::RestartsPerHour)?;
    let size = match crate::zombies::growth::growth(case.evidence) {
        Growth::Growing { by, over } => {
            let growth = by as f64 * 3600.0 / over.as_secs_f64().max(1.0);
            if growth < AS_MANY * restarts {
                return None;
            }
            Proof::shown(format!("{} more in {}, about as many as it started", count(by), duration_words(over)))
        }
        // It starts again and again, and they become no more.
        Growth::Steady { .. } => return None,
        Growth::TooShort => Proof::not_seen("whether they become more was not watched for long enough"),
    };
    Some(Linked {
        because: format!("{} starts again and again, and each start makes a cgroup", cause.subject.name),
        proofs: Proofs {
            identity: Proof::not_seen("whose the dead cgroups were could not be read: their names are needed"),
            order: Proof::not_seen("when they died is not known"),
            size,
        },
        evidence: Vec::new(),
    })
}
