//! Cgroup directories compared with what the kernel tracks.

use std::collections::{HashMap, HashSet};
use std::io;
use std::ops::ControlFlow;
use std::path::Path;

use coroner_evidence::CrowdedParent;

use super::directories::{self, MAX_DIRECTORIES};
use super::mounts::Hierarchy;
use crate::{ParseError, ReadError, Root};

/// How many parents are named.
const CROWDED: usize = 10;

/// The kernel's own count of a hierarchy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Live and dying cgroups, including the root.
    pub tracked: Option<u64>,
    /// v2 only.
    pub live: Option<u64>,
    /// v2 only.
    pub dying: Option<u64>,
    /// `dying` counts memory cgroups, not cgroups of any kind.
    pub dying_is_of_memory: bool,
}

impl Counts {
    pub fn read(root: &Root, hierarchy: &Hierarchy) -> Result<Counts, ReadError> {
        if hierarchy.version == 1 {
            let tracked = root.read_parsed("/proc/cgroups", |text| parse_proc_cgroups(text, "memory"))?;
            return Ok(Counts { tracked, ..Counts::default() });
        }
        let stat = root.read(&hierarchy.file("cgroup.stat"))?;
        Ok(Counts::of_cgroup_stat(&stat))
    }

    /// cgroup.stat of v2; `nr_dying_descendants` since 4.14, `nr_dying_subsys_memory` since 6.12.
    pub fn of_cgroup_stat(text: &str) -> Counts {
        let live = value_of(text, "nr_descendants").map(|n| n.saturating_add(1));
        let dying_cgroups = value_of(text, "nr_dying_descendants");
        let dying_memory = value_of(text, "nr_dying_subsys_memory");
        Counts {
            tracked: live.and_then(|live| Some(live.saturating_add(dying_cgroups?))),
            live,
            dying: dying_memory.or(dying_cgroups),
            dying_is_of_memory: dying_memory.is_some(),
        }
    }
}

/// The value after a key in a file of `key value` lines.
pub(crate) fn value_of(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix([' ', '\t'])?.trim().parse().ok())
}

/// num_cgroups of a controller. `None` if it has no row: kernels without v1 memory omit it.
pub(crate) fn parse_proc_cgroups(text: &str, controller: &str) -> Result<Option<u64>, ParseError> {
    for (i, line) in text.lines().enumerate() {
        let mut fields = line.split_whitespace();
        if fields.next() != Some(controller) {
            continue;
        }
        let number = fields.nth(1).and_then(|n| n.parse().ok());
        return match number {
            Some(n) => Ok(Some(n)),
            None => Err(ParseError::new(i + 1, "controller, hierarchy and number of cgroups")),
        };
    }
    Ok(None)
}

/// Cgroups with a process in or below them: parent → names of such children. Paths are relative to the mount.
#[derive(Debug, Default)]
pub(crate) struct Populated {
    children: HashMap<String, HashSet<String>>,
}

impl Populated {
    pub fn of_paths<'p>(paths: impl IntoIterator<Item = &'p String>, hierarchy: &Hierarchy) -> Populated {
        let mut populated = Populated::default();
        for path in paths {
            let Some(mut path) = hierarchy.below(path) else { continue };
            while !path.is_empty() {
                let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
                match populated.children.get_mut(parent) {
                    Some(names) => {
                        if !names.insert(name.to_owned()) {
                            break; // its ancestors are known already
                        }
                    }
                    None => {
                        populated.children.insert(parent.to_owned(), HashSet::from([name.to_owned()]));
                    }
                }
                path = parent;
            }
        }
        populated
    }
}

/// What a walk over the directories found.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Walk {
    /// Directories, including the root.
    pub live: u64,
    /// Of those, the ones without a process in or below them.
    pub empty: u64,
    pub crowded: Vec<CrowdedParent>,
    pub truncated: bool,
    /// Directories that could not be listed, and the reason for the first.
    pub unreadable: u64,
    pub unreadable_why: Option<String>,
}

/// Counts the directories below `top`. Paths of crowded parents are relative to it.
///
/// The root counts as populated: kernel threads live there.
pub(crate) fn walk(top: &Path, populated: &Populated, limit: u64) -> io::Result<Walk> {
    let mut found = Walk::default();
    // The children of one parent come in a row.
    let mut parent: Option<(u32, CrowdedParent, Option<&HashSet<String>>)> = None;
    let walked = directories::walk(directories::open(top)?, limit, |directory| {
        if parent.as_ref().is_none_or(|(number, ..)| *number != directory.parent) {
            let path = String::from_utf8_lossy(directory.parent_path).into_owned();
            let names = populated.children.get(path.as_str());
            let next = CrowdedParent { path, children: 0, empty: Some(0), dying: None, example: None };
            if let Some((_, last, _)) = parent.replace((directory.parent, next, names)) {
                note_crowded(&mut found.crowded, last);
            }
        }
        if let Some((_, parent, names)) = &mut parent {
            let name = directory.name.to_string_lossy();
            parent.children += 1;
            if !names.is_some_and(|n| n.contains(name.as_ref())) {
                found.empty += 1;
                parent.empty = parent.empty.map(|n| n + 1);
            }
            parent.example.get_or_insert_with(|| name.into_owned());
        }
        ControlFlow::Continue(())
    })?;
    if let Some((_, last, _)) = parent {
        note_crowded(&mut found.crowded, last);
    }
    found.live = walked.count;
    found.truncated = walked.truncated;
    found.unreadable = walked.unreadable;
    found.unreadable_why = walked.unreadable_why;
    Ok(found)
}

fn note_crowded(crowded: &mut Vec<CrowdedParent>, parent: CrowdedParent) {
    let place = crowded.partition_point(|known| known.children >= parent.children);
    if place < CROWDED {
        crowded.insert(place, parent);
        crowded.truncate(CROWDED);
    }
}

/// Dying descendants of a directory, from its cgroup.stat (v2).
pub(crate) fn dying_below(root: &Root, hierarchy: &Hierarchy, below: &str) -> Option<u64> {
    let directory = hierarchy.file(below);
    Counts::of_cgroup_stat(&root.read(&format!("{directory}/cgroup.stat")).ok()?).dying
}

/// Why the number of dead cgroups cannot be derived, and what would help. A cgroup tracked without a directory is dead, if both
/// numbers cover the whole node.
pub(crate) fn why_uncounted(
    memory: &Hierarchy,
    counts: &Counts,
    unreadable: u64,
    truncated: bool,
) -> Option<(String, &'static str)> {
    match counts.tracked {
        None => {
            Some(("/proc/cgroups does not list the memory controller".to_owned(), "use a kernel with CONFIG_MEMCG_V1"))
        }
        Some(_) if !memory.whole => Some((
            format!("/proc/cgroups counts the whole node, but {} shows only part of it", memory.mount_point),
            "run on the host, or with its cgroup namespace and /sys/fs/cgroup (docker run --cgroupns=host)",
        )),
        Some(_) if unreadable > 0 => Some(("some cgroup directories may not be listed".to_owned(), "run as root")),
        Some(_) if truncated => Some((format!("more than {MAX_DIRECTORIES} cgroup directories"), "remove empty ones")),
        Some(_) => None,
    }
}
