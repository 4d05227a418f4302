//! Healthy nodes, which must get no warning.

use super::{PATIENCE, REAL_NS, Scenario};
use crate::actors;
use crate::guard::Child;
use crate::node;
use crate::stage::Stage;
use crate::truth::Truth;
use anyhow::{Context, Result};
use serde_json::{Value, json};

pub const BUSY: Scenario = Scenario {
    name: "busy-healthy",
    summary: "one ordinary busy thread on every core; nobody waits long",
    expects: &[],
    needs: &[],
    perform: |stage| {
        let cores = node::allowed_cores()?;
        perform_busy(stage, &cores)
    },
};

pub const ONE_THREAD: Scenario = Scenario {
    name: "one-busy-thread",
    summary: "one ordinary busy thread on one core; the others are free",
    expects: &[],
    needs: &[],
    perform: |stage| {
        let cores = node::allowed_cores()?;
        let core = stage.draw.one_of(&cores).context("this process may use no core")?;
        perform_busy(stage, &[core])
    },
};

pub const IDLE: Scenario = Scenario {
    name: "idle",
    summary: "nothing at all",
    expects: &[],
    needs: &[],
    perform: |stage| {
        stage.ready(&all_is_well(json!({})))?;
        stage.hold(|| Ok(()))?;
        stage.ended(json!({}))
    },
};

/// The findings that a busy or idle node is most easily mistaken for.
pub(super) fn all_is_well(facts: Value) -> Truth {
    let mistaken = ["core-monopolised", "nic-core-starved", "cpu-throttled", "kernel-stall", "unit-crashloop"];
    Truth::new(facts).forbid(&mistaken).at_most("info")
}

fn perform_busy(stage: &mut Stage, cores: &[u32]) -> Result<()> {
    let measured = hold_busy(stage, cores, |facts| facts)?;
    stage.ended(measured)
}

/// One busy thread on each of these cores while the scenario is held. Returns what was measured.
pub(super) fn hold_busy(stage: &mut Stage, cores: &[u32], more_facts: impl FnOnce(Value) -> Value) -> Result<Value> {
    let comm = format!("train-{}", stage.draw.tag());
    let list: Vec<String> = cores.iter().map(u32::to_string).collect();
    let mut command = actors::command("spin");
    let mut job = Child::spawn(&comm, command.args(["--comm", &comm, "--cores", &list.join(",")]))?;
    let threads = stage.until("every thread has run on its core", PATIENCE, || {
        job.expect_running()?;
        let threads = node::threads_of(job.pid());
        let ran = |t: &&u32| node::thread_times(**t).is_ok_and(|times| times.ran_ns >= REAL_NS);
        Ok((threads.len() == cores.len() && threads.iter().all(|t| ran(&t))).then_some(threads))
    })?;
    let mut facts = json!({"cores": cores, "pid": job.pid(), "comm": comm, "tids": threads});
    if let [core] = cores {
        facts["core"] = json!(core);
    }
    stage.ready(&all_is_well(more_facts(facts)))?;
    let before = total(&threads)?;
    stage.hold(|| job.expect_running())?;
    let after = total(&threads)?;
    Ok(json!({
        "ran_ms": super::ms(after.0 - before.0),
        "waited_ms": super::ms(after.1 - before.1),
    }))
}

/// Run and wait time of all threads.
fn total(tids: &[u32]) -> Result<(u64, u64)> {
    tids.iter().try_fold((0, 0), |sum, &tid| {
        let times = node::thread_times(tid)?;
        Ok((sum.0 + times.ran_ns, sum.1 + times.waited_ns))
    })
}
