//! Who the node is.

use serde::{Deserialize, Serialize};

/// Identity of a node, from its own files; nothing is asked over the network.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    pub host: Option<String>,
    pub machine_id: Option<String>,
    pub boot_id: Option<String>,
    /// `6.18.44-fc-v445`
    pub kernel: Option<String>,
    pub architecture: Option<String>,
    /// Nanoseconds since 1970.
    pub booted_real_ns: Option<u64>,
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
    /// Whether the observer itself sits in a container, and how it knows.
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
    /// `None` if it could not be told whether it runs.
    pub running: Option<bool>,
    pub version: Option<String>,
    /// What tells that it is there: a path or a process.
    pub seen_by: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpu {
    /// PCI address.
    pub bus: String,
    pub model: Option<String>,
    pub driver: Option<String>,
}
