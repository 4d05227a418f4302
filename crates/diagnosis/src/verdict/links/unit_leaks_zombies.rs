//! What keeps restarting leaves a dead cgroup each time.

use super::{LinkRule, Linked};
use crate::case::Case;
use crate::code::Code;
use crate::finding::{Fact, FactKey, Finding, SubjectKind};
use crate::units::paths::UnitPaths;
use crate::verdict::{Proof, Proofs};
use crate::words::{count, duration_words, percent};
use crate::zombies::growth::{RateFrom, growth};
use crate::zombies::{Growth, MakerShare};
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
    /// How many it can have left: those it made while watched that stay, or its restarts, whichever is more.
    explained: u64,
}

fn examine(case: &Case<'_>, cause: &Finding, _: &Finding) -> Option<Linked> {
    let judged = case.judged_zombies()?;
    let (dead, _) = judged.dead_and_live();
    let left = match cause.subject.kind {
        SubjectKind::Unit => {
            let cost = case.unit_costs().get(&cause.subject.name)?;
            let from = cost.zombies_rate_from;
            let is_now = from != Some("since-boot");
            let per_hour = cost.zombies_per_hour.filter(|_| is_now);
            // Units report those there are now.
            let own = match judged.is_over() {
                true => at_the_worst_time(case, &cause.subject.name),
                false => cost.zombies,
            };
            let explained = made_by_unit(case, &cause.subject.name).max(restarts(cause));
            Left { own, per_hour, watched: from == Some("watched"), explained }
        }
        _ => of_pod(case, cause.ties.pods.first()?, restarts(cause)),
    };
    examine_left(case, &left, cause, dead)
}

/// How often it was started, as far as that was counted.
fn restarts(cause: &Finding) -> u64 {
    let counted = [FactKey::Restarts, FactKey::AutomaticRestarts, FactKey::CgroupsMade, FactKey::CgroupsRemoved];
    counted.into_iter().filter_map(|key| cause.number(key)).fold(0.0, f64::max) as u64
}

/// Those of a unit in the scan that is judged; `None` if it names nobody.
fn at_the_worst_time(case: &Case<'_>, unit: &str) -> Option<u64> {
    let scan = case.zombies()?.scan;
    let paths = UnitPaths::of(case.evidence);
    let is_its = |path: &str| paths.unit_of(path).as_deref() == Some(unit);
    (!scan.zombies.is_empty()).then(|| scan.zombies.iter().filter(|zombie| is_its(&zombie.path)).count() as u64)
}

/// The dead that were made while watching, for this unit or by its processes.
fn made_by_unit(case: &Case<'_>, unit: &str) -> u64 {
    let Some(report) = case.zombies() else { return 0 };
    let is_its = |share: &&MakerShare| {
        share.made_unit.as_deref() == Some(unit) || share.made_unit.is_none() && share.unit.as_deref() == Some(unit)
    };
    report.makers.iter().filter(is_its).fold(0, |sum, share| sum.saturating_add(share.left.unwrap_or(0)))
}

fn of_pod(case: &Case<'_>, uid: &str, explained: u64) -> Left {
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
        explained,
    }
}

fn examine_left(case: &Case<'_>, left: &Left, cause: &Finding, dead: u64) -> Option<Linked> {
    let unit = &cause.subject.name;
    let Some(own) = left.own else { return without_names(case, cause) };
    let part = own as f64 / dead.max(1) as f64;
    if own < A_FEW || part < PART {
        return None;
    }
    // Births of the last hour show no growth: all may have been in its first minute.
    let per_hour = left.per_hour.filter(|per_hour| *per_hour > 0.0 && left.watched);
    let explained = left.explained.min(own);
    let mut evidence = vec![Fact::new(FactKey::DeadOf, own, "names of dead cgroups").of(unit)];
    if let Some(per_hour) = per_hour {
        evidence.push(Fact::new(FactKey::DeadMemcgsPerHour, per_hour.round() as u64, "names of dead cgroups"));
    }
    evidence.extend(cause.facts(&[
        FactKey::Restarts,
        FactKey::RestartsPerHour,
        FactKey::RestartsMeanwhile,
        FactKey::ChurnPerHour,
    ]));
    Some(Linked {
        because: match explained < own {
            true => format!("{} of the {} dead cgroups have its path", count(own), count(dead)),
            false => format!("it left {} of the {} dead cgroups", count(own), count(dead)),
        },
        proofs: Proofs {
            identity: Proof::shown(format!("they have the path of {unit}, or its processes made them")),
            order: match per_hour.is_some() || matches!(growth(case.evidence), Growth::Growing { .. }) {
                true => Proof::shown("their number grows while it restarts"),
                false => Proof::not_seen("that their number grows while it restarts"),
            },
            size: match part >= MOST {
                // Each start leaves at most one.
                _ if (explained as f64) < MOST * dead as f64 && explained < own => Proof::not_seen(format!(
                    "where most come from: {} can be its own, one per start that was counted; {} were there before",
                    count(explained),
                    count(dead.saturating_sub(explained))
                )),
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
    let size = match growth(case.evidence) {
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
