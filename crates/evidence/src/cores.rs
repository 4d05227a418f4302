//! Cores: sets of them, and how each spent its time.

use crate::time::Time;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The most cores a node can have: the largest NR_CPUS of any architecture (x86 with MAXSMP, powerpc).
pub const MAX_CORES: usize = 8192;

/// A set of cores, written the way the kernel does: `0-3,8`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct CoreSet(Vec<u32>);

/// No kernel supports more; bounds what a broken file makes us allocate.
const MAX_CORE: u32 = 65_535;

impl CoreSet {
    pub fn new(cores: impl IntoIterator<Item = u32>) -> CoreSet {
        let mut cores: Vec<u32> = cores.into_iter().collect();
        cores.sort_unstable();
        cores.dedup();
        CoreSet(cores)
    }

    /// Parses a list such as `0-3,8`. An empty text is the empty set.
    pub fn parse_list(text: &str) -> Option<CoreSet> {
        let mut cores = Vec::new();
        let text = text.trim();
        if text.is_empty() {
            return Some(CoreSet(cores));
        }
        for part in text.split(',') {
            let (first, last) = match part.split_once('-') {
                Some((a, b)) => (a.trim().parse::<u32>().ok()?, b.trim().parse::<u32>().ok()?),
                None => {
                    let a = part.trim().parse::<u32>().ok()?;
                    (a, a)
                }
            };
            // A valid list names each core once; an endless one would only fill our memory.
            if first > last || last > MAX_CORE || cores.len() > MAX_CORE as usize {
                return None;
            }
            cores.extend(first..=last);
        }
        Some(CoreSet::new(cores))
    }

    /// Parses a mask such as `ffffffff,00000003` (32-bit words, highest first).
    pub fn parse_mask(text: &str) -> Option<CoreSet> {
        let mut cores = Vec::new();
        for (word_index, word) in text.trim().rsplit(',').enumerate() {
            let bits = u32::from_str_radix(word.trim(), 16).ok()?;
            let base = u32::try_from(word_index).ok()?.checked_mul(32)?;
            if base > MAX_CORE {
                return None;
            }
            cores.extend((0..32).filter(|b| bits & (1 << b) != 0).map(|b| base + b));
        }
        Some(CoreSet::new(cores))
    }

    /// `ff`, `1,00000000`: as the kernel reads masks, in groups of 32 bits.
    pub fn to_mask(&self) -> String {
        let groups = self.0.last().map_or(1, |last| last / 32 + 1);
        let group = |n: u32| self.iter().filter(|core| core / 32 == n).fold(0u32, |bits, core| bits | 1 << (core % 32));
        let rest = (0..groups - 1).rev().map(|n| format!(",{:08x}", group(n)));
        format!("{:x}{}", group(groups - 1), rest.collect::<String>())
    }

    pub fn contains(&self, core: u32) -> bool {
        self.0.binary_search(&core).is_ok()
    }

    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().copied()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The core, if there is exactly one.
    pub fn single(&self) -> Option<u32> {
        match self.0.as_slice() {
            [only] => Some(*only),
            _ => None,
        }
    }
}

impl fmt::Display for CoreSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0.as_slice();
        let mut separator = "";
        while let Some(&first) = rest.first() {
            let run = rest.iter().zip(first..).take_while(|(core, expected)| *core == expected).count();
            let last = rest[run - 1];
            if first == last {
                write!(f, "{separator}{first}")?;
            } else {
                write!(f, "{separator}{first}-{last}")?;
            }
            separator = ",";
            rest = &rest[run..];
        }
        Ok(())
    }
}

impl From<CoreSet> for String {
    fn from(set: CoreSet) -> String {
        set.to_string()
    }
}

impl TryFrom<String> for CoreSet {
    type Error = String;
    fn try_from(text: String) -> Result<CoreSet, String> {
        CoreSet::parse_list(&text).ok_or_else(|| format!("not a list of cores: {text:?}"))
    }
}

/// All cores at one moment, as /proc/stat gave them. Offline cores are absent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CoreTimes {
    pub at: Time,
    pub cores: Vec<CoreTicks>,
}

/// Time spent by one core since boot, in ticks of 1/100 s (USER_HZ is 100 on every architecture we run on).
///
/// As in the kernel, `user` includes `guest` and `nice` includes `guest_nice`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CoreTicks {
    pub core: u32,
    pub user: u64,
    pub nice: u64,
    pub system: u64,
    pub idle: u64,
    pub iowait: u64,
    pub irq: u64,
    pub softirq: u64,
    pub steal: u64,
}

pub const TICKS_PER_SECOND: u64 = 100;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lists_and_masks_name_the_same_cores() {
        let list = CoreSet::parse_list("0-3,8,40").unwrap();
        assert_eq!(CoreSet::parse_mask("100,0000010f").unwrap(), list);
        assert_eq!(list.to_string(), "0-3,8,40");
        assert_eq!(CoreSet::parse_list("").unwrap().len(), 0);
        assert_eq!(CoreSet::parse_list("3-1"), None);
        assert_eq!(CoreSet::parse_list("0-4000000000"), None);
        assert_eq!(CoreSet::parse_list(&"0-65535,".repeat(10_000)), None);
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_or_refused(text in ".{0,80}") {
            let _ = CoreSet::parse_list(&text);
            let _ = CoreSet::parse_mask(&text);
        }

        #[test]
        fn a_set_survives_its_text_form(cores in proptest::collection::vec(0u32..2000, 0..50)) {
            let set = CoreSet::new(cores);
            prop_assert_eq!(CoreSet::parse_list(&set.to_string()), Some(set));
        }
    }
}
