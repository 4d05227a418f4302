//! Compares an answer of `coroner diagnose --json` with the scenario's truth.

use crate::truth::{Expected, ExpectedVerdict, Subject, Truth};
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The judgement of one answer.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Judgement {
    /// Nothing is wrong in this scenario.
    pub control: bool,
    /// The expected verdicts.
    pub asked: Vec<Asked>,
    /// Verdicts given, of severity warning or worse.
    pub given: usize,
    /// Verdicts that were not expected.
    pub extra: Vec<String>,
    /// Proven verdicts that blame the wrong culprit.
    pub proven_wrong: Vec<String>,
    /// Warnings about a node on which nothing is wrong.
    pub false_alarms: Vec<String>,
    /// Everything that is wrong, in words.
    pub faults: Vec<String>,
    /// Problems without a verdict.
    pub unexplained: Vec<String>,
}

/// An expected verdict.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Asked {
    pub root_cause: String,
    pub right_root_cause: bool,
    /// `None`: nobody in particular is to blame.
    pub right_culprit: Option<bool>,
    /// Expected codes that are not in the chain.
    pub missing_in_chain: Vec<String>,
}

impl Asked {
    /// Both root cause and culprit are right.
    pub fn right(&self) -> bool {
        self.right_root_cause && self.right_culprit != Some(false)
    }
}

impl Judgement {
    /// Every root cause and culprit was named.
    pub fn right(&self) -> bool {
        self.asked.iter().all(Asked::right)
    }
}

/// How coroner was asked.
#[derive(Debug, Clone, Copy, Default)]
pub struct Asking<'a> {
    pub no_bpf: bool,
    /// An answer from before the scenario: what the kernel log said then is not the scenario's.
    pub earlier: Option<&'a Value>,
    /// The machine also runs other work, perhaps too much: findings about that are not faults.
    pub on_any_machine: bool,
}

/// Findings from the last day's kernel log: a machine may have a past.
const CODES_WITH_A_PAST: [&str; 5] = ["oom-kill", "nic-reset", "kernel-stall", "gpu-xid", "conntrack-full"];

/// Shortages that a shared machine may have, whatever the scenario does.
const SHORTAGE: [&str; 5] = ["cpu-contention", "cpu-starved", "unfair-weight", "fork-storm", "blocked"];

/// Facts that name something the scenario made.
const OWN: [&str; 8] = ["comm", "comms", "cgroup", "unit", "unit_cgroup", "child", "supervisor", "device"];

