//! Who creates and removes memory cgroups.
//!
//! The kernel has tracepoints for cgroups created, removed and freed. BPF programs (bpf/churn.bpf.c) record these events with the
//! acting process and its ancestors; without BPF, perf_event_open gives the same events plus forks and names of all processes. A
//! thread drains the events several times a second and [`ChurnReader::look`] sums them: a row per parent, name pattern and
//! responsible process. What was created is also followed by its id until the kernel frees it, so that those who leave dead cgroups can be
//! told from those who do not. docs/zombies.md says what it costs.

mod event;
mod fates;
mod format;
mod hierarchy;
mod kernel;
mod makers;
mod processes;
mod tally;
mod tracepoints;

#[cfg(test)]
mod host_tests;
#[cfg(test)]
mod tally_tests;

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use coroner_evidence::{Evidence, Time, Unseen, probe};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::Root;
use crate::root::now;
use crate::zombies::{Blind, Reason};
use event::EventKind;
pub(crate) use event::{long, text_until_nul, word};
use kernel::Programs;
use makers::Makers;
use tally::Tally;
use tracepoints::Tracepoints;

/// Where the events come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// BPF programs on the tracepoints: since Linux 5.4, with BTF.
    Bpf,
    /// perf_event_open on the tracepoints.
    Perf,
}

#[derive(Debug, Clone, Copy)]
pub struct ChurnOptions {
    /// Try only this; by default BPF, then perf.
    pub only: Option<Way>,
    /// Rows cover about this much time.
    pub interval: Duration,
}

impl Default for ChurnOptions {
    fn default() -> ChurnOptions {
        ChurnOptions { only: None, interval: Duration::from_secs(5) }
    }
}

/// Watches from [`ChurnReader::start`] until it is dropped.
#[derive(Debug)]
pub struct ChurnReader {
    watch: Option<Watch>,
    way: Option<Way>,
    interval: Duration,
    from: Time,
    /// To be reported at the next look.
    unseen: Vec<Unseen>,
    /// Permanent conditions, reported again after [`ChurnReader::tell_anew`].
    standing: Vec<Unseen>,
    lost: u64,
}

/// No process has this pid.
const NO_PID: u32 = 0;

const WHAT: &str = "who creates and removes memory cgroups";

impl ChurnReader {
    /// Never fails: what cannot be seen is reported at the first look.
    pub fn start(root: &Root, options: &ChurnOptions) -> ChurnReader {
        let mut reader = ChurnReader {
            watch: None,
            way: None,
            interval: options.interval,
            from: now(),
            unseen: Vec::new(),
            standing: Vec::new(),
            lost: 0,
        };
        match open(root, options.only) {
            Ok((source, way)) => {
                let in_first_namespace = pids_are_the_nodes(root);
                if !in_first_namespace {
                    reader.note_namespace(way);
                }
                // perf gives pids of our own namespace, BPF those of the node.
                let proc_is_theirs = way == Way::Perf || in_first_namespace;
                // In another namespace our pid is some other process on the node.
                let own_pid = if proc_is_theirs { std::process::id() } else { NO_PID };
                match Watch::begin(source, Makers::new(root, proc_is_theirs), own_pid) {
                    Ok(watch) => (reader.watch, reader.way) = (Some(watch), Some(way)),
                    Err(e) => {
                        reader.note(WHAT, format!("cannot start a thread: {e}"), "raise the limits of this process")
                    }
                }
            }
            Err(blind) => reader.note(WHAT, blind.why, blind.how_to_see),
        }
        reader.standing.clone_from(&reader.unseen);
        reader.from = now();
        reader
    }

    /// Reports again at the next look what cannot be seen.
    pub fn tell_anew(&mut self) {
        self.unseen.clone_from(&self.standing);
    }

    /// `None` if nothing can be seen.
    pub fn way(&self) -> Option<Way> {
        self.way
    }

    /// Reports the rows of a finished interval. Call about once a second.
    pub fn look(&mut self, at: Time, evidence: &mut Evidence) {
        if at.since(self.from) >= self.interval {
            self.tell(at, false, evidence);
        }
        self.tell_unseen(evidence);
    }

    /// Reports the rest and stops watching.
    pub fn finish(mut self, at: Time, evidence: &mut Evidence) {
        self.tell(at, true, evidence);
        if self.lost > 0 {
            self.note(
                "some created or removed cgroups",
                format!("events lost: {}; they came faster than they could be read", self.lost),
                "run again when the node is less busy",
            );
        }
        self.tell_unseen(evidence);
    }

    fn tell(&mut self, at: Time, last: bool, evidence: &mut Evidence) {
        let Some(watch) = &self.watch else { return };
        let mut state = watch.state();
        state.drain(last);
        let State { tally, makers, .. } = &mut *state;
        evidence.cgroup_churn.extend(tally.tell(self.from, at, makers));
        evidence.cgroup_fates.extend(tally.tell_fates(self.from, at, last));
        self.lost = state.lost;
        let failed = state.failed.take();
        drop(state);
        self.from = at;
        if let Some(why) = failed {
            self.note(WHAT, why, "report this as a bug, with the kernel version");
            self.standing.clone_from(&self.unseen);
        }
    }

    fn tell_unseen(&mut self, evidence: &mut Evidence) {
        for unseen in self.unseen.drain(..) {
            evidence.unseen(&unseen.probe, unseen.what, unseen.why, unseen.how_to_see);
        }
    }

