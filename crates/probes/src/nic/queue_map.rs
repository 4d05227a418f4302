//! The map queue → interrupt or NAPI thread → core, built from netlink, interrupt names and thread names.

use super::irq_names::{self, NamedIrq, Owner, Serves};
use super::napi_threads::{self, NapiThread};
use super::netlink::{Napi, Netdev};
use super::sysfs;
use crate::root::Root;
use coroner_evidence::{CoreSet, MapSource, NicQueue, Order, QueueKind};
use std::collections::HashMap;
use std::sync::OnceLock;

/// Files of the node that several devices need, each read on first use.
#[derive(Debug)]
pub struct NodeFiles<'a> {
    root: &'a Root,
    /// Whether interrupts and threads may be matched by name.
    by_name: bool,
    interrupts: OnceLock<Vec<NamedIrq>>,
    napi_threads: OnceLock<Vec<NapiThread>>,
}

impl<'a> NodeFiles<'a> {
    pub fn new(root: &'a Root, by_name: bool) -> NodeFiles<'a> {
        NodeFiles { root, by_name, interrupts: OnceLock::new(), napi_threads: OnceLock::new() }
    }

    fn interrupts(&self) -> &[NamedIrq] {
        self.interrupts.get_or_init(|| {
            let text = if self.by_name { self.root.read("/proc/interrupts").ok() } else { None };
            text.map(|text| irq_names::parse_interrupts(&text)).unwrap_or_default()
        })
    }

    fn napi_threads(&self) -> &[NapiThread] {
        self.napi_threads.get_or_init(|| if self.by_name { napi_threads::scan(self.root) } else { Vec::new() })
    }

    /// Where an interrupt is delivered. The effective affinity exists since 4.15 and is empty for some interrupt controllers.
    fn irq_cores(&self, irq: u32) -> Option<CoreSet> {
        ["effective_affinity_list", "smp_affinity_list"].iter().find_map(|file| {
            let cores = CoreSet::parse_list(&self.root.read_line(&format!("/proc/irq/{irq}/{file}"))?)?;
            (!cores.is_empty()).then_some(cores)
        })
    }

    fn thread_cores(&self, tid: u32) -> Option<CoreSet> {
        let status = self.root.read(&format!("/proc/{tid}/status")).ok()?;
        let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
        CoreSet::parse_list(list).filter(|cores| !cores.is_empty())
    }
}

/// What is known of a device before its queues are mapped.
#[derive(Debug, Clone, Copy)]
pub struct Subject<'a> {
    pub device: &'a sysfs::Device,
    pub queues: &'a sysfs::Queues,
    /// The netlink dump of this device's namespace.
    pub netdev: Option<&'a Netdev>,
    /// Other devices at the same bus address.
    pub siblings: &'a [&'a str],
    /// Other devices of the same namespace.
    pub neighbours: &'a [&'a str],
}

impl Subject<'_> {
    /// The device's NAPIs according to netlink, in the order in which the driver created them.
    ///
    /// Ids ascend (net/core/dev.c, `napi_hash_add`), and drivers create NAPIs queue by queue.
    fn napis(&self) -> Vec<&Napi> {
        let (Some(netdev), Some(ifindex)) = (self.netdev, self.device.ifindex) else { return Vec::new() };
        let mut napis: Vec<&Napi> = netdev.napis.iter().filter(|n| n.ifindex == ifindex).collect();
        napis.order_by_key(|n| n.id);
        napis
    }

    fn is_threaded(&self, napi: &Napi) -> bool {
        napi.thread.is_some() && napi.threaded.or(self.device.threaded).unwrap_or(true)
    }

    /// Whether NAPI threads poll the device.
    pub fn has_napi_threads(&self) -> bool {
        match self.netdev {
            Some(_) => self.napis().iter().any(|napi| self.is_threaded(napi)),
            None => self.device.threaded == Some(true),
        }
    }
}

/// The queues of a device and what serves them.
///
/// The queues are those of sysfs. A NAPI thread whose queue is unknown is listed as a queue of its own, of kind
/// [`QueueKind::Combined`]; so are interrupts for both directions if sysfs shows no queues.
pub fn map(subject: &Subject, files: &NodeFiles) -> Vec<NicQueue> {
    let mut map = Map { queues: Vec::new() };
    for (kind, queues) in [(QueueKind::Rx, &subject.queues.rx), (QueueKind::Tx, &subject.queues.tx)] {
        map.queues.extend(queues.iter().map(|queue| NicQueue {
            kind,
            index: queue.index,
            steering: queue.steering.clone(),
            ..NicQueue::default()
        }));
    }
    match subject.netdev {
        Some(netdev) => map.by_netlink(subject, netdev),
        None if subject.device.threaded == Some(true) => map.by_thread_names(subject, files.napi_threads()),
        None => {}
    }
    // Virtual devices have no interrupts.
    if subject.device.bus.is_some() && map.queues.iter().any(|q| q.irq.is_none()) {
        map.by_irq_names(subject, files.interrupts());
    }
    map.finish(files);
    map.queues
}

