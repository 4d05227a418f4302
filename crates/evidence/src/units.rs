//! systemd units, as the manager describes them.

use crate::Wall;
use crate::time::Time;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unit {
    pub at: Time,
    pub name: String,
    /// `loaded`, `not-found`, `masked` …
    pub load_state: String,
    /// `active`, `activating`, `failed` …
    pub active_state: String,
    /// `running`, `auto-restart`, `dead` …
    pub sub_state: String,
    /// `enabled`, `disabled`, `static` …
    pub unit_file_state: Option<String>,
    /// Services: `success`, `exit-code`, `signal`, `oom-kill` …
    pub result: Option<String>,
    /// Automatic restarts since it was started or `reset-failed`; not monotonic.
    pub restarts: Option<u32>,
    /// Changes with every start.
    pub invocation_id: Option<String>,
    /// When its main process last started, ns of CLOCK_MONOTONIC.
    pub main_started: Option<Time>,
    pub main_pid: Option<u32>,
    /// How its main process last ended: `exited`, `killed`, `dumped`.
    pub exit_kind: Option<String>,
    /// Exit code or signal number.
    pub exit_status: Option<i32>,
    pub restart_delay_us: Option<u64>,
    /// Its cgroup as the node names it: if the manager runs in a container, below that container's.
    pub cgroup: Option<String>,
    /// `Type=` of a service: `simple`, `notify`, `oneshot` …
    pub service_type: Option<String>,
    /// `Restart=` of a service: `no`, `always`, `on-failure` …
    pub restart: Option<String>,
    /// When its main process last ended, ns of CLOCK_MONOTONIC.
    pub main_exited: Option<Time>,
    /// When it last became active, ns of CLOCK_MONOTONIC.
    pub active_since: Option<Time>,
    /// CPU time of its cgroup since it last started.
    pub cpu_ns: Option<u64>,
    pub memory_bytes: Option<u64>,
    /// Threads in its cgroup.
    pub tasks: Option<u64>,
    /// The timers, sockets and paths that start it.
    pub triggered_by: Vec<String>,
    /// What this timer, socket or path starts.
    pub triggers: Vec<String>,
    /// Timers: when it last fired, and will next; ns since 1970.
    pub last_trigger: Option<Wall>,
    pub next_trigger: Option<Wall>,
    /// Sockets: connections since it listens, and now.
    pub accepted: Option<u64>,
    pub connections: Option<u64>,
    /// False if its last start was skipped because a condition did not hold.
    pub conditions_held: Option<bool>,
}

/// A message from a unit's journal.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnitLogLine {
    pub unit: String,
    pub at: Wall,
    pub text: String,
    /// The restart counter, if this is systemd's message about a scheduled automatic restart.
    pub restart: Option<u32>,
}

/// Open internet sockets of the processes of a unit.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnitSockets {
    pub at: Time,
    pub unit: String,
    pub processes: u64,
    pub listening: u64,
    /// Connected to another host or process over TCP, or a UDP socket with a peer.
    pub connected: u64,
}

/// Processes of one name, started by one process, that exited within some time.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChildExits {
    pub from: Time,
    pub to: Time,
    /// The process that started them, or adopted them if that one is gone; in the initial pid namespace.
    pub parent_pid: u32,
    pub parent_comm: String,
    /// Memory cgroup of the parent, if it could still be read. Exited parents of one name are summed up under the pid of one of them.
    pub cgroup: Option<String>,
    /// Their name when they exited.
    pub comm: String,
    pub exits: u64,
    /// Exited with a code other than 0 or by a signal, except those that somebody asked for (HUP, INT, KILL, PIPE, TERM).
    pub failed: u64,
    /// Of these, those that lived for less than ten seconds.
    pub failed_young: u64,
    /// Exit code or signal of the last that failed.
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
}

/// A container, from its runtime's files.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Container {
    pub at: Time,
    /// `kubelet`, `docker`, `podman`.
    pub runtime: String,
    /// Its name within the pod, or on the node.
    pub name: String,
    pub namespace: Option<String>,
    pub pod: Option<String>,
    pub pod_uid: Option<String>,
    pub id: Option<String>,
    /// How often it was restarted.
    pub restarts: u64,
    /// Its last start, and the first one that is still known; ns since 1970.
    pub started: Option<Wall>,
    pub first_started: Option<Wall>,
    pub exit_code: Option<i32>,
}
