//! Does somebody starve because others weigh far more?
//!
//! The fair scheduler divides a core by weight: cpu.shares (v1) or cpu.weight (v2) of cgroups, nice within one. A weight of 2 against 1024
//! is a five-hundredth of the core, however urgent the work.

use crate::case::Case;
use crate::cgroup_paths::cgroup_name;
use crate::code::Code;
use crate::cores::words::span;
use crate::finding::{Answer, Fact, FactKey, Finding, Severity, Subject, SubjectKind};
use crate::ties::Ties;
use crate::units::paths::{operand, shell_word};
use crate::waits::cited::{
    checked, cores_text, facts, got, losses_where, takers_text, task, ties, victim_names, victims_text,
};
use crate::waits::losses::{Kind, Loss};
use crate::waits::precedence::{Precedence, Weighed};
use coroner_evidence::{CgroupMount, CgroupOwner};

pub fn examine(case: &Case<'_>) -> Answer {
    match losses_where(case, |loss| loss.kind == Kind::Weight) {
        Err(cannot_tell) => cannot_tell,
        Ok(losses) if losses.is_empty() => {
            checked(case, "none lost two thirds of the CPU time it asked for to a heavier cgroup or a lower nice value")
        }
        Ok(losses) => Answer::Findings(losses.into_iter().map(|loss| finding(case, loss)).collect()),
    }
}

pub fn finding(case: &Case<'_>, loss: &Loss) -> Finding {
    let takers = takers_text(case, loss);
    let weigh = if loss.takers.len() == 1 { "weighs" } else { "weigh" };
    let weighed = loss.takers.iter().find_map(|taker| match &taker.why {
        Precedence::CgroupWeight { runner, victim } => Some((runner, victim)),
        _ => None,
    });
    let mut evidence = facts(loss);
    let (why, subject) = match weighed {
        Some((runner, victim)) => {
            for side in [runner, victim] {
                let name = side.path.as_deref().unwrap_or("a thread outside of both");
                evidence.push(Fact::new(FactKey::WeightOf, side.weight, "cpu.shares or cpu.weight").of(name));
            }
            let why = format!(
                "{} weighs {} against {} of {}.",
                side_name(runner),
                runner.weight,
                victim.weight,
                side_name(victim)
            );
            (why, victim.path.as_deref().map(|path| Subject::new(SubjectKind::Cgroup, path)))
        }
        None => ("It has a lower nice value, which weighs more.".to_owned(), None),
    };
    let process = || loss.victims.first().map(|v| Subject::process(task(&v.actor, &v.party)));
    Finding {
        code: Code::UnfairWeight,
        severity: Severity::Warning,
        subject: subject.or_else(process).unwrap_or_else(|| Subject::new(SubjectKind::Node, "cpu")),
        title: format!(
            "{} got {} of the CPU time it asked for: {takers} {weigh} far more on {}",
            victim_names(loss),
            got(loss),
            cores_text(loss)
        ),
        detail: format!(
            "{} (for {}). {takers} ran meanwhile. {why}",
            victims_text(case, loss),
            span(loss.when.length().as_nanos() as u64)
        ),
        evidence,
        remedy: remedy(case, loss, weighed),
        ties: Ties {
            cgroups: weighed.and_then(|(_, victim)| victim.path.clone()).into_iter().collect(),
            ..ties(case, loss)
        },
    }
}

fn side_name(side: &Weighed) -> String {
    side.path.as_deref().map_or_else(|| "a thread outside of it".to_owned(), cgroup_name)
}

fn remedy(case: &Case<'_>, loss: &Loss, weighed: Option<(&Weighed, &Weighed)>) -> String {
    let raise = weighed.and_then(|(runner, victim)| raise(case, victim.path.as_deref()?, runner.weight));
    match (raise, loss.takers.first()) {
        (Some(raise), _) => raise,
        (None, Some(taker)) => {
            let culprit = task(&taker.actor, &taker.party);
            format!(
                "Reset the nice value of {}: `renice -n 0 -p {}`. Change it where it is started, or it comes back.",
                culprit.name(),
                culprit.pid
            )
        }
        (None, None) => String::new(),
    }
}

