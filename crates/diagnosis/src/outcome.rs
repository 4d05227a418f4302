//! What a diagnosis comes to, in a word.

use crate::{Code, Diagnosis, Severity};

/// What it comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// No finding of severity warning or worse.
    NothingWrong,
    /// None either, but whether a full core hurts anybody could not be told.
    TooLittleSeen,
    NoCauseFound,
    /// At least one verdict; how sure it is, it says itself.
    CauseFound,
}

impl Outcome {
    pub fn of(diagnosis: &Diagnosis) -> Outcome {
        match (diagnosis.conclusion.verdicts.is_empty(), diagnosis.worst() >= Some(Severity::Warning)) {
            (false, _) => Outcome::CauseFound,
            (true, true) => Outcome::NoCauseFound,
            (true, false) if is_blind_to_cores(diagnosis) => Outcome::TooLittleSeen,
            (true, false) => Outcome::NothingWrong,
        }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Outcome::NothingWrong => "nothing wrong",
            Outcome::TooLittleSeen => "too little seen",
            Outcome::NoCauseFound => "no cause found",
            Outcome::CauseFound => "cause found",
        }
    }
}

/// A rule that cannot tell says so under its own code.
fn is_blind_to_cores(diagnosis: &Diagnosis) -> bool {
    diagnosis.unseen.iter().any(|unseen| unseen.probe == Code::CoreSaturated.as_str())
}
