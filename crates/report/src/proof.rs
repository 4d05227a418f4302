//! What shows that one thing caused another, and how sure that is.

use crate::named;
use serde::{Deserialize, Serialize};

/// One of the three things that a link must show.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Proof {
    /// What shows it.
    Shown(String),
    /// What was not seen, or why; nothing speaks against it.
    NotSeen(String),
}

impl Proof {
    pub fn shown(text: impl Into<String>) -> Proof {
        Proof::Shown(text.into())
    }

    pub fn not_seen(why: impl Into<String>) -> Proof {
        Proof::NotSeen(why.into())
    }

    pub fn is_shown(&self) -> bool {
        matches!(self, Proof::Shown(_))
    }

    pub fn text(&self) -> &str {
        match self {
            Proof::Shown(text) | Proof::NotSeen(text) => text,
        }
    }
}

/// If something speaks against a link, there is no link and there are no proofs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proofs {
    /// Both are about the same unit, cgroup, core, queue or process.
    pub identity: Proof,
    /// The cause came first, however far the clocks are off.
    pub order: Proof,
    /// The cause is large enough to explain the effect.
    pub size: Proof,
}

impl Proofs {
    pub fn certainty(&self) -> Certainty {
        let others = u8::from(self.order.is_shown()) + u8::from(self.size.is_shown());
        match (self.identity.is_shown(), others) {
            (true, 2) => Certainty::Proven,
            (true, 1) => Certainty::Likely,
            _ => Certainty::Possible,
        }
    }
}

named! {
    /// *Proven*: all three proofs. *Likely*: identity and one of the other two; the third was not seen. *Possible*: less than that.
    /// A verdict is as certain as the weakest link on the way from its root to its worst effect.
    pub enum Certainty {
        Possible = "possible",
        Likely = "likely",
        Proven = "proven",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_all_three_proofs_prove_a_link() {
        let shown = || Proof::shown("x");
        let hidden = || Proof::not_seen("y");
        let of = |identity, order, size| Proofs { identity, order, size }.certainty();
        assert_eq!(of(shown(), shown(), shown()), Certainty::Proven);
        assert_eq!(of(shown(), hidden(), shown()), Certainty::Likely);
        assert_eq!(of(shown(), shown(), hidden()), Certainty::Likely);
        assert_eq!(of(shown(), hidden(), hidden()), Certainty::Possible);
        assert_eq!(of(hidden(), shown(), shown()), Certainty::Possible, "order and size alone explain nothing");
    }
}
