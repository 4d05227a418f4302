//! What the collector answers, as JSON documents: written by the server, read by the commands.

use coroner_report::{Incident, Wall};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// `coroner fleet status`
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct FleetStatus {
    /// `coroner.fleet.status/1`
    pub schema: String,
    pub at: Wall,
    pub nodes: NodeCounts,
    /// Those on most nodes first.
    pub problems: Vec<ActiveProblem>,
    pub incidents_last_day: u64,
    /// Rows that nodes dropped before they could be sent.
    pub dropped_rows: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeCounts {
    pub known: u64,
    /// Reported within the last ten minutes.
    pub reporting: u64,
    pub silent: u64,
    /// Never diagnosed, so nothing is known of their problems.
    pub undiagnosed: u64,
    /// With a problem of severity warning or critical.
    pub sick: u64,
}

/// One problem, on however many nodes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ActiveProblem {
    pub key: String,
    pub code: String,
    pub severity: String,
    /// Nodes that have it now.
    pub nodes: u64,
    /// Of them, nodes that no longer report: as they last said.
    pub silent: u64,
    /// When the first of these nodes got it.
    pub since: Wall,
    /// No node had it more than a day ago.
    pub is_new: bool,
    /// As one of them says it.
    pub title: String,
    pub example: String,
}

/// `coroner fleet nodes`
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeList {
    /// `coroner.fleet.nodes/1`
    pub schema: String,
    pub at: Wall,
    pub known: u64,
    pub matched: u64,
    pub nodes: Vec<NodeSummary>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeSummary {
    pub node: String,
    pub host: Option<String>,
    /// Of the node, its labels as `label:NAME`, and its cluster.
    pub attributes: BTreeMap<String, String>,
    pub version: Option<String>,
    pub booted: Option<Wall>,
    pub first_seen: Wall,
    pub last_seen: Wall,
    pub is_silent: bool,
    pub conclusion: Option<String>,
    pub diagnosed_until: Option<Wall>,
    /// Of its last minute: `zombies`, `busy`, `worst_core_system` and so on; what was not seen is absent.
    pub numbers: BTreeMap<String, f64>,
    pub problems: Vec<Episode>,
}

impl NodeSummary {
    pub fn name(&self) -> &str {
        called(&self.node, self.host.as_deref())
    }
}

/// What people call a node: by its host name, if the node goes by its machine id; otherwise it was given a name.
pub fn called<'a>(node: &'a str, host: Option<&'a str>) -> &'a str {
    let is_machine_id = node.len() == 32 && node.bytes().all(|byte| byte.is_ascii_hexdigit());
    host.filter(|host| is_machine_id && !host.is_empty()).unwrap_or(node)
}

/// A problem of one node, from when until when.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Episode {
    pub key: String,
    pub code: String,
    pub subject: Option<String>,
    pub severity: String,
    pub certainty: Option<String>,
    pub title: String,
    pub began: Wall,
    pub seen_until: Wall,
    /// `None` while it goes on.
    pub ended: Option<Wall>,
}

/// `coroner fleet show NODE`
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeDetail {
    /// `coroner.fleet.node/1`
    pub schema: String,
    pub at: Wall,
    pub node: NodeSummary,
    /// Newest first.
    pub history: Vec<Episode>,
    pub incidents: Vec<Incident>,
    pub boots: Vec<Boot>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Boot {
    pub boot_id: String,
    pub booted: Option<Wall>,
    pub first_seen: Wall,
    pub last_seen: Wall,
}

/// `coroner fleet incidents`
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct IncidentList {
    /// `coroner.fleet.incidents/1`
    pub schema: String,
    pub at: Wall,
    pub matched: u64,
    /// Newest first; of many, these are not all.
    pub incidents: Vec<FleetIncident>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FleetIncident {
    /// `NODE/NUMBER`, for `coroner fleet fetch`.
    #[serde(default)]
    pub id: String,
    pub node: String,
    pub host: Option<String>,
    pub incident: Incident,
}

/// How far the recording of an incident is, for `coroner fleet fetch`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Fetch {
    /// `coroner.fleet.fetch/1`
    pub schema: String,
    /// `NODE/NUMBER`
    pub id: String,
    pub host: Option<String>,
    /// `unwanted`, `waiting`, `receiving`, `stored`, `refused`, `gone` or `too large`.
    pub state: String,
    pub incident_state: String,
    /// Here so far, and in all.
    pub bytes: Option<u64>,
    pub of: Option<u64>,
    pub sha256: Option<String>,
    /// Of the node.
    pub last_seen: Wall,
    pub is_silent: bool,
}
