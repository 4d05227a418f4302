//! Move an interrupt to other cores.

use super::threads::{cores_words, parse_cores};
use super::{Done, Hands, StepError, Undone};
use crate::guards;
use coroner_evidence::CoreSet;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::fs;
use std::path::PathBuf;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveInterrupt {
    pub irq: u32,
    /// Its handler when the plan was made: `virtio2-input.0`. The number is reused when the device goes away.
    #[serde(default)]
    pub name: Option<String>,
    /// As in smp_affinity_list: `0,2-5`.
    pub cores: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterruptBefore {
    pub cores: String,
    /// Its handler at that time.
    #[serde(default)]
    pub name: Option<String>,
}

/// The handlers of an interrupt now, if any.
pub fn name_of(irq: u32) -> Option<String> {
    let told = fs::read_to_string(format!("/sys/kernel/irq/{irq}/actions")).unwrap_or_default();
    if !told.trim().is_empty() {
        return Some(told.trim().to_owned());
    }
    // Without sysfs: each handler has a directory here.
    let entries = fs::read_dir(format!("/proc/irq/{irq}")).ok()?.flatten();
    let handlers = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let mut names: Vec<String> = handlers.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort_unstable();
    (!names.is_empty()).then(|| names.join(","))
}

impl MoveInterrupt {
    fn file(&self) -> PathBuf {
        format!("/proc/irq/{}/smp_affinity_list", self.irq).into()
    }

    fn read(&self) -> Result<CoreSet, StepError> {
        let text = fs::read_to_string(self.file()).map_err(|e| StepError::io(&self.file(), e))?;
        parse_cores(text.trim())
    }

    /// `interrupt 38 (virtio2-input.0)`
    fn words(&self, name: Option<&String>) -> String {
        let name = name.map(|name| format!(" ({name})")).unwrap_or_default();
        format!("interrupt {}{name}", self.irq)
    }

    /// Its handler now; an error if that has changed.
    fn must_be_same(&self, before: Option<&String>) -> Result<Option<String>, StepError> {
        let now = name_of(self.irq);
        match (before, &now) {
            (Some(before), Some(now)) if before != now => {
                Err(StepError::refused(format!("interrupt {} now belongs to {now}; it belonged to {before}", self.irq)))
            }
            (Some(before), None) => {
                Err(StepError::refused(format!("interrupt {} no longer exists; it belonged to {before}", self.irq)))
            }
            _ => Ok(now),
        }
    }

    pub fn prepare(&self, _hands: &mut Hands<'_>) -> Result<InterruptBefore, StepError> {
        parse_cores(&self.cores)?;
        self.nobody_else_places_it()?;
        let name = self.must_be_same(self.name.as_ref())?;
        Ok(InterruptBefore { cores: self.read()?.to_string(), name })
    }

    fn nobody_else_places_it(&self) -> Result<(), StepError> {
        match guards::irqbalance() {
            None => Ok(()),
            Some(pid) => Err(StepError::refused(format!(
                "irqbalance (pid {pid}) would move it back: first set IRQBALANCE_ARGS=--banirq={} in its configuration and \
                 restart it",
                self.irq
            ))),
        }
    }

    pub fn act(&self, before: &InterruptBefore, _hands: &mut Hands<'_>) -> Result<Done, StepError> {
        self.nobody_else_places_it()?;
        let name = self.must_be_same(before.name.as_ref())?;
        fs::write(self.file(), &self.cores).map_err(|e| {
            let why = if e.raw_os_error() == Some(libc::EIO) {
                " (the kernel manages this interrupt's affinity)"
            } else {
                ""
            };
            StepError::failed(format!("{}: {e}{why}", self.file().display()))
        })?;
        let now = self.read()?.to_string();
        let words = format!("{} goes to {}; before: {}", self.words(name.as_ref()), cores_words(&now), before.cores);
        let mut done = Done::new(words, json!({ "cores": now, "name": name }));
        if now == before.cores {
            done.in_vain = Some(format!("it still goes to {}", cores_words(&now)));
        }
        Ok(done)
    }

    pub fn undo(&self, before: &InterruptBefore, _hands: &mut Hands<'_>, force: bool) -> Result<Undone, StepError> {
        // Never touch an interrupt that belongs to another device now, not even with force: the step was not about it.
        if let Err(StepError::Refused(why)) = self.must_be_same(before.name.as_ref()) {
            return Ok(Undone::AlreadySo(format!("{why}, so there is nothing to undo")));
        }
        let (now, was) = (self.read()?, parse_cores(&before.cores)?);
        let what = self.words(before.name.as_ref());
        if now == was {
            return Ok(Undone::AlreadySo(format!("{what} goes to {}, as before the fix", cores_words(&was))));
        }
        if now != parse_cores(&self.cores)? && !force {
            return Ok(Undone::ChangedSince(format!(
                "{what} now goes to {}; the fix set {}, before that it was {was}",
                cores_words(&now),
                self.cores
            )));
        }
        fs::write(self.file(), was.to_string()).map_err(|e| StepError::io(&self.file(), e))?;
        match self.read()? {
            now if now == was => Ok(Undone::Restored(format!("{what} goes to {} again", cores_words(&was)))),
            now => Err(StepError::failed(format!("{what} still goes to {}, not {was}", cores_words(&now)))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    /// One that nobody needs: a device's configuration hardly ever changes.
    fn idle_interrupt() -> Option<(u32, String)> {
        let numbers = fs::read_dir("/proc/irq").ok()?.flatten();
        let mut all: Vec<u32> = numbers.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
        all.sort_unstable();
        all.into_iter().filter_map(|irq| Some((irq, name_of(irq)?))).find(|(_, name)| name.ends_with("-config"))
    }

    /// Restores it even if the test fails.
    struct Restore(PathBuf, String);

    impl Drop for Restore {
        fn drop(&mut self) {
            let _ = fs::write(&self.0, &self.1);
        }
    }

    #[test]
    fn an_interrupt_is_moved_and_restored_unless_another_device_has_it_now() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("not run: needs root");
            return;
        }
        let Some((irq, name)) = idle_interrupt().filter(|_| guards::irqbalance().is_none()) else {
            eprintln!("not run: no device here has an idle interrupt, or irqbalance runs");
            return;
        };
        let mut step = MoveInterrupt { irq, name: Some(name.clone()), cores: "0".into() };
        let was = step.read().unwrap();
        let Some(core) = was.iter().last().filter(|_| was.len() > 1) else {
            eprintln!("not run: there is no other core to move it to");
            return;
        };
        step.cores = core.to_string();
        let _restore = Restore(step.file(), was.to_string());
        let (stop, say) = (AtomicBool::new(false), |_: &str| {});
        let mut hands = Hands::new(None, None, &stop, &say);
        let before = step.prepare(&mut hands).unwrap();
        assert_eq!((&before.cores, before.name.as_ref()), (&was.to_string(), Some(&name)));
        let done = step.act(&before, &mut hands).unwrap();
        assert_eq!((done.in_vain.as_ref(), step.read().unwrap().to_string()), (None, core.to_string()), "{done:?}");
        assert!(done.words.contains(&name), "{}", done.words);

        // The device is gone and its number belongs to another one, which is not touched.
        let other = InterruptBefore { name: Some("eth9-rx-0".into()), ..before.clone() };
        let refused = step.act(&other, &mut hands);
        assert!(matches!(&refused, Err(StepError::Refused(why)) if why.contains("eth9-rx-0")), "{refused:?}");
        let left = step.undo(&other, &mut hands, true).unwrap();
        assert!(matches!(&left, Undone::AlreadySo(why) if why.contains(&name)), "{left:?}");
        assert_eq!(step.read().unwrap().to_string(), core.to_string(), "another device's interrupt was moved");
        let planned = MoveInterrupt { name: Some("eth9-rx-0".into()), ..step.clone() }.prepare(&mut hands);
        assert!(matches!(planned, Err(StepError::Refused(_))), "{planned:?}");

        assert!(matches!(step.undo(&before, &mut hands, false), Ok(Undone::Restored(_))));
        assert_eq!(step.read().unwrap(), was);
        assert!(matches!(step.undo(&before, &mut hands, false), Ok(Undone::AlreadySo(_))), "again: nothing to do");
    }
}
