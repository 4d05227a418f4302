//! Network devices: who drives them, which core each queue needs, and their counters.
//!
//! The map queue → interrupt or NAPI thread → core comes from netdev netlink where kernel and driver support it (≥ 6.8), else from
//! the names of interrupts and threads. Either can be forced, see [`MapMethod`].
//!
//! Which devices are covered:
//! - our network namespace: every device but `lo`. Queues are listed for hardware and for devices with NAPI threads; a plain
//!   veth or bridge has no queue that depends on a particular core.
//! - other namespaces: only hardware (a network card moved into a pod) and devices with NAPI threads. Nodes have hundreds of
//!   pods whose `eth0` is the end of a veth pair.
//!
//! Counters are read for the devices whose queues are listed. The ethtool ioctl waits for the RTNL lock, which a device reset
//! may hold for seconds: a caller that samples something else ten times a second must read network devices on another thread.

mod counters;
mod ethtool;
mod irq_names;
mod namespaces;
mod napi_threads;
mod netlink;
mod queue_map;
mod sysfs;

use crate::Evidence;
use crate::root::{Root, clock};
use coroner_evidence::{MapSource, Nic, Source, Time, probe};
use counters::{CounterBlock, driver_statistic_worth_a_first_look};
use ethtool::Ethtool;
use namespaces::{DetachedSysfs, Namespace};
use netlink::{Netdev, NetlinkError};
use queue_map::{NodeFiles, Subject};
use rustix::time::ClockId;
use std::collections::HashMap;
use std::io;
use std::time::Duration;

/// Devices described per namespace.
const MAX_DEVICES: usize = 512;
/// Devices whose counters are read.
const MAX_WATCHED: usize = 64;
/// Other namespaces that are entered.
const MAX_NAMESPACES: usize = 64;
/// Time for finding namespaces, and for looking into them.
const NAMESPACE_TIME: Duration = Duration::from_millis(250);
/// Reading counters may cost at most 1/200 of a core, and is done less often if needed: a driver may ask its firmware for
/// thousands of them (mlx5), and 100 queues have 100 files.
const COUNTERS_SHARE_OF_A_CORE: u32 = 200;

/// How the map queue → core is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MapMethod {
    /// Netlink, with names filling the gaps.
    #[default]
    Best,
    /// The only way on kernels before 6.8.
    NamesOnly,
    NetlinkOnly,
}

/// Reads the network devices of a node.
#[derive(Debug)]
pub struct NicReader {
    root: Root,
    method: MapMethod,
    /// `None` until the first look at the map.
    watched: Option<Vec<Watched>>,
    /// When counters may be read again.
    counters_due: Time,
    /// For our own namespace; `None` if the root is not this node's, so that syscalls would describe another node.
    ethtool: Option<Ethtool>,
}

/// A device whose counters are read.
#[derive(Debug)]
struct Watched {
    namespace: Option<Namespace>,
    device: String,
    /// The subject of its counters.
    subject: String,
    tx_queues: Vec<u32>,
    statistics: CounterBlock,
    tx_timeouts: CounterBlock,
    driver: CounterBlock,
    has_driver_statistics: bool,
}

impl NicReader {
    pub fn new(root: Root) -> NicReader {
        NicReader::with_method(root, MapMethod::default())
    }

    pub fn with_method(root: Root, method: MapMethod) -> NicReader {
        let ethtool = if root.is_live() { Ethtool::open().ok() } else { None };
        NicReader { root, method, watched: None, counters_due: Time(0), ethtool }
    }

    /// Describes every device and its queues, and decides whose counters are read. Call it again now and then.
    pub fn look_map(&mut self, at: Time, evidence: &mut Evidence) {
        let root = self.root.clone();
        let files = NodeFiles::new(&root, self.method != MapMethod::NetlinkOnly);
        let mut seen = Vec::new();
        self.look_home(at, &files, &mut seen, evidence);
        if root.is_live() {
            look_elsewhere(&root, self.method, &files, at, &mut seen, evidence);
        }
        note_unmapped(&seen, evidence);
        self.watch(&seen, evidence);
        evidence.nics.extend(seen.into_iter().map(|(_, nic)| nic));
    }

