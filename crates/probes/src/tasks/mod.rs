//! Processes and threads.
//!
//! Three kinds of look share the work. [`TaskReader::look_all`] reads every thread, which takes a while with thousands, so it
//! runs now and then. [`TaskReader::look_hot`] runs several times a second and reads only threads that matter: those that
//! recently ran or waited for a core, network threads (ksoftirqd, NAPI), real-time threads of user programs, and new ones. If it
//! runs only once a second, [`TaskReader::look_waiting`] measures single waits in between.
//!
//! A core can change hands several times during a look at many threads, so each sample carries the time it was read, not the time
//! the look began.

mod blindness;
mod command;
mod cpusets;
mod descriptions;
mod files;
mod holders;
mod known;
mod membership;
mod ourselves;
mod ray;
mod reading;
mod stat;

use std::collections::HashSet;
use std::os::fd::OwnedFd;

use coroner_evidence::{Evidence, Observer, Order, Time, probe};
use rustix::io::Errno;

use crate::Root;
use crate::root::now;
pub(crate) use command::command_of;
use descriptions::{Describer, Description, Request};
use files::{ProcDir, TaskPath, numbers_in, reread};
use holders::Holders;
use known::{KnownTasks, Watched};
pub(crate) use membership::parse_membership;
use ourselves::Ourselves;
use reading::{Miss, NoSchedstat, Reading, ThreadFiles, ThreadPlace, affinity};
pub(crate) use stat::{parse_schedstat, parse_stat, readable_name};

/// More threads than this are not read.
const MAX_THREADS: usize = 200_000;
/// Active threads read per [`TaskReader::look_hot`]; if there are more, they take turns.
const ACTIVE_PER_LOOK: usize = 128;
/// The same for threads that are watched but quiet.
const QUIET_PER_LOOK: usize = 32;
/// Waiting threads read per [`TaskReader::look_waiting`].
const WAITING_PER_LOOK: usize = 16;
/// Threads whose files are kept open: two descriptors each, each with about a page of kernel memory.
const MAX_KEPT_OPEN: usize = 128;
/// New thread ids tried per hot look; the rest waits for the next.
const MAX_TRIED: u32 = 256;
/// With more new ids than this, listing /proc is cheaper, though it misses new threads of old processes.
const MAX_WAITING: u32 = 4096;
/// With more processes than this, /proc is listed only at every tenth hot look.
const MANY_PROCESSES: usize = 500;
/// At most a dozen hierarchies per process, each with a path of at most 4096 bytes.
const MAX_CGROUP_FILE: usize = 64 << 10;

#[derive(Debug, Default)]
pub struct TaskReader {
    root: Root,
    node: Option<(ProcDir, ThreadFiles)>,
    known: KnownTasks,
    describer: Describer,
    ourselves: Ourselves,
    /// The observers that were reported, by pid and start.
    observers_told: HashSet<(u32, u64)>,
    holders: Holders,
    /// The id of the newest thread.
    newest_tid: Option<u32>,
    /// /proc/loadavg, kept open.
    loadavg: Option<OwnedFd>,
    max_kept_open: usize,
    pids: Vec<u32>,
    tids: Vec<u32>,
    /// Hot looks since /proc was listed.
    since_listing: u32,
    notes: Notes,
}

/// What was already reported as unseen.
#[derive(Debug, Default)]
struct Notes {
    blindness: bool,
    unreadable: bool,
    truncated: bool,
    denied: bool,
    stuck: bool,
    environment_denied: bool,
    no_schedstat: Option<NoSchedstat>,
}

/// The current time during a look that began at `at`.
#[derive(Clone, Copy)]
struct Stamp {
    at: Time,
    began: Time,
}

impl Stamp {
    fn new(at: Time) -> Stamp {
        Stamp { at, began: now() }
    }

    fn now(self) -> Time {
        self.at + now().since(self.began)
    }
}

impl TaskReader {
    pub fn new(root: Root) -> TaskReader {
        let open_files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(1 << 20);
        let max_kept_open = usize::try_from(open_files / 8).unwrap_or(MAX_KEPT_OPEN).min(MAX_KEPT_OPEN);
        TaskReader { root, max_kept_open, ..TaskReader::default() }
    }

