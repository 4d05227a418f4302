//! Queries a live node about processes older than us: their mappings, names and cgroups.
//!
//! Each process is queried once, when it is first sampled or forks. With many short-lived processes that could cost more than the
//! samples, so the time is limited; what is not queried now is queried at the next sample.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::model::Seeded;
use crate::records::Beyond;
use crate::records::space::{Mapping, Tasks};
use crate::symbols::{Budget, RecordedKernel, build_id_of};

/// Time budget for queries: per second on average, and at once after a pause.
const EACH_SECOND: Duration = Duration::from_millis(10);
const AT_ONCE: Duration = Duration::from_millis(200);

/// The longest list of mappings read, and the most code mappings kept of it.
const MAX_MAPS_BYTES: u64 = 4 << 20;
const MAX_MAPS: usize = 4096;
/// The kernel's own limits: TASK_COMM_LEN, PATH_MAX and some.
const MAX_COMM_BYTES: u64 = 64;
const MAX_CGROUP_BYTES: u64 = 64 << 10;
/// The size limit of a kernel record.
const MAX_BUILD_ID: usize = 20;
/// The parent of all kernel threads, unless we are in a PID namespace of our own.
const KTHREADD: u32 = 2;
/// Files whose build ids are remembered.
const MAX_BUILD_IDS: usize = 4096;

type InodeAndPath = (u64, Box<str>);

pub(super) struct SampledNode {
    root: PathBuf,
    budget: Budget,
    build_ids: HashMap<InodeAndPath, Option<Rc<[u8]>>, Seeded>,
    /// Interned cgroup paths.
    cgroups: HashMap<Rc<str>, (), Seeded>,
}

impl SampledNode {
    pub fn new(root: &Path) -> SampledNode {
        SampledNode {
            root: root.to_owned(),
            budget: Budget::new(EACH_SECOND, AT_ONCE),
            build_ids: HashMap::default(),
            cgroups: HashMap::default(),
        }
    }

    fn read(&self, path: &str, most: u64) -> Option<Vec<u8>> {
        let mut text = Vec::new();
        File::open(self.root.join(path)).ok()?.take(most).read_to_end(&mut text).ok()?;
        Some(text)
    }

    fn ask_mappings(&mut self, pid: u32, tasks: &mut Tasks) {
        let Ok(file) = File::open(self.root.join(format!("proc/{pid}/maps"))) else { return tasks.gone(pid) };
        let mut mappings = Vec::new();
        let mut lines = BufReader::new(file.take(MAX_MAPS_BYTES));
        let mut line = Vec::new();
        while mappings.len() < MAX_MAPS && matches!(lines.read_until(b'\n', &mut line), Ok(1..)) {
            if let Ok(code) = String::from_utf8_lossy(&line).trim_end_matches('\n').parse::<Code>() {
                let build_id = self.build_id_of(pid, &code.path, code.inode);
                let dso = tasks.dso_id(&code.path, build_id, None, pid);
                mappings.push((code.start, Mapping { end: code.end, file_offset: code.file_offset, dso }));
            }
            line.clear();
        }
        tasks.asked(pid, mappings);
    }

    fn build_id_of(&mut self, pid: u32, path: &str, inode: Option<u64>) -> Option<Rc<[u8]>> {
        let is_file = path.starts_with('/') && !["//", "/dev/", "/memfd:"].iter().any(|no| path.starts_with(no));
        if !is_file {
            return None;
        }
        let key = (inode.unwrap_or(0), path.into());
        if let Some(known) = self.build_ids.get(&key) {
            return known.clone();
        }
        // As the process sees it: in a container the path is another file than here.
        let path = path.trim_start_matches('/');
        let id = build_id_of(&self.root.join(format!("proc/{pid}/root/{path}")))
            .or_else(|| build_id_of(&self.root.join(path)));
        let id: Option<Rc<[u8]>> = id.filter(|id| id.len() <= MAX_BUILD_ID).map(Into::into);
        if self.build_ids.len() >= MAX_BUILD_IDS {
            self.build_ids.clear();
        }
        self.build_ids.insert(key, id.clone());
        id
    }

    fn ask_cgroup(&mut self, pid: u32, tasks: &mut Tasks) {
        let text = self.read(&format!("proc/{pid}/cgroup"), MAX_CGROUP_BYTES);
        let path = text.as_deref().map(String::from_utf8_lossy);
        let path = path.as_deref().and_then(memory_cgroup).map(|path| self.cgroup(path));
        tasks.told_cgroup(pid, path);
    }

    fn cgroup(&mut self, path: &str) -> Rc<str> {
        if let Some((known, ())) = self.cgroups.get_key_value(path) {
            return Rc::clone(known);
        }
        // Drops those without processes.
        if self.cgroups.len() >= MAX_BUILD_IDS {
            self.cgroups.retain(|path, ()| Rc::strong_count(path) > 1);
        }
        let path: Rc<str> = path.into();
        self.cgroups.insert(Rc::clone(&path), ());
        path
    }

    fn ask_name(&mut self, pid: u32, tid: u32, tasks: &mut Tasks) {
        let name = self.read(&format!("proc/{pid}/task/{tid}/comm"), MAX_COMM_BYTES);
        match name.filter(|name| !name.is_empty()) {
            Some(name) => tasks.rename(tid, name.strip_suffix(b"\n").unwrap_or(&name)),
            None => tasks.keeps_name(tid),
        }
    }
}

