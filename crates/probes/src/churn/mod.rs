//! Who makes and removes memory cgroups.
//!
//! The kernel tells each cgroup that is made, removed and freed at last by a tracepoint. BPF programs take these events with the
//! process that acts and its ancestors (bpf/churn.bpf.c); where BPF may not be used, perf_event_open gives the same events, and
//! the births and names of all processes besides. A thread of ours takes the events several times a second, [`ChurnReader::look`]
//! sums them up: a row for each parent, kind of name, and the process that is behind it. docs/zombies.md says what it costs.

mod event;
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
use event::Kind;
pub(crate) use event::text_until_nul;
use kernel::Programs;
use makers::Makers;
use tally::Tally;
use tracepoints::Tracepoints;

/// How the events come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// BPF programs at the tracepoints: from Linux 5.4, with BTF.
    Bpf,
    /// perf_event_open on the tracepoints.
    Perf,
}

#[derive(Debug, Clone, Copy)]
pub struct ChurnOptions {
    /// The only way to try; else both, BPF first.
    pub only: Option<Way>,
    /// Rows are told for stretches of about this length.
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
    /// What is to be said at the next look.
    unseen: Vec<Unseen>,
    /// What is so for good, to be said again when everything is told anew.
    standing: Vec<Unseen>,
    lost: u64,
}

/// Of no process.
const NO_PID: u32 = 0;

const WHAT: &str = "who makes and removes memory cgroups";

impl ChurnReader {
    /// Never fails: what cannot be seen is told at the first look.
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
                // perf tells pids as our own namespace has them, BPF as the node has.
                let proc_is_theirs = way == Way::Perf || in_first_namespace;
                // Elsewhere our number is that of somebody else on the node.
                let own_pid = if proc_is_theirs { std::process::id() } else { NO_PID };
                match Watch::begin(source, Makers::new(root, proc_is_theirs), own_pid) {
                    Ok(watch) => (reader.watch, reader.way) = (Some(watch), Some(way)),
                    Err(e) => {
                        reader.note(WHAT, format!("its thread does not start: {e}"), "free some memory and files")
                    }
                }
            }
            Err(blind) => reader.note(WHAT, blind.why, blind.how_to_see),
        }
        reader.standing.clone_from(&reader.unseen);
        reader.from = now();
        reader
    }

    /// What cannot be seen is said again at the next look.
    pub fn tell_anew(&mut self) {
        self.unseen.clone_from(&self.standing);
    }

    /// `None` if nothing can be seen.
    pub fn way(&self) -> Option<Way> {
        self.way
    }

    /// Tells the rows of a stretch of time that is over; to be called about once a second.
    pub fn look(&mut self, at: Time, evidence: &mut Evidence) {
        if at.since(self.from) >= self.interval {
            self.tell(at, false, evidence);
        }
        self.tell_unseen(evidence);
    }

    /// Tells what is left, and stops watching.
    pub fn finish(mut self, at: Time, evidence: &mut Evidence) {
        self.tell(at, true, evidence);
        if self.lost > 0 {
            self.note(
                "some cgroups that were made or removed",
                format!("{} events came faster than they could be read", self.lost),
                "watch again when the machine is less busy",
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
        self.lost = state.lost;
        let failed = state.failed.take();
        drop(state);
        self.from = at;
        if let Some(why) = failed {
            self.note(WHAT, why, "report it, with the kernel's version");
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
                "command lines and cgroups of those who make memory cgroups",
                "the kernel tells the pids of the node, /proc here shows those of a container",
            ),
            Way::Perf => (
                "who makes memory cgroups outside this container",
                "processes outside of it have no pid in its namespace",
            ),
        };
        self.note(what, why, "run on the host, or with its pid namespace (docker run --pid=host)");
    }
}

/// The initial pid namespace has a fixed number (include/linux/proc_ns.h: PROC_PID_INIT_INO).
pub(crate) fn pids_are_the_nodes(root: &Root) -> bool {
    std::fs::read_link(root.path("/proc/self/ns/pid")).is_ok_and(|link| link.as_os_str() == "pid:[4026531836]")
}

fn open(root: &Root, only: Option<Way>) -> Result<(Source, Way), Blind> {
    if !root.is_live() {
        return Err(Blind::new(
            Reason::NotLive,
            "a directory is examined, not the kernel of a node",
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
    /// Takes all events there are, and says how many.
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
                    *failed = Some(format!("the queue of the BPF programs: {e}"));
                }
                // They are told by number at least.
                for (kind, count) in Kind::ALL.into_iter().zip(programs.newly_lost()) {
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

/// The thread that takes the events before there are too many. Drop ends it.
#[derive(Debug)]
struct Watch {
    state: Arc<Mutex<State>>,
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

/// What a quiet node costs is this many times a second nothing at all.
const IDLE: Duration = Duration::from_millis(250);
/// While many come: an eighth of the queue within an idle turn.
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
