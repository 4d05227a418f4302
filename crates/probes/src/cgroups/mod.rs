//! Cgroups v1, v2 and hybrid: where they are mounted, how many there are, and which limit their processes.
//!
//! Three looks of different cost, for the caller to pace:
//! - [`Cgroups::look`]: the kernel's counts, and a census of directories when they changed and a walk is affordable.
//! - [`Cgroups::look_control`]: CPU throttling and memory limits of cgroups that have processes.
//! - [`Cgroups::start_stat_read`], [`Cgroups::collect_stat_read`]: one guarded, timed read of the root's memory statistics.

pub(crate) mod census;
mod control;
pub(crate) mod directories;
pub(crate) mod mounts;
pub(crate) mod stat_read;

#[cfg(test)]
mod host_tests;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::time::Duration;

use coroner_evidence::{About, CgroupCensus, CgroupMount, Evidence, Source, Time, probe};
use rustix::time::ClockId;

use crate::Root;
use crate::root::{clock, now};
use census::{Counts, Populated};
use control::Control;
pub use control::Reread;
use directories::MAX_DIRECTORIES;
use mounts::Hierarchy;
use stat_read::StatReader;
pub(crate) use stat_read::parse_release;

/// A walk is repeated only after this many times its CPU time: at most 2 % of a core.
const WALK_SHARE: u32 = 50;

/// On v1 a directory that is removed but stays as a zombie changes no kernel count. So the walk is repeated now and then
/// unprompted, for at most 0.2 % of a core.
const UNPROMPTED_WALK_SHARE: u32 = 500;
const UNPROMPTED_WALK_EVERY: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub struct Cgroups {
    root: Root,
    /// `None` before the first look.
    found: Option<FoundHierarchies>,
    last_walk: Option<LastWalk>,
    told: Told,
    control: Control,
    stat_reader: StatReader,
}

#[derive(Debug)]
struct FoundHierarchies {
    mounts: Vec<CgroupMount>,
    memory: Option<Hierarchy>,
    cpu: Option<Hierarchy>,
}

#[derive(Debug)]
struct LastWalk {
    at: Time,
    cpu: Duration,
    counts: Counts,
}

/// The last written values of the CgroupTree counters.
#[derive(Debug, Default)]
struct Told {
    tracked: Option<u64>,
    live: Option<u64>,
    dying: Option<u64>,
}

impl Cgroups {
    pub fn new(root: Root) -> Cgroups {
        Cgroups { root, ..Cgroups::default() }
    }

    /// Makes the next look report everything like the first. A hanging timed read is not forgotten.
    pub fn tell_anew(&mut self) {
        self.found = None;
        self.last_walk = None;
        self.told = Told::default();
        self.control = Control::default();
    }

    /// Mounts at the first look; the kernel's counts; a census when they changed and it is affordable.
    ///
    /// `populated`: the memory cgroups of all processes, as in /proc/PID/cgroup; `None` if not all could be seen.
    pub fn look(&mut self, at: Time, populated: Option<&HashSet<String>>, evidence: &mut Evidence) {
        self.find(evidence);
        let Some(memory) = self.found.as_ref().and_then(|f| f.memory.clone()) else { return };
        let counts = match Counts::read(&self.root, &memory) {
            Ok(counts) => counts,
            Err(e) => {
                evidence.unseen_about(
                    probe::CGROUPS,
                    About::MemoryCgroups,
                    "how many memory cgroups the kernel tracks",
                    e.to_string(),
                    "run on the host, with its /proc and /sys/fs/cgroup",
                );
                Counts::default()
            }
        };
        let due = match &self.last_walk {
            None => true,
            Some(last) => {
                let passed = at.since(last.at);
                let moved = counts != last.counts && passed >= last.cpu.saturating_mul(WALK_SHARE);
                let unprompted = memory.version == 1
                    && passed >= last.cpu.saturating_mul(UNPROMPTED_WALK_SHARE).max(UNPROMPTED_WALK_EVERY);
                moved || unprompted
            }
        };
        if due {
            self.take_census(at, &memory, counts, populated, evidence);
        } else {
            self.told.tell(at, &memory, counts.tracked, counts.live, counts.dying, evidence);
        }
    }

