use crate::finding::Answer;
use coroner_evidence::Evidence;

pub fn examine(_evidence: &Evidence) -> Answer {
    Answer::CannotTell { because: "not built yet".into(), how_to_see: String::new() }
}
