//! Random names, cores and counts, so that no diagnosis can know the answer beforehand. The same seed draws the same.

/// SplitMix64: small, and good enough to draw names.
#[derive(Debug, Clone)]
pub struct Draw {
    state: u64,
}

impl Draw {
    pub fn new(seed: u64) -> Draw {
        Draw { state: seed }
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from `from` to `to`, both included.
    pub fn number(&mut self, from: u64, to: u64) -> u64 {
        from + self.next() % (to - from).saturating_add(1)
    }

    /// Four hex digits.
    pub fn tag(&mut self) -> String {
        format!("{:04x}", self.next() & 0xffff)
    }

    pub fn one_of<T: Copy>(&mut self, choices: &[T]) -> Option<T> {
        let last = choices.len().checked_sub(1)?;
        choices.get(self.number(0, last as u64) as usize).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_and_numbers_stay_in_range() {
        let (mut a, mut b) = (Draw::new(7), Draw::new(7));
        assert_eq!((a.tag(), a.number(3, 9)), (b.tag(), b.number(3, 9)));
        assert_ne!(Draw::new(1).tag(), Draw::new(2).tag());
        let drawn: Vec<u64> = (0..200).map(|_| a.number(3, 5)).collect();
        assert!([3, 4, 5].iter().all(|n| drawn.contains(n)) && drawn.iter().all(|n| (3..=5).contains(n)));
        assert_eq!(a.one_of::<u32>(&[]), None);
        assert_eq!(a.one_of(&[4]), Some(4));
    }

    #[test]
    fn every_core_is_drawn() {
        let mut drawn: Vec<u32> = (0..64).filter_map(|seed| Draw::new(seed).one_of(&[0, 1, 2, 3])).collect();
        drawn.sort_unstable();
        drawn.dedup();
        assert_eq!(drawn, [0, 1, 2, 3]);
    }
}
