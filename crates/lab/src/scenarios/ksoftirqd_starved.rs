//! Packets are received in softirqs on a core that a real-time thread owns. Softirqs leave excess work to ksoftirqd, which
//! never runs there: the backlog overflows.

use super::steered::{Backlog, Steered, ksoftirqd_of};
use super::{FIFO_PRIORITY, Need, PATIENCE, REAL_NS, Scenario, ms};
use crate::guard::Child;
use crate::node;
use crate::stage::Stage;
use crate::truth::{Expected, ExpectedVerdict, Truth};
use anyhow::Result;
use serde_json::json;

pub const SCENARIO: Scenario = Scenario {
    name: "ksoftirqd-starved",
    summary: "packets are steered to a core (RPS) that a SCHED_FIFO spinner owns: ksoftirqd starves, the backlog overflows",
    expects: &["core-monopolised", "softnet-drop"],
    needs: &[Need::Root, Need::TwoCores, Need::Program("ip", "iproute2")],
    perform,
};

/// This many dropped since the spinner started are no accident.
const MANY: u64 = 10_000;

fn perform(stage: &mut Stage) -> Result<()> {
    let core = super::take_core(&mut stage.draw)?;
    let (spin_comm, send_comm) = (format!("spin-{}", stage.draw.tag()), format!("send-{}", stage.draw.tag()));
    // A free core can receive several times as many. Without ksoftirqd it receives ten rounds of 64 packets per interrupt, which at
    // 250 ticks per second is less than this (MAX_SOFTIRQ_RESTART, dev_weight); before 6.5 none at all while ksoftirqd waits.
    let rate = stage.draw.number(240_000, 320_000);
    let ksoftirqd = ksoftirqd_of(core)?;
    let mut path = Steered::make(stage, core, 1)?;
    let mut sender = path.send(&send_comm, "10.78.0.2", rate)?;
    path.await_packets(stage, std::slice::from_mut(&mut sender))?;

    let mut spinner = super::start_fifo_spinner(stage, spin_comm.clone(), core)?;
    super::await_fifo_spinner(stage, &mut spinner, core)?;
    let (waited, dropped) = (node::thread_times(ksoftirqd)?.waited_ns, Backlog::of(core)?.dropped);
    stage.until("ksoftirqd waits and packets are dropped", PATIENCE, || {
        running(&mut [&mut spinner, &mut sender, &mut path.receiver])?;
        let waits = node::thread_times(ksoftirqd)?.waited_ns - waited >= REAL_NS;
        Ok((waits && Backlog::of(core)?.dropped >= dropped + MANY).then_some(()))
    })?;

    let culprit = spinner.label();
    let facts = json!({
        "core": core, "pid": spinner.pid(), "comm": spin_comm, "policy": "SCHED_FIFO", "priority": FIFO_PRIORITY,
        "ksoftirqd": ksoftirqd, "device": path.device, "netns": path.receiver_ns.name(), "netns_path": path.receiver_ns.path(),
        "sender": {"pid": sender.pid(), "comm": send_comm, "device": path.sender_device, "netns": path.sender_netns(), "rate": rate},
    });
    let truth = Truth::new(facts)
        .expect(Expected::new("core-monopolised").about("process", &culprit).by(&culprit))
        .expect(Expected::new("softnet-drop"))
        .verdict(ExpectedVerdict::new("core-monopolised").or("core-saturated").by(&culprit).then("softnet-drop"))
        .forbid(&["nic-reset", "cpu-throttled", "memory-reclaim", "interrupt-storm"]);
    stage.ready(&truth)?;
    let before = (node::thread_times(ksoftirqd)?, Backlog::of(core)?, node::thread_times(sender.pid())?);
    stage.hold(|| running(&mut [&mut spinner, &mut sender, &mut path.receiver]))?;
    let (times, backlog) = (node::thread_times(ksoftirqd)?, Backlog::of(core)?);
    stage.ended(json!({
        "packets_dropped": backlog.dropped - before.1.dropped,
        "packets_received": backlog.processed - before.1.processed,
        "ksoftirqd_waited_ms": ms(times.waited_ns - before.0.waited_ns),
        "ksoftirqd_ran_ms": ms(times.ran_ns - before.0.ran_ns),
        "sender_waited_ms": ms(node::thread_times(sender.pid())?.waited_ns - before.2.waited_ns),
    }))
}

fn running(children: &mut [&mut Child]) -> Result<()> {
    children.iter_mut().try_for_each(|child| child.expect_running())
}
