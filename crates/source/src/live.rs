//! Watching this node.

use coroner_probes::Root;
use coroner_probes::watch::{AuditOptions, NameZombies, WatchOptions};
use std::path::PathBuf;

/// How to look at the node.
#[derive(Debug, Clone, Default)]
pub struct LiveNode {
    /// The D-Bus address of systemd; `None`: the system bus.
    pub bus: Option<String>,
    /// Trust kernel log lines written by user space. For tests.
    pub trust_user_log: bool,
    /// Read the node's files below this directory. For tests.
    pub root: Option<PathBuf>,
}

impl LiveNode {
    pub fn root(&self) -> Root {
        match &self.root {
            Some(dir) => Root::at(dir),
            None => Root::live(),
        }
    }

    pub fn watch_options(&self, zombies: NameZombies, audit: Option<AuditOptions>) -> WatchOptions {
        let (bus, pretend_kernel_log) = (self.bus.clone(), self.trust_user_log);
        WatchOptions { zombies, bus, pretend_kernel_log, audit, ..WatchOptions::default() }
    }
}
