//! How cgroups limit their processes: CPU throttling and memory limits.
//!
//! A cgroup without a quota or limit cannot throttle or kill, so at the first look one small file of each shows whether the
//! others are worth reading. Later looks read only those with a limit, plus a few others in turn, as limits may be set later.

use std::collections::{HashMap, HashSet, VecDeque};
use std::os::fd::OwnedFd;
use std::time::Duration;

use coroner_evidence::{About, Evidence, Source, Time, probe};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::time::ClockId;

use super::census::value_of;
use super::mounts::Hierarchy;
use crate::Root;
use crate::root::clock;

/// How many of the limited cgroups are read again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reread {
    /// All, if the last read was cheap enough to repeat now: at most 1 % of a core.
    Affordable,
    /// All, now. For the end of a window.
    Everything,
}

/// Rereading may take this share of a core (1/N).
const REREAD_SHARE: u32 = 100;

/// Unlimited cgroups checked again per look.
const REVISITED: usize = 32;

/// At or above this there is no limit: PAGE_COUNTER_MAX in bytes is LONG_MAX rounded down to a page of up to 64 KiB
/// (include/linux/page_counter.h).
const NO_LIMIT: u64 = 0x7fff_ffff_ffff_0000;

const CPU_NAMES: [&str; 5] = ["quota_us", "period_us", "nr_periods", "nr_throttled", "throttled_us"];
const MEMORY_NAMES: [&str; 7] =
    ["limit_bytes", "high_bytes", "usage_bytes", "limit_hits", "high_hits", "oom", "oom_kill"];
const USAGE: usize = 2;
/// Which values are counters that start at 0 when the cgroup is created.
const CPU_COUNTERS: std::ops::Range<usize> = 2..5;
const MEMORY_COUNTERS: std::ops::Range<usize> = 3..7;

/// Values in the order of the names; `None` if the kernel does not have one.
type Values = [Option<u64>; 7];

#[derive(Debug)]
pub(super) struct Control {
    cpu: Watch,
    memory: Watch,
}

impl Default for Control {
    fn default() -> Control {
        Control {
            cpu: Watch::new(
                Source::CgroupCpu,
                Some(About::CpuQuotas),
                "CPU throttling by cgroup quotas",
                &CPU_NAMES,
                read_cpu,
            ),
            memory: Watch::new(Source::CgroupMemory, None, "memory limits of cgroups", &MEMORY_NAMES, read_memory),
        }
    }
}

impl Control {
    pub fn look(
        &mut self,
        root: &Root,
        at: Time,
        cpu: Option<(&Hierarchy, &HashSet<String>)>,
        memory: Option<(&Hierarchy, &HashSet<String>)>,
        reread: Reread,
        evidence: &mut Evidence,
    ) {
        if let Some((hierarchy, paths)) = cpu {
            self.cpu.look(root, hierarchy, at, paths, reread, evidence);
        }
        if let Some((hierarchy, paths)) = memory {
            self.memory.look(root, hierarchy, at, paths, reread, evidence);
        }
    }
}

/// Known cgroups of one hierarchy.
#[derive(Debug)]
struct Watch {
    source: Source,
    /// What rules look for if it cannot be seen.
    about: Option<About>,
    what: &'static str,
    names: &'static [&'static str],
    read: fn(&mut CgroupFiles, u8, &str) -> Result<Option<Values>, Errno>,
    files: Option<CgroupFiles>,
    /// By path below the mount: the values last reported, or `None` for a cgroup without a limit.
    known: HashMap<String, Option<Box<Values>>>,
    /// Those without a limit; the next to check is in front.
    unlimited: VecDeque<String>,
    reread_not_before: Time,
    /// Time of the previous look.
    last_look: Option<Time>,
    /// Removed cgroups that had a limit.
    gone: HashSet<String>,
    /// The largest inode number of a cgroup at the previous look, and so far.
    newest_before: u64,
    newest: u64,
}

fn unseen(evidence: &mut Evidence, about: Option<About>, what: &str, why: String) {
    let how = "run as root on the host";
    match about {
        Some(about) => evidence.unseen_about(probe::CGROUPS, about, what, why, how),
        None => evidence.unseen(probe::CGROUPS, what, why, how),
    }
}

