//! Reads single threads.

use std::os::fd::OwnedFd;

use coroner_evidence::CoreSet;
use coroner_evidence::tasks::SchedTimes;
use rustix::io::Errno;

use super::files::{ProcDir, TaskPath, read_once_at, reread};
use super::stat::{Stat, parse_schedstat, parse_stat, status_line};
use crate::ParseError;

/// One reading of a thread.
pub struct Reading<'a> {
    pub stat: Stat<'a>,
    pub sched: Option<SchedTimes>,
}

/// Why a thread could not be read.
#[derive(Debug)]
pub enum Miss {
    /// It ended, which is normal.
    Gone,
    Denied,
    Unreadable(String),
}

/// How a thread's files are opened.
pub enum ThreadPlace<'a> {
    /// By its whole path.
    Path { pid: u32, tid: u32 },
    /// In the open directory /proc/PID/task.
    Sibling { directory: &'a OwnedFd, pid: u32, tid: u32 },
}

/// A watched thread's files, kept open: opening and closing them costs twice as much as reading.
#[derive(Debug)]
pub struct KeptFiles {
    stat: OwnedFd,
    schedstat: Option<OwnedFd>,
}

/// Reads threads, one at a time.
#[derive(Debug)]
pub struct ThreadFiles {
    space: Box<Space>,
    /// Why run and wait times are not available.
    no_schedstat: Option<NoSchedstat>,
}

#[derive(Debug)]
struct Space {
    stat: [u8; 4096],
    schedstat: [u8; 128],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoSchedstat {
    Missing,
    AlwaysZero,
    Denied,
}

impl ThreadFiles {
    pub fn new(proc: &ProcDir) -> ThreadFiles {
        let mut space = Box::new(Space { stat: [0; 4096], schedstat: [0; 128] });
        // Kernels before 5.14 print `0 0 0` for every thread if neither CONFIG_SCHEDSTATS nor delay accounting is on
        // (sched_info_on). Our own thread runs, so its times cannot be zero.
        let own = proc.read_once(&TaskPath::named("thread-self/schedstat"), &mut space.schedstat);
        let no_schedstat =
            own.is_ok_and(|text| parse_schedstat(text) == Ok(NOTHING)).then_some(NoSchedstat::AlwaysZero);
        ThreadFiles { space, no_schedstat }
    }

    pub fn no_schedstat(&self) -> Option<NoSchedstat> {
        self.no_schedstat
    }

