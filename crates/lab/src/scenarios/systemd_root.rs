//! A small Debian with systemd, made once and kept: the lower layer for scenarios that boot it.

use crate::guard::Child;
use crate::interrupt;
use crate::run_id::RunId;
use anyhow::{Context, Result, bail};
use rustix::fs::{FlockOperation, flock};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Still has cgroup v1, which systemd 258 dropped.
const SUITE: &str = "bookworm";

/// `CORONER_LAB_ROOT`, or target/lab/root beside this build.
pub fn location() -> Result<PathBuf> {
    if let Some(root) = std::env::var_os("CORONER_LAB_ROOT") {
        return Ok(std::path::absolute(PathBuf::from(root))?);
    }
    let binary = crate::live::lab_binary();
    let target = binary.ancestors().nth(2).context("cannot tell where target/ is: set CORONER_LAB_ROOT")?;
    Ok(std::path::absolute(target)?.join("lab/root"))
}

pub fn is_built(root: &Path) -> bool {
    root.join("lib/systemd/systemd").exists()
}

/// Makes it if it does not exist: takes 15 s and a Debian mirror.
pub fn build() -> Result<PathBuf> {
    let root = location()?;
    if is_built(&root) {
        return Ok(root);
    }
    let parent = root.parent().context("CORONER_LAB_ROOT must not be /")?;
    fs::create_dir_all(parent).with_context(|| parent.display().to_string())?;
    // One builder at a time. It is renamed last, so what exists is complete.
    let lock = File::create(root.with_extension("lock"))?;
    flock(&lock, FlockOperation::LockExclusive)?;
    if is_built(&root) {
        return Ok(root);
    }
    remove_dead_builds(parent);
    let unfinished = Unfinished(parent.join(RunId::of_this_process().name("root")));
    eprintln!("coroner-lab: making a small Debian with systemd in {} …", root.display());
    mmdebstrap(&unfinished.0)?;
    fs::rename(&unfinished.0, &root).with_context(|| root.display().to_string())?;
    Ok(root)
}

/// In its own PID and mount namespaces: killing the first process ends all of them and their mounts.
fn mmdebstrap(into: &Path) -> Result<()> {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "private"]);
    command.args([
        "mmdebstrap",
        "--quiet",
        "--mode=root",
        "--variant=essential",
        "--include=systemd,systemd-sysv,dbus",
    ]);
    command.arg(SUITE).arg(into).stdout(Stdio::null());
    let mut child = Child::spawn("mmdebstrap", &mut command)?;
    loop {
        match child.ended()? {
            Some(status) if status.success() => return Ok(()),
            Some(status) => bail!("mmdebstrap: {status}"),
            None if interrupt::requested() => bail!("interrupted while making the root file system"),
            None => interrupt::pause(Duration::from_millis(50)),
        }
    }
}

struct Unfinished(PathBuf);

impl Drop for Unfinished {
    fn drop(&mut self) {
        if self.0.exists()
            && let Err(error) = fs::remove_dir_all(&self.0)
        {
            eprintln!("coroner-lab: could not remove {}: {error}", self.0.display());
        }
    }
}

fn remove_dead_builds(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        if entry.file_name().to_str().and_then(RunId::of_name).is_some_and(|run| !run.alive()) {
            drop(Unfinished(entry.path()));
        }
    }
}
