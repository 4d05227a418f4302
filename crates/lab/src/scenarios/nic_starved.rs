//! A network device whose NAPI thread cannot get its core: packets are dropped while the node's average looks fine.

use super::{FIFO_PRIORITY, Need, PATIENCE, REAL_NS, Scenario, ms};
use crate::actors;
use crate::guard::{Child, Netns, ip};
use crate::node::{self, CoreTimes};
use crate::stage::Stage;
use crate::truth::{Expected, Truth};
use anyhow::{Context, Result};
use serde_json::json;

pub const SCENARIO: Scenario = Scenario {
    name: "nic-starved",
    summary: "a SCHED_FIFO spinner keeps a veth device's NAPI thread off its core; packets are dropped",
    expects: &["nic-core-starved", "core-saturated", "core-monopolised"],
    needs: &[Need::Root, Need::TwoCores, Need::Program("ip", "iproute2")],
    perform,
};

const PACKETS_PER_SECOND: u64 = 20_000;
const PORT: u16 = 9999;

/// Packets that must arrive before the trouble starts: the path works when nobody starves it.
const CALM_PACKETS: u64 = 500;

fn perform(stage: &mut Stage) -> Result<()> {
    let core = super::take_core(&mut stage.draw)?;
    let tag = stage.draw.tag();
    // Short: "napi/DEVICE-ID" is cut to 15 bytes in many places.
    let (tx, rx) = (format!("s{tag}"), format!("r{tag}"));
    let comm = format!("spin-{}", stage.draw.tag());

    let sender_ns = Netns::create("tx")?;
    let receiver_ns = Netns::create("rx")?;
    let (a, b) = (sender_ns.name(), receiver_ns.name());
    let one_queue = ["numrxqueues", "1", "numtxqueues", "1"];
    let link = [["link", "add", &tx, "netns", a].as_slice(), &one_queue].concat();
    let peer = [["type", "veth", "peer", "name", &rx, "netns", b].as_slice(), &one_queue].concat();
    ip(&[link, peer].concat()).context("cannot make a veth pair")?;
    for (ns, device, address) in [(&sender_ns, &tx, "10.77.0.1/24"), (&receiver_ns, &rx, "10.77.0.2/24")] {
        ns.ip(&["addr", "add", address, "dev", device])?;
        ns.ip(&["link", "set", device, "up"])?;
    }

    let mut command = actors::command("sink");
    command.arg("--netns").arg(receiver_ns.path()).args(["--device", &rx, "--port", &PORT.to_string()]);
    let mut sink = Child::spawn("sink", &mut command)?;
    let napi = stage.until("the device has a NAPI thread", PATIENCE, || {
        sink.expect_running()?;
        let prefix = format!("napi/{rx}-");
        Ok(node::processes().find(|&p| node::comm_of(p).is_some_and(|c| c.starts_with(&prefix))))
    })?;
    let napi_comm = node::comm_of(napi).context("the NAPI thread is gone")?;
    node::pin(Some(napi), &[core])?;

    let mut command = actors::command("flood");
    command.arg("--netns").arg(sender_ns.path()).args(["--device", &tx, "--rate", &PACKETS_PER_SECOND.to_string()]);
    let mut flood = Child::spawn("flood", command.args(["--to", &format!("10.77.0.2:{PORT}")]))?;
    stage.until("packets arrive through the NAPI thread", PATIENCE, || {
        flood.expect_running()?;
        let arrived = node::device_counters(sink.pid(), &rx).unwrap_or_default().rx_packets;
        let on_its_core = node::task_stat(napi).is_some_and(|s| s.core == core);
        Ok((arrived >= CALM_PACKETS && on_its_core).then_some(()))
    })?;

    let mut spinner = super::start_fifo_spinner(stage, comm.clone(), core)?;
    super::await_fifo_spinner(stage, &mut spinner, core)?;
    let waited = node::thread_times(napi)?.waited_ns;
    let dropped = node::device_counters(flood.pid(), &tx)?.tx_dropped;
    stage.until("the NAPI thread waits and packets are dropped", PATIENCE, || {
        flood.expect_running()?;
        spinner.expect_running()?;
        let waits = node::thread_times(napi)?.waited_ns - waited >= REAL_NS;
        Ok((waits && node::device_counters(flood.pid(), &tx)?.tx_dropped > dropped).then_some(()))
    })?;

    let culprit = spinner.label();
    let facts = json!({
        "core": core, "pid": spinner.pid(), "comm": comm, "policy": "SCHED_FIFO", "priority": FIFO_PRIORITY,
        "device": rx, "netns": b, "netns_path": receiver_ns.path(), "sender": {"device": tx, "netns": a},
        "napi": {"tid": napi, "comm": napi_comm, "core": core},
    });
    let truth = Truth::new(facts)
        .expect(Expected::new("nic-core-starved").by(&culprit))
        .expect(Expected::new("core-saturated").about("core", core.to_string()).by(&culprit))
        .expect(Expected::new("core-monopolised").about("process", &culprit).by(&culprit))
        .forbid(&["nic-reset", "cpu-throttled", "memory-reclaim"]);
    stage.ready(&truth)?;
    let before = (node::thread_times(napi)?, node::device_counters(flood.pid(), &tx)?, CoreTimes::now()?);
    let arrived_before = node::device_counters(sink.pid(), &rx)?.rx_packets;
    stage.hold(|| spinner.expect_running().and_then(|()| flood.expect_running()))?;
    let (napi_times, sent) = (node::thread_times(napi)?, node::device_counters(flood.pid(), &tx)?);
    let dropped = sent.tx_dropped - before.1.tx_dropped;
    stage.ended(json!({
        "packets_offered": sent.tx_packets - before.1.tx_packets + dropped,
        "packets_dropped": dropped,
        "packets_received": node::device_counters(sink.pid(), &rx)?.rx_packets - arrived_before,
        "napi_waited_ms": ms(napi_times.waited_ns - before.0.waited_ns),
        "napi_ran_ms": ms(napi_times.ran_ns - before.0.ran_ns),
        "busy_percent": CoreTimes::now()?.busy_percent_since(&before.2),
    }))
}
