//! Bytes from the perf rings on their way to the store.

use coroner_evidence::Time;
use coroner_evidence::perf::{HEADER, kind, record_header};
use std::collections::BTreeMap;

/// Concatenated records of the perf rings, and where those of each core end.
#[derive(Debug, Default)]
pub struct Records {
    pub bytes: Vec<u8>,
    pub ends: Vec<(u32, usize)>,
    /// Set on the last piece of a round over all rings: everything recorded until then has been handed over.
    pub all_until: Option<Time>,
}

impl Records {
    /// Number of samples in here, by core.
    pub fn samples(&self) -> BTreeMap<u32, u64> {
        let mut counts = BTreeMap::new();
        let mut at = 0;
        for &(core, end) in &self.ends {
            while let Some(header) = self.bytes.get(at..at + HEADER).filter(|_| at < end) {
                let (kind, _, size) = record_header(header, false);
                if kind == kind::SAMPLE {
                    *counts.entry(core).or_default() += 1;
                }
                at += size.max(HEADER);
            }
            at = end;
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(kind: u32, size: u16) -> Vec<u8> {
        let mut bytes = vec![0; usize::from(size)];
        bytes[..4].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&size.to_ne_bytes());
        bytes
    }

    #[test]
    fn samples_are_counted_by_core() {
        let mut records = Records::default();
        for (core, kinds) in [(0, vec![9, 3, 9]), (5, vec![9])] {
            for kind in kinds {
                records.bytes.extend(record(kind, 24));
            }
            records.ends.push((core, records.bytes.len()));
        }
        assert_eq!(records.samples(), BTreeMap::from([(0, 2), (5, 1)]));
    }
}
