//! A unit that nobody needs crashes and is restarted for ever; each time it leaves a dead memory cgroup behind.
//!
//! With a real systemd, in namespaces: the story of the Amazon ECS agent that a base image had enabled.

use super::{Need, PATIENCE, Scenario, systemd_root};
use crate::actors;
use crate::guard::{Cgroup, Child, TmpfsMount};
use crate::hierarchy::Hierarchy;
use crate::live::lab_binary;
use crate::node;
use crate::stage::Stage;
use crate::truth::{Expected, Truth};
use anyhow::{Context, Result};
use serde_json::json;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use zbus::blocking::{Connection, Proxy, connection};
use zbus::zvariant::OwnedObjectPath;

pub const SCENARIO: Scenario = Scenario {
    name: "crashloop",
    summary: "a real systemd in namespaces, whose ecs.service crashes every 100 ms and leaks a memory cgroup each time",
    expects: &["unit-crashloop"],
    needs: &[Need::Root, Need::Program("mmdebstrap", "mmdebstrap"), Need::Program("unshare", "util-linux")],
    perform,
};

const UNIT: &str = "ecs.service";

/// Restarts after which nobody calls it a hiccup.
const RESTARTS: u32 = 3;

fn perform(stage: &mut Stage) -> Result<()> {
    let root = systemd_root::build()?;
    let hostname = format!("node-{}", stage.draw.tag());
    let machine_id: String = (0..8).map(|_| stage.draw.tag()).collect();
    let groups = Hierarchy::all()?.iter().map(|h| group_in(h, &hostname)).collect::<Result<Vec<Cgroup>>>()?;
    let memory = groups.iter().find(|g| g.hierarchy().controllers.iter().any(|c| c == "memory"));
    let memory = memory.context("no mounted cgroup hierarchy has the memory controller")?;
    let scratch = TmpfsMount::create("systemd", 256 << 20, 100_000)?;
    furnish(scratch.dir(), &machine_id, &hostname)?;

    let mut command = actors::command("enter");
    for group in &groups {
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
    command.args(["--propagation", "private"]).arg(lab_binary()).args(["actor", "systemd", "--hostname", &hostname]);
    command.arg("--lower").arg(&root).arg("--scratch").arg(scratch.dir());
    let mut outer = Child::spawn("systemd", &mut command)?;

    let leader = stage.until("systemd has become PID 1", PATIENCE, || {
        outer.expect_running()?;
        let child = node::children_of(outer.pid()).into_iter().next();
        Ok(child.filter(|&p| node::comm_of(p).as_deref() == Some("systemd")))
    })?;
    let address = format!("unix:path=/proc/{leader}/root/run/dbus/system_bus_socket");
    let bus = stage.until("its bus answers", PATIENCE, || {
        outer.expect_running()?;
        Ok(connection::Builder::address(address.as_str())?.build().ok())
    })?;
    stage.until("the unit was restarted again and again", PATIENCE, || {
        outer.expect_running()?;
        Ok(restarts(&bus).ok().filter(|&n| n >= RESTARTS))
    })?;

    let facts = json!({
        "unit": UNIT, "bus": address, "leader": leader, "hostname": hostname, "machine_id": machine_id,
        "cgroup": memory.path(), "cgroup_version": memory.hierarchy().version,
    });
    let truth = Truth::new(facts).expect(Expected::new("unit-crashloop").about("unit", UNIT)).forbid(&[
        "core-monopolised",
        "nic-core-starved",
        "oom-kill",
    ]);
    stage.ready(&truth)?;
    let before = (restarts(&bus)?, leaked(leader)?);
    stage.hold(|| outer.expect_running())?;
    stage.ended(json!({
        "restarts": restarts(&bus)?.saturating_sub(before.0),
        "memcgs_leaked": leaked(leader)?.saturating_sub(before.1),
    }))
}

fn group_in(hierarchy: &Hierarchy, what: &str) -> Result<Cgroup> {
    if hierarchy.version == 2 && hierarchy.controllers.iter().any(|c| c == "memory") {
        return Ok(Cgroup::with_controller("memory", what)?.freeing_cache());
    }
    let group = Cgroup::create(hierarchy, what)?.freeing_cache();
    if hierarchy.version == 1 && hierarchy.controllers.iter().any(|c| c == "cpuset") {
        // A new v1 cpuset has neither cores nor memory, and nobody can join it.
        for file in ["cpuset.cpus", "cpuset.mems"] {
            let all = fs::read_to_string(hierarchy.mount_point.join(file)).with_context(|| file.to_owned())?;
            group.write(file, all.trim())?;
        }
    }
    Ok(group)
}

/// What this node has above the plain Debian below: the upper layer of the overlay.
fn furnish(scratch: &Path, machine_id: &str, hostname: &str) -> Result<()> {
    let up = scratch.join("up");
    for dir in ["wk", "m", "up/var/lib/ecs", "up/usr/local/bin"] {
        fs::create_dir_all(scratch.join(dir))?;
    }
    let units = up.join("etc/systemd/system");
    for target in ["multi-user.target.wants", "local-fs.target.wants"] {
        fs::create_dir_all(units.join(target))?;
    }
    // Known beforehand, so that this is no first boot.
    fs::write(up.join("etc/machine-id"), format!("{machine_id}\n"))?;
    fs::write(up.join("etc/hostname"), format!("{hostname}\n"))?;
    let agent = up.join("usr/local/bin/ecs-agent");
    // One page in a tmpfs, charged to the cgroup of this start of the unit, outlives both.
    fs::write(&agent, "#!/bin/sh\necho $$ > /var/lib/ecs/f.$$\nexit 1\n")?;
    fs::set_permissions(&agent, fs::Permissions::from_mode(0o755))?;
    fs::write(units.join(UNIT), ECS_SERVICE)?;
    symlink(format!("../{UNIT}"), units.join("multi-user.target.wants").join(UNIT))?;
    fs::write(units.join("var-lib-ecs.mount"), ECS_MOUNT)?;
    symlink("../var-lib-ecs.mount", units.join("local-fs.target.wants/var-lib-ecs.mount"))?;
    let unwanted =
        ["apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "fstrim.timer", "e2scrub_all.timer"];
    // There is no terminal.
    let gettys = ["console-getty.service", "getty@.service", "serial-getty@.service"];
    for unit in unwanted.into_iter().chain(gettys) {
        symlink("/dev/null", units.join(unit))?;
    }
    // The scratch directory is private, but what systemd's services see as / must not be.
    for dir in ["up", "m"] {
        fs::set_permissions(scratch.join(dir), fs::Permissions::from_mode(0o755))?;
    }
    Ok(())
}

const ECS_SERVICE: &str = "\
[Unit]
Description=Amazon Elastic Container Service - container agent (of the lab)
StartLimitIntervalSec=0
[Service]
Type=simple
MemoryAccounting=yes
ExecStart=/usr/local/bin/ecs-agent
Restart=always
RestartSec=100ms
[Install]
WantedBy=multi-user.target
";

const ECS_MOUNT: &str = "\
[Mount]
What=tmpfs
Where=/var/lib/ecs
Type=tmpfs
[Install]
WantedBy=local-fs.target
";

fn restarts(bus: &Connection) -> Result<u32> {
    const SYSTEMD: &str = "org.freedesktop.systemd1";
    let manager = Proxy::new(bus, SYSTEMD, "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager")?;
    let unit: OwnedObjectPath = manager.call("GetUnit", &UNIT)?;
    let service = Proxy::new(bus, SYSTEMD, unit, "org.freedesktop.systemd1.Service")?;
    Ok(service.get_property("NRestarts")?)
}

/// Each start left one file, and with it one memory cgroup.
fn leaked(leader: u32) -> Result<u64> {
    let dir = format!("/proc/{leader}/root/var/lib/ecs");
    Ok(fs::read_dir(&dir).with_context(|| dir.clone())?.count() as u64)
}
