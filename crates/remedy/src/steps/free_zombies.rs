//! Free dead memory cgroups that are kept by page cache: make the kernel reclaim below a live ancestor, a little at a time.
//!
//! Reclaim visits every cgroup, dead ones included, so with tens of thousands of them it burns a core. It therefore runs on a thread
//! of its own at nice 19, off the cores that others need, with a time limit. It stops if it hurts others; a signal ends it within one
//! of the kernel's rounds.

use super::harm::{BLIND, Baseline, Counted, LOOK};
use super::threads::parse_cores;
use super::{Done, Hands, StepError, Undone};
use coroner_diagnosis::words::{bytes, count, list, plural};
use coroner_diagnosis::zombies::{OtherwiseKind, report};
use coroner_evidence::{Evidence, ZombieScan};
use coroner_probes::zombies::{LookOptions, look};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// v2: bytes per request. The kernel may reclaim more, in rounds of a few hundred KiB per cgroup.
const BITE: u64 = 8 << 20;
/// Give up after this many requests that freed no cgroup.
const BITES_IN_VAIN: u32 = 8;
/// The kernel's answer if memory.reclaim does not know `swappiness=` yet.
const NOT_UNDERSTOOD: i32 = libc::EINVAL;
/// The kernel frees unreferenced cgroups in the background.
const SETTLE: Duration = Duration::from_secs(3);
/// Stops the thread. Nobody else here uses this signal.
const WAKE: i32 = libc::SIGUSR2;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FreeZombies {
    /// The live ancestor, as in /proc/PID/cgroup.
    pub cgroup: String,
    pub directory: PathBuf,
    /// 1: memory.force_empty, 2: memory.reclaim.
    pub version: u8,
    pub budget_ms: u64,
    /// v2: ask for at most this in total.
    pub most_bytes: u64,
    /// Where the thread may run; `None`: anywhere.
    pub cores: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadBefore {
    /// Dead cgroups below that cgroup; `None` if they cannot be listed one by one.
    pub dead: Option<u64>,
    /// Dead cgroups on the whole node.
    pub of_all: Option<u64>,
}

fn scan() -> Option<ZombieScan> {
    look(&LookOptions::default(), &mut Evidence::default())
}

/// How many died below a cgroup.
pub fn below(scan: &ZombieScan, cgroup: &str) -> Option<u64> {
    if scan.zombies.is_empty() && scan.dead != Some(0) {
        return None;
    }
    let prefix = format!("{}/", cgroup.trim_end_matches('/'));
    Some(scan.zombies.iter().filter(|zombie| zombie.path.starts_with(&prefix)).count() as u64)
}

impl FreeZombies {
    fn file(&self) -> PathBuf {
        self.directory.join(match self.version {
            1 => "memory.force_empty",
            _ => "memory.reclaim",
        })
    }

    pub fn prepare(&self, _hands: &mut Hands<'_>) -> Result<DeadBefore, StepError> {
        if !self.file().exists() {
            return Err(StepError::refused(format!("{} does not exist on this kernel", self.file().display())));
        }
        let scan = scan();
        Ok(DeadBefore {
            dead: scan.as_ref().and_then(|scan| below(scan, &self.cgroup)),
            of_all: scan.and_then(|scan| scan.dead),
        })
    }

    pub fn act(&self, before: &DeadBefore, hands: &mut Hands<'_>) -> Result<Done, StepError> {
        let file = self.file();
        let open = OpenOptions::new().write(true).open(&file).map_err(|e| StepError::io(&file, e))?;
        let baseline = Baseline::measure(hands);
        let began = Instant::now();
        let ended = self.reclaim(open, &baseline, hands);
        let took = began.elapsed();
        let after = settled(before, &self.cgroup);
        let dead = after.as_ref().and_then(|scan| below(scan, &self.cgroup));
        let of_all = after.as_ref().and_then(|scan| scan.dead);
        let freed = match (before.dead, dead, before.of_all, of_all) {
            (Some(before), Some(now), ..) | (_, _, Some(before), Some(now)) => Some(before.saturating_sub(now)),
            _ => None,
        };
        let why = after.as_ref().map(|scan| why_they_stay(scan, &self.cgroup)).unwrap_or_default();
        let left = dead.or(of_all);
        let words = match (freed, left) {
            (Some(freed), Some(left)) => {
                let stay = match left {
                    0 => "none left".to_owned(),
                    left => format!("{} left {}", count(left), why),
                };
                format!("{} freed in {:.1} s; {}", dead_words(freed), took.as_secs_f64(), stay.trim_end())
            }
            _ => format!("reclaimed for {:.1} s; how many dead cgroups are left is unknown", took.as_secs_f64()),
        };
        let mut words = format!("{words}. Stopped because {}", ended.words);
        if let Some(blind) = baseline.blind() {
            words.push_str(&format!(". {blind}"));
        }
        if ended.may_swap {
            words.push_str(
                ". This kernel cannot limit reclaim to page cache: some anonymous memory may have been swapped out",
            );
        }
        let mut done = Done::new(
            words,
            json!({
                "dead_before": before.dead.or(before.of_all), "dead_after": left, "freed": freed, "seconds": took.as_secs_f64(),
                "asked_bytes": ended.asked, "ended": ended.words, "may_have_swapped": ended.may_swap,
            }),
        );
        match ended.error {
            Some(error) if freed.unwrap_or(0) == 0 => Err(StepError::failed(format!("{}: {error}", file.display()))),
            _ => {
                if freed == Some(0) {
                    done.in_vain = Some(format!(
                        "no dead cgroup was freed{}",
                        if why.is_empty() { String::new() } else { format!(": {why}") }
                    ));
                }
                Ok(done)
            }
        }
    }

    pub fn undo(&self, _before: &DeadBefore, _hands: &mut Hands<'_>, _force: bool) -> Result<Undone, StepError> {
        Ok(Undone::CannotBe("nothing to undo: dropped page cache is read again when needed".to_owned()))
    }

    /// Reclaims on a thread of its own and watches it.
    fn reclaim(&self, file: File, baseline: &Baseline, hands: &Hands<'_>) -> Ended {
        let shared = Shared::default();
        let budget = Duration::from_millis(self.budget_ms);
        let budget = if baseline.blind().is_some() { budget.min(BLIND) } else { budget };
        let _handler = WakeHandler::install();
        std::thread::scope(|scope| {
            let work = || {
                // SAFETY: gettid has no arguments and cannot fail.
                shared.tid.store(unsafe { libc::gettid() }, Ordering::SeqCst);
                // Also if it panics: the watcher waits for this.
                let _done = SaysDone(&shared.done);
                self.stand_back();
                self.work(file, &shared)
            };
            let worker = match std::thread::Builder::new().name("reclaim".to_owned()).spawn_scoped(scope, work) {
                Ok(worker) => worker,
                Err(e) => return Ended::failed("cannot start a thread", e),
            };
            let reason = watch(&shared, budget, baseline, hands);
            if let Some(reason) = reason {
                shared.stop.store(true, Ordering::SeqCst);
                while !shared.done.load(Ordering::SeqCst) {
                    // SAFETY: the thread lives until it is joined below; the handler does nothing, so the signal only ends its write.
                    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), shared.tid.load(Ordering::SeqCst), WAKE) };
                    std::thread::sleep(Duration::from_millis(5));
                }
                let asked = shared.asked.load(Ordering::SeqCst);
                let may_swap = worker.join().is_ok_and(|ended| ended.may_swap);
                return Ended { words: reason, error: None, asked, may_swap };
            }
            worker
                .join()
                .unwrap_or_else(|_| Ended::failed("the thread panicked", io::Error::other("the thread panicked")))
        })
    }

    /// Yields to everybody else.
    fn stand_back(&self) {
        // SAFETY: plain numbers; 0 is the calling thread.
        unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 19) };
        if let Some(cores) = self.cores.as_deref().and_then(|cores| parse_cores(cores).ok()) {
            let mut set = rustix::thread::CpuSet::new();
            cores
                .iter()
                .filter(|core| (*core as usize) < rustix::thread::CpuSet::MAX_CPU)
                .for_each(|core| set.set(core as usize));
            let _ = rustix::thread::sched_setaffinity(None, &set);
        }
    }

    fn work(&self, mut file: File, shared: &Shared) -> Ended {
        if self.version == 1 {
            let may_swap = has_swap();
            // Not write_all: it would retry after the signal.
            return match file.write(b"1\n") {
                Ok(_) => Ended::because("the kernel found nothing more to reclaim", 0, may_swap),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => Ended::because("it was interrupted", 0, may_swap),
                Err(e) => Ended::failed(e.to_string(), e),
            };
        }
        let (mut asked, mut in_vain) = (0u64, 0);
        // Only page cache: do not swap out memory of running jobs.
        let mut spares_memory = true;
        let mut dying = dying(&self.directory);
        loop {
            if shared.stop.load(Ordering::SeqCst) {
                return Ended::because("it was interrupted", asked, may_swap(spares_memory));
            }
            if asked >= self.most_bytes {
                let words = format!("all of the planned {} had been asked for", bytes(asked));
                return Ended::because(words, asked, may_swap(spares_memory));
            }
            let bite = BITE.min(self.most_bytes - asked);
            let line = if spares_memory { format!("{bite} swappiness=0") } else { bite.to_string() };
            match file.write(line.as_bytes()) {
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) if spares_memory && e.raw_os_error() == Some(NOT_UNDERSTOOD) => {
                    spares_memory = false;
                    continue;
                }
                // The kernel reclaimed less than asked for.
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => in_vain += 2,
                Err(e) => return Ended { asked, ..Ended::failed(e.to_string(), e) },
            }
            asked += bite;
            shared.asked.store(asked, Ordering::SeqCst);
            let now = self::dying(&self.directory);
            if now == Some(0) {
                return Ended::because("no dead cgroup is left below it", asked, may_swap(spares_memory));
            }
            in_vain = if now < dying { 0 } else { in_vain + 1 };
            dying = now;
            if in_vain >= BITES_IN_VAIN {
                return Ended::because("the last requests freed no cgroup", asked, may_swap(spares_memory));
            }
        }
    }
}

