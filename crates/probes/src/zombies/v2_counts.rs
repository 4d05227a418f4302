//! cgroup v2: how many dead cgroups each live one has below it (cgroup.stat of every directory), and what they hold (memory.stat
//! of those that have any).

use std::cmp::Reverse;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use coroner_evidence::{DeadBelow, Order};

use super::arithmetic::{Amounts, Sums, number, value_of};
use super::live_tree::{Files, Places, Unknown, below_and_not_in_children};
use super::look::{Ground, Lines};
use crate::cgroups::directories::{self, MAX_DIRECTORIES};

/// Since 6.12. Also counts memory controllers disabled on live cgroups.
const OF_MEMORY: &str = "nr_dying_subsys_memory";
/// Since 4.14: dead cgroups of any kind.
const OF_ANY: &str = "nr_dying_descendants";
/// Since 6.12: live memory cgroups, including this one.
const LIVE_OF_MEMORY: &str = "nr_subsys_memory";

const STAT: &str = "cgroup.stat";

#[derive(Debug, Default)]
pub(super) struct FoundCounts {
    /// Memory cgroups with a directory; `None` if not all were seen.
    pub live: Option<u64>,
    pub dead: u64,
    /// The parent with the most first.
    pub below: Vec<DeadBelow>,
    pub truncated: Vec<String>,
    /// `dead` counts cgroups of any kind, not only memory cgroups.
    pub of_any_kind: bool,
    /// Of those, the ones below parents that do not enable the memory controller for children: they may never have had one.
    pub perhaps_without_memory: u64,
    /// Parents whose dead are not counted.
    pub uncounted: Lines,
    /// Parents for which it is unknown what their dead hold.
    pub unheld: Vec<(NotTold, Lines)>,
}

/// Why it is unknown what the dead below a parent hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NotTold {
    /// The parent has processes of its own, whose memory is in the same sums. The root always does.
    OwnProcesses,
    /// Its children have no memory controller: what they hold is charged to the parent.
    NoController,
    Unreadable,
}

struct DirectoryCounts {
    dying: Result<u64, Unknown>,
    /// Sum over its live children.
    in_children: u64,
}

/// Fails with the reason if the kernel does not count them.
pub(super) fn look(ground: &Ground<'_>, read_sums: bool) -> Result<FoundCounts, String> {
    let mut files = Files::new();
    let top = ground.top.as_fd();
    let at_top = |why: Unknown| format!("{}: {why}", ground.memory.mount_point);
    let stat = files.read(top, b"", STAT).map_err(at_top)?;
    let live_of_memory = value_of(stat, LIVE_OF_MEMORY);
    let (key, dying) = match (value_of(stat, OF_MEMORY), value_of(stat, OF_ANY)) {
        (Some(dying), _) => (OF_MEMORY, dying),
        (None, Some(dying)) => (OF_ANY, dying),
        (None, None) => {
            return Err(format!("{} has no count of dead cgroups (Linux before 4.14)", ground.memory.file(STAT)));
        }
    };
    let mut found = FoundCounts { dead: dying, of_any_kind: key == OF_ANY, ..FoundCounts::default() };

    let mut known = vec![DirectoryCounts { dying: Ok(dying), in_children: 0 }];
    let mut places = Places::new();
    // Whether the parent being listed enables the memory controller for its children.
    let mut gives_memory = (u32::MAX, Ok(false));
    let mut counted = Some(1u64);
    let started = Instant::now();
    let until = started + ground.until.saturating_duration_since(started) / 2;
    let walked = directories::walk(ground.top, MAX_DIRECTORIES, |directory| {
        if Instant::now() >= until {
            return ControlFlow::Break(());
        }
        if live_of_memory.is_none() {
            if gives_memory.0 != directory.parent {
                gives_memory = (directory.parent, gives_memory_to_children(&mut files, directory.parent_fd));
            }
            counted = match gives_memory.1 {
                Ok(gives) => counted.map(|n| n + u64::from(gives)),
                Err(Unknown::Gone) => counted,
                Err(_) => None,
            };
        }
        let dying = dying_below(&mut files, directory.parent_fd, directory.name.to_bytes(), key);
        if let (Some(parent), Ok(dying)) = (known.get_mut(directory.parent as usize), &dying) {
            parent.in_children = parent.in_children.saturating_add(*dying);
        }
        places.add(directory);
        known.push(DirectoryCounts { dying, in_children: 0 });
        ControlFlow::Continue(())
    });
    let walked = walked.map_err(|e| format!("{}: {e}", ground.memory.mount_point))?;
    if walked.truncated {
        found.truncated.push(format!("stopped early; cgroups scanned: {}", walked.count));
    }
    let all_seen = !walked.truncated && walked.unreadable == 0;
    found.live = live_of_memory.or(counted.filter(|_| all_seen));

    let mut suspects: Vec<(usize, u64)> = Vec::new();
    for (i, known) in known.iter().enumerate() {
        match &known.dying {
            Ok(dying) if *dying > known.in_children => suspects.push((i, dying - known.in_children)),
            Ok(_) | Err(Unknown::Gone) => {}
            Err(why) => found.uncounted.note(|| full_path(ground, &places.path(i)), why),
        }
    }
    suspects.order_by_key(|(_, dead)| Reverse(*dead));
    drop(known);
    if suspects.is_empty() {
        return Ok(found);
    }

    // Count twice and take the smaller, so that cgroups that are just being freed are not counted.
    ground.let_go();
    let mut late = 0u64;
    for (i, first) in suspects {
        if Instant::now() >= ground.until {
            late += 1;
            continue;
        }
        let path = places.path(i);
        match parent_in_question(ground, &mut files, &path, key, read_sums) {
            Ok(second) => {
                let dead = first.min(second.dead);
                if dead == 0 {
                    continue;
                }
                let parent = full_path(ground, &path);
                let held = second.held.map_err(|(kind, why)| found.note_unheld(kind, &parent, &why)).ok();
                if found.of_any_kind && second.gives_memory == Some(false) {
                    found.perhaps_without_memory = found.perhaps_without_memory.saturating_add(dead);
                }
                found.below.push(DeadBelow { parent, dead: Some(dead), held: held.map(|h| h.held()) });
            }
            Err(Unknown::Gone) => {}
            Err(Unknown::OutOfTime) => late += 1,
            Err(why) => found.uncounted.note(|| full_path(ground, &path), &why),
        }
    }
    if late > 0 {
        found.truncated.push(format!("out of time; parents whose dead were not counted: {late}"));
    }
    if let Ok(again) = dying_below(&mut files, top, b"", key) {
        found.dead = found.dead.min(again);
    }
    found.below.order_by_key(|b| Reverse((b.dead, b.held.as_ref().map(|h| h.total()))));
    Ok(found)
}

