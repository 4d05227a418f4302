//! The kernel's tracepoints without BPF: perf rings of all cores, put in order.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use coroner_evidence::perf::{Attr, Fields, HEADER, RawSample, Said, kind, record_header, sample, sample_bit};
use coroner_evidence::{CoreSet, Time};
use rustix::event::epoll;
use rustix::fs::{Mode, OFlags, openat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

use super::event::{Event, Kind};
use super::format::Format;
use super::processes::Processes;
use crate::Root;
use crate::perf::{self, Attributes, Ring, flag, more_files};
use crate::root::now;
use crate::zombies::{Blind, Reason};

/// By their kinds.
const TRACEPOINTS: [(Kind, &str); 3] =
    [(Kind::Made, "cgroup_mkdir"), (Kind::Removed, "cgroup_rmdir"), (Kind::Freed, "cgroup_release")];

/// All rings together, and one at least and at most. Powers of two.
const RINGS_BYTES: usize = 16 << 20;
const LEAST_RING: usize = 64 << 10;
const LARGEST_RING: usize = 512 << 10;

/// Records that are this old have reached their ring, on whatever core.
const IN_ORDER_AFTER: Duration = Duration::from_millis(1);

/// Records that wait for their turn; more are taken out of order.
const MAX_WAITING: usize = 1 << 16;

#[derive(Debug)]
pub(super) struct Tracepoints {
    rings: Vec<Ring>,
    formats: Vec<(Kind, Format)>,
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
    Happened { pid: u32, kind: Kind, id: u64, path: String },
}

impl Tracepoints {
    pub fn open(root: &Root, hierarchy: u32) -> Result<Tracepoints, Blind> {
        let formats = formats(root)?;
        let ids: Vec<u32> = formats.iter().map(|(_, f)| f.tracepoint).collect();
        let cores = root
            .read_line("/sys/devices/system/cpu/online")
            .and_then(|list| CoreSet::parse_list(&list))
            .ok_or_else(|| {
                Blind::new(
                    Reason::Kernel,
                    "/sys/devices/system/cpu/online does not say which cores there are",
                    "mount /sys",
                )
            })?;
        let cores: Vec<u32> = cores.iter().collect();
        more_files(cores.len().saturating_mul(ids.len()));
        let open = |bytes| cores.iter().map(|&core| open_ring(core, &ids, bytes)).collect::<io::Result<Vec<Ring>>>();
        // Without CAP_IPC_LOCK the kernel grants but some memory (perf_event_mlock_kb), of which others may hold a part.
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

    /// Something to poll: ready when a ring fills.
    pub fn pollable(&self) -> io::Result<OwnedFd> {
        let all = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for ring in &self.rings {
            epoll::add(&all, ring.pollable(), epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        }
        Ok(all)
    }

    /// What happened since the last time, in order; without what is still so new that something before it may be missing,
    /// unless these are the last.
    pub fn drain(&mut self, last: bool, mut tell: impl FnMut(Event)) {
        let complete = Time(now().0.saturating_sub(IN_ORDER_AFTER.as_nanos() as u64));
        let Tracepoints { rings, formats, hierarchy, waiting, lost, .. } = self;
        let attr = layout();
        for ring in rings {
            let sound = ring.drain(|record| {
                let ((kind, misc, _), body) = (record_header(record, false), &record[HEADER..]);
                match Said::parse(kind, misc, attr.own_part(body), false) {
                    Some(Said::Lost(records)) => *lost = lost.saturating_add(records),
                    Some(said) => waiting.extend(understood(said, kind, body, &attr, formats, *hierarchy)),
                    None => {}
                }
            });
            if !sound {
                *lost = lost.saturating_add(1);
            }
        }
        waiting.sort_by_key(|(at, _)| *at);
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
                    let chain = if kind == Kind::Freed { Vec::new() } else { self.processes.chain(pid) };
                    tell(Event { at, kind, id, path, chain });
                }
            }
        }
    }

    /// How many records were lost since the last time, of whatever kind.
    pub fn newly_lost(&mut self) -> u64 {
        std::mem::take(&mut self.lost)
    }
}

const SAMPLE_TYPE: u64 = sample_bit::TID | sample_bit::TIME | sample_bit::RAW;

/// How records look that are asked for in [`open_ring`].
fn layout() -> Attr {
    Attr { sample_type: SAMPLE_TYPE, sample_id_all: true, ..Attr::default() }
}

/// What a record tells of a process; threads are born, named and end in the same way.
fn understood(
    said: Said<'_>,
    kind: u32,
    body: &[u8],
    attr: &Attr,
    formats: &[(Kind, Format)],
    hierarchy: u64,
) -> Option<(Time, Record)> {
    let record = match said {
        Said::Began { pid, tid, parent_pid, .. } if pid == tid && pid != 0 => {
            Record::Forked { pid, parent: parent_pid }
        }
        Said::Ended { pid, tid } if pid == tid && pid != 0 => Record::Ended { pid },
        Said::Named { pid, tid, name, .. } if pid == tid && pid != 0 => {
            Record::Named { pid, comm: String::from_utf8_lossy(name).into_owned() }
        }
        Said::Other if kind == kind::SAMPLE => {
            let RawSample { pid, raw, .. } = sample::parse(Fields::new(body, false), attr)?;
            // It begins with its tracepoint's number.
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

/// One core's tracepoints, and births, deaths and names of its processes, in one ring. It wakes who polls when a quarter is full.
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

fn formats(root: &Root) -> Result<Vec<(Kind, Format)>, Blind> {
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
                format!("the kernel's tracepoints may not be read ({mounted})"),
                "run as root",
            ),
            _ => Blind::new(
                Reason::Kernel,
                format!("the kernel's tracepoint {name} cannot be found in tracefs ({e})"),
                "run as root, mount -t tracefs nodev /sys/kernel/tracing; a kernel with CONFIG_FTRACE",
            ),
        })?;
        let format = Format::parse(&text).ok_or_else(|| {
            Blind::new(
                Reason::Kernel,
                format!("the format of the kernel's tracepoint {name} is not as known"),
                "report it, with the kernel's version",
            )
        })?;
        formats.push((kind, format));
    }
    Ok(formats)
}

/// Where nobody has mounted tracefs: a mount of our own that is nowhere in the file tree and goes when its file is closed.
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
            "run as root, or with CAP_PERFMON (before 5.8 CAP_SYS_ADMIN), and a seccomp profile that allows perf_event_open",
        ),
        Some(libc::EMFILE) => Blind::new(
            Reason::Kernel,
            "perf_event_open takes three files for each core, more than this process may open",
            "raise the limit: ulimit -n 8192",
        ),
        _ => Blind::new(
            Reason::Kernel,
            format!("perf_event_open on the kernel's tracepoints: {error}"),
            "a kernel with CONFIG_PERF_EVENTS",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn rings_share_their_room() {
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

    fn parse(kind: u32, body: &[u8], formats: &[(Kind, Format)], hierarchy: u64) -> Option<(Time, Record)> {
        let attr = layout();
        let said = Said::parse(kind, 0, attr.own_part(body), false)?;
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
            let formats = [(Kind::Made, format)];
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
