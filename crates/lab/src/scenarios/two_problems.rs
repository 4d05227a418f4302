//! Two unrelated problems: a real-time thread owns one core, and elsewhere a job has too small a quota.

use super::cpu_throttle::Throttled;
use super::rt_monopoly::Monopoly;
use super::{Need, Scenario, ms};
use crate::stage::Stage;
use crate::truth::{Expected, Truth};
use anyhow::Result;
use serde_json::json;

pub const SCENARIO: Scenario = Scenario {
    name: "two-problems",
    summary: "a SCHED_FIFO spinner owns one core, and a cgroup's CPU quota is exhausted: two verdicts",
    expects: &["cpu-throttled", "core-saturated", "core-monopolised"],
    needs: &[Need::Root, Need::TwoCores],
    perform,
};

fn perform(stage: &mut Stage) -> Result<()> {
    let core = super::take_core(&mut stage.draw)?;
    let mut throttled = Throttled::start(stage)?;
    let mut monopoly = Monopoly::start(stage, core)?;
    let mut truth = Truth::new(json!({"monopoly": monopoly.facts(), "throttled": throttled.facts()}))
        .expect(Expected::new("cpu-throttled").about("cgroup", throttled.job.path()))
        .verdict(throttled.verdict())
        .verdict(monopoly.verdict());
    truth.expect.extend(monopoly.expected());
    stage.ready(&truth.forbid(&["nic-core-starved", "nic-reset", "memory-reclaim", "unit-crashloop"]))?;
    let (periods, victim) = (throttled.periods()?, monopoly.victim_times()?);
    stage.hold(|| throttled.spinner.expect_running().and_then(|()| monopoly.expect_running()))?;
    stage.ended(json!({
        "throttled_periods": throttled.periods()?.1 - periods.1,
        "victim_waited_ms": ms(monopoly.end()?.waited_ns - victim.waited_ns),
    }))
}
