//! Leaked cgroups: thousands that live but are empty.

use super::{Draft, Problem, Targets};
use crate::facts::Facts;
use crate::measure::Measure;
use crate::plan::{Risk, Step};
use crate::steps::remove_cgroups::MOST;
use crate::steps::{Action, RemoveCgroups, StepKind};
use coroner_diagnosis::units::paths::shell_word;
use coroner_diagnosis::words::{count, list, plural};
use coroner_diagnosis::{Code, Finding};

/// Managers that keep track of the cgroups below: removing one behind their back confuses them.
const KEPT_BY: &[(&str, &str)] = &[
    ("kubepods", "kubelet manages what is below it"),
    ("docker", "Docker manages what is below it"),
    ("containerd", "containerd manages what is below it"),
    ("machine.slice", "libvirt or systemd-nspawn manages what is below it"),
];

fn leaking<'p>(problem: &'p Problem<'_>) -> Option<&'p Finding> {
    Some(problem.root).filter(|finding| finding.code == Code::CgroupLeak)
}

pub fn targets(problem: &Problem<'_>, targets: &mut Targets) {
    if let Some(path) = leaking(problem).and_then(|finding| finding.ties.cgroups.first()) {
        targets.cgroups.insert(path.clone());
        targets.leaking.insert(path.clone());
    }
}

pub fn plan(problem: &Problem<'_>, facts: &Facts, draft: &mut Draft) {
    let Some(finding) = leaking(problem) else { return };
    let Some(path) = finding.ties.cgroups.first() else { return };
    let Some(about) = facts.cgroups.get(path) else { return };
    let what = format!("remove the empty cgroups below {path}");
    let Some((names, more)) = &about.empty_children else {
        draft.refuse(what, "only possible on the node: which of them are empty must be checked there");
        return;
    };
    if names.is_empty() {
        draft.refuse(what, "none of them is empty any more");
        return;
    }
    let kept = KEPT_BY.iter().find(|(part, _)| path.contains(part)).map(|(_, why)| (*why).to_owned());
    let maker = finding.ties.culprits.first();
    let directory = shell_word(&about.directory.display().to_string());
    let mut not_fixed = match maker {
        Some(maker) => format!("{} creates more: fix or stop it", maker.name()),
        None => "whatever creates them creates more (`coroner zombies --watch` names the process)".to_owned(),
    };
    if *more {
        not_fixed.push_str(&format!("; there are more than {}: run it again for the rest", count(MOST as u64)));
    }
    draft.step(Step {
        id: format!("remove-cgroups:{path}"),
        kind: StepKind::RemoveCgroups,
        title: format!("Remove {} below {path}", plural(names.len() as u64, "empty cgroup", "empty cgroups")),
        reason: format!("{}.", finding.title.trim_end_matches('.')),
        commands: vec![format!(
            "find {directory} -mindepth 1 -maxdepth 1 -type d -exec rmdir {{}} \\; 2>/dev/null   # the kernel refuses those in use"
        )],
        risk: if kept.is_some() { Risk::High } else { Risk::Medium },
        risk_words: "may remove a cgroup that was just created for a process that has not started yet; removes only cgroups \
                     that were empty when this plan was made and still are"
            .to_owned(),
        reversible: false,
        undo: "not undone: nothing was in them".to_owned(),
        dangerous: kept,
        not_fixed,
        measures: vec![Measure::EmptyCgroups { directory: about.directory.clone() }],
        details: vec![format!("e.g. {}", list(names, 3))],
        action: Action::RemoveCgroups(RemoveCgroups { parent: about.directory.clone(), names: names.clone() }),
    });
}
