//! Dead memory cgroups for people: a few groups instead of 70,000 names, each with what keeps it and who makes it, and what all of
//! them cost on this node.
//!
//! Everything is derived from the evidence: a scan names them ([`ZombieScan`]), earlier scans and the kernel's counts show how they
//! grow, churn shows who makes them, timed reads and samples of the kernel show what they cost.

pub mod cost;
pub mod counted;
pub mod folding;
pub mod groups;
pub mod growth;
pub mod makers;
pub mod pins;
pub mod survivors;

use coroner_evidence::{Born, Charged, Evidence, Time, ZombieScan};

pub use cost::{Cost, CostKind, CostLine, Ids, SampledWork, Structures};
pub use growth::{Growth, PerHour, RateFrom};
pub use makers::{Churn, MakerShare};
pub use pins::{FileGroup, Otherwise, OtherwiseKind, Pin};

/// What is known of the dead at the newest scan.
#[derive(Debug, Clone)]
pub struct ZombieReport<'e> {
    pub scan: &'e ZombieScan,
    /// What all of them hold.
    pub held: Charged,
    /// Most dead first, the rest last. Empty if the scan neither names them nor says where they died.
    pub groups: Vec<Group<'e>>,
    /// Who made and removed cgroups while watched, most births first; also those who left nothing behind.
    pub makers: Vec<MakerShare>,
    pub churn: Option<Churn>,
    pub cost: Cost,
    /// Of all dead ones, while watched.
    pub growth: Growth,
    pub per_hour: Option<PerHour>,
}

/// Dead cgroups that belong together.
#[derive(Debug, Clone)]
pub struct Group<'e> {
    /// The path, or with what differs folded: `/kubepods/burstable/pod*`.
    pub parent: String,
    /// Matches the names of all of them, see [`coroner_evidence::pattern_covers`].
    pub pattern: String,
    /// Set if all of them belong to this unit, pod or container.
    pub unit: Option<String>,
    pub pod_uid: Option<String>,
    pub container_id: Option<String>,
    /// The path of the youngest; of the parent if they have no names.
    pub example: String,
    /// `None` if the kernel does not count them by parent.
    pub dead: Option<u64>,
    pub held: Charged,
    pub oldest: Option<Born>,
    pub newest: Option<Born>,
    /// Of the removals that were watched: the kernel keeps no time of death.
    pub first_death: Option<Time>,
    pub last_death: Option<Time>,
    pub per_hour: Option<PerHour>,
    /// Every file that keeps them, the one that holds most first.
    pub pinned_by: Vec<Pin<'e>>,
    /// The same files by directory and name pattern, a handful, the most bytes first.
    pub pinned_in: Vec<FileGroup>,
    /// What keeps the rest, which no file explains.
    pub pinned_otherwise: Vec<Otherwise>,
    /// Who made and removed cgroups of this group while watched, most births first.
    pub makers: Vec<MakerShare>,
    /// What was made, removed and freed of this group while watched.
    pub churn: Option<Churn>,
    /// `held` is not all that they hold: the bytes of some are unknown.
    pub held_is_partial: bool,
    /// How many small groups were merged into this one; 0 for an ordinary group.
    pub rest_of: u64,
}

/// From the best of the newest scans. Earlier scans, churn and counters give growth, makers and cost.
pub fn report(evidence: &Evidence) -> Option<ZombieReport<'_>> {
    Some(report_of(evidence, ZombieScan::to_report(&evidence.zombie_scans)?, None))
}

/// From one scan, with what was made until some time.
pub fn report_of<'e>(evidence: &'e Evidence, scan: &'e ZombieScan, until: Option<Time>) -> ZombieReport<'e> {
    let (mut groups, group_of) = groups::groups(scan);
    makers::join(evidence, scan, until, &mut groups);
    growth::add_rates(evidence, scan, &group_of, &mut groups);
    let mut held = Charged::default();
    for group in &groups {
        held.add(&group.held);
    }
    ZombieReport {
        scan,
        held,
        groups,
        makers: makers::shares_until(evidence, Some(scan), until),
        churn: makers::churn(evidence),
        cost: cost::cost(evidence, scan),
        growth: growth::growth(evidence),
        per_hour: growth::of_all(evidence, scan),
    }
}

#[cfg(test)]
pub(crate) mod test_scan;
