//! A job wants a core, but its cgroup may use only a fraction of one. The cores have room.

use super::{Need, PATIENCE, Scenario};
use crate::actors;
use crate::guard::{Cgroup, Child};
use crate::node::{self, CoreTimes};
use crate::stage::Stage;
use crate::truth::{Expected, Truth};
use anyhow::Result;
use serde_json::json;

pub const SCENARIO: Scenario = Scenario {
    name: "cpu-throttle",
    summary: "a busy thread in a cgroup whose CPU quota is exhausted in every period",
    expects: &["cpu-throttled"],
    needs: &[Need::Root],
    perform,
};

const PERIOD_US: u64 = 100_000;

/// Periods in which the quota ran out before the scenario calls itself ready.
const THROTTLED_PERIODS: u64 = 5;

fn perform(stage: &mut Stage) -> Result<()> {
    // A fraction of one core, so that no core gets saturated.
    let percent = stage.draw.number(15, 30);
    let quota_us = PERIOD_US * percent / 100;
    let comm = format!("quota-{}", stage.draw.tag());
    let group = Cgroup::with_controller("cpu", "throttle")?;
    group.hierarchy().enable(group.dir(), "cpu")?;
    let job = group.child(&format!("job-{}", stage.draw.tag()))?;
    if job.hierarchy().version == 1 {
        job.write("cpu.cfs_period_us", &PERIOD_US.to_string())?;
        job.write("cpu.cfs_quota_us", &quota_us.to_string())?;
    } else {
        job.write("cpu.max", &format!("{quota_us} {PERIOD_US}"))?;
    }
    let mut command = actors::command("spin");
    let mut spinner = Child::spawn(&comm, command.args(["--comm", &comm]).arg("--join").arg(job.dir()))?;
    stage.until("the quota runs out again and again", PATIENCE, || {
        spinner.expect_running()?;
        Ok((job.counter("cpu.stat", "nr_throttled ")? >= THROTTLED_PERIODS).then_some(()))
    })?;

    let facts = json!({
        "cgroup": job.path(), "cgroup_version": job.hierarchy().version, "pid": spinner.pid(), "comm": comm,
        "quota_us": quota_us, "period_us": PERIOD_US,
    });
    let truth = Truth::new(facts).expect(Expected::new("cpu-throttled").about("cgroup", job.path())).forbid(&[
        "core-saturated",
        "core-monopolised",
        "nic-core-starved",
        "memory-reclaim",
    ]);
    stage.ready(&truth)?;
    let before = (job.counter("cpu.stat", "nr_periods ")?, job.counter("cpu.stat", "nr_throttled ")?);
    let (ran_before, cores_before) = (node::thread_times(spinner.pid())?.ran_ns, CoreTimes::now()?);
    stage.hold(|| spinner.expect_running())?;
    stage.ended(json!({
        "periods": job.counter("cpu.stat", "nr_periods ")? - before.0,
        "throttled_periods": job.counter("cpu.stat", "nr_throttled ")? - before.1,
        "ran_ms": super::ms(node::thread_times(spinner.pid())?.ran_ns - ran_before),
        "busy_percent": CoreTimes::now()?.busy_percent_since(&cores_before),
    }))
}
