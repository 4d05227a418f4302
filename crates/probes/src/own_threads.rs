//! Keeps our own threads able to run while somebody's real-time thread holds a core.
//!
//! A thread that wakes up is put where it slept, as long as no other core is idle (kernel/sched/fair.c, select_task_rq_fair). If a
//! real-time thread spins there, it waits: until the balancer takes pity, or until the 5 % of a second that the kernel keeps for
//! others. So the threads that must not miss anything look after each other. Each says when it will be back; one that finds another
//! overdue, and waiting on a core, moves all of us away from that core for some seconds, which needs no privilege. As they keep to
//! different halves of the cores, one core cannot hold them all.

use crate::root::now;
use coroner_evidence::{CoreSet, Time};
use rustix::process::Pid;
use rustix::thread::{CpuSet, gettid, sched_getaffinity, sched_setaffinity};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Who sleeps longer than it said by this much is looked at. Busy nodes wake threads late by some milliseconds.
const LATE: Duration = Duration::from_millis(60);
/// Who is awake should go back to sleep within this time.
const AWAKE: Duration = Duration::from_secs(1);
/// How long a core is avoided. Then it is tried again: meanwhile all of us are on the others, and the next one may be held, too.
const AVOIDED_FOR: Duration = Duration::from_secs(3);

/// The threads that look after each other.
static SLOTS: [Slot; 8] = [const { Slot::free() }; 8];
static CORES: Mutex<Option<Cores>> = Mutex::new(None);

#[derive(Debug)]
struct Slot {
    /// 0 if nobody has it.
    tid: AtomicI32,
    /// When it will be back, in nanoseconds of CLOCK_MONOTONIC.
    due: AtomicU64,
    /// Keeps to the second half of the cores.
    second_half: AtomicBool,
}

impl Slot {
    const fn free() -> Slot {
        Slot { tid: AtomicI32::new(0), due: AtomicU64::new(u64::MAX), second_half: AtomicBool::new(false) }
    }
}

#[derive(Debug)]
struct Cores {
    /// Where we may run.
    allowed: Vec<usize>,
    /// And when that ends.
    avoided: Vec<(usize, Time)>,
}

/// Which cores a thread keeps to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Half {
    First,
    Second,
}

/// The calling thread is looked after, and looks after others. To be used by the thread that began it.
#[derive(Debug)]
pub struct Beat {
    slot: Option<&'static Slot>,
}

impl Beat {
    pub fn begin(half: Half) -> Beat {
        let tid = gettid().as_raw_nonzero().get();
        let take =
            |slot: &&'static Slot| slot.tid.compare_exchange(0, tid, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        let slot = SLOTS.iter().find(take);
        if let Some(slot) = slot {
            slot.second_half.store(half == Half::Second, Ordering::Relaxed);
            slot.due.store((now() + AWAKE).0, Ordering::Release);
            let mut cores = cores();
            let known = cores.get_or_insert_with(Cores::ours);
            place(slot, known);
        }
        Beat { slot }
    }

    /// Sleeps, and then sees whether the others are back in time.
    pub fn sleep_until(&self, until: Time) {
        if let Some(slot) = self.slot {
            slot.due.store(until.0.max(now().0), Ordering::Release);
        }
        std::thread::sleep(until.since(now()));
        let Some(slot) = self.slot else { return };
        let back = now();
        slot.due.store((back + AWAKE).0, Ordering::Release);
        look_after(slot, back);
    }
}

impl Drop for Beat {
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            slot.due.store(u64::MAX, Ordering::Release);
            slot.tid.store(0, Ordering::Release);
        }
    }
}

/// Moves all threads of this process off these cores, for some seconds; nothing happens if no other is left.
pub fn avoid_cores(full: &CoreSet) {
    avoid(full.iter().filter_map(|core| usize::try_from(core).ok()), now());
}

/// The cores that are avoided at the moment.
pub fn avoided_cores() -> CoreSet {
    let cores = cores();
    let avoided = cores.iter().flat_map(|c| &c.avoided);
    CoreSet::new(avoided.filter_map(|(core, _)| u32::try_from(*core).ok()))
}

fn cores() -> MutexGuard<'static, Option<Cores>> {
    CORES.lock().unwrap_or_else(PoisonError::into_inner)
}

