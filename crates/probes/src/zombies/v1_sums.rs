//! cgroup v1: what dead cgroups hold, by live parent, from memory.stat of every directory.

use std::cmp::Reverse;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use coroner_evidence::{DeadBelow, Order};

use super::arithmetic::{Amounts, Sums};
use super::live_tree::{Files, Places, Unknown, below_and_not_in_children};
use super::look::Ground;
use crate::cgroups::directories::{self, MAX_DIRECTORIES};

const STAT: &str = "memory.stat";

/// The sums found, and what is missing.
#[derive(Debug, Default)]
pub(super) struct FoundSums {
    /// The parent whose dead hold most comes first.
    pub below: Vec<DeadBelow>,
    pub truncated: Vec<String>,
    /// How many parents could not be worked out, and the reason for the first.
    pub unreadable: u64,
    pub unreadable_why: Option<String>,
    /// Parents whose counters exclude their children: memory.use_hierarchy is 0.
    pub flat: u64,
}

struct DirectorySums {
    /// Charged below it, minus its known live children. `None` if its file could not be read.
    rest: Option<Amounts>,
    counts_children: bool,
}

/// One read of each directory finds the suspect parents, which are then read again, more carefully. Fails if no file can be read.
pub(super) fn look(ground: &Ground<'_>) -> Result<FoundSums, String> {
    let mut files = Files::new();
    let mut found = FoundSums::default();
    let (mut first_error, mut unread) = (None, 0u64);
    let mut read = |files: &mut Files, dir: BorrowedFd<'_>, name: &[u8]| {
        let sums = files.parse(dir, name, STAT, Sums::of_v1);
        if let Err(e @ Unknown::Unreadable(_)) = &sums {
            unread += 1;
            first_error.get_or_insert_with(|| e.clone());
        }
        sums.ok()
    };

    let top = ground.top.as_fd();
    let sums = read(&mut files, top, b"");
    let counts_children = counts_children_of(&mut files, top, b"");
    let mut known = vec![DirectorySums { rest: sums.map(|s| s.below()), counts_children }];
    let mut places = Places::new();
    let started = Instant::now();
    // The other half of the time is for the suspect parents.
    let until = started + ground.until.saturating_duration_since(started) / 2;
    let walked = directories::walk(ground.top, MAX_DIRECTORIES, |directory| {
        if Instant::now() >= until {
            return ControlFlow::Break(());
        }
        let name = directory.name.to_bytes();
        let sums = read(&mut files, directory.parent_fd, name);
        let parent_counts = known.get(directory.parent as usize).is_some_and(|k| k.counts_children);
        let counts_children = parent_counts || counts_children_of(&mut files, directory.parent_fd, name);
        if let (Some(parent), Some(sums)) = (known.get_mut(directory.parent as usize), sums) {
            parent.rest = parent.rest.map(|rest| rest.less(sums.all));
        }
        places.add(directory);
        known.push(DirectorySums { rest: sums.map(|s| s.below()), counts_children });
        ControlFlow::Continue(())
    });
    let walked = walked.map_err(|e| format!("{}: {e}", ground.memory.mount_point))?;
    found.unreadable = unread;
    if unread > 0 {
        found.unreadable_why = first_error.as_ref().map(Unknown::to_string);
    }
    if known.iter().all(|k| k.rest.is_none()) {
        let why = first_error.map_or_else(|| "cannot be read".to_owned(), |e| e.to_string());
        return Err(format!("{}: {why}", ground.memory.mount_point));
    }
    if walked.truncated {
        found.truncated.push(format!("stopped early; cgroups whose memory.stat was read: {}", walked.count));
    }
    found.flat = known.iter().filter(|k| !k.counts_children).count() as u64;

    let mut suspects: Vec<(usize, Amounts)> = known
        .iter()
        .enumerate()
        .filter_map(|(i, k)| Some((i, k.rest.filter(|rest| k.counts_children && !rest.is_nothing())?)))
        .collect();
    suspects.order_by_key(|(_, rest)| Reverse(rest.held().total()));
    drop(known);
    let mut late = 0u64;
    for (number, first) in suspects {
        if Instant::now() >= ground.until {
            late += 1;
            continue;
        }
        let path = places.path(number);
        let sums_of = |dir: BorrowedFd<'_>, name: &[u8]| files.parse(dir, name, STAT, Sums::of_v1);
        match below_and_not_in_children(ground.top, &path, ground.until, sums_of) {
            Ok(second) => {
                let both = first.least(second);
                if !both.is_nothing() {
                    found.below.push(DeadBelow {
                        parent: ground.memory.full_path(&String::from_utf8_lossy(&path)),
                        dead: None,
                        held: Some(both.held()),
                    });
                }
            }
            Err(Unknown::Gone) => {}
            Err(Unknown::OutOfTime) => late += 1,
            Err(Unknown::Unreadable(why)) => {
                found.unreadable += 1;
                let path = String::from_utf8_lossy(&path).into_owned();
                found.unreadable_why.get_or_insert_with(|| format!("{}: {why}", ground.memory.full_path(&path)));
            }
        }
    }
    if late > 0 {
        found.truncated.push(format!("out of time; parents whose dead were not worked out: {late}"));
    }
    found.below.order_by_key(|b| Reverse(b.held.as_ref().map(|h| h.total())));
    Ok(found)
}

/// Whether a cgroup's counters include its children. If they do, so do those of all cgroups below; since 5.11 all do.
fn counts_children_of(files: &mut Files, dir: BorrowedFd<'_>, name: &[u8]) -> bool {
    !files.read(dir, name, "memory.use_hierarchy").is_ok_and(|text| text.trim_ascii() == b"0")
}
