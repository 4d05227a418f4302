//! Remembers what was seen, so that only news is reported, and picks threads to watch closely.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use coroner_evidence::tasks::{SchedTimes, SchedulingClass};
use coroner_evidence::{CoreSet, Evidence, Process, Thread, ThreadKey, ThreadSample, Time};

use super::descriptions::Description;
use super::membership::Membership;
use super::ray::RayEnvironment;
use super::reading::{KeptFiles, Reading};
use super::stat::readable_name;

/// How long a thread is watched after it last ran or waited for a core.
const WATCHED_FOR: Duration = Duration::from_secs(3);
/// A thread is active if it ran or waited for at least 1/50 of the time between two looks.
const ACTIVE_PART: u32 = 50;
/// At most this many threads are watched between full scans.
const MAX_WATCHED: usize = 4096;
/// How long a process is left alone after a read of its memory hung.
const STUCK_FOR: Duration = Duration::from_secs(30);

#[derive(Debug, Default)]
pub struct KnownTasks {
    threads: HashMap<u32, KnownThread>,
    processes: HashMap<u32, KnownProcess>,
    /// Threads to read at each look, or in turn.
    pub watched: Vec<Watched>,
    /// Processes to describe at the end of the look.
    pub to_describe: Vec<ToDescribe>,
    /// Counts looks; shows who was missing at the latest.
    pub look: u32,
    /// When the last full look began.
    pub last_full: Time,
    /// Counts how often everything was reported anew.
    telling: u32,
}

#[derive(Debug)]
struct KnownThread {
    pid: u32,
    /// As last reported, or as it would have been had it changed.
    sample: ThreadSample,
    name_hash: u64,
    affinity_hash: Option<u64>,
    class: SchedulingClass,
    rt_priority: u8,
    nice: i8,
    /// Always watched.
    standing: bool,
    watched: bool,
    active_at: Option<Time>,
    kept_off_at: Option<Time>,
    look: u32,
    /// Value of `telling` when it was last reported.
    told_in: u32,
}

#[derive(Debug, Default)]
struct KnownProcess {
    started: u64,
    name_hash: u64,
    /// Ray named it, and renames it with each task; a new name is then no new program.
    titled: bool,
    row_hash: Option<u64>,
    environment: Option<Box<RayEnvironment>>,
    active_at: Option<Time>,
    /// A read of its memory hung; do not try again before this.
    stuck_until: Option<Time>,
    look: u32,
    /// Value of `telling` when it was last reported; `None` if never.
    told_in: Option<u32>,
}

#[derive(Debug)]
pub struct Watched {
    pub pid: u32,
    pub key: ThreadKey,
    pub files: Option<KeptFiles>,
}

#[derive(Debug)]
pub struct ToDescribe {
    pub at: Time,
    pub pid: u32,
    pub started: u64,
    pub ppid: u32,
    pub comm: String,
    pub kernel: bool,
}

impl KnownTasks {
    /// Makes each thread and process be reported again when next seen.
    pub fn tell_anew(&mut self) {
        self.telling = self.telling.wrapping_add(1);
    }

    pub fn is_new(&self, tid: u32) -> bool {
        !self.threads.contains_key(&tid)
    }

    pub fn has_process(&self, pid: u32) -> bool {
        self.processes.contains_key(&pid)
    }

    pub fn thread_count(&self) -> usize {
        self.threads.len()
    }

