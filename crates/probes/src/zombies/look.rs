//! Dead memory cgroups, by the best method that works here: a walk over the kernel's own lists, or arithmetic on the files of
//! live cgroups. Each better method is reported with the reason why it failed.

use std::fmt;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use coroner_evidence::{DeadBelow, Evidence, Time, TriedInVain, ZombieMethod, ZombieScan, probe};

use super::count::{self, Count};
use super::v2_counts::NotTold;
use super::{Method, Scan, ScanOptions, scan, v1_sums, v2_counts};
use crate::Root;
use crate::cgroups::census::Counts;
use crate::cgroups::directories;
use crate::cgroups::mounts::{self, Hierarchy};
use crate::cgroups::stat_read::{parse_release, why_not_read_sums};
use crate::root::now;

#[derive(Debug, Clone)]
pub struct LookOptions {
    pub root: Root,
    pub bpf: Bpf,
    /// Also find the files that pin them.
    pub pins: bool,
    /// Each step stops after this; [`ZombieScan::truncated`] says what is missing.
    pub time_limit: Duration,
}

impl Default for LookOptions {
    fn default() -> LookOptions {
        LookOptions { root: Root::live(), bpf: Bpf::Best, pins: true, time_limit: Duration::from_secs(10) }
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Bpf {
    /// The better of the two methods that works.
    #[default]
    Best,
    Only(Method),
    /// Do not use BPF.
    No,
}

/// How long freeing a removed cgroup takes if nothing pins it: two RCU grace periods and a few work queue turns.
const GOING: Duration = Duration::from_millis(60);

/// Before this, counters are propagated in per-CPU batches of 32 pages; since then by rstat (mm/memcontrol.c).
const BATCHES_BEFORE: (u32, u32) = (5, 13);

/// Since then the slab objects of a dead cgroup move to its parent.
const SLAB_STAYS_BEFORE: (u32, u32) = (5, 9);

/// Looks for dead memory cgroups once. `None` only if neither their number nor the total can be read. `evidence` says why, as for
/// everything else that is missing.
pub fn look(options: &LookOptions, evidence: &mut Evidence) -> Option<ZombieScan> {
    let method = if let Bpf::Only(method) = options.bpf { Some(method) } else { None };
    let (why, how_to_see) = if options.bpf == Bpf::No {
        ("BPF is turned off (--no-bpf)".to_owned(), "run without --no-bpf".to_owned())
    } else {
        let scan_options = ScanOptions {
            root: options.root.clone(),
            method,
            pins: options.pins,
            time_limit: options.time_limit,
            ..ScanOptions::default()
        };
        match scan(&scan_options) {
            Ok(scan) => {
                let scan = by_name(scan);
                note_files_unseen(&scan, options, evidence);
                return Some(scan);
            }
            Err(blind) => (blind.why, blind.how_to_see),
        }
    };
    evidence.unseen(
        probe::ZOMBIES,
        "names and ages of dead memory cgroups, and the files that pin them",
        why.clone(),
        how_to_see.clone(),
    );
    let method = method.map_or("bpf", Method::as_str).to_owned();
    by_files(options, vec![TriedInVain { method, why, how_to_see }], evidence)
}

/// Converts the result of a walk without copying: there may be tens of thousands.
pub(crate) fn by_name(scan: Scan) -> ZombieScan {
    let (files, holds, files_unseen) = match scan.pins {
        None => (Vec::new(), Vec::new(), Some("files were not requested".to_owned())),
        Some(Err(why)) => (Vec::new(), Vec::new(), Some(why)),
        Some(Ok(pins)) => {
            let late = pins.truncated.then(|| "out of time: not all dead cgroups were searched for files".to_owned());
            (pins.files, pins.holds, late)
        }
    };
    ZombieScan {
        at: scan.at,
        took_ns: nanos(scan.cost.total().wall),
        method: match scan.method {
            Method::TestRun => ZombieMethod::BpfTestRun,
            Method::PageFaults => ZombieMethod::BpfPageFaults,
        },
        version: scan.version,
        tracked: Some(scan.tracked),
        live: Some(scan.live),
        dead: Some(scan.zombies.len() as u64),
        leaving: scan.leaving,
        zombies: scan.zombies,
        files,
        holds,
        files_unseen,
        truncated: scan.truncated,
        ..ZombieScan::default()
    }
}

fn note_files_unseen(scan: &ZombieScan, options: &LookOptions, evidence: &mut Evidence) {
    if let Some(why) = scan.files_unseen.as_ref().filter(|_| options.pins) {
        let how = "run again when the node is less busy";
        evidence.unseen(probe::ZOMBIES, "all files that pin dead memory cgroups", why, how);
    }
    if let Some(why) = &scan.truncated {
        let how = "run again when the node is less busy; cgroups nested deeper than 63 levels are never reached";
        evidence.unseen(probe::ZOMBIES, "all dead memory cgroups", why, how);
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// What the methods without BPF work on.
#[derive(Debug)]
pub(super) struct Ground<'l> {
    pub memory: &'l Hierarchy,
    /// The directory of the mount.
    pub top: &'l OwnedFd,
    pub started: Instant,
    pub until: Instant,
    /// A dead cgroup keeps its kernel memory.
    pub slab_stays: bool,
}

impl Ground<'_> {
    /// Waits until cgroups removed before the look began are freed, unless something pins them.
    pub fn let_go(&self) {
        let left = GOING.saturating_sub(self.started.elapsed());
        std::thread::sleep(left.min(self.until.saturating_duration_since(Instant::now())));
    }
}

/// A count of things, of which the first few are named.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Lines {
    pub count: u64,
    named: Vec<String>,
    /// The reason for the first.
    pub why: String,
}

impl Lines {
    const NAMED: usize = 3;