    /// CPU throttling and memory limits of the processes' cgroups and all their ancestors. Paths are from /proc/PID/cgroup, in
    /// the hierarchies with the cpu and the memory controller.
    pub fn look_control(
        &mut self,
        at: Time,
        cpu_paths: &HashSet<String>,
        memory_paths: &HashSet<String>,
        reread: Reread,
        evidence: &mut Evidence,
    ) {
        self.find(evidence);
        let Some(found) = &self.found else { return };
        self.control.look(
            &self.root,
            at,
            found.cpu.as_ref().map(|h| (h, cpu_paths)),
            found.memory.as_ref().map(|h| (h, memory_paths)),
            reread,
            evidence,
        );
    }

    /// Starts one read of the root's memory statistics on its own thread, unless one is pending. If the read would hurt the node,
    /// says so instead.
    pub fn start_stat_read(&mut self, at: Time, evidence: &mut Evidence) {
        self.find(evidence);
        let Some(memory) = self.found.as_ref().and_then(|f| f.memory.as_ref()) else { return };
        self.stat_reader.start(&self.root, memory, at, evidence);
    }

    /// Appends finished reads. An overdue one is reported once as unfinished, and again if it does finish. Never waits; true if
    /// none is pending.
    pub fn collect_stat_read(&mut self, evidence: &mut Evidence) -> bool {
        self.stat_reader.collect(evidence)
    }

    /// The mounts, after the first look.
    pub fn mounts(&self) -> &[CgroupMount] {
        self.found.as_ref().map_or(&[], |f| &f.mounts)
    }

    fn find(&mut self, evidence: &mut Evidence) {
        if self.found.is_some() {
            return;
        }
        let mounts = mounts::find(&self.root, evidence);
        let memory = mounts::with_controller(&self.root, &mounts, "memory");
        let cpu = mounts::with_controller(&self.root, &mounts, "cpu");
        if !mounts.is_empty() {
            for (hierarchy, controller, about, what) in [
                (
                    &memory,
                    "memory",
                    About::MemoryCgroups,
                    "memory cgroups: how many there are, how many are dead, their limits",
                ),
                (&cpu, "cpu", About::CpuQuotas, "CPU throttling by cgroup quotas"),
            ] {
                if hierarchy.is_none() {
                    evidence.unseen_about(
                        probe::CGROUPS,
                        about,
                        what,
                        format!("no cgroup mount has the {controller} controller"),
                        format!("run on the host; boot without cgroup_disable={controller}"),
                    );
                }
            }
        }
        if let Some(h) = &memory
            && !h.whole
        {
            evidence.unseen(
                probe::CGROUPS,
                "cgroups outside this container",
                format!("{} shows only part of the node's hierarchy", h.mount_point),
                "run on the host, or with its cgroup namespace and /sys/fs/cgroup (docker run --cgroupns=host)",
            );
        }
        evidence.cgroup_mounts.extend(mounts.iter().cloned());
        self.found = Some(FoundHierarchies { mounts, memory, cpu });
    }