fn look_after(own: &'static Slot, at: Time) {
    let overdue = |slot: &&Slot| {
        let due = Time(slot.due.load(Ordering::Acquire));
        !std::ptr::eq(*slot, own) && slot.tid.load(Ordering::Acquire) != 0 && at.since(due) > LATE
    };
    let held: Vec<usize> =
        SLOTS.iter().filter(overdue).filter_map(|slot| waits_on(slot.tid.load(Ordering::Acquire))).collect();
    if !held.is_empty() {
        avoid(held.into_iter(), at);
    } else if let Ok(mut cores) = CORES.try_lock()
        && let Some(cores) = cores.as_mut()
        && cores.avoided.iter().any(|(_, until)| at >= *until)
    {
        cores.avoided.retain(|(_, until)| at < *until);
        place_all(cores);
    }
}

fn avoid(held: impl Iterator<Item = usize>, at: Time) {
    let mut cores = cores();
    let cores = cores.get_or_insert_with(Cores::ours);
    for core in held {
        cores.avoided.retain(|(avoided, _)| *avoided != core);
        let others = cores.allowed.iter().any(|c| *c != core && !cores.avoided.iter().any(|(a, _)| a == c));
        if others && cores.allowed.contains(&core) {
            cores.avoided.push((core, at + AVOIDED_FOR));
        }
    }
    place_all(cores);
}

/// The core that a thread of ours wants to run on; `None` if it sleeps after all.
fn waits_on(tid: i32) -> Option<usize> {
    let stat = std::fs::read(format!("/proc/self/task/{tid}/stat")).ok()?;
    let stat = crate::tasks::parse_stat(&stat).ok()?;
    (stat.state == b'R').then_some(usize::try_from(stat.core).ok()?)
}

impl Cores {
    fn ours() -> Cores {
        let set = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
        Cores { allowed: (0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect(), avoided: Vec::new() }
    }

    /// Where a thread that keeps to a half may run, or any other.
    fn set(&self, second_half: Option<bool>) -> CpuSet {
        let free: Vec<usize> =
            self.allowed.iter().copied().filter(|c| !self.avoided.iter().any(|(avoided, _)| avoided == c)).collect();
        let half = |core: &&usize| second_half.is_none_or(|second| (**core % 2 == 1) == second);
        let mut set = CpuSet::new();
        match free.iter().filter(half).count() {
            0 => free.iter().for_each(|core| set.set(*core)),
            _ => free.iter().filter(half).for_each(|core| set.set(*core)),
        }
        set
    }
}

/// Errors are left alone: somebody changed where we may run, and knows why.
fn place(slot: &Slot, cores: &Cores) {
    let set = cores.set(Some(slot.second_half.load(Ordering::Relaxed)));
    let _ = sched_setaffinity(Pid::from_raw(slot.tid.load(Ordering::Acquire)), &set);
}

fn place_all(cores: &Cores) {
    let all = cores.set(None);
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else { return };
    for task in tasks.flatten() {
        let Some(tid) = task.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
        match SLOTS.iter().find(|slot| slot.tid.load(Ordering::Acquire) == tid) {
            Some(slot) => place(slot, cores),
            None => drop(sched_setaffinity(Pid::from_raw(tid), &all)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(cores: &Cores, second_half: Option<bool>) -> Vec<usize> {
        let set = cores.set(second_half);
        (0..16).filter(|core| set.is_set(*core)).collect()
    }

    #[test]
    fn halves_do_not_meet_and_avoided_cores_are_left() {
        let mut cores = Cores { allowed: vec![0, 1, 2, 3], avoided: Vec::new() };
        assert_eq!((chosen(&cores, Some(false)), chosen(&cores, Some(true))), (vec![0, 2], vec![1, 3]));
        cores.avoided = vec![(1, Time(9))];
        assert_eq!(chosen(&cores, Some(true)), [3]);
        assert_eq!(chosen(&cores, None), [0, 2, 3]);
        cores.avoided.push((3, Time(9)));
        assert_eq!(chosen(&cores, Some(true)), [0, 2], "better the other half than a full core");
        let single = Cores { allowed: vec![0], avoided: Vec::new() };
        assert_eq!(chosen(&single, Some(true)), [0]);
    }
}
