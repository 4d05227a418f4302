//! The audit of agents: what starts on this node or in this image without having work here.
//!
//! Everything is a pure function of unit files, of the [`catalogue`], and of the [`Surroundings`] that a live node or an image on
//! disk shows.

mod action;
pub mod baseline;
pub mod catalogue;
mod index;
mod judge;
mod pattern;
mod present;
mod reasons;
mod starting;
mod surroundings;

pub use action::Action;
pub use baseline::{Baseline, BaselineError, Drift};
pub use catalogue::{Agent, Catalogue, CatalogueError, Need, NeedKind, Role};
pub use judge::judge;
pub use pattern::Pattern;
pub use starting::{Start, start_of};
pub use surroundings::known_units;

use coroner_evidence::{Evidence, FileAnswer, FileQuestion, UnitLogLine, probe};
use coroner_report::named;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// Judges every agent in the evidence that the catalogue (ours plus what users added) knows.
pub fn judgements(evidence: &Evidence) -> Result<Vec<Judgement>, CatalogueError> {
    let catalogue = Catalogue::load(&evidence.catalogues)?;
    let units = known_units(evidence);
    Ok(judge(&units, &catalogue, &Surroundings::of(evidence, &catalogue)))
}

/// The files to look at before [`judgements`]: those of agents whose units or processes are in the evidence.
pub fn questions(evidence: &Evidence) -> Result<Vec<FileQuestion>, CatalogueError> {
    let catalogue = Catalogue::load(&evidence.catalogues)?;
    let units = known_units(evidence);
    let of_units = units.iter().filter_map(|unit| catalogue.agent_of(&unit.name));
    let running = surroundings::running(evidence, &catalogue);
    let names = running.iter().flat_map(|process| &process.names);
    let of_processes = names.flat_map(|name| catalogue.agents_of_process(name));
    Ok(catalogue::questions_of(of_units.chain(of_processes)))
}

/// What is new, gone or changed compared with the baseline; `None` without one.
pub fn drift(evidence: &Evidence) -> Option<Result<Drift, BaselineError>> {
    let stored = evidence.baseline.as_ref()?;
    let now = Baseline::of(&evidence.unit_files, None, None);
    Some(Baseline::parse(&stored.text).map(|good| {
        let mut drift = baseline::compare(&good, &now);
        // A unit that could not be read is not gone.
        if evidence.why_unseen(probe::UNIT_FILES).is_some() {
            drift.gone.clear();
        }
        drift
    }))
}

/// What is around the units.
#[derive(Debug, Clone, Default)]
pub struct Surroundings {
    /// False for an image on disk, where nothing runs.
    pub booted: bool,
    /// The path of that image.
    pub image: Option<String>,
    /// As [`coroner_evidence::Node::cloud`] names it.
    pub cloud: Option<String>,
    /// What a virtual machine runs on.
    pub hypervisor: Option<String>,
    /// `None` if processes cannot be seen.
    pub processes: Option<Vec<Running>>,
    /// Answers to [`questions`].
    pub files: Vec<FileAnswer>,
    /// By unit name; a unit that is absent was not seen.
    pub activity: BTreeMap<String, Activity>,
    /// How many containers each runtime knows; a runtime that is absent was not asked.
    pub containers: BTreeMap<String, u64>,
}

/// A process, as far as needed to tell whose it is.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Running {
    pub pid: u32,
    /// Its `comm`, and the file names of what it runs: a program, or an interpreter and its script.
    pub names: Vec<String>,
    /// The unit that its cgroup belongs to.
    pub unit: Option<String>,
    /// In a container, with files of its own.
    pub contained: bool,
    /// Cgroups it makes.
    pub cgroup_births_per_hour: Option<f64>,
}

