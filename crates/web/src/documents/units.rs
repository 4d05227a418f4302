//! `coroner.units/1`, documented in docs/json.md.

use super::diagnosis::window;
use coroner_diagnosis::units::churn::{ChurnKind, Churning, Failing};
use coroner_diagnosis::units::containers::ContainerLoop;
use coroner_diagnosis::units::cost::UnitCost;
use coroner_diagnosis::units::loops::{Loop, Trend};
use coroner_diagnosis::units::{Audit, AuditedUnit};
use coroner_evidence::{Clocks, Evidence, Time};
use serde_json::{Value, json};
use std::path::Path;

/// `stored`: where this run stored the units as a baseline.
pub fn document(audit: &Audit, evidence: &Evidence, bus: Option<&str>, stored: Option<&Path>) -> Value {
    let clocks = evidence.clocks.last().copied();
    let node = evidence.node.as_ref();
    let watched = evidence.window().zip(clocks).map(|(w, c)| (c.wall_of(w.from), c.wall_of(w.to)));
    json!({
        "schema": "coroner.units/1",
        "coroner_version": env!("CARGO_PKG_VERSION"),
        "host": node.and_then(|n| n.host.as_deref()),
        "kernel": node.and_then(|n| n.kernel.as_deref()),
        "os": node.and_then(|n| n.os.as_deref()),
        "image": evidence.image,
        "bus": bus,
        "systemd": !evidence.units.is_empty(),
        "window": window(watched),
        "findings": audit.findings,
        "units": audit.units.iter().map(|u| unit(u, audit, clocks)).collect::<Vec<_>>(),
        "cgroups": audit.cgroups.iter().map(|(name, c)| json!({"cgroup": name, "cost": cost(c)})).collect::<Vec<_>>(),
        "containers": audit.containers.iter().map(container).collect::<Vec<_>>(),
        "judgements": audit.judgements.as_deref().unwrap_or_default(),
        "baseline": evidence.baseline.as_ref().map(|b| &b.path),
        "baseline_stored": stored,
        "drift": match &audit.drift {
            Some(Ok(drift)) => json!(drift),
            Some(Err(error)) => json!({"error": error.to_string()}),
            None => Value::Null,
        },
        "unseen": audit.unseen,
        "cost": evidence.cost,
    })
}

fn unit(audited: &AuditedUnit, audit: &Audit, clocks: Option<Clocks>) -> Value {
    let (unit, file) = (audited.unit, audited.file);
    let time = |of: fn(&coroner_evidence::Unit) -> Option<Time>| {
        let at = unit.and_then(of)?;
        Some(clocks?.wall_of(at))
    };
    let judgement = audit.judgement(audited.name);
    json!({
        "name": audited.name,
        "description": file.and_then(|f| f.description.as_deref()),
        "load_state": unit.map(|u| &u.load_state),
        "active_state": unit.map(|u| &u.active_state),
        "sub_state": unit.map(|u| &u.sub_state),
        "enablement": audited.enablement(),
        "preset": file.and_then(|f| f.preset),
        "result": unit.and_then(|u| u.result.as_deref()),
        "exit_kind": audited.exit.and_then(|u| u.exit_kind.as_deref()),
        "exit_status": audited.exit.and_then(|u| u.exit_status),
        "restarts": unit.and_then(|u| u.restarts),
        "invocation_id": unit.and_then(|u| u.invocation_id.as_deref()),
        "main_pid": unit.and_then(|u| u.main_pid),
        "main_started": time(|u| u.main_started),
        "main_exited": time(|u| u.main_exited),
        "active_since": time(|u| u.active_since),
        "service_type": unit.and_then(|u| u.service_type.as_deref()).or(file.and_then(|f| f.service_type.as_deref())),
        "restart": unit.and_then(|u| u.restart.as_deref()).or(file.and_then(|f| f.restart.as_deref())),
        "restart_delay_us": unit.and_then(|u| u.restart_delay_us).or(file.and_then(|f| f.restart_delay_us)),
        "conditions_held": unit.and_then(|u| u.conditions_held),
        "cgroup": unit.and_then(|u| u.cgroup.as_deref()),
        "path": file.and_then(|f| f.path.as_deref()),
        "drop_ins": file.map(|f| &f.drop_ins),
        "exec_start": file.map(|f| &f.exec_start),
        "package": file.and_then(|f| f.package.as_ref()),
        "pulled_in_by": file.map(|f| f.pulled_in_by.iter().map(|p| p.by.as_str()).collect::<Vec<_>>()),
        "triggered_by": either(unit.map(|u| &u.triggered_by), file.map(|f| &f.triggered_by)),
        "triggers": either(unit.map(|u| &u.triggers), file.map(|f| &f.triggers)),
        "last_trigger": unit.and_then(|u| u.last_trigger),
        "next_trigger": unit.and_then(|u| u.next_trigger),
        "accepted": unit.and_then(|u| u.accepted),
        "connections": unit.and_then(|u| u.connections),
        "loop": audited.looping.as_ref().map(loop_of),
        "churn": audited.churning.first().map(|_| audited.churning.iter().flat_map(churn).collect::<Vec<_>>()),
        "verdict": judgement.map(|j| j.verdict),
        "certainty": judgement.map(|j| j.certainty),
        "zombies": audited.cost.zombies,
        "cost": cost(&audited.cost),
    })
}

