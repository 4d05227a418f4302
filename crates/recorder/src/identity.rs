//! What tells this node from others of a fleet: hardware, kernel, place, and the agents that its image brought.

use coroner_diagnosis::agents::{self, Action, Catalogue, Verdict};
use coroner_diagnosis::units::loops::{How, loops};
use coroner_diagnosis::units::protected::why_protected_by;
use coroner_evidence::{Evidence, Unit};
use coroner_report::NodeIdentity;
use std::collections::{BTreeMap, BTreeSet};

/// More agents than any image has.
const MOST_AGENTS: usize = 40;

pub fn identity_of(evidence: &Evidence) -> NodeIdentity {
    let mut identity = evidence.node.as_ref().map(NodeIdentity::of).unwrap_or_default();
    let devices = evidence.nics.iter().filter(|nic| nic.bus.is_some() && nic.netns.is_none());
    let drivers: BTreeSet<&str> = devices.filter_map(|nic| nic.driver.as_deref()).collect();
    if !drivers.is_empty() {
        let drivers: Vec<&str> = drivers.into_iter().collect();
        identity.attributes.insert("nic_driver".to_owned(), drivers.join(", "));
    }
    identity.attributes.extend(agent_attributes(evidence));
    identity
}

/// `agent:amazon-ecs` → `enabled`; `agent_state:amazon-ecs` → `crashlooping`; `agent_version:amazon-ecs` → `1.82.0`;
/// `agent_unused:amazon-ecs` → `ecs.service`, if `coroner fix --image` disables it.
fn agent_attributes(evidence: &Evidence) -> BTreeMap<String, String> {
    let mut latest: BTreeMap<&str, &Unit> = BTreeMap::new();
    for unit in &evidence.units {
        latest.insert(&unit.name, unit);
    }
    let all = loops(evidence);
    let looping: BTreeSet<&str> = all.iter().filter(|l| l.how != How::Once).map(|l| l.unit.name.as_str()).collect();
    let mut attributes = BTreeMap::new();
    // A catalogue that cannot be read is reported by the diagnosis.
    let catalogue = Catalogue::load(&evidence.catalogues).unwrap_or_default();
    for judgement in agents::judgements(evidence).unwrap_or_default().into_iter().take(MOST_AGENTS) {
        let file = evidence.unit_files.iter().find(|file| file.name == judgement.unit);
        let is_active = |unit: &&Unit| matches!(unit.active_state.as_str(), "active" | "activating" | "reloading");
        let runs = match latest.get(judgement.unit.as_str()) {
            _ if looping.contains(judgement.unit.as_str()) => Some("crashlooping"),
            Some(unit) if is_active(unit) => Some("running"),
            Some(_) => Some("stopped"),
            None if judgement.pid.is_some() => Some("running"),
            None => None,
        };
        let version = file.and_then(|file| file.package.as_ref()?.version.clone());
        let enabled = file.map_or("without a unit", |file| file.enablement.as_str());
        let can_go = judgement.pid.is_none()
            && judgement.verdict == Verdict::Unused
            && matches!(judgement.action, Action::Disable | Action::Mask)
            && why_protected_by(&catalogue, &judgement.unit).is_none();
        let unused = can_go.then_some(judgement.unit.as_str());
        let known = [
            ("agent", Some(enabled)),
            ("agent_state", runs),
            ("agent_version", version.as_deref()),
            ("agent_unused", unused),
        ];
        for (what, value) in known {
            attributes.extend(value.map(|value| (format!("{what}:{}", judgement.agent), value.to_owned())));
        }
    }
    attributes
}
