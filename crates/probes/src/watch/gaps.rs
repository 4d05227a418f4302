//! Periods in which coroner itself did not run.

use coroner_evidence::{Evidence, Time, probe};
use std::time::Duration;

/// Ten missed looks. Shorter gaps are normal on a busy node.
const LONGEST: Duration = Duration::from_secs(1);

/// Finds gaps between looks at the cores.
#[derive(Debug, Default)]
pub struct Gaps {
    last: Option<Time>,
}

impl Gaps {
    /// Call at each look; `real` is the wall clock.
    pub fn note(&mut self, at: Time, real: Time, evidence: &mut Evidence) {
        let Some(hole) = self.last.replace(at).map(|last| at.since(last)).filter(|hole| *hole > LONGEST) else {
            return;
        };
        let from = Time(real.0.saturating_sub(hole.as_nanos() as u64));
        evidence.unseen(
            probe::CORES,
            format!(
                "what happened between {} and {} ({:.1} s)",
                time_of_day(from),
                time_of_day(real),
                hole.as_secs_f64()
            ),
            "coroner itself did not run: it was stopped or kept off every core",
            "check for processes with real-time priority, then run again",
        );
    }
}

/// `13:05:59Z`.
fn time_of_day(real: Time) -> String {
    let seconds = real.0 / 1_000_000_000 % 86_400;
    format!("{:02}:{:02}:{:02}Z", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_of_over_a_second_is_reported_and_a_tenth_is_not() {
        let mut gaps = Gaps::default();
        let mut evidence = Evidence::default();
        for (at, real) in [(100, 86_399_000), (200, 86_399_100), (1200, 86_400_100), (4700, 86_403_600)] {
            gaps.note(Time::from_millis(at), Time::from_millis(real), &mut evidence);
        }
        let [unseen] = evidence.unseen.as_slice() else { panic!("{:?}", evidence.unseen) };
        assert_eq!(unseen.what, "what happened between 00:00:00Z and 00:00:03Z (3.5 s)");
    }
}
