//! Which queue an interrupt serves, by its name.
//!
//! The only way before 6.8, and still the only one for drivers that do not support netlink (see [`super::netlink`]).
//! Every driver names its interrupts in its own way; the patterns below are from the drivers' request_irq() calls.

use coroner_evidence::QueueKind;

/// A handler of an interrupt. Shared interrupts have several.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedIrq {
    pub irq: u32,
    pub name: String,
}

/// What an interrupt is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Serves {
    /// [`QueueKind::Combined`]: the receive and the transmit queue of that index.
    Queue(QueueKind, u32),
    /// gve: the first half of the notification blocks belongs to transmit queues, the second half to receive queues
    /// (drivers/net/ethernet/google/gve/gve.h, `gve_rx_idx_to_ntfy`).
    NotifyBlock(u32),
    /// All queues of the device.
    Everything,
}

/// Numbered interrupts and their handlers, from the text of /proc/interrupts.
///
/// The counts are skipped, not parsed: a line ends with the handlers' names (`chip hwirq-edge name, name`), and a node with 192
/// cores has megabytes of counts.
pub fn parse_interrupts(text: &str) -> Vec<NamedIrq> {
    let mut named = Vec::new();
    for line in text.lines() {
        let Some((label, rest)) = line.split_once(':') else { continue };
        // `NMI`, `LOC` and the like are not devices.
        let Ok(irq) = label.trim().parse::<u32>() else { continue };
        let mut words = rest.split_ascii_whitespace().rev();
        let Some(last) = words.next() else { continue };
        if last.bytes().all(|b| b.is_ascii_digit()) {
            continue; // only counts: no handler
        }
        named.push(NamedIrq { irq, name: last.to_owned() });
        for word in words {
            let Some(name) = word.strip_suffix(',') else { break };
            named.push(NamedIrq { irq, name: name.to_owned() });
        }
    }
    named
}

/// The device whose interrupts are wanted.
#[derive(Debug, Clone, Copy)]
pub struct Owner<'a> {
    pub device: &'a str,
    pub bus: Option<&'a str>,
    /// The device's interrupts according to the bus; empty if unknown.
    pub msi_irqs: &'a [u32],
    /// Other devices at the same bus address (several ports of one PCI function).
    pub siblings: &'a [&'a str],
}

impl Owner<'_> {
    /// What the interrupt serves on this device; `None` if no queue depends on it, or if it belongs to another device.
    pub fn served_by(&self, handler: &NamedIrq) -> Option<Serves> {
        let name = handler.name.as_str();
        let by_bus = self.bus.is_some_and(|bus| mentions_bus(name, bus));
        let by_name = mentions_device(name, self.device);
        let by_number =
            self.msi_irqs.contains(&handler.irq) && !self.siblings.iter().any(|sibling| mentions_device(name, sibling));
        if !(by_bus || by_name || by_number) {
            return None;
        }
        let without_place = name.split('@').next().unwrap_or(name);
        // r8169, e1000 and others with one interrupt name it after the device.
        if without_place == self.device {
            return Some(Serves::Everything);
        }
        // sfc: `eth0-3`
        let after_device = without_place.strip_prefix(self.device).and_then(|rest| rest.strip_prefix('-'));
        if let Some(index) = after_device.and_then(decimal) {
            return Some(Serves::Queue(QueueKind::Combined, index));
        }
        queue_of(without_place)
    }
}

/// `virtio2-input.0` on bus `virtio2`; `mlx5_comp3@pci:0000:20:03.0`; `hns3-0000:bd:00.0-TxRx-0`.
fn mentions_bus(name: &str, bus: &str) -> bool {
    if let Some((_, place)) = name.split_once('@') {
        return place == bus || place.strip_prefix("pci:") == Some(bus);
    }
    mentions_device(name, bus)
}

/// The device's name as a whole word: `eth1` is not in `eth10-TxRx-0`.
fn mentions_device(name: &str, device: &str) -> bool {
    if device.is_empty() {
        return false;
    }
    name.match_indices(device).any(|(at, _)| {
        let before = name[..at].bytes().next_back();
        let after = name[at + device.len()..].bytes().next();
        let is_edge = |b: Option<u8>| b.is_none_or(|b| matches!(b, b'-' | b':' | b'@'));
        is_edge(before) && is_edge(after)
    })
}

