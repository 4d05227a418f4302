//! Reports each unseen thing once, not at every look for months.

use coroner_evidence::{Evidence, Unseen};
use std::collections::HashSet;

/// Beyond this nothing new is reported: a message with a number in it may differ at every look.
const MOST: usize = 500;

#[derive(Debug, Default)]
pub struct ReportedUnseen(HashSet<Unseen>);

impl ReportedUnseen {
    /// Drops from the evidence what was already reported.
    pub fn leave_new(&mut self, evidence: &mut Evidence) {
        evidence.unseen.retain(|unseen| {
            if self.0.contains(unseen) || self.0.len() >= MOST {
                return false;
            }
            self.0.insert(unseen.clone())
        });
    }

    /// Everything may be reported again.
    pub fn forget(&mut self) {
        self.0 = HashSet::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_reported_once_and_the_number_is_bounded() {
        let mut said = ReportedUnseen::default();
        let mut say = |why: String| {
            let mut evidence = Evidence::default();
            evidence.unseen("cores", "x", why, "y");
            said.leave_new(&mut evidence);
            evidence.unseen.len()
        };
        assert_eq!(say("closed".into()), 1);
        assert_eq!(say("closed".into()), 0);
        let told: usize = (0..10_000).map(|n| say(format!("{n} were lost"))).sum();
        assert_eq!(told, MOST - 1);
    }
}