    /// Threads seen at the last full look.
    pub fn thread_count(&self) -> usize {
        self.known.thread_count()
    }

    /// Whether the process existed at the last look that could tell.
    pub fn has_process(&self, pid: u32) -> bool {
        self.known.has_process(pid)
    }

    /// Threads that [`TaskReader::look_hot`] reads.
    pub fn watched_count(&self) -> usize {
        self.known.watched.len()
    }

    /// Makes the next full look report everything like the first. Activity is not forgotten.
    pub fn tell_anew(&mut self) {
        self.known.tell_anew();
        self.holders.tell_anew();
        self.observers_told.clear();
        self.notes = Notes::default();
    }

    /// Reads every thread. The first look reports each; later ones those that are new, changed or want to run.
    pub fn look_all(&mut self, at: Time, evidence: &mut Evidence) {
        let stamp = Stamp::new(at);
        let told = evidence.threads.len();
        if !self.open(evidence) {
            return;
        }
        self.known.look = self.known.look.wrapping_add(1);
        // Before the listing: threads created during it are found at the next look.
        self.newest_tid = self.read_newest_tid();
        if let Err(errno) = self.list() {
            let why = format!("/proc: {}", std::io::Error::from(errno));
            evidence.unseen(probe::TASKS, "processes and threads", why, "mount /proc");
            return;
        }
        if self.pids.is_empty() {
            let why = format!("{} lists no process", self.root.path("/proc").display());
            evidence.unseen(
                probe::TASKS,
                "processes and threads",
                why,
                "mount /proc, and run in the node's pid namespace",
            );
        }
        self.holders.begin();
        let pids = std::mem::take(&mut self.pids);
        let mut threads = 0;
        for &pid in &pids {
            threads += self.visit_process(stamp, true, pid, MAX_THREADS.saturating_sub(threads), evidence);
            if threads >= MAX_THREADS {
                self.note_truncated(evidence);
                break;
            }
        }
        self.pids = pids;
        self.known.forget_unseen();
        self.known.last_full = at;
        self.holders.tell(at, evidence);
        self.describe(evidence);
        self.note_schedstat(evidence);
        cpusets::look(&self.root, told, evidence);
    }

    /// Reads the threads that matter and the new ones.
    pub fn look_hot(&mut self, at: Time, evidence: &mut Evidence) {
        let stamp = Stamp::new(at);
        let told = evidence.threads.len();
        if !self.open(evidence) {
            return;
        }
        self.known.look = self.known.look.wrapping_add(1);
        self.look_at_watched(stamp, evidence);
        self.look_for_new(stamp, evidence);
        self.describe(evidence);
        self.note_schedstat(evidence);
        cpusets::look(&self.root, told, evidence);
    }

    /// Reads watched threads that were recently kept off a core. Otherwise, between looks a second apart, one long wait could not
    /// be told from many short ones.
    pub fn look_waiting(&mut self, at: Time, evidence: &mut Evidence) {
        let stamp = Stamp::new(at);
        let Some((proc, files)) = &mut self.node else { return };
        let watched = std::mem::take(&mut self.known.watched);
        let mut waiting: Vec<&Watched> = watched.iter().filter(|thread| self.known.is_waiting(thread, at)).collect();
        // Network threads first; on an overloaded node everything waits.
        waiting.order_by_key(|thread| !self.known.is_standing(thread));
        for Watched { pid, key, files: kept } in waiting.into_iter().take(WAITING_PER_LOOK) {
            let reading = match kept {
                Some(kept) => files.reread(kept, *pid, key.tid),
                None => files.read(proc, ThreadPlace::Path { pid: *pid, tid: key.tid }),
            };
            // Gone threads are forgotten at the next hot look.
            if let Ok(reading) = reading
                && reading.stat.started == key.started
            {
                observe(&mut self.known, proc, false, stamp.now(), (*pid, key.tid), &reading, evidence);
            }
        }
        // `observe` may have found more to watch.
        let found = std::mem::replace(&mut self.known.watched, watched);
        self.known.watched.extend(found);
    }

