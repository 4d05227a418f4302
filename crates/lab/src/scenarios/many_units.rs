//! A node with hundreds of healthy services, to measure what querying them costs.

use super::systemd_node::{self, SystemdNode};
use super::{PATIENCE, Scenario};
use crate::stage::Stage;
use crate::truth::Truth;
use anyhow::Result;
use serde_json::json;

pub const SCENARIO: Scenario = Scenario {
    name: "many-units",
    summary: "a real systemd with 400 services that run and do nothing",
    expects: &[],
    needs: systemd_node::NEEDS,
    perform,
};

fn perform(stage: &mut Stage) -> Result<()> {
    let count = stage.count.unwrap_or(400);
    let job = format!("job-{}", stage.draw.tag());
    let mut node = SystemdNode::boot(stage, |furniture| {
        furniture.unit(&format!("{job}@.service"), SERVICE)?;
        (1..=count).try_for_each(|i| furniture.enable(&format!("{job}@{i}.service"), "multi-user.target"))
    })?;
    let last = format!("{job}@{count}.service");
    stage.until("they run", PATIENCE, || {
        node.expect_running()?;
        Ok(node.active_state(&last).ok().filter(|s| s == "active"))
    })?;
    let facts =
        node.facts(json!({"count": count, "pattern": format!("{job}@*.service"), "names": node.loaded_names()?}))?;
    stage.ready(&Truth::new(facts).forbid(super::UNIT_FINDINGS).at_most("info"))?;
    stage.hold(|| node.expect_running())?;
    stage.ended(json!({"failed_units": node.failed_units()?}))
}

const SERVICE: &str = "\
[Unit]
Description=Job %i (of the lab)
[Service]
Type=simple
ExecStart=/bin/sleep infinity
[Install]
WantedBy=multi-user.target
";
