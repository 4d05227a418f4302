//! A healthy service that an administrator restarts twice: its invocations change, and nothing is wrong.

use super::systemd_node::{self, SystemdNode};
use super::{PATIENCE, Scenario};
use crate::stage::Stage;
use crate::truth::Truth;
use anyhow::Result;
use serde_json::json;
use std::time::{Duration, Instant};

pub const SCENARIO: Scenario = Scenario {
    name: "admin-restarts",
    summary: "a real systemd, whose healthy service is restarted by an administrator, twice",
    expects: &[],
    needs: systemd_node::NEEDS,
    perform,
};

/// Times after it is ready.
const RESTARTS_AT: [Duration; 2] = [Duration::from_millis(1000), Duration::from_millis(2000)];

fn perform(stage: &mut Stage) -> Result<()> {
    let unit = format!("web-{}.service", stage.draw.tag());
    let mut node = SystemdNode::boot(stage, |furniture| furniture.enabled_service(&unit, SERVICE))?;
    let pid = stage.until("the service runs", PATIENCE, || {
        node.expect_running()?;
        Ok(node.main_pid(&unit).ok().filter(|&pid| pid > 0 && node.active_state(&unit).is_ok_and(|s| s == "active")))
    })?;
    let at: Vec<u64> = RESTARTS_AT.iter().map(|at| at.as_millis() as u64).collect();
    let facts = node.facts(json!({"unit": unit, "unit_cgroup": node.cgroup_of(&unit)?, "restarts_at_ms": at}))?;
    let truth = Truth::new(facts).forbid(super::UNIT_FINDINGS).at_most("info");
    stage.ready(&truth)?;
    let start = Instant::now();
    let (mut pids, mut asked) = (vec![pid], 0);
    stage.hold(|| {
        node.expect_running()?;
        if RESTARTS_AT.get(asked).is_some_and(|at| start.elapsed() >= *at) {
            node.restart(&unit)?;
            asked += 1;
        }
        let pid = node.main_pid(&unit)?;
        if pid > 0 && !pids.contains(&pid) {
            pids.push(pid);
        }
        Ok(())
    })?;
    stage.ended(json!({"restarted": pids.len() - 1, "asked": asked, "counted_by_systemd": node.restarts(&unit)?}))
}

const SERVICE: &str = "\
[Unit]
Description=A server that does its work (of the lab)
[Service]
Type=simple
MemoryAccounting=yes
ExecStart=/bin/sleep infinity
Restart=always
RestartSec=100ms
[Install]
WantedBy=multi-user.target
";
