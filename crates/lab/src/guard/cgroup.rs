//! A cgroup, removed on drop.

use super::complain;
use crate::hierarchy::Hierarchy;
use crate::run_id::RunId;
use anyhow::{Context, Result, anyhow};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A cgroup directory. Its drop kills its members, removes its children and itself.
#[derive(Debug)]
pub struct Cgroup {
    hierarchy: Hierarchy,
    dir: PathBuf,
    /// v2: the controller we enabled in the root, to be disabled again.
    enabled_in_root: Option<String>,
    frees_cache: bool,
}

impl Cgroup {
    /// A new cgroup right below the root of the hierarchy, named after this run.
    pub fn create(hierarchy: &Hierarchy, what: &str) -> Result<Cgroup> {
        Cgroup::make(hierarchy, hierarchy.mount_point.join(RunId::of_this_process().name(what)))
    }

    /// The same, in the hierarchy that has this controller; on v2 the controller is enabled for it.
    pub fn with_controller(controller: &str, what: &str) -> Result<Cgroup> {
        let hierarchy = Hierarchy::with(controller)?;
        let enabled = hierarchy.enable(&hierarchy.mount_point, controller)?;
        let mut cgroup = Cgroup::create(&hierarchy, what)?;
        cgroup.enabled_in_root = enabled.then(|| controller.to_owned());
        Ok(cgroup)
    }

    /// A child; removed with its parent at the latest.
    pub fn child(&self, name: &str) -> Result<Cgroup> {
        Cgroup::make(&self.hierarchy, self.dir.join(name))
    }

    fn make(hierarchy: &Hierarchy, dir: PathBuf) -> Result<Cgroup> {
        fs::create_dir(&dir).with_context(|| format!("cannot make the cgroup {}", dir.display()))?;
        Ok(Cgroup { hierarchy: hierarchy.clone(), dir, enabled_in_root: None, frees_cache: false })
    }

    /// Before it is removed, frees the page cache charged to it and to removed children.
    pub fn freeing_cache(mut self) -> Cgroup {
        self.frees_cache = true;
        self
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// As /proc/PID/cgroup shows it.
    pub fn path(&self) -> String {
        self.hierarchy.path_of(&self.dir)
    }

    pub fn hierarchy(&self) -> &Hierarchy {
        &self.hierarchy
    }

    pub fn add(&self, pid: u32) -> Result<()> {
        self.write("cgroup.procs", &pid.to_string())
    }

    pub fn write(&self, file: &str, text: &str) -> Result<()> {
        let path = self.dir.join(file);
        fs::write(&path, text).with_context(|| format!("cannot write {text:?} to {}", path.display()))
    }

    pub fn read(&self, file: &str) -> Result<String> {
        let path = self.dir.join(file);
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
    }

    /// One number of a file with a name and a value on each line (cpu.stat, memory.stat, cgroup.stat).
    pub fn counter(&self, file: &str, name: &str) -> Result<u64> {
        let text = self.read(file)?;
        let value = text.lines().find_map(|l| l.strip_prefix(name)?.trim().parse().ok());
        value.ok_or_else(|| anyhow!("{}: no {name}", self.dir.join(file).display()))
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let free_cache = || {
            if self.frees_cache {
                free_cache_of(&self.dir);
            }
        };
        if let Err(error) = remove_tree_after(&self.dir, &free_cache) {
            complain(&self.dir.display().to_string(), &format!("{error:#}"));
        }
        if let Some(controller) = &self.enabled_in_root {
            // Fails if others use it by now: then it must stay.
            let _ = fs::write(self.hierarchy.mount_point.join("cgroup.subtree_control"), format!("-{controller}"));
        }
    }
}

/// Moves this process into cgroups of the lab; its drop moves it back.
#[derive(Debug)]
pub struct Visit {
    home: PathBuf,
}

impl Visit {
    /// Remembers where this process is in the hierarchy of `cgroup`.
    pub fn from_home(cgroup: &Cgroup) -> Result<Visit> {
        let text = fs::read_to_string("/proc/self/cgroup").context("/proc/self/cgroup")?;
        let controllers = &cgroup.hierarchy.controllers;
        let path = text.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            let listed = parts.next()?;
            let ours = match cgroup.hierarchy.version {
                2 => listed.is_empty(),
                _ => listed.split(',').any(|c| controllers.iter().any(|own| own == c)),
            };
            ours.then_some(parts.next()?)
        });
        let path = path.ok_or_else(|| anyhow!("/proc/self/cgroup does not say where this process is"))?;
        let home = cgroup.hierarchy.mount_point.join(path.trim_start_matches('/'));
        // In a container that sees only part of the hierarchy, the path may not exist.
        Ok(Visit { home: if home.is_dir() { home } else { cgroup.hierarchy.mount_point.clone() } })
    }

    /// Moves another process to this one's original cgroup.
    pub fn take_home(&self, pid: u32) -> Result<()> {
        let file = self.home.join("cgroup.procs");
        fs::write(&file, pid.to_string()).with_context(|| format!("cannot move {pid} to {}", self.home.display()))
    }

    pub fn go(&self, dir: &Path) -> Result<()> {
        let file = dir.join("cgroup.procs");
        fs::write(&file, "0").with_context(|| format!("cannot join {}", dir.display()))
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        if let Err(error) = self.go(&self.home) {
            complain("the runner's own cgroup", &format!("{error:#}"));
        }
    }
}

/// Page cache charged to a memory cgroup would keep removed cgroups as zombies long after the scenario.
fn free_cache_of(dir: &Path) {
    let _ = fs::write(dir.join("memory.force_empty"), "0");
    let _ = fs::write(dir.join("memory.reclaim"), "1G");
}

/// Kills the members of a cgroup that the lab made, and removes it and everything below, with its page cache. No error if it is
/// already gone.
pub fn remove_tree(dir: &Path) -> Result<()> {
    remove_tree_after(dir, &|| free_cache_of(dir))
}

/// The same; `last` is called when nothing is left below.
fn remove_tree_after(dir: &Path, last: &dyn Fn()) -> Result<()> {
    // A killed member leaves the cgroup only at the end of its exit.
    let limit = Instant::now() + Duration::from_secs(60);
    loop {
        match remove_once(dir, last) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(error) if Instant::now() > limit => return Err(error).with_context(|| dir.display().to_string()),
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

fn remove_once(dir: &Path, last: &dyn Fn()) -> std::io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            match remove_once(&entry.path(), &|| ()) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
    }
    last();
    if let Err(error) = fs::remove_dir(dir) {
        kill_members(dir);
        return Err(error);
    }
    Ok(())
}

/// All members are the lab's: nobody else knows the cgroup. PIDs outside this PID namespace show as 0.
fn kill_members(dir: &Path) {
    let members = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
    let own = std::process::id() as i32;
    for pid in members.lines().filter_map(|l| l.parse().ok()).filter(|&p: &i32| p > 0 && p != own) {
        if let Some(pid) = Pid::from_raw(pid) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}