    fn look_home(
        &mut self,
        at: Time,
        files: &NodeFiles,
        seen: &mut Vec<(Option<Namespace>, Nic)>,
        evidence: &mut Evidence,
    ) {
        let sys = Root::at(self.root.path("/sys"));
        let netdev = if self.root.is_live() { ask_netlink(self.method, evidence) } else { None };
        match describe(&sys, netdev.as_ref(), files, self.ethtool.as_mut(), at, None, |_| true) {
            Ok(nics) => seen.extend(nics.into_iter().map(|nic| (None, nic))),
            Err(e) => evidence.unseen(
                probe::NICS,
                "network devices and the cores that serve their queues",
                e.to_string(),
                "mount sysfs on /sys",
            ),
        }
    }

    /// Sets up the counters of the devices that matter, and keeps the state of devices that were already watched.
    fn watch(&mut self, seen: &[(Option<Namespace>, Nic)], evidence: &mut Evidence) {
        let mut known: HashMap<String, Watched> =
            self.watched.take().unwrap_or_default().into_iter().map(|w| (w.subject.clone(), w)).collect();
        let worth: Vec<_> = seen.iter().filter(|(_, nic)| !nic.queues.is_empty() || nic.bus.is_some()).collect();
        if worth.len() > MAX_WATCHED {
            evidence.unseen(
                probe::NICS,
                format!("counters of {} network devices", worth.len() - MAX_WATCHED),
                format!("{} devices; to limit overhead, counters of only {MAX_WATCHED} are read", worth.len()),
                "ethtool -S DEVICE",
            );
        }
        let watch = |(namespace, nic): &(Option<Namespace>, Nic)| {
            let mut tx_queues: Vec<u32> =
                nic.queues.iter().filter(|q| q.kind == coroner_evidence::QueueKind::Tx).map(|q| q.index).collect();
            tx_queues.sort_unstable();
            let mut watched =
                known.remove(&nic.display_name()).unwrap_or_else(|| Watched::new(&nic.name, nic.display_name()));
            watched.namespace = namespace.clone();
            if watched.tx_queues != tx_queues {
                watched.tx_timeouts.rename(tx_queues.iter().map(|n| format!("tx-{n}")).collect());
                watched.tx_queues = tx_queues;
            }
            watched
        };
        self.watched = Some(worth.into_iter().take(MAX_WATCHED).map(watch).collect());
    }

    /// Reads the counters of hardware and of devices with NAPI threads: all at the first look, then those that changed.
    ///
    /// Meant to be called about once a second. If that costs too much, calls do nothing until the budget allows it again.
    pub fn look_counters(&mut self, at: Time, evidence: &mut Evidence) {
        if self.watched.is_none() {
            self.look_map(at, &mut Evidence::default());
        }
        if at < self.counters_due {
            return;
        }
        let before = clock(ClockId::ThreadCPUTime);
        let elsewhere = self.read_counters(at, evidence);
        let cost = clock(ClockId::ThreadCPUTime).since(before) + elsewhere;
        // 500 ms of slack: a cost that the budget allows once a second must not make a once-a-second caller skip a turn.
        self.counters_due = at + (cost * COUNTERS_SHARE_OF_A_CORE).saturating_sub(Duration::from_millis(500));
    }

    /// Returns the CPU time used on another thread.
    fn read_counters(&mut self, at: Time, evidence: &mut Evidence) -> Duration {
        let watched = self.watched.as_deref_mut().unwrap_or_default();
        let sys = Root::at(self.root.path("/sys"));
        for device in watched.iter_mut().filter(|w| w.namespace.is_none()) {
            device.look(&sys, self.ethtool.as_mut(), at, evidence);
        }
        let mut elsewhere: Vec<(Namespace, Vec<&mut Watched>)> = Vec::new();
        for device in watched.iter_mut() {
            let Some(namespace) = device.namespace.clone() else { continue };
            match elsewhere.iter_mut().find(|(known, _)| *known == namespace) {
                Some((_, devices)) => devices.push(device),
                None => elsewhere.push((namespace, vec![device])),
            }
        }
        if elsewhere.is_empty() {
            return Duration::ZERO;
        }
        let mut cost = Duration::ZERO;
        let namespaces: Vec<Namespace> = elsewhere.iter().map(|(namespace, _)| namespace.clone()).collect();
        let mut devices = elsewhere.into_iter();
        // A namespace that is gone has no counters to miss; one that cannot be entered was noted by `look_map`.
        namespaces::visit(namespaces.iter(), NAMESPACE_TIME, |namespace| {
            let Some((_, devices)) = devices.find(|(known, _)| known == namespace) else { return };
            let Ok(sysfs) = DetachedSysfs::mount() else { return };
            let mut ethtool = Ethtool::open().ok();
            for device in devices {
                device.look(&sysfs.root(), ethtool.as_mut(), at, evidence);
            }
            drop(sysfs);
            cost = Duration::from_nanos(clock(ClockId::ThreadCPUTime).0);
        });
        cost
    }
}

