//! Leftovers of killed runners: found by name, removed only if the runner is gone.

use crate::guard::{remove_netns, remove_runtime_dir, remove_tree};
use crate::hierarchy::Hierarchy;
use crate::run_id::{RunId, runtime_root};
use anyhow::Result;
use std::path::{Path, PathBuf};
use std::{fmt, fs};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Leftover {
    Cgroup(PathBuf),
    Netns(PathBuf),
    RuntimeDir(PathBuf),
}

impl Leftover {
    fn path(&self) -> &Path {
        match self {
            Leftover::Cgroup(p) | Leftover::Netns(p) | Leftover::RuntimeDir(p) => p,
        }
    }

    pub fn run(&self) -> Option<RunId> {
        RunId::of_name(self.path().file_name()?.to_str()?)
    }

    pub fn remove(&self) -> Result<()> {
        match self {
            Leftover::Cgroup(path) => remove_tree(path),
            Leftover::Netns(path) => remove_netns(path),
            Leftover::RuntimeDir(path) => remove_runtime_dir(path),
        }
    }
}

impl fmt::Display for Leftover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self {
            Leftover::Cgroup(_) => "cgroup",
            Leftover::Netns(_) => "network namespace",
            Leftover::RuntimeDir(_) => "runtime directory",
        };
        write!(f, "{what} {}", self.path().display())
    }
}

/// Everything on this node with a name of the lab's, including live runs. Cgroups first, because their members must die; mounts last.
pub fn all() -> Vec<Leftover> {
    let hierarchies = Hierarchy::all().unwrap_or_default();
    let cgroups = hierarchies.iter().flat_map(|h| named_in(&h.mount_point)).map(Leftover::Cgroup);
    let netns = named_in(Path::new(crate::guard::NETNS_DIR)).into_iter().map(Leftover::Netns);
    let dirs = named_in(&runtime_root()).into_iter().map(Leftover::RuntimeDir);
    cgroups.chain(netns).chain(dirs).collect()
}

fn named_in(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let ours = entries.filter(|e| e.file_name().to_str().and_then(RunId::of_name).is_some());
    ours.map(|e| e.path()).collect()
}

/// Removes what belongs to runs whose runner is gone. Returns what was removed and what could not be.
pub fn clean() -> (Vec<Leftover>, Vec<(Leftover, anyhow::Error)>) {
    let (mut removed, mut failed) = (Vec::new(), Vec::new());
    for leftover in all().into_iter().filter(|l| l.run().is_some_and(|run| !run.alive())) {
        match leftover.remove() {
            Ok(()) => removed.push(leftover),
            Err(error) => failed.push((leftover, error)),
        }
    }
    let _ = fs::remove_dir(runtime_root());
    (removed, failed)
}
