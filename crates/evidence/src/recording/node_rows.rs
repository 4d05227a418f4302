//! The node's identity as rows (key, value), and back.
//!
//! Text and numbers are stored as they are, lists and programs as JSON. What is unknown has no row. Lists are always stored, so
//! that a node about which nothing is known differs from no node.

use super::rows::{Cell, json};
use crate::node::{Node, Software};
use rusqlite::types::{FromSqlError, FromSqlResult, Null, ToSqlOutput, Value, ValueRef};
use rusqlite::{Transaction, params};
use std::collections::HashMap;

impl Cell for Software {
    fn put(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(json(self)?.into())
    }

    fn get(cell: ValueRef<'_>) -> FromSqlResult<Software> {
        serde_json::from_str(cell.as_str()?).map_err(|e| FromSqlError::Other(e.into()))
    }
}

/// Fields and their keys. It names every field, so that a new one cannot be forgotten.
macro_rules! node_rows {
    ($($field:ident: $key:literal),* $(,)?) => {
        /// Replaces earlier rows.
        pub fn replace(tx: &Transaction<'_>, node: &Node) -> rusqlite::Result<()> {
            let Node { $($field),* } = node;
            tx.execute("DELETE FROM node", [])?;
            let mut insert = tx.prepare_cached("INSERT INTO node (key, value) VALUES (?, ?)")?;
            for (key, cell) in [$(($key, $field.put()?)),*] {
                if cell != Null.into() {
                    insert.execute(params![key, cell])?;
                }
            }
            Ok(())
        }

        /// The node these rows describe, and why some of them could not be parsed.
        pub fn node(rows: HashMap<String, Value>) -> (Option<Node>, Vec<String>) {
            let mut bad = Vec::new();
            let node = (!rows.is_empty()).then(|| Node { $($field: value(&rows, $key, &mut bad)),* });
            (node, bad)
        }
    };
}

node_rows! {
    host: "host", machine_id: "machine_id", boot_id: "boot_id", kernel: "kernel", architecture: "architecture",
    booted: "booted_real_ns", os: "os", cores: "cores", memory_bytes: "memory_bytes", cloud: "cloud",
    image_id: "image_id", zone: "zone", instance_type: "instance_type", instance_id: "instance_id",
    hypervisor: "hypervisor", cgroup_version: "cgroup_version", in_container: "in_container", systemd: "systemd",
    kubelet: "kubelet", container_runtimes: "container_runtimes", ray: "ray", gpus: "gpus",
}

fn value<T: Cell + Default>(rows: &HashMap<String, Value>, key: &str, bad: &mut Vec<String>) -> T {
    let read = rows.get(key).map_or(Ok(T::default()), |value| T::get(value.into()));
    read.unwrap_or_else(|e| {
        bad.push(format!("{key}: {e}"));
        T::default()
    })
}
