//! A real systemd in namespaces, with writable cgroups, and its bus as seen from outside.

use super::furniture::Furniture;
use super::{Need, PATIENCE, systemd_root};
use crate::bus::Bus;
use crate::guard::{Cgroup, Child, TmpfsMount, Visit};
use crate::hierarchy::Hierarchy;
use crate::live::lab_binary;
use crate::stage::Stage;
use crate::{actors, node};
use anyhow::{Context, Result};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use std::fs;
use std::io::{Error, ErrorKind};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

pub const NEEDS: &[Need] = &[Need::Root, Need::SystemdRoot, Need::Program("unshare", "util-linux")];

const SYSTEMD: &str = "org.freedesktop.systemd1";
const SYSTEMD_PATH: &str = "/org/freedesktop/systemd1";
const MANAGER: &str = "org.freedesktop.systemd1.Manager";
const UNIT: &str = "org.freedesktop.systemd1.Unit";
const SERVICE: &str = "org.freedesktop.systemd1.Service";

/// A booted systemd. Its drop ends every process in it and removes its mounts and cgroups, in this order.
pub struct SystemdNode {
    bus: Bus,
    outer: Child,
    _scratch: TmpfsMount,
    groups: Vec<Cgroup>,
    /// PID 1 of the namespaces, as the host sees it.
    pub leader: u32,
    pub address: String,
    pub hostname: String,
    pub machine_id: String,
}

impl SystemdNode {
    /// Boots; returns when PID 1 has started what it was told to.
    pub fn boot(stage: &mut Stage, furnish: impl FnOnce(&Furniture) -> Result<()>) -> Result<SystemdNode> {
        SystemdNode::boot_with(stage, &[], furnish)
    }

    /// The same with host directories bound into the node: (host path, path in the node).
    pub fn boot_with(
        stage: &mut Stage,
        binds: &[(&Path, &str)],
        furnish: impl FnOnce(&Furniture) -> Result<()>,
    ) -> Result<SystemdNode> {
        let lower = systemd_root::build()?;
        let hostname = format!("node-{}", stage.draw.tag());
        let machine_id: String = (0..8).map(|_| stage.draw.tag()).collect();
        let groups = Hierarchy::all()?.iter().map(|h| group_in(h, &hostname)).collect::<Result<Vec<Cgroup>>>()?;
        memory_group(&groups)?;
        let scratch = TmpfsMount::create("systemd", 256 << 20, 100_000)?;
        furnish(&Furniture::new(&lower, scratch.dir(), &hostname, &machine_id)?)?;
        let mut outer = start(&groups, &lower, scratch.dir(), &hostname, binds)?;

        let leader = stage.until("systemd has become PID 1", PATIENCE, || {
            outer.expect_running()?;
            let child = node::children_of(outer.pid()).into_iter().next();
            if child.is_some() {
                leave_to_systemd(&groups, &outer)?;
            }
            Ok(child.filter(|&p| node::comm_of(p).as_deref() == Some("systemd")))
        })?;
        let bus = Bus { leader };
        let address = format!("unix:path=/proc/{leader}/root/run/dbus/system_bus_socket");
        let mut node = SystemdNode { bus, outer, _scratch: scratch, groups, leader, address, hostname, machine_id };
        stage.until("it has booted", PATIENCE, || {
            node.expect_running()?;
            match node.property::<String>(SYSTEMD_PATH, MANAGER, "SystemState") {
                // There is no nsenter: waiting does not help.
                Err(error) if error.downcast_ref::<Error>().is_some_and(|e| e.kind() == ErrorKind::NotFound) => {
                    Err(error)
                }
                state => Ok(state.ok().filter(|s| s == "running" || s == "degraded")),
            }
        })?;
        Ok(node)
    }

    pub fn expect_running(&mut self) -> Result<()> {
        self.outer.expect_running()
    }

    /// Adds the node's facts to these.
    pub fn facts(&self, facts: Value) -> Result<Value> {
        let memory = memory_group(&self.groups)?;
        let mut all: Map<String, Value> = Map::new();
        let own = json!({
            "bus": self.address, "root": self.root(), "leader": self.leader, "hostname": self.hostname,
            "machine_id": self.machine_id, "cgroup": memory.path(), "cgroup_version": memory.hierarchy().version,
        });
        for part in [own, facts] {
            if let Value::Object(part) = part {
                all.extend(part);
            }
        }
        Ok(Value::Object(all))
    }

    /// Its root directory as the host sees it.
    pub fn root(&self) -> PathBuf {
        format!("/proc/{}/root", self.leader).into()
    }

    /// The number of files in one of its directories: each start of a leaking unit leaves one, and with it a memory cgroup.
    pub fn files_in(&self, dir: &str) -> Result<u64> {
        let dir = self.root().join(dir.trim_start_matches('/'));
        Ok(fs::read_dir(&dir).with_context(|| dir.display().to_string())?.count() as u64)
    }

    /// The memory cgroup of a system service, as the host names it.
    pub fn cgroup_of(&self, unit: &str) -> Result<String> {
        Ok(format!("{}/system.slice/{unit}", memory_group(&self.groups)?.path()))
    }

    /// The directory of the node's own memory cgroup on the host.
    pub fn memory_dir(&self) -> Result<&Path> {
        Ok(memory_group(&self.groups)?.dir())
    }

    /// The memory cgroup of a slice, as the host names it.
    pub fn cgroup_of_slice(&self, slice: &str) -> Result<String> {
        Ok(format!("{}/{slice}", memory_group(&self.groups)?.path()))
    }

