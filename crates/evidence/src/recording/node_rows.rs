//! The node's identity as rows (key, value), and back.
//!
//! Text and numbers are stored as they are, lists and programs as JSON. What is unknown has no row.

use super::rows::{U64, from_json, json};
use crate::Wall;
use crate::node::Node;
use rusqlite::types::{FromSql, Value, ValueRef};
use rusqlite::{Transaction, params};
use std::collections::HashMap;

/// Replaces earlier rows.
pub fn replace(tx: &Transaction<'_>, node: &Node) -> rusqlite::Result<()> {
    // Field by field, so that a new one cannot be forgotten.
    let Node {
        host,
        machine_id,
        boot_id,
        kernel,
        architecture,
        booted,
        os,
        cores,
        memory_bytes,
        cloud,
        image_id,
        zone,
        instance_type,
        instance_id,
        hypervisor,
        cgroup_version,
        in_container,
        systemd,
        kubelet,
        container_runtimes,
        ray,
        gpus,
    } = node;
    tx.execute("DELETE FROM node", [])?;
    let mut insert = tx.prepare_cached("INSERT INTO node (key, value) VALUES (?, ?)")?;
    let texts = [
        ("host", host),
        ("machine_id", machine_id),
        ("boot_id", boot_id),
        ("kernel", kernel),
        ("architecture", architecture),
        ("os", os),
        ("cloud", cloud),
        ("image_id", image_id),
        ("zone", zone),
        ("instance_type", instance_type),
        ("instance_id", instance_id),
        ("hypervisor", hypervisor),
        ("cgroup_version", cgroup_version),
        ("in_container", in_container),
        ("kubelet", &kubelet.as_ref().map(json).transpose()?),
        ("ray", &ray.as_ref().map(json).transpose()?),
        // Always stored, so that a node about which nothing is known differs from no node.
        ("container_runtimes", &Some(json(container_runtimes)?)),
        ("gpus", &Some(json(gpus)?)),
    ];
    for (key, text) in texts {
        if let Some(text) = text {
            insert.execute(params![key, text])?;
        }
    }
    let numbers = [
        ("booted_real_ns", booted.map(|at| at.0)),
        ("cores", cores.map(u64::from)),
        ("memory_bytes", *memory_bytes),
        ("systemd", systemd.map(u64::from)),
    ];
    for (key, number) in numbers {
        if let Some(number) = number {
            insert.execute(params![key, U64(number)])?;
        }
    }
    Ok(())
}

/// The node these rows describe, and why some of them could not be parsed.
pub fn node(rows: HashMap<String, Value>) -> (Option<Node>, Vec<String>) {
    if rows.is_empty() {
        return (None, Vec::new());
    }
    let mut rows = Rows { rows, bad: Vec::new() };
    let node = Node {
        host: rows.get("host"),
        machine_id: rows.get("machine_id"),
        boot_id: rows.get("boot_id"),
        kernel: rows.get("kernel"),
        architecture: rows.get("architecture"),
        booted: rows.get("booted_real_ns").map(|n: U64| Wall(n.0)),
        os: rows.get("os"),
        cores: rows.get("cores"),
        memory_bytes: rows.get("memory_bytes").map(|n: U64| n.0),
        cloud: rows.get("cloud"),
        image_id: rows.get("image_id"),
        zone: rows.get("zone"),
        instance_type: rows.get("instance_type"),
        instance_id: rows.get("instance_id"),
        hypervisor: rows.get("hypervisor"),
        cgroup_version: rows.get("cgroup_version"),
        in_container: rows.get("in_container"),
        systemd: rows.get("systemd"),
        kubelet: rows.get_json("kubelet"),
        container_runtimes: rows.get_json("container_runtimes").unwrap_or_default(),
        ray: rows.get_json("ray"),
        gpus: rows.get_json("gpus").unwrap_or_default(),
    };
    (Some(node), rows.bad)
}

struct Rows {
    rows: HashMap<String, Value>,
    bad: Vec<String>,
}

impl Rows {
    fn get<T: FromSql>(&mut self, key: &str) -> Option<T> {
        match T::column_result(ValueRef::from(self.rows.get(key)?)) {
            Ok(value) => Some(value),
            Err(e) => {
                self.bad.push(format!("{key}: {e}"));
                None
            }
        }
    }

    fn get_json<T: serde::de::DeserializeOwned>(&mut self, key: &str) -> Option<T> {
        let text: String = self.get(key)?;
        match from_json(&text) {
            Ok(value) => Some(value),
            Err(e) => {
                self.bad.push(format!("{key}: {e}"));
                None
            }
        }
    }
}
