//! The sampled cores: event, ring and losses of each.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use coroner_evidence::perf::{HEADER, SideRecord, record_header};
use coroner_evidence::{CoreSet, Order, Time};

use super::{Attributes, Event, Ring};
use crate::Root;

/// Lists the online cores.
pub(crate) const ONLINE: &str = "/sys/devices/system/cpu/online";

/// The smallest ring: a second of usual stacks at 49 Hz.
const LEAST_RING: usize = 32 << 10;

/// An online core silent for this long was offline in between: its event is dead.
const SILENT: Duration = Duration::from_secs(10);

/// What one core has lost since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CoreLosses {
    pub core: u32,
    /// Records of any kind that did not fit into the ring.
    pub lost: u64,
    /// How long the kernel paused sampling because it took too much time.
    pub throttled_ns: u64,
}

impl CoreLosses {
    /// How many samples were skipped at this rate.
    pub fn held_back(&self, rate_hz: u32) -> u64 {
        let samples = u128::from(self.throttled_ns) * u128::from(rate_hz) / 1_000_000_000;
        u64::try_from(samples).unwrap_or(u64::MAX)
    }
}

pub(crate) fn online(root: &Root) -> Option<CoreSet> {
    root.read_line(ONLINE).as_deref().and_then(CoreSet::parse_list).filter(|online| !online.is_empty())
}

/// Some cores could not be sampled.
#[derive(Debug)]
pub(crate) struct Refused {
    pub error: io::Error,
    pub blind: usize,
    pub cores: usize,
}

/// The event and ring to open on each core.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EventRequest {
    pub attributes: Attributes,
    pub ring_bytes: usize,
    /// The event ticks whatever the core does, so silence means it is dead.
    pub always_ticks: bool,
}

/// Sorted by number. Cores come and go.
#[derive(Debug, Default)]
pub(crate) struct SampledCores {
    cores: Vec<SampledCore>,
    /// Losses of cores now offline.
    gone: BTreeMap<u32, CoreLosses>,
}

impl SampledCores {
    pub fn is_empty(&self) -> bool {
        self.cores.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = &SampledCore> {
        self.cores.iter()
    }

    pub fn clear(&mut self) {
        self.cores.clear();
    }

    /// Adds cores that came online, sampling at once, and drops those that went offline.
    pub fn follow(&mut self, online: &CoreSet, wanted: &EventRequest, now: Time) -> Result<(), Refused> {
        let dead = |core: &SampledCore| wanted.always_ticks && now.since(core.heard) > SILENT;
        let (stay, went) = std::mem::take(&mut self.cores)
            .into_iter()
            .partition::<Vec<_>, _>(|core| online.contains(core.number) && !dead(core));
        self.cores = stay;
        for core in went {
            add(&mut self.gone, core.last_losses(now));
        }
        let mut refused: Option<Refused> = None;
        for number in online.iter() {
            if self.cores.iter().any(|core| core.number == number) {
                continue;
            }
            let opened = SampledCore::open(number, &wanted.attributes, wanted.ring_bytes, now);
            match opened.and_then(|core| core.enable().map(|()| core)) {
                Ok(core) => self.cores.push(core),
                // It just went offline.
                Err(gone) if gone.raw_os_error() == Some(libc::ENODEV) => {}
                Err(error) => {
                    let blind = refused.map_or(0, |refused| refused.blind) + 1;
                    let denied = matches!(error.raw_os_error(), Some(libc::EACCES | libc::EPERM));
                    refused = Some(Refused { error, blind, cores: online.len() });
                    // The others would be denied too.
                    if denied {
                        break;
                    }
                }
            }
        }
        self.cores.order_by_key(|core| core.number);
        match refused {
            None => Ok(()),
            Some(refused) => Err(Refused { blind: refused.blind.max(online.len() - self.cores.len()), ..refused }),
        }
    }

    /// Passes on all complete records in the rings: the core, and one record with its header. Records of one core are in order.
    pub fn drain(&mut self, now: Time, take: &mut dyn FnMut(u32, &[u8])) {
        for core in &mut self.cores {
            core.drain(now, take);
        }
    }

    /// What each core has lost since the start, including cores now offline.
    pub fn losses(&self, now: Time) -> Vec<CoreLosses> {
        let mut all = self.gone.clone();
        self.cores.iter().for_each(|core| add(&mut all, core.losses(now)));
        all.into_values().collect()
    }

    /// Stops sampling. The rings can still be read.
    pub fn stop(&mut self) {
        for core in &self.cores {
            let _ = core.ring.disable();
        }
    }

    /// The losses after [`SampledCores::stop`], when the kernel's own counts can be read.
    pub fn last_losses(&self, now: Time) -> Vec<CoreLosses> {
        let mut all = self.gone.clone();
        self.cores.iter().for_each(|core| add(&mut all, core.last_losses(now)));
        all.into_values().collect()
    }

    pub fn core(&mut self, number: u32) -> io::Result<&mut SampledCore> {
        let found = self.cores.iter_mut().find(|core| core.number == number);
        found.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("core {number} is not sampled")))
    }
}

