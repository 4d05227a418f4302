//! Containers and their restarts, from the files of their runtimes.
//!
//! No socket is used: a hung runtime may be the very problem. A node without these files has no containers to report.

mod docker;
mod kubelet;
mod moment;

use std::time::{Duration, Instant};

use coroner_evidence::{Evidence, Time, probe};

use crate::tree::Tree;

const MAX_CONTAINERS: usize = 2000;
const LIMIT: Duration = Duration::from_millis(200);

/// How much may still be read in this look.
struct Budget {
    deadline: Instant,
    left: usize,
    /// The first thing that could not be read, for each runtime.
    unread: Vec<String>,
    cut: bool,
}

impl Budget {
    fn new() -> Budget {
        Budget { deadline: Instant::now() + LIMIT, left: MAX_CONTAINERS, unread: Vec::new(), cut: false }
    }

    /// Whether one more may be read.
    fn take(&mut self) -> bool {
        if self.left == 0 || Instant::now() >= self.deadline {
            self.cut = true;
            return false;
        }
        self.left -= 1;
        true
    }
}

/// Appends the containers of kubelet's pods and of docker.
pub fn look(tree: &Tree, at: Time, evidence: &mut Evidence) {
    let mut budget = Budget::new();
    let before = evidence.containers.len();
    kubelet::look(tree, at, &mut budget, &mut evidence.containers);
    docker::look(tree, at, &mut budget, &mut evidence.containers);
    let what = "which containers restart repeatedly";
    if let Some(why) = budget.unread.into_iter().next() {
        evidence.unseen(probe::CONTAINERS, what, why, "run as root");
    }
    if budget.cut {
        let seen = evidence.containers.len() - before;
        evidence.unseen(
            probe::CONTAINERS,
            "whether some containers restart repeatedly",
            format!("only {seen} were read; the limit is {MAX_CONTAINERS} containers and {LIMIT:?}"),
            "kubectl get pods --all-namespaces, or docker ps --all",
        );
    }
}

#[cfg(test)]
mod tests;
