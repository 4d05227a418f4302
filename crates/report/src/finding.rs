//! A finding as it leaves the node.

use crate::{Code, Fact, Severity, Subject, TimeSpan};
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    pub code: Code,
    /// The same after a restart and on another node. Findings of one diagnosis that share a key are one problem.
    #[serde(default)]
    pub key: String,
    pub severity: Severity,
    pub subject: Subject,
    /// Who did it: `kubelet[4711]`.
    #[serde(default)]
    pub by: Option<String>,
    /// Since when, until when, or still.
    #[serde(default)]
    pub time: TimeSpan,
    #[serde(default)]
    pub ties: Ties,
    /// One line that a tired person understands.
    pub title: String,
    /// What happened, with the numbers that matter.
    pub detail: String,
    pub evidence: Vec<Fact>,
    /// The safe next step.
    pub remedy: String,
}

/// What a finding is about, in the node's own terms. Lists that do not apply are empty.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Ties {
    pub cores: Vec<u32>,
    /// Paths in the cgroup tree.
    pub cgroups: Vec<String>,
    pub units: Vec<String>,
    /// By their uid.
    pub pods: Vec<String>,
    /// `eth0 rx-3`
    pub queues: Vec<String>,
    /// The same as fields.
    pub nics: Vec<Nic>,
    pub culprits: Vec<Task>,
    pub victims: Vec<Task>,
}

/// A network device, and one of its queues, if known.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nic {
    pub device: String,
    /// `null` in the node's own network namespace, or if it is unknown.
    pub netns: Option<String>,
    /// `ena`, `virtio_net`
    pub driver: Option<String>,
    /// `rx-3`, `tx-5`
    pub queue: Option<String>,
}

/// A process, or one of its threads.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Task {
    pub comm: String,
    pub pid: u32,
    pub tid: u32,
}

impl Nic {
    /// `eth0`, or `eth0 in netns blue`.
    pub fn name(&self) -> String {
        match &self.netns {
            None => self.device.clone(),
            Some(netns) => format!("{} in netns {netns}", self.device),
        }
    }

    /// `eth0 rx-3`
    pub fn queue_name(&self) -> String {
        match &self.queue {
            Some(queue) => format!("{} {queue}", self.name()),
            None => self.name(),
        }
    }
}

impl Task {
    /// `kubelet[4711]`
    pub fn name(&self) -> String {
        format!("{}[{}]", self.comm.replace('`', "'"), self.tid)
    }
}
