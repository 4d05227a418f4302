//! A core's sampling rate: it may change during the recording and differs between cores.

const KEPT: usize = 8;
/// This many similar distances in a row, far from the usual one, are a new rate.
const ALIKE: usize = 4;

/// The usual distance between a core's latest samples.
#[derive(Clone, Debug, Default)]
pub(super) struct Pace {
    /// The latest distances, the newest last.
    distances: Vec<u64>,
    median: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    None,
    /// Sampling became slower: the latest apparent gaps were none.
    Slower,
}

impl Pace {
    /// 0 while unknown.
    pub fn interval(&self) -> u64 {
        self.median
    }

    pub fn add(&mut self, distance: u64) -> Change {
        if self.distances.len() == KEPT {
            self.distances.remove(0);
        }
        self.distances.push(distance);
        if self.distances.len() > ALIKE {
            let latest = &self.distances[self.distances.len() - ALIKE..];
            let least = latest.iter().copied().min().unwrap_or(0);
            let most = latest.iter().copied().max().unwrap_or(0);
            let alike = most <= least.saturating_add(least / 2);
            if alike && (least > self.median.saturating_mul(2) || most < self.median / 2) {
                self.distances.drain(..self.distances.len() - ALIKE);
            }
        }
        let mut sorted = [0; KEPT];
        let sorted = &mut sorted[..self.distances.len()];
        sorted.copy_from_slice(&self.distances);
        sorted.sort_unstable();
        let before = std::mem::replace(&mut self.median, sorted[(sorted.len() - 1) / 2]);
        if before > 0 && self.median > before.saturating_mul(2) { Change::Slower } else { Change::None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_rate_needs_four_samples_and_one_gap_changes_nothing() {
        let mut pace = Pace::default();
        for _ in 0..20 {
            assert_eq!(pace.add(1_000), Change::None);
        }
        assert_eq!(pace.add(70_000), Change::None);
        assert_eq!(pace.interval(), 1_000);
        let changes: Vec<Change> = (0..4).map(|n| pace.add(20_000 + n)).collect();
        assert_eq!(changes, [Change::None, Change::None, Change::None, Change::Slower]);
        assert!((20_000..20_004).contains(&pace.interval()));
        (0..4).for_each(|_| assert_eq!(pace.add(1_000), Change::None));
        assert_eq!(pace.interval(), 1_000);
    }
}
