//! Make a real-time thread an ordinary one, or reset a negative nice value: it then takes turns.

use super::threads::ThreadRef;
use super::{Done, Hands, StepError, Undone};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::io;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LowerPriority {
    pub thread: ThreadRef,
}

/// `struct sched_attr` (include/uapi/linux/sched/types.h): the part that all kernels have.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SchedAttr {
    size: u32,
    pub policy: u32,
    flags: u64,
    pub nice: i32,
    pub priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

const DEADLINE: u32 = 6;

impl SchedAttr {
    fn name(&self) -> String {
        let class = match self.policy {
            0 => "SCHED_OTHER",
            1 => "SCHED_FIFO",
            2 => "SCHED_RR",
            3 => "SCHED_BATCH",
            5 => "SCHED_IDLE",
            6 => "SCHED_DEADLINE",
            _ => "an unknown class",
        };
        match (self.policy, self.nice) {
            (1 | 2, _) => format!("{class} {}", self.priority),
            (_, 0) => class.to_owned(),
            (_, nice) => format!("{class}, nice {nice}"),
        }
    }
}

fn read(thread: &ThreadRef) -> Result<SchedAttr, StepError> {
    let mut attr = SchedAttr::default();
    let size = size_of::<SchedAttr>() as u32;
    // SAFETY: the kernel writes at most `size` bytes into `attr`, which is plain data and lives until the call is over.
    let result =
        unsafe { libc::syscall(libc::SYS_sched_getattr, thread.tid as libc::pid_t, &raw mut attr, size, 0u32) };
    if result != 0 {
        let error = io::Error::last_os_error();
        return Err(StepError::failed(format!("cannot read the scheduling class of {}: {error}", thread.name())));
    }
    Ok(attr)
}

fn write(thread: &ThreadRef, attr: &SchedAttr) -> Result<(), StepError> {
    let mut attr = *attr;
    attr.size = size_of::<SchedAttr>() as u32;
    // Newer kernels report the slice of an ordinary thread here; writing it back would make it a custom slice.
    if attr.policy != DEADLINE {
        (attr.runtime, attr.deadline, attr.period) = (0, 0, 0);
    }
    // SAFETY: the kernel reads `attr.size` bytes of `attr`, which is plain data and lives until the call is over.
    let result = unsafe { libc::syscall(libc::SYS_sched_setattr, thread.tid as libc::pid_t, &raw mut attr, 0u32) };
    if result != 0 {
        let error = io::Error::last_os_error();
        return Err(StepError::failed(format!("cannot change {} to {}: {error}", thread.name(), attr.name())));
    }
    Ok(())
}

impl LowerPriority {
    pub fn prepare(&self, _hands: &mut Hands<'_>) -> Result<SchedAttr, StepError> {
        self.thread.must_live()?;
        read(&self.thread)
    }

    /// An ordinary class and no negative nice value; what is lower stays lower.
    fn wanted(before: &SchedAttr) -> SchedAttr {
        let policy = if matches!(before.policy, 1 | 2 | DEADLINE) { 0 } else { before.policy };
        // Keeps SCHED_FLAG_RESET_ON_FORK.
        let (flags, nice) = (before.flags & 1, before.nice.max(0));
        SchedAttr { policy, flags, nice, size: before.size, ..SchedAttr::default() }
    }

    pub fn act(&self, before: &SchedAttr, _hands: &mut Hands<'_>) -> Result<Done, StepError> {
        self.thread.must_live()?;
        let wanted = LowerPriority::wanted(before);
        write(&self.thread, &wanted)?;
        let now = read(&self.thread)?;
        let words = format!("{} is now {}; before: {}", self.thread.name(), now.name(), before.name());
        let mut done = Done::new(words, json!({"policy": now.policy, "priority": now.priority, "nice": now.nice}));
        if same(&now, before) {
            done.in_vain = Some(format!("it is still {}", now.name()));
        }
        Ok(done)
    }

    pub fn undo(&self, before: &SchedAttr, _hands: &mut Hands<'_>, force: bool) -> Result<Undone, StepError> {
        if !self.thread.lives() {
            return Ok(Undone::AlreadySo(format!("{} is gone", self.thread.name())));
        }
        let now = read(&self.thread)?;
        if same(&now, before) {
            return Ok(Undone::AlreadySo(format!("{} is {}, as before the fix", self.thread.name(), now.name())));
        }
        if !same(&now, &LowerPriority::wanted(before)) && !force {
            return Ok(Undone::ChangedSince(format!(
                "{} is now {}; before the fix it was {}",
                self.thread.name(),
                now.name(),
                before.name()
            )));
        }
        write(&self.thread, before)?;
        Ok(Undone::Restored(format!("{} is {} again", self.thread.name(), before.name())))
    }
}

fn same(a: &SchedAttr, b: &SchedAttr) -> bool {
    let deadline =
        |it: &SchedAttr| if it.policy == DEADLINE { (it.runtime, it.deadline, it.period) } else { (0, 0, 0) };
    (a.policy, a.nice, a.priority, deadline(a)) == (b.policy, b.nice, b.priority, deadline(b))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steps::threads::started;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn nice_is_reset_and_restored() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        // SAFETY: gettid has no arguments and cannot fail.
        let tid = unsafe { libc::gettid() } as u32;
        let thread = ThreadRef { tid, started: started(tid).unwrap(), comm: "test".into() };
        let step = LowerPriority { thread: thread.clone() };
        let (stop, say) = (AtomicBool::new(false), |_: &str| {});
        let mut hands = Hands::new(None, None, &stop, &say);
        let own = read(&thread).unwrap();
        write(&thread, &SchedAttr { nice: -5, ..own }).unwrap();
        let before = step.prepare(&mut hands).unwrap();
        assert_eq!(before.nice, -5);
        let done = step.act(&before, &mut hands).unwrap();
        assert_eq!((done.in_vain, read(&thread).unwrap().nice), (None, 0));
        assert!(matches!(step.undo(&before, &mut hands, false), Ok(Undone::Restored(_))));
        assert_eq!(read(&thread).unwrap().nice, -5);
        assert!(matches!(step.undo(&before, &mut hands, false), Ok(Undone::AlreadySo(_))), "again: nothing to do");
        // Somebody else changed it meanwhile.
        write(&thread, &SchedAttr { nice: 7, ..own }).unwrap();
        assert!(matches!(step.undo(&before, &mut hands, false), Ok(Undone::ChangedSince(_))));
        assert!(matches!(step.undo(&before, &mut hands, true), Ok(Undone::Restored(_))));
        write(&thread, &own).unwrap();
    }
}
