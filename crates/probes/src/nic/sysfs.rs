//! Network devices as /sys/class/net shows them.
//!
//! A sysfs shows the devices of the network namespace in which it was mounted, so every function here takes a sysfs: `/sys`, or
//! that of another namespace (see [`super::namespaces`]).

use crate::root::{ReadError, Root};
use coroner_evidence::{CoreSet, Order};
use std::io::Read;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Device {
    pub name: String,
    pub ifindex: Option<u32>,
    /// Hardware only; for other devices use ethtool.
    pub driver: Option<String>,
    /// `None`: not hardware.
    pub bus: Option<String>,
    pub up: Option<bool>,
    /// Whether NAPI threads poll the queues. `None` before 5.12.
    pub threaded: Option<bool>,
    /// Interrupts of a PCI device.
    pub msi_irqs: Vec<u32>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Queues {
    pub rx: Vec<Queue>,
    pub tx: Vec<Queue>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Queue {
    pub index: u32,
    /// RPS or XPS; `None` if it is off or cannot be read.
    pub steering: Option<CoreSet>,
}

/// No device has more queues of one kind (netdev_alloc limits are far below).
const MAX_QUEUES: usize = 4096;

/// The devices of a sysfs without `lo`, sorted by name, at most `limit`: hardware first.
pub fn devices(sys: &Root, limit: usize) -> Result<Vec<Device>, ReadError> {
    let mut devices: Vec<Device> =
        sys.list("class/net")?.into_iter().filter(|name| name != "lo").filter_map(|name| identify(sys, name)).collect();
    devices.order_by(|a, b| b.bus.is_some().cmp(&a.bus.is_some()).then_with(|| a.name.cmp(&b.name)));
    devices.truncate(limit);
    for device in &mut devices {
        describe(sys, device);
    }
    Ok(devices)
}

/// `None` if it is not a device: `bonding_masters` is a file.
fn identify(sys: &Root, name: String) -> Option<Device> {
    let path = sys.path(&format!("class/net/{name}"));
    if !path.is_dir() {
        return None;
    }
    // class/net/eth0/device → ../../../0000:20:03.0
    let bus = std::fs::read_link(path.join("device")).ok().as_deref().and_then(last_part);
    Some(Device { name, bus, ..Device::default() })
}

fn describe(sys: &Root, device: &mut Device) {
    let base = format!("class/net/{}", device.name);
    let line = |file: &str| sys.read_line(&format!("{base}/{file}"));
    device.ifindex = line("ifindex").and_then(|l| l.parse().ok());
    device.threaded = line("threaded").and_then(|l| l.parse::<u32>().ok()).map(|n| n != 0);
    let administratively = line("flags").and_then(|l| parse_hex(&l)).map(|flags| flags & libc::IFF_UP as u64 != 0);
    // Virtual devices without carrier detection report `unknown`.
    device.up = match line("operstate").as_deref() {
        Some("up") => Some(true),
        Some("unknown") | None => administratively,
        Some(_) => Some(false),
    };
    if device.bus.is_some() {
        let driver = sys.path(&format!("{base}/device/driver"));
        device.driver = std::fs::read_link(driver).ok().as_deref().and_then(last_part);
        let irqs = sys.list(&format!("{base}/device/msi_irqs")).unwrap_or_default();
        device.msi_irqs = irqs.iter().filter_map(|n| n.parse().ok()).collect();
    }
}

/// The queues in use (the kernel shows as many as are configured), with their packet steering.
pub fn queues(sys: &Root, device: &str) -> Queues {
    let mut queues = Queues { rx: Vec::new(), tx: Vec::new() };
    let base = format!("class/net/{device}/queues");
    for name in sys.list(&base).unwrap_or_default().into_iter().take(MAX_QUEUES) {
        let mask = |file: &str| {
            let mask = CoreSet::parse_mask(&sys.read_line(&format!("{base}/{name}/{file}"))?)?;
            (!mask.is_empty()).then_some(mask)
        };
        if let Some(index) = name.strip_prefix("rx-").and_then(|n| n.parse().ok()) {
            queues.rx.push(Queue { index, steering: mask("rps_cpus") });
        } else if let Some(index) = name.strip_prefix("tx-").and_then(|n| n.parse().ok()) {
            queues.tx.push(Queue { index, steering: mask("xps_cpus") });
        }
    }
    queues.rx.order_by_key(|q| q.index);
    queues.tx.order_by_key(|q| q.index);
    queues
}

/// The statistics worth watching: traffic, errors, and where packets were dropped.
pub const STATISTICS: &[&str] = &[
    "rx_packets",
    "tx_packets",
    "rx_bytes",
    "tx_bytes",
    "rx_errors",
    "tx_errors",
    "rx_dropped",
    "tx_dropped",
    "rx_missed_errors",
    "rx_fifo_errors",
    "rx_over_errors",
    "rx_nohandler",
    "tx_fifo_errors",
    "tx_carrier_errors",
];

/// One value per name of [`STATISTICS`]. These files, unlike netlink, take no lock that a device reset would hold
/// (net/core/net-sysfs.c, `netstat_show`).
pub fn statistics(sys: &Root, device: &str) -> Vec<Option<u64>> {
    let value = |name: &&str| read_number(sys, &format!("class/net/{device}/statistics/{name}"));
    STATISTICS.iter().map(value).collect()
}

/// How often the kernel's watchdog found each transmit queue stuck, in the order of `queues`.
pub fn tx_timeouts(sys: &Root, device: &str, queues: &[u32]) -> Vec<Option<u64>> {
    let value = |index: &u32| read_number(sys, &format!("class/net/{device}/queues/tx-{index}/tx_timeout"));
    queues.iter().map(value).collect()
}

/// Open, one read, close: there may be hundreds of these files per second.
fn read_number(sys: &Root, path: &str) -> Option<u64> {
    let mut buffer = [0; 32];
    let length = std::fs::File::open(sys.path(path)).ok()?.read(&mut buffer).ok()?;
    std::str::from_utf8(&buffer[..length]).ok()?.trim().parse().ok()
}

fn last_part(link: &std::path::Path) -> Option<String> {
    Some(link.file_name()?.to_string_lossy().into_owned())
}

fn parse_hex(text: &str) -> Option<u64> {
    u64::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_this_nodes_devices() {
        let sys = Root::at("/sys");
        let Ok(listed) = sys.list("class/net") else { return };
        let devices = devices(&sys, usize::MAX).unwrap();
        for device in &devices {
            assert!(listed.contains(&device.name) && device.name != "lo");
            assert!(device.ifindex.is_some() && device.up.is_some(), "{device:?}");
            let values = statistics(&sys, &device.name);
            assert!(values[0].is_some() && values[4].is_some(), "{} {values:?}", device.name);
            assert!(!queues(&sys, &device.name).tx.is_empty() || device.bus.is_none(), "{device:?}");
        }
        assert_eq!(devices.len(), listed.iter().filter(|n| *n != "lo" && *n != "bonding_masters").count());
    }
}