impl Watched {
    fn new(device: &str, subject: String) -> Watched {
        let block = |source, names| CounterBlock::new(source, subject.clone(), names);
        Watched {
            namespace: None,
            device: device.to_owned(),
            tx_queues: Vec::new(),
            statistics: block(Source::NicStatistics, sysfs::STATISTICS.iter().map(|s| s.to_string()).collect()),
            tx_timeouts: block(Source::TxTimeout, Vec::new()),
            driver: block(Source::Ethtool, Vec::new()),
            has_driver_statistics: true,
            subject,
        }
    }

    fn look(&mut self, sys: &Root, ethtool: Option<&mut Ethtool>, at: Time, evidence: &mut Evidence) {
        let always = |_: &str, _: u64| true;
        self.statistics.look(at, sysfs::statistics(sys, &self.device), always, evidence);
        self.tx_timeouts.look(at, sysfs::tx_timeouts(sys, &self.device, &self.tx_queues), always, evidence);
        let Some(ethtool) = ethtool.filter(|_| self.has_driver_statistics) else { return };
        // An error means that the device is gone or is being reset; the next look tries again.
        self.has_driver_statistics = self.look_at_driver(ethtool, at, evidence).unwrap_or(true);
    }

    /// `false` if the driver has no statistics.
    fn look_at_driver(&mut self, ethtool: &mut Ethtool, at: Time, evidence: &mut Evidence) -> io::Result<bool> {
        if self.driver.names().is_empty() {
            let names = ethtool.statistic_names(&self.device)?;
            if names.is_empty() {
                return Ok(false);
            }
            self.driver.rename(names);
        }
        let mut values = Vec::new();
        ethtool.statistics(&self.device, &mut values)?;
        if values.len() != self.driver.names().len() {
            // The number of queues changed. If it changes again between these two calls, the next look catches up.
            self.driver.rename(ethtool.statistic_names(&self.device)?);
            ethtool.statistics(&self.device, &mut values)?;
            if values.len() != self.driver.names().len() {
                return Ok(true);
            }
        }
        self.driver.look(at, values.into_iter().map(Some), driver_statistic_worth_a_first_look, evidence);
        Ok(true)
    }
}

fn ask_netlink(method: MapMethod, evidence: &mut Evidence) -> Option<Netdev> {
    if method == MapMethod::NamesOnly {
        return None;
    }
    match netlink::dump() {
        Ok(netdev) => Some(netdev),
        // Names can replace it; devices for which they do not are noted one by one.
        Err(NetlinkError::NoFamily) if method == MapMethod::Best => None,
        Err(e) => {
            evidence.unseen(probe::NICS, "the netlink queue map", e.to_string(), "Linux 6.8 or newer");
            None
        }
    }
}

