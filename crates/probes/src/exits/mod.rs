//! Whose children fail: processes that exit with an error, by parent and name.
//!
//! A supervisor that keeps restarting a crashing child stays up itself, so systemd counts no restart. A BPF program on the thread
//! exit tracepoint counts in the kernel (bpf/exits.bpf.c); [`ExitReader::look`] collects the counts every few seconds.
//! docs/exits.md says what counts as a failure and what it costs.
//!
//! There is no other way: perf reports exits without their codes, the process connector codes without names, and by the time we
//! could read /proc the process is gone.

mod counts;
mod kernel;

#[cfg(test)]
mod host_tests;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::Duration;

use coroner_evidence::{ChildExits, Evidence, Order, Time, probe};

use crate::Root;
use crate::bpf::{Blind, Reason};
use crate::churn::pids_are_the_nodes;
use crate::root::now;
use crate::tasks::parse_membership;
use counts::Counts;
use kernel::Program;

/// Rows per interval: those with the most failures.
const MAX_ROWS: usize = 200;
/// Parents looked up in /proc.
const MAX_PARENTS: usize = 1000;

const INTERVAL: Duration = Duration::from_secs(5);

const WHAT: &str = "processes that exit with an error, and their parents";

/// Watches from [`ExitReader::start`] until it is dropped.
#[derive(Debug)]
pub struct ExitReader {
    root: Root,
    /// Or why it cannot run.
    program: Result<Program, Blind>,
    blindness_is_told: bool,
    /// Whether pids in /proc are those of the events.
    proc_is_theirs: bool,
    namespace_is_told: bool,
    interval: Duration,
    from: Time,
    /// Failures that are in no row.
    unnamed: u64,
}

impl ExitReader {
    /// Never fails: what cannot be seen is reported at the first look.
    pub fn start(root: &Root) -> ExitReader {
        ExitReader::start_with(root, INTERVAL)
    }

    /// Sees nothing and reports why.
    pub fn without_bpf(root: &Root) -> ExitReader {
        let blind = Blind::new(Reason::Unwanted, "BPF is turned off (--no-bpf)", "run without --no-bpf");
        ExitReader::with(root, INTERVAL, |_| Err(blind))
    }

    /// Rows cover about `interval`.
    fn start_with(root: &Root, interval: Duration) -> ExitReader {
        ExitReader::with(root, interval, |own_pid| Program::attach(root, own_pid))
    }

    fn with(root: &Root, interval: Duration, attach: impl FnOnce(Option<u32>) -> Result<Program, Blind>) -> ExitReader {
        let proc_is_theirs = pids_are_the_nodes(root);
        // In another namespace our pid is some other process on the node.
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

    /// Reports again at the next look what cannot be seen.
    pub fn tell_anew(&mut self) {
        self.blindness_is_told = false;
        self.namespace_is_told = self.proc_is_theirs;
    }

    /// Reports the rows of a finished interval. Call about once a second.
    pub fn look(&mut self, at: Time, evidence: &mut Evidence) {
        if !self.sees() || at.since(self.from) >= self.interval {
            self.tell(at, evidence);
        }
    }

    /// Reports the rest and stops watching.
    pub fn finish(mut self, at: Time, evidence: &mut Evidence) {
        self.tell(at, evidence);
        if self.unnamed > 0 {
            evidence.unseen(
                probe::CHILD_EXITS,
                "some of the processes that exited with an error",
                format!("{} of the failures have no row: too many different parents and names", self.unnamed),
                "run again when fewer processes fail",
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
                let why = format!("cannot read the BPF program's counts: {e}");
                let blind = Blind::new(Reason::Kernel, why, "report this as a bug, with the kernel version");
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
                "cgroups of the processes whose children exit with an error",
                "events carry the node's pids, but /proc here shows a container's",
                "run on the host, or with its pid namespace (docker run --pid=host)",
            );
        }
        let from = std::mem::replace(&mut self.from, at);
        evidence.child_exits.extend(rows.into_iter().map(|(c, cgroup)| row(from, at, c, cgroup)));
    }

    /// Adds the parents' cgroups. Parents that are gone are summed by their own and their children's names: short scripts,
    /// container shims.
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

    /// The parent's memory cgroup, if any; `None` if the parent is gone. Pids are reused, so the name must still match after
    /// the read.
    fn home_of(&self, counts: &Counts) -> Option<Option<String>> {
        let text = self.root.read(&format!("/proc/{}/cgroup", counts.parent_pid)).ok()?;
        let name = self.root.read_line(&format!("/proc/{}/comm", counts.parent_pid))?;
        (name == counts.parent_comm.trim()).then(|| parse_membership(&text).memory)
    }
}

/// Keeps the `most` items with the most failures. Returns the failures of those dropped.
fn keep_most_failed<T>(items: &mut Vec<T>, most: usize, counts: impl Fn(&T) -> &Counts) -> u64 {
    items.order_by_key(|item| (Reverse(counts(item).failed), counts(item).parent_pid));
    items.drain(items.len().min(most)..).map(|item| counts(&item).failed).sum()
}

fn row(from: Time, to: Time, counts: Counts, cgroup: Option<String>) -> ChildExits {
    let Counts { parent_pid, parent_comm, comm, exits, failed, failed_young, exit_code, signal } = counts;
    ChildExits { from, to, parent_pid, parent_comm, cgroup, comm, exits, failed, failed_young, exit_code, signal }
}
