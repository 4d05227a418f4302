//! How often an event is sampled, over all cores.

/// The most frequent distance between samples on all cores. If idle cores are not sampled, one core's distances say more about
/// its idle time than about the rate.
#[derive(Clone, Debug)]
pub(super) struct Usual {
    counts: Vec<u32>,
    added: u32,
    mode: u64,
}

/// Buckets per doubling.
const STEPS: u64 = 8;
/// After this many, older counts are halved.
const FORGET: u32 = 1 << 14;

impl Default for Usual {
    fn default() -> Usual {
        Usual { counts: vec![0; 64 * STEPS as usize], added: 0, mode: 0 }
    }
}

impl Usual {
    /// 0 while unknown.
    pub fn interval(&self) -> u64 {
        self.mode
    }

    pub fn add(&mut self, distance: u64) {
        let distance = distance.max(1);
        let power = u64::from(distance.ilog2());
        let within = ((u128::from(distance) * u128::from(STEPS)) >> power) as u64 - STEPS;
        let bucket = (power * STEPS + within) as usize;
        self.counts[bucket] += 1;
        self.added += 1;
        if self.added.is_power_of_two() || self.added >= FORGET {
            let most = self.counts.iter().enumerate().max_by_key(|(_, count)| **count);
            let at = most.map_or(0, |(at, _)| at as u64);
            let (power, within) = (at / STEPS, at % STEPS);
            // The middle of the bucket.
            self.mode = (((2 * (STEPS + within) + 1) as u128) << power >> (STEPS.ilog2() + 1)) as u64;
        }
        if self.added >= FORGET {
            self.counts.iter_mut().for_each(|count| *count /= 2);
            self.added = FORGET / 2;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_frequent_distance_is_found_within_an_eighth() {
        for interval in [1, 7, 1_001_001, 20_408_163, u64::MAX] {
            let mut usual = Usual::default();
            for n in 0..40_000u64 {
                usual.add(if n % 3 == 0 { n * 12_345 } else { interval });
            }
            let error = usual.interval().abs_diff(interval);
            assert!(error <= interval / 8, "{interval}: {}", usual.interval());
        }
    }
}
