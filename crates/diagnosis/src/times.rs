//! Since when something was so, until when, or whether it goes on.

use crate::ties::Ties;
use coroner_evidence::Evidence;
use coroner_report::TimeSpan;
use std::time::Duration;

/// Cores are read ten times a second, threads less often: what held this soon held when watching began.
pub const FIRST_LOOK: Duration = Duration::from_secs(1);

/// What was not seen for this long before the end of the window counts as over. Threads are read every second.
pub const OVER_AFTER: Duration = Duration::from_secs(10);

/// From the times that a rule noted. What has none is a state: it holds at the end of the window.
///
/// What was last seen before the window is over, however short the window is: a line of the kernel log is an event, and only a
/// line of the watched time says that it goes on.
pub fn of(evidence: &Evidence, ties: &Ties) -> TimeSpan {
    let Some(window) = evidence.window() else { return TimeSpan::default() };
    let when = ties.when;
    let uncertainty = when.map_or(Duration::ZERO, |when| when.uncertainty);
    let until = ties.until.or(when.map(|when| when.to));
    let ongoing = until.is_none_or(|until| {
        let latest = until + uncertainty.min(OVER_AFTER);
        latest >= window.from && window.to.since(latest) < OVER_AFTER
    });
    let from = ties.since.into_iter().chain(when.map(|when| when.from)).min();
    let already = from
        .is_some_and(|from| from >= window.from && from <= window.from + FIRST_LOOK && window.length() > FIRST_LOOK);
    let wall = |at| evidence.clocks.last().map(|clocks| clocks.wall_of(at));
    TimeSpan {
        from: from.and_then(wall),
        already,
        until: until.filter(|_| !ongoing).and_then(wall),
        ongoing,
        uncertainty_ms: u64::try_from(uncertainty.as_millis()).unwrap_or(u64::MAX),
    }
}

/// Whether it was last seen before watching began.
pub fn was_before(evidence: &Evidence, ties: &Ties) -> bool {
    let until = ties.until.or(ties.when.map(|when| when.to));
    let uncertainty = ties.when.map_or(Duration::ZERO, |when| when.uncertainty);
    evidence.window().zip(until).is_some_and(|(window, until)| until + uncertainty.min(OVER_AFTER) < window.from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::test_evidence::{END, start, watched};
    use crate::ties::When;
    use coroner_evidence::{Time, Wall};

    fn until(at: Time) -> Ties {
        Ties { until: Some(at), ..Ties::default() }
    }

    #[test]
    fn a_state_goes_on() {
        assert_eq!(of(&watched(5), &Ties::default()), TimeSpan::default());
    }

    #[test]
    fn what_ended_ten_seconds_before_the_end_is_over() {
        let evidence = watched(60);
        let just = of(&evidence, &until(END - Duration::from_millis(9_999)));
        assert!(just.ongoing && just.until.is_none());
        let over = of(&evidence, &until(END - Duration::from_secs(10)));
        assert_eq!(
            (over.ongoing, over.until),
            (false, Some(Wall(1_750_000_000_000_000_000) - Duration::from_secs(10)))
        );
    }

    #[test]
    fn what_was_last_seen_before_a_short_watch_is_over() {
        let evidence = watched(5);
        assert!(!of(&evidence, &until(start(6))).ongoing, "the line is older than the watch");
        assert!(of(&evidence, &until(start(4))).ongoing);
        // The log's clock may be off.
        let uncertain = Ties { when: Some(When::at(start(6), Duration::from_secs(2))), ..Ties::default() };
        let time = of(&evidence, &uncertain);
        assert_eq!((time.ongoing, time.uncertainty_ms), (true, 2_000));
        assert!(was_before(&evidence, &until(start(6))) && !was_before(&evidence, &uncertain));
        assert!(!was_before(&evidence, &Ties::default()), "a state holds now");
    }

    #[test]
    fn what_held_at_the_first_look_may_have_begun_earlier() {
        let evidence = watched(60);
        let at = |seconds| Ties { since: Some(start(seconds)), ..Ties::default() };
        assert!(of(&evidence, &at(60)).already);
        let begun = of(&evidence, &at(30));
        assert!(!begun.already && begun.ongoing);
        assert_eq!(begun.from, Some(Wall(1_750_000_000_000_000_000) - Duration::from_secs(30)));
    }
}
