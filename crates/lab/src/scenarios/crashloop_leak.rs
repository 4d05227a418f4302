//! A unit that nobody needs crashes and is restarted for ever; each time it leaves a dead memory cgroup behind.
//!
//! The story of the Amazon ECS agent that a base image had enabled. In its second version somebody calls `systemctl
//! reset-failed` all the time, so that systemd's own count of restarts stays small.

use super::systemd_node::{self, SystemdNode};
use super::{PATIENCE, Scenario};
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
    summary: "the same, while reset-failed is called again and again, so that NRestarts is always small",
    expects: &["unit-crashloop"],
    needs: systemd_node::NEEDS,
    perform: |stage| {
        let every = Duration::from_millis(stage.draw.number(400, 700));
        perform(stage, Some(every))
    },
};

const UNIT: &str = "ecs.service";
const PACKAGE: &str = "amazon-ecs-init";

/// Restarts after which nobody calls it a hiccup.
const RESTARTS: u64 = 3;

fn perform(stage: &mut Stage, reset_every: Option<Duration>) -> Result<()> {
    let version = format!("1.{}.{}-1", stage.draw.number(60, 90), stage.draw.number(0, 9));
    let mut node = SystemdNode::boot(stage, |furniture| {
        furniture.spool("ecs")?;
        // One page in a tmpfs, charged to the cgroup of this start of the unit, outlives both.
        furniture.script("/usr/libexec/ecs-agent", "echo $$ > /var/lib/ecs/f.$$\nexit 1\n")?;
        furniture.enabled_service(UNIT, &restarting_service("ecs", 100, ""))?;
        furniture.package(PACKAGE, &version, UNIT)
    })?;
    stage.until("the unit was restarted again and again", PATIENCE, || {
        node.expect_running()?;
        let restarted = node.restarts(UNIT).is_ok_and(|n| u64::from(n) >= RESTARTS);
        Ok((restarted && leaked(&node)? > RESTARTS).then_some(()))
    })?;
    let facts = node.facts(json!({
        "unit": UNIT, "unit_cgroup": node.cgroup_of(UNIT)?, "exit_status": 1, "restart_delay_ms": 100,
        "package": PACKAGE, "package_version": version, "leaked": leaked(&node)?,
        "reset_every_ms": reset_every.map(|every| every.as_millis() as u64),
    }))?;
    let truth = Truth::new(facts)
        .expect(Expected::new("unit-crashloop").about("unit", UNIT))
        .verdict(ExpectedVerdict::new("unit-crashloop").about("unit", UNIT).by(UNIT))
        .forbid(&["core-monopolised", "nic-core-starved"]);
    // From the first look on the count is small.
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

/// Each start left one file, and with it one memory cgroup.
fn leaked(node: &SystemdNode) -> Result<u64> {
    node.files_in("/var/lib/ecs")
}

/// A service that is started again `delay_ms` after it ended; `more` goes into its [Service].
pub(super) fn restarting_service(agent: &str, delay_ms: u64, more: &str) -> String {
    format!(
        "[Unit]\nDescription=Container agent (of the lab)\nStartLimitIntervalSec=0\n[Service]\nType=simple\nMemoryAccounting=yes\n\
         ExecStart=/usr/libexec/{agent}-agent\nRestart=always\nRestartSec={delay_ms}ms\n{more}[Install]\nWantedBy=multi-user.target\n"
    )
}