impl Watch {
    fn new(
        source: Source,
        about: Option<About>,
        what: &'static str,
        names: &'static [&'static str],
        read: fn(&mut CgroupFiles, u8, &str) -> Result<Option<Values>, Errno>,
    ) -> Watch {
        Watch {
            source,
            about,
            what,
            names,
            read,
            files: None,
            known: HashMap::new(),
            unlimited: VecDeque::new(),
            reread_not_before: Time(0),
            last_look: None,
            gone: HashSet::new(),
            newest_before: 0,
            newest: 0,
        }
    }

    fn look(
        &mut self,
        root: &Root,
        hierarchy: &Hierarchy,
        at: Time,
        paths: &HashSet<String>,
        reread: Reread,
        evidence: &mut Evidence,
    ) {
        if self.files.is_none() {
            match CgroupFiles::open(root, hierarchy) {
                Ok(files) => self.files = Some(files),
                Err(e) => {
                    let why = format!("{}: {e}", hierarchy.mount_point);
                    unseen(evidence, self.about, self.what, why);
                    return;
                }
            }
        }
        if reread == Reread::Everything || at >= self.reread_not_before {
            let started = clock(ClockId::ThreadCPUTime).0;
            // Collected first, as looking at one may remove it.
            let limited: Vec<String> =
                self.known.iter().filter(|(_, values)| values.is_some()).map(|(path, _)| path.clone()).collect();
            for path in limited {
                self.look_at(hierarchy, at, path, evidence);
            }
            let cost = Duration::from_nanos(clock(ClockId::ThreadCPUTime).0.saturating_sub(started));
            self.reread_not_before = at + cost.saturating_mul(REREAD_SHARE);
        }
        for _ in 0..REVISITED.min(self.unlimited.len()) {
            let Some(path) = self.unlimited.pop_front() else { break };
            self.look_at(hierarchy, at, path, evidence);
        }
        for path in paths {
            let Some(mut below) = hierarchy.below(path) else { continue };
            // The ancestors of a known one are known too.
            while !self.known.contains_key(below) {
                self.look_at(hierarchy, at, below.to_owned(), evidence);
                if below.is_empty() {
                    break;
                }
                below = below.rsplit_once('/').map_or("", |(parent, _)| parent);
            }
        }
        self.last_look = Some(at);
        self.newest_before = self.newest;
    }

    /// When the counters of a newly seen cgroup were still 0: at the previous look, if it was created since.
    fn zero_point(&self, at: Time, inode: Option<u64>, values: &Values) -> Option<Time> {
        let before = self.last_look?;
        let born_since = if self.source == Source::CgroupCpu {
            // It may be older and only have got its first process since. Each period is counted (kernel/sched/fair.c,
            // do_sched_cfs_period_timer), so more periods than fit into the interval mean that it is older.
            let (period_us, periods) = (values[1]?.max(1), values[2]?);
            let most = at.since(before).as_micros() / u128::from(period_us) + 1;
            u128::from(periods) <= most
        } else {
            // Inode numbers grow (fs/kernfs/dir.c, __kernfs_new_node).
            inode? > self.newest_before
        };
        born_since.then_some(before)
    }

    /// Reads one cgroup, known or new, that is not in `unlimited`.
    fn look_at(&mut self, hierarchy: &Hierarchy, at: Time, below: String, evidence: &mut Evidence) {
        let Some(files) = &mut self.files else { return };
        let values = match (self.read)(files, hierarchy.version, &below) {
            Ok(values) => values,
            // The controller is not enabled there, or the cgroup is gone. One recreated with this name counts as new.
            Err(Errno::NOENT | Errno::NODEV) if files.is_there(&below) => None,
            Err(Errno::NOENT | Errno::NODEV) => {
                if let Some((path, Some(_))) = self.known.remove_entry(&below) {
                    self.gone.insert(path);
                }
                return;
            }
            Err(e) => {
                let why = format!("{}: {e}", hierarchy.mount_point);
                unseen(evidence, self.about, self.what, why);
                None
            }
        };
        let is_new = !self.known.contains_key(&below);
        // Only for newly seen ones, and only where needed.
        let inode = if is_new && self.source == Source::CgroupMemory { files.inode(&below) } else { None };
        let Some(values) = values else {
            self.newest = self.newest.max(inode.unwrap_or(0));
            self.known.insert(below.clone(), None);
            self.unlimited.push_back(below);
            return;
        };
        if is_new
            && !self.gone.contains(&below)
            && let Some(zero) = self.zero_point(at, inode, &values)
        {
            let counters = if self.source == Source::CgroupCpu { CPU_COUNTERS } else { MEMORY_COUNTERS };
            let subject = hierarchy.full_path(&below);
            for i in counters.filter(|&i| values[i].is_some()) {
                evidence.counters.push(self.source, &subject, self.names[i], zero, 0);
            }
        }
        self.newest = self.newest.max(inode.unwrap_or(0));
        let Some(files) = &self.files else { return };
        let told = self.known.entry(below).or_insert(None);
        let last = told.as_deref().copied().unwrap_or_default();
        let mut now = last;
        let mut subject = None;
        for (i, name) in self.names.iter().enumerate() {
            let Some(value) = values[i] else { continue };
            if last[i].is_some_and(|last| !is_news(self.source, i, last, value, values[0].or(values[1]))) {
                continue;
            }
            now[i] = Some(value);
            let subject = subject.get_or_insert_with(|| hierarchy.full_path(files.last_path()));
            evidence.counters.push(self.source, subject, name, at, value);
        }
        *told = Some(Box::new(now));
    }
}