    fn open(&mut self, evidence: &mut Evidence) -> bool {
        if !self.notes.blindness {
            self.notes.blindness = true;
            // Then a denied read is nothing new.
            self.notes.denied = blindness::note_blindness(&self.root, evidence);
        }
        if self.node.is_none() {
            match ProcDir::open(&self.root) {
                Ok(proc) => {
                    let files = ThreadFiles::new(&proc);
                    // Only our own namespace's loadavg has the ids that this /proc shows.
                    self.loadavg =
                        proc.own_namespace.then(|| proc.open_file(&TaskPath::named("loadavg")).ok()).flatten();
                    self.ourselves = Ourselves::of(&proc, self.root.is_live());
                    self.node = Some((proc, files));
                }
                Err(error) => {
                    evidence.unseen(probe::TASKS, "processes and threads", error.to_string(), "mount /proc");
                }
            }
        }
        self.node.is_some()
    }

    fn list(&mut self) -> Result<(), Errno> {
        self.since_listing = 0;
        match &self.node {
            Some((proc, _)) => proc.pids(&mut self.pids, MAX_THREADS),
            None => Err(Errno::NOENT),
        }
    }

    /// Reads the threads of a process, at most `limit`; returns how many.
    fn visit_process(&mut self, stamp: Stamp, full: bool, pid: u32, limit: usize, evidence: &mut Evidence) -> usize {
        let Some((proc, files)) = &mut self.node else { return 0 };
        let main = match files.read(proc, ThreadPlace::Path { pid, tid: pid }) {
            Ok(main) => main,
            Err(miss) => {
                self.notes.note_miss(miss, evidence);
                return 0;
            }
        };
        let at = stamp.now();
        let threads = main.stat.threads;
        self.known.observe_process(at, pid, &main);
        if full {
            self.known.observe_process_again(at, pid, &main);
            self.holders.note(at, pid, &main.stat);
        }
        observe(&mut self.known, proc, full, at, (pid, pid), &main, evidence);
        if threads < 2 {
            return 1;
        }
        // It may end meanwhile, which is normal.
        let Ok(directory) = proc.open_directory(&TaskPath::of_process(pid, "task")) else { return 1 };
        if numbers_in(&directory, &mut self.tids, limit).is_err() {
            return 1;
        }
        for &tid in self.tids.iter().filter(|&&tid| tid != pid) {
            match files.read(proc, ThreadPlace::Sibling { directory: &directory, pid, tid }) {
                Ok(reading) => observe(&mut self.known, proc, full, stamp.now(), (pid, tid), &reading, evidence),
                Err(miss) => self.notes.note_miss(miss, evidence),
            }
        }
        self.tids.len()
    }

    fn look_at_watched(&mut self, stamp: Stamp, evidence: &mut Evidence) {
        let Some((proc, files)) = &mut self.node else { return };
        let watched = std::mem::take(&mut self.known.watched);
        let active = watched.iter().filter(|w| self.known.is_active(w, stamp.at)).count();
        let quiet = watched.len() - active;
        let stride = |count: usize, per_look: usize| count.div_ceil(per_look).max(1);
        let (active_stride, quiet_stride) = (stride(active, ACTIVE_PER_LOOK), stride(quiet, QUIET_PER_LOOK));
        let mut kept_open = watched.iter().filter(|w| w.files.is_some()).count();
        let look = self.known.look as usize;

        let mut still = Vec::with_capacity(watched.len());
        let (mut active_seen, mut quiet_seen) = (0usize, 0usize);
        for mut thread in watched {
            let (seen, stride) = match self.known.is_active(&thread, stamp.at) {
                true => (&mut active_seen, active_stride),
                false => (&mut quiet_seen, quiet_stride),
            };
            *seen += 1;
            if !(*seen + look).is_multiple_of(stride) {
                still.push(thread);
                continue;
            }
            let (pid, tid) = (thread.pid, thread.key.tid);
            if thread.files.is_none() && kept_open < self.max_kept_open {
                thread.files = files.keep(proc, pid, tid);
                kept_open += usize::from(thread.files.is_some());
            }
            let reading = match &thread.files {
                Some(kept) => files.reread(kept, pid, tid),
                None => files.read(proc, ThreadPlace::Path { pid, tid }),
            };
            let alive = match reading {
                Ok(reading) if reading.stat.started == thread.key.started => {
                    let at = stamp.now();
                    if pid == tid {
                        self.known.observe_process(at, pid, &reading);
                    }
                    observe(&mut self.known, proc, false, at, (pid, tid), &reading, evidence);
                    true
                }
                // Its id now belongs to another thread, which is found like any new one.
                Ok(_) => false,
                Err(Miss::Gone) => false,
                Err(miss) => {
                    self.notes.note_miss(miss, evidence);
                    false
                }
            };
            if !alive {
                self.known.forget(&thread);
            }
            if alive && self.known.still_watched(&thread, stamp.at) {
                still.push(thread);
            } else {
                kept_open -= usize::from(thread.files.is_some());
            }
        }
        still.append(&mut self.known.watched);
        self.known.watched = still;
    }

