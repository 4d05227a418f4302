//! Free dead memory cgroups that page cache keeps: make the kernel reclaim below a live ancestor, in bounded bites.
//!
//! Reclaim goes from cgroup to cgroup, the dead ones too, so with tens of thousands of them it burns a core by itself. It therefore runs
//! on a thread of its own, with the least precedence, off the cores that others need, within a budget of time; it is stopped when it
//! hurts somebody, and a signal ends it within one round of the kernel's.

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

/// v2: what is asked for at once. The kernel may give more, in rounds of a few hundred KiB for each cgroup.
const BITE: u64 = 8 << 20;
/// After so many bites that freed no cgroup it is given up.
const BITES_IN_VAIN: u32 = 8;
/// How often we look whether it hurts.
const LOOK: Duration = Duration::from_millis(100);
/// Pages that had to be read again, a second: 8,000 are 32 MB/s of reads that nobody needed before.
const REFAULTS: f64 = 8_000.0;
/// Share of time that somebody waited for the disk, more than in the second before we began.
const IO_PRESSURE: f64 = 0.2;
/// The kernel frees what nobody holds any more in the background.
const SETTLE: Duration = Duration::from_secs(3);
/// The thread is told to stop by this signal: one that nobody else here uses.
const WAKE: i32 = libc::SIGUSR2;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FreeZombies {
    /// The live ancestor, as /proc/PID/cgroup would name it.
    pub cgroup: String,
    /// Where that is mounted.
    pub directory: PathBuf,
    /// 1: memory.force_empty, 2: memory.reclaim.
    pub version: u8,
    pub budget_ms: u64,
    /// v2: no more than this is asked for.
    pub most_bytes: u64,
    /// Where the work may run; `None`: anywhere.
    pub cores: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Before {
    /// Dead below that cgroup; `None` if they cannot be told one by one.
    pub dead: Option<u64>,
    /// Dead ones of the whole node.
    pub of_all: Option<u64>,
}

/// The dead, told anew.
fn scan() -> Option<ZombieScan> {
    look(&LookOptions::default(), &mut Evidence::default())
}

/// Those of them that died below a cgroup.
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

    pub fn prepare(&self, _hands: &mut Hands<'_>) -> Result<Before, StepError> {
        if !self.file().exists() {
            return Err(StepError::refused(format!(
                "{} does not exist: this kernel has no such file",
                self.file().display()
            )));
        }
        let scan = scan();
        Ok(Before {
            dead: scan.as_ref().and_then(|scan| below(scan, &self.cgroup)),
            of_all: scan.and_then(|scan| scan.dead),
        })
    }

    pub fn act(&self, before: &Before, hands: &mut Hands<'_>) -> Result<Done, StepError> {
        let file = self.file();
        let open = OpenOptions::new().write(true).open(&file).map_err(|e| StepError::io(&file, e))?;
        let began = Instant::now();
        let ended = self.reclaim(open, hands);
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
                    0 => "none is left".to_owned(),
                    left => format!("{} {}", stay_words(left), why),
                };
                format!("{} freed in {:.1} s; {}", dead_words(freed), took.as_secs_f64(), stay.trim_end())
            }
            _ => format!("reclaimed for {:.1} s; how many dead cgroups are left cannot be told", took.as_secs_f64()),
        };
        let words = format!("{words}. It ended because {}", ended.words);
        let mut done = Done::new(
            words,
            json!({
                "dead_before": before.dead.or(before.of_all), "dead_after": left, "freed": freed, "seconds": took.as_secs_f64(),
                "asked_bytes": ended.asked, "ended": ended.words,
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

    pub fn undo(&self, _before: &Before, _hands: &mut Hands<'_>, _force: bool) -> Result<Undone, StepError> {
        Ok(Undone::CannotBe("what was freed stays free: page cache is read again when somebody needs it".to_owned()))
    }

    /// Lets a thread of its own do it, and stands by.
    fn reclaim(&self, file: File, hands: &Hands<'_>) -> Ended {
        let shared = Shared::default();
        let budget = Duration::from_millis(self.budget_ms);
        let _handler = WakeHandler::install();
        std::thread::scope(|scope| {
            let work = || {
                // SAFETY: gettid has no arguments and cannot fail.
                shared.tid.store(unsafe { libc::gettid() }, Ordering::SeqCst);
                self.stand_back();
                let ended = self.work(file, &shared);
                shared.done.store(true, Ordering::SeqCst);
                ended
            };
            let worker = match std::thread::Builder::new().name("reclaim".to_owned()).spawn_scoped(scope, work) {
                Ok(worker) => worker,
                Err(e) => return Ended { words: "no thread could be started".into(), error: Some(e), asked: 0 },
            };
            let reason = watch(&shared, budget, hands);
            if let Some(reason) = reason {
                shared.stop.store(true, Ordering::SeqCst);
                while !shared.done.load(Ordering::SeqCst) {
                    // SAFETY: the thread lives until it is joined below; a signal with a handler that does nothing only ends its write.
                    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), shared.tid.load(Ordering::SeqCst), WAKE) };
                    std::thread::sleep(Duration::from_millis(5));
                }
                let asked = shared.asked.load(Ordering::SeqCst);
                let _ = worker.join();
                return Ended { words: reason, error: None, asked };
            }
            worker.join().unwrap_or_else(|_| Ended {
                words: "the thread broke off".into(),
                error: Some(io::Error::other("the thread broke off")),
                asked: 0,
            })
        })
    }

    /// Everybody else comes first.
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
            // Not write_all: that would go on after the signal.
            return match file.write(b"1\n") {
                Ok(_) => Ended { words: "the kernel found nothing more to reclaim".into(), error: None, asked: 0 },
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {
                    Ended { words: "it was stopped".into(), error: None, asked: 0 }
                }
                Err(e) => Ended { words: e.to_string(), error: Some(e), asked: 0 },
            };
        }
        let (mut asked, mut in_vain) = (0u64, 0);
        let mut dying = dying(&self.directory);
        loop {
            if shared.stop.load(Ordering::SeqCst) {
                return Ended { words: "it was stopped".into(), error: None, asked };
            }
            if asked >= self.most_bytes {
                return Ended {
                    words: format!("{} were asked for, and no more was planned", bytes(asked)),
                    error: None,
                    asked,
                };
            }
            let bite = BITE.min(self.most_bytes - asked);
            match file.write(bite.to_string().as_bytes()) {
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                // What could be had was less than what was asked for.
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => in_vain += 2,
                Err(e) => return Ended { words: e.to_string(), error: Some(e), asked },
            }
            asked += bite;
            shared.asked.store(asked, Ordering::SeqCst);
            let now = self::dying(&self.directory);
            if now == Some(0) {
                return Ended { words: "no dead cgroup is left below it".into(), error: None, asked };
            }
            in_vain = if now < dying { 0 } else { in_vain + 1 };
            dying = now;
            if in_vain >= BITES_IN_VAIN {
                return Ended { words: "the last bites freed no cgroup".into(), error: None, asked };
            }
        }
    }
}

