//! Dead memory cgroups as people read them: a few groups instead of 70,000 names, each with what keeps it and who makes it, and what
//! all of them cost on this node.
//!
//! Everything here is derived from the evidence: a scan names them ([`ZombieScan`]), earlier scans and the kernel's counts tell how they
//! grow, churn tells who makes them, timed reads and samples of the kernel tell what they cost.

pub mod cost;
pub mod counted;
pub mod folding;
pub mod groups;
pub mod growth;
pub mod makers;
pub mod pins;

use coroner_evidence::{Born, Evidence, Held, Time, ZombieScan};

pub use cost::{Cost, CostKind, CostLine, Ids, KernelWork, Structures};
pub use growth::{Growth, PerHour, RateFrom};
pub use makers::{Churn, MakerShare};
pub use pins::{FileGroup, Otherwise, OtherwiseKind, Pin};

/// What can be said of the dead at the newest look.
#[derive(Debug, Clone)]
pub struct Report<'e> {
    pub scan: &'e ZombieScan,
    /// What all of them hold.
    pub held: Held,
    /// The most dead first; what is left over stands last. Empty where the scan neither names nor places them.
    pub groups: Vec<Group<'e>>,
    /// Who made and removed cgroups while it was watched, most births first; also those who left nothing behind.
    pub makers: Vec<MakerShare>,
    pub churn: Option<Churn>,
    pub cost: Cost,
    /// Of all dead ones, while it was watched.
    pub growth: Growth,
    pub per_hour: Option<PerHour>,
}

/// Dead cgroups that belong together.
#[derive(Debug, Clone)]
pub struct Group<'e> {
    /// As it was, or with what differs folded: `/kubepods/burstable/pod*`.
    pub parent: String,
    /// Covers the names of all of them, see [`coroner_evidence::pattern_covers`].
    pub pattern: String,
    /// If all of them are of this unit, pod or container.
    pub unit: Option<String>,
    pub pod_uid: Option<String>,
    pub container_id: Option<String>,
    /// The path of one of them, the youngest; of the parent where they have no names.
    pub example: String,
    /// `None` where the kernel does not count them by parent.
    pub dead: Option<u64>,
    pub held: Held,
    pub oldest: Option<Born>,
    pub newest: Option<Born>,
    /// Removals that were watched. The kernel keeps no time of death.
    pub first_death: Option<Time>,
    pub last_death: Option<Time>,
    pub per_hour: Option<PerHour>,
    /// Every file that keeps them, the one that holds most first.
    pub pinned_by: Vec<Pin<'e>>,
    /// The same files by directory and name pattern, a handful, the most bytes first.
    pub pinned_in: Vec<FileGroup>,
    /// What holds those, or that part, which no file explains.
    pub pinned_otherwise: Vec<Otherwise>,
    /// Who made and removed cgroups of this group while it was watched, most births first.
    pub makers: Vec<MakerShare>,
    /// What was made, removed and freed of this group while it was watched.
    pub churn: Option<Churn>,
    /// `held` is not all that they hold: of some the bytes cannot be told.
    pub held_is_partial: bool,
    /// So many small groups were put together here; 0 for a group of its own.
    pub rest_of: u64,
}

/// Of the newest scan that tells most. Earlier scans, churn and counters give growth, makers and cost.
pub fn report(evidence: &Evidence) -> Option<Report<'_>> {
    let scan = ZombieScan::to_report(&evidence.zombie_scans)?;
    let (mut groups, group_of) = groups::groups(scan);
    makers::join(evidence, &mut groups);
    growth::add_rates(evidence, scan, &group_of, &mut groups);
    let mut held = Held::default();
    for group in &groups {
        held.add(&group.held);
    }
    Some(Report {
        scan,
        held,
        groups,
        makers: makers::shares(evidence),
        churn: makers::churn(evidence),
        cost: cost::cost(evidence, scan),
        growth: growth::growth(evidence),
        per_hour: growth::of_all(evidence, scan),
    })
}

#[cfg(test)]
pub(crate) mod test_scan;