    /// Reads threads created since the last look.
    ///
    /// The kernel assigns ids cyclically (kernel/pid.c, idr_alloc_cyclic) and shows the latest in /proc/loadavg. Trying the ids
    /// since then finds all new threads, also those of old processes, and is cheaper than listing /proc.
    fn look_for_new(&mut self, stamp: Stamp, evidence: &mut Evidence) {
        self.since_listing = self.since_listing.saturating_add(1);
        if let (Some(newest), Some(before)) = (self.read_newest_tid(), self.newest_tid) {
            if newest == before {
                return;
            }
            // If smaller, the ids wrapped around.
            if newest > before && newest - before <= MAX_WAITING {
                let last = newest.min(before.saturating_add(MAX_TRIED));
                self.newest_tid = Some(last);
                for tid in before + 1..=last {
                    self.try_new(stamp, tid, evidence);
                }
                return;
            }
        }
        if self.pids.len() > MANY_PROCESSES && self.since_listing < 10 {
            return;
        }
        self.newest_tid = self.read_newest_tid();
        if self.list().is_err() {
            return;
        }
        let pids = std::mem::take(&mut self.pids);
        for &pid in pids.iter() {
            if !self.known.has_process(pid) {
                self.visit_new_process(stamp, pid, evidence);
            }
        }
        self.pids = pids;
    }

    fn try_new(&mut self, stamp: Stamp, tid: u32, evidence: &mut Evidence) {
        let Some((proc, files)) = &mut self.node else { return };
        if !self.known.is_new(tid) {
            return;
        }
        // /proc/TID exists for any thread; only `status` names its process.
        let mut space = [0; 4096];
        let status = proc.read_once(&TaskPath::of_process(tid, "status"), &mut space);
        let Some(pid) = status.ok().and_then(stat::parse_tgid) else { return };
        if !self.known.has_process(pid) {
            self.visit_new_process(stamp, pid, evidence);
        } else if self.known.thread_count() < MAX_THREADS
            && let Ok(reading) = files.read(proc, ThreadPlace::Path { pid, tid })
        {
            observe(&mut self.known, proc, false, stamp.now(), (pid, tid), &reading, evidence);
        }
    }

    fn visit_new_process(&mut self, stamp: Stamp, pid: u32, evidence: &mut Evidence) {
        let room = MAX_THREADS.saturating_sub(self.known.thread_count());
        if room > 0 {
            self.visit_process(stamp, false, pid, room, evidence);
        } else {
            self.note_truncated(evidence);
        }
    }

    /// The newest thread's id, from the last field of /proc/loadavg.
    fn read_newest_tid(&self) -> Option<u32> {
        let mut space = [0; 128];
        let text = reread(self.loadavg.as_ref()?, &mut space).ok()?;
        let last = text.trim_ascii_end().rsplit(|&b| b == b' ').next()?;
        stat::parse_u64(last).and_then(|tid| u32::try_from(tid).ok()).filter(|&tid| tid > 0)
    }

