//! Threads, identified by TID and start time: a TID alone may be reused.

use super::StepError;
use coroner_evidence::CoreSet;
use rustix::thread::CpuSet;
use serde::{Deserialize, Serialize};
use std::fs;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadRef {
    pub tid: u32,
    /// Clock ticks after boot.
    pub started: u64,
    pub comm: String,
}

impl ThreadRef {
    /// `spin[4711]`
    pub fn name(&self) -> String {
        format!("{}[{}]", self.comm, self.tid)
    }

    pub fn lives(&self) -> bool {
        started(self.tid) == Some(self.started)
    }

    pub fn must_live(&self) -> Result<(), StepError> {
        match started(self.tid) {
            Some(started) if started == self.started => Ok(()),
            Some(_) => {
                Err(StepError::refused(format!("{} is gone; its TID belongs to another thread now", self.name())))
            }
            None => Err(StepError::refused(format!("{} is gone", self.name()))),
        }
    }

    pub fn pid(&self) -> Result<rustix::thread::Pid, StepError> {
        i32::try_from(self.tid)
            .ok()
            .and_then(rustix::thread::Pid::from_raw)
            .ok_or_else(|| StepError::failed(format!("{} is not a thread", self.tid)))
    }

    pub fn affinity(&self) -> Result<CoreSet, StepError> {
        let set = rustix::thread::sched_getaffinity(Some(self.pid()?))
            .map_err(|e| StepError::failed(format!("cannot read the affinity of {}: {e}", self.name())))?;
        Ok(CoreSet::new((0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).map(|core| core as u32)))
    }

    pub fn set_affinity(&self, cores: &CoreSet) -> Result<(), StepError> {
        let mut set = CpuSet::new();
        for core in cores.iter().filter(|core| (*core as usize) < CpuSet::MAX_CPU) {
            set.set(core as usize);
        }
        rustix::thread::sched_setaffinity(Some(self.pid()?), &set).map_err(|e| {
            let why = match e {
                rustix::io::Errno::INVAL => " (the kernel pins it, or its cpuset allows none of these cores)",
                _ => "",
            };
            StepError::failed(format!("cannot move {} to {}: {e}{why}", self.name(), cores_words(cores)))
        })
    }
}

/// Field 22 of /proc/TID/stat. The name before it may contain parentheses and spaces.
pub fn started(tid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{tid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

/// `core 3`, `cores 0,4-7`
pub fn cores_words(cores: impl ToString) -> String {
    let cores = cores.to_string();
    format!("core{} {cores}", if cores.contains([',', '-']) { "s" } else { "" })
}

pub fn parse_cores(text: &str) -> Result<CoreSet, StepError> {
    CoreSet::parse_list(text)
        .filter(|cores| !cores.is_empty())
        .ok_or_else(|| StepError::failed(format!("{text:?} is not a list of cores")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reused_tid_is_another_thread() {
        let tid = std::process::id();
        let mut own = ThreadRef { tid, started: started(tid).unwrap(), comm: "test".into() };
        assert!(own.must_live().is_ok() && !own.affinity().unwrap().is_empty());
        own.started += 1;
        assert!(matches!(own.must_live(), Err(StepError::Refused(words)) if words.contains("another thread")));
    }
}