    pub fn note(&mut self, name: impl FnOnce() -> String, why: impl fmt::Display) {
        if self.count == 0 {
            self.why = why.to_string();
        }
        self.count += 1;
        if self.named.len() < Lines::NAMED {
            self.named.push(name());
        }
    }
}

impl fmt::Display for Lines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.named.join(", "))?;
        match self.count.saturating_sub(self.named.len() as u64) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

/// The result of a method without BPF; by default of the last resort, [`ZombieMethod::Count`].
#[derive(Default)]
struct Seen {
    method: ZombieMethod,
    version: u8,
    count: Count,
    below: Vec<DeadBelow>,
    truncated: Vec<String>,
}

fn by_files(options: &LookOptions, mut instead_of: Vec<TriedInVain>, evidence: &mut Evidence) -> Option<ZombieScan> {
    let (at, started) = (now(), Instant::now());
    let root = &options.root;
    let better = instead_of.first().map_or_else(String::new, |tried| tried.how_to_see.clone());
    let mut notes = Notes { evidence, better };
    let kernel = root.read_line("/proc/sys/kernel/osrelease").as_deref().and_then(parse_release);

    // The cgroups probe reports problems with the mounts; here they only serve as a reason.
    let mut aside = Evidence::default();
    let mounts = mounts::find(root, &mut aside);
    let memory = match mounts::with_controller(root, &mounts, "memory") {
        Some(memory) => directories::open(&root.path(&memory.mount_point))
            .map(|top| (memory.clone(), top))
            .map_err(|e| format!("{}: {e}", memory.mount_point)),
        None => Err(match aside.unseen.pop() {
            Some(unseen) => unseen.why,
            None => "no cgroup mount has the memory controller".to_owned(),
        }),
    };
    let seen = match memory {
        Ok((memory, top)) => {
            let ground = Ground {
                memory: &memory,
                top: &top,
                started,
                until: started.checked_add(options.time_limit).unwrap_or(started),
                slab_stays: kernel.is_some_and(|k| k < SLAB_STAYS_BEFORE),
            };
            if !memory.whole {
                notes.part(&memory);
            }
            let seen = match memory.version {
                1 => v1(root, &ground, &mut instead_of, &mut notes),
                _ => v2(root, &ground, &mut instead_of, &mut notes),
            };
            if seen.below.iter().any(|b| b.held.is_some()) || seen.count.dead.is_some_and(|dead| dead > 0) {
                notes.batches(kernel, seen.method);
            }
            seen
        }
        Err(why) => {
            let how = "run on the host, or mount its /sys/fs/cgroup into the container".to_owned();
            for method in [ZombieMethod::CgroupStat, ZombieMethod::MemoryStat] {
                instead_of.push(in_vain(method, why.clone(), &how));
            }
            let tracked = count::tracked(root).unwrap_or_default();
            let count = Count { tracked, why_not: Some((why, how)), ..Count::default() };
            Seen { version: count::version(root), count, ..Seen::default() }
        }
    };
    if let Some((why, how)) = &seen.count.why_not {
        notes.evidence.unseen(probe::ZOMBIES, "how many dead memory cgroups there are", why, how);
    }
    let nothing = seen.count.tracked.is_none() && seen.count.dead.is_none() && seen.below.is_empty();
    if nothing && seen.method == ZombieMethod::Count {
        return None;
    }
    Some(told(seen, at, started.elapsed(), instead_of))
}