    /// Reports processes that are new or changed.
    fn describe(&mut self, evidence: &mut Evidence) {
        let Some((proc, _)) = &self.node else { return };
        let mut queued = std::mem::take(&mut self.known.to_describe);
        if queued.is_empty() {
            return;
        }
        let mut requests = Vec::with_capacity(queued.len());
        queued.retain(|process| match self.known.environment(process.at, process.pid) {
            Ok(environment) => {
                // Kernel threads have no memory of their own, so no arguments.
                if !process.kernel {
                    requests.push(Request { pid: process.pid, environment });
                }
                true
            }
            Err(()) => false,
        });
        let mut descriptions = self.describer.describe(proc, &requests).into_iter();
        let mut text = Vec::new();
        for process in queued {
            let description = match process.kernel {
                true => Description::default(),
                false => descriptions.next().unwrap_or_default(),
            };
            self.notes.note_description(process.pid, &description, evidence);
            if !process.kernel && self.ourselves.includes(proc, process.pid, &process.comm) {
                let (at, pid, started) = (process.at, process.pid, process.started);
                if self.observers_told.insert((pid, started)) {
                    evidence.observers.push(Observer { at, pid, started });
                }
            }
            let path = TaskPath::of_process(process.pid, "cgroup");
            let membership = (self.known.wants_cgroup(&process)
                && proc.read_all(&path, MAX_CGROUP_FILE, &mut text).is_ok())
            .then(|| parse_membership(&String::from_utf8_lossy(&text)));
            self.known.describe(process, description, membership, evidence);
        }
    }

    fn note_truncated(&mut self, evidence: &mut Evidence) {
        if !self.notes.truncated {
            self.notes.truncated = true;
            let what = format!("threads beyond the first {MAX_THREADS}");
            evidence.unseen(probe::TASKS, what, "coroner reads no more than that", "use ps or BPF tools");
        }
    }

    fn note_schedstat(&mut self, evidence: &mut Evidence) {
        let why = self.node.as_ref().and_then(|(_, files)| files.no_schedstat());
        if why == self.notes.no_schedstat {
            return;
        }
        self.notes.no_schedstat = why;
        let (why, how) = match why {
            None => return,
            Some(NoSchedstat::Missing) => (
                "no /proc/PID/schedstat: this kernel was built without CONFIG_SCHED_INFO",
                "use a kernel with CONFIG_SCHEDSTATS or CONFIG_TASK_DELAY_ACCT, as distributions do",
            ),
            Some(NoSchedstat::AlwaysZero) => (
                "/proc/PID/schedstat is 0 for every thread: this kernel does not account waits",
                "boot with the kernel parameter delayacct",
            ),
            Some(NoSchedstat::Denied) => ("/proc/PID/schedstat: permission denied", "run as root"),
        };
        evidence.unseen(probe::RUN_QUEUE, "how long threads waited for a core", why, how);
    }
}

impl Notes {
    fn note_miss(&mut self, miss: Miss, evidence: &mut Evidence) {
        match miss {
            Miss::Gone => {}
            Miss::Denied => {
                if !self.denied {
                    self.denied = true;
                    let why = "/proc/PID/stat: permission denied";
                    evidence.unseen(probe::TASKS, "processes of other users", why, "run as root");
                }
            }
            Miss::Unreadable(why) => {
                if !self.unreadable {
                    self.unreadable = true;
                    evidence.unseen(probe::TASKS, "some threads", why, "report this as a bug");
                }
            }
        }
    }

    fn note_description(&mut self, pid: u32, description: &Description, evidence: &mut Evidence) {
        if description.stuck && !self.stuck {
            self.stuck = true;
            let why = format!("reading /proc/{pid}/cmdline hangs: something holds that process's mmap lock");
            let how = format!("find the holder: cat /proc/{pid}/task/*/stack");
            evidence.unseen(probe::TASKS, "command lines of some processes", why, how);
        }
        if description.environment_denied && !self.environment_denied {
            self.environment_denied = true;
            let why = format!("/proc/{pid}/environ: permission denied");
            evidence.unseen(probe::TASKS, "which jobs Ray processes belong to", why, "run as root");
        }
    }
}

fn observe(
    known: &mut KnownTasks,
    proc: &ProcDir,
    full: bool,
    at: Time,
    (pid, tid): (u32, u32),
    reading: &Reading<'_>,
    evidence: &mut Evidence,
) {
    known.observe(at, full, (pid, tid), reading, || affinity(proc, pid, tid), evidence);
}

#[cfg(test)]
mod tests;
