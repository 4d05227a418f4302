//! Whose children fail: processes that end with an error, by the process that started them and by name.
//!
//! A supervisor that starts a crashing child again and again is well itself, so that systemd counts no restart. A BPF program at
//! the tracepoint for ends of threads counts in the kernel (bpf/exits.bpf.c), [`ExitReader::look`] takes the counts every few
//! seconds. docs/exits.md says what counts as a failure, and what it costs.
//!
//! There is no other way: perf tells ends without their codes, the process connector tells codes without names, and by the time
//! that /proc could be asked for them the process is gone.

mod counts;
mod kernel;

#[cfg(test)]
mod host_tests;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::Duration;

use coroner_evidence::{ChildExits, Evidence, Time, probe};

use crate::Root;
use crate::bpf::{Blind, Reason};
use crate::churn::pids_are_the_nodes;
use crate::root::now;
use crate::tasks::parse_membership;
use counts::Counts;
use kernel::Program;

/// Rows for one stretch of time: those with the most failures.
const MAX_ROWS: usize = 200;
/// Parents that /proc is asked for.
const MAX_PARENTS: usize = 1000;

const INTERVAL: Duration = Duration::from_secs(5);

const WHAT: &str = "processes that end with an error, and who starts them";

/// Watches from [`ExitReader::start`] until it is dropped.
#[derive(Debug)]
pub struct ExitReader {
    root: Root,
    /// Or why there is none.
    program: Result<Program, Blind>,
    blindness_is_told: bool,
    /// Whether /proc speaks of the same pids as the kernel.
    proc_is_theirs: bool,
    namespace_is_told: bool,
    interval: Duration,
    from: Time,
    /// Failures that no row tells of.
    unnamed: u64,
}

impl ExitReader {
    /// Never fails: what cannot be seen is told at the first look.
    pub fn start(root: &Root) -> ExitReader {
        ExitReader::start_with(root, INTERVAL)
    }

    /// Sees nothing, and says so.
    pub fn without_bpf(root: &Root) -> ExitReader {
        let blind = Blind::new(Reason::Unwanted, "BPF was not to be used", "run without --no-bpf");
        ExitReader::with(root, INTERVAL, |_| Err(blind))
    }

    /// Rows are told for stretches of about this length.
    fn start_with(root: &Root, interval: Duration) -> ExitReader {
        ExitReader::with(root, interval, |own_pid| Program::attach(root, own_pid))
    }

    fn with(root: &Root, interval: Duration, attach: impl FnOnce(Option<u32>) -> Result<Program, Blind>) -> ExitReader {
        let proc_is_theirs = pids_are_the_nodes(root);
        // Elsewhere our number is that of somebody else on the node.
        let own_pid = proc_is_theirs.then(std::process::id);
        ExitReader {
            root: root.clone(),
            program: attach(own_pid),
            blindness_is_told: false,
            proc_is_theirs,
            namespace_is_told: proc_is_theirs,
            interval,
            from: now(),
            unnamed: 0,
        }
    }

    pub fn sees(&self) -> bool {
        self.program.is_ok()
    }

    /// What cannot be seen is said again at the next look.
    pub fn tell_anew(&mut self) {
        self.blindness_is_told = false;
        self.namespace_is_told = self.proc_is_theirs;
    }

    /// Tells the rows of a stretch of time that is over; to be called about once a second.
    pub fn look(&mut self, at: Time, evidence: &mut Evidence) {
        if !self.sees() || at.since(self.from) >= self.interval {
            self.tell(at, evidence);
        }
    }

    /// Tells what is left, and stops watching.
    pub fn finish(mut self, at: Time, evidence: &mut Evidence) {
        self.tell(at, evidence);
        if self.unnamed > 0 {
            evidence.unseen(
                probe::CHILD_EXITS,
                "some of the processes that ended with an error",
                format!("{} of them had so many different parents and names that there was no room", self.unnamed),
                "watch again when fewer fail",
            );
        }
    }

