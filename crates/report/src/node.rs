//! The identity of a node.

use crate::Wall;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Identity of a node, from its own files; the network is not asked.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Node {
    pub host: Option<String>,
    pub machine_id: Option<String>,
    pub boot_id: Option<String>,
    /// `6.18.44-fc-v445`
    pub kernel: Option<String>,
    pub architecture: Option<String>,
    pub booted: Option<Wall>,
    /// PRETTY_NAME of os-release.
    pub os: Option<String>,
    pub cores: Option<u32>,
    pub memory_bytes: Option<u64>,
    /// `aws`, `gce`, `azure` …
    pub cloud: Option<String>,
    pub image_id: Option<String>,
    pub zone: Option<String>,
    pub instance_type: Option<String>,
    pub instance_id: Option<String>,
    /// `None` on bare metal, else what DMI or the kernel says: `KVM`, `Amazon EC2`.
    pub hypervisor: Option<String>,
    /// `v1`, `v2`, `hybrid`.
    pub cgroup_version: Option<String>,
    /// What shows that coroner itself runs in a container.
    pub in_container: Option<String>,
    /// Whether systemd runs the node.
    pub systemd: Option<bool>,
    pub kubelet: Option<Software>,
    pub container_runtimes: Vec<Software>,
    pub ray: Option<Software>,
    pub gpus: Vec<Gpu>,
}

/// A program of interest that is present on the node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Software {
    pub name: String,
    /// `None` if unknown.
    pub running: Option<bool>,
    pub version: Option<String>,
    /// What shows that it is there: a path or a process.
    pub seen_by: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpu {
    /// PCI address.
    pub bus: String,
    pub model: Option<String>,
    pub driver: Option<String>,
}

pub const SCHEMA: &str = "coroner.node/1";

/// A node among others, with attributes that it may share with them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeIdentity {
    pub schema: String,
    pub host: Option<String>,
    pub machine_id: Option<String>,
    pub boot_id: Option<String>,
    pub booted: Option<Wall>,
    /// As the fleet's operator calls it.
    pub cluster: Option<String>,
    pub labels: BTreeMap<String, String>,
    /// What tells nodes apart: `kernel`, `zone`, `instance_type`. Unknown ones are absent.
    pub attributes: BTreeMap<String, String>,
}

impl NodeIdentity {
    pub fn of(node: &Node) -> NodeIdentity {
        let version = |software: &Option<Software>| software.as_ref().and_then(|software| software.version.clone());
        let joined = |texts: Vec<String>| (!texts.is_empty()).then(|| texts.join(", "));
        let gpus = |of: fn(&Gpu) -> Option<String>| {
            let mut of: Vec<String> = node.gpus.iter().filter_map(of).collect();
            of.sort();
            of.dedup();
            joined(of)
        };
        let runtimes = node.container_runtimes.iter().map(|runtime| match &runtime.version {
            Some(version) => format!("{} {version}", runtime.name),
            None => runtime.name.clone(),
        });
        let known = [
            ("kernel", node.kernel.clone()),
            ("architecture", node.architecture.clone()),
            ("os", node.os.clone()),
            ("cores", node.cores.map(|cores| cores.to_string())),
            ("memory_gib", node.memory_bytes.map(|bytes| (bytes >> 30).to_string())),
            ("cloud", node.cloud.clone()),
            ("image_id", node.image_id.clone()),
            ("zone", node.zone.clone()),
            ("instance_type", node.instance_type.clone()),
            ("hypervisor", node.hypervisor.clone()),
            ("cgroup_version", node.cgroup_version.clone()),
            ("systemd", node.systemd.map(|systemd| systemd.to_string())),
            ("kubelet", version(&node.kubelet)),
            ("container_runtimes", joined(runtimes.collect())),
            ("ray", version(&node.ray)),
            ("gpu", gpus(|gpu| gpu.model.clone())),
            ("gpus", (!node.gpus.is_empty()).then(|| node.gpus.len().to_string())),
            ("gpu_driver", gpus(|gpu| gpu.driver.clone())),
        ];
        NodeIdentity {
            schema: SCHEMA.to_owned(),
            host: node.host.clone(),
            machine_id: node.machine_id.clone(),
            boot_id: node.boot_id.clone(),
            booted: node.booted,
            attributes: known.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect(),
            ..NodeIdentity::default()
        }
    }
}
