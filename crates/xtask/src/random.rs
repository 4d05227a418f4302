//! SplitMix64: the same seed gives the same numbers in every run.

pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn bits(&mut self, n: u32) -> u64 {
        self.next() >> (64 - n)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit.max(1)
    }

    pub fn between(&mut self, from: u64, until: u64) -> u64 {
        from + self.below(until - from)
    }

    pub fn index(&mut self, length: usize) -> usize {
        self.below(length as u64) as usize
    }

    pub fn unit(&mut self) -> f64 {
        self.bits(53) as f64 / (1u64 << 53) as f64
    }

    /// An index; favours small ones.
    pub fn skewed(&mut self, length: usize) -> usize {
        ((self.unit().powi(3) * length as f64) as usize).min(length - 1)
    }
}