/// Reads the queue off the end of a name.
fn queue_of(name: &str) -> Option<Serves> {
    let name = name.to_ascii_lowercase();
    // virtio with too few vectors: one interrupt for all virtqueues.
    if name.ends_with("-virtqueues") {
        return Some(Serves::Everything);
    }
    // xen-netfront: `eth0-q0-rx`
    for (ending, kind) in [("-rx", QueueKind::Rx), ("-tx", QueueKind::Tx)] {
        if let Some(queue) = name.strip_suffix(ending) {
            let (stem, index) = split_index(queue)?;
            return stem.ends_with("-q").then_some(Serves::Queue(kind, index));
        }
    }
    let (stem, index) = split_index(&name)?;
    let stem = stem.trim_end_matches(['-', '_', '.', ':']);
    let ends = |endings: &[&str]| endings.iter().any(|e| stem.ends_with(e));
    if ends(&["ntfy-blk", "ntfy-block"]) {
        return Some(Serves::NotifyBlock(index));
    }
    // ena `eth0-Tx-Rx-3`, ixgbe, bnxt `eth0-TxRx-3`, ice `ice-eth0-TxRx-3`, vmxnet3 `eth0-rxtx-3`, mlx5 `mlx5_comp3`,
    // mana `mana_q3`, qede `eth0-fp-3`
    let kind = if ends(&["-tx-rx", "-txrx", "-rxtx", "-rx-tx", "mlx5_comp", "mana_q", "-fp"]) {
        QueueKind::Combined
    } else if ends(&["-rx", "-input"]) {
        QueueKind::Rx
    } else if ends(&["-tx", "-output"]) {
        QueueKind::Tx
    } else {
        return None;
    };
    Some(Serves::Queue(kind, index))
}

fn split_index(name: &str) -> Option<(&str, u32)> {
    let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
    Some((stem, decimal(&name[stem.len()..])?))
}