    fn note(&mut self, what: &str, why: impl Into<String>, how_to_see: impl Into<String>) {
        self.unseen.push(Unseen {
            about: None,
            probe: probe::CGROUP_CHURN.to_owned(),
            what: what.to_owned(),
            why: why.into(),
            how_to_see: how_to_see.into(),
        });
    }

    fn note_namespace(&mut self, way: Way) {
        let (what, why) = match way {
            Way::Bpf => (
                "command lines and cgroups of the processes that create memory cgroups",
                "events carry the node's pids, but /proc here shows a container's",
            ),
            Way::Perf => (
                "who creates memory cgroups outside this container",
                "processes outside the container have no pid in its namespace",
            ),
        };
        self.note(what, why, "run on the host, or with its pid namespace (docker run --pid=host)");
    }
}

/// The initial pid namespace has a fixed inode number (include/linux/proc_ns.h: PROC_PID_INIT_INO).
pub(crate) fn pids_are_the_nodes(root: &Root) -> bool {
    std::fs::read_link(root.path("/proc/self/ns/pid")).is_ok_and(|link| link.as_os_str() == "pid:[4026531836]")
}

fn open(root: &Root, only: Option<Way>) -> Result<(Source, Way), Blind> {
    if !root.is_live() {
        return Err(Blind::new(
            Reason::NotLive,
            "this is a directory tree, not the running node",
            "run on the node itself",
        ));
    }
    let hierarchy = hierarchy::of_memory(root)?;
    let by_bpf = || Programs::attach(root, hierarchy).map(|p| (Source::Bpf(Box::new(p)), Way::Bpf));
    let by_perf = || Tracepoints::open(root, hierarchy).map(|t| (Source::Perf(Box::new(t)), Way::Perf));
    match only {
        Some(Way::Bpf) => by_bpf(),
        Some(Way::Perf) => by_perf(),
        None => by_bpf().or_else(|bpf| {
            by_perf().map_err(|perf| Blind {
                why: format!("{}; without BPF: {}", bpf.why, perf.why),
                how_to_see: bpf.how_to_see,
                reason: bpf.reason,
            })
        }),
    }
}

enum Source {
    Bpf(Box<Programs>),
    Perf(Box<Tracepoints>),
}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Source::Bpf(_) => "Bpf",
            Source::Perf(_) => "Perf",
        })
    }
}

#[derive(Debug)]
struct State {
    source: Source,
    tally: Tally,
    makers: Makers,
    lost: u64,
    failed: Option<String>,
}

impl State {
    /// Drains all pending events and returns their number.
    fn drain(&mut self, last: bool) -> usize {
        let State { source, tally, makers, lost, failed } = self;
        let mut events = 0;
        let at = now();
        match source {
            Source::Bpf(programs) => {
                let drained = programs.drain(|event| {
                    events += 1;
                    tally.add(event, makers, at);
                });
                if let Err(e) = drained {
                    *failed = Some(format!("cannot read the BPF programs' queue: {e}"));
                }
                // Lost events are at least counted.
                for (kind, count) in EventKind::ALL.into_iter().zip(programs.newly_lost()) {
                    *lost = lost.saturating_add(count);
                    tally.add_unnamed(kind, count);
                }
            }
            Source::Perf(tracepoints) => {
                tracepoints.drain(last, |event| {
                    events += 1;
                    tally.add(event, makers, at);
                });
                *lost = lost.saturating_add(tracepoints.newly_lost());
            }
        }
        events
    }
}

/// The thread that drains the events before the queue fills up. Drop ends it.
#[derive(Debug)]
struct Watch {
    state: Arc<Mutex<State>>,
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

/// How often events are drained on a quiet node.
const IDLE: Duration = Duration::from_millis(250);
/// How often after a drain of at least [`MANY`] events, an eighth of the queue.
const BUSY: Duration = Duration::from_millis(25);
const MANY: usize = 1024;

impl Watch {
    fn begin(source: Source, makers: Makers, own_pid: u32) -> std::io::Result<Watch> {
        let fills = match &source {
            Source::Bpf(_) => None,
            Source::Perf(tracepoints) => Some(tracepoints.pollable()?),
        };
        let tally = Tally::new(own_pid);
        let state = Arc::new(Mutex::new(State { source, tally, makers, lost: 0, failed: None }));
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let (for_thread, until) = (Arc::clone(&state), Arc::clone(&stop));
        let thread = std::thread::Builder::new()
            .name("coroner-churn".to_owned())
            .spawn(move || take_events(&for_thread, &until, fills.as_ref()))?;
        Ok(Watch { state, stop, thread: Some(thread) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn take_events(state: &Mutex<State>, stop: &OwnedFd, fills: Option<&OwnedFd>) {
    let mut wait = IDLE;
    loop {
        let mut ready = vec![PollFd::new(stop, PollFlags::IN)];
        ready.extend(fills.map(|fd| PollFd::new(fd, PollFlags::IN)));
        let timeout = Timespec { tv_sec: 0, tv_nsec: wait.subsec_nanos().into() };
        let polled = poll(&mut ready, Some(&timeout));
        if polled.is_ok() && !ready[0].revents().is_empty() {
            return;
        }
        let events = state.lock().unwrap_or_else(PoisonError::into_inner).drain(false);
        wait = if events >= MANY { BUSY } else { IDLE };
    }
}
