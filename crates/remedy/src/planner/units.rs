//! A unit that does harm or has no work: disable or limit it.

use super::{Case, Draft, Problem, Targets};
use crate::facts::{Facts, UnitFacts};
use crate::measure::Measure;
use crate::plan::{Risk, Step};
use crate::steps::mask_unit::is_in_the_way;
use crate::steps::{Action, DisableUnit, IsolateUnit, MaskUnit, StepKind};
use coroner_diagnosis::agents::{self, Action as CatalogueAction, Judgement, Verdict};
use coroner_diagnosis::units::paths::{operand, shell_word};
use coroner_diagnosis::words::{bytes, duration_words, list, plural};
use coroner_diagnosis::{Code, Finding, SubjectKind};
use std::collections::BTreeMap;
use std::time::Duration;

/// Findings whose subject is the unit to blame.
const CODES: [Code; 3] = [Code::UnitCrashloop, Code::UnitChurn, Code::AgentUnused];

/// A unit that has been up for this long may be in use.
const AT_WORK: Duration = Duration::from_secs(60);

/// A crashlooping agent needs hardly anything.
const LIMITS: [(&str, &str); 5] = [
    ("CPUQuota", "20%"),
    ("CPUWeight", "10"),
    ("RestartSec", "5min"),
    ("StartLimitIntervalSec", "1h"),
    ("StartLimitBurst", "5"),
];
/// MemoryMax is twice what it uses now, but at least this: a lower limit would kill it at once.
const LEAST_MEMORY: u64 = 256 << 20;

fn unit_of(finding: &Finding) -> Option<&str> {
    (CODES.contains(&finding.code) && finding.subject.kind == SubjectKind::Unit)
        .then_some(finding.subject.name.as_str())
}

fn blamed<'c>(problem: &Problem<'c>) -> Option<&'c str> {
    unit_of(problem.root)
}

/// The unit of a monitoring program that hurts the node: it may be limited, but we never suggest disabling it.
fn watching<'c>(problem: &Problem<'c>) -> Option<&'c str> {
    let of = |finding: &'c Finding| match finding.code {
        Code::ObserverCost | Code::MemcgWalk => finding.ties.units.first().map(String::as_str),
        _ => None,
    };
    of(problem.root).or_else(|| problem.chain.iter().find_map(|finding| of(finding)))
}

pub fn targets(_case: &Case<'_>, problem: &Problem<'_>, targets: &mut Targets) {
    targets.units.extend(blamed(problem).into_iter().chain(watching(problem)).map(str::to_owned));
}

pub fn plan(case: &Case<'_>, problem: &Problem<'_>, facts: &Facts, draft: &mut Draft) {
    let none = UnitFacts::default();
    if let Some(unit) = blamed(problem) {
        let about = facts.units.get(unit).unwrap_or(&none);
        if let Some(why) = &about.protected {
            draft.refuse(format!("disable {unit}"), sentence(why));
            return;
        }
        if !about.is_known {
            draft.refuse(format!("disable {unit}"), "systemd does not know this unit");
            return;
        }
        let judgements = agents::judgements(case.evidence).unwrap_or_default();
        let judgement = judgements.iter().find(|judgement| judgement.unit == unit);
        let target = Target { unit, about, judgement, case, problem };
        let isolate = target.isolate();
        if let Some(judgement) = judgement.filter(|judgement| judgement.action == CatalogueAction::Manual) {
            draft.refuse(format!("disable {unit}"), sentence(&judgement.safe_step));
            if case.wishes.isolate { draft.step(isolate) } else { draft.alternative(isolate) }
        } else if case.wishes.isolate {
            draft.step(isolate);
            draft.alternative(target.switch_off());
        } else {
            draft.step(target.switch_off());
            target.mask(draft);
            draft.alternative(isolate);
        }
    } else if let Some(unit) = watching(problem) {
        let about = facts.units.get(unit).unwrap_or(&none);
        if about.protected.is_none() && about.is_known {
            let step = Target { unit, about, judgement: None, case, problem }.isolate();
            if case.wishes.isolate { draft.step(step) } else { draft.alternative(step) }
        }
    }
}

fn sentence(why: &str) -> String {
    why.trim_end_matches('.').to_owned()
}

