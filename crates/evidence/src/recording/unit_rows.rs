//! What is installed to run, its churn and its logs, as rows and back.

use super::rows::{Table, U64, from_json, json, maybe_u64_of, u64_of};
use crate::Wall;
use crate::agents::{FileAnswer, TextFile, UnitFile};
use crate::units::{ChildExits, Container, Unit, UnitLogLine, UnitSockets};
use rusqlite::{Row, Transaction, params};

/// A unit's fields beyond the columns of the first format, as one JSON object.
pub const UNIT_DETAILS: Table = Table { name: "unit_details", columns: &["unit_id", "details_json"] };

/// Only for units that have any: most have none at most looks.
pub fn insert_unit_details(tx: &Transaction<'_>, unit: &Unit) -> rusqlite::Result<()> {
    let details = Details::of(unit);
    if details == Details::default() {
        return Ok(());
    }
    let id = tx.last_insert_rowid();
    tx.prepare_cached(&UNIT_DETAILS.insert())?.execute(params![id, json(&details)?])?;
    Ok(())
}

pub fn unit_details(row: &Row<'_>) -> rusqlite::Result<(i64, Details)> {
    Ok((row.get("unit_id")?, from_json(&row.get::<_, String>("details_json")?)?))
}

/// The fields of [`Unit`] that the table `units` has no column for.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct Details {
    #[serde(skip_serializing_if = "Option::is_none")]
    service_type: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    restart: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    main_exited_ns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    active_since_ns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu_ns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tasks: Option<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    triggered_by: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    triggers: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_trigger_real_ns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_trigger_real_ns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    accepted: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    connections: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    conditions_held: Option<bool>,
}

impl Details {
    fn of(unit: &Unit) -> Details {
        let unit = unit.clone();
        Details {
            service_type: unit.service_type,
            restart: unit.restart,
            main_exited_ns: unit.main_exited.map(|t| t.0),
            active_since_ns: unit.active_since.map(|t| t.0),
            cpu_ns: unit.cpu_ns,
            memory_bytes: unit.memory_bytes,
            tasks: unit.tasks,
            triggered_by: unit.triggered_by,
            triggers: unit.triggers,
            last_trigger_real_ns: unit.last_trigger.map(|t| t.0),
            next_trigger_real_ns: unit.next_trigger.map(|t| t.0),
            accepted: unit.accepted,
            connections: unit.connections,
            conditions_held: unit.conditions_held,
        }
    }

    pub fn give(self, unit: &mut Unit) {
        unit.service_type = self.service_type;
        unit.restart = self.restart;
        unit.main_exited = self.main_exited_ns.map(crate::time::Time);
        unit.active_since = self.active_since_ns.map(crate::time::Time);
        unit.cpu_ns = self.cpu_ns;
        unit.memory_bytes = self.memory_bytes;
        unit.tasks = self.tasks;
        unit.triggered_by = self.triggered_by;
        unit.triggers = self.triggers;
        unit.last_trigger = self.last_trigger_real_ns.map(Wall);
        unit.next_trigger = self.next_trigger_real_ns.map(Wall);
        unit.accepted = self.accepted;
        unit.connections = self.connections;
        unit.conditions_held = self.conditions_held;
    }
}

pub const UNIT_FILES: Table = Table {
    name: "unit_files",
    columns: &["name", "enablement", "preset", "path", "package", "package_version", "file_json"],
};

/// Replaces those of an earlier look: they describe the same node.
pub fn replace_unit_files(tx: &Transaction<'_>, items: &[UnitFile]) -> rusqlite::Result<()> {
    if items.is_empty() {
        return Ok(());
    }
    tx.execute("DELETE FROM unit_files", [])?;
    let mut insert = tx.prepare_cached(&UNIT_FILES.insert())?;
    for file in items {
        let package = file.package.as_ref();
        insert.execute(params![
            file.name,
            file.enablement.as_str(),
            file.preset.map(|p| p.as_str()),
            file.path,
            package.map(|p| &p.name),
            package.and_then(|p| p.version.as_ref()),
            json(file)?,
        ])?;
    }
    Ok(())
}

pub fn unit_file(row: &Row<'_>) -> rusqlite::Result<UnitFile> {
    from_json(&row.get::<_, String>("file_json")?)
}

pub const AGENT_FILES: Table = Table { name: "agent_files", columns: &["path", "answer_json"] };

pub fn replace_agent_files(tx: &Transaction<'_>, items: &[FileAnswer]) -> rusqlite::Result<()> {
    if items.is_empty() {
        return Ok(());
    }
    tx.execute("DELETE FROM agent_files", [])?;
    let mut insert = tx.prepare_cached(&AGENT_FILES.insert())?;
    for answer in items {
        insert.execute(params![answer.question.path, json(answer)?])?;
    }
    Ok(())
}

pub fn agent_file(row: &Row<'_>) -> rusqlite::Result<FileAnswer> {
    from_json(&row.get::<_, String>("answer_json")?)
}

pub const TEXT_FILES: Table = Table { name: "text_files", columns: &["kind", "path", "text"] };

pub const CATALOGUE: &str = "catalogue";
pub const BASELINE: &str = "baseline";

pub fn replace_text_files(tx: &Transaction<'_>, kind: &str, items: &[TextFile]) -> rusqlite::Result<()> {
    if items.is_empty() {
        return Ok(());
    }
    tx.execute("DELETE FROM text_files WHERE kind = ?", [kind])?;
    let mut insert = tx.prepare_cached(&TEXT_FILES.insert())?;
    for TextFile { path, text } in items {
        insert.execute(params![kind, path, text])?;
    }
    Ok(())
}

