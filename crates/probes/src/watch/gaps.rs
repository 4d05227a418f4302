//! Periods in which coroner itself did not run.

use coroner_evidence::{Clocks, Wall};
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
    /// Call at each look.
    pub fn note(&mut self, Clocks { at, wall, .. }: Clocks, evidence: &mut Evidence) {
        let Some(hole) = self.last.replace(at).map(|last| at.since(last)).filter(|hole| *hole > LONGEST) else {
            return;
        };
        evidence.unseen(
            probe::CORES,
            format!(
                "what happened between {} and {} ({:.1} s)",
                time_of_day(wall - hole),
                time_of_day(wall),
                hole.as_secs_f64()
            ),
            "coroner itself did not run: it was stopped or kept off every core",
            "check for processes with real-time priority, then run again",
        );
    }
}

/// `13:05:59Z`.
fn time_of_day(wall: Wall) -> String {
    let seconds = wall.0 / 1_000_000_000 % 86_400;
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
            let (at, wall) = (Time::from_millis(at), Wall(real * 1_000_000));
            gaps.note(Clocks { at, wall, boot_ns: 0 }, &mut evidence);
        }
        let [unseen] = evidence.unseen.as_slice() else { panic!("{:?}", evidence.unseen) };
        assert_eq!(unseen.what, "what happened between 00:00:00Z and 00:00:03Z (3.5 s)");
    }
}