fn combined(index: u32) -> NicQueue {
    NicQueue { kind: QueueKind::Combined, index, ..NicQueue::default() }
}

/// A thread outside our pid namespace: it polls the queue, but on an unknown core.
const UNSEEN_THREAD: u32 = 0;

struct Map {
    queues: Vec<NicQueue>,
}

impl Map {
    fn of(&mut self, kind: QueueKind, index: u32) -> Option<&mut NicQueue> {
        self.queues.iter_mut().find(|q| q.kind == kind && q.index == index)
    }

    fn by_netlink(&mut self, subject: &Subject, netdev: &Netdev) {
        let napis = subject.napis();
        let tell = |queue: &mut NicQueue, napi: &Napi, source: MapSource| {
            queue.napi_id = Some(napi.id);
            queue.irq = napi.irq;
            queue.napi_tid = if subject.is_threaded(napi) { napi.thread } else { None };
            if queue.irq.is_some() || queue.napi_tid.is_some() {
                queue.map = source;
            }
        };
        let mut linked = Vec::new();
        for queue in netdev.queues.iter().filter(|q| Some(q.ifindex) == subject.device.ifindex) {
            let Some(napi) = napis.iter().find(|n| Some(n.id) == queue.napi) else { continue };
            linked.push(napi.id);
            if let Some(mine) = self.of(queue.kind, queue.index) {
                tell(mine, napi, MapSource::Netlink);
            }
        }
        // Drivers that do not link queues to NAPIs (veth): if there are as many NAPIs as receive queues, match them in order.
        let unlinked: Vec<&Napi> = napis.into_iter().filter(|n| !linked.contains(&n.id)).collect();
        let mut receive: Vec<&mut NicQueue> =
            self.queues.iter_mut().filter(|q| q.kind == QueueKind::Rx && q.napi_id.is_none()).collect();
        if unlinked.len() == receive.len() {
            let source = if unlinked.len() == 1 { MapSource::Netlink } else { MapSource::Name };
            for (queue, napi) in receive.iter_mut().zip(&unlinked) {
                tell(queue, napi, source);
            }
        } else {
            for (napi, index) in unlinked.iter().filter(|n| subject.is_threaded(n)).zip(0..) {
                let mut queue = combined(index);
                tell(&mut queue, napi, MapSource::Netlink);
                self.queues.push(queue);
            }
        }
    }

    fn by_thread_names(&mut self, subject: &Subject, threads: &[NapiThread]) {
        // A cut name may belong to another device. (Even a full one may belong to a device of that name in another network
        // namespace; only netlink can tell.)
        let mine = |thread: &NapiThread| match thread.of_device(&subject.device.name)? {
            None if subject.neighbours.iter().any(|other| thread.of_device(other).is_some()) => None,
            id => Some((id, thread.tid)),
        };
        let mut mine: Vec<(Option<u32>, u32)> = threads.iter().filter_map(mine).collect();
        mine.sort_unstable();
        // Transmit-only NAPIs have no id (netif_napi_add_tx); virtio_net creates one per transmit queue.
        let (transmit, others): (Vec<_>, Vec<_>) = mine.into_iter().partition(|(id, _)| *id == Some(0));
        let mut left = self.one_to_one(QueueKind::Tx, transmit);
        left.extend(self.one_to_one(QueueKind::Rx, others));
        for ((id, tid), index) in left.into_iter().zip(0..) {
            let id = id.filter(|id| *id != 0);
            let queue = combined(index);
            self.queues.push(NicQueue { napi_id: id, napi_tid: Some(tid), map: MapSource::Name, ..queue });
        }
    }

