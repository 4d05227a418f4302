//! A process keeps starting short ones on the core of a service. None of them is ever seen at work for long.

use super::{Need, PATIENCE, REAL_NS, Scenario, ms};
use crate::actors;
use crate::guard::Child;
use crate::loss::{Measured, now_ns};
use crate::stage::Stage;
use crate::truth::{Expected, ExpectedVerdict, Truth};
use anyhow::Result;
use serde_json::json;

pub const SCENARIO: Scenario = Scenario {
    name: "fork-storm",
    summary: "processes of 5 to 20 ms, started all the time, starve a service on their core",
    expects: &["fork-storm"],
    needs: &[Need::Root, Need::TwoCores],
    perform,
};

fn perform(stage: &mut Stage) -> Result<()> {
    let number = super::take_core(&mut stage.draw)?;
    let core = number.to_string();
    let (parent, child) = (format!("cron-{}", stage.draw.tag()), format!("check-{}", stage.draw.tag()));
    let service = format!("svc-{}", stage.draw.tag());
    let (at_once, turn_ms) = (stage.draw.number(6, 9), stage.draw.number(2, 4));
    let mut command = actors::command("load");
    command.args(["--comm", &service, "--cores", &core, "--turn-us", &(turn_ms * 1000).to_string()]);
    let mut service = Measured::spawn(&service, command.args(["--every-us", &(turn_ms * 2000).to_string()]))?;
    service.await_first_words(PATIENCE)?;
    let mut command = actors::command("storm");
    command.args(["--comm", &parent, "--cores", &core, "--child", &child, "--at-once", &at_once.to_string()]);
    let mut storm = Child::spawn(&parent, command.args(["--ms", "5", "20"]))?;
    let start = now_ns();
    stage.until("the service starves", PATIENCE, || {
        storm.expect_running()?;
        let loss = service.between(start, now_ns());
        Ok((loss.lost_ns() >= REAL_NS && loss.share() >= 0.5).then_some(()))
    })?;
    let truth = Truth::new(json!({
        "core": number, "pid": storm.pid(), "comm": parent, "child": child, "at_once": at_once,
        "victim": {"pid": service.child.pid(), "comm": service.child.name()},
    }))
    .expect(Expected::new("fork-storm").about("process", storm.label()).by(storm.label()))
    .verdict(ExpectedVerdict::new("fork-storm").by(storm.label()))
    .forbid(&["cpu-throttled", "nic-reset", "memory-reclaim", "unfair-weight"]);
    stage.ready(&truth)?;
    let before = now_ns();
    stage.hold(|| storm.expect_running().and_then(|()| service.child.expect_running()))?;
    let loss = service.between(before, now_ns());
    stage.ended(json!({"victim_wanted_ms": ms(loss.wanted_ns), "victim_ran_ms": ms(loss.got_ns),
                       "victim_lost_ms": ms(loss.lost_ns())}))
}