const SEVERITIES: [&str; 3] = ["info", "warning", "critical"];
pub(crate) const WARNING: usize = 1;

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Answer {
    pub findings: Vec<Finding>,
    /// Absent in answers of older versions.
    pub verdicts: Option<Vec<Verdict>>,
    #[serde(default)]
    pub unexplained: Vec<Unexplained>,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Unexplained {
    pub finding: Named,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Finding {
    pub code: String,
    pub severity: String,
    pub subject: Subject,
    #[serde(default)]
    pub by: Option<String>,
    pub title: String,
    #[serde(default)]
    pub ties: Ties,
    #[serde(default)]
    pub evidence: Vec<Fact>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Ties {
    pub culprits: Vec<Task>,
    pub victims: Vec<Task>,
    pub units: Vec<String>,
    pub cgroups: Vec<String>,
    pub nics: Vec<Nic>,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Task {
    pub comm: String,
    pub pid: u32,
    pub tid: u32,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Nic {
    pub device: String,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Fact {
    #[serde(default)]
    pub of: Option<String>,
    #[serde(default)]
    pub value: Value,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Verdict {
    pub root_cause: Named,
    pub certainty: String,
    pub severity: String,
    pub chain: Vec<Link>,
    pub story: String,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Named {
    pub code: String,
    pub subject: Subject,
    #[serde(default)]
    pub by: Option<String>,
    pub title: String,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Link {
    pub to: Named,
}

/// An error if the answer has another form.
pub fn judge(truth: &Truth, answer: &Value, asking: Asking<'_>) -> Result<Judgement> {
    let mut told = read(answer)?;
    if let Some(earlier) = asking.earlier {
        forget_the_past(&mut told, &read(earlier)?, truth);
    }
    // Steal is never a scenario's: only the hypervisor takes it, whenever it likes.
    let of_machine = |code: &str| code == "cpu-steal" || asking.on_any_machine && SHORTAGE.contains(&code);
    let foreign = |code: &str| of_machine(code) && !is_expected(truth, code);
    told.findings.retain(|f| !foreign(&f.code));
    told.verdicts.iter_mut().for_each(|verdicts| verdicts.retain(|v| !foreign(&v.root_cause.code)));
    told.unexplained.retain(|u| !foreign(&u.finding.code));
    // Who runs the scenarios may lose to them, and is none of them.
    let runner = format!("coroner-lab[{}]", std::process::id());
    told.findings.retain(|f| f.subject.name != runner);
    told.verdicts.iter_mut().for_each(|verdicts| verdicts.retain(|v| v.root_cause.subject.name != runner));
    told.unexplained.retain(|u| u.finding.subject.name != runner);
    let mut own = None;
    if asking.on_any_machine {
        let mut names = Vec::new();
        truth.facts.iter().for_each(|(key, value)| own_names(key, value, &mut names));
        own = Some(names);
    }
    let counts = |finding: &Finding| own.as_ref().is_none_or(|own| own.iter().any(|name| finding.names(name)));
    let mut judgement = Judgement {
        control: truth.max_severity.is_some() && truth.verdicts.as_ref().is_none_or(Vec::is_empty),
        ..Judgement::default()
    };
    judge_findings(truth, &told.findings, &counts, &mut judgement)?;
    if let Some(expected) = &truth.verdicts {
        let given = told.verdicts.context("the answer has no verdicts")?;
        judge_verdicts(expected, &given, &told.findings, asking.no_bpf, &counts, &mut judgement)?;
        for Unexplained { finding } in &told.unexplained {
            judgement.unexplained.push(format!("unexplained: {} ({})", finding.code, finding.title));
        }
    }
    Ok(judgement)
}

pub(crate) fn read(answer: &Value) -> Result<Answer> {
    serde_json::from_value(answer.clone()).context("not an answer of coroner diagnose --json")
}

impl Task {
    fn is(&self, name: &str) -> bool {
        [self.pid, self.tid].iter().any(|number| name == format!("{}[{number}]", self.comm))
    }
}

impl Finding {
    /// Whether it blames this process, unit or cgroup.
    pub fn blames(&self, culprit: &str) -> bool {
        let Ties { culprits, units, cgroups, .. } = &self.ties;
        let named = [&self.subject.name].into_iter().chain(&self.by).chain(units).chain(cgroups);
        let told = self.evidence.iter().any(|f| f.of.as_deref() == Some(culprit) || f.value.as_str() == Some(culprit));
        told || named.into_iter().any(|name| name == culprit) || culprits.iter().any(|task| task.is(culprit))
    }

    /// Whether it is about this command, unit, device or cgroup, or about a cgroup below it.
    pub fn names(&self, name: &str) -> bool {
        let Ties { culprits, victims, cgroups, nics, .. } = &self.ties;
        let below =
            |path: &String| name.starts_with('/') && path.strip_prefix(name).is_some_and(|r| r.starts_with('/'));
        self.blames(name)
            || cgroups.iter().chain([&self.subject.name]).any(below)
            || culprits.iter().chain(victims).any(|task| task.comm == name || task.is(name))
            || nics.iter().any(|nic| nic.device == name)
    }
}

fn is_expected(truth: &Truth, code: &str) -> bool {
    let mut verdicts = truth.verdicts.iter().flatten();
    truth.expect.iter().any(|e| e.code == code) || verdicts.any(|v| v.is(code) || v.chain.iter().any(|c| c == code))
}

/// Collects the names of what the scenario made from its facts.
fn own_names(key: &str, value: &Value, names: &mut Vec<String>) {
    match value {
        Value::Object(facts) => facts.iter().for_each(|(key, value)| own_names(key, value, names)),
        Value::Array(facts) => facts.iter().for_each(|value| own_names(key, value, names)),
        Value::String(name) if OWN.contains(&key) && !name.is_empty() => names.push(name.clone()),
        _ => {}
    }
}

/// Removes what was already reported before, unless the scenario is about that.
fn forget_the_past(told: &mut Answer, earlier: &Answer, truth: &Truth) {
    let past = |code: &str, subject: &Subject| {
        CODES_WITH_A_PAST.contains(&code)
            && !is_expected(truth, code)
            && earlier.findings.iter().any(|f| f.code == code && f.subject == *subject)
    };
    told.findings.retain(|f| !past(&f.code, &f.subject));
    if let Some(verdicts) = &mut told.verdicts {
        verdicts.retain(|v| !past(&v.root_cause.code, &v.root_cause.subject));
    }
    told.unexplained.retain(|u| !past(&u.finding.code, &u.finding.subject));
}

/// `counts`: whether a finding is about the scenario, so that it may be a fault.
fn judge_findings(
    truth: &Truth,
    findings: &[Finding],
    counts: &dyn Fn(&Finding) -> bool,
    judgement: &mut Judgement,
) -> Result<()> {
    for expected in &truth.expect {
        if let Some(fault) = fault_of(expected, findings)? {
            judgement.faults.push(fault);
        }
    }
    for finding in findings.iter().filter(|f| truth.forbid.contains(&f.code) && counts(f)) {
        judgement.faults.push(format!("found, but must not be: {} ({})", finding.code, finding.title));
    }
    for innocent in &truth.innocent {
        for finding in findings.iter().filter(|finding| finding.blames(innocent)) {
            let fault = format!("{} blames {innocent}, who did no harm ({})", finding.code, finding.title);
            judgement.proven_wrong.push(fault.clone());
            judgement.faults.push(fault);
        }
    }
    let Some(most) = &truth.max_severity else { return Ok(()) };
    let most = rank(most)?;
    for finding in findings {
        if rank(&finding.severity)? > most && counts(finding) {
            let fault = format!("{} {} ({})", finding.severity, finding.code, finding.title);
            judgement.faults.push(format!("false alarm: {fault}"));
            judgement.false_alarms.push(fault);
        }
    }
    Ok(())
}

/// What is wrong with an expected finding.
fn fault_of(expected: &Expected, findings: &[Finding]) -> Result<Option<String>> {
    let about = |f: &&Finding| f.code == expected.code && is_about(expected.subject.as_ref(), &f.subject);
    let Some(found) = findings.iter().find(about) else {
        let about = expected.subject.as_ref().map(|s| format!(" about {} {}", s.kind, s.name)).unwrap_or_default();
        return Ok(Some(format!("not found: {}{about}", expected.code)));
    };
    if rank(&found.severity)? < rank(&expected.severity_at_least)? {
        return Ok(Some(format!("only {}: {} ({})", found.severity, found.code, found.title)));
    }
    let unnamed = expected.culprit.as_ref().filter(|culprit| !found.blames(culprit));
    Ok(unnamed.map(|culprit| format!("{} does not name {culprit} ({})", found.code, found.title)))
}

fn judge_verdicts(
    expected: &[ExpectedVerdict],
    given: &[Verdict],
    findings: &[Finding],
    no_bpf: bool,
    counts: &dyn Fn(&Finding) -> bool,
    judgement: &mut Judgement,
) -> Result<()> {
    let mut left: Vec<&Verdict> = Vec::new();
    for verdict in given {
        if rank(&verdict.severity)? >= WARNING {
            left.push(verdict);
        }
    }
    // Without BPF a chain that needs names of dead cgroups breaks apart: its pieces are neither expected nor faults.
    let (unasked, asked): (Vec<_>, Vec<_>) = expected.iter().partition(|e| no_bpf && e.needs_bpf);
    left.retain(|v| {
        let code = &v.root_cause.code;
        !unasked.iter().any(|e| e.is(code) || e.chain.contains(code))
    });
    judgement.given = left.len();
    for expected in &asked {
        let fits = |v: &&Verdict| {
            expected.is(&v.root_cause.code) && is_about(expected.subject.as_ref(), &v.root_cause.subject)
        };
        let best = left
            .iter()
            .enumerate()
            .filter(|(_, v)| fits(v))
            .max_by_key(|(_, v)| {
                (blames(v, findings, expected) != Some(false), usize::MAX - missing(v, expected).len())
            })
            .map(|(i, _)| i);
        let best = best.map(|i| left.remove(i));
        judge_one(expected, best, findings, judgement);
    }
    for verdict in left {
        let words = words(verdict);
        let told = [&verdict.root_cause].into_iter().chain(verdict.chain.iter().map(|link| &link.to));
        if !told.filter_map(|named| finding_of(named, findings)).any(counts) {
            continue;
        }
        // An unlinked part of the chain may still blame the right culprit.
        let right_one = asked.iter().any(|e| e.culprit.is_some() && blames(verdict, findings, e) == Some(true));
        if verdict.certainty == "proven" && !right_one {
            judgement.proven_wrong.push(words.clone());
        }
        if judgement.control {
            judgement.false_alarms.push(words.clone());
        }
        judgement.faults.push(format!("unexpected verdict: {words}"));
        judgement.extra.push(words);
    }
    Ok(())
}

fn judge_one(expected: &ExpectedVerdict, given: Option<&Verdict>, findings: &[Finding], judgement: &mut Judgement) {
    let mut asked = Asked {
        root_cause: expected.root_cause.clone(),
        right_root_cause: given.is_some(),
        right_culprit: expected.culprit.as_ref().map(|_| false),
        missing_in_chain: expected.chain.clone(),
    };
    let Some(verdict) = given else {
        judgement.faults.push(format!("no verdict with the root cause {}", expected.root_cause));
        return judgement.asked.push(asked);
    };
    asked.right_culprit = blames(verdict, findings, expected);
    asked.missing_in_chain = missing(verdict, expected);
    if asked.right_culprit == Some(false) {
        let culprit = expected.culprit.as_deref().unwrap_or_default();
        let fault = format!("{culprit} is not named: {}", words(verdict));
        if verdict.certainty == "proven" {
            judgement.proven_wrong.push(fault.clone());
        }
        judgement.faults.push(fault);
    }
    if !asked.missing_in_chain.is_empty() {
        judgement.faults.push(format!("not in its chain: {}", asked.missing_in_chain.join(", ")));
    }
    judgement.asked.push(asked);
}

/// `None` if nobody in particular is to blame.
fn blames(verdict: &Verdict, findings: &[Finding], expected: &ExpectedVerdict) -> Option<bool> {
    let root = finding_of(&verdict.root_cause, findings);
    expected.culprit.as_ref().map(|culprit| root.is_some_and(|root| root.blames(culprit)))
}

/// Code, subject and culprit identify a finding.
pub(crate) fn finding_of<'f>(named: &Named, findings: &'f [Finding]) -> Option<&'f Finding> {
    findings.iter().find(|f| f.code == named.code && f.subject == named.subject && f.by == named.by)
}

fn missing(verdict: &Verdict, expected: &ExpectedVerdict) -> Vec<String> {
    let follows = |code: &&String| verdict.chain.iter().any(|link| link.to.code == **code);
    expected.chain.iter().filter(|code| !follows(code)).cloned().collect()
}

/// `proven core-monopolised about process spin-ab12[7]: core 1 ← …`
pub(crate) fn words(verdict: &Verdict) -> String {
    let root = &verdict.root_cause;
    format!("{} {} about {} {}: {}", verdict.certainty, root.code, root.subject.kind, root.subject.name, verdict.story)
}

fn is_about(expected: Option<&Subject>, subject: &Subject) -> bool {
    expected.is_none_or(|expected| expected == subject)
}

pub(crate) fn rank(severity: &str) -> Result<usize> {
    SEVERITIES.iter().position(|s| *s == severity).with_context(|| format!("no such severity: {severity}"))
}

#[cfg(test)]
mod tests;
