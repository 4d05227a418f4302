//! A deadline thread has most of a core, before every other class. It is no real-time thread by priority, and takes no more than was granted.

use super::{Need, PATIENCE, REAL_NS, Scenario, ms};
use crate::actors;
use crate::loss::{Loss, Measured, now_ns};
use crate::node;
use crate::stage::Stage;
use crate::truth::{Expected, ExpectedVerdict, Truth};
use anyhow::Result;
use serde_json::json;

pub const SCENARIO: Scenario = Scenario {
    name: "deadline-hog",
    summary: "a SCHED_DEADLINE thread has 90 % of a core on which an ordinary thread wants to run",
    expects: &["cpu-starved"],
    needs: &[Need::Root, Need::TwoCores],
    perform,
};

fn perform(stage: &mut Stage) -> Result<()> {
    let (hog_comm, tag) = (format!("media-{}", stage.draw.tag()), stage.draw.tag());
    // A deadline thread may use every core, so there is one who wants to run on each.
    let mut victims = Vec::new();
    for core in node::allowed_cores()? {
        let comm = format!("job-{tag}-{core}");
        let mut command = actors::command("load");
        victims.push(Measured::spawn(&comm, command.args(["--comm", &comm, "--cores", &core.to_string()]))?);
    }
    victims.iter_mut().try_for_each(|victim| victim.await_first_words(PATIENCE))?;
    let mut command = actors::command("load");
    command.args(["--comm", &hog_comm, "--class", "deadline", "--priority", "90"]);
    let mut hog = Measured::spawn(&hog_comm, &mut command)?;
    hog.await_first_words(PATIENCE)?;
    let start = now_ns();
    stage.until("one of them starves", PATIENCE, || {
        hog.child.expect_running()?;
        // It cannot be pinned, and may take turns among the cores: on two, each loses 45 %.
        Ok(worst(&victims, start).1.filter(|loss| loss.lost_ns() >= REAL_NS && loss.share() >= 0.3))
    })?;
    let truth = Truth::new(json!({
        "pid": hog.child.pid(), "comm": hog_comm, "policy": "SCHED_DEADLINE", "percent": 90,
        "victims": victims.iter().map(|v| json!({"pid": v.child.pid(), "comm": v.child.name()})).collect::<Vec<_>>(),
    }))
    .expect(Expected::new("cpu-starved").by(hog.child.label()))
    .verdict(ExpectedVerdict::new("cpu-starved").or("core-monopolised").by(hog.child.label()))
    .forbid(&["cpu-throttled", "nic-reset", "memory-reclaim", "fork-storm", "unfair-weight"]);
    stage.ready(&truth)?;
    let before = now_ns();
    stage.hold(|| hog.child.expect_running())?;
    let (name, loss) = worst(&victims, before);
    let loss = loss.unwrap_or_default();
    stage.ended(json!({"victim": name, "victim_wanted_ms": ms(loss.wanted_ns), "victim_ran_ms": ms(loss.got_ns),
                       "victim_lost_ms": ms(loss.lost_ns()), "hog_ran_ms": ms(hog.between(before, now_ns()).got_ns)}))
}

/// The one who lost most.
fn worst(victims: &[Measured], since_ns: u64) -> (&str, Option<Loss>) {
    let losses = victims.iter().map(|victim| (victim.child.name(), victim.between(since_ns, now_ns())));
    losses.max_by_key(|(_, loss)| loss.lost_ns()).map_or(("", None), |(name, loss)| (name, Some(loss)))
}