/// v2: what the kernel counts below a cgroup.
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

struct Ended {
    words: String,
    error: Option<io::Error>,
    asked: u64,
}

/// Why it must end now; `None` if it ended by itself.
fn watch(shared: &Shared, budget: Duration, hands: &Hands<'_>) -> Option<String> {
    let began = Instant::now();
    let mut harm = Harm::begin();
    while !shared.done.load(Ordering::SeqCst) {
        std::thread::sleep(LOOK);
        if hands.is_stopped() {
            return Some("somebody asked to stop".to_owned());
        }
        if began.elapsed() >= budget {
            return Some(format!("its {:.0} s were over", budget.as_secs_f64()));
        }
        if let Some(harm) = harm.look() {
            return Some(harm);
        }
        hands.say(&format!(
            "reclaiming: {:.0} of at most {:.0} s",
            began.elapsed().as_secs_f64(),
            budget.as_secs_f64()
        ));
    }
    None
}

/// Whether others suffer from it. Memory pressure would not tell: our own reclaim is counted there.
struct Harm {
    at: Instant,
    refaults: Option<u64>,
    io_us: Option<u64>,
}

impl Harm {
    fn begin() -> Harm {
        Harm { at: Instant::now(), refaults: refaults(), io_us: io_pressure_us() }
    }

    fn look(&mut self) -> Option<String> {
        let over = self.at.elapsed();
        if over < Duration::from_secs(1) {
            return None;
        }
        let now = Harm::begin();
        let rose =
            |before: Option<u64>, now: Option<u64>| Some(now?.saturating_sub(before?) as f64 / over.as_secs_f64());
        let refaults = rose(self.refaults, now.refaults);
        let io = rose(self.io_us, now.io_us).map(|us| us / 1e6);
        *self = now;
        if let Some(refaults) = refaults.filter(|n| *n > REFAULTS) {
            return Some(format!("it hurt: others had to read {} pages a second again", count(refaults as u64)));
        }
        if let Some(io) = io.filter(|share| *share > IO_PRESSURE)
            && refaults.is_some_and(|n| n > REFAULTS / 10.0)
        {
            return Some(format!("it hurt: somebody waited for the disk {:.0} % of the time", io * 100.0));
        }
        None
    }
}

fn refaults() -> Option<u64> {
    let vmstat = fs::read_to_string("/proc/vmstat").ok()?;
    vmstat.lines().find_map(|line| line.strip_prefix("workingset_refault_file "))?.trim().parse().ok()
}

fn io_pressure_us() -> Option<u64> {
    let text = fs::read_to_string("/proc/pressure/io").ok()?;
    let some = text.lines().find(|line| line.starts_with("some "))?;
    some.rsplit_once("total=")?.1.trim().parse().ok()
}

/// A handler that does nothing: the signal only ends a system call.
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

/// The kernel frees them in the background: until nothing changes any more.
fn settled(before: &Before, cgroup: &str) -> Option<ZombieScan> {
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

fn stay_words(n: u64) -> String {
    format!("{} {}", count(n), if n == 1 { "stays" } else { "stay" })
}

/// `(kept by /var/lib/ecs/f.* (tmpfs), 31 files; …)`
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
    fn a_signal_ends_a_write_that_blocks() {
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
