//! The number of dead cgroups: those the kernel tracks, minus the directories.

use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::time::Instant;

use crate::Root;
use crate::cgroups::census::{Counts, parse_proc_cgroups, why_uncounted};
use crate::cgroups::directories::{self, MAX_DIRECTORIES, Walked};
use crate::cgroups::mounts::Hierarchy;

/// Attempts to read count and directories without a change in between.
const TRIES: u32 = 3;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Count {
    pub tracked: Option<u64>,
    pub live: Option<u64>,
    pub dead: Option<u64>,
    /// Why `dead` is unknown, and what would help.
    pub why_not: Option<(String, String)>,
}

/// The memory controller's count in /proc/cgroups: live and dead ones of the whole node, including the root. On v2 it counts
/// cgroups of any kind.
pub(super) fn tracked(root: &Root) -> Result<Option<u64>, String> {
    root.read_parsed("/proc/cgroups", |text| parse_proc_cgroups(text, "memory")).map_err(|e| e.to_string())
}

/// The cgroup version of the memory controller where it is not mounted: hierarchy 0 is v2.
pub(super) fn version(root: &Root) -> u8 {
    let text = root.read("/proc/cgroups").unwrap_or_default();
    let hierarchy =
        text.lines().find_map(|line| line.strip_prefix("memory")?.split_whitespace().next()?.parse::<u32>().ok());
    if hierarchy == Some(0) { 2 } else { 1 }
}

pub(super) fn count(root: &Root, memory: &Hierarchy, top: &OwnedFd, until: Instant) -> Count {
    let mut answer = Count::default();
    for _ in 0..TRIES {
        let before = match tracked(root) {
            Ok(before) => before,
            Err(why) => {
                let how = "run on the host, with its /proc";
                return Count { why_not: Some((why, how.to_owned())), ..Count::default() };
            }
        };
        let mut out_of_time = false;
        let walked = directories::walk(top, MAX_DIRECTORIES, |directory| {
            // Not at every directory: one takes less than a microsecond.
            out_of_time = directory.number % 256 == 0 && Instant::now() >= until;
            if out_of_time { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        let walked = match walked {
            Ok(walked) => walked,
            Err(e) => {
                let why_not = Some((format!("{}: {e}", memory.mount_point), "run as root".to_owned()));
                return Count { tracked: before, why_not, ..Count::default() };
            }
        };
        let after = tracked(root).ok().flatten();
        answer = answer_of(memory, before.min(after), &walked, out_of_time);
        if before == after || out_of_time {
            break;
        }
    }
    answer
}

fn answer_of(memory: &Hierarchy, tracked: Option<u64>, walked: &Walked, out_of_time: bool) -> Count {
    let counts = Counts { tracked, ..Counts::default() };
    let why_not = if out_of_time {
        Some(("counting the cgroup directories took too long".to_owned(), "run again when the node is less busy"))
    } else {
        why_uncounted(memory, &counts, walked.unreadable, walked.truncated)
    };
    let all_seen = memory.whole && !walked.truncated && walked.unreadable == 0;
    let live = all_seen.then_some(walked.count);
    Count {
        tracked,
        live,
        dead: tracked.zip(live).filter(|_| why_not.is_none()).map(|(tracked, live)| tracked.saturating_sub(live)),
        why_not: why_not.map(|(why, how)| (why, how.to_owned())),
    }
}