pub fn text_file(row: &Row<'_>) -> rusqlite::Result<(String, TextFile)> {
    Ok((row.get("kind")?, TextFile { path: row.get("path")?, text: row.get("text")? }))
}

pub const UNIT_LOG: Table = Table { name: "unit_log", columns: &["unit", "real_ns", "text", "restart"] };

pub fn insert_unit_log(tx: &Transaction<'_>, items: &[UnitLogLine]) -> rusqlite::Result<()> {
    let mut insert = tx.prepare_cached(&UNIT_LOG.insert())?;
    for UnitLogLine { unit, at, text, restart } in items {
        insert.execute(params![unit, U64(at.0), text, restart])?;
    }
    Ok(())
}

pub fn unit_log_line(row: &Row<'_>) -> rusqlite::Result<UnitLogLine> {
    Ok(UnitLogLine {
        unit: row.get("unit")?,
        at: Wall(u64_of(row, "real_ns")?),
        text: row.get("text")?,
        restart: row.get("restart")?,
    })
}

pub const UNIT_SOCKETS: Table =
    Table { name: "unit_sockets", columns: &["at_ns", "unit", "processes", "listening", "connected"] };

pub fn insert_unit_sockets(tx: &Transaction<'_>, items: &[UnitSockets]) -> rusqlite::Result<()> {
    let mut insert = tx.prepare_cached(&UNIT_SOCKETS.insert())?;
    for UnitSockets { at, unit, processes, listening, connected } in items {
        insert.execute(params![at, unit, U64(*processes), U64(*listening), U64(*connected)])?;
    }
    Ok(())
}

pub fn unit_sockets(row: &Row<'_>) -> rusqlite::Result<UnitSockets> {
    Ok(UnitSockets {
        at: row.get("at_ns")?,
        unit: row.get("unit")?,
        processes: u64_of(row, "processes")?,
        listening: u64_of(row, "listening")?,
        connected: u64_of(row, "connected")?,
    })
}

pub const CHILD_EXITS: Table = Table {
    name: "child_exits",
    columns: &[
        "from_ns",
        "to_ns",
        "parent_pid",
        "parent_comm",
        "cgroup",
        "comm",
        "exits",
        "failed",
        "failed_young",
        "exit_code",
        "signal",
    ],
};

pub fn insert_child_exits(tx: &Transaction<'_>, items: &[ChildExits]) -> rusqlite::Result<()> {
    let mut insert = tx.prepare_cached(&CHILD_EXITS.insert())?;
    for row in items {
        let ChildExits {
            from,
            to,
            parent_pid,
            parent_comm,
            cgroup,
            comm,
            exits,
            failed,
            failed_young,
            exit_code,
            signal,
        } = row;
        insert.execute(params![
            from,
            to,
            parent_pid,
            parent_comm,
            cgroup,
            comm,
            U64(*exits),
            U64(*failed),
            U64(*failed_young),
            exit_code,
            signal,
        ])?;
    }
    Ok(())
}

pub fn child_exits(row: &Row<'_>) -> rusqlite::Result<ChildExits> {
    Ok(ChildExits {
        from: row.get("from_ns")?,
        to: row.get("to_ns")?,
        parent_pid: row.get("parent_pid")?,
        parent_comm: row.get("parent_comm")?,
        cgroup: row.get("cgroup")?,
        comm: row.get("comm")?,
        exits: u64_of(row, "exits")?,
        failed: u64_of(row, "failed")?,
        failed_young: u64_of(row, "failed_young")?,
        exit_code: row.get("exit_code")?,
        signal: row.get("signal")?,
    })
}

pub const CONTAINERS: Table = Table {
    name: "containers",
    columns: &[
        "at_ns",
        "runtime",
        "name",
        "namespace",
        "pod",
        "pod_uid",
        "container_id",
        "restarts",
        "started_real_ns",
        "first_started_real_ns",
        "exit_code",
    ],
};

pub fn insert_containers(tx: &Transaction<'_>, items: &[Container]) -> rusqlite::Result<()> {
    let mut insert = tx.prepare_cached(&CONTAINERS.insert())?;
    for row in items {
        let Container { at, runtime, name, namespace, pod, pod_uid, id, restarts, started, first_started, exit_code } =
            row;
        insert.execute(params![
            at,
            runtime,
            name,
            namespace,
            pod,
            pod_uid,
            id,
            U64(*restarts),
            started.map(|t| U64(t.0)),
            first_started.map(|t| U64(t.0)),
            exit_code,
        ])?;
    }
    Ok(())
}

pub fn container(row: &Row<'_>) -> rusqlite::Result<Container> {
    Ok(Container {
        at: row.get("at_ns")?,
        runtime: row.get("runtime")?,
        name: row.get("name")?,
        namespace: row.get("namespace")?,
        pod: row.get("pod")?,
        pod_uid: row.get("pod_uid")?,
        id: row.get("container_id")?,
        restarts: u64_of(row, "restarts")?,
        started: maybe_u64_of(row, "started_real_ns")?.map(Wall),
        first_started: maybe_u64_of(row, "first_started_real_ns")?.map(Wall),
        exit_code: row.get("exit_code")?,
    })
}
