//! For image builders: a script that disables what the audit found in a base image.

use coroner_diagnosis::agents::{Action, Catalogue, Judgement, Verdict};
use coroner_diagnosis::units::paths::{operand, shell_word};
use coroner_diagnosis::units::protected::why_protected_by;
use coroner_diagnosis::units::{Audit, AuditedUnit};
use coroner_diagnosis::{Code, Finding};
use coroner_evidence::Enablement;
use serde::Serialize;

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ImagePlan {
    /// Units to disable, with the reason.
    pub remove: Vec<ImageUnit>,
    /// Units that somebody has to decide about, with the reason.
    pub decide: Vec<ImageUnit>,
    /// Units to leave alone, with the reason.
    pub keep: Vec<ImageUnit>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ImageUnit {
    pub unit: String,
    pub why: String,
    /// An administrator's unit file that is where the mask would go.
    pub file_in_the_way: Option<String>,
    pub enabled: bool,
}

/// Findings that blame a unit.
const CODES: [Code; 3] = [Code::UnitCrashloop, Code::UnitChurn, Code::AgentUnused];
pub const PRESET: &str = "/etc/systemd/system-preset/10-coroner.preset";

pub fn plan(audit: &Audit<'_>, catalogue: &Catalogue) -> ImagePlan {
    let mut plan = ImagePlan { remove: Vec::new(), decide: Vec::new(), keep: Vec::new() };
    for judgement in audit.judgements.iter().flatten().filter(|j| j.pid.is_none()) {
        let why = one_line(judgement);
        match judgement.verdict {
            Verdict::Unused => {
                let protected = why_protected_by(catalogue, &judgement.unit);
                let unit = about(audit, &judgement.unit, &why);
                match (protected, judgement.action) {
                    (Some(protected), _) => {
                        plan.keep.push(ImageUnit { why: format!("{why}; but {protected}"), ..unit })
                    }
                    (None, Action::Report) => plan.keep.push(unit),
                    (None, Action::Manual) => {
                        let why = format!("{why}; {}", judgement.safe_step);
                        plan.decide.push(ImageUnit { why, ..unit })
                    }
                    (None, Action::Disable | Action::Mask) => plan.remove.push(unit),
                }
            }
            Verdict::Conflict => plan.decide.push(about(audit, &judgement.unit, &why)),
            Verdict::Fine | Verdict::CannotTell => {}
        }
    }
    for finding in audit.findings.iter().filter(|finding| CODES.contains(&finding.code)) {
        add_finding(&mut plan, audit, catalogue, finding);
    }
    plan
}

fn add_finding(plan: &mut ImagePlan, audit: &Audit<'_>, catalogue: &Catalogue, finding: &Finding) {
    let unit = &finding.subject.name;
    let known = |list: &[ImageUnit]| list.iter().any(|other| other.unit == *unit);
    if finding.code == Code::AgentUnused || known(&plan.remove) || known(&plan.decide) || known(&plan.keep) {
        return;
    }
    let told = about(audit, unit, &finding.title);
    match why_protected_by(catalogue, unit) {
        Some(protected) => plan.keep.push(ImageUnit { why: format!("{}; but {protected}", finding.title), ..told }),
        None => plan.decide.push(told),
    }
}

fn one_line(judgement: &Judgement) -> String {
    let against: Vec<&str> =
        judgement.why.iter().filter(|reason| reason.kind.is_against()).map(|reason| reason.text.as_str()).collect();
    against.join("; ")
}

fn about(audit: &Audit<'_>, unit: &str, why: &str) -> ImageUnit {
    let audited: Option<&AuditedUnit<'_>> = audit.units.iter().find(|audited| audited.name == unit);
    let file = audited.and_then(|audited| audited.file);
    let in_the_way =
        file.and_then(|file| file.path.clone()).filter(|path| crate::steps::mask_unit::is_in_the_way(path));
    ImageUnit {
        unit: unit.to_owned(),
        why: why.to_owned(),
        file_in_the_way: in_the_way,
        enabled: audited.and_then(|audited| audited.enablement()).is_some_and(|e| {
            matches!(e, Enablement::Enabled | Enablement::EnabledRuntime | Enablement::Indirect | Enablement::Linked)
        }),
    }
}

impl ImagePlan {
    /// A shell script for a provisioner: it runs as root in the image, booted or in a chroot.
    pub fn script(&self, of: &str) -> String {
        let mut lines = vec![
            "#!/bin/sh".to_owned(),
            format!("# Disables units that have no work in {}. Made by `coroner fix --image`.", one_line_of(of)),
            "# Run it as root in the image: from a provisioner, or in a chroot.".to_owned(),
            "set -eu".to_owned(),
        ];
        for unit in &self.remove {
            lines.push(String::new());
            lines.push(format!("# {}: {}", one_line_of(&unit.unit), one_line_of(&unit.why)));
            lines.extend(switch_off(unit));
        }
        if !self.remove.is_empty() {
            lines.push(String::new());
            lines.push("# Keeps upgrades and `systemctl preset-all` from enabling them again.".to_owned());
            lines.push("mkdir -p /etc/systemd/system-preset".to_owned());
            let rules: Vec<String> =
                self.remove.iter().map(|unit| shell_word(&format!("disable {}", unit.unit))).collect();
            lines.push(format!("printf '%s\\n' {} > {PRESET}", rules.join(" ")));
        }
        if !self.decide.is_empty() {
            lines.push(String::new());
            lines.push("# Decide yourself whether these are needed:".to_owned());
            for unit in &self.decide {
                lines.push(format!("#   {}: {}", one_line_of(&unit.unit), one_line_of(&unit.why)));
                lines.extend(switch_off(unit).into_iter().map(|line| format!("# {line}")));
            }
        }
        if !self.keep.is_empty() {
            lines.push(String::new());
            lines.push("# Left alone:".to_owned());
            lines.extend(
                self.keep.iter().map(|unit| format!("#   {}: {}", one_line_of(&unit.unit), one_line_of(&unit.why))),
            );
        }
        if self.remove.is_empty() && self.decide.is_empty() {
            lines.push(String::new());
            lines.push("# Nothing to disable.".to_owned());
        }
        lines.join("\n") + "\n"
    }
}

fn switch_off(unit: &ImageUnit) -> Vec<String> {
    let word = operand(&unit.unit);
    let mut lines = Vec::new();
    if unit.enabled {
        lines.push(format!("systemctl disable {word}"));
    }
    match &unit.file_in_the_way {
        Some(path) => lines.push(format!("# not masked: {} is where the mask would go", one_line_of(path))),
        None => lines.push(format!("systemctl mask {word}")),
    }
    lines
}

/// Text from the node's files must neither end a comment nor begin a command.
fn one_line_of(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unit(name: &str, why: &str) -> ImageUnit {
        ImageUnit { unit: name.into(), why: why.into(), file_in_the_way: None, enabled: true }
    }

    #[test]
    fn names_cannot_become_commands() {
        let plan = ImagePlan {
            remove: vec![unit("a b;reboot.service", "first\nrm -rf /")],
            decide: vec![unit("x.service\nreboot", "why")],
            keep: vec![unit("sshd.service", "people get in through it\nreboot")],
        };
        let script = plan.script("here\nreboot");
        assert!(script.contains("systemctl mask 'a b;reboot.service'"), "{script}");
        let mut lines = script.lines().skip(1).filter(|line| !line.is_empty() && !line.starts_with('#'));
        assert!(
            lines
                .all(|line| ["set -eu", "systemctl ", "mkdir -p", "printf "].iter().any(|good| line.starts_with(good))),
            "{script}"
        );
    }
}