    fn take_census(
        &mut self,
        at: Time,
        memory: &Hierarchy,
        counts: Counts,
        populated: Option<&HashSet<String>>,
        evidence: &mut Evidence,
    ) {
        // If a cgroup namespace hides names, processes cannot be matched with directories.
        let populated = populated.filter(|_| memory.paths_match());
        let processes = Populated::of_paths(populated.into_iter().flatten(), memory);
        let top = self.root.path(&memory.mount_point);
        let started = now();
        let cpu_started = clock(ClockId::ThreadCPUTime);

        // Count and directories must match: walk again if the count changed meanwhile.
        let mut counts = counts;
        let mut walked = census::walk(&top, &processes, MAX_DIRECTORIES);
        let after = Counts::read(&self.root, memory).unwrap_or_default();
        if after != counts {
            walked = census::walk(&top, &processes, MAX_DIRECTORIES);
            counts = Counts::read(&self.root, memory).unwrap_or_default();
        }
        let took_ns = now().0.saturating_sub(started.0);
        let cpu = Duration::from_nanos(clock(ClockId::ThreadCPUTime).0.saturating_sub(cpu_started.0));
        self.last_walk = Some(LastWalk { at, cpu, counts });

        let walk = match walked {
            Ok(walk) => walk,
            Err(e) => {
                let why = format!("{}: {e}", memory.mount_point);
                evidence.unseen_about(
                    probe::CGROUPS,
                    About::MemoryCgroups,
                    "how many memory cgroups there are",
                    why,
                    "run as root",
                );
                self.told.tell(at, memory, counts.tracked, counts.live, counts.dying, evidence);
                return;
            }
        };
        if let Some(why) = &walk.unreadable_why {
            evidence.unseen(
                probe::CGROUPS,
                format!("cgroups below directories that may not be listed ({})", walk.unreadable),
                why.clone(),
                "run as root",
            );
        }
        let (dying, dying_source) = match memory.version {
            1 => (dying_of_v1(memory, &counts, &walk, evidence), "/proc/cgroups − directories".to_owned()),
            _ => {
                if counts.dying.is_none() {
                    evidence.unseen_about(
                        probe::CGROUPS,
                        About::DeadCgroups,
                        "how many dead cgroups there are",
                        format!("{} does not count them (Linux before 4.14)", memory.file("cgroup.stat")),
                        "use Linux 4.14 or later",
                    );
                }
                let key = if counts.dying_is_of_memory { "nr_dying_subsys_memory" } else { "nr_dying_descendants" };
                (counts.dying, format!("cgroup.stat {key}"))
            }
        };
        let live = if walk.truncated { counts.live.unwrap_or(0).max(walk.live) } else { walk.live };
        let crowded = walk
            .crowded
            .into_iter()
            .map(|mut parent| {
                if memory.version == 2 {
                    parent.dying = census::dying_below(&self.root, memory, &parent.path);
                }
                parent.empty = parent.empty.filter(|_| populated.is_some());
                parent.path = memory.full_path(&parent.path);
                parent
            })
            .collect();
        self.told.tell(at, memory, counts.tracked, Some(live), dying, evidence);
        evidence.cgroup_censuses.push(CgroupCensus {
            at,
            version: memory.version,
            mount_point: memory.mount_point.clone(),
            live,
            tracked: counts.tracked,
            dying,
            dying_source,
            empty: populated.map(|_| walk.empty),
            crowded,
            truncated: walk.truncated,
            took_ns,
        });
    }
}

/// v1 has no count of dying cgroups: it is what the kernel tracks minus the directories, if both cover the whole node.
fn dying_of_v1(memory: &Hierarchy, counts: &Counts, walk: &census::Walk, evidence: &mut Evidence) -> Option<u64> {
    if let Some((why, how)) = census::why_uncounted(memory, counts, walk.unreadable, walk.truncated) {
        evidence.unseen_about(probe::CGROUPS, About::DeadCgroups, "how many dead memory cgroups there are", why, how);
        return None;
    }
    Some(counts.tracked?.saturating_sub(walk.live))
}

impl Told {
    fn tell(
        &mut self,
        at: Time,
        hierarchy: &Hierarchy,
        tracked: Option<u64>,
        live: Option<u64>,
        dying: Option<u64>,
        evidence: &mut Evidence,
    ) {
        let subject = if hierarchy.version == 1 { "memory" } else { "unified" };
        for (name, last, value) in
            [("tracked", &mut self.tracked, tracked), ("live", &mut self.live, live), ("dying", &mut self.dying, dying)]
        {
            if let Some(value) = value
                && *last != Some(value)
            {
                *last = Some(value);
                evidence.counters.push(Source::CgroupTree, subject, name, at, value);
            }
        }
    }
}
