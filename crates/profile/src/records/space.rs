//! Mappings and names of processes and threads.
//!
//! Memory must not grow with the number of short-lived processes: a process that ended is forgotten once [`MAX_ENDED`] others
//! ended after it, unless it shows up again (its other threads may live on).

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::rc::Rc;

use super::Limits;
use crate::model::{Seeded, StrId, Strings};

/// A mapped file or region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub end: u64,
    pub file_offset: u64,
    /// Which file; see [`Tasks::dso`].
    pub dso: u32,
}

/// A mapped file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Dso {
    pub path: Rc<str>,
    pub build_id: Option<Rc<[u8]>>,
    pub inode: Option<u64>,
}

/// The most mappings of one process; beyond it names are lost, not samples.
const MAX_MAPPINGS: usize = 1 << 17;
/// How many different files with the same path are tracked at once.
const MAX_OF_ONE_PATH: usize = 32;
/// How many ended processes and threads are remembered: a dying one is still sampled after its exit record.
const MAX_ENDED: usize = 1024;

/// How many gaps are remembered. Stacks of programs without frame pointers are full of heap addresses.
const GAPS: usize = 4;

/// An address space: mappings by start.
#[derive(Clone, Debug, Default)]
pub(crate) struct Space {
    /// Shared with the parent until one of them changes it.
    mappings: Rc<BTreeMap<u64, Mapping>>,
    /// The same number means the same mappings of the same process; 0 if nothing is mapped.
    pub version: u32,
    /// Recently found gaps of this version: address ranges without a mapping.
    gaps: [(u64, u64); GAPS],
    gaps_of: u32,
    next_gap: u8,
    seen_since_end: bool,
    /// All mappings are known: the process was seen from its start, or queried.
    pub is_whole: bool,
    /// Its cgroup, or the one it was created in.
    pub cgroup: Option<Rc<str>>,
    /// Its cgroup was queried.
    pub has_told_cgroup: bool,
}

impl Space {
    fn map(&mut self, start: u64, mapping: Mapping) {
        if mapping.end <= start || self.mappings.len() >= MAX_MAPPINGS {
            return;
        }
        let mappings = Rc::make_mut(&mut self.mappings);
        // Covered parts of older mappings are replaced.
        let covered: Vec<u64> = mappings
            .range(..mapping.end)
            .rev()
            .take_while(|(_, old)| old.end > start)
            .map(|(old_start, _)| *old_start)
            .collect();
        for old_start in covered {
            let Some(old) = mappings.remove(&old_start) else { continue };
            if old.end > mapping.end {
                let file_offset = old.file_offset.wrapping_add(mapping.end - old_start);
                mappings.insert(mapping.end, Mapping { file_offset, ..old.clone() });
            }
            if old_start < start {
                mappings.insert(old_start, Mapping { end: start, ..old });
            }
        }
        mappings.insert(start, mapping);
    }

    /// The mapping at `address`, and the offset into its file.
    pub fn find(&mut self, address: u64) -> Option<(&Mapping, u64)> {
        if self.gaps_of == self.version && self.gaps.iter().any(|(start, end)| (*start..*end).contains(&address)) {
            return None;
        }
        match self.mappings.range(..=address).next_back() {
            Some((start, mapping)) if address < mapping.end => {
                Some((mapping, mapping.file_offset.wrapping_add(address - start)))
            }
            before => {
                let start = before.map_or(0, |(_, mapping)| mapping.end);
                let end = self.mappings.range(address..).next().map_or(u64::MAX, |(start, _)| *start);
                if self.gaps_of != self.version {
                    (self.gaps, self.gaps_of) = ([(0, 0); GAPS], self.version);
                }
                self.gaps[usize::from(self.next_gap) % GAPS] = (start, end);
                self.next_gap = self.next_gap.wrapping_add(1);
                None
            }
        }
    }
}

struct Name {
    text: Rc<[u8]>,
    /// This is the parent's name; the thread has its own, but no record has it.
    is_borrowed: bool,
    /// Its id in the current dictionary, once interned.
    interned: Option<StrId>,
    seen_since_end: bool,
}

/// All processes.
#[derive(Default)]
pub(crate) struct Tasks {
    limits: Limits,
    spaces: HashMap<u32, Space, Seeded>,
    /// Names by thread.
    names: HashMap<u32, Name, Seeded>,
    /// Ended processes and threads, oldest first.
    ended: VecDeque<(u32, u32)>,
    dsos: Vec<(Dso, u32)>,
    /// Files by path; files with the same path differ in build id or inode.
    dso_ids: HashMap<Rc<str>, Vec<u32>, Seeded>,
    path_bytes: usize,
    versions: u32,
    /// Number of mappings of all processes; shared ones count once.
    all_mappings: usize,
}

