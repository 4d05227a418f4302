//! Names of sampled threads. Many are gone before /proc can be read, so names are also taken from the kernel's records.

use std::collections::{HashMap, HashSet};

use coroner_evidence::kernel_work::who;

use crate::Root;

/// Threads looked up per look.
const EACH_LOOK: usize = 256;
/// Few new threads are ever sampled, so the table is simply cleared when full.
const MAX_BEGUN: usize = 4096;
const MAX_NAMES: usize = 16 << 10;

#[derive(Debug, Default)]
pub(super) struct ThreadNames {
    /// Of sampled threads.
    names: HashMap<u32, Option<String>>,
    /// Of threads named since the start.
    begun: HashMap<u32, String>,
    /// Sampled threads without a name yet: process and thread.
    nameless: HashSet<(u32, u32)>,
}

impl ThreadNames {
    pub fn saw(&mut self, pid: Option<u32>, tid: Option<u32>) {
        if let (Some(pid @ 1..), Some(tid)) = (pid, tid)
            && !self.names.contains_key(&tid)
            && self.names.len() + self.nameless.len() < MAX_NAMES
        {
            self.nameless.insert((pid, tid));
        }
    }

    pub fn named(&mut self, tid: u32, name: &[u8]) {
        if name.is_empty() {
            return;
        }
        let name = String::from_utf8_lossy(name).into_owned();
        if let Some(known) = self.names.get_mut(&tid) {
            *known = Some(name);
            return;
        }
        if self.begun.len() >= MAX_BEGUN {
            self.begun.clear();
        }
        self.begun.insert(tid, name);
    }

    /// Looks up names while the threads live.
    pub fn look(&mut self, root: &Root) {
        let asked: Vec<(u32, u32)> = self.nameless.iter().copied().take(EACH_LOOK).collect();
        for (pid, tid) in asked {
            self.nameless.remove(&(pid, tid));
            // A name from the kernel's records is newer than /proc's.
            let name = self.begun.remove(&tid).or_else(|| {
                // If the thread has ended, its process may still have a name.
                let files = [format!("/proc/{pid}/task/{tid}/comm"), format!("/proc/{pid}/comm")];
                files.iter().find_map(|file| root.read_line(file))
            });
            self.names.insert(tid, name);
        }
    }

    /// Process, thread and name for a row.
    pub fn who(&self, pid: Option<u32>, tid: Option<u32>) -> (u32, u32, String) {
        let name = |tid| self.names.get(&tid).and_then(Option::as_ref).or_else(|| self.begun.get(&tid));
        who(pid, tid, tid.and_then(name).map(String::as_str))
    }

    /// Thread ids are reused.
    pub fn forget(&mut self) {
        self.names.clear();
        self.nameless.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_have_names_of_their_own_and_keep_the_latest() {
        let dir = tempfile::tempdir().unwrap();
        for (tid, name) in [(7, "java\n"), (8, "GC Thread#0\n")] {
            let task = dir.path().join(format!("proc/7/task/{tid}"));
            std::fs::create_dir_all(&task).unwrap();
            std::fs::write(task.join("comm"), name).unwrap();
        }
        std::fs::write(dir.path().join("proc/7/comm"), "java\n").unwrap();
        let mut threads = ThreadNames::default();
        for (pid, tid) in [(7, 7), (7, 8), (7, 11), (9, 9), (10, 10), (0, 0)] {
            threads.saw(Some(pid), Some(tid));
        }
        threads.named(9, b"cat");
        threads.look(&Root::at(dir.path()));
        threads.named(8, b"renamed");
        let name = |pid, tid| threads.who(Some(pid), Some(tid)).2;
        assert_eq!(name(7, 7), "java");
        assert_eq!(name(7, 8), "renamed");
        assert_eq!(name(7, 11), "java", "it ended, its process did not");
        assert_eq!((name(9, 9).as_str(), name(10, 10).as_str()), ("cat", "(gone)"));
        assert_eq!(threads.who(None, None), (0, 0, "(exiting)".to_owned()));
    }
}
