//! What the threads that were sampled are called. Many are gone before anybody could ask, so new names are noted as the kernel tells them.

use std::collections::{HashMap, HashSet};

use crate::Root;

/// A thread that had ended before its name could be asked for.
const GONE: &str = "(gone)";
/// The idle task's own work, or a task that this pid namespace does not show (kernel/events/core.c: perf_event_pid_type).
const IDLE: &str = "(idle task, or of another pid namespace)";
const EXITING: &str = "(exiting)";

/// So many are asked for at each look.
const EACH_LOOK: usize = 256;
/// Few of those that begin are ever sampled, so the table is simply emptied when full.
const MAX_BEGUN: usize = 4096;
const MAX_NAMES: usize = 16 << 10;

#[derive(Debug, Default)]
pub(super) struct ThreadNames {
    /// Of threads that were sampled.
    names: HashMap<u32, String>,
    /// Of those that got a name since we look.
    begun: HashMap<u32, String>,
    /// Sampled and without a name: process and thread.
    nameless: HashSet<(u32, u32)>,
}

impl ThreadNames {
    pub fn saw(&mut self, pid: u32, tid: u32) {
        let is_one = pid != 0 && pid != u32::MAX;
        if is_one && !self.names.contains_key(&tid) && self.names.len() + self.nameless.len() < MAX_NAMES {
            self.nameless.insert((pid, tid));
        }
    }

    pub fn named(&mut self, tid: u32, name: &[u8]) {
        let name = String::from_utf8_lossy(name).into_owned();
        if let Some(known) = self.names.get_mut(&tid) {
            *known = name;
            return;
        }
        if self.begun.len() >= MAX_BEGUN {
            self.begun.clear();
        }
        self.begun.insert(tid, name);
    }

    /// Asks for names as long as the threads live.
    pub fn look(&mut self, root: &Root) {
        let asked: Vec<(u32, u32)> = self.nameless.iter().copied().take(EACH_LOOK).collect();
        for (pid, tid) in asked {
            self.nameless.remove(&(pid, tid));
            // A name that was told last is the latest one.
            let name = self.begun.remove(&tid).or_else(|| {
                // Of a thread that ended its process may tell.
                let files = [format!("/proc/{pid}/task/{tid}/comm"), format!("/proc/{pid}/comm")];
                files.iter().find_map(|file| root.read_line(file))
            });
            self.names.insert(tid, name.unwrap_or_else(|| GONE.to_owned()));
        }
    }

    pub fn name(&self, pid: u32, tid: u32) -> String {
        match pid {
            0 => IDLE.to_owned(),
            u32::MAX => EXITING.to_owned(),
            _ => self.names.get(&tid).or_else(|| self.begun.get(&tid)).cloned().unwrap_or_else(|| GONE.to_owned()),
        }
    }

    /// Thread numbers are used again.
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
            threads.saw(pid, tid);
        }
        threads.named(9, b"cat");
        threads.look(&Root::at(dir.path()));
        threads.named(8, b"renamed");
        assert_eq!(threads.name(7, 7), "java");
        assert_eq!(threads.name(7, 8), "renamed");
        assert_eq!(threads.name(7, 11), "java", "it ended, its process did not");
        assert_eq!((threads.name(9, 9).as_str(), threads.name(10, 10).as_str()), ("cat", GONE));
        assert_eq!(threads.name(0, 0), IDLE);
    }
}