fn in_vain(method: ZombieMethod, why: String, how_to_see: &str) -> TriedInVain {
    TriedInVain { method: method.as_str().to_owned(), why, how_to_see: how_to_see.to_owned() }
}

fn told(seen: Seen, at: Time, took: Duration, instead_of: Vec<TriedInVain>) -> ZombieScan {
    ZombieScan {
        at,
        took_ns: nanos(took),
        method: seen.method,
        version: seen.version,
        tracked: seen.count.tracked,
        live: seen.count.live,
        dead: seen.count.dead,
        below: seen.below,
        files_unseen: instead_of.first().map(|tried| tried.why.clone()),
        truncated: (!seen.truncated.is_empty()).then(|| seen.truncated.join("; ")),
        instead_of,
        ..ZombieScan::default()
    }
}

fn v2(root: &Root, ground: &Ground<'_>, instead_of: &mut Vec<TriedInVain>, notes: &mut Notes<'_>) -> Seen {
    let tracked = Counts::read(root, ground.memory).ok().and_then(|counts| counts.tracked);
    let dangerous = why_not_read_sums(root, tracked);
    let found = match v2_counts::look(ground, dangerous.is_none()) {
        Ok(found) => found,
        Err(why) => {
            let how = "use Linux 4.14 or later, with a readable cgroup file system";
            instead_of.push(in_vain(ZombieMethod::CgroupStat, why, how));
            let first = count::count(root, ground.memory, ground.top, ground.until);
            return by_count(first, root, ground, notes);
        }
    };
    if let Some(why) = &dangerous
        && !found.below.is_empty()
    {
        notes.held("dead memory cgroups", why.clone());
    }
    if found.of_any_kind && found.dead > 0 {
        notes.any_kind(found.perhaps_without_memory);
    }
    for (kind, parents) in &found.unheld {
        let why = match kind {
            NotTold::OwnProcesses => "cgroup v2 adds the memory of the parent's own processes to it".to_owned(),
            NotTold::NoController => {
                "the parent's children have no memory controller, so their memory is charged to the parent".to_owned()
            }
            NotTold::Unreadable if dangerous.is_some() => continue,
            NotTold::Unreadable => parents.why.clone(),
        };
        notes.held(&format!("dead cgroups below {parents}"), why);
    }
    if found.uncounted.count > 0 {
        notes.uncounted(&found.uncounted);
    }
    let mut truncated = found.truncated;
    if !ground.memory.whole {
        truncated.push(part(ground.memory));
    }
    Seen {
        method: ZombieMethod::CgroupStat,
        version: 2,
        count: Count {
            tracked: found.live.map(|live| live.saturating_add(found.dead)),
            live: found.live,
            dead: Some(found.dead),
            why_not: None,
        },
        below: found.below,
        truncated,
    }
}