/// A changed counter is news; memory usage, which always changes, only if it changed by more than 1 % of the limit.
fn is_news(source: Source, i: usize, last: u64, value: u64, limit: Option<u64>) -> bool {
    match limit {
        Some(limit) if source == Source::CgroupMemory && i == USAGE => last.abs_diff(value) > limit / 100,
        _ => last != value,
    }
}

/// Small files of cgroups, read into a reused buffer.
#[derive(Debug)]
struct CgroupFiles {
    mount: OwnedFd,
    path: String,
    /// Length of the cgroup's part of `path`.
    cgroup: usize,
    buffer: Vec<u8>,
}

impl CgroupFiles {
    fn open(root: &Root, hierarchy: &Hierarchy) -> Result<CgroupFiles, Errno> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mount = rustix::fs::open(root.path(&hierarchy.mount_point), flags, Mode::empty())?;
        Ok(CgroupFiles { mount, path: String::new(), cgroup: 0, buffer: vec![0; 4096] })
    }

    /// Reads a file of a cgroup; none of these has more than 4 KiB.
    fn read(&mut self, below: &str, file: &str) -> Result<&str, Errno> {
        self.path.clear();
        self.path.push_str(below);
        self.cgroup = below.len();
        if !below.is_empty() {
            self.path.push('/');
        }
        self.path.push_str(file);
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let fd = rustix::fs::openat(&self.mount, self.path.as_str(), flags, Mode::empty())?;
        let mut filled = 0;
        while filled < self.buffer.len() {
            match rustix::io::read(&fd, &mut self.buffer[filled..]) {
                Ok(0) => break,
                Ok(n) => filled += n,
                Err(Errno::INTR) => {}
                Err(e) => return Err(e),
            }
        }
        // These files are ASCII; anything else is ignored.
        Ok(std::str::from_utf8(&self.buffer[..filled]).unwrap_or(""))
    }

    /// The same, but a missing file is `None`: older kernels do not have all of them.
    fn read_if_there(&mut self, below: &str, file: &str) -> Result<Option<&str>, Errno> {
        match self.read(below, file) {
            Ok(text) => Ok(Some(text)),
            Err(Errno::NOENT) => Ok(None),
            Err(e) => Err(e),
        }
    }

    fn is_there(&self, below: &str) -> bool {
        below.is_empty() || rustix::fs::statat(&self.mount, below, AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    fn inode(&self, below: &str) -> Option<u64> {
        let below = if below.is_empty() { "." } else { below };
        Some(rustix::fs::statat(&self.mount, below, AtFlags::SYMLINK_NOFOLLOW).ok()?.st_ino)
    }

    /// The cgroup read last.
    fn last_path(&self) -> &str {
        &self.path[..self.cgroup]
    }
}

/// Quota and throttling; `None` without a quota.
fn read_cpu(files: &mut CgroupFiles, version: u8, below: &str) -> Result<Option<Values>, Errno> {
    let (quota, period) = if version == 1 {
        // −1 is no quota.
        let Some(quota) = number(files.read(below, "cpu.cfs_quota_us")?) else { return Ok(None) };
        (quota, files.read_if_there(below, "cpu.cfs_period_us")?.and_then(number))
    } else {
        let Some((quota, period)) = parse_cpu_max(files.read(below, "cpu.max")?) else { return Ok(None) };
        (quota, period)
    };
    let stat = files.read(below, "cpu.stat")?;
    let throttled_us = match version {
        1 => value_of(stat, "throttled_time").map(|ns| ns / 1000),
        _ => value_of(stat, "throttled_usec"),
    };
    let (periods, throttled) = (value_of(stat, "nr_periods"), value_of(stat, "nr_throttled"));
    Ok(Some([Some(quota), period, periods, throttled, throttled_us, None, None]))
}

/// Limits, usage and events; `None` without a limit.
///
/// v1 counts oom_kill only in the victim's own cgroup, which may be below the one whose limit was hit. On v2 the hits are the
/// cgroup's own where the kernel separates them (memory.events.local), while oom_kill includes descendants: often the pod has the
/// limit and the victim is in a container's cgroup.
fn read_memory(files: &mut CgroupFiles, version: u8, below: &str) -> Result<Option<Values>, Errno> {
    if version == 1 {
        let Some(limit) = number(files.read(below, "memory.limit_in_bytes")?).filter(|&n| n < NO_LIMIT) else {
            return Ok(None);
        };
        let usage = number(files.read(below, "memory.usage_in_bytes")?);
        let hits = files.read_if_there(below, "memory.failcnt")?.and_then(number);
        let oom_kill = files.read_if_there(below, "memory.oom_control")?.and_then(|text| value_of(text, "oom_kill"));
        return Ok(Some([Some(limit), None, usage, hits, None, None, oom_kill]));
    }
    let limit = number(files.read(below, "memory.max")?);
    let high = files.read_if_there(below, "memory.high")?.and_then(number);
    if limit.is_none() && high.is_none() {
        return Ok(None);
    }
    let usage = number(files.read(below, "memory.current")?);
    let mut events = [None; 4];
    if let Some(text) = files.read_if_there(below, "memory.events")? {
        events = ["max", "high", "oom", "oom_kill"].map(|key| value_of(text, key));
    }
    if let Some(text) = files.read_if_there(below, "memory.events.local")? {
        for (event, key) in events.iter_mut().zip(["max", "high", "oom"]) {
            *event = value_of(text, key);
        }
    }
    Ok(Some([limit, high, usage, events[0], events[1], events[2], events[3]]))
}

/// `200000 100000` or `max 100000`; `None` without a quota.
fn parse_cpu_max(text: &str) -> Option<(u64, Option<u64>)> {
    let mut fields = text.split_whitespace();
    let quota = fields.next()?.parse().ok()?;
    Some((quota, fields.next().and_then(|p| p.parse().ok())))
}

/// A file with one number; `None` for `max` and −1.
fn number(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn missing_quotas_and_limits_are_recognised() {
        assert_eq!(parse_cpu_max("max 100000\n"), None);
        assert_eq!(parse_cpu_max("200000 100000\n"), Some((200_000, Some(100_000))));
        assert_eq!(number("-1\n"), None);
        assert_eq!(number("max\n"), None);
        assert!(number("9223372036854771712\n").unwrap() >= NO_LIMIT, "4 KiB pages");
        assert!(number("9223372036854710272\n").unwrap() >= NO_LIMIT, "64 KiB pages");
    }

    #[test]
    fn usage_is_reported_if_it_changed_by_over_a_hundredth_of_the_limit() {
        assert!(!is_news(Source::CgroupMemory, USAGE, 500, 509, Some(1000)));
        assert!(is_news(Source::CgroupMemory, USAGE, 500, 511, Some(1000)));
        assert!(is_news(Source::CgroupMemory, 6, 0, 1, Some(1000)));
    }

    #[test]
    fn a_cgroup_created_after_the_first_look_counts_from_zero() {
        let tree = tempfile::tempdir().unwrap();
        let cgroup = |name: &str, periods: u64| {
            let dir = tree.path().join("cg").join(name);
            std::fs::create_dir_all(&dir).unwrap();
            std::fs::write(dir.join("cpu.max"), "50000 100000\n").unwrap();
            let stat = format!("nr_periods {periods}\nnr_throttled {periods}\nthrottled_usec 700\n");
            std::fs::write(dir.join("cpu.stat"), stat).unwrap();
        };
        let hierarchy = Hierarchy { version: 2, mount_point: "/cg".into(), root: "/".into(), whole: true };
        let mut watch = Control::default().cpu;
        let mut evidence = Evidence::default();
        let mut look = |at: u64, names: &[&str]| {
            let paths = names.iter().map(|n| format!("/{n}")).collect();
            watch.look(
                &Root::at(tree.path()),
                &hierarchy,
                Time::from_millis(at),
                &paths,
                Reread::Everything,
                &mut evidence,
            );
        };
        cgroup("first", 9);
        look(1000, &["first"]);
        cgroup("born", 9);
        cgroup("old", 5000);
        look(2000, &["first", "born", "old"]);
        let moved = |name: &str| evidence.counters.moved(Source::CgroupCpu, &hierarchy.full_path(name), "nr_throttled");
        assert_eq!(moved("first"), Some(0), "it existed before the first look");
        assert_eq!(moved("born"), Some(9));
        assert_eq!(moved("old"), Some(0), "5,000 periods do not fit into a second");
    }

    proptest! {
        #[test]
        fn any_text_is_handled(text in "\\PC*", key in "[a-z_]{0,8}") {
            parse_cpu_max(&text);
            number(&text);
            value_of(&text, &key);
            value_of(&format!("{key} {text}"), &key);
        }
    }
}
