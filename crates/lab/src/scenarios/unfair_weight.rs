//! A job in a cgroup with the lowest weight, beside ordinary ones that want every core.

use super::{Need, PATIENCE, REAL_NS, Scenario, ms};
use crate::actors;
use crate::guard::{Cgroup, Child};
use crate::loss::{Measured, now_ns};
use crate::node;
use crate::stage::Stage;
use crate::truth::{Expected, ExpectedVerdict, Truth};
use anyhow::Result;
use serde_json::json;

pub const SCENARIO: Scenario = Scenario {
    name: "unfair-weight",
    summary: "a busy thread in a cgroup with the lowest weight, beside hogs on every core",
    expects: &["unfair-weight"],
    needs: &[Need::Root],
    perform,
};

fn perform(stage: &mut Stage) -> Result<()> {
    let (hog_comm, job_comm) = (format!("hog-{}", stage.draw.tag()), format!("job-{}", stage.draw.tag()));
    let heavy = Cgroup::with_controller("cpu", &format!("heavy-{}", stage.draw.tag()))?;
    let light = Cgroup::with_controller("cpu", &format!("light-{}", stage.draw.tag()))?;
    let (file, most, least) = if light.hierarchy().version == 1 {
        ("cpu.shares", 1024 * stage.draw.number(4, 16), 2)
    } else {
        ("cpu.weight", 100 * stage.draw.number(4, 16), 1)
    };
    heavy.write(file, &most.to_string())?;
    light.write(file, &least.to_string())?;
    let cores: Vec<String> = node::allowed_cores()?.iter().map(u32::to_string).collect();
    let mut command = actors::command("spin");
    command.args(["--comm", &hog_comm, "--cores", &cores.join(",")]).arg("--join").arg(heavy.dir());
    let mut hog = Child::spawn(&hog_comm, &mut command)?;
    stage.until("a hog is on every core", PATIENCE, || {
        hog.expect_running()?;
        let threads = node::threads_of(hog.pid());
        let ran = threads.iter().all(|&tid| node::thread_times(tid).is_ok_and(|times| times.ran_ns >= REAL_NS / 4));
        Ok((ran && threads.len() == cores.len()).then_some(()))
    })?;
    let mut command = actors::command("load");
    let mut job = Measured::spawn(&job_comm, command.args(["--comm", &job_comm]).arg("--join").arg(light.dir()))?;
    job.await_first_words(PATIENCE)?;
    let start = now_ns();
    stage.until("the job starves", PATIENCE, || {
        hog.expect_running()?;
        let loss = job.between(start, now_ns());
        Ok((loss.lost_ns() >= REAL_NS && loss.share() >= 0.5).then_some(()))
    })?;
    let truth = Truth::new(json!({
        "pid": hog.pid(), "comm": hog_comm, "cgroup": heavy.path(), "weight": most, "cgroup_version": light.hierarchy().version,
        "victim": {"pid": job.child.pid(), "comm": job_comm, "cgroup": light.path(), "weight": least},
    }))
    .expect(Expected::new("unfair-weight").about("cgroup", light.path()).by(hog.label()))
    .verdict(ExpectedVerdict::new("unfair-weight").by(hog.label()))
    .forbid(&["cpu-throttled", "nic-reset", "memory-reclaim", "fork-storm"]);
    stage.ready(&truth)?;
    let before = now_ns();
    stage.hold(|| hog.expect_running().and_then(|()| job.child.expect_running()))?;
    let loss = job.between(before, now_ns());
    stage.ended(json!({"victim_wanted_ms": ms(loss.wanted_ns), "victim_ran_ms": ms(loss.got_ns),
                       "victim_lost_ms": ms(loss.lost_ns())}))
}