    pub fn read(&mut self, proc: &ProcDir, place: ThreadPlace<'_>) -> Result<Reading<'_>, Miss> {
        let Space { stat, schedstat } = &mut *self.space;
        let (stat, schedstat) = match place {
            ThreadPlace::Path { pid, tid } => {
                let path = TaskPath::of_thread(pid, tid, "stat");
                let stat = proc.read_once(&path, stat).map_err(|errno| miss(&path, errno))?;
                // The same file as in task/TID, by a shorter path.
                let path = match pid == tid {
                    true => TaskPath::of_process(pid, "schedstat"),
                    false => TaskPath::of_thread(pid, tid, "schedstat"),
                };
                (stat, self.no_schedstat.is_none().then(|| proc.read_once(&path, schedstat)))
            }
            ThreadPlace::Sibling { directory, pid, tid } => {
                let path = TaskPath::of_sibling(tid, "stat");
                let stat = read_once_at(directory, &path, stat)
                    .map_err(|errno| miss(&TaskPath::of_thread(pid, tid, "stat"), errno))?;
                let path = TaskPath::of_sibling(tid, "schedstat");
                (stat, self.no_schedstat.is_none().then(|| read_once_at(directory, &path, schedstat)))
            }
        };
        let (ThreadPlace::Path { pid, tid } | ThreadPlace::Sibling { pid, tid, .. }) = place;
        let stat = parse_stat(stat).map_err(|error| unreadable(pid, tid, error))?;
        let sched = match schedstat {
            None => None,
            Some(Ok(bytes)) => told_times(bytes, &stat, &mut self.no_schedstat),
            Some(Err(Errno::NOENT)) => {
                // Either the thread ended in between, or this kernel has no such file.
                if proc.exists(&TaskPath::of_thread(pid, tid, "stat")) {
                    self.no_schedstat = Some(NoSchedstat::Missing);
                }
                None
            }
            Some(Err(Errno::ACCESS | Errno::PERM)) => {
                self.no_schedstat = Some(NoSchedstat::Denied);
                None
            }
            Some(Err(_)) => None,
        };
        Ok(Reading { stat, sched })
    }

    pub fn keep(&self, proc: &ProcDir, pid: u32, tid: u32) -> Option<KeptFiles> {
        let stat = proc.open_file(&TaskPath::of_thread(pid, tid, "stat")).ok()?;
        let schedstat = match self.no_schedstat {
            None => Some(proc.open_file(&TaskPath::of_thread(pid, tid, "schedstat")).ok()?),
            Some(_) => None,
        };
        Some(KeptFiles { stat, schedstat })
    }

    pub fn reread(&mut self, files: &KeptFiles, pid: u32, tid: u32) -> Result<Reading<'_>, Miss> {
        let Space { stat, schedstat } = &mut *self.space;
        let stat = reread(&files.stat, stat).map_err(|errno| miss(&TaskPath::of_thread(pid, tid, "stat"), errno))?;
        let stat = parse_stat(stat).map_err(|error| unreadable(pid, tid, error))?;
        let sched = match &files.schedstat {
            Some(file) => reread(file, schedstat).ok().and_then(|b| told_times(b, &stat, &mut self.no_schedstat)),
            None => None,
        };
        Ok(Reading { stat, sched })
    }
}

/// The online cores a thread may run on.
pub fn affinity(proc: &ProcDir, pid: u32, tid: u32) -> Option<CoreSet> {
    if proc.own_namespace
        && let Some(id) = i32::try_from(tid).ok().and_then(rustix::process::Pid::from_raw)
        && let Ok(set) = rustix::thread::sched_getaffinity(Some(id))
    {
        let cores = (0..rustix::thread::CpuSet::MAX_CPU).filter(|&core| set.is_set(core));
        return Some(CoreSet::new(cores.filter_map(|core| u32::try_from(core).ok())));
    }
    // The kernel has more cores than the system call's set holds, or these are another node's files.
    let mut status = Vec::new();
    proc.read_all(&TaskPath::of_thread(pid, tid, "status"), 64 << 10, &mut status).ok()?;
    let list = status_line(&status, b"Cpus_allowed_list:")?;
    CoreSet::parse_list(std::str::from_utf8(list).ok()?)
}

const NOTHING: SchedTimes = SchedTimes { run_ns: 0, wait_ns: 0, slices: 0 };

fn told_times(bytes: &[u8], stat: &Stat<'_>, no_schedstat: &mut Option<NoSchedstat>) -> Option<SchedTimes> {
    let times = parse_schedstat(bytes).ok()?;
    if times == NOTHING && stat.user_ticks.saturating_add(stat.system_ticks) > 0 {
        *no_schedstat = Some(NoSchedstat::AlwaysZero);
        return None;
    }
    Some(times)
}

fn miss(path: &TaskPath, errno: Errno) -> Miss {
    match errno {
        Errno::NOENT | Errno::SRCH => Miss::Gone,
        Errno::ACCESS | Errno::PERM => Miss::Denied,
        _ => Miss::Unreadable(format!("{path}: {}", std::io::Error::from(errno))),
    }
}

fn unreadable(pid: u32, tid: u32, error: ParseError) -> Miss {
    Miss::Unreadable(format!("{}: {error}", TaskPath::of_thread(pid, tid, "stat")))
}