impl Tasks {
    pub fn new(limits: Limits) -> Tasks {
        Tasks { limits, ..Tasks::default() }
    }

    /// Number of known processes and threads.
    #[cfg(test)]
    pub fn held(&self) -> (usize, usize) {
        (self.spaces.len(), self.names.len())
    }

    /// Whether the file limit is reached, so that further files share one id.
    pub fn is_full(&self) -> bool {
        self.path_bytes > self.limits.path_bytes
    }

    /// Forgets everything. File ids are reused from now on.
    pub fn forget(&mut self) {
        *self = Tasks { versions: self.versions, ..Tasks::new(self.limits) };
    }

    /// The id of a file. The same file in many processes has one id, so that it is named once.
    pub fn dso_id(&mut self, path: &str, build_id: Option<Rc<[u8]>>, inode: Option<u64>, pid: u32) -> u32 {
        let known = self.dso_ids.get(path);
        let same = |id: &&u32| {
            let dso = &self.dsos[**id as usize].0;
            dso.inode == inode && dso.build_id == build_id
        };
        if let Some(id) = known.and_then(|known| known.iter().find(same)) {
            return *id;
        }
        if self.path_bytes > self.limits.path_bytes {
            return 0;
        }
        if self.dsos.is_empty() {
            // Stands for all files beyond the limit.
            self.dsos.push((Dso { path: "[unknown]".into(), build_id: None, inode: None }, 0));
        }
        self.path_bytes += path.len() + 64;
        let id = self.dsos.len() as u32;
        let path: Rc<str> = path.into();
        self.dsos.push((Dso { path: Rc::clone(&path), build_id, inode }, pid));
        let known = self.dso_ids.entry(path).or_default();
        // A path that is overwritten again and again: the newest files are the ones mapped next.
        if known.len() >= MAX_OF_ONE_PATH {
            known.remove(0);
        }
        known.push(id);
        id
    }

    /// A file and a process that had it mapped.
    pub fn dso(&self, id: u32) -> &(Dso, u32) {
        &self.dsos[id as usize]
    }

    pub fn map(&mut self, pid: u32, start: u64, mapping: Mapping) {
        if self.spaces.len() >= self.limits.tasks {
            self.spaces.clear();
            self.all_mappings = 0;
        }
        let space = self.spaces.entry(pid).or_default();
        let shared = Rc::strong_count(&space.mappings) > 1;
        if shared && self.all_mappings + space.mappings.len() > self.limits.mappings {
            space.mappings = Rc::default();
        }
        if !shared && self.all_mappings > self.limits.mappings {
            return;
        }
        let before = if shared { 0 } else { space.mappings.len() };
        space.map(start, mapping);
        // If nothing was mapped after all, it is still shared and counted elsewhere.
        let after = if Rc::strong_count(&space.mappings) > 1 { before } else { space.mappings.len() };
        self.all_mappings = self.all_mappings.saturating_sub(before) + after;
        self.versions = self.versions.wrapping_add(1).max(1);
        space.version = self.versions;
        space.seen_since_end = true;
    }

    pub fn space(&mut self, pid: u32) -> Option<&mut Space> {
        let space = self.spaces.get_mut(&pid)?;
        space.seen_since_end = true;
        Some(space)
    }

    pub fn name(&mut self, tid: u32) -> Option<&[u8]> {
        let name = self.names.get_mut(&tid)?;
        name.seen_since_end = true;
        Some(&name.text)
    }

    /// The id of a thread's name in `strings`, which must be the same until [`Tasks::forget_strings`].
    pub fn interned_name(&mut self, tid: u32, strings: &mut Strings) -> Option<StrId> {
        let name = self.names.get_mut(&tid)?;
        name.seen_since_end = true;
        Some(*name.interned.get_or_insert_with(|| strings.intern_bytes(&name.text)))
    }

    /// Drops interned ids: a new dictionary begins.
    pub fn forget_strings(&mut self) {
        self.names.values_mut().for_each(|name| name.interned = None);
    }

    /// Sets a thread's name, also on exec. The old program's mappings stay until they are overwritten: a stack sampled in the
    /// middle of execve still has its addresses. perf does the same.
    pub fn rename(&mut self, tid: u32, name: &[u8]) {
        if self.names.len() >= self.limits.tasks {
            self.names.clear();
        }
        self.names.insert(tid, Name { text: name.into(), is_borrowed: false, interned: None, seen_since_end: true });
    }