    /// Reports what is new about a thread. `affinity` reads the cores it may run on.
    pub fn observe(
        &mut self,
        at: Time,
        full: bool,
        (pid, tid): (u32, u32),
        reading: &Reading<'_>,
        affinity: impl FnOnce() -> Option<CoreSet>,
        evidence: &mut Evidence,
    ) {
        let stat = &reading.stat;
        let key = ThreadKey { tid, started: stat.started };
        let sample = ThreadSample {
            at,
            key,
            state: char::from(stat.state),
            core: stat.core,
            user_ticks: stat.user_ticks,
            system_ticks: stat.system_ticks,
            minor_faults: stat.minor_faults,
            major_faults: stat.major_faults,
            sched: reading.sched,
        };
        let wants_core = stat.state == b'R';
        let class = SchedulingClass::from_policy(stat.policy);
        let before = self.threads.get(&tid).filter(|before| before.sample.key == key);

        // A kworker's name says what it works on, which is worth a row only while it runs (kernel/workqueue.c, wq_worker_comm).
        let name_hash = match before {
            Some(before) if stat.kernel && stat.comm.starts_with(b"kworker/") && !wants_core => before.name_hash,
            _ => hash(&stat.comm),
        };
        let told = before.filter(|b| b.told_in == self.telling);
        let moved = told.is_none_or(|b| ThreadSample { at: b.sample.at, ..sample } != b.sample);
        if moved || wants_core {
            evidence.thread_samples.push(sample);
        }

        let kept_off = before.is_some_and(|b| was_kept_off(&b.sample, &sample));
        let kept_off_at = if kept_off { Some(at) } else { before.and_then(|b| b.kept_off_at) };
        let active = wants_core || is_active(before.map(|b| &b.sample), &sample);
        let active_at = if active { Some(at) } else { before.and_then(|b| b.active_at) };
        let standing = if stat.kernel {
            stat.comm.starts_with(b"ksoftirqd/") || stat.comm.starts_with(b"napi/")
        } else {
            class.is_real_time()
        };
        let watch = standing || is_recent(active_at, at);

        let changed = told.is_none_or(|b| {
            (b.name_hash, b.class, b.rt_priority, b.nice) != (name_hash, class, stat.rt_priority, stat.nice)
        });
        let matters = watch || class.is_real_time();
        let affinity_hash = before.and_then(|b| b.affinity_hash);
        let read_affinity =
            (matters && (full || affinity_hash.is_none() || changed)) || (changed && affinity_hash.is_some());
        let cores = if read_affinity { affinity() } else { None };
        let new_affinity_hash = cores.as_ref().map(hash).or(affinity_hash);
        if changed || new_affinity_hash != affinity_hash {
            evidence.threads.push(Thread {
                at,
                key,
                pid,
                comm: readable_name(stat.comm),
                kernel: stat.kernel,
                class,
                rt_priority: stat.rt_priority,
                nice: stat.nice,
                affinity: cores,
            });
        }

        let mut watched = before.is_some_and(|b| b.watched);
        if watch && !watched && self.watched.len() < MAX_WATCHED {
            self.watched.push(Watched { pid, key, files: None });
            watched = true;
        }
        if active && let Some(process) = self.processes.get_mut(&pid) {
            process.active_at = Some(at);
        }
        self.threads.insert(
            tid,
            KnownThread {
                pid,
                sample,
                name_hash,
                affinity_hash: new_affinity_hash,
                class,
                rt_priority: stat.rt_priority,
                nice: stat.nice,
                standing,
                watched,
                active_at,
                kept_off_at,
                look: self.look,
                told_in: self.telling,
            },
        );
    }

    /// Notes the process of a main thread and queues it for description if it is new or changed its program. Call before
    /// observing its threads.
    pub fn observe_process(&mut self, at: Time, pid: u32, reading: &Reading<'_>) {
        let stat = &reading.stat;
        let name_hash = hash(&stat.comm);
        let titled = stat.comm.starts_with(b"ray::");
        let describe = match self.processes.get_mut(&pid) {
            Some(before) if before.started == stat.started => {
                before.look = self.look;
                let renamed = before.name_hash != name_hash && !(stat.kernel && stat.comm.starts_with(b"kworker/"));
                if renamed {
                    before.name_hash = name_hash;
                    if !before.titled {
                        // A new program has a new environment.
                        before.environment = None;
                    }
                    before.titled = titled;
                }
                renamed
            }
            _ => {
                let (started, look) = (stat.started, self.look);
                let process = KnownProcess { started, name_hash, titled, look, ..KnownProcess::default() };
                self.processes.insert(pid, process);
                true
            }
        };
        if describe {
            self.queue_description(at, pid, reading);
        }
    }

    /// Describes a process again if it was active since the last full look, as its command and cgroup can change silently, or if
    /// everything is reported anew.
    pub fn observe_process_again(&mut self, at: Time, pid: u32, reading: &Reading<'_>) {
        let again = |p: &KnownProcess| {
            p.row_hash.is_some() && p.active_at.is_some_and(|t| t >= self.last_full) || p.told_in != Some(self.telling)
        };
        if self.processes.get(&pid).is_some_and(again) {
            self.queue_description(at, pid, reading);
        }
    }

    fn queue_description(&mut self, at: Time, pid: u32, reading: &Reading<'_>) {
        if self.to_describe.last().is_some_and(|last| last.pid == pid) {
            return;
        }
        let stat = &reading.stat;
        self.to_describe.push(ToDescribe {
            at,
            pid,
            started: stat.started,
            ppid: stat.ppid,
            comm: readable_name(stat.comm),
            kernel: stat.kernel,
        });
    }

    /// Kernel threads are in the root cgroup, except some that work for a program (vhost), so theirs is read only if active.
    pub fn wants_cgroup(&self, process: &ToDescribe) -> bool {
        !process.kernel || self.processes.get(&process.pid).is_some_and(|known| known.active_at.is_some())
    }

    /// The known environment of a process; `Err` if its memory should not be read now.
    pub fn environment(&self, at: Time, pid: u32) -> Result<Option<RayEnvironment>, ()> {
        match self.processes.get(&pid) {
            Some(process) if process.stuck_until.is_some_and(|until| at < until) => Err(()),
            Some(process) => Ok(process.environment.as_deref().cloned()),
            None => Ok(None),
        }
    }

