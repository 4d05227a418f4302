//! The audit of agents: what starts on this node, or in this image, that has no work here.
//!
//! Everything is a pure function of unit files, of the [`catalogue`], and of the [`Surroundings`] that a live node or an image on
//! disk shows.

pub mod baseline;
pub mod catalogue;
mod judge;
mod starting;

pub use catalogue::{Agent, Catalogue, CatalogueError, Need, NeedKind, Role};
pub use judge::judge;
pub use starting::{Start, start_of};

use coroner_evidence::FileAnswer;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;

/// What is around the units.
#[derive(Debug, Clone, Default)]
pub struct Surroundings {
    /// False for an image on disk: then nothing runs that could be looked at.
    pub booted: bool,
    /// As [`coroner_evidence::Node::cloud`] names it.
    pub cloud: Option<String>,
    /// Names of the programs that run, as `comm` or as the last part of their path. `None` if that cannot be seen.
    pub processes: Option<Vec<String>>,
    /// Answers to [`Catalogue::questions`].
    pub files: Vec<FileAnswer>,
    /// What units did, by name; one that is not here was not seen.
    pub activity: BTreeMap<String, Activity>,
}

/// What one unit did while it was watched.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Activity {
    pub active: Option<bool>,
    pub restarts_per_hour: Option<f64>,
    /// Cgroups that were born below its own, or by its processes.
    pub cgroup_births_per_hour: Option<f64>,
    /// Its latest messages.
    pub log: Option<Vec<String>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// It starts, but has no work here.
    Unused,
    /// It and another both want the same thing.
    Conflict,
    Fine,
    CannotTell,
}

impl Verdict {
    pub fn as_str(self) -> &'static str {
        match self {
            Verdict::Unused => "unused",
            Verdict::Conflict => "conflict",
            Verdict::Fine => "fine",
            Verdict::CannotTell => "cannot-tell",
        }
    }
}

/// How sure a verdict is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Certainty {
    Possible,
    Likely,
    Sure,
}

impl Certainty {
    pub fn as_str(self) -> &'static str {
        match self {
            Certainty::Possible => "possible",
            Certainty::Likely => "likely",
            Certainty::Sure => "sure",
        }
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
    /// Cgroups are born below it.
    CgroupsBorn,
    /// It is not started at all.
    NotStarted,
    /// What speaks for it.
    Configured,
    /// Something could not be seen.
    Unseen,
}

/// Why a verdict is as it is, with the place that says so.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Reason {
    pub kind: ReasonKind,
    pub text: String,
    /// A file, a unit, a process.
    pub source: String,
}

/// Whether it does harm: restarts or makes cgroups fast.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Harm {
    Seen,
    NotSeen,
    /// In an image nothing runs; on a node it was not watched long enough.
    CannotSee,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Judgement {
    pub unit: String,
    /// Its entry in the catalogue, and what that is.
    pub agent: String,
    pub what: String,
    pub verdict: Verdict,
    pub certainty: Certainty,
    pub why: Vec<Reason>,
    pub harm: Harm,
    /// It may be the only way in: to be told, never to be removed.
    pub report_only: bool,
    pub safe_step: String,
    pub does_not_fix: String,
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

pub fn judgements(_evidence: &coroner_evidence::Evidence) -> Result<Vec<Judgement>, CatalogueError> {
    Ok(Vec::new())
}

pub fn drift(_evidence: &coroner_evidence::Evidence) -> Option<Result<baseline::Drift, baseline::BaselineError>> {
    None
}

#[cfg(test)]
mod tests;
