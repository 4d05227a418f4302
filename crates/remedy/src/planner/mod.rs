//! From a diagnosis and the facts about its targets to a plan. Changes nothing on the node.

mod dead;
mod empty_cgroups;
mod threads;
mod units;

use crate::facts::Facts;
use crate::plan::{ByHand, Cause, Over, Plan, Refused, Step};
use crate::reboot::Reboot;
use coroner_diagnosis::finding::Subject;
use coroner_diagnosis::ties::Task;
use coroner_diagnosis::units::cost::{UnitCost, costs};
use coroner_diagnosis::verdict::{FindingRef, TimeSpan, Verdict};
use coroner_diagnosis::zombies::{self, ZombieReport};
use coroner_diagnosis::{Code, Diagnosis, Finding, Severity};
use coroner_evidence::{CoreSet, Evidence};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

pub use dead::PinningFile;

/// What the user asks for.
#[derive(Debug, Clone)]
pub struct Wishes {
    /// Plan only for this finding, or for this subject of it.
    pub about: Option<(Code, Option<String>)>,
    /// Limit units instead of disabling them.
    pub isolate: bool,
    pub persistent: bool,
    /// Limits that replace our defaults.
    pub limits: Vec<(String, String)>,
    /// Files that may be deleted.
    pub delete_files: Vec<String>,
    /// Where to move threads and interrupts.
    pub cores: Option<CoreSet>,
    /// How long reclaim may take.
    pub budget: Duration,
}

impl Default for Wishes {
    fn default() -> Wishes {
        Wishes {
            about: None,
            isolate: false,
            persistent: false,
            limits: Vec::new(),
            delete_files: Vec::new(),
            cores: None,
            budget: Duration::from_secs(10),
        }
    }
}

/// What a plan would touch, so what facts are needed about.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Targets {
    pub units: BTreeSet<String>,
    /// Paths of the memory controller, with their ancestors.
    pub cgroups: BTreeSet<String>,
    /// Those of them whose empty children are to be counted.
    pub leaking: BTreeSet<String>,
    pub threads: BTreeSet<u32>,
    pub interrupts: BTreeSet<u32>,
}

/// What every planner here reads.
pub(crate) struct Case<'c> {
    pub evidence: &'c Evidence,
    pub diagnosis: &'c Diagnosis,
    pub wishes: &'c Wishes,
    pub zombies: Option<ZombieReport<'c>>,
    pub costs: BTreeMap<String, UnitCost>,
}

/// A problem to plan for: its root cause, then what follows from it.
pub(crate) struct Problem<'c> {
    pub root: &'c Finding,
    pub verdict: Option<&'c Verdict>,
    pub chain: Vec<&'c Finding>,
}

impl Problem<'_> {
    fn time(&self) -> TimeSpan {
        self.verdict.map_or(self.root.ties.time, |verdict| verdict.time)
    }
}

impl<'c> Case<'c> {
    pub fn new(evidence: &'c Evidence, diagnosis: &'c Diagnosis, wishes: &'c Wishes) -> Case<'c> {
        Case { evidence, diagnosis, wishes, zombies: zombies::report(evidence), costs: costs(evidence) }
    }

    fn finding(&self, of: &FindingRef) -> Option<&'c Finding> {
        self.diagnosis.findings.iter().find(|finding| finding.is(of))
    }

