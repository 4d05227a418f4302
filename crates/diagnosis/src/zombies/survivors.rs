//! Whose dead cgroups stay: those created while watching, followed by their ids ([`coroner_evidence::CgroupFate`]).
//!
//! Who merely creates and removes many is not to blame: the kernel frees what nothing holds. Blame needs survivors.

use super::makers::Kind;
use coroner_evidence::{CgroupFate, Evidence, Time, ZombieScan};
use std::collections::{HashMap, HashSet};

/// If no scan came after them: fewer of a process's removed cgroups than this part are just being freed.
const BEING_FREED: usize = 10;

/// By who created them, and what.
pub type Survivors<'e> = HashMap<(Kind<'e>, &'e str, &'e str), Survived<'e>>;

/// What became of the cgroups that processes of one kind created while watched.
#[derive(Debug)]
pub struct Survived<'e> {
    pub example: &'e CgroupFate,
    pub born: u64,
    pub freed: u64,
    /// Removed, not freed, and among the dead of the scan, if it was made afterwards.
    pub ids: Vec<u64>,
}

/// `None` if nobody followed them: a recording of an older version, or no tracepoints.
pub fn survivors<'e>(evidence: &'e Evidence, scan: Option<&ZombieScan>, until: Option<Time>) -> Option<Survivors<'e>> {
    if evidence.cgroup_fates.is_empty() {
        return None;
    }
    let named = scan.filter(|scan| scan.method.is_bpf() && scan.truncated.is_none()).map(Named::of);
    let mut survivors: Survivors<'e> = HashMap::new();
    let mut freed: HashSet<u64> = HashSet::new();
    let rows = || evidence.cgroup_fates.iter().filter(|row| until.is_none_or(|until| row.from <= until));
    for row in rows() {
        freed.extend(&row.left_freed);
    }
    // An id may be used again, but not within the time that a watch takes to tell it.
    for row in rows() {
        let key = (Kind::of(&row.maker), row.parent.as_str(), row.pattern.as_str());
        let of_it =
            survivors.entry(key).or_insert_with(|| Survived { example: row, born: 0, freed: 0, ids: Vec::new() });
        of_it.example = row;
        of_it.born = of_it.born.saturating_add(row.born);
        of_it.freed = of_it.freed.saturating_add(row.freed);
        let stays = |id: &&u64| !freed.contains(id) && named.as_ref().is_none_or(|named| named.may_have(row.to, **id));
        of_it.ids.extend(row.left.iter().filter(stays));
    }
    for of_it in survivors.values_mut() {
        of_it.ids.sort_unstable();
        of_it.ids.dedup();
        let checked = named.as_ref().is_some_and(|named| named.at >= of_it.example.to);
        let removed = of_it.ids.len().saturating_add(usize::try_from(of_it.freed).unwrap_or(usize::MAX));
        if !checked && of_it.ids.len().saturating_mul(BEING_FREED) <= removed {
            of_it.ids.clear();
        }
    }
    Some(survivors)
}

/// The dead of a scan, by id.
struct Named {
    at: Time,
    ids: HashSet<u64>,
    /// Before Linux 5.5 the upper half of an id is a generation, which tracepoints do not print.
    lower_halves: HashSet<u32>,
}

impl Named {
    fn of(scan: &ZombieScan) -> Named {
        let with_generation = scan.zombies.iter().filter(|zombie| zombie.id > u64::from(u32::MAX));
        Named {
            at: scan.at,
            ids: scan.zombies.iter().map(|zombie| zombie.id).collect(),
            lower_halves: with_generation.map(|zombie| zombie.id as u32).collect(),
        }
    }

    /// Whether one that was left at that time may still be there: it is in the scan, or the scan was made before.
    fn may_have(&self, left_at: Time, id: u64) -> bool {
        self.at < left_at
            || self.ids.contains(&id)
            || u32::try_from(id).is_ok_and(|lower| self.lower_halves.contains(&lower))
    }
}
