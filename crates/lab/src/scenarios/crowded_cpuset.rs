//! Several busy processes in a cpuset of one core, while others are free.

use super::{Need, PATIENCE, REAL_NS, Scenario, ms};
use crate::actors;
use crate::guard::Cgroup;
use crate::loss::{Measured, now_ns};
use crate::stage::Stage;
use crate::truth::{Expected, ExpectedVerdict, Truth};
use anyhow::{Context, Result};
use serde_json::json;

pub const SCENARIO: Scenario = Scenario {
    name: "crowded-cpuset",
    summary: "several busy processes share a cpuset of one core, the other cores are free",
    expects: &["cpu-starved"],
    needs: &[Need::Root, Need::TwoCores],
    perform,
};

fn perform(stage: &mut Stage) -> Result<()> {
    let core = super::take_core(&mut stage.draw)?;
    let cpuset = one_core(core, &format!("jobs-{}", stage.draw.tag()))?;
    let mut jobs: Vec<Measured> = Vec::new();
    for _ in 0..stage.draw.number(4, 6) {
        let comm = format!("job-{}", stage.draw.tag());
        let mut command = actors::command("load");
        jobs.push(Measured::spawn(&comm, command.args(["--comm", &comm]).arg("--join").arg(cpuset.dir()))?);
    }
    jobs.iter_mut().try_for_each(|job| job.await_first_words(PATIENCE))?;
    let start = now_ns();
    stage.until("each starves", PATIENCE, || {
        jobs.iter_mut().try_for_each(|job| job.child.expect_running())?;
        let starves = |job: &Measured| {
            let loss = job.between(start, now_ns());
            loss.lost_ns() >= REAL_NS && loss.share() >= 0.5
        };
        Ok(jobs.iter().all(starves).then_some(()))
    })?;
    let [first, rest @ ..] = &mut jobs[..] else { unreachable!("at least four were started") };
    let truth = Truth::new(json!({
        "core": core, "cgroup": cpuset.path(), "cgroup_version": cpuset.hierarchy().version,
        "pid": first.child.pid(), "comm": first.child.name(),
        "others": rest.iter().map(|job| json!({"pid": job.child.pid(), "comm": job.child.name()})).collect::<Vec<_>>(),
    }))
    .expect(Expected::new("cpu-starved").by(first.child.label()))
    .verdict(ExpectedVerdict::new("cpu-starved").or("affinity").by(first.child.label()))
    .forbid(&["cpu-throttled", "nic-reset", "memory-reclaim", "fork-storm", "unfair-weight"]);
    stage.ready(&truth)?;
    let before = now_ns();
    stage.hold(|| {
        first.child.expect_running()?;
        rest.iter_mut().try_for_each(|job| job.child.expect_running())
    })?;
    let loss = first.between(before, now_ns());
    stage.ended(json!({"victim_wanted_ms": ms(loss.wanted_ns), "victim_ran_ms": ms(loss.got_ns),
                       "victim_lost_ms": ms(loss.lost_ns())}))
}

/// A cpuset with this core, and all memory.
fn one_core(core: u32, name: &str) -> Result<Cgroup> {
    let cpuset = Cgroup::with_controller("cpuset", name)?;
    cpuset.write("cpuset.cpus", &core.to_string())?;
    if cpuset.hierarchy().version == 1 {
        // On v1 nobody may join before both are set.
        let root = cpuset.hierarchy().mount_point.join("cpuset.mems");
        let all = std::fs::read_to_string(&root).with_context(|| root.display().to_string())?;
        cpuset.write("cpuset.mems", all.trim())?;
    }
    Ok(cpuset)
}