impl Beyond for SampledNode {
    fn build_id(&mut self, pid: u32, path: &str, inode: Option<u64>) -> Option<Rc<[u8]>> {
        if !self.budget.is_left() {
            return None;
        }
        let began = Instant::now();
        let id = self.build_id_of(pid, path, inode);
        self.budget.spent(began);
        id
    }

    fn kernel_mapped(&mut self, _: &str, _: u64, _: u64, _: u64, _: Option<&[u8]>) {}

    fn changed_kernel(&mut self) -> Option<RecordedKernel> {
        None
    }

    fn meet(&mut self, pid: u32, tid: u32, tasks: &mut Tasks) {
        // The idle task, and those that our pid namespace does not show.
        if pid == 0 {
            return;
        }
        let (is_whole, has_told_cgroup) = tasks.knows(pid);
        let is_named = tasks.is_named(tid);
        if (is_whole && has_told_cgroup && is_named) || !self.budget.is_left() {
            return;
        }
        let began = Instant::now();
        if !is_named {
            self.ask_name(pid, tid, tasks);
        }
        if !is_whole {
            self.ask_mappings(pid, tasks);
        }
        if !tasks.knows(pid).1 {
            self.ask_cgroup(pid, tasks);
        }
        self.budget.spent(began);
    }

    /// On recent kernels (seen: 6.18; probably since 6.4) a kernel thread has its name from the start (kernel/fork.c: copy_process
    /// copies it), and the kernel records only name changes. By the records alone each would be another `kthreadd`.
    fn born(&mut self, tid: u32, parent_pid: u32, tasks: &mut Tasks) {
        if parent_pid == KTHREADD && tasks.name(KTHREADD) == Some(b"kthreadd") {
            tasks.borrows_name(tid);
        }
    }
}

/// A mapping of code.
#[derive(Debug, PartialEq, Eq)]
struct Code {
    start: u64,
    end: u64,
    file_offset: u64,
    inode: Option<u64>,
    path: String,
}

/// A line of /proc/PID/maps: `START-END PERMISSIONS OFFSET DEVICE INODE PATH`.
impl std::str::FromStr for Code {
    type Err = ();

    fn from_str(line: &str) -> Result<Code, ()> {
        let mut rest = line;
        let mut word = || {
            let (word, after) = rest.split_once(' ').unwrap_or((rest, ""));
            rest = after;
            word
        };
        let (range, permissions, offset, _device, inode) = (word(), word(), word(), word(), word());
        if permissions.as_bytes().get(2) != Some(&b'x') {
            return Err(());
        }
        let (start, end) = range.split_once('-').ok_or(())?;
        let hex = |text| u64::from_str_radix(text, 16).map_err(drop);
        let path = rest.trim_start_matches(' ');
        let path = path.strip_suffix(" (deleted)").unwrap_or(path);
        Ok(Code {
            start: hex(start)?,
            end: hex(end)?,
            file_offset: hex(offset)?,
            inode: inode.parse().ok().filter(|inode| *inode != 0),
            // As in perf's records.
            path: if path.is_empty() { "//anon".to_owned() } else { path.to_owned() },
        })
    }
}

/// The path of the memory controller's hierarchy, or of the unified one, in /proc/PID/cgroup: `hierarchy:controllers:path`.
fn memory_cgroup(text: &str) -> Option<&str> {
    let (mut memory, mut unified) = (None, None);
    for line in text.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(hierarchy), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        // A zombie process may outlive its cgroup's directory.
        let path = path.strip_suffix(" (deleted)").unwrap_or(path);
        if hierarchy == "0" && controllers.is_empty() {
            unified = Some(path);
        } else if controllers.split(',').any(|controller| controller == "memory") {
            memory = Some(path);
        }
    }
    memory.or(unified).filter(|path| path.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_code_mappings_are_taken() {
        let line =
            "55d0c0001000-55d0c0005000 r-xp 00001000 fe:00 4711                       /usr/bin/my prog (deleted)";
        let code: Code = line.parse().expect("code");
        assert_eq!((code.start, code.end), (0x55d0_c000_1000, 0x55d0_c000_5000));
        assert_eq!((code.file_offset, code.inode, code.path.as_str()), (0x1000, Some(4711), "/usr/bin/my prog"));
        let generated: Code = "7f00-8000 rwxp 00000000 00:00 0 ".parse().expect("code");
        assert_eq!((generated.path.as_str(), generated.inode), ("//anon", None));
        assert!("7f00-8000 rw-p 00000000 00:00 0 ".parse::<Code>().is_err());
        assert!("".parse::<Code>().is_err());
    }

    #[test]
    fn the_memory_hierarchy_comes_before_the_unified_one() {
        assert_eq!(memory_cgroup("3:cpu,memory:/a:b\n0::/u\n"), Some("/a:b"));
        assert_eq!(memory_cgroup("3:cpu:/a\n0::/u (deleted)\n"), Some("/u"));
        assert_eq!(memory_cgroup("nonsense"), None);
    }

    proptest::proptest! {
        #[test]
        fn any_line(line in "([0-9a-f]{0,17}-[0-9a-f]{0,17} )?[rwxp-]{0,5} ?.{0,40}") {
            let _ = line.parse::<Code>();
            memory_cgroup(&line);
        }
    }
}
