//! Units that never restart, but below which cgroups or processes are born and die again and again: supervisors that respawn.

use coroner_evidence::{ChildExits, Evidence};

#[derive(Debug, Clone)]
pub struct Churning<'e> {
    pub unit: String,
    /// What is born again and again.
    pub kind: Kind<'e>,
    pub per_hour: f64,
    /// Restarts of the unit itself that systemd counted meanwhile.
    pub restarts: Option<u32>,
}

#[derive(Debug, Clone)]
pub enum Kind<'e> {
    /// Cgroups of this parent and name pattern.
    Cgroups { parent: String, pattern: String, born: u64, removed: u64 },
    /// Children that fail.
    Children(&'e ChildExits),
}

/// The fastest first.
pub fn churning(_evidence: &Evidence) -> Vec<Churning<'_>> {
    Vec::new()
}
