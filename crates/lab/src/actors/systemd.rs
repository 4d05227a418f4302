//! A real systemd as PID 1 of its own namespaces, with writable cgroups.
//!
//! By hand, because systemd-nspawn mounts v1 controllers read-only, and units would get no memory cgroup of their own.

use crate::hierarchy::Hierarchy;
use anyhow::{Context, Result};
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_change, mount_remount, unmount,
};
use std::ffi::CString;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// The v1 hierarchies that systemd needs; it mounts others by itself.
const CONTROLLERS: [&str; 4] = ["memory", "pids", "devices", "name=systemd"];

pub fn boot(lower: &Path, scratch: &Path, hostname: &str, binds: &[String]) -> Result<()> {
    let hierarchies = Hierarchy::all()?;
    let m = scratch.join("m");
    let dirs = ["up", "wk"].map(|d| scratch.join(d).display().to_string());
    let layers = format!("lowerdir={},upperdir={},workdir={}", lower.display(), dirs[0], dirs[1]);
    put("overlay", &m, Some(&layers))?;
    put("proc", &m.join("proc"), None)?;
    put("sysfs", &m.join("sys"), None)?;
    mount_cgroups(&hierarchies, &m.join("sys/fs/cgroup"))?;
    populate_dev(&m.join("dev"))?;
    put("tmpfs", &m.join("run"), Some("mode=755"))?;
    put("tmpfs", &m.join("tmp"), None)?;
    for bind in binds {
        let (host, path) = bind.split_once(':').with_context(|| format!("{bind}: expected HOST:PATH"))?;
        let place = m.join(path.trim_start_matches('/'));
        fs::create_dir_all(&place).with_context(|| place.display().to_string())?;
        mount_bind(host, &place).with_context(|| format!("cannot bind {host}"))?;
    }
    // It must not change the host's settings.
    let sysctl = m.join("proc/sys");
    mount_bind(&sysctl, &sysctl).context("/proc/sys")?;
    for read_only in [&sysctl, &m.join("sys")] {
        mount_remount(read_only, MountFlags::BIND | MountFlags::RDONLY, "").context("make read-only")?;
    }
    rustix::system::sethostname(hostname.as_bytes()).context("sethostname")?;

    std::env::set_current_dir(&m)?;
    fs::create_dir_all(".old")?;
    rustix::process::pivot_root(".", ".old").context("pivot_root")?;
    std::env::set_current_dir("/")?;
    unmount("/.old", UnmountFlags::DETACH).context("leave the old root")?;
    // Services have their own mount namespaces. With shared mounts an unmount reaches them, and the pages of a tmpfs are freed.
    mount_change("/", MountPropagationFlags::SHARED | MountPropagationFlags::REC).context("share mounts")?;

    let mut systemd = Command::new("/lib/systemd/systemd");
    systemd.args(["--system", "--log-target=journal"]);
    if hierarchies.iter().any(|h| h.version == 1 && has(h, "memory")) {
        systemd.arg("systemd.unified_cgroup_hierarchy=0");
    }
    systemd
        .env_clear()
        .env("container", "coroner-lab")
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .env("TERM", "dumb");
    systemd.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Err(systemd.exec()).context("cannot become systemd")
}

fn has(hierarchy: &Hierarchy, controller: &str) -> bool {
    hierarchy.controllers.iter().any(|c| c == controller)
}

/// Mounts a new file system; creates the directory if needed.
fn put(kind: &str, at: &Path, options: Option<&str>) -> Result<()> {
    if !at.is_dir() {
        fs::create_dir_all(at).with_context(|| at.display().to_string())?;
    }
    let options = options.map(CString::new).transpose()?;
    mount(kind, at, kind, MountFlags::empty(), options.as_deref())
        .with_context(|| format!("cannot mount {kind} at {}", at.display()))
}

/// In a cgroup namespace, a new mount shows our own cgroup as the root.
fn mount_cgroups(hierarchies: &[Hierarchy], at: &Path) -> Result<()> {
    if !hierarchies.iter().any(|h| h.version == 1 && has(h, "memory")) {
        return put("cgroup2", at, None);
    }
    put("tmpfs", at, Some("mode=755"))?;
    for h in hierarchies {
        if h.version == 2 {
            put("cgroup2", &at.join("unified"), None)?;
        } else if CONTROLLERS.iter().any(|c| has(h, c)) {
            let listed = h.controllers.join(",");
            let dir = at.join(listed.trim_start_matches("name="));
            let named = listed.starts_with("name=");
            put("cgroup", &dir, Some(&if named { format!("none,{listed}") } else { listed }))?;
        }
    }
    Ok(())
}

/// Creates its own device nodes instead of binding the host's: a getty changes owner and mode of its terminal, and on a bound node
/// that would affect the host.
fn populate_dev(dev: &Path) -> Result<()> {
    put("tmpfs", dev, Some("mode=755"))?;
    let memory =
        [("null", 3), ("zero", 5), ("full", 7), ("random", 8), ("urandom", 9)].map(|(name, minor)| (name, 1, minor));
    for (name, major, minor) in memory.into_iter().chain([("tty", 5, 0)]) {
        let at = dev.join(name);
        mknodat(CWD, &at, FileType::CharacterDevice, Mode::from_raw_mode(0o666), makedev(major, minor))
            .with_context(|| format!("cannot make /dev/{name}"))?;
        // Whatever the umask is.
        fs::set_permissions(&at, fs::Permissions::from_mode(0o666))?;
    }
    put("devpts", &dev.join("pts"), Some("newinstance,ptmxmode=0666"))?;
    put("tmpfs", &dev.join("shm"), None)?;
    for (to, name) in [("pts/ptmx", "ptmx"), ("/proc/self/fd", "fd")] {
        symlink(to, dev.join(name))?;
    }
    Ok(())
}
