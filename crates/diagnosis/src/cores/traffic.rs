//! Whether the NIC queues of a core had packets.
//!
//! ksoftirqd also runs timers, RCU, block devices and the scheduler: its waiting hurts a NIC only if the NIC had packets.

use coroner_evidence::{Evidence, Nic, NicQueue, Source};

/// Whether a device had work for a core while we watched; `None` if that cannot be seen. Best are the interrupts of the queues:
/// they belong to this device and core. Otherwise the device's packets and the core's NET_RX softirqs, which include loopback.
pub fn had_work(evidence: &Evidence, nic: &Nic, queues: &[&NicQueue], core: u32) -> Option<bool> {
    if nic.up == Some(false) {
        return Some(false);
    }
    let counters = &evidence.counters;
    let cpu = format!("cpu{core}");
    let interrupted = |queue: &NicQueue| {
        queue.irq.map(|irq| counters.moved(Source::Interrupts, &cpu, &irq.to_string()).is_some_and(|n| n > 0))
    };
    if queues.iter().any(|q| interrupted(q) == Some(true)) {
        return Some(true);
    }
    if packets_moved(evidence, nic) == Some(false) {
        return Some(false);
    }
    // Only interrupts that moved are recorded: if there are any, a missing one stood still.
    let steered = queues.iter().any(|q| !q.needs_core(core));
    if !steered && counters.has(Source::Interrupts) && queues.iter().all(|q| q.irq.is_some()) {
        return Some(false);
    }
    let net_rx = counters.moved(Source::Softirqs, &cpu, "NET_RX").filter(|_| looked_twice(evidence, Source::Softirqs));
    net_rx.map(|n| n > 0).or(packets_moved(evidence, nic))
}

/// `None` if the device's packets were not counted, or read only once.
fn packets_moved(evidence: &Evidence, nic: &Nic) -> Option<bool> {
    let subject = nic.display_name();
    let moved = |name| evidence.counters.moved(Source::NicStatistics, &subject, name);
    match (moved("rx_packets"), moved("tx_packets")) {
        (None, None) => None,
        (Some(0), Some(0)) => looked_twice(evidence, Source::NicStatistics).then_some(false),
        (rx, tx) => (rx.unwrap_or(0) > 0 || tx.unwrap_or(0) > 0).then_some(true),
    }
}

/// A second look records only what moved; two different times of any series show that there was one.
fn looked_twice(evidence: &Evidence, source: Source) -> bool {
    let of_source = evidence.counters.iter().filter(|(series, _)| series.source == source);
    let mut times = of_source.flat_map(|(_, points)| points.iter().map(|p| p.at));
    times.next().is_some_and(|first| times.any(|at| at != first))
}
