//! What was mapped where, and who was called what.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use crate::model::hash::Seeded;

/// A file or region that was mapped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mapping {
    pub end: u64,
    pub file_offset: u64,
    /// Which file; see [`Tasks::dso`].
    pub dso: u32,
}

/// A file that was mapped somewhere.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Dso {
    pub path: Rc<str>,
    pub build_id: Option<Rc<[u8]>>,
}

/// The most mappings and processes held; a file that has more loses the oldest ones' names, not its samples.
const MAX_MAPPINGS: usize = 1 << 17;
const MAX_TASKS: usize = 1 << 20;

/// An address space: mappings by start.
#[derive(Clone, Debug, Default)]
pub(super) struct Space {
    mappings: BTreeMap<u64, Mapping>,
    /// Frames of addresses seen, until the mappings change.
    pub frames: HashMap<u64, u32, Seeded>,
}

impl Space {
    pub fn map(&mut self, start: u64, mapping: Mapping) {
        if mapping.end <= start || self.mappings.len() >= MAX_MAPPINGS {
            return;
        }
        self.frames.clear();
        // What lies below is replaced where it is covered.
        let covered: Vec<u64> = self
            .mappings
            .range(..mapping.end)
            .rev()
            .take_while(|(_, old)| old.end > start)
            .map(|(old_start, _)| *old_start)
            .collect();
        for old_start in covered {
            let Some(old) = self.mappings.remove(&old_start) else { continue };
            if old.end > mapping.end {
                let file_offset = old.file_offset.wrapping_add(mapping.end - old_start);
                self.mappings.insert(mapping.end, Mapping { file_offset, ..old.clone() });
            }
            if old_start < start {
                self.mappings.insert(old_start, Mapping { end: start, ..old });
            }
        }
        self.mappings.insert(start, mapping);
    }

    /// The mapping at `address`, and the offset into its file.
    pub fn find(&self, address: u64) -> Option<(&Mapping, u64)> {
        let (start, mapping) = self.mappings.range(..=address).next_back()?;
        (address < mapping.end).then(|| (mapping, mapping.file_offset.wrapping_add(address - start)))
    }
}

/// All processes.
#[derive(Default)]
pub(super) struct Tasks {
    spaces: HashMap<u32, Space, Seeded>,
    /// Names by thread.
    names: HashMap<u32, Rc<[u8]>, Seeded>,
    dsos: Vec<Dso>,
    dso_ids: HashMap<Dso, u32>,
}

impl Tasks {
    /// The number of a file. The same file in many processes has one number, so that it is named once.
    pub fn dso_id(&mut self, dso: Dso) -> u32 {
        *self.dso_ids.entry(dso).or_insert_with_key(|dso| {
            self.dsos.push(dso.clone());
            self.dsos.len() as u32 - 1
        })
    }

    pub fn dso(&self, id: u32) -> &Dso {
        &self.dsos[id as usize]
    }

    pub fn space(&mut self, pid: u32) -> &mut Space {
        if self.spaces.len() >= MAX_TASKS {
            self.spaces.clear();
        }
        self.spaces.entry(pid).or_default()
    }

    pub fn name(&self, tid: u32) -> Option<&[u8]> {
        self.names.get(&tid).map(|name| &**name)
    }

    /// A new name, also by starting another program. What the old program had mapped stays until something else is mapped there:
    /// a stack sampled in the middle of execve still has its addresses. perf does the same.
    pub fn rename(&mut self, tid: u32, name: &[u8]) {
        if self.names.len() >= MAX_TASKS {
            self.names.clear();
        }
        self.names.insert(tid, name.into());
    }

    /// A new process has its parent's mappings, a new thread shares them; both begin with the parent's name.
    pub fn fork(&mut self, (pid, tid): (u32, u32), (parent_pid, parent_tid): (u32, u32)) {
        if pid != parent_pid {
            let mappings = self.spaces.get(&parent_pid).map(|space| space.mappings.clone()).unwrap_or_default();
            if self.spaces.len() < MAX_TASKS {
                self.spaces.insert(pid, Space { mappings, frames: HashMap::default() });
            }
        }
        if let Some(name) = self.names.get(&parent_tid).cloned() {
            self.names.insert(tid, name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapping(end: u64, file_offset: u64, dso: u32) -> Mapping {
        Mapping { end, file_offset, dso }
    }

    #[test]
    fn a_new_mapping_covers_what_lay_there() {
        let mut space = Space::default();
        space.map(100, mapping(200, 1000, 1));
        space.map(150, mapping(160, 0, 2));
        let at = |address| space.find(address).map(|(mapping, offset)| (mapping.dso, offset));
        assert_eq!(at(149), Some((1, 1049)));
        assert_eq!(at(155), Some((2, 5)));
        assert_eq!(at(160), Some((1, 1060)));
        assert_eq!(at(200), None);
        assert_eq!(at(99), None);
    }

    #[test]
    fn a_child_starts_with_its_parents_mappings_and_name() {
        let mut tasks = Tasks::default();
        tasks.rename(1, b"sh");
        tasks.space(1).map(100, mapping(200, 0, 1));
        tasks.fork((2, 2), (1, 1));
        assert_eq!(tasks.name(2), Some(&b"sh"[..]));
        assert!(tasks.space(2).find(150).is_some());
        tasks.rename(2, b"ls");
        tasks.space(2).map(100, mapping(200, 0, 2));
        assert_eq!(tasks.space(2).find(150).map(|(mapping, _)| mapping.dso), Some(2));
        assert_eq!(tasks.space(1).find(150).map(|(mapping, _)| mapping.dso), Some(1));
    }
}