fn add(all: &mut BTreeMap<u32, CoreLosses>, more: CoreLosses) {
    let sum = all.entry(more.core).or_insert(CoreLosses { core: more.core, ..CoreLosses::default() });
    sum.lost = sum.lost.saturating_add(more.lost);
    sum.throttled_ns = sum.throttled_ns.saturating_add(more.throttled_ns);
}

#[derive(Debug)]
pub(crate) struct SampledCore {
    pub number: u32,
    ring: Ring,
    /// From lost records. Reading the event's own count would interrupt the core, and hang if it does not respond.
    lost: u64,
    throttled_since: Option<u64>,
    throttled_ns: u64,
    /// When its last record was read.
    pub heard: Time,
}

impl SampledCore {
    /// Opens the event without starting it.
    pub fn open(number: u32, attributes: &Attributes, ring_bytes: usize, now: Time) -> io::Result<SampledCore> {
        let mut bytes = ring_bytes;
        let ring = loop {
            match Ring::open(number, attributes, bytes) {
                // Without CAP_IPC_LOCK the kernel limits ring memory (perf_event_mlock_kb), and others may use part of it.
                Err(error) if error.raw_os_error() == Some(libc::EPERM) && bytes > LEAST_RING => bytes /= 2,
                ring => break ring?,
            }
        };
        Ok(SampledCore { number, ring, lost: 0, throttled_since: None, throttled_ns: 0, heard: now })
    }

    pub fn enable(&self) -> io::Result<()> {
        self.ring.enable()
    }

    pub fn count(&self) -> u64 {
        self.ring.owner().count().unwrap_or(0)
    }

    pub fn drain(&mut self, now: Time, take: &mut dyn FnMut(u32, &[u8])) {
        let SampledCore { number, ring, lost, throttled_since, throttled_ns, heard } = self;
        let sound = ring.drain(|record| {
            *heard = now;
            let (kind, misc, _) = record_header(record, false);
            match SideRecord::parse(kind, misc, &record[HEADER..], false) {
                Some(SideRecord::Lost(records)) => *lost = lost.saturating_add(records),
                Some(SideRecord::Throttled(at)) => *throttled_since = Some(at),
                Some(SideRecord::Unthrottled(at)) => {
                    let held = throttled_since.take().map_or(0, |since| at.saturating_sub(since));
                    *throttled_ns = throttled_ns.saturating_add(held);
                }
                _ => {}
            }
            take(*number, record);
        });
        if !sound {
            *lost = lost.saturating_add(1);
        }
    }

    /// Samples at another rate until [`SampledCore::relax`]. Uses a second event: a clock event given another period keeps
    /// reporting the old one in its samples (kernel/events/core.c: perf_swevent_hrtimer, `last_period`).
    pub fn escalate(&mut self, attributes: &Attributes) -> io::Result<()> {
        let faster = Event::open(self.number, attributes)?;
        let before = self.ring.take_added();
        self.ring.add(faster)?;
        // It starts before the other stops, so that no fork is missed. Duplicates do no harm.
        self.ring.events()[1].enable()?;
        self.ring.owner().disable()?;
        self.ended(before);
        Ok(())
    }

    pub fn relax(&mut self) -> io::Result<()> {
        self.ring.owner().enable()?;
        let ended = self.ring.take_added();
        self.ended(ended);
        Ok(())
    }

    fn ended(&mut self, events: Vec<Event>) {
        // They will never report the end of throttling.
        if !events.is_empty() {
            self.throttled_since = None;
        }
    }

    pub fn losses(&self, now: Time) -> CoreLosses {
        let still = self.throttled_since.map_or(0, |since| now.0.saturating_sub(since));
        CoreLosses { core: self.number, lost: self.lost, throttled_ns: self.throttled_ns.saturating_add(still) }
    }

    /// The losses after sampling stopped: the kernel's own count includes those no record reported.
    pub fn last_losses(&self, now: Time) -> CoreLosses {
        let losses = self.losses(now);
        CoreLosses { lost: losses.lost.max(self.ring.lost().unwrap_or(0)), ..losses }
    }
}
