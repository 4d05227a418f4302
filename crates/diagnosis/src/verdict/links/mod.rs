//! What can cause what, one file each.
//!
//! A link looks at two findings and says whether the first caused the second, with its proofs; `None` if something speaks against it.

mod core_saturated_starves_nic;

use super::{Case, Proofs};
use crate::code::Code;
use crate::finding::{Fact, Finding};

pub struct LinkRule {
    pub from: &'static [Code],
    pub to: &'static [Code],
    pub examine: fn(&Case<'_>, cause: &Finding, effect: &Finding) -> Option<Linked>,
}

#[derive(Debug, Clone)]
pub struct Linked {
    /// The effect in words, as it follows from the cause.
    pub because: String,
    pub proofs: Proofs,
    pub evidence: Vec<Fact>,
}

pub const ALL: &[LinkRule] = &[core_saturated_starves_nic::LINK];

/// The surest link from one finding to another.
pub fn examine(case: &Case<'_>, cause: &Finding, effect: &Finding) -> Option<Linked> {
    ALL.iter()
        .filter(|link| link.from.contains(&cause.code) && link.to.contains(&effect.code))
        .filter_map(|link| (link.examine)(case, cause, effect))
        .max_by_key(|linked| linked.proofs.certainty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Otherwise two findings could cause each other, and neither would be a root.
    #[test]
    fn codes_never_lead_back_to_themselves() {
        for start in Code::ALL {
            let mut seen: BTreeSet<Code> = BTreeSet::new();
            let mut next = vec![*start];
            while let Some(code) = next.pop() {
                for link in ALL.iter().filter(|link| link.from.contains(&code)) {
                    for &to in link.to {
                        assert_ne!(to, *start, "{start} leads back to itself");
                        if seen.insert(to) {
                            next.push(to);
                        }
                    }
                }
            }
        }
    }
}
