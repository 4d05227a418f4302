//! A network device whose NAPI thread cannot get its core: packets are dropped while the node's average looks fine.

use super::{FIFO_PRIORITY, Need, PATIENCE, REAL_NS, Scenario, ms};
use crate::actors;
use crate::guard::{Child, Netns, ip};
use crate::node::{self, DeviceCounters, ThreadTimes};
use crate::stage::Stage;
use crate::truth::{Expected, ExpectedVerdict, Truth};
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::time::Instant;

pub const SCENARIO: Scenario = Scenario {
    name: "nic-starved",
    summary: "a SCHED_FIFO spinner keeps a veth device's NAPI thread off its core; packets are dropped",
    expects: &["nic-core-starved", "core-saturated", "core-monopolised"],
    needs: &[Need::Root, Need::TwoCores, Need::Program("ip", "iproute2")],
    perform,
};

const PACKETS_PER_SECOND: u64 = 20_000;
const PORT: u16 = 9999;

/// Packets that must arrive first, to show that the path works.
const CALM_PACKETS: u64 = 500;

fn perform(stage: &mut Stage) -> Result<()> {
    let core = super::take_core(&mut stage.draw)?;
    let mut wire = Wire::lay(stage, core, PACKETS_PER_SECOND)?;
    let comm = format!("spin-{}", stage.draw.tag());
    let mut spinner = super::start_fifo_spinner(stage, comm.clone(), core)?;
    super::await_fifo_spinner(stage, &mut spinner, core)?;
    wire.await_starved(stage, &mut spinner)?;

    let culprit = spinner.label();
    let facts = wire.facts(json!({
        "core": core, "pid": spinner.pid(), "comm": comm, "policy": "SCHED_FIFO", "priority": FIFO_PRIORITY,
    }));
    let truth = Truth::new(facts)
        .expect(Expected::new("nic-core-starved").by(&culprit))
        .expect(Expected::new("core-saturated").about("core", core.to_string()).by(&culprit))
        .expect(Expected::new("core-monopolised").about("process", &culprit).by(&culprit))
        .verdict(ExpectedVerdict::new("core-monopolised").by(&culprit).then("core-saturated").then("nic-core-starved"))
        .forbid(&["nic-reset", "cpu-throttled", "memory-reclaim"]);
    stage.ready(&truth)?;
    let before = wire.traffic()?;
    stage.hold(|| spinner.expect_running().and_then(|()| wire.flood.expect_running()))?;
    stage.ended(wire.traffic()?.since(&before))
}

/// A veth pair between two network namespaces, with traffic; the receiver's NAPI thread is pinned to one core.
pub(super) struct Wire {
    // Dropped in this order: processes before the namespaces they use.
    pub flood: Child,
    sink: Child,
    receiver_ns: Netns,
    sender_ns: Netns,
    tx: String,
    /// The receiving device.
    pub rx: String,
    /// The thread that polls it.
    pub napi: u32,
    napi_comm: String,
    core: u32,
}

/// Counters of both ends, and times of the NAPI thread.
pub(super) struct Traffic {
    sent: DeviceCounters,
    received: u64,
    napi: ThreadTimes,
}

impl Wire {
    /// Returns when packets arrive.
    pub fn lay(stage: &mut Stage, core: u32, packets_per_second: u64) -> Result<Wire> {
        let tag = stage.draw.tag();
        // Short: "napi/DEVICE-ID" is cut to 15 bytes in many places.
        let (tx, rx) = (format!("s{tag}"), format!("r{tag}"));
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
        command.arg("--netns").arg(sender_ns.path()).args(["--device", &tx, "--rate", &packets_per_second.to_string()]);
        let mut flood = Child::spawn("flood", command.args(["--to", &format!("10.77.0.2:{PORT}")]))?;
        stage.until("packets arrive through the NAPI thread", PATIENCE, || {
            flood.expect_running()?;
            let arrived = node::device_counters(sink.pid(), &rx).unwrap_or_default().rx_packets;
            let on_its_core = node::task_stat(napi).is_some_and(|s| s.core == core);
            Ok((arrived >= CALM_PACKETS && on_its_core).then_some(()))
        })?;
        Ok(Wire { flood, sink, receiver_ns, sender_ns, tx, rx, napi, napi_comm, core })
    }

    /// Waits until the NAPI thread has to wait for its core and packets are dropped.
    pub fn await_starved(&mut self, stage: &Stage, culprit: &mut Child) -> Result<()> {
        let before = self.traffic()?;
        let (mut ran_ns, mut since) = (before.napi.ran_ns, Instant::now());
        stage.until("the NAPI thread waits and packets are dropped", PATIENCE, || {
            self.flood.expect_running()?;
            culprit.expect_running()?;
            let now = self.traffic()?;
            if now.napi.ran_ns != ran_ns {
                (ran_ns, since) = (now.napi.ran_ns, Instant::now());
            }
            // The kernel counts a wait only when it is over; with packets pending, a thread that does not run is waiting.
            let waits =
                now.napi.waited_ns - before.napi.waited_ns >= REAL_NS || since.elapsed().as_nanos() >= REAL_NS.into();
            Ok((waits && now.sent.tx_dropped > before.sent.tx_dropped).then_some(()))
        })
    }

    pub fn traffic(&self) -> Result<Traffic> {
        Ok(Traffic {
            sent: node::device_counters(self.flood.pid(), &self.tx)?,
            received: node::device_counters(self.sink.pid(), &self.rx)?.rx_packets,
            napi: node::thread_times(self.napi)?,
        })
    }

    /// Adds the wire's facts to these.
    pub fn facts(&self, mut facts: Value) -> Value {
        facts["device"] = json!(self.rx);
        facts["netns"] = json!(self.receiver_ns.name());
        facts["netns_path"] = json!(self.receiver_ns.path());
        facts["sender"] = json!({"device": self.tx, "netns": self.sender_ns.name()});
        facts["napi"] = json!({"tid": self.napi, "comm": self.napi_comm, "core": self.core});
        facts
    }
}

impl Traffic {
    pub fn since(&self, before: &Traffic) -> Value {
        let dropped = self.sent.tx_dropped - before.sent.tx_dropped;
        json!({
            "packets_offered": self.sent.tx_packets - before.sent.tx_packets + dropped,
            "packets_dropped": dropped,
            "packets_received": self.received - before.received,
            "napi_waited_ms": ms(self.napi.waited_ns - before.napi.waited_ns),
            "napi_ran_ms": ms(self.napi.ran_ns - before.napi.ran_ns),
        })
    }
}
