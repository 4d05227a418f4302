//! The kernel's counts for the children of one process with the same name.

use crate::churn::{long, text_until_nul, word};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Counts {
    pub parent_pid: u32,
    pub parent_comm: String,
    pub comm: String,
    pub exits: u64,
    pub failed: u64,
    pub failed_young: u64,
    /// Of the last failure: exactly one of the two is set.
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
}

impl Counts {
    /// Adds the counts of another parent with the same name.
    pub fn add(&mut self, other: &Counts) {
        self.exits = self.exits.saturating_add(other.exits);
        self.failed = self.failed.saturating_add(other.failed);
        self.failed_young = self.failed_young.saturating_add(other.failed_young);
    }
}

/// struct children of bpf/exits.bpf.c.
pub(super) type Key = [u8; 24];
/// struct failures.
pub(super) type Failures = [u8; 40];

/// The number of the interval.
pub(super) fn turn_of(key: &Key) -> u32 {
    word(key, 0)
}

/// `None` if nothing failed yet: the entry exists, but its first failure is still to be counted.
pub(super) fn parse(key: &Key, failures: &Failures, ended_well: u64) -> Option<Counts> {
    let (failed, failed_young) = (long(failures, 0), long(failures, 8));
    if failed == 0 {
        return None;
    }
    let (exit_code, signal) = ending(word(failures, 16));
    Some(Counts {
        parent_pid: word(key, 4),
        parent_comm: text_until_nul(&failures[24..]),
        comm: text_until_nul(&key[8..]),
        exits: failed.saturating_add(ended_well),
        failed,
        failed_young: failed_young.min(failed),
        exit_code,
        signal,
    })
}

/// Exit code or signal of a wait(2) status.
fn ending(status: u32) -> (Option<i32>, Option<i32>) {
    match status & 0x7f {
        0 => (Some((status >> 8 & 0xff) as i32), None),
        signal => (None, Some(signal as i32)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key(turn: u32, parent: u32, comm: &str) -> Key {
        let mut key = [0; 24];
        key[..4].copy_from_slice(&turn.to_ne_bytes());
        key[4..8].copy_from_slice(&parent.to_ne_bytes());
        key[8..8 + comm.len()].copy_from_slice(comm.as_bytes());
        key
    }

    fn failures(failed: u64, young: u64, status: u32, parent_comm: &str) -> Failures {
        let mut failures = [0; 40];
        failures[..8].copy_from_slice(&failed.to_ne_bytes());
        failures[8..16].copy_from_slice(&young.to_ne_bytes());
        failures[16..20].copy_from_slice(&status.to_ne_bytes());
        failures[24..24 + parent_comm.len()].copy_from_slice(parent_comm.as_bytes());
        failures
    }

    #[test]
    fn counts_include_how_the_last_failure_ended() {
        let counts = parse(&key(3, 400, "agent"), &failures(5, 4, 7 << 8, "supervisor"), 2).unwrap();
        let expected = Counts {
            parent_pid: 400,
            parent_comm: "supervisor".into(),
            comm: "agent".into(),
            exits: 7,
            failed: 5,
            failed_young: 4,
            exit_code: Some(7),
            signal: None,
        };
        assert_eq!(counts, expected);
        assert_eq!(turn_of(&key(3, 400, "agent")), 3);
        assert_eq!(parse(&key(3, 400, "agent"), &failures(0, 0, 0, "supervisor"), 2), None);
        assert_eq!(ending(11 | 0x80), (None, Some(11)), "with a core dump");
        assert_eq!(ending(255 << 8), (Some(255), None));
    }

    proptest! {
        #[test]
        fn any_bytes(key in proptest::array::uniform24(any::<u8>()), value in proptest::collection::vec(any::<u8>(), 40), well in any::<u64>()) {
            let counts = parse(&key, &value.try_into().unwrap(), well);
            if let Some(counts) = counts {
                prop_assert!(counts.failed_young <= counts.failed && counts.failed <= counts.exits);
                prop_assert!(counts.exit_code.is_some() != counts.signal.is_some());
            }
        }
    }
}