fn dying(directory: &Path) -> Option<u64> {
    let stat = fs::read_to_string(directory.join("cgroup.stat")).ok()?;
    stat.lines().find_map(|line| line.strip_prefix("nr_dying_descendants "))?.trim().parse().ok()
}

#[derive(Default)]
struct Shared {
    tid: AtomicI32,
    done: AtomicBool,
    stop: AtomicBool,
    asked: AtomicU64,
}

/// Sets the flag when dropped.
struct SaysDone<'d>(&'d AtomicBool);

impl Drop for SaysDone<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

struct Ended {
    words: String,
    error: Option<io::Error>,
    asked: u64,
    /// Memory of running jobs may have been swapped out.
    may_swap: bool,
}

impl Ended {
    fn because(words: impl Into<String>, asked: u64, may_swap: bool) -> Ended {
        Ended { words: words.into(), error: None, asked, may_swap }
    }

    fn failed(words: impl Into<String>, error: io::Error) -> Ended {
        Ended { words: words.into(), error: Some(error), asked: 0, may_swap: false }
    }
}

fn has_swap() -> bool {
    fs::read_to_string("/proc/swaps").map_or(true, |text| text.lines().count() > 1)
}

fn may_swap(spares_memory: bool) -> bool {
    !spares_memory && has_swap()
}