struct InQuestion {
    dead: u64,
    gives_memory: Option<bool>,
    held: Result<Amounts, (NotTold, String)>,
}

fn parent_in_question(
    ground: &Ground<'_>,
    files: &mut Files,
    path: &[u8],
    key: &str,
    read_sums: bool,
) -> Result<InQuestion, Unknown> {
    let (gives_memory, own_processes) = {
        let dir = directories::open_below(ground.top, path).map_err(|_| Unknown::Gone)?;
        (gives_memory_to_children(files, dir.as_fd()), files.is_empty(dir.as_fd(), "cgroup.procs").map(|empty| !empty))
    };
    let why_not = match (&gives_memory, &own_processes) {
        (_, Ok(true)) => Some((NotTold::OwnProcesses, String::new())),
        (Ok(false), _) => Some((NotTold::NoController, String::new())),
        (Err(why), _) | (_, Err(why)) => Some((NotTold::Unreadable, why.to_string())),
        (Ok(true), Ok(false)) if !read_sums => Some((NotTold::Unreadable, "its memory.stat is not read".to_owned())),
        (Ok(true), Ok(false)) => None,
    };
    let gives_memory = gives_memory.ok();
    let mut unheld = why_not;
    if unheld.is_none() {
        let sums_of = |dir: BorrowedFd<'_>, name: &[u8]| sums_of(files, dir, name, key, ground.slab_stays);
        match below_and_not_in_children(ground.top, path, ground.until, sums_of) {
            Ok(amounts) => return Ok(InQuestion { dead: amounts.dying, gives_memory, held: Ok(amounts) }),
            Err(Unknown::Unreadable(why)) => unheld = Some((NotTold::Unreadable, why)),
            Err(why) => return Err(why),
        }
    }
    let count_of = |dir: BorrowedFd<'_>, name: &[u8]| {
        let dying = dying_below(files, dir, name, key)?;
        Ok(Sums { own: Amounts::NOTHING, all: Amounts { dying, ..Amounts::NOTHING } })
    };
    let amounts = below_and_not_in_children(ground.top, path, ground.until, count_of)?;
    let why = unheld.unwrap_or((NotTold::Unreadable, String::new()));
    Ok(InQuestion { dead: amounts.dying, gives_memory, held: Err(why) })
}

fn sums_of(files: &mut Files, dir: BorrowedFd<'_>, name: &[u8], key: &str, slab_stays: bool) -> Result<Sums, Unknown> {
    let mut sums = files.parse(dir, name, "memory.stat", |text| Sums::of_v2(text, slab_stays))?;
    sums.all.dying = dying_below(files, dir, name, key)?;
    // The file is missing without swap or with swapaccount=0.
    sums.all.swap = files.parse(dir, name, "memory.swap.current", number).ok();
    Ok(sums)
}

fn dying_below(files: &mut Files, dir: BorrowedFd<'_>, name: &[u8], key: &str) -> Result<u64, Unknown> {
    files.parse(dir, name, STAT, |text| value_of(text, key))
}

fn gives_memory_to_children(files: &mut Files, dir: BorrowedFd<'_>) -> Result<bool, Unknown> {
    let controllers = files.read(dir, b"", "cgroup.subtree_control")?;
    Ok(controllers.split(u8::is_ascii_whitespace).any(|c| c == b"memory"))
}

fn full_path(ground: &Ground<'_>, path: &[u8]) -> String {
    ground.memory.full_path(&String::from_utf8_lossy(path))
}

impl FoundCounts {
    fn note_unheld(&mut self, kind: NotTold, parent: &str, why: &str) {
        let lines = match self.unheld.iter().position(|(k, _)| *k == kind) {
            Some(at) => &mut self.unheld[at].1,
            None => {
                self.unheld.push((kind, Lines::default()));
                let last = self.unheld.len() - 1;
                &mut self.unheld[last].1
            }
        };
        lines.note(|| parent.to_owned(), why);
    }
}