fn v1(root: &Root, ground: &Ground<'_>, instead_of: &mut Vec<TriedInVain>, notes: &mut Notes<'_>) -> Seen {
    let why = "the memory controller is on cgroup v1, which counts dead cgroups only for the whole node".to_owned();
    let how = "switch to cgroup v2 (boot with systemd.unified_cgroup_hierarchy=1)";
    instead_of.push(in_vain(ZombieMethod::CgroupStat, why, how));
    let count = count::count(root, ground.memory, ground.top, ground.until);
    let sums = match why_not_read_sums(root, count::tracked(root).unwrap_or_default()) {
        Some(why) => Err((why, "use Linux 5.2 or later")),
        None => v1_sums::look(ground).map_err(|why| (why, "run as root, with the host's /sys/fs/cgroup")),
    };
    let mut seen = by_count(count, root, ground, notes);
    match sums {
        Err((why, how)) => {
            notes.held("dead memory cgroups", why.clone());
            instead_of.push(in_vain(ZombieMethod::MemoryStat, why, how));
        }
        Ok(found) => {
            notes.not_by_parent();
            if let Some(why) = &found.unreadable_why {
                notes.held(&format!("dead memory cgroups (parents affected: {})", found.unreadable), why.clone());
            }
            if found.flat > 0 {
                notes.held(
                    &format!("dead memory cgroups (parents affected: {})", found.flat),
                    "memory.use_hierarchy is 0: the parent's counters exclude its children".to_owned(),
                );
            }
            seen.method = ZombieMethod::MemoryStat;
            seen.truncated.extend(found.truncated);
            if !ground.memory.whole {
                seen.truncated.push(part(ground.memory));
            }
            seen.below = found.below;
        }
    }
    seen
}

/// Counts again and takes the smaller count, so that cgroups that are just being freed are not counted.
fn by_count(mut count: Count, root: &Root, ground: &Ground<'_>, notes: &mut Notes<'_>) -> Seen {
    if count.dead.is_some_and(|dead| dead > 0) {
        ground.let_go();
        let again = count::count(root, ground.memory, ground.top, ground.until);
        if again.dead.is_some_and(|dead| Some(dead) < count.dead) {
            count = again;
        }
    }
    if ground.memory.version == 2 && count.dead.is_some_and(|dead| dead > 0) {
        notes.any_kind(0);
    }
    Seen { version: ground.memory.version, count, ..Seen::default() }
}

fn part(memory: &Hierarchy) -> String {
    format!("only cgroups below {} were scanned: {} shows no others", memory.full_path(""), memory.mount_point)
}

/// Notes what is missing.
struct Notes<'e> {
    evidence: &'e mut Evidence,
    /// How to make the BPF method work.
    better: String,
}

impl Notes<'_> {
    fn held(&mut self, whose: &str, why: String) {
        self.evidence.unseen(probe::ZOMBIES, format!("how much {whose} hold"), why, &self.better);
    }

    fn part(&mut self, memory: &Hierarchy) {
        self.evidence.unseen(
            probe::ZOMBIES,
            "dead memory cgroups outside this container",
            format!("{} shows only part of the node's hierarchy", memory.mount_point),
            "run on the host, or with its cgroup namespace and /sys/fs/cgroup (docker run --cgroupns=host)",
        );
    }

    fn not_by_parent(&mut self) {
        self.evidence.unseen(
            probe::ZOMBIES,
            "how many dead memory cgroups each parent has, and parents whose dead hold only kernel memory",
            "cgroup v1 counts them only for the whole node; what they hold is derived from memory.stat of live cgroups",
            &self.better,
        );
    }

    fn any_kind(&mut self, without_memory: u64) {
        let mut why =
            "this kernel counts dead cgroups of any kind together (nr_dying_subsys_memory exists since Linux 6.12)";
        let told;
        if without_memory > 0 {
            told =
                format!("{why}; below parents that do not enable the memory controller for children: {without_memory}");
            why = &told;
        }
        self.evidence.unseen(probe::ZOMBIES, "whether all dead cgroups are memory cgroups", why, &self.better);
    }

    fn uncounted(&mut self, parents: &Lines) {
        self.evidence.unseen(
            probe::ZOMBIES,
            format!("how many dead cgroups are below {parents}"),
            parents.why.clone(),
            "run as root",
        );
    }

    fn batches(&mut self, kernel: Option<(u32, u32)>, method: ZombieMethod) {
        if method != ZombieMethod::Count && kernel.is_some_and(|k| k < BATCHES_BEFORE) {
            self.evidence.unseen(
                probe::ZOMBIES,
                "up to 32 pages of each kind per core in each dead memory cgroup",
                "before Linux 5.13 a cgroup's counts reach its parent's sums only in batches of 32 pages",
                &self.better,
            );
        }
    }
}
