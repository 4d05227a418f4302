//! One record of the ring, from its bytes (include/uapi/linux/perf_event.h: enum perf_event_type).

use crate::perf::HEADER;
use crate::perf::record::{COMM, SAMPLE};

/// From here up (to -1) a number in a chain is not an address but says what the next ones are: PERF_CONTEXT_MAX.
const CONTEXT_MARKS: u64 = -4095i64 as u64;

/// TASK_COMM_LEN, less its zero.
const LONGEST_COMM: usize = 15;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Record<'a> {
    Sample(Sample<'a>),
    /// A thread is called so from now on.
    Named(u32, &'a [u8]),
    Other,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sample<'a> {
    /// Of the process; 0 for the idle task and for those outside our pid namespace, `u32::MAX` for one that is about to be gone.
    pub pid: u32,
    /// Of the thread, in the same way.
    pub tid: u32,
    /// CLOCK_MONOTONIC.
    pub time_ns: u64,
    chain: &'a [u8],
}

impl<'a> Sample<'a> {
    /// Addresses from the innermost function to the outermost.
    pub fn chain(&self) -> impl Iterator<Item = u64> + use<'a> {
        self.chain.chunks_exact(8).map(word).filter(|&address| address < CONTEXT_MARKS)
    }
}

/// Eight bytes of the machine's own order.
fn word(bytes: &[u8]) -> u64 {
    bytes.try_into().map_or(0, u64::from_ne_bytes)
}

fn half(bytes: &[u8]) -> Option<u32> {
    bytes.try_into().ok().map(u32::from_ne_bytes)
}

/// `None` if the record is shorter than its kind.
pub(super) fn parse(record: &[u8]) -> Option<Record<'_>> {
    let kind = half(record.get(..4)?)?;
    let body = record.get(HEADER..)?;
    let field = |i: usize| body.get(i * 8..i * 8 + 8).map(word);
    Some(match kind {
        SAMPLE => {
            let (pid, tid) = (half(body.get(..4)?)?, half(body.get(4..8)?)?);
            let time_ns = field(1)?;
            let frames = usize::try_from(field(2)?).ok()?;
            let chain = body.get(24..)?.get(..frames.checked_mul(8)?)?;
            Record::Sample(Sample { pid, tid, time_ns, chain })
        }
        COMM => {
            let tid = half(body.get(4..8)?)?;
            let name = body.get(8..)?;
            let name = &name[..name.iter().position(|&b| b == 0).unwrap_or(name.len()).min(LONGEST_COMM)];
            if name.is_empty() { Record::Other } else { Record::Named(tid, name) }
        }
        _ => Record::Other,
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    fn record(kind: u32, body: &[u8]) -> Vec<u8> {
        let mut bytes = kind.to_ne_bytes().to_vec();
        bytes.extend_from_slice(&[0, 0]);
        bytes.extend_from_slice(&((HEADER + body.len()) as u16).to_ne_bytes());
        bytes.extend_from_slice(body);
        bytes
    }

    pub fn sample(pid: u32, time_ns: u64, chain: &[u64]) -> Vec<u8> {
        let mut body = pid.to_ne_bytes().to_vec();
        body.extend_from_slice(&(pid + 1).to_ne_bytes());
        body.extend_from_slice(&time_ns.to_ne_bytes());
        body.extend_from_slice(&(chain.len() as u64).to_ne_bytes());
        chain.iter().for_each(|address| body.extend_from_slice(&address.to_ne_bytes()));
        record(SAMPLE, &body)
    }

    #[test]
    fn records_as_the_kernel_writes_them() {
        let bytes = sample(42, 7, &[-128i64 as u64, 0xffff_ffff_8100_0010, 0xffff_ffff_8100_0020]);
        let Some(Record::Sample(found)) = parse(&bytes) else { panic!("a sample") };
        assert_eq!((found.pid, found.tid, found.time_ns), (42, 43, 7));
        assert_eq!(found.chain().collect::<Vec<_>>(), [0xffff_ffff_8100_0010, 0xffff_ffff_8100_0020]);
        assert_eq!(parse(&record(1, &[1])), Some(Record::Other));
        let named = |pid: u32, thread: u32| {
            let mut body = [pid.to_ne_bytes(), thread.to_ne_bytes()].concat();
            body.extend_from_slice(b"cat\0\0\0\0\0");
            record(COMM, &body)
        };
        assert_eq!(parse(&named(7, 7)), Some(Record::Named(7, b"cat")));
        assert_eq!(parse(&named(7, 8)), Some(Record::Named(8, b"cat")), "threads have names of their own");
    }

    #[test]
    fn a_chain_that_claims_more_than_there_is() {
        let mut bytes = sample(1, 1, &[1, 2, 3]);
        bytes[24..32].copy_from_slice(&u64::MAX.to_ne_bytes());
        assert_eq!(parse(&bytes), None);
        bytes[24..32].copy_from_slice(&4u64.to_ne_bytes());
        assert_eq!(parse(&bytes), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_record_or_none(kind in 0u32..20, bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            for record in [record(kind, &bytes), bytes] {
                if let Some(Record::Sample(sample)) = parse(&record) {
                    prop_assert!(sample.chain().count() * 8 <= record.len());
                }
            }
        }

        #[test]
        fn what_was_sampled_comes_back(pid in 0u32..u32::MAX, time_ns: u64, chain in proptest::collection::vec(0..CONTEXT_MARKS, 0..130)) {
            let bytes = sample(pid, time_ns, &chain);
            let Some(Record::Sample(found)) = parse(&bytes) else { return Err(TestCaseError::fail("no sample")) };
            prop_assert_eq!((found.pid, found.time_ns), (pid, time_ns));
            prop_assert_eq!(found.chain().collect::<Vec<_>>(), chain);
        }
    }
}
