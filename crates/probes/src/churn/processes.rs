//! Process ancestry, from perf's fork, comm and exit records.
//!
//! A `mkdir` is gone from /proc by the time its event is read; the kernel's records have it all, in order.

use std::collections::{HashMap, VecDeque};

use coroner_evidence::Time;

use super::event::Process;
use crate::Root;

/// Ended processes that are kept: their events may arrive late, from another core's ring.
const MAX_ENDED: usize = 4096;
/// More than pid_max on most machines; the rest is looked up in /proc.
const MAX_PROCESSES: usize = 1 << 16;
/// The same chain length as in the BPF programs.
const CHAIN: usize = 4;

#[derive(Debug)]
pub(super) struct Processes {
    root: Root,
    known: HashMap<u32, ChurnProcess>,
    ended: VecDeque<(u32, Option<Time>)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct ChurnProcess {
    comm: String,
    parent: u32,
    began: Option<Time>,
}

impl Processes {
    pub fn new(root: &Root) -> Processes {
        Processes { root: root.clone(), known: HashMap::new(), ended: VecDeque::new() }
    }

    pub fn forked(&mut self, pid: u32, parent: u32, at: Time) {
        // Until it calls execve, a child has its parent's name.
        let Some(comm) = self.look_up(parent).map(|p| p.comm.clone()) else { return };
        if self.known.len() < MAX_PROCESSES {
            self.known.insert(pid, ChurnProcess { comm, parent, began: Some(at) });
        }
    }

    pub fn named(&mut self, pid: u32, comm: String) {
        if let Some(known) = self.known.get_mut(&pid) {
            known.comm = comm;
        }
    }

    pub fn ended(&mut self, pid: u32) {
        let Some(began) = self.known.get(&pid).map(|k| k.began) else { return };
        self.ended.push_back((pid, began));
        while self.ended.len() > MAX_ENDED {
            let Some((pid, began)) = self.ended.pop_front() else { break };
            // The pid may have been reused.
            if self.known.get(&pid).is_some_and(|k| k.began == began) {
                self.known.remove(&pid);
            }
        }
    }

    /// A process and its ancestors; empty if it is outside this pid namespace.
    pub fn chain(&mut self, pid: u32) -> Vec<Process> {
        let mut chain = Vec::new();
        let mut next = pid;
        while chain.len() < CHAIN && next != 0 {
            let Some(known) = self.look_up(next) else { break };
            chain.push(Process { pid: next, began: known.began, comm: known.comm.clone() });
            next = known.parent;
        }
        if chain.is_empty() && pid != 0 {
            // Gone: only its pid is known.
            chain.push(Process { pid, began: None, comm: String::new() });
        }
        chain
    }

    fn look_up(&mut self, pid: u32) -> Option<&ChurnProcess> {
        if pid == 0 {
            return None;
        }
        if !self.known.contains_key(&pid) {
            let known = parse_stat(&self.root.read(&format!("/proc/{pid}/stat")).ok()?)?;
            if self.known.len() >= MAX_PROCESSES {
                self.known.clear();
                self.ended.clear();
            }
            self.known.insert(pid, known);
        }
        self.known.get(&pid)
    }
}

/// `7 (a (b) c) S 1 …`: name in the outer parentheses, parent after the state (proc_pid_stat(5)).
fn parse_stat(text: &str) -> Option<ChurnProcess> {
    let (head, tail) = text.rsplit_once(')')?;
    let (_, comm) = head.split_once('(')?;
    let parent = tail.split_whitespace().nth(1)?.parse().ok()?;
    Some(ChurnProcess { comm: comm.to_owned(), parent, began: None })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pids(chain: &[Process]) -> Vec<(u32, &str)> {
        chain.iter().map(|p| (p.pid, p.comm.as_str())).collect()
    }

    fn node(dir: &std::path::Path) -> Processes {
        for (pid, stat) in [(1, "1 (init) S 0 1"), (40, "40 (my (sh) x) S 1 40")] {
            std::fs::create_dir_all(dir.join(format!("proc/{pid}"))).unwrap();
            std::fs::write(dir.join(format!("proc/{pid}/stat")), stat).unwrap();
        }
        Processes::new(&Root::at(dir))
    }

    #[test]
    fn a_child_is_known_after_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let mut processes = node(dir.path());
        processes.forked(50, 40, Time(5));
        processes.named(50, "mkdir".into());
        processes.ended(50);
        let chain = processes.chain(50);
        assert_eq!(pids(&chain), [(50, "mkdir"), (40, "my (sh) x"), (1, "init")]);
        assert_eq!((chain[0].began, chain[1].began), (Some(Time(5)), None));
        // The pid is reused.
        processes.forked(50, 1, Time(9));
        assert_eq!(pids(&processes.chain(50)), [(50, "init"), (1, "init")]);
        assert_eq!(pids(&processes.chain(99)), [(99, "")], "gone before it was seen");
        assert!(processes.chain(0).is_empty(), "outside our pid namespace");
    }

    #[test]
    fn ended_processes_are_forgotten_in_time() {
        let dir = tempfile::tempdir().unwrap();
        let mut processes = node(dir.path());
        for pid in 1000..1000 + 3 * MAX_ENDED as u32 {
            processes.forked(pid, 40, Time(u64::from(pid)));
            processes.ended(pid);
        }
        assert!(processes.known.len() <= MAX_ENDED + 2, "{}", processes.known.len());
        assert!(processes.ended.len() <= MAX_ENDED);
    }

    #[test]
    fn a_loop_of_parents_ends() {
        let dir = tempfile::tempdir().unwrap();
        let mut processes = node(dir.path());
        processes.forked(50, 40, Time(1));
        processes.forked(40, 50, Time(2));
        assert_eq!(processes.chain(50).len(), CHAIN);
    }

    proptest! {
        #[test]
        fn any_stat(text in "\\PC{0,60}") {
            parse_stat(&text);
            parse_stat(&format!("1 ({text}) S {text}"));
        }
    }
}
