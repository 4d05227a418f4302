//! A busy node with a few dozen dead memory cgroups, like every node: nothing wrong.

use super::zombies::Graveyard;
use super::{Need, Scenario, healthy};
use crate::node;
use crate::stage::Stage;
use anyhow::{Result, ensure};
use serde_json::json;

pub const SCENARIO: Scenario = Scenario {
    name: "few-zombies",
    summary: "a few dozen dead memory cgroups (--count N) on a busy node: nothing wrong",
    expects: &[],
    needs: &[Need::Root],
    perform,
};

fn perform(stage: &mut Stage) -> Result<()> {
    let count = stage.count.unwrap_or_else(|| stage.draw.number(20, 50));
    ensure!((1..=60).contains(&count), "--count must be from 1 to 60");
    let graveyard = Graveyard::open(&format!("jobs-{}", stage.draw.tag()), count, 1)?;
    let name = format!("job-{}", stage.draw.tag());
    graveyard.fill(stage, &name, count)?;
    let cores = node::allowed_cores()?;
    let mut measured = healthy::hold_busy(stage, &cores, |facts| {
        let mut facts = graveyard.facts(facts);
        facts["count"] = json!(count);
        facts
    })?;
    measured["pinned"] = json!(graveyard.pinned()?);
    stage.ended(measured)
}
