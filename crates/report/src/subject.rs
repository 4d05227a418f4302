//! How bad a finding is, and what it is about.

use crate::finding::Task;
use crate::named;
use serde::{Deserialize, Serialize};

named! {
    pub enum Severity {
        /// Worth knowing; nothing to do.
        Info = "info",
        /// Somebody should look.
        Warning = "warning",
        /// Jobs are harmed now, or were within the last day.
        Critical = "critical",
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SubjectKind {
    Node,
    Core,
    Nic,
    /// A process or one of its threads.
    Process,
    Cgroup,
    Unit,
    Container,
    Gpu,
    /// Of a newer version than this one.
    #[serde(other)]
    Other,
}

impl SubjectKind {
    pub fn as_str(self) -> &'static str {
        match self {
            SubjectKind::Node => "node",
            SubjectKind::Core => "core",
            SubjectKind::Nic => "nic",
            SubjectKind::Process => "process",
            SubjectKind::Cgroup => "cgroup",
            SubjectKind::Unit => "unit",
            SubjectKind::Container => "container",
            SubjectKind::Gpu => "gpu",
            SubjectKind::Other => "other",
        }
    }
}

/// What a finding is about: (core, "1"), (nic, "eth0"), (process, "spin[4711]"), (cgroup, "/kubepods/…"), (unit, "ecs.service").
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Subject {
    pub kind: SubjectKind,
    pub name: String,
    /// For a process or thread.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<Task>,
}

impl Subject {
    pub fn new(kind: SubjectKind, name: impl Into<String>) -> Subject {
        Subject { kind, name: name.into(), task: None }
    }

    pub fn process(task: Task) -> Subject {
        Subject { kind: SubjectKind::Process, name: task.name(), task: Some(task) }
    }
}