/// Why it must stop now; `None` if it ended by itself.
fn watch(shared: &Shared, budget: Duration, baseline: &Baseline, hands: &Hands<'_>) -> Option<String> {
    let began = Instant::now();
    let mut harm = Counted::now();
    while !shared.done.load(Ordering::SeqCst) {
        std::thread::sleep(LOOK);
        if hands.is_stopped() {
            return Some("it was interrupted".to_owned());
        }
        if began.elapsed() >= budget {
            return Some(format!("the time limit of {:.0} s was reached", budget.as_secs_f64()));
        }
        if harm.at.elapsed() >= Duration::from_secs(1) {
            let now = Counted::now();
            if let Some(words) = baseline.exceeded_by(&now.since(&harm)) {
                return Some(words);
            }
            harm = now;
        }
        hands.say(&format!(
            "reclaiming: {:.0} of at most {:.0} s",
            began.elapsed().as_secs_f64(),
            budget.as_secs_f64()
        ));
    }
    None
}

/// A handler that does nothing: the signal only interrupts a system call.
struct WakeHandler(libc::sigaction);

extern "C" fn nothing(_: libc::c_int) {}

impl WakeHandler {
    fn install() -> WakeHandler {
        // SAFETY: both structures are plain data that live on our stack; the handler does nothing, so it is safe at any moment.
        unsafe {
            let mut new: libc::sigaction = std::mem::zeroed();
            new.sa_sigaction = nothing as extern "C" fn(libc::c_int) as libc::sighandler_t;
            let mut old: libc::sigaction = std::mem::zeroed();
            libc::sigaction(WAKE, &raw const new, &raw mut old);
            WakeHandler(old)
        }
    }
}

