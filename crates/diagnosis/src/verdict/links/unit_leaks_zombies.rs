//! What keeps restarting leaves a dead cgroup each time.

use super::{LinkRule, Linked};
use crate::case::Case;
use crate::code::Code;
use crate::finding::{Fact, FactKey, Finding, SubjectKind};
use crate::verdict::{Proof, Proofs};
use crate::words::{count, duration_words, percent};
use crate::zombies::Growth;
use crate::zombies::growth::RateFrom;
use coroner_evidence::CgroupOwner;

/// With fewer, or a smaller share of all, somebody else is to blame.
const A_FEW: u64 = 20;
const PART: f64 = 1.0 / 3.0;
/// A loop leaves at most one per start; some are freed at once.
const AS_MANY: f64 = 0.5;
/// From this share on, it explains them all.
const MOST: f64 = 0.5;

pub const LINK: LinkRule = LinkRule {
    from: &[Code::UnitCrashloop, Code::UnitChurn, Code::ContainerCrashloop],
    to: &[Code::ZombieMemcgs],
    examine,
};

/// What one unit or pod left behind.
struct Left {
    /// `None` if the names of the dead are unknown.
    own: Option<u64>,
    /// Current growth, not the average since boot.
    per_hour: Option<f64>,
    /// The rate was watched; otherwise it comes from birth times, many of which may coincide.
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
    let mut evidence = vec![Fact::new(FactKey::DeadOf, own, "names of dead cgroups").of(unit)];
    if let Some(per_hour) = per_hour.filter(|_| left.watched) {
        evidence.push(Fact::new(FactKey::DeadMemcgsPerHour, per_hour.round() as u64, "names of dead cgroups"));
    }
    evidence.extend(cause.facts(&[
        FactKey::Restarts,
        FactKey::RestartsPerHour,
        FactKey::RestartsMeanwhile,
        FactKey::ChurnPerHour,
    ]));
    Some(Linked {
        because: format!("it left {} of the {} dead cgroups", count(own), count(dead)),
        proofs: Proofs {
            identity: Proof::shown(format!("they have the path of {unit}, or its processes made them")),
            order: match per_hour {
                Some(_) => Proof::shown("their number grows while it restarts"),
                None => Proof::not_seen("that their number grows while it restarts"),
            },
            size: match part >= MOST {
                true => Proof::shown(format!("it left {} of all dead cgroups", percent(part))),
                false => Proof::not_seen(format!("it left only {} of all dead cgroups", percent(part))),
            },
        },
        evidence,
    })
}

/// Whose they are is unknown; at least their growth must keep up with the restarts.
fn without_names(case: &Case<'_>, cause: &Finding) -> Option<Linked> {
    let restarts = cause.number(FactKey::RestartsPerHour)?;
    let size = match crate::zombies::growth::growth(case.evidence) {
        Growth::Growing { by, over } => {
            let growth = by as f64 * 3600.0 / over.as_secs_f64().max(1.0);
            if growth < AS_MANY * restarts {
                return None;
            }
            Proof::shown(format!("{} more in {}, at least one per two restarts", count(by), duration_words(over)))
        }
        // It keeps restarting, and their number does not grow.
        Growth::Steady { .. } => return None,
        Growth::TooShort => Proof::not_seen("whether their number grows: not watched for long enough"),
    };
    Some(Linked {
        because: format!("{} keeps restarting, and each start makes a cgroup", cause.subject.name),
        proofs: Proofs {
            identity: Proof::not_seen("whose they were: the names of dead cgroups could not be read"),
            order: Proof::not_seen("when they died"),
            size,
        },
        evidence: Vec::new(),
    })
}