/// What one unit did while it was watched.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Activity {
    /// It runs or is about to.
    pub active: Option<bool>,
    pub restarts_per_hour: Option<f64>,
    /// Cgroups made below its own, or by its processes.
    pub cgroup_births_per_hour: Option<f64>,
    /// Children that failed and were restarted.
    pub failed_children_per_hour: Option<f64>,
    /// Its latest messages, oldest first.
    pub log: Option<Vec<UnitLogLine>>,
    pub sockets: Option<Sockets>,
    /// Watched for this long, it used no CPU.
    pub idle: Option<Duration>,
}

/// Internet sockets of a unit whose processes could be inspected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sockets {
    pub listening: u64,
    pub connected: u64,
}

named! {
    pub enum Verdict {
        /// It starts but has no work here.
        Unused = "unused",
        /// It and another agent want the same thing.
        Conflict = "conflict",
        Fine = "fine",
        CannotTell = "cannot-tell",
    }
}

named! {
    /// How sure a verdict is.
    pub enum Certainty {
        Possible = "possible",
        Likely = "likely",
        Sure = "sure",
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReasonKind {
    ConfigMissing,
    CredentialsMissing,
    HardwareMissing,
    RegistrationErrors,
    CompetingOwner,
    OtherCloud,
    /// It restarts over and over.
    Restarts,
    /// Cgroups are made below it.
    CgroupsBorn,
    /// No open internet socket: supports other reasons, decides nothing.
    NoSockets,
    /// No CPU used: supports other reasons, decides nothing.
    Idle,
    /// It neither restarts nor makes cgroups.
    Harmless,
    /// It runs, but no unit starts it.
    NoUnit,
    /// It is not started at all.
    NotStarted,
    /// What speaks for it.
    Configured,
    /// It is at work: it has containers or network connections.
    AtWork,
    /// Something could not be seen.
    Unseen,
}

impl ReasonKind {
    /// Whether it alone says that an agent has no work here.
    pub fn is_against(self) -> bool {
        use ReasonKind::*;
        matches!(
            self,
            ConfigMissing | CredentialsMissing | HardwareMissing | RegistrationErrors | CompetingOwner | OtherCloud
        )
    }
}

/// A reason for a verdict, with its source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Reason {
    pub kind: ReasonKind,
    pub text: String,
    /// A file, a unit, a process.
    pub source: String,
}

/// Whether it does harm: restarts, or makes cgroups fast.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Harm {
    Seen,
    NotSeen,
    /// In an image nothing runs; on a node it was not watched for long enough.
    CannotSee,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Judgement {
    /// The unit, or the name of the process that runs without one.
    pub unit: String,
    /// Of a process without a unit.
    pub pid: Option<u32>,
    /// Its entry in the catalogue, and the description there.
    pub agent: String,
    pub what: String,
    pub verdict: Verdict,
    pub certainty: Certainty,
    pub why: Vec<Reason>,
    pub harm: Harm,
    /// Agents that want the same and have at least as good a claim.
    pub rivals: Vec<String>,
    /// What shows that it is in use.
    pub in_use: Vec<Reason>,
    /// An orchestrator: it places work on the node as if it owned it.
    pub owns_node: bool,
    /// It belongs to an image on disk.
    pub in_image: bool,
    /// It may be the only way in: report it, never remove it.
    pub report_only: bool,
    pub action: Action,
    /// `None` if the action is no command.
    pub command: Option<String>,
    /// When to run the command, or what somebody has to do.
    pub advice: Option<String>,
    /// All of that in one sentence.
    pub safe_step: String,
    pub does_not_fix: String,
}

impl Judgement {
    /// How many kinds of reasons say that it has no work here, not counting those that only support others.
    pub fn kinds_against(&self) -> usize {
        let mut kinds: Vec<ReasonKind> = self.why.iter().map(|r| r.kind).filter(|k| k.is_against()).collect();
        kinds.sort_unstable();
        kinds.dedup();
        kinds.len()
    }
}

impl fmt::Display for Judgement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} ({})", self.unit, self.verdict.as_str(), self.certainty.as_str())?;
        for reason in &self.why {
            write!(f, "; {}", reason.text)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
