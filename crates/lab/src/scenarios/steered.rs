//! A veth pair between two network namespaces, whose packets are received on one core (RPS).

use super::PATIENCE;
use crate::guard::{Child, Netns, ip};
use crate::stage::Stage;
use crate::{actors, node};
use anyhow::{Context, Result};
use std::fs;

pub const PORT: u16 = 9999;

pub struct Steered {
    pub core: u32,
    /// The receiving device.
    pub device: String,
    pub sender_device: String,
    pub receiver: Child,
    sender_ns: Netns,
    pub receiver_ns: Netns,
}

impl Steered {
    /// With this many listening sockets.
    pub fn make(stage: &mut Stage, core: u32, sockets: u64) -> Result<Steered> {
        let tag = stage.draw.tag();
        let (tx, rx) = (format!("s{tag}"), format!("r{tag}"));
        let (sender_ns, receiver_ns) = (Netns::create("tx")?, Netns::create("rx")?);
        let (a, b) = (sender_ns.name(), receiver_ns.name());
        ip(&["link", "add", &tx, "netns", a, "type", "veth", "peer", "name", &rx, "netns", b])
            .context("cannot make a veth pair")?;
        for (ns, device, address) in [(&sender_ns, &tx, "10.78.0.1/24"), (&receiver_ns, &rx, "10.78.0.2/24")] {
            ns.ip(&["addr", "add", address, "broadcast", "10.78.0.255", "dev", device])?;
            ns.ip(&["link", "set", device, "up"])?;
        }
        // Bursts are split into packets before they leave, not after they were received.
        sender_ns.ip(&["link", "set", &tx, "gso_max_segs", "1"])?;
        let mut command = actors::command("receive");
        command.arg("--netns").arg(receiver_ns.path()).args(["--device", &rx, "--port", &PORT.to_string()]);
        command.args(["--steer-to", &core.to_string(), "--sockets", &sockets.to_string()]);
        let receiver = Child::spawn("receiver", &mut command)?;
        Ok(Steered { core, device: rx, sender_device: tx, receiver, sender_ns, receiver_ns })
    }

    pub fn sender_netns(&self) -> &str {
        self.sender_ns.name()
    }

    /// Starts a sender with this many packets per second.
    pub fn send(&self, comm: &str, to: &str, rate: u64) -> Result<Child> {
        let mut command = actors::command("stream");
        command.args(["--comm", comm, "--rate", &rate.to_string(), "--to", &format!("{to}:{PORT}")]);
        Child::spawn(comm, command.arg("--netns").arg(self.sender_ns.path()))
    }

    /// Waits until packets are received on the core: the path works.
    pub fn await_packets(&mut self, stage: &Stage, senders: &mut [Child]) -> Result<()> {
        /// A small part of a second's packets.
        const SOME: u64 = 2_000;
        let before = Backlog::of(self.core)?.processed;
        stage.until("packets are received on the core", PATIENCE, || {
            self.receiver.expect_running()?;
            senders.iter_mut().try_for_each(Child::expect_running)?;
            Ok((Backlog::of(self.core)?.processed >= before + SOME).then_some(()))
        })
    }
}

/// A core's counters in /proc/net/softnet_stat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backlog {
    pub processed: u64,
    pub dropped: u64,
}

impl Backlog {
    pub fn of(core: u32) -> Result<Backlog> {
        let path = "/proc/net/softnet_stat";
        parse_backlog(&fs::read_to_string(path).context(path)?, core).with_context(|| format!("{path}: no core {core}"))
    }
}

/// One line per online core, in hex. Since 5.10 the thirteenth column is the core; before, the line number is.
fn parse_backlog(text: &str, core: u32) -> Option<Backlog> {
    let columns = |line: &str| -> Option<Vec<u64>> {
        line.split_ascii_whitespace().map(|column| u64::from_str_radix(column, 16).ok()).collect()
    };
    let lines = text.lines().filter_map(columns).enumerate();
    let of_core =
        |(number, line): &(usize, Vec<u64>)| line.get(12).copied().unwrap_or(*number as u64) == u64::from(core);
    let (_, line) = lines.into_iter().find(of_core)?;
    Some(Backlog { processed: *line.first()?, dropped: *line.get(1)? })
}

pub fn ksoftirqd_of(core: u32) -> Result<u32> {
    let name = format!("ksoftirqd/{core}");
    node::processes()
        .find(|&p| node::comm_of(p).as_deref() == Some(&name))
        .with_context(|| format!("there is no {name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_core_is_found_by_its_column_or_its_line() {
        let old = "0000000a 00000001 00000000 0 0 0 0 0 0 0 0\n0000000b 00000002 00000000 0 0 0 0 0 0 0 0\n";
        assert_eq!(parse_backlog(old, 1), Some(Backlog { processed: 11, dropped: 2 }));
        let new = "0a 01 0 0 0 0 0 0 0 0 0 0 00000000 0 0\n0b 02 0 0 0 0 0 0 0 0 0 0 00000027 0 0\n";
        assert_eq!(parse_backlog(new, 39), Some(Backlog { processed: 11, dropped: 2 }));
        assert_eq!(parse_backlog(new, 1), None);
        assert!(Backlog::of(0).is_ok() && ksoftirqd_of(0).is_ok());
    }
}
