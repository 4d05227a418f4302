//! Checks on many bytes at once. Every x86-64 has SSE2; elsewhere eight bytes at a time in a register.

#[cfg(not(target_arch = "x86_64"))]
pub(super) use portable::{digits_and_spaces, equal, hex_and_spaces, newlines};
#[cfg(target_arch = "x86_64")]
pub(super) use sse2::{digits_and_spaces, equal, hex_and_spaces, newlines};

/// Finds the end of each line of `text`; overwrites `ends`. Readers pass buffers far smaller than the 4 GiB that u32 allows.
pub(super) fn line_ends(text: &[u8], ends: &mut Vec<u32>) {
    let mut found = 0;
    let mut base = 0u32;
    let (blocks, rest) = text.as_chunks::<64>();
    for block in blocks {
        if ends.len() < found + 64 {
            ends.resize(ends.len() * 2 + 1024, 0);
        }
        let mut bits = newlines(block);
        let Some(room) = ends[found..].first_chunk_mut::<64>() else { break };
        // Most blocks have one or two. Always writing three and counting the valid ones avoids mispredicted branches.
        for place in &mut room[..3] {
            *place = base + bits.trailing_zeros();
            found += usize::from(bits != 0);
            bits &= bits.wrapping_sub(1);
        }
        for place in &mut room[3..] {
            if bits == 0 {
                break;
            }
            *place = base + bits.trailing_zeros();
            found += 1;
            bits &= bits - 1;
        }
        base += 64;
    }
    ends.truncate(found);
    ends.extend((base..).zip(rest).filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at));
}

/// The only place that uses processor intrinsics.
#[cfg(target_arch = "x86_64")]
mod sse2 {
    use std::arch::x86_64::*;

    // SAFETY of all calls here: SSE2 is part of x86-64, and loads take whole arrays.

    #[inline(always)]
    fn load(bytes: &[u8; 16]) -> __m128i {
        unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
    }

    #[inline(always)]
    fn equal_16(a: &[u8; 16], b: __m128i) -> u32 {
        unsafe { _mm_movemask_epi8(_mm_cmpeq_epi8(load(a), b)) as u32 }
    }

    #[inline(always)]
    pub fn newlines(block: &[u8; 64]) -> u64 {
        let newline = unsafe { _mm_set1_epi8(b'\n' as i8) };
        let parts = block.as_chunks::<16>().0;
        let part = |n: usize| u64::from(equal_16(&parts[n], newline)) << (16 * n);
        part(0) | part(1) | part(2) | part(3)
    }

    /// A bit for each byte in which the two are equal.
    #[inline(always)]
    pub fn equal(a: &[u8; 32], b: &[u8; 32]) -> u32 {
        let (a, b) = (a.as_chunks::<16>().0, b.as_chunks::<16>().0);
        equal_16(&a[0], load(&b[0])) | equal_16(&a[1], load(&b[1])) << 16
    }

    #[inline(always)]
    fn at_most(x: __m128i, most: u8) -> __m128i {
        unsafe { _mm_cmpeq_epi8(_mm_min_epu8(x, _mm_set1_epi8(most as i8)), x) }
    }

    #[inline(always)]
    fn minus(x: __m128i, byte: u8) -> __m128i {
        unsafe { _mm_sub_epi8(x, _mm_set1_epi8(byte as i8)) }
    }

    /// Bits of the bytes that are decimal digits, and of those that are spaces.
    #[inline(always)]
    pub fn digits_and_spaces(bytes: &[u8; 16]) -> (u32, u32) {
        let text = load(bytes);
        let digits = unsafe { _mm_movemask_epi8(at_most(minus(text, b'0'), 9)) as u32 };
        (digits, equal_16(bytes, unsafe { _mm_set1_epi8(b' ' as i8) }))
    }

    /// Bits of the bytes that are lower-case hexadecimal digits, and of those that are spaces.
    #[inline(always)]
    pub fn hex_and_spaces(bytes: &[u8; 16]) -> (u32, u32) {
        let text = load(bytes);
        let hex = unsafe { _mm_or_si128(at_most(minus(text, b'0'), 9), at_most(minus(text, b'a'), 5)) };
        (unsafe { _mm_movemask_epi8(hex) as u32 }, equal_16(bytes, unsafe { _mm_set1_epi8(b' ' as i8) }))
    }
}

/// The same for other processors.
#[cfg(any(not(target_arch = "x86_64"), test))]
mod portable {
    const EACH: u64 = 0x0101_0101_0101_0101;
    const TOP: u64 = 0x8080_8080_8080_8080;

    #[inline(always)]
    fn word(bytes: &[u8; 8]) -> u64 {
        u64::from_le_bytes(*bytes)
    }

