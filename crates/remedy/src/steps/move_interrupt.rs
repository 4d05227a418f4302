//! Let another core serve an interrupt.

use super::threads::parse_cores;
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
    /// Whose it was when the plan was made: `virtio2-input.0`. A number is given to another device when the first one goes.
    #[serde(default)]
    pub name: Option<String>,
    /// As in smp_affinity_list: `0,2-5`.
    pub cores: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Before {
    pub cores: String,
    /// Whose it was then.
    #[serde(default)]
    pub name: Option<String>,
}

/// Who handles an interrupt now; `None` if nobody does.
pub fn name_of(irq: u32) -> Option<String> {
    let told = fs::read_to_string(format!("/sys/kernel/irq/{irq}/actions")).unwrap_or_default();
    if !told.trim().is_empty() {
        return Some(told.trim().to_owned());
    }
    // Without sysfs: each handler is a directory there.
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

    /// It is still the same device's. Gives its name.
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

    pub fn prepare(&self, _hands: &mut Hands<'_>) -> Result<Before, StepError> {
        parse_cores(&self.cores)?;
        self.nobody_else_places_it()?;
        let name = self.must_be_same(self.name.as_ref())?;
        Ok(Before { cores: self.read()?.to_string(), name })
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

    pub fn act(&self, before: &Before, _hands: &mut Hands<'_>) -> Result<Done, StepError> {
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
        let words = format!("{} now goes to cores {now}; before: {}", self.words(name.as_ref()), before.cores);
        let mut done = Done::new(words, json!({ "cores": now, "name": name }));
        if now == before.cores {
            done.in_vain = Some(format!("it goes to cores {now}, unchanged"));
        }
        Ok(done)
    }

    pub fn undo(&self, before: &Before, _hands: &mut Hands<'_>, force: bool) -> Result<Undone, StepError> {
        // What is another device's now is never touched, whatever force says: the step was not about it.
        if let Err(StepError::Refused(why)) = self.must_be_same(before.name.as_ref()) {
            return Ok(Undone::AlreadySo(format!("{why}, and the change with it")));
        }
        let (now, was) = (self.read()?, parse_cores(&before.cores)?);
        let what = self.words(before.name.as_ref());
        if now == was {
            return Ok(Undone::AlreadySo(format!("{what} goes to cores {was}, as before the fix")));
        }
        if now != parse_cores(&self.cores)? && !force {
            return Ok(Undone::ChangedSince(format!(
                "{what} now goes to cores {now}; the fix set {}, before that it was {was}",
                self.cores
            )));
        }
        fs::write(self.file(), was.to_string()).map_err(|e| StepError::io(&self.file(), e))?;
        match self.read()? {
            now if now == was => Ok(Undone::Restored(format!("{what} goes to cores {was} again"))),
            now => Err(StepError::failed(format!("{what} still goes to cores {now}; before the fix it was {was}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    /// One that nobody waits for: a device's configuration changes next to never.
    fn idle_interrupt() -> Option<(u32, String)> {
        let numbers = fs::read_dir("/proc/irq").ok()?.flatten();
        let mut all: Vec<u32> = numbers.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
        all.sort_unstable();
        all.into_iter().filter_map(|irq| Some((irq, name_of(irq)?))).find(|(_, name)| name.ends_with("-config"))
    }

    /// Puts it back, also when the test fails.
    struct Restore(PathBuf, String);

    impl Drop for Restore {
        fn drop(&mut self) {
            let _ = fs::write(&self.0, &self.1);
        }
    }

    #[test]
    fn a_real_interrupt_is_moved_and_goes_back_and_that_of_another_device_is_left_alone() {
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
            eprintln!("not run: one core has nowhere to move it to");
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

        // The device went, and its number is another one's: that one is not touched.
        let other = Before { name: Some("eth9-rx-0".into()), ..before.clone() };
        let refused = step.act(&other, &mut hands);
        assert!(matches!(&refused, Err(StepError::Refused(why)) if why.contains("eth9-rx-0")), "{refused:?}");
        let left = step.undo(&other, &mut hands, true).unwrap();
        assert!(matches!(&left, Undone::AlreadySo(why) if why.contains(&name)), "{left:?}");
        assert_eq!(step.read().unwrap().to_string(), core.to_string(), "it was written for another device");
        let planned = MoveInterrupt { name: Some("eth9-rx-0".into()), ..step.clone() }.prepare(&mut hands);
        assert!(matches!(planned, Err(StepError::Refused(_))), "{planned:?}");

        assert!(matches!(step.undo(&before, &mut hands, false), Ok(Undone::Restored(_))));
        assert_eq!(step.read().unwrap(), was);
        assert!(matches!(step.undo(&before, &mut hands, false), Ok(Undone::AlreadySo(_))), "again: nothing to do");
    }
}
