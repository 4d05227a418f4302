//! A fast hash for short byte strings and short runs of ids, randomly seeded so that no file can make a table degenerate.

use std::hash::{BuildHasher, Hasher, RandomState};

const K0: u64 = 0x9e37_79b9_7f4a_7c15;
const K1: u64 = 0xbf58_476d_1ce4_e5b9;

/// A seed that differs from run to run.
pub fn random_seed() -> u64 {
    RandomState::new().hash_one(0u64)
}

#[inline(always)]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product as u64) ^ ((product >> 64) as u64)
}

/// The value keys are mixed with. Not a constant: a key equal to it makes the product zero whatever came before, so with a known
/// value one could write a file whose keys all collide.
#[inline(always)]
fn secret(seed: u64) -> u64 {
    seed.rotate_left(32) ^ K1
}

#[inline(always)]
fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// Mixes `bytes` into `seed`.
#[inline]
pub fn bytes(seed: u64, bytes: &[u8]) -> u64 {
    let n = bytes.len();
    let secret = secret(seed);
    let mut h = seed ^ (n as u64).wrapping_mul(K0);
    if n >= 16 {
        let mut at = 0;
        while at + 16 < n {
            h = fold(word(bytes, at) ^ secret, word(bytes, at + 8) ^ h);
            at += 16;
        }
        // The last sixteen bytes, overlapping what came before: no loop over a remainder.
        fold(word(bytes, n - 16) ^ secret, word(bytes, n - 8) ^ h)
    } else if n >= 8 {
        fold(word(bytes, 0) ^ secret, word(bytes, n - 8) ^ h)
    } else if n >= 4 {
        let a = u32::from_le_bytes(bytes[..4].try_into().expect("four bytes"));
        let b = u32::from_le_bytes(bytes[n - 4..].try_into().expect("four bytes"));
        fold((u64::from(a) << 32 | u64::from(b)) ^ secret, h ^ K1)
    } else if n > 0 {
        let packed = u64::from(bytes[0]) << 16 | u64::from(bytes[n / 2]) << 8 | u64::from(bytes[n - 1]);
        fold(packed ^ secret, h ^ K1)
    } else {
        fold(h, K1)
    }
}

/// Mixes a run of ids into `seed`.
#[inline]
pub fn ids(seed: u64, ids: &[u32]) -> u64 {
    let secret = secret(seed);
    let mut h = seed ^ (ids.len() as u64).wrapping_mul(K0);
    let mut pairs = ids.chunks_exact(2);
    for pair in &mut pairs {
        h = fold((u64::from(pair[0]) << 32 | u64::from(pair[1])) ^ secret, h ^ K0);
    }
    if let [last] = pairs.remainder() {
        h = fold(u64::from(*last) ^ secret, h ^ K0);
    }
    h
}

/// This hash as a `BuildHasher` for the standard tables.
#[derive(Clone, Debug)]
pub struct Seeded(u64);

impl Default for Seeded {
    fn default() -> Seeded {
        Seeded(random_seed())
    }
}

impl BuildHasher for Seeded {
    type Hasher = Mixer;

    fn build_hasher(&self) -> Mixer {
        Mixer { state: self.0, secret: secret(self.0) }
    }
}

pub struct Mixer {
    state: u64,
    secret: u64,
}

impl Hasher for Mixer {
    #[inline]
    fn write(&mut self, text: &[u8]) {
        self.state = bytes(self.state, text);
    }

    #[inline]
    fn write_u8(&mut self, word: u8) {
        self.write_u64(u64::from(word));
    }

    #[inline]
    fn write_u16(&mut self, word: u16) {
        self.write_u64(u64::from(word));
    }

    #[inline]
    fn write_u32(&mut self, word: u32) {
        self.state = fold(u64::from(word) ^ self.secret, self.state ^ K0);
    }

    #[inline]
    fn write_u64(&mut self, word: u64) {
        self.state = fold(word ^ self.secret, self.state ^ K0);
    }

    #[inline]
    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.state
    }
}
