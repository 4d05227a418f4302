//! This node, as it is watched.

use coroner_probes::Root;
use coroner_probes::watch::{AuditOptions, NameZombies, Options};
use std::path::PathBuf;

/// How to look at the node.
#[derive(Debug, Clone, Default)]
pub struct LiveNode {
    /// The D-Bus address of systemd; without it the system bus.
    pub bus: Option<String>,
    /// Kernel log lines that user space wrote count as the kernel's own. For tests.
    pub trust_user_log: bool,
    /// The files below this directory stand for the node. For tests.
    pub root: Option<PathBuf>,
}

impl LiveNode {
    pub fn root(&self) -> Root {
        match &self.root {
            Some(dir) => Root::at(dir),
            None => Root::live(),
        }
    }

    pub fn watch_options(&self, zombies: NameZombies, audit: Option<AuditOptions>) -> Options {
        let (bus, pretend_kernel_log) = (self.bus.clone(), self.trust_user_log);
        Options { zombies, bus, pretend_kernel_log, audit, ..Options::default() }
    }
}
