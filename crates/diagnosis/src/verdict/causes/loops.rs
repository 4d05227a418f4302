//! A unit or container that keeps dying and being restarted.

use super::{Cause, Root};
use crate::case::Case;
use crate::code::Code;
use crate::finding::{Finding, SubjectKind};
use crate::rules::agent_unused::what_to_do;
use crate::rules::zombie_memcgs::named::how_they_go;
use crate::verdict::{Proof, Proofs, risk};

pub const CAUSE: Cause = Cause { codes: &[Code::UnitCrashloop, Code::UnitChurn, Code::ContainerCrashloop], judge };

fn judge(case: &Case<'_>, finding: &Finding) -> Option<Root> {
    let name = &finding.subject.name;
    let cost = case.unit_costs().get(name);
    let dead = cost.and_then(|cost| cost.zombies).filter(|dead| *dead > 0);
    let unused = case.findings_of(Code::AgentUnused).find(|agent| agent.ties.common_unit(&finding.ties).is_some());
    // A supervisor stays up: what it starts dies.
    let is_churn = finding.code == Code::UnitChurn;
    let mut because = match is_churn {
        true => format!("what {name} starts keeps dying and being replaced"),
        false => format!("{name} keeps dying and being restarted"),
    };
    if unused.is_some() {
        because.push_str("; it seems to have no work here");
    }
    let remedy = match unused {
        // `not_fixed` says what it leaves behind.
        Some(unused) => {
            let unit = unused.ties.common_unit(&finding.ties);
            unit.and_then(|unit| what_to_do(case.evidence, unit)).unwrap_or_else(|| unused.remedy.clone())
        }
        None => finding.remedy.clone(),
    };
    // A few dead cgroups are normal: only those that are a problem are worth a warning.
    let is_leak = case.findings_of(Code::ZombieMemcgs).next().is_some();
    let not_fixed = match dead.filter(|_| is_leak) {
        Some(_) => {
            let how = case.zombies().and_then(how_they_go);
            let how = how
                .unwrap_or_else(|| "Dead cgroups stay until what keeps them is freed, or until a reboot.".to_owned());
            format!("Stopping it stops the growth but frees nothing. {how}")
        }
        None if finding.subject.kind == SubjectKind::Unit => "Why it fails: see its log.".to_owned(),
        None => "Why it fails: see its log. The runtime will keep restarting it.".to_owned(),
    };
    Some(Root {
        because,
        proofs: Proofs {
            identity: Proof::shown(match is_churn {
                true => format!("{name} starts all of it"),
                false => format!("{name} itself restarts"),
            }),
            order: Proof::shown("the starts were counted"),
            size: Proof::shown(finding.title.clone()),
        },
        remedy,
        not_fixed,
        risk: dead.and_then(|_| risk::when_zombies_hurt(case)),
    })
}