/// The devices of one sysfs that `keep` accepts.
fn describe(
    sys: &Root,
    netdev: Option<&Netdev>,
    files: &NodeFiles,
    mut ethtool: Option<&mut Ethtool>,
    at: Time,
    netns: Option<&str>,
    keep: impl Fn(&Subject) -> bool,
) -> Result<Vec<Nic>, crate::ReadError> {
    let devices = sysfs::devices(sys, MAX_DEVICES)?;
    let mut nics = Vec::new();
    for device in &devices {
        let no_queues = sysfs::Queues { rx: Vec::new(), tx: Vec::new() };
        let mut subject = Subject { device, queues: &no_queues, netdev, siblings: &[], neighbours: &[] };
        if !keep(&subject) {
            continue;
        }
        let queues = if device.bus.is_some() || subject.has_napi_threads() {
            let queues = sysfs::queues(sys, &device.name);
            let others = devices.iter().filter(|other| other.name != device.name);
            let neighbours: Vec<&str> = others.clone().map(|other| other.name.as_str()).collect();
            let siblings: Vec<&str> =
                others.filter(|o| o.bus.is_some() && o.bus == device.bus).map(|other| other.name.as_str()).collect();
            subject = Subject { queues: &queues, siblings: &siblings, neighbours: &neighbours, ..subject };
            queue_map::map(&subject, files)
        } else {
            Vec::new()
        };
        let driver = device.driver.clone().or_else(|| {
            let info = ethtool.as_mut()?.driver_info(&device.name).ok()?;
            (!info.driver.is_empty()).then_some(info.driver)
        });
        nics.push(Nic {
            at,
            netns: netns.map(str::to_owned),
            name: device.name.clone(),
            driver,
            bus: device.bus.clone(),
            up: device.up,
            queues,
        });
    }
    Ok(nics)
}

fn look_elsewhere(
    root: &Root,
    method: MapMethod,
    files: &NodeFiles,
    at: Time,
    seen: &mut Vec<(Option<Namespace>, Nic)>,
    evidence: &mut Evidence,
) {
    const WHAT: &str = "network devices in other network namespaces";
    let search = namespaces::find(root, MAX_NAMESPACES, NAMESPACE_TIME);
    if let Some(why) = &search.incomplete {
        evidence.unseen(probe::NICS, format!("some {WHAT}"), why.clone(), "run as root, in the node's pid namespace");
    }
    if search.found.is_empty() {
        return;
    }
    let mut failure = None;
    let not_entered = namespaces::visit(search.found.iter(), NAMESPACE_TIME, |namespace| {
        let mut notes = Evidence::default();
        let netdev = ask_netlink(method, &mut notes);
        // No NAPIs: there is neither hardware that is up nor a NAPI thread.
        if netdev.as_ref().is_some_and(|netdev| netdev.napis.is_empty()) {
            return;
        }
        let sysfs = match DetachedSysfs::mount() {
            Ok(sysfs) => sysfs,
            Err(e) => {
                failure.get_or_insert(e);
                return;
            }
        };
        let mut ethtool = Ethtool::open().ok();
        let keep = |subject: &Subject| subject.device.bus.is_some() || subject.has_napi_threads();
        let label = Some(namespace.label.as_str());
        if let Ok(nics) = describe(&sysfs.root(), netdev.as_ref(), files, ethtool.as_mut(), at, label, keep) {
            seen.extend(nics.into_iter().map(|nic| (Some(namespace.clone()), nic)));
        }
    });
    if let Some(e) = not_entered.or(failure) {
        let why = format!("could not enter all {} other network namespaces: {e}", search.found.len());
        evidence.unseen(probe::NICS, WHAT, why, "run as root (CAP_SYS_ADMIN), Linux 5.2 or newer");
    }
}

fn note_unmapped(seen: &[(Option<Namespace>, Nic)], evidence: &mut Evidence) {
    for (_, nic) in seen {
        let unmapped = nic.queues.iter().filter(|q| q.cores().is_none()).count();
        // Virtual devices need no core of their own, and a device that is down has no interrupts.
        if unmapped == 0 || nic.bus.is_none() || nic.up == Some(false) {
            continue;
        }
        let driver = nic.driver.as_deref().unwrap_or("unknown");
        let why = match nic.queues.iter().find(|q| q.map != MapSource::Unmapped && q.cores().is_none()) {
            Some(queue) => match (queue.napi_tid, queue.irq) {
                (Some(tid), _) => format!("/proc/{tid}/status does not show where the NAPI thread may run"),
                (None, Some(irq)) => format!("/proc/irq/{irq} does not show where the interrupt is delivered"),
                (None, None) => "no interrupt or NAPI thread is known to serve them".to_owned(),
            },
            None => format!("neither netlink nor interrupt and thread names show it (driver {driver})"),
        };
        evidence.unseen(
            probe::NICS,
            format!("which core serves {unmapped} of {} queues of {}", nic.queues.len(), nic.display_name()),
            why,
            "run as root on the node itself, with Linux 6.8 or newer and a driver that links its queues to NAPIs",
        );
    }
}

#[cfg(test)]
mod tests;