    /// Assigns one thread to each queue of a kind if the counts match and the order is known; else returns the threads.
    fn one_to_one(&mut self, kind: QueueKind, threads: Vec<(Option<u32>, u32)>) -> Vec<(Option<u32>, u32)> {
        let queues = self.queues.iter_mut().filter(|q| q.kind == kind);
        let is_ordered = threads.iter().all(|(id, _)| id.is_some_and(|id| id != 0));
        if queues.count() != threads.len() || (threads.len() > 1 && !is_ordered) {
            return threads;
        }
        for (queue, (id, tid)) in self.queues.iter_mut().filter(|q| q.kind == kind).zip(threads) {
            queue.napi_id = id.filter(|id| *id != 0);
            queue.napi_tid = Some(tid);
            queue.map = MapSource::Name;
        }
        Vec::new()
    }

    fn by_irq_names(&mut self, subject: &Subject, interrupts: &[NamedIrq]) {
        let device = subject.device;
        let owner = Owner {
            device: &device.name,
            bus: device.bus.as_deref(),
            msi_irqs: &device.msi_irqs,
            siblings: subject.siblings,
        };
        let served: Vec<(u32, Serves)> =
            interrupts.iter().filter_map(|handler| Some((handler.irq, owner.served_by(handler)?))).collect();
        let blocks = served.iter().filter(|(_, s)| matches!(s, Serves::NotifyBlock(_))).count() as u32;
        let has_queues = !self.queues.is_empty();
        for (irq, serves) in &served {
            match *serves {
                Serves::Everything => {
                    for queue in &mut self.queues {
                        set_irq(queue, *irq);
                    }
                }
                Serves::NotifyBlock(block) if block < blocks / 2 => self.set(QueueKind::Tx, block, *irq),
                Serves::NotifyBlock(block) => self.set(QueueKind::Rx, block - blocks / 2, *irq),
                Serves::Queue(QueueKind::Combined, index) => {
                    self.set(QueueKind::Rx, index, *irq);
                    self.set(QueueKind::Tx, index, *irq);
                    if !has_queues {
                        let queue = combined(index);
                        self.queues.push(NicQueue { irq: Some(*irq), map: MapSource::Name, ..queue });
                    }
                }
                Serves::Queue(kind, index) => self.set(kind, index, *irq),
            }
        }
        // mlx5 with traffic classes has more transmit queues than channels: queue = channel + class × channels
        // (drivers/net/ethernet/mellanox/mlx5/core/en_main.c, `mlx5e_build_txq_maps`).
        let channels = self.queues.iter().filter(|q| q.kind == QueueKind::Rx).count() as u32;
        if channels > 0 && device.driver.as_deref().is_some_and(|driver| driver.starts_with("mlx5")) {
            let by_channel: HashMap<u32, u32> = self
                .queues
                .iter()
                .filter(|q| q.kind == QueueKind::Rx)
                .filter_map(|q| Some((q.index, q.irq?)))
                .collect();
            for queue in self.queues.iter_mut().filter(|q| q.kind == QueueKind::Tx && q.index >= channels) {
                if let Some(irq) = by_channel.get(&(queue.index % channels)) {
                    set_irq(queue, *irq);
                }
            }
        }
    }

    fn set(&mut self, kind: QueueKind, index: u32, irq: u32) {
        if let Some(queue) = self.of(kind, index) {
            set_irq(queue, irq);
        }
    }

    fn finish(&mut self, files: &NodeFiles) {
        // One interrupt has one NAPI: the receiving thread also completes transmissions.
        let polled_by: HashMap<u32, (Option<u32>, u32)> = self
            .queues
            .iter()
            .filter(|q| q.kind == QueueKind::Rx)
            .filter_map(|q| Some((q.irq?, (q.napi_id, q.napi_tid?))))
            .collect();
        for queue in self.queues.iter_mut().filter(|q| q.kind == QueueKind::Tx && q.napi_id.is_none()) {
            if let Some((id, tid)) = queue.irq.and_then(|irq| polled_by.get(&irq)) {
                queue.napi_id = *id;
                queue.napi_tid = Some(*tid);
            }
        }
        let mut cores_of_irq: HashMap<u32, Option<CoreSet>> = HashMap::new();
        for queue in &mut self.queues {
            if queue.napi_tid == Some(UNSEEN_THREAD) {
                // `irq_cores` stays unset, or it would be taken for the cores that the queue needs.
                queue.napi_tid = None;
                queue.map = MapSource::Unmapped;
                continue;
            }
            queue.napi_cores = queue.napi_tid.and_then(|tid| files.thread_cores(tid));
            queue.irq_cores =
                queue.irq.and_then(|irq| cores_of_irq.entry(irq).or_insert_with(|| files.irq_cores(irq)).clone());
        }
    }
}