/// The live value, if there is one, else the one from the unit's files.
fn either<'a>(live: Option<&'a Vec<String>>, on_disk: Option<&'a Vec<String>>) -> &'a [String] {
    live.filter(|l| !l.is_empty()).or(on_disk).map_or(&[], Vec::as_slice)
}

fn loop_of(l: &Loop) -> Value {
    json!({
        "how": l.how.as_str(),
        "per_hour": l.per_hour,
        "rate_from": l.rate_from,
        "restarts_seen": l.in_window.map(|(n, _)| n),
        "seconds": l.in_window.map(|(_, over)| over.as_secs_f64()),
        "since": l.since,
        "trend": l.trend.map(Trend::as_str),
    })
}

/// Cgroups or children that are created over and over: one entry per known kind.
fn churn(c: &Churning) -> Vec<Value> {
    let mut entries = Vec::new();
    if let ChurnKind::Cgroups { parent, pattern, born, removed } = &c.kind {
        entries.push(json!({
            "kind": "cgroups", "per_hour": c.per_hour, "restarts": c.restarts,
            "parent": parent, "pattern": pattern, "born": born, "removed": removed, "maker": c.maker,
        }));
    }
    if let Some(Failing { last, exits, failed_young, from, to }) = c.failing {
        let over = to.since(from).as_secs_f64();
        entries.push(json!({
            "kind": "children", "restarts": c.restarts,
            "per_hour": if over > 0.0 { Some(failed_young as f64 * 3600.0 / over) } else { None },
            "parent_pid": last.parent_pid, "parent_comm": last.parent_comm, "comm": last.comm,
            "exits": exits, "failed": failed_young, "exit_code": last.exit_code, "signal": last.signal,
        }));
    }
    entries
}

fn container(c: &ContainerLoop) -> Value {
    let of = &c.container;
    json!({
        "name": of.name, "namespace": of.namespace, "pod": of.pod, "pod_uid": of.pod_uid, "id": of.id,
        "runtime": of.runtime, "restarts": of.restarts, "exit_code": of.exit_code,
        "started": of.started,
        "per_hour": c.per_hour,
        "restarts_seen": c.in_window.map(|(n, _)| n),
        "since": c.since,
        "trend": c.trend.map(Trend::as_str),
    })
}

fn cost(cost: &UnitCost) -> Value {
    json!({
        "cores": cost.cores,
        "cpu_seconds": cost.cpu_ns.map(|ns| ns as f64 / 1e9),
        "memory_bytes": cost.memory_bytes,
        "tasks": cost.tasks,
        "restarts": cost.restarts,
        "zombies": cost.zombies,
        "zombie_bytes": cost.zombie_bytes,
        "zombies_per_hour": cost.zombies_per_hour,
    })
}
