//! One core receives every packet of a flood and hands each to many listeners: softirqs fill the core.

use super::steered::{Backlog, Steered};
use super::{Need, PATIENCE, Scenario};
use crate::guard::Child;
use crate::stage::Stage;
use crate::truth::{Expected, ExpectedVerdict, Truth};
use anyhow::{Context, Result};
use serde_json::json;
use std::fs;

pub const SCENARIO: Scenario = Scenario {
    name: "softirq-storm",
    summary: "several senders broadcast to hundreds of listeners; one core receives all of it (RPS) and is full of softirqs",
    expects: &["interrupt-storm", "softnet-drop"],
    needs: &[Need::Root, Need::TwoCores, Need::Program("ip", "iproute2")],
    perform,
};

/// Softirq share of a full core.
const FULL_PERCENT: u64 = 80;
/// Measured over this many ticks of 1/100 s.
const TICKS: u64 = 50;

fn perform(stage: &mut Stage) -> Result<()> {
    let core = super::take_core(&mut stage.draw)?;
    let (count, listeners) = (stage.draw.number(2, 4), stage.draw.number(850, 1_000));
    // Handing one packet to this many takes 200 µs (0.23 µs each, measured), so one round of 64 packets outlasts three ticks. It runs
    // when the tick's interrupt returns, ahead of any thread; ksoftirqd would share the core with others.
    let rate = 60_000 / count;
    let mut path = Steered::make(stage, core, listeners)?;
    let comms: Vec<String> = (0..count).map(|_| format!("cast-{}", stage.draw.tag())).collect();
    let mut senders = comms.iter().map(|comm| path.send(comm, "10.78.0.255", rate)).collect::<Result<Vec<Child>>>()?;
    path.await_packets(stage, &mut senders)?;
    let mut since = SoftirqTime::of(core)?;
    let full = stage.until("softirqs fill the core", PATIENCE, || {
        senders.iter_mut().try_for_each(Child::expect_running)?;
        path.receiver.expect_running()?;
        let now = SoftirqTime::of(core)?;
        if now.all - since.all < TICKS {
            return Ok(None);
        }
        let percent = now.percent_since(&since);
        since = now;
        Ok((percent >= FULL_PERCENT).then_some(()))
    });
    full.with_context(|| format!("does a real-time thread hold core {core}?"))?;

    let pids: Vec<u32> = senders.iter().map(Child::pid).collect();
    let facts = json!({
        "core": core, "listeners": listeners, "device": path.device, "netns": path.receiver_ns.name(),
        "netns_path": path.receiver_ns.path(),
        "senders": {"pids": pids, "comms": comms, "rate_each": rate, "device": path.sender_device, "netns": path.sender_netns()},
    });
    let truth = Truth::new(facts)
        .expect(Expected::new("interrupt-storm").about("core", core.to_string()))
        .expect(Expected::new("softnet-drop"))
        .verdict(ExpectedVerdict::new("interrupt-storm").about("core", core.to_string()).then("softnet-drop"))
        .forbid(&["core-monopolised", "nic-reset", "cpu-throttled", "memory-reclaim"]);
    stage.ready(&truth)?;
    let before = (SoftirqTime::of(core)?, Backlog::of(core)?);
    stage.hold(|| {
        senders.iter_mut().try_for_each(Child::expect_running)?;
        path.receiver.expect_running()
    })?;
    let backlog = Backlog::of(core)?;
    stage.ended(json!({
        "softirq_percent": SoftirqTime::of(core)?.percent_since(&before.0),
        "packets_received": backlog.processed - before.1.processed,
        "packets_dropped": backlog.dropped - before.1.dropped,
    }))
}

/// Of one core, in ticks of 1/100 s.
struct SoftirqTime {
    softirq: u64,
    all: u64,
}

impl SoftirqTime {
    fn of(core: u32) -> Result<SoftirqTime> {
        let path = "/proc/stat";
        parse(&fs::read_to_string(path).context(path)?, core).with_context(|| format!("{path}: no core {core}"))
    }

    fn percent_since(&self, before: &SoftirqTime) -> u64 {
        (self.softirq.saturating_sub(before.softirq) * 100)
            .checked_div(self.all.saturating_sub(before.all))
            .unwrap_or(0)
    }
}

fn parse(text: &str, core: u32) -> Option<SoftirqTime> {
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("cpu{core} ")))?;
    // user nice system idle iowait irq softirq steal
    let ticks: Vec<u64> = line.split_ascii_whitespace().take(8).map_while(|t| t.parse().ok()).collect();
    Some(SoftirqTime { softirq: *ticks.get(6)?, all: ticks.iter().sum() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn softirqs_are_a_part_of_one_core() {
        let before = parse("cpu 9 9 9 9 9 9 9 9\ncpu1 10 0 0 90 0 0 5 0 3 0\ncpu10 1 1 1 1 1 1 1 1\n", 1).unwrap();
        let after = parse("cpu1 10 0 10 90 0 0 95 0 3 0\n", 1).unwrap();
        assert_eq!(after.percent_since(&before), 90);
        assert!(parse("cpu1 1 2 3\n", 1).is_none() && parse("", 0).is_none());
    }
}
