//! Which processes hold the most memory. Their size is in `stat`, which is read anyway.

use coroner_evidence::{Evidence, MemoryHolder, Time};
use std::time::Duration;

use super::stat::{Stat, readable_name};

/// How many are reported.
const MOST: usize = 5;
/// How often, if nothing changes.
const EVERY: Duration = Duration::from_secs(60);
/// The largest is reported at once if it changed by this part of its size, and by at least this much.
const CHANGED_PART: u64 = 8;
const CHANGED_BYTES: u64 = 64 << 20;

#[derive(Debug, Default)]
pub struct Holders {
    /// Of the current look, the largest first.
    largest: Vec<MemoryHolder>,
    told: Option<MemoryHolder>,
}

impl Holders {
    pub fn begin(&mut self) {
        self.largest.clear();
    }

    /// Makes the next full look report them.
    pub fn tell_anew(&mut self) {
        self.told = None;
    }

    pub fn note(&mut self, at: Time, pid: u32, stat: &Stat<'_>) {
        let resident_bytes = stat.resident_pages.saturating_mul(rustix::param::page_size() as u64);
        let least = self.largest.last().map_or(0, |holder| holder.resident_bytes);
        if resident_bytes == 0 || self.largest.len() >= MOST && resident_bytes <= least {
            return;
        }
        let place = self.largest.partition_point(|holder| holder.resident_bytes >= resident_bytes);
        let holder = MemoryHolder { at, pid, started: stat.started, comm: readable_name(stat.comm), resident_bytes };
        self.largest.insert(place, holder);
        self.largest.truncate(MOST);
    }

    /// All of one look have the same time, so that they can be told from those of another.
    pub fn tell(&mut self, at: Time, evidence: &mut Evidence) {
        let Some(largest) = self.largest.first() else { return };
        let is_news = self.told.as_ref().is_none_or(|told| {
            let change = told.resident_bytes.abs_diff(largest.resident_bytes);
            at.since(told.at) >= EVERY
                || change >= CHANGED_BYTES
                    && (change >= told.resident_bytes / CHANGED_PART
                        || (told.pid, told.started) != (largest.pid, largest.started))
        });
        if !is_news {
            return;
        }
        self.told = Some(MemoryHolder { at, ..largest.clone() });
        evidence.memory_holders.extend(self.largest.drain(..).map(|holder| MemoryHolder { at, ..holder }));
    }
}
