//! The kernel's tracepoints without BPF: the perf rings of all cores, merged in time order.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use coroner_evidence::perf::{Attr, Fields, HEADER, RawSample, SideRecord, kind, record_header, sample, sample_bit};
use coroner_evidence::{CoreSet, Order, Time};
use rustix::event::epoll;
use rustix::fs::{Mode, OFlags, openat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

use super::event::{Event, EventKind};
use super::format::Format;
use super::processes::Processes;
use crate::Root;
use crate::perf::{self, Attributes, Ring, flag, more_files};
use crate::root::now;
use crate::zombies::{Blind, Reason};

/// Tracepoint by kind of event.
const TRACEPOINTS: [(EventKind, &str); 3] =
    [(EventKind::Made, "cgroup_mkdir"), (EventKind::Removed, "cgroup_rmdir"), (EventKind::Freed, "cgroup_release")];

/// Size of all rings together, and bounds for one ring. Powers of two.
const RINGS_BYTES: usize = 16 << 20;
const LEAST_RING: usize = 64 << 10;
const LARGEST_RING: usize = 512 << 10;

/// After this long a record has reached its ring, whatever the core.
const IN_ORDER_AFTER: Duration = Duration::from_millis(1);

/// Records held back for ordering; beyond this they are processed at once.
const MAX_WAITING: usize = 1 << 16;

#[derive(Debug)]
pub(super) struct Tracepoints {
    rings: Vec<Ring>,
    formats: Vec<(EventKind, Format)>,
    hierarchy: u64,
    processes: Processes,
    waiting: Vec<(Time, Record)>,
    lost: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Record {
    Forked { pid: u32, parent: u32 },
    Named { pid: u32, comm: String },
    Ended { pid: u32 },
    Happened { pid: u32, kind: EventKind, id: u64, path: String },
}

impl Tracepoints {
    pub fn open(root: &Root, hierarchy: u32) -> Result<Tracepoints, Blind> {
        let formats = formats(root)?;
        let ids: Vec<u32> = formats.iter().map(|(_, f)| f.tracepoint).collect();
        let cores =
            root.read_line("/sys/devices/system/cpu/online").and_then(|list| CoreSet::parse_list(&list)).ok_or_else(
                || Blind::new(Reason::Kernel, "/sys/devices/system/cpu/online does not list the cores", "mount /sys"),
            )?;
        let cores: Vec<u32> = cores.iter().collect();
        more_files(cores.len().saturating_mul(ids.len()));
        let open = |bytes| cores.iter().map(|&core| open_ring(core, &ids, bytes)).collect::<io::Result<Vec<Ring>>>();
        // Without CAP_IPC_LOCK the kernel limits ring memory (perf_event_mlock_kb), and others may use part of it.
        let rings = open(ring_bytes(cores.len())).or_else(|_| open(LEAST_RING));
        Ok(Tracepoints {
            rings: rings.map_err(|e| refused(&e))?,
            formats,
            hierarchy: hierarchy.into(),
            processes: Processes::new(root),
            waiting: Vec::new(),
            lost: 0,
        })
    }

    /// Becomes readable when a ring fills.
    pub fn pollable(&self) -> io::Result<OwnedFd> {
        let all = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for ring in &self.rings {
            epoll::add(&all, ring.pollable(), epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        }
        Ok(all)
    }

    /// Events since the last call, in order. Unless `last`, the newest are held back: earlier ones may still arrive.
    pub fn drain(&mut self, last: bool, mut tell: impl FnMut(Event)) {
        let complete = Time(now().0.saturating_sub(IN_ORDER_AFTER.as_nanos() as u64));
        let Tracepoints { rings, formats, hierarchy, waiting, lost, .. } = self;
        let attr = layout();
        for ring in rings {
            let sound = ring.drain(|record| {
                let ((kind, misc, _), body) = (record_header(record, false), &record[HEADER..]);
                match SideRecord::parse(kind, misc, attr.own_part(body), false) {
                    Some(SideRecord::Lost(records)) => *lost = lost.saturating_add(records),
                    Some(said) => waiting.extend(understood(said, kind, body, &attr, formats, *hierarchy)),
                    None => {}
                }
            });
            if !sound {
                *lost = lost.saturating_add(1);
            }
        }
        waiting.order_by_key(|(at, _)| *at);
        let ready = match last || waiting.len() > MAX_WAITING {
            true => waiting.len(),
            false => waiting.partition_point(|(at, _)| *at <= complete),
        };
        for (at, record) in self.waiting.drain(..ready) {
            match record {
                Record::Forked { pid, parent } => self.processes.forked(pid, parent, at),
                Record::Named { pid, comm } => self.processes.named(pid, comm),
                Record::Ended { pid } => self.processes.ended(pid),
                Record::Happened { pid, kind, id, path } => {
                    let chain = if kind == EventKind::Freed { Vec::new() } else { self.processes.chain(pid) };
                    tell(Event { at, kind, id, path, chain });
                }
            }
        }
    }

    /// Records of any kind lost since the last call.
    pub fn newly_lost(&mut self) -> u64 {
        std::mem::take(&mut self.lost)
    }
}

const SAMPLE_TYPE: u64 = sample_bit::TID | sample_bit::TIME | sample_bit::RAW;

/// Layout of the records requested in [`open_ring`].
fn layout() -> Attr {
    Attr { sample_type: SAMPLE_TYPE, sample_id_all: true, ..Attr::default() }
}

/// Converts a record about a process; those about other threads are ignored.
fn understood(
    said: SideRecord<'_>,
    kind: u32,
    body: &[u8],
    attr: &Attr,
    formats: &[(EventKind, Format)],
    hierarchy: u64,
) -> Option<(Time, Record)> {
    let record = match said {
        SideRecord::Began { pid, tid, parent_pid, .. } if pid == tid && pid != 0 => {
            Record::Forked { pid, parent: parent_pid }
        }
        SideRecord::Ended { pid, tid } if pid == tid && pid != 0 => Record::Ended { pid },
        SideRecord::Named { pid, tid, name, .. } if pid == tid && pid != 0 => {
            Record::Named { pid, comm: String::from_utf8_lossy(name).into_owned() }
        }
        SideRecord::Other if kind == kind::SAMPLE => {
            let RawSample { pid, raw, .. } = sample::parse(Fields::new(body, false), attr)?;
            // It starts with the tracepoint's id.
            let tracepoint = u32::from(Fields::new(raw, false).u16()?);
            let (kind, format) = formats.iter().find(|(_, f)| f.tracepoint == tracepoint)?;
            let cgroup = format.read(raw).filter(|cgroup| cgroup.hierarchy == hierarchy)?;
            Record::Happened { pid: pid?, kind: *kind, id: cgroup.id, path: cgroup.path }
        }
        _ => return None,
    };
    Some((Time(attr.time_of(kind, body, false)?), record))
}

fn ring_bytes(cores: usize) -> usize {
    let share = RINGS_BYTES / cores.max(1);
    let power = if share.is_power_of_two() { share } else { share.next_power_of_two() / 2 };
    power.clamp(LEAST_RING, LARGEST_RING)
}

/// One core's tracepoints and process forks, exits and names in one ring, which wakes pollers when a quarter full.
fn open_ring(core: u32, tracepoints: &[u32], data_bytes: usize) -> io::Result<Ring> {
    let open = |&id: &u32, more: u64| {
        let attributes = Attributes {
            kind: perf::TYPE_TRACEPOINT,
            config: u64::from(id),
            sample_period: 1,
            sample_type: SAMPLE_TYPE,
            flags: flag::DISABLED | flag::WATERMARK | flag::SAMPLE_ID_ALL | flag::USE_CLOCKID | more,
            wakeup: (data_bytes / 4) as u32,
            clock_id: libc::CLOCK_MONOTONIC,
            ..Attributes::default()
        };
        perf::Event::open(core, &attributes)
    };
    let (first, others) = tracepoints.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let mut ring = Ring::of(open(first, flag::TASK | flag::COMM)?, data_bytes)?;
    for id in others {
        ring.add(open(id, 0)?)?;
    }
    ring.enable()?;
    Ok(ring)
}

fn formats(root: &Root) -> Result<Vec<(EventKind, Format)>, Blind> {
    let mounted = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
    let first = root.read(&format!("{}/events/cgroup/cgroup_mkdir/format", mounted[0]));
    let read = |name: &str| -> io::Result<String> {
        for place in mounted {
            if let Ok(text) = root.read(&format!("{place}/events/cgroup/{name}/format")) {
                return Ok(text);
            }
        }
        read_unmounted(&format!("events/cgroup/{name}/format"))
    };
    let mut formats = Vec::new();
    for (kind, name) in TRACEPOINTS {
        let text = read(name).map_err(|e| match &first {
            Err(mounted) if mounted.is_denied() => Blind::new(
                Reason::Forbidden,
                format!("cannot read the kernel's tracepoints ({mounted})"),
                "run as root",
            ),
            _ => Blind::new(
                Reason::Kernel,
                format!("tracepoint {name} not found in tracefs ({e})"),
                "run as root on a kernel with CONFIG_FTRACE; mount -t tracefs nodev /sys/kernel/tracing",
            ),
        })?;
        let format = Format::parse(&text).ok_or_else(|| {
            Blind::new(
                Reason::Kernel,
                format!("tracepoint {name} has an unknown format"),
                "report this as a bug, with the kernel version",
            )
        })?;
        formats.push((kind, format));
    }
    Ok(formats)
}

/// Where tracefs is not mounted: reads through a detached mount, which goes away when closed.
fn read_unmounted(path: &str) -> io::Result<String> {
    let context = fsopen("tracefs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&context)?;
    let mount = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::MOUNT_ATTR_RDONLY)?;
    let file = openat(&mount, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut text = String::new();
    io::Read::read_to_string(&mut io::Read::take(std::fs::File::from(file), 1 << 16), &mut text)?;
    Ok(text)
}

fn refused(error: &io::Error) -> Blind {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => Blind::new(
            Reason::Forbidden,
            format!("perf_event_open on the kernel's tracepoints: {error}"),
            "run as root, or with CAP_PERFMON (CAP_SYS_ADMIN before Linux 5.8) and a seccomp profile that allows perf_event_open",
        ),
        Some(libc::EMFILE) => Blind::new(
            Reason::Kernel,
            "perf_event_open needs three file descriptors per core, more than this process may open",
            "raise the open files limit: ulimit -n 8192",
        ),
        _ => Blind::new(
            Reason::Kernel,
            format!("perf_event_open on the kernel's tracepoints: {error}"),
            "use a kernel with CONFIG_PERF_EVENTS",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn rings_share_the_memory_budget() {
        for (cores, bytes) in [
            (0, LARGEST_RING),
            (2, LARGEST_RING),
            (64, 256 << 10),
            (96, 128 << 10),
            (192, 64 << 10),
            (1024, LEAST_RING),
        ] {
            assert_eq!(ring_bytes(cores), bytes, "{cores} cores");
        }
    }

    fn parse(kind: u32, body: &[u8], formats: &[(EventKind, Format)], hierarchy: u64) -> Option<(Time, Record)> {
        let attr = layout();
        let said = SideRecord::parse(kind, 0, attr.own_part(body), false)?;
        understood(said, kind, body, &attr, formats, hierarchy)
    }

    fn words(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|w| w.to_ne_bytes()).collect()
    }

    #[test]
    fn processes_are_told_from_threads() {
        let body = |tid| words(&[50, 40, tid, 40, 9, 0, 50, 50, 9, 0]);
        assert_eq!(parse(kind::FORK, &body(50), &[], 0), Some((Time(9), Record::Forked { pid: 50, parent: 40 })));
        assert_eq!(parse(kind::FORK, &body(51), &[], 0), None);
        assert_eq!(parse(kind::EXIT, &body(50), &[], 0), Some((Time(9), Record::Ended { pid: 50 })));
        let comm = [words(&[50, 50]), b"mkdir\0\0\0".to_vec(), words(&[50, 50, 9, 0])].concat();
        assert_eq!(parse(kind::COMM, &comm, &[], 0), Some((Time(9), Record::Named { pid: 50, comm: "mkdir".into() })));
    }

    proptest! {
        #[test]
        fn any_record(kind in 0u32..12, body in proptest::collection::vec(any::<u8>(), 0..120), size in 0u32..120) {
            let format = Format::parse("ID: 5\n\tfield:int root;\toffset:8;\tsize:4;\n\tfield:u64 id;\toffset:16;\tsize:8;\n\tfield:__data_loc char[] path;\toffset:24;\tsize:4;\n").unwrap();
            let formats = [(EventKind::Made, format)];
            parse(kind, &body, &formats, 0);
            let mut body = body;
            if body.len() > 22 {
                body[16..20].copy_from_slice(&size.to_ne_bytes());
                body[20..22].copy_from_slice(&5u16.to_ne_bytes());
            }
            parse(kind, &body, &formats, 0);
        }
    }
}
