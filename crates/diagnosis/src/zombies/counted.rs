//! What is known of dead cgroups that were counted, but not named.

use coroner_evidence::{Evidence, TriedInVain, ZombieMethod, ZombieScan};

/// A recording without a scan has at least a count.
pub fn count_if_not_named(evidence: &mut Evidence) {
    if evidence.zombie_scans.is_empty() {
        evidence.zombie_scans.extend(scan_of_census(evidence));
    }
}

fn scan_of_census(evidence: &Evidence) -> Option<ZombieScan> {
    let census = evidence.cgroup_censuses.iter().max_by_key(|c| c.at)?;
    Some(ZombieScan {
        at: census.at,
        took_ns: census.took_ns,
        method: ZombieMethod::Count,
        version: census.version,
        tracked: census.tracked,
        live: Some(census.live).filter(|_| !census.truncated),
        dead: census.dying,
        leaving: 0,
        zombies: Vec::new(),
        below: Vec::new(),
        files: Vec::new(),
        holds: Vec::new(),
        files_unseen: None,
        truncated: None,
        instead_of: vec![TriedInVain {
            method: "bpf".to_owned(),
            why: "the recording has no scan of dead cgroups: there were few, or an older coroner made it".to_owned(),
            how_to_see: "run `coroner zombies` on the node".to_owned(),
        }],
    })
}