    fn problem(&self, verdict: &'c Verdict) -> Option<Problem<'c>> {
        let root = self.finding(&verdict.root_cause)?;
        let mut chain: Vec<&Finding> = verdict.chain.iter().filter_map(|link| self.finding(&link.to)).collect();
        chain.extend(verdict.context.iter().filter_map(|context| self.finding(context)));
        // An effect that is over needs no step, and its threads may be gone.
        chain.retain(|finding| finding.is_ongoing());
        Some(Problem { root, verdict: Some(verdict), chain })
    }

    /// All verdicts, or the ones asked for; also those that are over.
    fn problems(&self) -> Result<Vec<Problem<'c>>, String> {
        let verdicts = &self.diagnosis.conclusion.verdicts;
        let Some((code, subject)) = &self.wishes.about else {
            return Ok(verdicts.iter().filter_map(|verdict| self.problem(verdict)).collect());
        };
        let wanted =
            |finding: &&Finding| finding.code == *code && subject.as_ref().is_none_or(|s| is_called(finding, s));
        let found: Vec<&Finding> = self.diagnosis.findings.iter().filter(wanted).collect();
        if found.is_empty() {
            return Err(self.not_found(*code, subject.as_deref()));
        }
        let mut problems: Vec<Problem<'c>> = Vec::new();
        for root in found {
            // A finding is fixed at its root cause, so plan for the whole verdict it belongs to.
            let is_it = |of: &FindingRef| root.is(of);
            let own = verdicts.iter().find(|verdict| is_it(&verdict.root_cause));
            let part_of = |verdict: &&Verdict| {
                verdict.chain.iter().any(|link| is_it(&link.to)) || verdict.context.iter().any(is_it)
            };
            let whole = own.or_else(|| verdicts.iter().find(part_of)).and_then(|verdict| self.problem(verdict));
            let problem = whole.unwrap_or(Problem { root, verdict: None, chain: Vec::new() });
            if !problems.iter().any(|known| std::ptr::eq(known.root, problem.root)) {
                problems.push(problem);
            }
        }
        Ok(problems)
    }

    fn not_found(&self, code: Code, subject: Option<&str>) -> String {
        let asked = subject.map(|subject| format!(" about {subject}")).unwrap_or_default();
        let there: Vec<String> = self
            .diagnosis
            .findings
            .iter()
            .map(|finding| format!("{} {:?}", finding.code, finding.subject.name))
            .collect();
        let there = match there.is_empty() {
            true => "there are no findings".to_owned(),
            false => format!("findings: {}", there.join(", ")),
        };
        format!("no finding {code}{asked}; {there}")
    }
}

/// By the full name; a unit also without `.service`, a process also by name, PID or TID alone.
fn is_called(finding: &Finding, subject: &str) -> bool {
    let Subject { name, task, .. } = &finding.subject;
    let is_task = |task: &Task| {
        task.comm == subject || subject.parse().is_ok_and(|number: u32| [task.pid, task.tid].contains(&number))
    };
    name == subject || name.strip_suffix(".service") == Some(subject) || task.as_ref().is_some_and(is_task)
}

/// The things whose facts are needed.
pub fn targets(evidence: &Evidence, diagnosis: &Diagnosis, wishes: &Wishes) -> Result<Targets, String> {
    let case = Case::new(evidence, diagnosis, wishes);
    let mut targets = Targets::default();
    for problem in case.problems()?.into_iter().filter(|problem| problem.time().ongoing) {
        units::targets(&case, &problem, &mut targets);
        dead::targets(&case, &problem, &mut targets);
        empty_cgroups::targets(&problem, &mut targets);
        threads::targets(&case, &problem, &mut targets);
    }
    Ok(targets)
}

/// A plan in the making.
#[derive(Default)]
pub(crate) struct Draft {
    pub steps: Vec<Step>,
    pub alternatives: Vec<Step>,
    pub refused: Vec<Refused>,
    pub by_hand: Vec<ByHand>,
    pub files: Vec<PinningFile>,
    pub reboot: Option<Reboot>,
}

impl Draft {
    fn size(&self) -> (usize, usize, usize) {
        (self.steps.len(), self.alternatives.len(), self.refused.len())
    }

    /// Skips a step that another problem already planned.
    fn step(&mut self, step: Step) {
        self.alternatives.retain(|other| other.id != step.id);
        if !self.steps.iter().any(|other| other.id == step.id) {
            self.steps.push(step);
        }
    }

    fn alternative(&mut self, step: Step) {
        if !self.steps.iter().chain(&self.alternatives).any(|other| other.id == step.id) {
            self.alternatives.push(step);
        }
    }

