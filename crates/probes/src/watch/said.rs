//! What cannot be seen is said once, not at every look of months.

use coroner_evidence::{Evidence, Unseen};
use std::collections::HashSet;

/// More different things are not kept in mind, and not said: a message with a number in it may be new at every look.
const MOST: usize = 500;

#[derive(Debug, Default)]
pub struct Said(HashSet<Unseen>);

impl Said {
    /// Leaves in the evidence what was not said yet.
    pub fn leave_new(&mut self, evidence: &mut Evidence) {
        evidence.unseen.retain(|unseen| {
            if self.0.contains(unseen) || self.0.len() >= MOST {
                return false;
            }
            self.0.insert(unseen.clone())
        });
    }

    /// Everything is to be said again.
    pub fn forget(&mut self) {
        self.0 = HashSet::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn once_and_not_without_end() {
        let mut said = Said::default();
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
