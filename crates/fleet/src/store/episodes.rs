//! When a problem was there: the one rule of both stores.
//!
//! A diagnosis saw a problem from when until when. What was seen at most 15 minutes apart, in one boot, is one episode. It goes on if
//! its latest diagnosis did not say that it ended, and no later one of the node came without it; otherwise it ended when it was last
//! seen. So neither the order of diagnoses nor repeating them matters.

use crate::store::write::seconds;
use coroner_report::{Concluded, Problem};

/// A problem that was gone for at most this long is the same episode.
pub const SAME_WITHIN_S: i64 = 15 * 60;

/// The kernel log may tell of what was before the minutes of a diagnosis, but not long before.
const EARLIER_BY_S: i64 = 86_400;

/// A problem as one diagnosis, or several within the same 15 minutes, saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Observed {
    pub began: i64,
    pub seen_until: i64,
    /// The diagnosis said that it ended then.
    pub has_ended: bool,
}

impl Observed {
    pub fn of(problem: &Problem, concluded: &Concluded) -> Observed {
        let seen_until = seconds(problem.ended.map_or(concluded.until, |ended| ended.min(concluded.until)));
        // A node whose clock was wrong must not say since when all have it.
        let earliest = seconds(concluded.from) - EARLIER_BY_S;
        let began = seconds(problem.began.unwrap_or(concluded.from)).max(earliest).min(seen_until);
        Observed { began, seen_until, has_ended: problem.ended.is_some() }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    pub began: i64,
    pub seen_until: i64,
    /// `None` while it goes on.
    pub ended: Option<i64>,
    /// Which of those observed was the latest: its texts are those of the episode.
    pub latest: usize,
}

/// The episodes of one problem in one boot of one node, oldest first. `diagnosed_until`: of the node, whatever was found.
pub fn spans(observed: &[Observed], diagnosed_until: i64) -> Vec<Span> {
    let mut order: Vec<usize> = (0..observed.len()).collect();
    order.sort_by_key(|&at| (observed[at].began, observed[at].seen_until, observed[at].has_ended));
    let mut spans: Vec<Span> = Vec::new();
    for at in order {
        let one = observed[at];
        match spans.last_mut().filter(|span| one.began <= span.seen_until.saturating_add(SAME_WITHIN_S)) {
            Some(span) => {
                let before = observed[span.latest];
                if (one.seen_until, one.has_ended) >= (before.seen_until, before.has_ended) {
                    span.latest = at;
                }
                span.seen_until = span.seen_until.max(one.seen_until);
            }
            None => {
                spans.push(Span { began: one.began, seen_until: one.seen_until, ended: None, latest: at });
            }
        }
    }
    for span in &mut spans {
        let is_over = observed[span.latest].has_ended || span.seen_until < diagnosed_until;
        span.ended = is_over.then_some(span.seen_until);
    }
    spans
}
