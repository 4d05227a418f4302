//! A real-time thread takes one core; an ordinary thread bound to that core hardly ever runs.

use super::{FIFO_PRIORITY, Need, PATIENCE, REAL_NS, Scenario, ms};
use crate::actors;
use crate::guard::Child;
use crate::node::{self, CoreTimes};
use crate::stage::Stage;
use crate::truth::{Expected, Truth};
use anyhow::Result;
use serde_json::json;

pub const SCENARIO: Scenario = Scenario {
    name: "rt-monopoly",
    summary: "a SCHED_FIFO spinner owns one core, an ordinary thread starves there",
    expects: &["core-saturated", "core-monopolised"],
    needs: &[Need::Root, Need::TwoCores],
    perform,
};

fn perform(stage: &mut Stage) -> Result<()> {
    let core = super::take_core(&mut stage.draw)?;
    let (spin_comm, victim_comm) = (format!("spin-{}", stage.draw.tag()), format!("job-{}", stage.draw.tag()));

    let mut command = actors::command("victim");
    let mut victim = Child::spawn(&victim_comm, command.args(["--comm", &victim_comm, "--core", &core.to_string()]))?;
    stage.until("the victim has run", PATIENCE, || {
        victim.expect_running()?;
        let named = node::comm_of(victim.pid()).as_deref() == Some(&victim_comm);
        Ok((named && node::thread_times(victim.pid())?.ran_ns >= 2_000_000).then_some(()))
    })?;
    let mut spinner = super::start_fifo_spinner(stage, spin_comm.clone(), core)?;
    super::await_fifo_spinner(stage, &mut spinner, core)?;
    let start = node::thread_times(victim.pid())?;
    stage.until("the victim waits for its core", PATIENCE, || {
        spinner.expect_running()?;
        victim.expect_running()?;
        Ok((node::thread_times(victim.pid())?.waited_ns - start.waited_ns >= REAL_NS).then_some(()))
    })?;

    let culprit = spinner.label();
    let facts = json!({
        "core": core, "pid": spinner.pid(), "comm": spin_comm, "policy": "SCHED_FIFO", "priority": FIFO_PRIORITY,
        "victim": {"pid": victim.pid(), "comm": victim_comm},
    });
    let truth = Truth::new(facts)
        .expect(Expected::new("core-saturated").about("core", core.to_string()).by(&culprit))
        .expect(Expected::new("core-monopolised").about("process", &culprit).by(&culprit))
        .forbid(&["cpu-throttled", "nic-reset", "memory-reclaim"]);
    stage.ready(&truth)?;
    let (spinner_before, victim_before) = (node::thread_times(spinner.pid())?, node::thread_times(victim.pid())?);
    let cores_before = CoreTimes::now()?;
    stage.hold(|| spinner.expect_running().and_then(|()| victim.expect_running()))?;
    let (spinner_after, victim_after) = (node::thread_times(spinner.pid())?, node::thread_times(victim.pid())?);
    stage.ended(json!({
        "spinner_ran_ms": ms(spinner_after.ran_ns - spinner_before.ran_ns),
        "victim_ran_ms": ms(victim_after.ran_ns - victim_before.ran_ns),
        "victim_waited_ms": ms(victim_after.waited_ns - victim_before.waited_ns),
        "busy_percent": CoreTimes::now()?.busy_percent_since(&cores_before),
    }))
}
