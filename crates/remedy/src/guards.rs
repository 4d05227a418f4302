//! What must never be done, whoever asks.

use crate::steps::{Hands, StepError};
use coroner_diagnosis::units::protected::why_protected_by;
use coroner_evidence::{CgroupOwner, Node};
use coroner_probes::units::{ManagerError, UnitNow};
use std::fs;

/// Whether a unit may be stopped, disabled or masked: checks all its names, what stops with it, and who runs inside it.
pub fn may_switch_off(unit: &str, hands: &mut Hands<'_>) -> Result<UnitNow, StepError> {
    let now = known(unit, hands)?;
    refuse_protected(unit, &now, "disabled", hands)?;
    let with_it = match hands.manager()?.stops_with(&now.id) {
        Err(too_many @ ManagerError::TooMany { .. }) => return Err(StepError::refused(too_many.to_string())),
        with_it => with_it?,
    };
    for other in &with_it {
        if let Some(why) = why_protected_by(hands.catalogue(), other)
            && is_work(other)
            && is_up(other, hands)
        {
            return Err(StepError::refused(format!("{other} stops with {unit}, and {why}")));
        }
    }
    Ok(now)
}

/// Whether a unit may be limited: protected ones may not.
pub fn may_limit(unit: &str, hands: &mut Hands<'_>) -> Result<UnitNow, StepError> {
    let now = known(unit, hands)?;
    refuse_protected(unit, &now, "limited", hands)?;
    Ok(now)
}

fn known(unit: &str, hands: &mut Hands<'_>) -> Result<UnitNow, StepError> {
    let now = hands.manager()?.unit(unit)?;
    match now.load_state.as_str() {
        "not-found" => Err(StepError::refused(format!("systemd does not know {unit}"))),
        _ => Ok(now),
    }
}

fn refuse_protected(unit: &str, now: &UnitNow, what: &str, hands: &Hands<'_>) -> Result<(), StepError> {
    let names = now.names.iter().map(String::as_str).chain([unit, now.id.as_str()]);
    for name in names {
        if let Some(why) = why_protected_by(hands.catalogue(), name) {
            let also = if name == unit { String::new() } else { format!(" is {name}, which") };
            return Err(StepError::refused(format!("{unit}{also} is protected and never {what}: {why}")));
        }
        if let Some(who) = own_units().iter().find(|own| *own == name) {
            return Err(StepError::refused(format!(
                "your own session runs in {who}: you could lose access to the node"
            )));
        }
    }
    Ok(())
}

/// Targets and slices only group units: stopping one stops no work.
fn is_work(unit: &str) -> bool {
    !unit.ends_with(".target") && !unit.ends_with(".slice")
}

/// An unknown state counts as up.
fn is_up(unit: &str, hands: &mut Hands<'_>) -> bool {
    let state = hands.manager().ok().and_then(|manager| manager.unit(unit).ok());
    state.is_none_or(|now| matches!(now.active_state.as_str(), "active" | "activating" | "reloading"))
}

/// The units that we and our parents run in: the agent somebody logged in through, or the service that runs us.
pub fn own_units() -> Vec<String> {
    let mut units = Vec::new();
    let mut pid = std::process::id();
    for _ in 0..32 {
        let memberships = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        for path in memberships.lines().filter_map(|line| line.splitn(3, ':').nth(2)) {
            if let Some(unit) = CgroupOwner::of_path(path).unit.filter(|unit| !units.contains(unit)) {
                units.push(unit);
            }
        }
        match parent(pid) {
            Some(parent) if parent > 1 => pid = parent,
            _ => break,
        }
    }
    units
}

fn parent(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// The process that places interrupts, if it runs.
pub fn irqbalance() -> Option<u32> {
    fs::read_dir("/proc").ok()?.flatten().find_map(|entry| {
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        let comm = fs::read_to_string(entry.path().join("comm")).ok()?;
        (comm.trim() == "irqbalance").then_some(pid)
    })
}

/// Whether we can act on the node from here.
pub fn may_act(here: &Node, bus: Option<&str>) -> Result<(), StepError> {
    if !rustix::process::geteuid().is_root() {
        return Err(StepError::refused("changing the node needs root; run it again with sudo"));
    }
    if let (Some(why), None) = (&here.in_container, bus) {
        return Err(StepError::refused(format!(
            "running in a container ({why}): changes here would not affect the node. Run it on the node, or name the node's bus \
             with --bus and its root directory with --root"
        )));
    }
    Ok(())
}

/// A plan from a recording is for that node and that boot only: TIDs and cgroups do not outlive a boot.
pub fn is_same_node(planned: &Node, here: &Node) -> Result<(), StepError> {
    let name = |node: &Node| node.host.clone().unwrap_or_else(|| "unknown".to_owned());
    match (&planned.machine_id, &here.machine_id) {
        (Some(there), Some(here_id)) if there == here_id => {}
        (Some(there), Some(here_id)) => {
            return Err(StepError::refused(format!(
                "the recording is from {} (machine {there}), but this is {} (machine {here_id}); apply it there",
                name(planned),
                name(here)
            )));
        }
        _ => {
            return Err(StepError::refused(
                "cannot tell whether the recording is from this node: a machine id is missing",
            ));
        }
    }
    match (&planned.boot_id, &here.boot_id) {
        (Some(there), Some(here)) if there == here => Ok(()),
        (Some(_), Some(_)) => {
            Err(StepError::refused("the node was rebooted since the recording; make a new plan (`coroner fix`)"))
        }
        _ => Err(StepError::refused("cannot tell whether the node was rebooted since the recording")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_only_for_its_node_and_boot() {
        let node = |machine: &str, boot: &str| Node {
            machine_id: Some(machine.into()),
            boot_id: Some(boot.into()),
            ..Node::default()
        };
        assert!(is_same_node(&node("a", "1"), &node("a", "1")).is_ok());
        assert!(is_same_node(&node("a", "1"), &node("b", "1")).unwrap_err().to_string().contains("apply it there"));
        assert!(is_same_node(&node("a", "1"), &node("a", "2")).unwrap_err().to_string().contains("rebooted"));
        assert!(is_same_node(&Node::default(), &node("a", "1")).is_err(), "unknown is not the same");
    }

    #[test]
    fn acting_from_a_container_needs_the_nodes_bus() {
        let node = Node { in_container: Some("its root is not that of process 1".into()), ..Node::default() };
        if rustix::process::geteuid().is_root() {
            assert!(may_act(&node, None).unwrap_err().to_string().contains("container"));
            assert!(may_act(&node, Some("unix:path=/x")).is_ok());
        } else {
            assert!(may_act(&node, None).unwrap_err().to_string().contains("root"));
        }
    }
}