/// The command that gives the victim's cgroup the weight of the others.
fn raise(case: &Case<'_>, path: &str, weight: u64) -> Option<String> {
    let owner = CgroupOwner::of_path(path);
    let mount = case.evidence.cgroup_mounts.iter().rev().find(|mount| mount.has("cpu"))?;
    if owner.pod_uid.is_some() {
        return Some("Raise resources.requests.cpu in the pod spec: it sets the weight.".to_owned());
    }
    if let Some(unit) = owner.unit.filter(|_| owner.container_id.is_none()) {
        return Some(format!(
            "Raise CPUWeight= of {unit}: `systemctl set-property {} CPUWeight=100` (100 is the default).",
            operand(&unit)
        ));
    }
    let file = weight_file(mount, path)?;
    let word = shell_word(&file);
    (!word.contains('`')).then(|| {
        format!(
            "Raise the weight of {}: `echo {weight} > {word}`. Change it where it is set, or it comes back.",
            cgroup_name(path)
        )
    })
}

fn weight_file(mount: &CgroupMount, path: &str) -> Option<String> {
    let below = path.strip_prefix(mount.root.trim_end_matches('/'))?;
    let file = if mount.version == 1 { "cpu.shares" } else { "cpu.weight" };
    Some(format!("{}{below}/{file}", mount.mount_point.trim_end_matches('/')))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::test_evidence::{cannot_tell, fact, fact_of, fine, one};
    use crate::waits::test_ledger::Book;
    use coroner_evidence::{CgroupWeight, Evidence};

    /// A job with this weight beside two hogs with 1024; it runs and waits this many ms of each second.
    fn light_job(weight: u64, ran_ms: u64, waited_ms: u64) -> Evidence {
        let mut book = Book::new(2, 5);
        let job = book.process(100, "job").in_cgroup("/light");
        let hogs = [200, 201].map(|pid| book.process(pid, "hog").in_cgroup("/heavy"));
        book.each_second(&job, ran_ms, waited_ms);
        for hog in &hogs {
            book.each_second(hog, 990, 0).charge(&job, hog, 1, waited_ms / 2);
        }
        let mut evidence = book.evidence(1.0);
        let weights = [("/light", weight), ("/heavy", 1024)];
        for ledger in &mut evidence.waits {
            ledger.weights = weights.map(|(path, weight)| CgroupWeight { path: path.into(), weight }).to_vec();
        }
        evidence.cgroup_mounts = vec![CgroupMount {
            version: 1,
            controllers: vec!["cpu".into()],
            mount_point: "/sys/fs/cgroup/cpu".into(),
            root: "/".into(),
        }];
        evidence
    }

    #[test]
    fn a_light_cgroup_that_starves_is_named_with_who_weighs_more() {
        let f = one(examine(&Case::of(&light_job(2, 6, 990))));
        assert_eq!((f.severity, &f.subject), (Severity::Warning, &Subject::new(SubjectKind::Cgroup, "/light")));
        assert!(f.title.starts_with("job[100] got 0.6 % of the CPU time it asked for: hog[200]"), "{}", f.title);
        let culprits: Vec<u32> = f.ties.culprits.iter().map(|task| task.pid).collect();
        assert_eq!(culprits, [200, 201]);
        assert_eq!(fact_of(&f, FactKey::WeightOf, "/light"), 2);
        assert_eq!(fact(&f, FactKey::GotOfAsked), 0.6);
        assert!(f.remedy.contains("`echo 1024 > /sys/fs/cgroup/cpu/light/cpu.shares`"), "{}", f.remedy);
    }

    #[test]
    fn equal_weights_and_small_losses_are_fine() {
        assert!(fine(examine(&Case::of(&light_job(1024, 6, 990)))).starts_with("of 3 threads over 5.0 s none lost"));
        assert!(fine(examine(&Case::of(&light_job(2, 500, 400)))).contains("none lost two thirds"));
        cannot_tell(examine(&Case::of(&Evidence::default())));
    }
}
