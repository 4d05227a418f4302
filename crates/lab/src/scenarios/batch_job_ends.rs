//! A batch job that fills all cores with many short processes, then ends, and its cgroups are removed: nothing wrong.

use super::{Need, PATIENCE, Scenario, healthy};
use crate::actors;
use crate::guard::{Cgroup, Child};
use crate::node::{self, CoreTimes};
use crate::stage::Stage;
use anyhow::Result;
use serde_json::json;
use std::time::{Duration, Instant};

pub const SCENARIO: Scenario = Scenario {
    name: "batch-job-ends",
    summary: "a batch job of many short processes fills all cores, ends, and its cgroups are removed: nothing wrong",
    expects: &[],
    needs: &[Need::Root],
    perform,
};

/// How busy each core must be before the scenario is ready.
const BUSY_PERCENT: u64 = 50;

fn perform(stage: &mut Stage) -> Result<()> {
    let cores = node::allowed_cores()?;
    let comm = format!("batch-{}", stage.draw.tag());
    let what = format!("batch-{}", stage.draw.tag());
    let ends_after = Duration::from_millis(stage.draw.number(1_500, 3_500));
    let groups = ["cpu", "memory"].map(|c| Cgroup::with_controller(c, &what).map(Cgroup::freeing_cache));
    let groups = groups.into_iter().collect::<Result<Vec<Cgroup>>>()?;
    let mut command = actors::command("storm");
    command.args(["--comm", &comm, "--child", &comm, "--at-once", &cores.len().to_string(), "--ms", "50", "300"]);
    for group in &groups {
        command.arg("--join").arg(group.dir());
    }
    let mut job = Child::spawn(&comm, &mut command)?;
    let start = CoreTimes::now()?;
    let mut seen: Vec<u32> = Vec::new();
    stage.until("its processes have run on all cores", PATIENCE, || {
        job.expect_running()?;
        see_tasks(job.pid(), &mut seen);
        let busy = CoreTimes::now()?.busy_percent_since(&start);
        Ok((seen.len() > 2 * cores.len() && busy.values().all(|&p| p >= BUSY_PERCENT)).then_some(()))
    })?;

    let facts = json!({
        "pid": job.pid(), "comm": comm, "cores": cores, "cgroup": groups.last().map(Cgroup::path),
        "ends_after_ms": ends_after.as_millis() as u64,
    });
    stage.ready(&healthy::all_is_well(facts))?;
    let begin = Instant::now();
    let mut running = Some((job, groups));
    stage.hold(|| {
        if let Some((job, _)) = &mut running {
            job.expect_running()?;
            see_tasks(job.pid(), &mut seen);
        }
        if begin.elapsed() >= ends_after {
            running = None;
        }
        Ok(())
    })?;
    stage.ended(json!({
        "processes": seen.len(), "ended_before": running.is_none(),
    }))
}

/// Sees only those that are alive at this moment.
fn see_tasks(job: u32, seen: &mut Vec<u32>) {
    for pid in node::children_of(job) {
        if !seen.contains(&pid) {
            seen.push(pid);
        }
    }
}
