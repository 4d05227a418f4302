//! When something was: since when, until when, or still.

use crate::Wall;
use serde::{Deserialize, Serialize};

/// The time of a finding or verdict. A document without it comes from a version that did not tell: then it counts as ongoing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct TimeSpan {
    /// When it began, or was first seen; `None` if unknown.
    pub from: Option<Wall>,
    /// It was already so when watching began, so it may have begun before `from`.
    pub already: bool,
    /// When it ended, or was last seen. `None` while it goes on.
    pub until: Option<Wall>,
    /// It goes on at the end of the window.
    pub ongoing: bool,
    /// `from` and `until` may be off by this much: the kernel log has its own clock.
    pub uncertainty_ms: u64,
}

impl Default for TimeSpan {
    fn default() -> TimeSpan {
        TimeSpan { from: None, already: false, until: None, ongoing: true, uncertainty_ms: 0 }
    }
}

impl TimeSpan {
    /// From the first beginning to the last end; ongoing if one of them is.
    pub fn around(all: impl IntoIterator<Item = TimeSpan>) -> TimeSpan {
        let joined = all.into_iter().reduce(|one, other| {
            let first = match (one.from, other.from) {
                (Some(a), Some(b)) if b < a => other,
                (None, Some(_)) => other,
                _ => one,
            };
            let ongoing = one.ongoing || other.ongoing;
            TimeSpan {
                from: first.from,
                already: first.already,
                until: one.until.max(other.until).filter(|_| !ongoing),
                ongoing,
                uncertainty_ms: one.uncertainty_ms.max(other.uncertainty_ms),
            }
        });
        joined.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(from: u64, until: Option<u64>) -> TimeSpan {
        TimeSpan { from: Some(Wall(from)), until: until.map(Wall), ongoing: until.is_none(), ..TimeSpan::default() }
    }

    #[test]
    fn several_are_one_from_the_first_to_the_last() {
        assert_eq!(TimeSpan::around([span(5, Some(9)), span(3, Some(4))]), span(3, Some(9)));
        assert_eq!(TimeSpan::around([span(5, None), span(3, Some(4))]), span(3, None));
        let unknown = TimeSpan::default();
        assert_eq!(TimeSpan::around([unknown, span(3, Some(4))]), span(3, None));
        assert_eq!(TimeSpan::around([]), unknown);
    }

    #[test]
    fn a_document_that_does_not_tell_goes_on() {
        assert_eq!(serde_json::from_str::<TimeSpan>("{}").unwrap(), TimeSpan::default());
    }
}
