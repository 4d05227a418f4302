//! A network namespace, removed on drop.

use super::complain;
use crate::run_id::RunId;
use crate::syscalls::unshare_network;
use anyhow::{Context, Result, bail};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, mount_bind, unmount};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{io, thread};

/// Where `ip netns` keeps names.
pub const NETNS_DIR: &str = "/run/netns";

/// A named network namespace. Its drop removes the name; its devices go with the last process in it.
#[derive(Debug)]
pub struct Netns {
    name: String,
}

impl Netns {
    pub fn create(what: &str) -> Result<Netns> {
        let name = RunId::of_this_process().name(what);
        keep_new_namespace(&Path::new(NETNS_DIR).join(&name))
            .with_context(|| format!("cannot make the network namespace {name}"))?;
        Ok(Netns { name })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// For setns.
    pub fn path(&self) -> PathBuf {
        Path::new(NETNS_DIR).join(&self.name)
    }

    /// `ip -n NAME …`
    pub fn ip(&self, args: &[&str]) -> Result<()> {
        ip(&[&["-n", self.name.as_str()], args].concat())
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        if let Err(error) = remove_netns(&self.path()) {
            complain(&self.name, &format!("{error:#}"));
        }
    }
}

/// Like `ip netns add`, but that leaves /run/netns mounted on itself for ever.
fn keep_new_namespace(path: &Path) -> Result<()> {
    fs::create_dir_all(NETNS_DIR)?;
    File::create_new(path)?;
    // Only this thread moves into the new namespace; the mount keeps it when the thread ends.
    let made = thread::scope(|scope| {
        let maker = scope.spawn(|| {
            unshare_network()?;
            mount_bind("/proc/thread-self/ns/net", path).map_err(io::Error::from)
        });
        maker.join().unwrap_or_else(|_| Err(io::Error::other("its thread panicked")))
    });
    if made.is_err() {
        let _ = fs::remove_file(path);
        let _ = fs::remove_dir(NETNS_DIR);
    }
    Ok(made?)
}

pub fn remove_netns(path: &Path) -> Result<()> {
    // A runner killed half-way leaves a plain file, and unmount returns EINVAL.
    match unmount(path, UnmountFlags::DETACH) {
        Err(error) if error != Errno::INVAL => {
            Err(error).with_context(|| format!("cannot unmount {}", path.display()))?
        }
        _ => fs::remove_file(path).with_context(|| format!("cannot remove {}", path.display()))?,
    }
    // Only if nobody else has a namespace there.
    let _ = fs::remove_dir(NETNS_DIR);
    Ok(())
}

/// Runs ip(8) of iproute2.
pub fn ip(args: &[&str]) -> Result<()> {
    let out = Command::new("ip").args(args).stdin(Stdio::null()).output().context("cannot run ip: install iproute2")?;
    if !out.status.success() {
        bail!("ip {}: {}", args.join(" "), String::from_utf8_lossy(&out.stderr).trim());
    }
    Ok(())
}