    fn tell(&mut self, at: Time, evidence: &mut Evidence) {
        let program = match &mut self.program {
            Ok(program) => program,
            Err(blind) => {
                if !std::mem::replace(&mut self.blindness_is_told, true) {
                    blind.note_as(evidence, probe::CHILD_EXITS, WHAT);
                }
                return;
            }
        };
        let (mut counts, lost) = match program.take() {
            Ok(taken) => taken,
            Err(e) => {
                let why = format!("the counts of the BPF program: {e}");
                let blind = Blind::new(Reason::Kernel, why, "report it, with the kernel's version");
                blind.note_as(evidence, probe::CHILD_EXITS, WHAT);
                (self.program, self.blindness_is_told) = (Err(blind), true);
                return;
            }
        };
        let mut beyond = keep_most_failed(&mut counts, MAX_PARENTS, |c| c);
        let mut rows = self.with_homes(counts);
        beyond += keep_most_failed(&mut rows, MAX_ROWS, |(c, _)| c);
        self.unnamed = self.unnamed.saturating_add(lost).saturating_add(beyond);
        if !self.namespace_is_told && !rows.is_empty() {
            self.namespace_is_told = true;
            evidence.unseen(
                probe::CHILD_EXITS,
                "cgroups of those whose children end with an error",
                "the kernel tells the pids of the node, /proc here shows those of a container",
                "run on the host, or with its pid namespace (docker run --pid=host)",
            );
        }
        let from = std::mem::replace(&mut self.from, at);
        evidence.child_exits.extend(rows.into_iter().map(|(c, cgroup)| row(from, at, c, cgroup)));
    }

    /// With the cgroups of the parents. Those that are gone are summed up by their names and those of their children: scripts
    /// that try something, shims of containers.
    fn with_homes(&self, counts: Vec<Counts>) -> Vec<(Counts, Option<String>)> {
        if !self.proc_is_theirs {
            return counts.into_iter().map(|c| (c, None)).collect();
        }
        let mut there = Vec::new();
        let mut gone: BTreeMap<(String, String), Counts> = BTreeMap::new();
        for counts in counts {
            match self.home_of(&counts) {
                Some(cgroup) => there.push((counts, cgroup)),
                None => match gone.entry((counts.parent_comm.clone(), counts.comm.clone())) {
                    Entry::Vacant(first) => drop(first.insert(counts)),
                    Entry::Occupied(mut same) => same.get_mut().add(&counts),
                },
            }
        }
        there.extend(gone.into_values().map(|c| (c, None)));
        there
    }

    /// The parent's memory cgroup, if it has one; `None` if the parent is gone. A pid is given again: so the name must still be
    /// the same after the reading.
    fn home_of(&self, counts: &Counts) -> Option<Option<String>> {
        let text = self.root.read(&format!("/proc/{}/cgroup", counts.parent_pid)).ok()?;
        let name = self.root.read_line(&format!("/proc/{}/comm", counts.parent_pid))?;
        (name == counts.parent_comm.trim()).then(|| parse_membership(&text).memory)
    }
}

/// Sorts by failures; how many those have that are too many.
fn keep_most_failed<T>(items: &mut Vec<T>, most: usize, counts: impl Fn(&T) -> &Counts) -> u64 {
    items.sort_by_key(|item| (Reverse(counts(item).failed), counts(item).parent_pid));
    items.drain(items.len().min(most)..).map(|item| counts(&item).failed).sum()
}

fn row(from: Time, to: Time, counts: Counts, cgroup: Option<String>) -> ChildExits {
    let Counts { parent_pid, parent_comm, comm, exits, failed, failed_young, exit_code, signal } = counts;
    ChildExits { from, to, parent_pid, parent_comm, cgroup, comm, exits, failed, failed_young, exit_code, signal }
}
