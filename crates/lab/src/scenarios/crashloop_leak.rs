//! An unneeded unit crashes and is restarted for ever; each time it leaves a dead memory cgroup behind.
//!
//! It imitates the Amazon ECS agent that a base image had enabled. In the second version somebody calls `systemctl
//! reset-failed` all the time, so that systemd's own restart counter stays small.
//!
//! A page keeps each dead cgroup: of a file in a tmpfs, or page cache of a file on disk. Reclaim frees the second kind but not the
//! first, so a remedy must know both.

use super::systemd_node::{self, SystemdNode};
use super::{Need, PATIENCE, Scenario};
use crate::guard::Ext4Mount;
use crate::stage::Stage;
use crate::truth::{Expected, ExpectedVerdict, Truth};
use anyhow::Result;
use serde_json::json;
use std::time::{Duration, Instant};

pub const LEAK: Scenario = Scenario {
    name: "crashloop-leak",
    summary: "a real systemd in namespaces, whose ecs.service crashes every 100 ms and leaks a memory cgroup each time",
    expects: &["unit-crashloop"],
    needs: systemd_node::NEEDS,
    perform: |stage| perform(stage, None),
};

pub const RESET: Scenario = Scenario {
    name: "crashloop-reset",
    summary: "the same, while reset-failed is called over and over, so that NRestarts stays small",
    expects: &["unit-crashloop"],
    needs: systemd_node::NEEDS,
    perform: |stage| {
        let every = Duration::from_millis(stage.draw.number(400, 700));
        perform(stage, Some(every))
    },
};

const UNIT: &str = "ecs.service";
const PACKAGE: &str = "amazon-ecs-init";

/// More restarts than this are no hiccup.
const RESTARTS: u64 = 3;

/// One tmpfs page, charged to the cgroup of this start of the unit, outlives both.
const LEAVES_A_FILE: &str = "echo $$ > /var/lib/ecs/f.$$\nexit 1\n";

/// Every second start reads an uncached page of a file on disk, not next to the last one, so that there is no readahead. Empty files
/// count how often. After 1,000 starts all pages are read.
const READS_OR_LEAVES: &str = "\
n=$(ls /var/lib/ecs | wc -l)
if [ -e /var/lib/ecsturn/cache ] && [ $n -lt 1000 ]; then
  rm /var/lib/ecsturn/cache
  dd if=/var/cache/ecs/blob.bin of=/dev/null bs=4096 count=1 skip=$((n * 4 + 4)) 2>/dev/null
  : > /var/lib/ecs/c.$$
else
  : > /var/lib/ecsturn/cache
  echo $$ > /var/lib/ecs/f.$$
fi
exit 1
";

/// Room for 1,000 starts.
const BLOB: usize = (1000 + 2) * 4 * 4096;

/// Needed for a file system on disk; without it everything is in the tmpfs.
const DISK: [Need; 3] = [Need::LoopDevice, Need::Program("mke2fs", "e2fsprogs"), Need::Program("mount", "mount")];

fn perform(stage: &mut Stage, reset_every: Option<Duration>) -> Result<()> {
    let on_disk = DISK.iter().all(|need| need.check().is_ok());
    // Dropped after the node: its pages go, and with them the dead cgroups.
    let blob = match on_disk {
        true => Some(Ext4Mount::with_file("ecs-cache", "blob.bin", &vec![b'x'; BLOB])?),
        false => None,
    };
    let cache = blob.as_ref().and_then(|blob| blob.file().parent());
    let binds: Vec<_> = cache.map(|dir| (dir, "/var/cache/ecs")).into_iter().collect();
    let version = format!("1.{}.{}-1", stage.draw.number(60, 90), stage.draw.number(0, 9));
    let mut node = SystemdNode::boot_with(stage, &binds, |furniture| {
        furniture.spool("ecs")?;
        furniture.spool("ecsturn")?;
        furniture.script("/usr/libexec/ecs-agent", if on_disk { READS_OR_LEAVES } else { LEAVES_A_FILE })?;
        furniture.enabled_service(UNIT, &restarting_service("ecs", 100, ""))?;
        furniture.package(PACKAGE, &version, UNIT)
    })?;
    stage.until("the unit was restarted several times", PATIENCE, || {
        node.expect_running()?;
        let restarted = node.restarts(UNIT).is_ok_and(|n| u64::from(n) >= RESTARTS);
        Ok((restarted && leaked(&node)? > RESTARTS).then_some(()))
    })?;
    let facts = node.facts(json!({
        "unit": UNIT, "unit_cgroup": node.cgroup_of(UNIT)?, "exit_status": 1, "restart_delay_ms": 100,
        "package": PACKAGE, "package_version": version, "leaked": leaked(&node)?,
        "kept_by": if on_disk { json!(["tmpfs", "page cache"]) } else { json!(["tmpfs"]) },
        "reset_every_ms": reset_every.map(|every| every.as_millis() as u64),
    }))?;
    let truth = Truth::new(facts)
        .expect(Expected::new("unit-crashloop").about("unit", UNIT))
        .verdict(ExpectedVerdict::new("unit-crashloop").about("unit", UNIT).by(UNIT))
        .forbid(&["core-monopolised", "nic-core-starved"]);
    // The counter is small from the start.
    let mut last_reset = Instant::now();
    if reset_every.is_some() {
        node.reset_failed(UNIT)?;
    }
    stage.ready(&truth)?;
    let before = (node.restarts(UNIT)?, leaked(&node)?);
    let (mut resets, mut most_restarts) = (0u64, before.0);
    stage.hold(|| {
        node.expect_running()?;
        if reset_every.is_some_and(|every| last_reset.elapsed() >= every) {
            most_restarts = most_restarts.max(node.restarts(UNIT)?);
            node.reset_failed(UNIT)?;
            resets += 1;
            last_reset = Instant::now();
        }
        Ok(())
    })?;
    let leaked = leaked(&node)? - before.1;
    stage.ended(match reset_every {
        Some(_) => json!({"resets": resets, "most_restarts": most_restarts, "memcgs_leaked": leaked}),
        None => json!({"restarts": node.restarts(UNIT)?.saturating_sub(before.0), "memcgs_leaked": leaked}),
    })
}

/// Each start leaves one file, and with it one memory cgroup.
fn leaked(node: &SystemdNode) -> Result<u64> {
    node.files_in("/var/lib/ecs")
}

/// A service that restarts `delay_ms` after it ended; `more` goes into its [Service].
pub(super) fn restarting_service(agent: &str, delay_ms: u64, more: &str) -> String {
    format!(
        "[Unit]\nDescription=Container agent (of the lab)\nStartLimitIntervalSec=0\n[Service]\nType=simple\nMemoryAccounting=yes\n\
         ExecStart=/usr/libexec/{agent}-agent\nRestart=always\nRestartSec={delay_ms}ms\n{more}[Install]\nWantedBy=multi-user.target\n"
    )
}
