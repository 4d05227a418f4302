//! Network devices, and the core that each of their queues needs.

use crate::cores::CoreSet;
use crate::time::Time;
use coroner_report::named;
use serde::{Deserialize, Serialize};

/// A network device at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nic {
    pub at: Time,
    /// `None` in our own namespace; otherwise the name under /run/netns, or `net:[INODE]`.
    pub netns: Option<String>,
    pub name: String,
    /// The driver's name: `ena`, `virtio_net`, `veth`.
    pub driver: Option<String>,
    /// Its bus address: `0000:20:03.0`, `virtio2`. `None` for virtual devices.
    pub bus: Option<String>,
    pub up: Option<bool>,
    pub queues: Vec<NicQueue>,
}

named! {
    #[derive(Default)]
    pub enum QueueKind {
        #[default]
        Rx = "rx",
        Tx = "tx",
        /// One interrupt serves both directions, known only by its name; or a NAPI thread polls the device, and it is unknown for which
        /// queues.
        Combined = "combined",
    }
}

named! {
    /// How a queue's core was found.
    #[derive(Default)]
    pub enum MapSource {
        /// From the kernel's netdev netlink family (≥ 6.8).
        Netlink = "netlink",
        /// From the names of interrupts or NAPI threads.
        Name = "name",
        /// The queue exists; what serves it is unknown.
        #[default]
        Unmapped = "unmapped",
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NicQueue {
    pub kind: QueueKind,
    pub index: u32,
    pub map: MapSource,
    pub irq: Option<u32>,
    /// Where that interrupt is delivered (effective affinity, otherwise the allowed one).
    pub irq_cores: Option<CoreSet>,
    pub napi_id: Option<u32>,
    /// The thread that polls the queue, if NAPI is threaded.
    pub napi_tid: Option<u32>,
    /// Where that thread may run.
    pub napi_cores: Option<CoreSet>,
    /// Cores that received packets are steered to (rx) or that transmit through it (tx). `None`: steering is off or unknown.
    pub steering: Option<CoreSet>,
}

impl Nic {
    /// `eth0`, or `eth0 in netns blue`.
    pub fn display_name(&self) -> String {
        match &self.netns {
            None => self.name.clone(),
            Some(ns) => format!("{} in netns {ns}", self.name),
        }
    }
}

impl NicQueue {
    /// `rx-3`, `tx-0`, `queue-2`.
    pub fn label(&self) -> String {
        match self.kind {
            QueueKind::Rx => format!("rx-{}", self.index),
            QueueKind::Tx => format!("tx-{}", self.index),
            QueueKind::Combined => format!("queue-{}", self.index),
        }
    }

    /// The cores that serve this queue: those of its NAPI thread if NAPI is threaded, otherwise of its interrupt.
    pub fn cores(&self) -> Option<&CoreSet> {
        if self.napi_tid.is_some() { self.napi_cores.as_ref() } else { self.irq_cores.as_ref() }
    }

    /// Whether exactly this core serves the queue.
    pub fn needs_core(&self, core: u32) -> bool {
        self.cores().and_then(CoreSet::single) == Some(core)
    }
}