impl Drop for WakeHandler {
    fn drop(&mut self) {
        // SAFETY: `self.0` is what sigaction gave us.
        unsafe { libc::sigaction(WAKE, &raw const self.0, std::ptr::null_mut()) };
    }
}

/// Scans until the number no longer changes: the kernel frees them in the background.
fn settled(before: &DeadBefore, cgroup: &str) -> Option<ZombieScan> {
    let until = Instant::now() + SETTLE;
    let mut last = scan()?;
    loop {
        let left = below(&last, cgroup).or(last.dead);
        if left == Some(0) || Instant::now() >= until {
            return Some(last);
        }
        std::thread::sleep(Duration::from_millis(300));
        let next = scan()?;
        let same = below(&next, cgroup).or(next.dead) == left;
        let none_yet = left == before.dead.or(before.of_all);
        last = next;
        if same && !none_yet {
            return Some(last);
        }
    }
}

fn dead_words(n: u64) -> String {
    plural(n, "dead cgroup", "dead cgroups")
}

/// `(/var/lib/ecs/f.* keeps 31 (tmpfs, 31 files), …)`
pub fn why_they_stay(scan: &ZombieScan, cgroup: &str) -> String {
    let evidence = Evidence { zombie_scans: vec![scan.clone()], ..Evidence::default() };
    let Some(report) = report(&evidence) else { return String::new() };
    let prefix = format!("{}/", cgroup.trim_end_matches('/'));
    let mut why: Vec<String> = Vec::new();
    for group in
        report.groups.iter().filter(|group| format!("{}/", group.parent.trim_end_matches('/')).starts_with(&prefix))
    {
        for file in &group.pinned_in {
            let many = if file.files > 1 { format!(", {} files", count(file.files)) } else { String::new() };
            why.push(format!("{} keeps {} ({}{many})", file.pattern, count(file.zombies), file.filesystem));
        }
        for other in group.pinned_otherwise.iter().filter(|other| other.kind != OtherwiseKind::Children) {
            let many = other.zombies.map(|n| format!(" keeps {}", count(n))).unwrap_or_default();
            why.push(format!("{}{many}", other.kind.as_str()));
        }
    }
    if why.is_empty() { String::new() } else { format!("({})", list(&why, 4)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_waits_for_a_worker_that_panicked() {
        let done = AtomicBool::new(false);
        let broken = std::panic::catch_unwind(|| {
            let _done = SaysDone(&done);
            panic!("as a worker would");
        });
        assert!(broken.is_err() && done.load(Ordering::SeqCst));
    }

    #[test]
    fn a_signal_ends_a_blocked_write() {
        // A pipe that nobody reads blocks as memory.force_empty does.
        let (reader, writer) = io::pipe().unwrap();
        let full = vec![0u8; 1 << 20];
        let _handler = WakeHandler::install();
        let (tid, done) = (AtomicI32::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let blocked = scope.spawn(|| {
                // SAFETY: gettid has no arguments and cannot fail.
                tid.store(unsafe { libc::gettid() }, Ordering::SeqCst);
                let mut writer = &writer;
                let mut result = writer.write(&full);
                while result.is_ok() {
                    result = writer.write(&full);
                }
                done.store(true, Ordering::SeqCst);
                result.unwrap_err().kind()
            });
            while !done.load(Ordering::SeqCst) {
                if tid.load(Ordering::SeqCst) != 0 {
                    // SAFETY: as in `reclaim`.
                    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), tid.load(Ordering::SeqCst), WAKE) };
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            assert_eq!(blocked.join().unwrap(), io::ErrorKind::Interrupted);
        });
        drop(reader);
    }
}
