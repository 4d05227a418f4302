//! A bus that accepts connections and then does not answer, as on a starved node. There is no systemd behind it.

use super::{Need, Scenario};
use crate::bad_bus::{BadBus, Manner};
use crate::guard::TmpfsMount;
use crate::stage::Stage;
use crate::truth::Truth;
use anyhow::Result;
use serde_json::json;

pub const SCENARIO: Scenario = Scenario {
    name: "hanging-bus",
    summary: "buses that accept connections and never answer, or hang up after the first answer",
    expects: &[],
    needs: &[Need::Root],
    perform,
};

fn perform(stage: &mut Stage) -> Result<()> {
    let dir = TmpfsMount::create("bus", 1 << 20, 64)?;
    let listen = |manner| BadBus::listen(&dir.dir().join(format!("{manner:?}")), manner);
    let (accepts, handshakes) = (listen(Manner::Accepts)?, listen(Manner::Handshakes)?);
    let answers_once = listen(Manner::AnswersOnce)?;
    let buses = json!({
        "accepts": accepts.address(), "handshakes": handshakes.address(), "answers_once": answers_once.address(),
    });
    stage.ready(&Truth::new(json!({"buses": buses})).forbid(super::UNIT_FINDINGS).at_most("info"))?;
    stage.hold(|| Ok(()))?;
    stage.ended(json!({"connections": {
        "accepts": accepts.connections(), "handshakes": handshakes.connections(), "answers_once": answers_once.connections(),
    }}))
}