    /// Reports a process if anything about it is new.
    pub fn describe(
        &mut self,
        process: ToDescribe,
        description: Description,
        membership: Option<Membership>,
        evidence: &mut Evidence,
    ) {
        let Some(known) = self.processes.get_mut(&process.pid).filter(|k| k.started == process.started) else {
            return;
        };
        known.stuck_until = description.stuck.then(|| process.at + STUCK_FOR);
        let was_told = known.told_in == Some(self.telling);
        let unreadable = !process.kernel && (membership.is_none() || description.command.is_none());
        if known.row_hash.is_some() && was_told && unreadable {
            // It is exiting or in execve: the earlier report is better.
            return;
        }
        known.environment = description.environment.map(Box::new);
        let membership = membership.unwrap_or_default();
        let ray = description.ray;
        let told = (
            &process.comm,
            &description.command,
            &membership.memory,
            &membership.cpu,
            &membership.owner,
            ray.as_ref().map(|ray| (&ray.job_id, &ray.submission_id, &ray.entry_point)),
        );
        let row_hash = Some(hash(&told));
        if known.row_hash == row_hash && was_told {
            return;
        }
        known.row_hash = row_hash;
        known.told_in = Some(self.telling);
        evidence.processes.push(Process {
            at: process.at,
            pid: process.pid,
            started: process.started,
            ppid: process.ppid,
            comm: process.comm,
            command: description.command,
            kernel: process.kernel,
            memory_cgroup: membership.memory,
            cpu_cgroup: membership.cpu,
            owner: membership.owner,
            ray,
        });
    }

    /// Whether a watched thread recently ran or waited for a core; if not, it is watched only because it is `standing`.
    pub fn is_active(&self, watched: &Watched, at: Time) -> bool {
        self.thread(watched).is_some_and(|thread| is_recent(thread.active_at, at))
    }

    /// Whether a watched thread was recently kept off a core.
    pub fn is_waiting(&self, watched: &Watched, at: Time) -> bool {
        self.thread(watched).is_some_and(|thread| is_recent(thread.kept_off_at, at))
    }

    pub fn is_standing(&self, watched: &Watched) -> bool {
        self.thread(watched).is_some_and(|thread| thread.standing)
    }

    /// Updates and returns whether a thread stays watched.
    pub fn still_watched(&mut self, watched: &Watched, at: Time) -> bool {
        let Some(thread) = self.threads.get_mut(&watched.key.tid).filter(|t| t.sample.key == watched.key) else {
            return false;
        };
        thread.watched = thread.standing || is_recent(thread.active_at, at);
        thread.watched
    }

    pub fn forget(&mut self, gone: &Watched) {
        if self.thread(gone).is_some() {
            self.threads.remove(&gone.key.tid);
        }
    }

    /// Forgets threads and processes not seen at this full look.
    pub fn forget_unseen(&mut self) {
        let look = self.look;
        self.threads.retain(|_, thread| thread.look == look);
        self.processes.retain(|_, process| process.look == look);
        if self.threads.capacity() > 4 * self.threads.len().max(1024) {
            self.threads.shrink_to_fit();
        }
        let threads = &self.threads;
        self.watched.retain(|w| threads.get(&w.key.tid).is_some_and(|t| t.sample.key == w.key && t.pid == w.pid));
    }

    fn thread(&self, watched: &Watched) -> Option<&KnownThread> {
        self.threads.get(&watched.key.tid).filter(|thread| thread.sample.key == watched.key)
    }
}

/// Whether a thread ran or waited long enough since it was last read, or since it started if it is new.
fn is_active(before: Option<&ThreadSample>, now: &ThreadSample) -> bool {
    let (elapsed, earlier) = match before {
        Some(before) => (now.at.since(before.at), before.sched),
        None => {
            let started = Time::from_millis(now.key.started.saturating_mul(10));
            (now.at.since(started), now.sched.map(|_| SchedTimes { run_ns: 0, wait_ns: 0, slices: 0 }))
        }
    };
    let long = u64::try_from((elapsed / ACTIVE_PART).as_nanos()).unwrap_or(u64::MAX).max(1);
    match (now.sched, earlier) {
        (Some(now), Some(earlier)) => {
            now.run_ns.saturating_sub(earlier.run_ns) >= long || now.wait_ns.saturating_sub(earlier.wait_ns) >= long
        }
        _ => {
            let ticks = |sample: &ThreadSample| sample.user_ticks.saturating_add(sample.system_ticks);
            let used = ticks(now).saturating_sub(before.map_or(0, ticks));
            used.saturating_mul(10_000_000) >= long
        }
    }
}

/// Whether a thread waited for a core for most of the time between two looks, or has waited all of it.
fn was_kept_off(before: &ThreadSample, now: &ThreadSample) -> bool {
    let (Some(earlier), Some(later)) = (before.sched, now.sched) else { return false };
    let elapsed = u64::try_from(now.at.since(before.at).as_nanos()).unwrap_or(u64::MAX);
    let waited = later.wait_ns.saturating_sub(earlier.wait_ns);
    // A wait is counted only when it ends.
    let waits = (before.state, now.state) == ('R', 'R') && earlier == later;
    waits || waited > elapsed / 2
}

fn is_recent(active_at: Option<Time>, at: Time) -> bool {
    active_at.is_some_and(|active_at| at.since(active_at) < WATCHED_FOR)
}

fn hash(value: &(impl Hash + ?Sized)) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}
