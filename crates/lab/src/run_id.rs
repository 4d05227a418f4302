//! Everything the lab makes has the runner's PID and start time in its name. That tells leftovers from what a live run still uses,
//! without state on disk that could itself be lost.

use crate::node;
use std::path::{Path, PathBuf};

pub const PREFIX: &str = "coroner-lab-";

/// The process that made something; the start time tells it from later ones with the same PID.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunId {
    pub pid: u32,
    /// Field 22 of /proc/PID/stat.
    pub start: u64,
}

impl RunId {
    pub fn of_this_process() -> RunId {
        let pid = std::process::id();
        RunId { pid, start: node::start_time(pid).unwrap_or(0) }
    }

    /// `coroner-lab-4711-123456-what`
    pub fn name(&self, what: &str) -> String {
        format!("{PREFIX}{}-{}-{what}", self.pid, self.start)
    }

    /// Parses the id from a name; `None` if it is not a name of the lab's.
    pub fn of_name(name: &str) -> Option<RunId> {
        let mut parts = name.strip_prefix(PREFIX)?.splitn(3, '-');
        Some(RunId { pid: parts.next()?.parse().ok()?, start: parts.next()?.parse().ok()? })
    }

    /// Whether the process that made it still runs.
    pub fn alive(&self) -> bool {
        node::start_time(self.pid) == Some(self.start)
    }

    /// Where this run keeps its mount points.
    pub fn runtime_dir(&self) -> PathBuf {
        runtime_root().join(self.name("run"))
    }
}

/// `CORONER_LAB_RUNTIME`, or /run/coroner-lab.
pub fn runtime_root() -> PathBuf {
    std::env::var_os("CORONER_LAB_RUNTIME").map_or_else(|| Path::new("/run/coroner-lab").to_owned(), PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_identifies_its_run() {
        let id = RunId::of_this_process();
        assert_eq!(RunId::of_name(&id.name("zombies-ab12")), Some(id));
        assert!(id.alive());
        assert!(!RunId { start: id.start + 1, ..id }.alive());
        for foreign in
            ["coroner-lab", "coroner-lab-", "coroner-lab-x-1-y", "kubepods", "coroner-lab-12-", "my-coroner-lab-1-2-x"]
        {
            assert_eq!(RunId::of_name(foreign), None, "{foreign}");
        }
    }
}
