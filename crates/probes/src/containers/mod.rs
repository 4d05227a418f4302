//! Containers as the files of their runtimes tell: how often each was started again, and since when.
//!
//! Nobody is asked over a socket: a runtime that hangs is what one comes to see. A node without such files has no containers
//! that could be told of.

mod docker;
mod kubelet;
mod moment;

use std::time::{Duration, Instant};

use coroner_evidence::{Evidence, Time, probe};

use crate::tree::Tree;

const MAX_CONTAINERS: usize = 2000;
const LIMIT: Duration = Duration::from_millis(200);

/// What may still be read in this look.
struct Budget {
    deadline: Instant,
    left: usize,
    /// What could not be read, the first of each runtime.
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
    let what = "which containers restart again and again";
    if let Some(why) = budget.unread.into_iter().next() {
        evidence.unseen(probe::CONTAINERS, what, why, "run as root");
    }
    if budget.cut {
        let seen = evidence.containers.len() - before;
        evidence.unseen(
            probe::CONTAINERS,
            "some containers: whether they restart again and again",
            format!("only {seen} were read: at most {MAX_CONTAINERS}, within {LIMIT:?}"),
            "kubectl get pods --all-namespaces, or docker ps --all",
        );
    }
}

#[cfg(test)]
mod tests;
