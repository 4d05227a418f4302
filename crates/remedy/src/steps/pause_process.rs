//! Pause a process that keeps others off a core, until somebody has fixed why it works so much.

use super::threads::ThreadRef;
use super::{Done, Hands, StepError, Undone};
use coroner_diagnosis::units::protected::why_protected_by;
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::fs;
use std::time::{Duration, Instant};

/// A thread stops when it leaves the kernel. One call that walks tens of thousands of cgroups takes seconds.
const STOPS_WITHIN: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PauseProcess {
    /// Its main thread.
    pub process: ThreadRef,
    pub unit: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunningBefore {
    pub was_paused: bool,
}

impl PauseProcess {
    pub fn prepare(&self, hands: &mut Hands<'_>) -> Result<RunningBefore, StepError> {
        self.process.must_live()?;
        if self.process.tid == 1 || self.process.tid == std::process::id() {
            return Err(StepError::refused(format!("{} is never paused", self.process.name())));
        }
        if let Some((unit, why)) =
            self.unit.as_ref().and_then(|unit| Some((unit, why_protected_by(hands.catalogue(), unit)?)))
        {
            return Err(StepError::refused(format!("{unit} is protected: {why}")));
        }
        Ok(RunningBefore { was_paused: self.is_paused() })
    }

    pub fn act(&self, _before: &RunningBefore, _hands: &mut Hands<'_>) -> Result<Done, StepError> {
        self.process.must_live()?;
        self.signal(Signal::STOP)?;
        let until = Instant::now() + STOPS_WITHIN;
        while !self.is_paused() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(20));
        }
        let name = self.process.name();
        let mut done = Done::new(format!("{name} is paused"), json!({ "paused": self.is_paused() }));
        if !self.is_paused() {
            done.in_vain = Some(format!("{name} is still in the kernel; it stops when that call ends"));
        }
        Ok(done)
    }

    pub fn undo(&self, before: &RunningBefore, _hands: &mut Hands<'_>, _force: bool) -> Result<Undone, StepError> {
        let name = self.process.name();
        if !self.process.lives() {
            return Ok(Undone::AlreadySo(format!("{name} is gone")));
        }
        if before.was_paused {
            return Ok(Undone::AlreadySo(format!("{name} was already paused before the fix")));
        }
        if !self.is_paused() {
            return Ok(Undone::AlreadySo(format!("{name} runs")));
        }
        self.signal(Signal::CONT)?;
        Ok(Undone::Restored(format!("{name} goes on")))
    }

    fn signal(&self, signal: Signal) -> Result<(), StepError> {
        let pid = i32::try_from(self.process.tid).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| StepError::failed(format!("{} is not a process", self.process.tid)))?;
        kill_process(pid, signal)
            .map_err(|e| StepError::failed(format!("cannot send {} a signal: {e}", self.process.name())))
    }

    /// All its threads are stopped.
    fn is_paused(&self) -> bool {
        let Ok(tasks) = fs::read_dir(format!("/proc/{}/task", self.process.tid)) else { return false };
        tasks.flatten().all(|task| {
            let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            stat.rsplit_once(')').is_none_or(|(_, rest)| rest.trim_start().starts_with('T'))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::threads::started;
    use super::*;
    use std::process::{Child, Command};
    use std::sync::atomic::AtomicBool;

    struct Ended(Child);

    impl Drop for Ended {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn a_paused_process_goes_on_when_undone() {
        let child = Ended(Command::new("sleep").arg("600").spawn().unwrap());
        let tid = child.0.id();
        let process = ThreadRef { tid, started: started(tid).unwrap(), comm: "sleep".into() };
        let step = PauseProcess { process, unit: None };
        let stop = AtomicBool::new(false);
        let say = |_: &str| {};
        let mut hands = Hands::new(None, None, &stop, &say);
        let before = step.prepare(&mut hands).unwrap();
        assert!(!before.was_paused);
        assert_eq!(step.act(&before, &mut hands).unwrap().in_vain, None);
        assert!(step.is_paused());
        assert!(matches!(step.undo(&before, &mut hands, false).unwrap(), Undone::Restored(_)));
        let until = Instant::now() + Duration::from_secs(60);
        while step.is_paused() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(matches!(step.undo(&before, &mut hands, false).unwrap(), Undone::AlreadySo(_)));
        let kubelet = PauseProcess { unit: Some("kubelet.service".into()), ..step };
        assert!(matches!(kubelet.prepare(&mut hands), Err(StepError::Refused(_))));
    }
}