    fn refuse(&mut self, what: impl Into<String>, why: impl Into<String>) {
        let refused = Refused { what: what.into(), why: why.into() };
        if !self.refused.contains(&refused) {
            self.refused.push(refused);
        }
    }
}

/// An error says that what was asked for does not exist.
pub fn plan(evidence: &Evidence, diagnosis: &Diagnosis, wishes: &Wishes, facts: &Facts) -> Result<Plan, String> {
    let case = Case::new(evidence, diagnosis, wishes);
    // There is nothing to stop or to move where it is over; the user reads what to do if it comes back.
    let (problems, ended): (Vec<Problem<'_>>, Vec<Problem<'_>>) =
        case.problems()?.into_iter().partition(|problem| problem.time().ongoing);
    let over = ended
        .iter()
        .map(|problem| Over {
            finding: problem.root.reference(),
            time: problem.time(),
            if_it_comes_back: problem.verdict.map_or(&problem.root.remedy, |verdict| &verdict.fix).clone(),
        })
        .collect();
    let mut draft = Draft::default();
    let mut causes = Vec::new();
    // First what stops the harm at once, of all problems; then each cause, then what it left behind.
    let first_aid: Vec<bool> = problems
        .iter()
        .map(|problem| {
            let known = draft.size();
            threads::plan(&case, problem, facts, &mut draft);
            known != draft.size()
        })
        .collect();
    for (problem, has_first_aid) in problems.iter().zip(first_aid) {
        let known = draft.size();
        units::plan(&case, problem, facts, &mut draft);
        empty_cgroups::plan(problem, facts, &mut draft);
        dead::plan(&case, problem, facts, &mut draft);
        let nothing = !has_first_aid && known == draft.size();
        let is_known = nothing && !draft.steps.is_empty() && problem.verdict.is_none();
        if nothing && !is_known {
            let remedy = problem.verdict.map_or(&problem.root.remedy, |verdict| &verdict.remedy).clone();
            draft.by_hand.push(ByHand { finding: problem.root.reference(), remedy });
        }
        causes.push(Cause {
            finding: problem.root.reference(),
            certainty: problem.verdict.map(|verdict| verdict.certainty.as_str()),
            risk: problem.verdict.and_then(|verdict| verdict.risk.clone()),
        });
    }
    named_files_must_be_there(&draft, wishes)?;
    let other_dead = dead::not_of(&case, &problems);
    let Draft { steps, alternatives, refused, by_hand, files, reboot } = draft;
    let node = diagnosis.node.clone();
    Ok(Plan { node, causes, over, steps, alternatives, refused, by_hand, files, other_dead, reboot })
}

/// A file that keeps no dead cgroup is not ours to delete.
fn named_files_must_be_there(draft: &Draft, wishes: &Wishes) -> Result<(), String> {
    for named in &wishes.delete_files {
        let mut found = draft.files.iter().filter(|file| file.reach == *named || file.path == *named);
        let first = found.next();
        // The same path in two containers names two files.
        if found.next().is_some() {
            return Err(format!(
                "{named}: files in several mount namespaces have this path; name one by its `reach` (see --json)"
            ));
        }
        match first {
            None => return Err(format!("{named}: not deleted, because it keeps no dead cgroup of this plan")),
            Some(file) if file.deleted => {
                return Err(format!("{named}: already deleted, but still open; stop the process that has it open"));
            }
            Some(_) => {}
        }
    }
    Ok(())
}

/// Findings below a warning that a plan can be asked for by name.
pub fn worth_asking_for(diagnosis: &Diagnosis) -> Vec<&Finding> {
    let codes = [Code::UnitCrashloop, Code::UnitChurn, Code::AgentUnused, Code::ZombieMemcgs, Code::CgroupLeak];
    let mild = |finding: &&Finding| finding.severity < Severity::Warning && codes.contains(&finding.code);
    diagnosis.findings.iter().filter(mild).collect()
}

#[cfg(test)]
mod tests;
