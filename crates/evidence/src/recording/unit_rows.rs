//! What is installed to run, its churn and its logs, as rows and back.

use super::rows::{document, insert, insert_below, insert_each, insert_readable, row};
use crate::Wall;
use crate::agents::{FileAnswer, TextFile, UnitFile};
use crate::cpusets::Cpuset;
use crate::time::Time;
use crate::units::{ChildExits, Container, Unit, UnitLogLine, UnitSockets};
use rusqlite::Transaction;
use rusqlite::types::{Null, ToSqlOutput};

/// Details only for units that have any: most have none at most looks.
pub fn insert_units(tx: &Transaction<'_>, units: &[Unit]) -> rusqlite::Result<()> {
    insert_each(tx, None, units, |unit, id| match Details::of(unit) {
        details if details == Details::default() => Ok(()),
        details => insert_below(tx, id, &[details]),
    })
}

document!(Details in "unit_details" of "unit_id": "details_json");

/// The fields of [`Unit`] that the table `units` has no column for, as one JSON object.
macro_rules! details {
    ($($(#[$with:meta])* $field:ident in $key:literal: $type:ty,)*) => {
        #[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
        pub struct Details {
            $($(#[$with])*
            #[serde(default, rename = $key, skip_serializing_if = "is_default")]
            $field: $type,)*
        }

        impl Details {
            fn of(unit: &Unit) -> Details {
                Details { $($field: unit.$field.clone(),)* }
            }

            pub fn give(self, unit: &mut Unit) {
                $(unit.$field = self.$field;)*
            }
        }
    };
}

details! {
    service_type in "service_type": Option<String>,
    restart in "restart": Option<String>,
    main_exited in "main_exited_ns": Option<Time>,
    active_since in "active_since_ns": Option<Time>,
    cpu_ns in "cpu_ns": Option<u64>,
    memory_bytes in "memory_bytes": Option<u64>,
    tasks in "tasks": Option<u64>,
    triggered_by in "triggered_by": Vec<String>,
    triggers in "triggers": Vec<String>,
    #[serde(serialize_with = "Wall::as_number")]
    last_trigger in "last_trigger_real_ns": Option<Wall>,
    #[serde(serialize_with = "Wall::as_number")]
    next_trigger in "next_trigger_real_ns": Option<Wall>,
    accepted in "accepted": Option<u64>,
    connections in "connections": Option<u64>,
    conditions_held in "conditions_held": Option<bool>,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

document!(UnitFile in "unit_files": "file_json");

/// Replaces those of an earlier look: they describe the same node.
pub fn replace_unit_files(tx: &Transaction<'_>, items: &[UnitFile]) -> rusqlite::Result<()> {
    if items.is_empty() {
        return Ok(());
    }
    tx.execute("DELETE FROM unit_files", [])?;
    let columns = ["name", "enablement", "preset", "path", "package", "package_version"];
    insert_readable(tx, items, columns, |file| {
        let (package, preset) = (file.package.as_ref(), file.preset.map(|preset| preset.as_str()));
        let version = package.and_then(|package| package.version.as_deref());
        let (name, path) = (Some(file.name.as_str()), file.path.as_deref());
        [name, Some(file.enablement.as_str()), preset, path, package.map(|p| p.name.as_str()), version].map(text)
    })
}

document!(FileAnswer in "agent_files": "answer_json");

pub fn replace_agent_files(tx: &Transaction<'_>, items: &[FileAnswer]) -> rusqlite::Result<()> {
    if items.is_empty() {
        return Ok(());
    }
    tx.execute("DELETE FROM agent_files", [])?;
    insert_readable(tx, items, ["path"], |answer| [text(Some(&answer.question.path))])
}

fn text(text: Option<&str>) -> ToSqlOutput<'_> {
    text.map_or(Null.into(), ToSqlOutput::from)
}

row!(TextFileRow in "text_files" { kind: "kind" } with file);

pub struct TextFileRow {
    pub kind: String,
    pub file: TextFile,
}

row!(TextFile { path: "path", text: "text" });

pub const CATALOGUE: &str = "catalogue";
pub const BASELINE: &str = "baseline";
/// The path is the cgroup's, the text a [`Cpuset`] as JSON.
pub const CPUSET: &str = "cpuset";

pub fn insert_cpusets(tx: &Transaction<'_>, cpusets: &[Cpuset]) -> rusqlite::Result<()> {
    cpusets.iter().try_for_each(|cpuset| {
        let text = serde_json::to_string(cpuset).map_err(|e| rusqlite::Error::ToSqlConversionFailure(e.into()))?;
        insert(tx, &[TextFileRow { kind: CPUSET.to_owned(), file: TextFile { path: cpuset.cgroup.clone(), text } }])
    })
}

pub fn replace_text_files(tx: &Transaction<'_>, kind: &str, items: &[TextFile]) -> rusqlite::Result<()> {
    if items.is_empty() {
        return Ok(());
    }
    tx.execute("DELETE FROM text_files WHERE kind = ?", [kind])?;
    items.iter().try_for_each(|file| insert(tx, &[TextFileRow { kind: kind.to_owned(), file: file.clone() }]))
}

row!(UnitLogLine in "unit_log" { unit: "unit", at: "real_ns", text: "text", restart: "restart" });

row!(UnitSockets in "unit_sockets" {
    at: "at_ns", unit: "unit", processes: "processes", listening: "listening", connected: "connected"
});

row!(ChildExits in "child_exits" {
    from: "from_ns", to: "to_ns", parent_pid: "parent_pid", parent_comm: "parent_comm", cgroup: "cgroup", comm: "comm",
    exits: "exits", failed: "failed", failed_young: "failed_young", exit_code: "exit_code", signal: "signal"
});

row!(Container in "containers" {
    at: "at_ns", runtime: "runtime", name: "name", namespace: "namespace", pod: "pod", pod_uid: "pod_uid",
    id: "container_id", restarts: "restarts", started: "started_real_ns",
    first_started: "first_started_real_ns", exit_code: "exit_code"
});
