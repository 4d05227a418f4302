//! Remove leaked cgroups: those that were empty when the plan was made, and still are.

use super::{Done, Hands, StepError, Undone};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::fs;
use std::path::{Path, PathBuf};

/// At most this many per run; a plan for more says so.
pub const MOST: usize = 20_000;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoveCgroups {
    /// The directory of their parent.
    pub parent: PathBuf,
    /// Empty when the plan was made.
    pub names: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupsBefore {
    /// Still empty.
    pub empty: u64,
}

/// No process in it and no cgroup below it. `None` if that cannot be read.
pub fn is_empty(cgroup: &Path) -> Option<bool> {
    let nobody = |file: &str| fs::read(cgroup.join(file)).ok().map(|text| text.is_empty());
    if !nobody("cgroup.procs")? {
        return Some(false);
    }
    let mut entries = fs::read_dir(cgroup).ok()?;
    Some(!entries.any(|entry| entry.is_ok_and(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))))
}

/// The empty children of a cgroup, by name, and whether there are more than [`MOST`].
pub fn empty_children(parent: &Path) -> std::io::Result<(Vec<String>, bool)> {
    let mut names = Vec::new();
    for entry in fs::read_dir(parent)? {
        let entry = entry?;
        if !entry.file_type()?.is_dir() || is_empty(&entry.path()) != Some(true) {
            continue;
        }
        if names.len() >= MOST {
            return Ok((names, true));
        }
        if let Ok(name) = entry.file_name().into_string() {
            names.push(name);
        }
    }
    names.sort_unstable();
    Ok((names, false))
}

impl RemoveCgroups {
    fn place(&self, name: &str) -> Option<PathBuf> {
        (!name.contains('/') && name != "." && name != "..").then(|| self.parent.join(name))
    }

    pub fn prepare(&self, _hands: &mut Hands<'_>) -> Result<CgroupsBefore, StepError> {
        let is_cgroup = self.parent.join("cgroup.procs").exists();
        if !is_cgroup {
            return Err(StepError::refused(format!("{} is not a cgroup", self.parent.display())));
        }
        let still = |name: &&String| self.place(name).is_some_and(|place| is_empty(&place) == Some(true));
        Ok(CgroupsBefore { empty: self.names.iter().filter(still).count() as u64 })
    }

    pub fn act(&self, _before: &CgroupsBefore, hands: &mut Hands<'_>) -> Result<Done, StepError> {
        let (mut removed, mut in_use, mut gone) = (0u64, 0u64, 0u64);
        for name in &self.names {
            if hands.is_stopped() {
                return Err(StepError::failed(format!("stopped after removing {removed} cgroups")));
            }
            let Some(place) = self.place(name) else { continue };
            if is_empty(&place) == Some(false) {
                in_use += 1;
                continue;
            }
            // The kernel refuses to remove one that is in use by now.
            match fs::remove_dir(&place) {
                Ok(()) => removed += 1,
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => gone += 1,
                Err(e) if e.kind() == std::io::ErrorKind::ResourceBusy => in_use += 1,
                Err(e) => return Err(StepError::failed(format!("after {removed} cgroups: {}: {e}", place.display()))),
            }
        }
        let mut words = format!("{removed} of {} cgroups removed", self.names.len());
        if in_use > 0 {
            words.push_str(&format!("; {in_use} are in use now and were left alone"));
        }
        if gone > 0 {
            words.push_str(&format!("; {gone} were already gone"));
        }
        let mut done = Done::new(words, json!({"removed": removed, "in_use": in_use, "gone": gone}));
        if removed == 0 {
            done.in_vain = Some("no cgroup was removed".to_owned());
        }
        Ok(done)
    }

    pub fn undo(&self, _before: &CgroupsBefore, _hands: &mut Hands<'_>, _force: bool) -> Result<Undone, StepError> {
        Ok(Undone::CannotBe("removed cgroups are not recreated: nothing was in them".to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cgroup_with_processes_or_children_is_not_empty() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for (name, procs) in [("a", ""), ("b", "17\n"), ("c", ""), ("c/d", "")] {
            fs::create_dir(at(name)).unwrap();
            fs::write(at(name).join("cgroup.procs"), procs).unwrap();
        }
        assert_eq!(empty_children(dir.path()).unwrap(), (vec!["a".to_owned()], false));
        assert_eq!(is_empty(&at("nowhere")), None);
        let step = RemoveCgroups { parent: dir.path().into(), names: vec!["../x".into(), "..".into()] };
        assert!(step.names.iter().all(|name| step.place(name).is_none()));
    }
}