struct Target<'t> {
    unit: &'t str,
    about: &'t UnitFacts,
    judgement: Option<&'t Judgement>,
    case: &'t Case<'t>,
    problem: &'t Problem<'t>,
}

impl Target<'_> {
    fn is_unused(&self) -> bool {
        self.judgement.is_some_and(|judgement| judgement.verdict == Verdict::Unused && judgement.action.removes())
    }

    fn has_links(&self) -> bool {
        matches!(
            self.about.file_state.as_str(),
            "enabled" | "enabled-runtime" | "linked" | "linked-runtime" | "alias" | "indirect"
        )
    }

    fn reason(&self) -> String {
        let mut reason = format!("{}.", self.problem.root.title.trim_end_matches('.'));
        if let Some(judgement) =
            self.judgement.filter(|_| self.is_unused() && self.problem.root.code != Code::AgentUnused)
        {
            let why: Vec<&str> =
                judgement.why.iter().filter(|r| r.kind.is_against()).map(|r| r.text.as_str()).collect();
            if !why.is_empty() {
                reason.push_str(&format!(" It has no work here: {}.", list(&why, 2).trim_end_matches('.')));
            }
        }
        if let Some(leaked) = self.case.costs.get(self.unit).and_then(|cost| cost.zombies).filter(|n| *n > 0) {
            let leaked = plural(leaked, "dead memory cgroup", "dead memory cgroups");
            reason.push_str(&format!(" It left {leaked} behind."));
        }
        reason
    }

    /// Why somebody may need it.
    fn at_work(&self) -> Option<String> {
        if self.is_unused() {
            return None;
        }
        if let Some(reason) = self.judgement.and_then(|judgement| judgement.in_use.first()) {
            return Some(format!("it is in use: {}", reason.text));
        }
        let up = self.about.up_for.filter(|up| *up >= AT_WORK)?;
        Some(format!("it has been up for {} and may be in use; nothing shows that it is unused", duration_words(up)))
    }

    fn measures(&self) -> Vec<Measure> {
        let mut measures = Vec::new();
        if self.problem.root.code == Code::UnitCrashloop {
            measures.push(Measure::Restarts { unit: self.unit.to_owned() });
        }
        if self.case.costs.get(self.unit).and_then(|cost| cost.zombies).is_some_and(|n| n > 0)
            && let Some(cgroup) = super::dead::ancestor_of_unit(self.case, self.unit)
        {
            measures.push(Measure::Growth { cgroup });
        }
        measures
    }

    fn switch_off(&self) -> Step {
        let (unit, word) = (self.unit, shell_word(self.unit));
        let has_links = self.has_links();
        let at_work = self.at_work();
        let mut risk_words = match (&at_work, self.is_unused()) {
            (Some(why), _) => format!("whatever needs {unit} loses it ({why})"),
            (None, true) => format!("nothing seen here uses {unit}"),
            (None, false) => format!("whatever needs {unit} loses it, but it does not stay up anyway"),
        };
        if !self.about.stops_with.is_empty() {
            risk_words.push_str(&format!(". Also stops {}", list(&self.about.stops_with, 4)));
        }
        if let Some(why) = &self.about.stops_with_unknown {
            risk_words.push_str(&format!(". What else stops with it is unknown: {why}"));
        }
        let alone = self.about.stops_with.is_empty() && self.about.stops_with_unknown.is_none();
        let mut not_fixed =
            "what it left behind (see the other steps); other nodes from the same image (see `coroner fix --image`)"
                .to_owned();
        if !self.is_unused() {
            not_fixed = format!("why it fails (`journalctl -u {word} -n 100`); {not_fixed}");
        }
        Step {
            id: format!("disable-unit:{unit}"),
            kind: StepKind::DisableUnit,
            title: match has_links {
                true => format!("Disable {unit}, now and at boot"),
                false => format!("Stop {unit}"),
            },
            reason: self.reason(),
            commands: vec![match has_links {
                true => format!("systemctl disable --now {}", operand(unit)),
                false => format!("systemctl stop {}", operand(unit)),
            }],
            risk: match (&at_work, self.is_unused(), alone) {
                (Some(_), ..) => Risk::High,
                (None, true, true) => Risk::Low,
                _ => Risk::Medium,
            },
            risk_words,
            reversible: true,
            undo: match has_links {
                true => "its links are restored and it is started".to_owned(),
                false => "it is started".to_owned(),
            },
            dangerous: at_work,
            not_fixed,
            measures: self.measures(),
            details: Vec::new(),
            action: Action::DisableUnit(DisableUnit { unit: unit.to_owned(), has_links }),
        }
    }

    /// If disabling does not keep it off: another unit starts it, or an upgrade enables it again.
    fn mask(&self, draft: &mut Draft) {
        let unit = self.unit;
        let why = match (self.about.triggered_by.is_empty(), self.has_links(), self.is_unused()) {
            (false, ..) => format!("{} would start it again.", list(&self.about.triggered_by, 3)),
            (_, false, _) => "Nothing enables it, so another unit pulls it in and would do so again.".to_owned(),
            (_, _, true) => "An upgrade of its package, or a preset, would enable it again.".to_owned(),
            _ => return,
        };
        if is_in_the_way(&self.about.fragment) {
            draft.refuse(format!("mask {unit}"), format!("{} is where the mask would go", self.about.fragment));
            return;
        }
        draft.step(Step {
            id: format!("mask-unit:{unit}"),
            kind: StepKind::MaskUnit,
            title: format!("Mask {unit}, so that nothing can start it"),
            reason: why,
            commands: vec![format!("systemctl mask {}", operand(unit))],
            risk: Risk::Low,
            risk_words: "whatever tries to start it fails".to_owned(),
            reversible: true,
            undo: "the mask is removed".to_owned(),
            dangerous: self.at_work(),
            not_fixed: "other nodes from the same image".to_owned(),
            measures: Vec::new(),
            details: Vec::new(),
            action: Action::MaskUnit(MaskUnit { unit: unit.to_owned() }),
        });
    }

    fn limits(&self) -> BTreeMap<String, String> {
        let mut limits: BTreeMap<String, String> =
            LIMITS.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        if let Some(memory) = self.case.costs.get(self.unit).and_then(|cost| cost.memory_bytes) {
            let most = (memory.saturating_mul(2)).max(LEAST_MEMORY).next_multiple_of(1 << 20);
            limits.insert("MemoryMax".to_owned(), format!("{}M", most >> 20));
        }
        if let Some(cores) = &self.case.wishes.cores {
            limits.insert("AllowedCPUs".to_owned(), cores.to_string());
        }
        limits.extend(self.case.wishes.limits.iter().cloned());
        limits
    }

    fn isolate(&self) -> Step {
        let unit = self.unit;
        let step =
            IsolateUnit { unit: unit.to_owned(), limits: self.limits(), persistent: self.case.wishes.persistent };
        let path = step.path();
        let used = self.case.costs.get(unit).and_then(|cost| cost.memory_bytes);
        let lasts = if step.persistent {
            "This survives a reboot."
        } else {
            "This lasts until the next reboot (use --persistent to keep it)."
        };
        let directory = path.rsplit_once('/').map_or("", |(directory, _)| directory);
        let text = step.text();
        // The lines of the file, quoted for a shell.
        let lines: Vec<String> = text.lines().skip(1).map(shell_word).collect();
        Step {
            id: format!("isolate-unit:{unit}"),
            kind: StepKind::IsolateUnit,
            title: format!("Limit {unit}: {}", step.words()),
            reason: self.reason(),
            commands: vec![
                format!("mkdir -p {}", shell_word(directory)),
                format!("printf '%s\\n' {} > {}", lines.join(" "), shell_word(&path)),
                "systemctl daemon-reload".to_owned(),
            ],
            risk: Risk::Medium,
            risk_words: format!(
                "with these limits it may run slower, be OOM-killed{}, or not be restarted after several failed starts",
                used.map(|used| format!(" (it uses {} now)", bytes(used))).unwrap_or_default()
            ),
            reversible: true,
            undo: "the drop-in is removed".to_owned(),
            dangerous: None,
            not_fixed: format!("why it fails, and what it left behind. It still starts, but rarely. {lasts}"),
            measures: self.measures(),
            details: text.lines().map(str::to_owned).collect(),
            action: Action::IsolateUnit(step),
        }
    }
}
