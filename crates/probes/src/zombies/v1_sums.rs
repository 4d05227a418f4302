//! cgroup v1: what dead cgroups hold, by their live parents, from memory.stat of every directory.

use std::cmp::Reverse;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use coroner_evidence::DeadBelow;

use super::arithmetic::{Amounts, Sums};
use super::live_tree::{Files, Places, Unknown, below_and_not_in_children};
use super::look::Ground;
use crate::cgroups::directories::{self, MAX_DIRECTORIES};

const STAT: &str = "memory.stat";

/// What was found out, and what of it is missing.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// The parent whose dead hold most first.
    pub below: Vec<DeadBelow>,
    pub truncated: Option<String>,
    /// Parents whose dead are not told, and why the first of them is not.
    pub unreadable: u64,
    pub unreadable_why: Option<String>,
    /// Parents that do not count what is below them: memory.use_hierarchy is 0.
    pub flat: u64,
}

struct Known {
    /// Below it and, as far as these are known, in none of its live children. `None` if its file could not be read.
    rest: Option<Amounts>,
    counts_children: bool,
}

/// One read of each directory finds the parents in question; these are then read with care. An error if no file can be read.
pub(super) fn look(ground: &Ground<'_>) -> Result<Found, String> {
    let mut files = Files::new();
    let mut found = Found::default();
    let mut first_error = None;
    let read = |files: &mut Files, dir: BorrowedFd<'_>, name: &[u8], first_error: &mut Option<Unknown>| {
        let sums = files.parse(dir, name, STAT, Sums::of_v1);
        sums.map_err(|e| first_error.get_or_insert(e).clone()).ok()
    };

    let top = ground.top.as_fd();
    let sums = read(&mut files, top, b"", &mut first_error);
    // Nothing below a cgroup that counts its children can do otherwise, and from 5.11 all do.
    let counts = |files: &mut Files, dir: BorrowedFd<'_>, name: &[u8]| !matches!(files.read(dir, name, "memory.use_hierarchy"), Ok(text) if text.trim_ascii() == b"0");
    let counts_children = counts(&mut files, top, b"");
    let mut known = vec![Known { rest: sums.map(|s| s.below()), counts_children }];
    let mut places = Places::new();
    let started = Instant::now();
    // The other half of the time is for the parents in question.
    let until = started + ground.until.saturating_duration_since(started) / 2;
    let walked = directories::walk(ground.top, MAX_DIRECTORIES, |directory| {
        if Instant::now() >= until {
            return ControlFlow::Break(());
        }
        let name = directory.name.to_bytes();
        let sums = read(&mut files, directory.parent_fd, name, &mut first_error);
        let parent_counts = known.get(directory.parent as usize).is_some_and(|k| k.counts_children);
        let counts_children = parent_counts || counts(&mut files, directory.parent_fd, name);
        if let (Some(parent), Some(sums)) = (known.get_mut(directory.parent as usize), sums) {
            parent.rest = parent.rest.map(|rest| rest.less(sums.all));
        }
        places.add(directory);
        known.push(Known { rest: sums.map(|s| s.below()), counts_children });
        ControlFlow::Continue(())
    });
    let walked = walked.map_err(|e| format!("{}: {e}", ground.memory.mount_point))?;
    if known.iter().all(|k| k.rest.is_none()) {
        let why = first_error.map_or_else(|| "it cannot be read".to_owned(), |e| e.to_string());
        return Err(format!("{}: {why}", ground.memory.mount_point));
    }
    if walked.truncated {
        found.truncated = Some(format!("the sums of only {} cgroups were read", walked.count));
    }
    found.flat = known.iter().filter(|k| !k.counts_children).count() as u64;

    let mut suspects: Vec<(usize, Amounts)> = known
        .iter()
        .enumerate()
        .filter_map(|(i, k)| Some((i, k.rest.filter(|rest| k.counts_children && !rest.is_nothing())?)))
        .collect();
    suspects.sort_by_key(|(_, rest)| Reverse(rest.held().total()));
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
        found.truncated = Some(format!("what is dead below {late} more cgroups was not worked out: out of time"));
    }
    found.below.sort_by_key(|b| Reverse(b.held.as_ref().map(|h| h.total())));
    Ok(found)
}