    /// Like `systemctl enable` for a package's unit; does not start it.
    pub fn enable(&self, unit: &str, target: &str) -> Result<()> {
        let wants = self.root().join(format!("etc/systemd/system/{target}.wants"));
        fs::create_dir_all(&wants).with_context(|| wants.display().to_string())?;
        symlink(format!("/usr/lib/systemd/system/{unit}"), wants.join(unit)).with_context(|| unit.to_owned())
    }

    /// The host PID of a process that PID 1 started.
    pub fn process(&self, comm: &str) -> Option<u32> {
        node::children_of(self.leader).into_iter().find(|&p| node::comm_of(p).as_deref() == Some(comm))
    }

    fn manager<T: DeserializeOwned>(&self, member: &str, arguments: &[&str]) -> Result<T> {
        Ok(serde_json::from_value(self.bus.call(SYSTEMD, SYSTEMD_PATH, MANAGER, member, arguments)?)?)
    }

    fn property<T: DeserializeOwned>(&self, path: &str, interface: &str, name: &str) -> Result<T> {
        let value = self.bus.call(SYSTEMD, path, "org.freedesktop.DBus.Properties", "Get", &[interface, name])?;
        Ok(serde_json::from_value(value)?)
    }

    fn of_unit<T: DeserializeOwned>(&self, unit: &str, interface: &str, name: &str) -> Result<T> {
        let path: String = self.manager("LoadUnit", &[unit])?;
        self.property(&path, interface, name).with_context(|| format!("{name} of {unit}"))
    }

    pub fn restarts(&self, unit: &str) -> Result<u32> {
        self.of_unit(unit, SERVICE, "NRestarts")
    }

    /// In the node's PID namespace.
    pub fn main_pid(&self, unit: &str) -> Result<u32> {
        self.of_unit(unit, SERVICE, "MainPID")
    }

    pub fn result(&self, unit: &str) -> Result<String> {
        self.of_unit(unit, SERVICE, "Result")
    }

    pub fn active_state(&self, unit: &str) -> Result<String> {
        self.of_unit(unit, UNIT, "ActiveState")
    }

    /// As `systemctl is-enabled`.
    pub fn enablement(&self, unit: &str) -> Result<String> {
        self.manager("GetUnitFileState", &[unit])
    }

    /// How many unit names the manager has in memory.
    pub fn loaded_names(&self) -> Result<u32> {
        self.property(SYSTEMD_PATH, MANAGER, "NNames")
    }

    /// How many units failed.
    pub fn failed_units(&self) -> Result<u32> {
        self.property(SYSTEMD_PATH, MANAGER, "NFailedUnits")
    }

    /// As `systemctl restart --no-block`.
    pub fn restart(&self, unit: &str) -> Result<()> {
        let _job: String = self.manager("RestartUnit", &[unit, "replace"])?;
        Ok(())
    }

    /// As `systemctl reset-failed`.
    pub fn reset_failed(&self, unit: &str) -> Result<()> {
        self.manager("ResetFailedUnit", &[unit])
    }
}

fn memory_group(groups: &[Cgroup]) -> Result<&Cgroup> {
    let memory = groups.iter().find(|g| g.hierarchy().controllers.iter().any(|c| c == "memory"));
    memory.context("no mounted cgroup hierarchy has the memory controller")
}

fn start(groups: &[Cgroup], lower: &Path, scratch: &Path, hostname: &str, binds: &[(&Path, &str)]) -> Result<Child> {
    let mut command = actors::command("enter");
    for group in groups {
        command.arg("--join").arg(group.dir());
    }
    command.args([
        "--",
        "unshare",
        "--mount",
        "--pid",
        "--fork",
        "--kill-child",
        "--uts",
        "--ipc",
        "--net",
        "--cgroup",
    ]);
    command.args(["--propagation", "private"]).arg(lab_binary()).args(["actor", "systemd", "--hostname", hostname]);
    command.arg("--lower").arg(lower).arg("--scratch").arg(scratch);
    for (host, path) in binds {
        command.arg("--bind").arg(format!("{}:{path}", host.display()));
    }
    Child::spawn("systemd", &mut command)
}

/// On v2 systemd can delegate the memory controller to its units only if no process is in the node's own cgroup, so the waiting parent moves
/// back to the lab's.
fn leave_to_systemd(groups: &[Cgroup], outer: &Child) -> Result<()> {
    let memory = memory_group(groups)?;
    if memory.hierarchy().version == 2 {
        Visit::from_home(memory)?.take_home(outer.pid())?;
    }
    Ok(())
}

fn group_in(hierarchy: &Hierarchy, what: &str) -> Result<Cgroup> {
    if hierarchy.version == 2 && hierarchy.controllers.iter().any(|c| c == "memory") {
        return Ok(Cgroup::with_controller("memory", what)?.freeing_cache());
    }
    let group = Cgroup::create(hierarchy, what)?.freeing_cache();
    if hierarchy.version == 1 && hierarchy.controllers.iter().any(|c| c == "cpuset") {
        // A new v1 cpuset has neither cores nor memory nodes, and nobody can join it.
        for file in ["cpuset.cpus", "cpuset.mems"] {
            let all = fs::read_to_string(hierarchy.mount_point.join(file)).with_context(|| file.to_owned())?;
            group.write(file, all.trim())?;
        }
    }
    Ok(group)
}