    /// A new process copies its parent's mappings, a new thread shares them; both start with the parent's name.
    pub fn fork(&mut self, (pid, tid): (u32, u32), (parent_pid, parent_tid): (u32, u32)) {
        if pid != parent_pid {
            let parent = self.spaces.get(&parent_pid).filter(|parent| parent.version != 0);
            let is_whole = parent.is_some_and(|parent| parent.is_whole);
            let cgroup = parent.and_then(|parent| parent.cgroup.clone());
            match parent.map(|parent| Rc::clone(&parent.mappings)) {
                Some(mappings) if self.spaces.len() < self.limits.tasks => {
                    self.versions = self.versions.wrapping_add(1).max(1);
                    let version = self.versions;
                    let space = Space { mappings, version, seen_since_end: true, is_whole, cgroup, ..Space::default() };
                    let old = self.spaces.insert(pid, space);
                    self.released(old);
                }
                _ => {
                    let old = self.spaces.remove(&pid);
                    self.released(old);
                }
            }
        }
        if let Some((text, interned)) = self.names.get(&parent_tid).map(|name| (Rc::clone(&name.text), name.interned))
            && self.names.len() < self.limits.tasks
        {
            self.names.insert(tid, Name { text, is_borrowed: false, interned, seen_since_end: true });
        }
    }

    /// A new thread has its own name, but no record has it. Until it is queried it keeps its parent's.
    pub fn borrows_name(&mut self, tid: u32) {
        if let Some(name) = self.names.get_mut(&tid) {
            name.is_borrowed = true;
        }
    }

    /// Whether the thread's own name is known.
    pub fn is_named(&self, tid: u32) -> bool {
        self.names.get(&tid).is_some_and(|name| !name.is_borrowed)
    }

    /// The query failed and is not repeated: the thread keeps the name it has.
    pub fn keeps_name(&mut self, tid: u32) {
        if let Some(name) = self.names.get_mut(&tid) {
            name.is_borrowed = false;
        }
    }

    /// The process executes another program. Its mappings will be recorded; its cgroup may have changed.
    pub fn exec(&mut self, pid: u32) {
        if self.spaces.len() < self.limits.tasks || self.spaces.contains_key(&pid) {
            let space = self.spaces.entry(pid).or_default();
            (space.is_whole, space.has_told_cgroup) = (true, false);
        }
    }

    /// The answer to a query: replaces the mappings of a process.
    pub fn asked(&mut self, pid: u32, mappings: Vec<(u64, Mapping)>) {
        let old = self.spaces.get_mut(&pid).map(|space| std::mem::take(&mut space.mappings));
        if let Some(old) = old.filter(|old| Rc::strong_count(old) == 1) {
            self.all_mappings = self.all_mappings.saturating_sub(old.len());
        }
        for (start, mapping) in mappings {
            self.map(pid, start, mapping);
        }
        self.versions = self.versions.wrapping_add(1).max(1);
        let space = self.spaces.entry(pid).or_default();
        (space.version, space.is_whole, space.seen_since_end) = (self.versions, true, true);
    }

    /// Whether its mappings are complete, and whether its cgroup was queried.
    pub fn knows(&self, pid: u32) -> (bool, bool) {
        self.spaces.get(&pid).map_or((false, false), |space| (space.is_whole, space.has_told_cgroup))
    }

    /// The query failed and is not repeated.
    pub fn gone(&mut self, pid: u32) {
        if self.spaces.len() < self.limits.tasks || self.spaces.contains_key(&pid) {
            let space = self.spaces.entry(pid).or_default();
            (space.is_whole, space.has_told_cgroup) = (true, true);
        }
    }

    pub fn cgroup(&self, pid: u32) -> Option<&str> {
        self.spaces.get(&pid)?.cgroup.as_deref()
    }

    /// `None` if the query failed.
    pub fn told_cgroup(&mut self, pid: u32, cgroup: Option<Rc<str>>) {
        if let Some(space) = self.spaces.get_mut(&pid) {
            space.has_told_cgroup = true;
            space.cgroup = cgroup.or_else(|| space.cgroup.take());
        }
    }

