//! All cores that are sampled: the event of each, its ring, and what it lost.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use coroner_evidence::perf::{HEADER, Said, record_header};
use coroner_evidence::{CoreSet, Time};

use super::{Attributes, Event, Ring};
use crate::Root;

/// Which cores there are.
pub(crate) const ONLINE: &str = "/sys/devices/system/cpu/online";

/// The smallest ring: a second of usual stacks at 49 Hz.
const LEAST_RING: usize = 32 << 10;

/// An online core that says nothing for so long was switched off and on in between: its event is dead.
const SILENT: Duration = Duration::from_secs(10);

/// What one core did not tell, since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CoreLosses {
    pub core: u32,
    /// Records, of whatever kind, that found no room in the ring.
    pub lost: u64,
    /// How long the kernel stopped sampling, because samples took too much of its time.
    pub throttled_ns: u64,
}

impl CoreLosses {
    /// How many samples were held back, at this rate.
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

/// What is asked for on each core.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted {
    pub attributes: Attributes,
    pub ring_bytes: usize,
    /// Whatever a core does, it has something to say: then its silence means something.
    pub always_ticks: bool,
}

/// In order of their numbers. Cores come and go.
#[derive(Debug, Default)]
pub(crate) struct SampledCores {
    cores: Vec<SampledCore>,
    /// What cores that went have lost.
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

    /// Begins with cores that came, and lets go of those that went. Each new one begins at once.
    pub fn follow(&mut self, online: &CoreSet, wanted: &Wanted, now: Time) -> Result<(), Refused> {
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
                // It went offline in this moment.
                Err(gone) if gone.raw_os_error() == Some(libc::ENODEV) => {}
                Err(error) => {
                    let blind = refused.map_or(0, |refused| refused.blind) + 1;
                    let denied = matches!(error.raw_os_error(), Some(libc::EACCES | libc::EPERM));
                    refused = Some(Refused { error, blind, cores: online.len() });
                    // It is the same on all others.
                    if denied {
                        break;
                    }
                }
            }
        }
        self.cores.sort_by_key(|core| core.number);
        match refused {
            None => Ok(()),
            Some(refused) => Err(Refused { blind: refused.blind.max(online.len() - self.cores.len()), ..refused }),
        }
    }

    /// Hands on all whole records that are in the rings: the core, and one record with its header. Records of one core are in order.
    pub fn drain(&mut self, now: Time, take: &mut dyn FnMut(u32, &[u8])) {
        for core in &mut self.cores {
            core.drain(now, take);
        }
    }

    /// What each core has lost since the start, those that went included.
    pub fn losses(&self, now: Time) -> Vec<CoreLosses> {
        let mut all = self.gone.clone();
        self.cores.iter().for_each(|core| add(&mut all, core.losses(now)));
        all.into_values().collect()
    }

    /// No more samples come. What is in the rings can still be read.
    pub fn stop(&mut self) {
        for core in &self.cores {
            let _ = core.ring.disable();
        }
    }

    /// The losses after [`SampledCores::stop`]: now the kernel can be asked for its own counts.
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
    /// By records of losses: reading the event's own count would interrupt the core, and wait where the core does not answer.
    lost: u64,
    throttled_since: Option<u64>,
    throttled_ns: u64,
    /// When it said something last.
    pub heard: Time,
}

impl SampledCore {
    /// An event that is not counting yet.
    pub fn open(number: u32, attributes: &Attributes, ring_bytes: usize, now: Time) -> io::Result<SampledCore> {
        let mut bytes = ring_bytes;
        let ring = loop {
            match Ring::open(number, attributes, bytes) {
                // Without CAP_IPC_LOCK the kernel grants but some memory (perf_event_mlock_kb), of which others may hold a part.
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
            match Said::parse(kind, misc, &record[HEADER..], false) {
                Some(Said::Lost(records)) => *lost = lost.saturating_add(records),
                Some(Said::Throttled(at)) => *throttled_since = Some(at),
                Some(Said::Unthrottled(at)) => {
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

    /// Samples at another rate until [`SampledCore::relax`]. By an event of its own: a clock's event that gets another period goes
    /// on to tell the old one in its samples (kernel/events/core.c: perf_swevent_hrtimer, `last_period`).
    pub fn escalate(&mut self, attributes: &Attributes) -> io::Result<()> {
        let faster = Event::open(self.number, attributes)?;
        let before = self.ring.take_added();
        self.ring.add(faster)?;
        // It begins before the other ends, so that no birth of a process is missed. One that both tell does no harm.
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
        // Their unthrottling will not come.
        if !events.is_empty() {
            self.throttled_since = None;
        }
    }

    pub fn losses(&self, now: Time) -> CoreLosses {
        let still = self.throttled_since.map_or(0, |since| now.0.saturating_sub(since));
        CoreLosses { core: self.number, lost: self.lost, throttled_ns: self.throttled_ns.saturating_add(still) }
    }

    /// What was lost until now, when nothing comes any more: the kernel's own count has also what no record told.
    pub fn last_losses(&self, now: Time) -> CoreLosses {
        let losses = self.losses(now);
        CoreLosses { lost: losses.lost.max(self.ring.lost().unwrap_or(0)), ..losses }
    }
}
