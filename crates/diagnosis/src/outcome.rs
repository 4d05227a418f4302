//! The outcome of a diagnosis in a word.

use crate::{Code, Diagnosis, Severity};
pub use coroner_report::Outcome;

impl Diagnosis {
    pub fn outcome(&self) -> Outcome {
        match (self.conclusion.verdicts.is_empty(), self.worst() >= Some(Severity::Warning)) {
            (false, _) => Outcome::CauseFound,
            (true, true) => Outcome::NoCauseFound,
            (true, false) if is_blind_to_cores(self) => Outcome::TooLittleSeen,
            (true, false) => Outcome::NothingWrong,
        }
    }
}

/// A rule that cannot tell is listed as unseen under its code.
fn is_blind_to_cores(diagnosis: &Diagnosis) -> bool {
    diagnosis.unseen.iter().any(|unseen| unseen.probe == Code::CoreSaturated.as_str())
}