    pub fn exit(&mut self, pid: u32, tid: u32) {
        self.unsee(pid, tid);
        self.ended.push_back((pid, tid));
        if self.ended.len() <= MAX_ENDED {
            return;
        }
        let Some((pid, tid)) = self.ended.pop_front() else { return };
        // Whatever was seen since is alive: another thread, or a new process with the same PID.
        if self.names.get(&tid).is_some_and(|name| !name.seen_since_end) {
            self.names.remove(&tid);
        }
        if pid == tid && self.spaces.get(&pid).is_some_and(|space| !space.seen_since_end) {
            let old = self.spaces.remove(&pid);
            self.released(old);
        }
    }

    fn released(&mut self, old: Option<Space>) {
        if let Some(old) = old.filter(|old| Rc::strong_count(&old.mappings) == 1) {
            self.all_mappings = self.all_mappings.saturating_sub(old.mappings.len());
        }
    }

    fn unsee(&mut self, pid: u32, tid: u32) {
        if let Some(name) = self.names.get_mut(&tid) {
            name.seen_since_end = false;
        }
        if pid == tid
            && let Some(space) = self.spaces.get_mut(&pid)
        {
            space.seen_since_end = false;
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
    fn a_new_mapping_replaces_what_it_covers() {
        let mut space = Space::default();
        space.map(100, mapping(200, 1000, 1));
        space.map(150, mapping(160, 0, 2));
        let mut at = |address| space.find(address).map(|(mapping, offset)| (mapping.dso, offset));
        assert_eq!(at(149), Some((1, 1049)));
        assert_eq!(at(155), Some((2, 5)));
        assert_eq!(at(160), Some((1, 1060)));
        assert_eq!(at(200), None);
        assert_eq!(at(99), None);
    }

    #[test]
    fn a_mapping_made_in_a_gap_is_found() {
        let mut tasks = Tasks::new(Limits::FILE);
        tasks.map(1, 100, mapping(200, 0, 1));
        for address in [0, 99, 200, 250, u64::MAX, 210, 50] {
            assert_eq!(at(&mut tasks, 1, address), None);
            assert_eq!(at(&mut tasks, 1, 150), Some(1));
        }
        tasks.map(1, 240, mapping(260, 0, 2));
        assert_eq!(at(&mut tasks, 1, 250), Some(2));
        assert_eq!(at(&mut tasks, 1, 239), None);
        tasks.fork((2, 2), (1, 1));
        tasks.map(2, 210, mapping(220, 0, 3));
        assert_eq!((at(&mut tasks, 1, 215), at(&mut tasks, 2, 215)), (None, Some(3)));
        tasks.asked(1, vec![(0, mapping(50, 0, 4))]);
        assert_eq!((at(&mut tasks, 1, 10), at(&mut tasks, 1, 150)), (Some(4), None));
    }

    fn at(tasks: &mut Tasks, pid: u32, address: u64) -> Option<u32> {
        tasks.space(pid)?.find(address).map(|(mapping, _)| mapping.dso)
    }

    #[test]
    fn a_child_starts_with_its_parents_mappings_and_name() {
        let mut tasks = Tasks::new(Limits::FILE);
        tasks.rename(1, b"sh");
        tasks.map(1, 100, mapping(200, 0, 1));
        tasks.fork((2, 2), (1, 1));
        assert_eq!(tasks.name(2), Some(&b"sh"[..]));
        assert_eq!(at(&mut tasks, 2, 150), Some(1));
        tasks.rename(2, b"ls");
        tasks.map(2, 100, mapping(200, 0, 2));
        assert_eq!(at(&mut tasks, 2, 150), Some(2));
        assert_eq!(at(&mut tasks, 1, 150), Some(1));
    }

    #[test]
    fn short_processes_are_forgotten_and_those_still_seen_are_not() {
        let mut tasks = Tasks::new(Limits::FILE);
        tasks.rename(1, b"sh");
        tasks.map(1, 100, mapping(200, 0, 1));
        // Its main thread ended, another one keeps running.
        tasks.fork((2, 2), (1, 1));
        tasks.exit(2, 2);
        for pid in 10..100_000 {
            tasks.fork((pid, pid), (1, 1));
            tasks.exit(pid, pid);
            assert!(at(&mut tasks, 2, 150).is_some());
        }
        assert_eq!(at(&mut tasks, 1, 150), Some(1));
        assert!(at(&mut tasks, 99_999, 150).is_some(), "the last to end may still be sampled");
        assert!(at(&mut tasks, 10, 150).is_none());
        assert!(tasks.spaces.len() <= MAX_ENDED + 2 && tasks.names.len() <= MAX_ENDED + 2);
    }
}
