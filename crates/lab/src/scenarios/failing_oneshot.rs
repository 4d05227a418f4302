//! A timer's job that fails every other time: worth mentioning, but not a crashloop.

use super::systemd_node::{self, SystemdNode};
use super::{PATIENCE, Scenario};
use crate::stage::Stage;
use crate::truth::{Expected, Truth};
use anyhow::Result;
use serde_json::json;

pub const SCENARIO: Scenario = Scenario {
    name: "failing-oneshot",
    summary: "a real systemd, whose timer starts a job every 1.5 s that fails every other time",
    expects: &["unit-failing"],
    needs: systemd_node::NEEDS,
    perform,
};

/// It must fail more than once, and succeed in between.
const RUNS: u64 = 3;

fn perform(stage: &mut Stage) -> Result<()> {
    let job = format!("report-{}", stage.draw.tag());
    let (unit, timer) = (format!("{job}.service"), format!("{job}.timer"));
    let exit_status = stage.draw.number(2, 99);
    let mut node = SystemdNode::boot(stage, |furniture| {
        furniture.spool("lab")?;
        let script = JOB.replace("STATUS", &exit_status.to_string());
        furniture.script(&format!("/usr/libexec/{job}"), &script)?;
        furniture.unit(&unit, &SERVICE.replace("JOB", &job))?;
        furniture.unit(&timer, TIMER)?;
        furniture.enable(&timer, "timers.target")
    })?;
    let runs = |node: &SystemdNode| node.files_in("/var/lib/lab");
    stage.until("the job failed again after a success", PATIENCE, || {
        node.expect_running()?;
        let failed = node.active_state(&unit).is_ok_and(|s| s == "failed");
        Ok((failed && runs(&node)? >= RUNS).then_some(()))
    })?;
    let facts = node.facts(json!({
        "unit": unit, "timer": timer, "exit_status": exit_status, "result": node.result(&unit)?, "every_ms": 1500, "runs": runs(&node)?,
    }))?;
    let truth = Truth::new(facts)
        .expect(Expected::new("unit-failing").about("unit", &unit).severity("info"))
        .forbid(&["unit-crashloop", "unit-churn", "agent-unused", "agent-conflict"]);
    stage.ready(&truth)?;
    let before = runs(&node)?;
    stage.hold(|| node.expect_running())?;
    stage.ended(json!({"runs": runs(&node)? - before, "restarts": node.restarts(&unit)?}))
}

/// The first, third and so on fail. The lab counts runs by their files.
const JOB: &str = "\
cd /var/lib/lab
: > run.$$
runs=$(ls | wc -l)
[ $((runs % 2)) -eq 0 ] || exit STATUS
";

const SERVICE: &str = "\
[Unit]
Description=A report (of the lab)
StartLimitIntervalSec=0
[Service]
Type=oneshot
ExecStart=/usr/libexec/JOB
";

const TIMER: &str = "\
[Timer]
OnActiveSec=1ms
OnUnitInactiveSec=1500ms
AccuracySec=1ms
[Install]
WantedBy=timers.target
";