    /// Gathers the top bit of each byte into eight bits.
    #[inline(always)]
    fn gather(tops: u64) -> u64 {
        (tops >> 7).wrapping_mul(0x0102_0408_1020_4080) >> 56
    }

    /// Sets the top bit of each byte that is 0.
    #[inline(always)]
    fn zeros(word: u64) -> u64 {
        !((word & !TOP).wrapping_add(!TOP) | word) & TOP
    }

    #[inline(always)]
    pub fn newlines(block: &[u8; 64]) -> u64 {
        let parts = block.as_chunks::<8>().0.iter().enumerate();
        parts.fold(0, |bits, (n, part)| bits | gather(zeros(word(part) ^ (u64::from(b'\n') * EACH))) << (8 * n))
    }

    #[inline(always)]
    pub fn equal(a: &[u8; 32], b: &[u8; 32]) -> u32 {
        let parts = a.as_chunks::<8>().0.iter().zip(b.as_chunks::<8>().0).enumerate();
        parts.fold(0, |bits, (n, (a, b))| bits | (gather(zeros(word(a) ^ word(b))) as u32) << (8 * n))
    }

    #[inline(always)]
    pub fn digits_and_spaces(bytes: &[u8; 16]) -> (u32, u32) {
        (within(bytes, b'0', b'9'), within(bytes, b' ', b' '))
    }

    #[inline(always)]
    pub fn hex_and_spaces(bytes: &[u8; 16]) -> (u32, u32) {
        (within(bytes, b'0', b'9') | within(bytes, b'a', b'f'), within(bytes, b' ', b' '))
    }

    /// Bits of the bytes from `first` to `last`, both ASCII.
    #[inline(always)]
    fn within(bytes: &[u8; 16], first: u8, last: u8) -> u32 {
        let parts = bytes.as_chunks::<8>().0.iter().enumerate();
        parts.fold(0, |bits, (n, part)| {
            let word = word(part);
            // Adding 0x80 - x sets the top bit where a byte below 0x80 is at least x, and nothing carries over.
            let at_least = |byte: u8| (word & !TOP).wrapping_add(u64::from(0x80 - byte) * EACH);
            bits | (gather(at_least(first) & !at_least(last + 1) & !word & TOP) as u32) << (8 * n)
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bits(bytes: &[u8], is: impl Fn(u8) -> bool) -> u64 {
        bytes.iter().enumerate().fold(0, |bits, (n, byte)| bits | u64::from(is(*byte)) << n)
    }

    /// Boundary bytes of the checks, and any others.
    fn byte() -> impl Strategy<Value = u8> {
        prop_oneof![proptest::sample::select(b"\n\t /09:`afg\x80\xb0\xe1\x8a\xa0\0\xff".to_vec()), any::<u8>()]
    }

    proptest! {
        #[test]
        fn both_implementations_are_right(
            block in proptest::collection::vec(byte(), 64),
            other in proptest::collection::vec(byte(), 32),
        ) {
            let block: [u8; 64] = block.try_into().expect("64");
            let other: [u8; 32] = other.try_into().expect("32");
            let half: &[u8; 32] = block.first_chunk().expect("32");
            let quarter: &[u8; 16] = block.first_chunk().expect("16");
            let lines = bits(&block, |byte| byte == b'\n');
            prop_assert_eq!((newlines(&block), portable::newlines(&block)), (lines, lines));
            let alike = (0..32).fold(0, |bits, n| bits | u32::from(half[n] == other[n]) << n);
            prop_assert_eq!((equal(half, &other), portable::equal(half, &other)), (alike, alike));
            let hex = bits(quarter, |byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte)) as u32;
            let spaces = bits(quarter, |byte| byte == b' ') as u32;
            prop_assert_eq!(hex_and_spaces(quarter), (hex, spaces));
            prop_assert_eq!(portable::hex_and_spaces(quarter), (hex, spaces));
            let digits = bits(quarter, |byte| byte.is_ascii_digit()) as u32;
            prop_assert_eq!(digits_and_spaces(quarter), (digits, spaces));
            prop_assert_eq!(portable::digits_and_spaces(quarter), (digits, spaces));
        }

        #[test]
        fn line_ends_are_found(text in proptest::collection::vec(byte(), 0..500), thick in 0u8..3) {
            let text: Vec<u8> = text.iter().map(|byte| if byte % 3 < thick { b'\n' } else { *byte }).collect();
            let mut ends = vec![7; 3];
            line_ends(&text, &mut ends);
            let want: Vec<u32> = (0..text.len() as u32).filter(|at| text[*at as usize] == b'\n').collect();
            prop_assert_eq!(ends, want);
        }
    }
}
