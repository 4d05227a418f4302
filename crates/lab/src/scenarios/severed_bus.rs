//! A real systemd with a healthy service, behind buses that break in the middle of an answer.

use super::Scenario;
use super::systemd_node::{self, SystemdNode};
use crate::bad_bus::{BadBus, Manner};
use crate::guard::TmpfsMount;
use crate::stage::Stage;
use crate::truth::Truth;
use anyhow::Result;
use serde_json::{Map, Value, json};

pub const SCENARIO: Scenario = Scenario {
    name: "severed-bus",
    summary: "a real systemd behind buses that fall silent or hang up in the middle of an answer",
    expects: &[],
    needs: systemd_node::NEEDS,
    perform,
};

fn perform(stage: &mut Stage) -> Result<()> {
    // Within the handshake or hello; early in the list of units; later in it, or in the properties.
    let cuts = [stage.draw.number(200, 600), stage.draw.number(2_000, 4_000), stage.draw.number(5_000, 8_000)];
    let node_unit = format!("web-{}.service", stage.draw.tag());
    let mut node = SystemdNode::boot(stage, |furniture| {
        furniture.enabled_service(
            &node_unit,
            "[Service]\nExecStart=/bin/sleep infinity\n[Install]\nWantedBy=multi-user.target\n",
        )
    })?;
    let dir = TmpfsMount::create("bus", 1 << 20, 64)?;
    let real = node.root().join("run/dbus/system_bus_socket");
    let mut buses: Vec<(String, BadBus)> = Vec::new();
    for (i, &after) in cuts.iter().enumerate() {
        for (how, hangs_up) in [("falls_silent", false), ("hangs_up", true)] {
            let name = format!("{how}_{}", i + 1);
            let manner = Manner::Severed { behind: real.clone(), after, hangs_up };
            buses.push((name.clone(), BadBus::listen(&dir.dir().join(&name), manner)?));
        }
    }
    let addresses: Map<String, Value> = buses.iter().map(|(name, bus)| (name.clone(), bus.address().into())).collect();
    let facts = node.facts(json!({"buses": addresses, "cut_after_bytes": cuts, "unit": node_unit}))?;
    stage.ready(&Truth::new(facts).forbid(super::UNIT_FINDINGS).at_most("info"))?;
    stage.hold(|| node.expect_running())?;
    let came: Map<String, Value> = buses.iter().map(|(name, bus)| (name.clone(), bus.connections().into())).collect();
    stage.ended(json!({"connections": came}))
}
