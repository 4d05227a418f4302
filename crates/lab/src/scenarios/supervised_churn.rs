//! A service that stays up while its child fails and is restarted in a new memory cgroup each time, like ecs-init and its agent.
//! systemd's restart counter does not show it.

use super::systemd_node::{self, SystemdNode};
use super::{PATIENCE, Scenario};
use crate::stage::Stage;
use crate::truth::{Expected, ExpectedVerdict, Truth};
use anyhow::{Context, Result};
use serde_json::json;

pub const SCENARIO: Scenario = Scenario {
    name: "supervised-churn",
    summary: "a real systemd, whose service stays up while its child fails and gets a new memory cgroup about 3 times per second",
    expects: &["unit-churn"],
    needs: systemd_node::NEEDS,
    perform,
};

const EXIT_STATUS: u64 = 5;
/// More births than this are no hiccup.
const BIRTHS: u64 = 3;

fn perform(stage: &mut Stage) -> Result<()> {
    let supervisor = format!("init-{}", stage.draw.tag());
    let child = format!("agent-{}", stage.draw.tag());
    let unit = format!("{supervisor}.service");
    let pause_ms = stage.draw.number(150, 250);
    let mut node = SystemdNode::boot(stage, |furniture| {
        furniture.spool("lab")?;
        // The tmpfs page outlives the child and its cgroup.
        let fail = format!("echo $$ > /var/lib/lab/f.$$\nexit {EXIT_STATUS}\n");
        furniture.script(&format!("/usr/libexec/{child}"), &fail)?;
        let supervise = SUPERVISE.replace("CHILD", &child).replace("PAUSE", &format!("0.{pause_ms}"));
        furniture.script(&format!("/usr/libexec/{supervisor}"), &supervise)?;
        furniture.enabled_service(&unit, &SERVICE.replace("SUPERVISOR", &supervisor))
    })?;
    let born = |node: &SystemdNode| node.files_in("/var/lib/lab");
    stage.until("the child was restarted several times", PATIENCE, || {
        node.expect_running()?;
        Ok((born(&node)? > BIRTHS).then_some(()))
    })?;
    let pid = node.process(&supervisor).context("the supervisor is gone")?;
    let facts = node.facts(json!({
        "unit": unit, "unit_cgroup": node.cgroup_of(&unit)?, "supervisor": format!("{supervisor}[{pid}]"), "child": child,
        "exit_status": EXIT_STATUS, "pause_ms": pause_ms, "leaked": born(&node)?,
    }))?;
    let truth = Truth::new(facts)
        .expect(Expected::new("unit-churn").about("unit", &unit))
        .verdict(ExpectedVerdict::new("unit-churn").about("unit", &unit).by(&unit))
        .forbid(&["unit-crashloop", "core-monopolised", "nic-core-starved"]);
    stage.ready(&truth)?;
    let before = born(&node)?;
    stage.hold(|| node.expect_running())?;
    stage.ended(json!({"restarts": node.restarts(&unit)?, "born": born(&node)? - before}))
}

/// On v2 a cgroup that delegates controllers must have no members, so the supervisor moves into a child.
const SUPERVISE: &str = r#"
if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
    own=/sys/fs/cgroup$(sed -n 's/^0:://p' /proc/self/cgroup)
    mkdir "$own/supervisor"
    echo $$ > "$own/supervisor/cgroup.procs"
    echo +memory > "$own/cgroup.subtree_control"
else
    own=/sys/fs/cgroup/memory$(sed -n 's/^[0-9]*:memory://p' /proc/self/cgroup)
fi
i=0
while :; do
    i=$((i + 1))
    mkdir "$own/CHILD.$i"
    sh -c 'echo $$ > "$1/cgroup.procs"; exec /usr/libexec/CHILD' sh "$own/CHILD.$i"
    rmdir "$own/CHILD.$i"
    sleep PAUSE
done
"#;

const SERVICE: &str = "\
[Unit]
Description=Starts its agent again whenever that ends (of the lab)
[Service]
Type=simple
Delegate=yes
MemoryAccounting=yes
ExecStart=/usr/libexec/SUPERVISOR
Restart=on-failure
[Install]
WantedBy=multi-user.target
";