/// Does not override netlink.
fn set_irq(queue: &mut NicQueue, irq: u32) {
    if queue.irq.is_none() {
        queue.irq = Some(irq);
        if queue.map == MapSource::Unmapped {
            queue.map = MapSource::Name;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::netlink::Queue;
    use super::*;
    use std::fs;

    struct NicTree {
        dir: tempfile::TempDir,
    }

    impl NicTree {
        fn new() -> NicTree {
            NicTree { dir: tempfile::tempdir().unwrap() }
        }

        fn with(self, path: &str, text: &str) -> NicTree {
            let path = self.dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
            self
        }

        fn interrupts(self, lines: &[(u32, &str)]) -> NicTree {
            let lines: Vec<String> =
                lines.iter().map(|(irq, name)| format!("{irq:>4}:  5  7  PCI-MSI {irq}-edge  {name}\n")).collect();
            self.with("proc/interrupts", &format!("    CPU0 CPU1\n{}", lines.concat()))
        }

        fn map(&self, device: sysfs::Device, rx: u32, tx: u32, netdev: Option<Netdev>) -> Vec<NicQueue> {
            let root = Root::at(self.dir.path());
            let of = |n| (0..n).map(|index| sysfs::Queue { index, steering: None }).collect();
            let queues = sysfs::Queues { rx: of(rx), tx: of(tx) };
            let subject =
                Subject { device: &device, queues: &queues, netdev: netdev.as_ref(), siblings: &[], neighbours: &[] };
            map(&subject, &NodeFiles::new(&root, true))
        }
    }

    fn device(driver: &str, bus: Option<&str>) -> sysfs::Device {
        let named = |s: &str| s.to_owned();
        sysfs::Device {
            name: named("eth0"),
            ifindex: Some(2),
            driver: Some(named(driver)),
            bus: bus.map(named),
            threaded: Some(false),
            ..Default::default()
        }
    }

    fn irqs(queues: &[NicQueue]) -> Vec<(String, Option<u32>)> {
        queues.iter().map(|q| (q.label(), q.irq)).collect()
    }

    fn expect(list: &[(&str, u32)]) -> Vec<(String, Option<u32>)> {
        list.iter().map(|(label, irq)| (label.to_string(), Some(*irq))).collect()
    }

    #[test]
    fn one_interrupt_of_ena_serves_both_directions() {
        let node = NicTree::new()
            .interrupts(&[(30, "ena-mgmnt@pci:0000:20:03.0"), (31, "eth0-Tx-Rx-0"), (32, "eth0-Tx-Rx-1")])
            .with("proc/irq/31/effective_affinity_list", "39\n")
            .with("proc/irq/32/effective_affinity_list", "\n")
            .with("proc/irq/32/smp_affinity_list", "0-3\n");
        let queues = node.map(device("ena", Some("0000:20:03.0")), 2, 2, None);
        assert_eq!(irqs(&queues), expect(&[("rx-0", 31), ("rx-1", 32), ("tx-0", 31), ("tx-1", 32)]));
        assert!(queues[0].needs_core(39) && queues[2].needs_core(39));
        assert_eq!(queues[1].irq_cores, CoreSet::parse_list("0-3"));
        assert!(queues.iter().all(|q| q.map == MapSource::Name));
    }

    #[test]
    fn gve_lists_transmit_blocks_first() {
        let node = NicTree::new().interrupts(&[
            (40, "gve-ntfy-blk0@pci:0000:00:04.0"),
            (41, "gve-ntfy-blk1@pci:0000:00:04.0"),
            (42, "gve-ntfy-blk2@pci:0000:00:04.0"),
            (43, "gve-ntfy-blk3@pci:0000:00:04.0"),
            (44, "gve-mgmnt@pci:0000:00:04.0"),
        ]);
        let queues = node.map(device("gve", Some("0000:00:04.0")), 2, 2, None);
        assert_eq!(irqs(&queues), expect(&[("rx-0", 42), ("rx-1", 43), ("tx-0", 40), ("tx-1", 41)]));
    }

    #[test]
    fn mlx5_transmit_queues_of_higher_classes_share_the_channels_vector() {
        let node = NicTree::new().interrupts(&[
            (50, "mlx5_comp0@pci:0000:5e:00.0"),
            (51, "mlx5_comp1@pci:0000:5e:00.0"),
            (52, "mlx5_async0"),
        ]);
        let queues = node.map(device("mlx5_core", Some("0000:5e:00.0")), 2, 4, None);
        let expected = [("rx-0", 50), ("rx-1", 51), ("tx-0", 50), ("tx-1", 51), ("tx-2", 50), ("tx-3", 51)];
        assert_eq!(irqs(&queues), expect(&expected));
    }

    #[test]
    fn without_names_nothing_is_mapped() {
        let node = NicTree::new().interrupts(&[(20, "Hypervisor"), (21, "eth1-TxRx-0")]);
        let queues = node.map(device("hv_netvsc", Some("f8b3781a-1e82")), 1, 1, None);
        assert_eq!(queues.iter().map(|q| q.map).collect::<Vec<_>>(), [MapSource::Unmapped; 2]);
        assert!(queues.iter().all(|q| q.irq.is_none() && q.cores().is_none()));
    }

    #[test]
    fn netlink_outranks_names_and_names_fill_its_gaps() {
        let node = NicTree::new().interrupts(&[(38, "virtio2-input.0"), (39, "virtio2-output.0")]);
        let napi = |id, irq| Napi { ifindex: 2, id, irq, thread: None, threaded: Some(false) };
        let rx = Queue { ifindex: 2, kind: QueueKind::Rx, index: 0, napi: Some(257) };
        let netdev = |irq| Some(Netdev { queues: vec![rx], napis: vec![napi(257, irq)] });
        let queues = node.map(device("virtio_net", Some("virtio2")), 1, 1, netdev(None));
        assert_eq!(irqs(&queues), expect(&[("rx-0", 38), ("tx-0", 39)]));
        assert_eq!((queues[0].map, queues[0].napi_id), (MapSource::Name, Some(257)));
        let queues = node.map(device("virtio_net", Some("virtio2")), 1, 1, netdev(Some(77)));
        assert_eq!(irqs(&queues), expect(&[("rx-0", 77), ("tx-0", 39)]));
        assert_eq!((queues[0].map, queues[1].map), (MapSource::Netlink, MapSource::Name));
    }

    #[test]
    fn a_thread_that_polls_is_what_the_queue_needs() {
        let node = NicTree::new()
            .interrupts(&[(31, "eth0-Tx-Rx-0")])
            .with("proc/irq/31/effective_affinity_list", "5\n")
            .with("proc/2/comm", "kthreadd\n")
            .with("proc/2/task/2/children", "3 900 901 ")
            .with("proc/900/comm", "napi/eth0-8193\n")
            .with("proc/901/comm", "napi/eth10-8194\n")
            .with("proc/900/status", "Name:\tnapi\nCpus_allowed:\t2\nCpus_allowed_list:\t1\n");
        let threaded = sysfs::Device { threaded: Some(true), ..device("ena", Some("0000:20:03.0")) };
        let queues = node.map(threaded, 1, 1, None);
        for queue in &queues {
            assert_eq!((queue.irq, queue.napi_tid, queue.napi_id), (Some(31), Some(900), Some(8193)), "{queue:?}");
            assert!(queue.needs_core(1) && !queue.needs_core(5));
        }
        let queues = node.map(device("ena", Some("0000:20:03.0")), 1, 1, None);
        assert!(queues[0].needs_core(5), "a thread left over after threading was turned off polls nothing");
    }

    #[test]
    fn threads_with_unknown_queues_are_still_listed() {
        let napi = |id| Napi { ifindex: 2, id, irq: None, thread: Some(id + 1000), threaded: Some(true) };
        let netdev = Netdev { queues: vec![], napis: vec![napi(9), napi(7)] };
        let node = NicTree::new().with("proc/1007/status", "Cpus_allowed_list:\t3\n");
        let queues = node.map(device("veth", None), 3, 3, Some(netdev));
        let extra: Vec<&NicQueue> = queues.iter().filter(|q| q.kind == QueueKind::Combined).collect();
        assert_eq!(extra.iter().map(|q| q.napi_tid).collect::<Vec<_>>(), [Some(1007), Some(1009)]);
        assert!(extra[0].needs_core(3));
    }

    #[test]
    fn a_thread_outside_our_pid_namespace_leaves_the_core_unknown() {
        let napi = Napi { ifindex: 2, id: 9, irq: Some(31), thread: Some(0), threaded: Some(true) };
        let node = NicTree::new().with("proc/irq/31/effective_affinity_list", "5\n");
        let netdev = Netdev { queues: vec![], napis: vec![napi] };
        let queues = node.map(device("ena", Some("0000:20:03.0")), 1, 0, Some(netdev));
        assert_eq!((queues[0].map, queues[0].cores()), (MapSource::Unmapped, None));
    }
}
