//! systemd units, as the manager describes them.

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
    pub cgroup: Option<String>,
}
