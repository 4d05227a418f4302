//! A thread takes a core for a moment, now and then. Others wait that long, which is harmless.

use super::{FIFO_PRIORITY, Need, PATIENCE, Scenario, ms};
use crate::actors;
use crate::guard::Child;
use crate::node;
use crate::stage::Stage;
use crate::truth::Truth;
use anyhow::Result;
use serde_json::json;

pub const SCENARIO: Scenario = Scenario {
    name: "short-spikes",
    summary: "a thread takes one core for a moment every two seconds, as SCHED_FIFO or as an ordinary thread",
    expects: &[],
    needs: &[Need::Root, Need::TwoCores],
    perform,
};

fn perform(stage: &mut Stage) -> Result<()> {
    let core = super::take_core(&mut stage.draw)?;
    let (comm, victim_comm) = (format!("cron-{}", stage.draw.tag()), format!("job-{}", stage.draw.tag()));
    // A core counts as full after a second: both are far below that, even together with the victim.
    let real_time = stage.draw.number(0, 1) == 1;
    let busy_ms = if real_time { stage.draw.number(100, 200) } else { stage.draw.number(250, 350) };
    let every_ms = stage.draw.number(1_800, 2_400);
    let mut victim = super::start_victim(&victim_comm, core)?;
    let mut command = actors::command("load");
    command.args(["--comm", &comm, "--cores", &core.to_string()]);
    command.args(["--turn-us", &(busy_ms * 1000).to_string(), "--every-us", &(every_ms * 1000).to_string()]);
    if real_time {
        command.args(["--class", "fifo", "--priority", &FIFO_PRIORITY.to_string()]);
    }
    let mut spiker = Child::spawn(&comm, &mut command)?;
    stage.until("there was a spike", PATIENCE, || {
        running(&mut spiker, &mut victim)?;
        let ran = ms(node::thread_times(spiker.pid())?.ran_ns);
        let named = node::comm_of(spiker.pid()).as_deref() == Some(&comm);
        Ok((named && ran >= busy_ms * 9 / 10 && ms(node::thread_times(victim.pid())?.ran_ns) >= 2).then_some(()))
    })?;

    let facts = json!({
        "core": core, "pid": spiker.pid(), "comm": comm, "real_time": real_time, "busy_ms": busy_ms, "every_ms": every_ms,
        "victim": {"pid": victim.pid(), "comm": victim_comm},
    });
    let mistaken = ["core-saturated", "core-monopolised", "nic-core-starved", "cpu-throttled", "kernel-stall"];
    stage.ready(&Truth::new(facts).forbid(&mistaken).at_most("info"))?;
    let before = (node::thread_times(spiker.pid())?, node::thread_times(victim.pid())?);
    stage.hold(|| running(&mut spiker, &mut victim))?;
    let (spikes, victim) = (node::thread_times(spiker.pid())?, node::thread_times(victim.pid())?);
    stage.ended(json!({
        "spiker_ran_ms": ms(spikes.ran_ns - before.0.ran_ns),
        "victim_ran_ms": ms(victim.ran_ns - before.1.ran_ns),
        "victim_waited_ms": ms(victim.waited_ns - before.1.waited_ns),
    }))
}

fn running(spiker: &mut Child, victim: &mut Child) -> Result<()> {
    spiker.expect_running().and_then(|()| victim.expect_running())
}
