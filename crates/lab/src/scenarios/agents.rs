//! An agent that starts at boot and idles beside a process named kubelet: not configured; configured; and configured beside a
//! kubelet that is a configured unit.

use super::systemd_node::{self, SystemdNode};
use super::{PATIENCE, Scenario};
use crate::stage::Stage;
use crate::truth::{Expected, ExpectedVerdict, Truth};
use anyhow::Result;
use serde_json::json;

pub const UNUSED: Scenario = Scenario {
    name: "agent-unused",
    summary: "a real systemd with an orchestrator's agent that was never configured, beside a running kubelet",
    expects: &["agent-unused"],
    needs: systemd_node::NEEDS,
    perform: |stage| perform(stage, Story { configured: false, kubelet_unit: false }),
};

pub const CONFIGURED: Scenario = Scenario {
    name: "agent-configured",
    summary: "a real systemd with a configured orchestrator agent, beside a process named kubelet",
    expects: &[],
    needs: systemd_node::NEEDS,
    perform: |stage| perform(stage, Story { configured: true, kubelet_unit: false }),
};

pub const CONFLICT: Scenario = Scenario {
    name: "agent-conflict",
    summary: "a real systemd with two orchestrators: a configured agent beside kubelet.service",
    expects: &["agent-conflict"],
    needs: systemd_node::NEEDS,
    perform: |stage| perform(stage, Story { configured: true, kubelet_unit: true }),
};

#[derive(Clone, Copy)]
struct Story {
    configured: bool,
    /// The kubelet is a unit, not only a process of that name.
    kubelet_unit: bool,
}

const UNIT: &str = "ecs.service";
const PACKAGE: &str = "amazon-ecs-init";
const CONFIG: &str = "/etc/ecs/ecs.config";

fn perform(stage: &mut Stage, story: Story) -> Result<()> {
    let cluster = format!("training-{}", stage.draw.tag());
    let host = match story.kubelet_unit {
        true => "kubelet.service".to_owned(),
        false => format!("node-agent-{}.service", stage.draw.tag()),
    };
    let version = format!("1.{}.{}-1", stage.draw.number(60, 90), stage.draw.number(0, 9));
    let mut node = SystemdNode::boot(stage, |furniture| {
        furniture.enabled_service(UNIT, &service("Container agent", "/bin/sleep infinity"))?;
        furniture.package(PACKAGE, &version, UNIT)?;
        if story.configured {
            furniture.file(CONFIG, &format!("# The cluster to join.\nECS_CLUSTER={cluster}\n"))?;
        }
        if story.kubelet_unit {
            furniture.file("/var/lib/kubelet/config.yaml", "kind: KubeletConfiguration\n")?;
        }
        // A process is named after its executable.
        furniture.link("/bin/sleep", "/usr/local/bin/kubelet")?;
        furniture.enabled_service(&host, &service("Kubernetes", "/usr/local/bin/kubelet infinity"))
    })?;
    stage.until("the agent runs", PATIENCE, || {
        node.expect_running()?;
        Ok(node.active_state(UNIT).ok().filter(|s| s == "active"))
    })?;
    let kubelet = stage.until("the kubelet runs", PATIENCE, || {
        node.expect_running()?;
        Ok(node.process("kubelet"))
    })?;
    let facts = node.facts(json!({
        "unit": UNIT, "enablement": node.enablement(UNIT)?, "package": PACKAGE, "package_version": version, "config": CONFIG,
        "cluster": story.configured.then_some(cluster), "kubelet": {"pid": kubelet, "unit": host},
    }))?;
    let mut truth = Truth::new(facts);
    let expected = match story {
        Story { configured: false, .. } => Some("agent-unused"),
        Story { kubelet_unit: true, .. } => Some("agent-conflict"),
        _ => None,
    };
    match expected {
        Some(code) => truth = truth.expect(Expected::new(code).about("unit", UNIT).severity("info")),
        None => truth = truth.at_most("info"),
    }
    // An idle agent is worth mentioning; two that want the same node are a problem.
    if expected == Some("agent-conflict") {
        truth = truth.verdict(ExpectedVerdict::new("agent-conflict").about("unit", UNIT).by(UNIT));
    }
    let others: Vec<&str> = super::UNIT_FINDINGS.iter().copied().filter(|code| Some(*code) != expected).collect();
    stage.ready(&truth.forbid(&others))?;
    stage.hold(|| node.expect_running())?;
    stage.ended(json!({"restarts": node.restarts(UNIT)?, "failed_units": node.failed_units()?}))
}

fn service(what: &str, command: &str) -> String {
    format!(
        "[Unit]\nDescription={what} (of the lab)\n[Service]\nType=simple\nExecStart={command}\nRestart=always\n\
         [Install]\nWantedBy=multi-user.target\n"
    )
}