fn decimal(text: &str) -> Option<u32> {
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) { None } else { text.parse().ok() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use QueueKind::{Combined, Rx, Tx};
    use proptest::prelude::*;

    fn served(name: &str, device: &str, bus: &str) -> Option<Serves> {
        let owner = Owner { device, bus: Some(bus), msi_irqs: &[], siblings: &[] };
        owner.served_by(&NamedIrq { irq: 7, name: name.to_owned() })
    }

    #[test]
    fn queues_are_recognised_in_the_names_of_every_driver() {
        let pci = "0000:20:03.0";
        let queue = |kind, index| Some(Serves::Queue(kind, index));
        for (name, device, bus, expected) in [
            ("eth0-Tx-Rx-3", "eth0", pci, queue(Combined, 3)),
            ("ena-mgmnt@pci:0000:20:03.0", "eth0", pci, None),
            ("virtio2-input.0", "eth0", "virtio2", queue(Rx, 0)),
            ("virtio2-output.11", "eth0", "virtio2", queue(Tx, 11)),
            ("virtio2-config", "eth0", "virtio2", None),
            ("virtio2-virtqueues", "eth0", "virtio2", Some(Serves::Everything)),
            ("virtio12-input.0", "eth0", "virtio1", None),
            ("mlx5_comp3@pci:0000:20:03.0", "ens5f0np0", pci, queue(Combined, 3)),
            ("mlx5_comp3@pci:0000:20:03.1", "ens5f0np0", pci, None),
            ("mlx5_async0@pci:0000:20:03.0", "ens5f0np0", pci, None),
            ("eth0-TxRx-3", "eth0", pci, queue(Combined, 3)),
            ("eth10-TxRx-3", "eth1", pci, None),
            ("i40e-eth0-TxRx-14", "eth0", pci, queue(Combined, 14)),
            ("i40e-0000:20:03.0:misc", "eth0", pci, None),
            ("ice-eth0-TxRx-3", "eth0", pci, queue(Combined, 3)),
            ("iavf-eth0-TxRx-3", "eth0", pci, queue(Combined, 3)),
            ("gve-ntfy-blk3@pci:0000:20:03.0", "eth0", pci, Some(Serves::NotifyBlock(3))),
            ("gve-mgmnt@pci:0000:20:03.0", "eth0", pci, None),
            ("eth0-ntfy-block.3", "eth0", pci, Some(Serves::NotifyBlock(3))),
            ("eth0-rxtx-3", "eth0", pci, queue(Combined, 3)),
            ("eth0-event-4", "eth0", pci, None),
            ("eth0-rx-1", "eth0", pci, queue(Rx, 1)),
            ("eth0-tx-1", "eth0", pci, queue(Tx, 1)),
            ("eth0-q2-rx", "eth0", "vif-0", queue(Rx, 2)),
            ("eth0-q2-tx", "eth0", "vif-0", queue(Tx, 2)),
            ("mana_q5@pci:0000:20:03.0", "eth1", pci, queue(Combined, 5)),
            ("mana_hwc@pci:0000:20:03.0", "eth1", pci, None),
            ("hns3-0000:20:03.0-TxRx-5", "eth1", pci, queue(Combined, 5)),
            ("eth0-5", "eth0", pci, queue(Combined, 5)),
            ("eth0", "eth0", pci, Some(Serves::Everything)),
            ("eth0-TxRx-99999999999999", "eth0", pci, None),
        ] {
            assert_eq!(served(name, device, bus), expected, "{name} of {device} on {bus}");
        }
    }

    #[test]
    fn a_renamed_device_is_found_by_its_bus_without_its_siblings_interrupts() {
        let owner = Owner { device: "ens5", bus: Some("0000:00:05.0"), msi_irqs: &[40], siblings: &["ens6"] };
        let irq = |irq, name: &str| NamedIrq { irq, name: name.to_owned() };
        assert_eq!(owner.served_by(&irq(40, "eth0-Tx-Rx-1")), Some(Serves::Queue(Combined, 1)));
        assert_eq!(owner.served_by(&irq(41, "eth0-Tx-Rx-1")), None);
        assert_eq!(owner.served_by(&irq(40, "ens6-Tx-Rx-1")), None);
    }

    #[test]
    fn names_are_at_the_end_of_a_line() {
        let text = "           CPU0       CPU1       \n\
             \x2024:          1          0  IO-APIC   5-edge      ACPI:Ged\n\
             \x2027:          1          0\n\
             \x2038:          0       4217 PCI-MSIX-0000:00:03.0   1-edge      virtio2-input.0\n\
             100:          3          4  IO-APIC  16-fasteoi   ehci_hcd:usb1, eth1\n\
             garbage\n\
             NMI:          0          0   Non-maskable interrupts\n\
             ERR:          0\n";
        let named = parse_interrupts(text);
        let seen: Vec<(u32, &str)> = named.iter().map(|n| (n.irq, n.name.as_str())).collect();
        assert_eq!(seen, [(24, "ACPI:Ged"), (38, "virtio2-input.0"), (100, "eth1"), (100, "ehci_hcd:usb1")]);
    }

    #[test]
    fn a_node_of_192_cores_is_read_to_the_last_interrupt() {
        let counts = " 1234567890".repeat(192);
        let line = |irq: u32| format!("{irq:>5}:{counts}  PCI-MSI {irq}-edge  eth0-Tx-Rx-{}\n", irq - 100);
        let text: String = (100..1100).map(line).collect();
        let named = parse_interrupts(&text);
        assert_eq!(named.len(), 1000);
        assert_eq!(named[999], NamedIrq { irq: 1099, name: "eth0-Tx-Rx-999".to_owned() });
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_panic(text in "(.{0,20}\n|[0-9]{1,12}: +[0-9]+ [a-zà-ÿ0-9,@:_.-]{0,20}\n){0,20}") {
            for handler in parse_interrupts(&text) {
                for device in ["eth0", "é", "", &handler.name] {
                    let owner = Owner { device, bus: Some(device), msi_irqs: &[handler.irq], siblings: &[device] };
                    let _ = owner.served_by(&handler);
                }
            }
        }
    }
}
