//! Names for what the kernel counts by number: cgroups by inode, functions by address; and on what a thread is blocked.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::unix::fs::MetadataExt;

use coroner_evidence::kallsyms::Kallsyms;
use coroner_evidence::{CgroupWeight, Evidence};

use super::tables::Identity;
use crate::Root;
use crate::cgroups::mounts::{self, Hierarchy};
use crate::tasks::parse_membership;

/// Directories looked at for a cgroup whose processes are gone.
const MOST_DIRECTORIES: usize = 4000;
/// Looks at them in the life of a reader: each takes up to 20 ms.
const MOST_WALKS: u32 = 20;
/// Weights read per interval: 20 µs each.
const MOST_WEIGHTS: usize = 256;

#[derive(Debug)]
pub(super) struct Places {
    root: Root,
    /// With the cpu controller.
    hierarchy: Option<Hierarchy>,
    /// Paths by inode.
    paths: HashMap<u64, Option<String>>,
    walks: u32,
    /// `Some(None)`: they cannot be read.
    symbols: Option<Option<Kallsyms>>,
}

impl Places {
    pub fn new(root: &Root) -> Places {
        let mounts = mounts::find(root, &mut Evidence::default());
        let hierarchy = mounts::with_controller(root, &mounts, "cpu");
        Places { root: root.clone(), hierarchy, paths: HashMap::new(), walks: 0, symbols: None }
    }

    /// Whether the cpu controller is in the cgroup v2 hierarchy.
    pub fn is_unified(&self) -> bool {
        self.hierarchy.as_ref().is_none_or(|hierarchy| hierarchy.version == 2)
    }

    fn path_of_process(&self, pid: u32) -> Option<String> {
        parse_membership(&self.root.read(&format!("/proc/{pid}/cgroup")).ok()?).cpu
    }

    fn inode_of_path(&self, path: &str) -> Option<u64> {
        let hierarchy = self.hierarchy.as_ref()?;
        let directory = self.root.path(&hierarchy.file(hierarchy.below(path)?));
        std::fs::metadata(directory).ok().map(|metadata| metadata.ino())
    }

    /// The inode of a process's cgroup.
    pub fn inode_of(&mut self, pid: u32) -> Option<u64> {
        let path = self.path_of_process(pid)?;
        let inode = self.inode_of_path(&path)?;
        self.paths.insert(inode, Some(path));
        Some(inode)
    }

    /// The path of a party's cgroup.
    pub fn cgroup_of(&mut self, party: &Identity) -> Option<String> {
        // Before Linux 5.5 the upper half is a generation.
        for inode in [party.cgroup, party.cgroup & 0xffff_ffff] {
            if let Some(Some(known)) = self.paths.get(&inode) {
                return Some(known.clone());
            }
        }
        if self.paths.contains_key(&party.cgroup) {
            return None;
        }
        let processes = [party.pid, party.parent];
        for pid in processes.into_iter().filter(|pid| *pid != 0) {
            if let Some(inode) = self.inode_of(pid)
                && (inode == party.cgroup || inode == party.cgroup & 0xffff_ffff)
            {
                return self.paths.get(&inode).cloned().flatten();
            }
        }
        if self.walks < MOST_WALKS {
            self.walks += 1;
            self.walk();
        }
        let known = self.paths.get(&party.cgroup).or_else(|| self.paths.get(&(party.cgroup & 0xffff_ffff)));
        let path = known.cloned().flatten();
        self.paths.entry(party.cgroup).or_insert_with(|| path.clone());
        path
    }

    /// The weights of these cgroups and their ancestors, which is where they compete.
    pub fn weights(&self, cgroups: &BTreeSet<&str>) -> Vec<CgroupWeight> {
        let Some(hierarchy) = &self.hierarchy else { return Vec::new() };
        let file = if hierarchy.version == 1 { "cpu.shares" } else { "cpu.weight" };
        let mut weights: BTreeMap<&str, u64> = BTreeMap::new();
        for cgroup in cgroups {
            let mut path = *cgroup;
            while !path.is_empty() && !weights.contains_key(path) && weights.len() < MOST_WEIGHTS {
                let read = hierarchy.below(path).filter(|below| !below.is_empty()).and_then(|below| {
                    self.root.read_line(&format!("{}/{file}", hierarchy.file(below)))?.trim().parse().ok()
                });
                // The root competes with nobody, and where the controller is off there is no file.
                if let Some(weight) = read {
                    weights.insert(path, weight);
                }
                path = path.rfind('/').map_or("", |at| &path[..at]);
            }
        }
        weights.into_iter().map(|(path, weight)| CgroupWeight { path: path.to_owned(), weight }).collect()
    }

    fn walk(&mut self) {
        let Some(hierarchy) = self.hierarchy.clone() else { return };
        let mut todo = vec![String::new()];
        let mut looked = 0;
        while let Some(below) = todo.pop() {
            looked += 1;
            if looked > MOST_DIRECTORIES {
                return;
            }
            let directory = self.root.path(&hierarchy.file(&below));
            let Ok(metadata) = std::fs::metadata(&directory) else { continue };
            self.paths.insert(metadata.ino(), Some(hierarchy.full_path(&below)));
            for entry in std::fs::read_dir(&directory).into_iter().flatten().flatten() {
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    let name = entry.file_name().to_string_lossy().into_owned();
                    todo.push(if below.is_empty() { name } else { format!("{below}/{name}") });
                }
            }
        }
    }

    /// Reads the kernel's list of symbols, once. It takes 8 MB and 50 ms, which is too long to do it again each time that a thread is blocked
    /// at a new place. Modules loaded later are not in it.
    pub fn learn_functions(&mut self) {
        let read = || Kallsyms::parse(std::fs::read(self.root.path("/proc/kallsyms")).ok()?);
        if self.symbols.is_none() {
            self.symbols = Some(read());
        }
    }

    /// Empty unless functions were learnt.
    pub fn stack(&self, addresses: &[u64]) -> Vec<String> {
        let Some(Some(symbols)) = &self.symbols else { return Vec::new() };
        let name = |address: &u64| symbols.find(*address).map(|symbol| symbol.name.to_owned());
        without_scheduler(addresses.iter().filter_map(name))
    }

    /// Where a blocked thread stands.
    pub fn stack_of(&self, pid: u32, tid: u32) -> Vec<String> {
        parse_stack(&self.root.read(&format!("/proc/{pid}/task/{tid}/stack")).unwrap_or_default())
    }

    /// The file that a system call of a blocked thread works on, or the device of a kernel thread.
    pub fn works_on(&self, pid: u32, tid: u32, party: Option<&Identity>) -> Option<String> {
        if let Some(party) = party.filter(|party| party.kernel) {
            return device_of(&party.comm).map(str::to_owned);
        }
        let call = self.root.read(&format!("/proc/{pid}/task/{tid}/syscall")).ok()?;
        let fd = descriptor_of(&call)?;
        let file = std::fs::read_link(self.root.path(&format!("/proc/{pid}/fd/{fd}"))).ok()?;
        let file = file.to_string_lossy();
        file.starts_with('/').then(|| file.into_owned())
    }
}

/// `[<0>] percpu_rwsem_wait+0x115/0x140`, innermost first.
fn parse_stack(text: &str) -> Vec<String> {
    let function = |line: &str| {
        let place = line.split_whitespace().nth(1)?;
        let name = place.split('+').next()?;
        // The end of a stack on old kernels.
        (!name.is_empty() && !name.starts_with("0x")).then(|| name.to_owned())
    };
    without_scheduler(text.lines().filter_map(function))
}

/// Every sleeping thread stands in the scheduler.
fn without_scheduler(stack: impl Iterator<Item = String>) -> Vec<String> {
    const SCHEDULER: [&str; 11] = [
        "__schedule",
        "schedule",
        "__schedule_loop",
        "schedule_timeout",
        "schedule_timeout_uninterruptible",
        "schedule_preempt_disabled",
        "io_schedule",
        "io_schedule_timeout",
        "schedule_hrtimeout_range",
        "schedule_hrtimeout_range_clock",
        "preempt_schedule_common",
    ];
    stack.skip_while(|name| SCHEDULER.contains(&name.split('.').next().unwrap_or(name))).collect()
}

/// The file system's threads carry its device in their names: `jbd2/sda1-8`, `xfsaild/dm-0`.
fn device_of(comm: &str) -> Option<&str> {
    let (kind, rest) = comm.split_once('/')?;
    match kind {
        "jbd2" => rest.rsplit_once('-').map(|(device, _)| device),
        "xfsaild" | "xfs-buf" | "xfs-cil" | "xfs-sync" => Some(rest),
        _ => None,
    }
}

/// The descriptor that is the call's first argument: `1 0x3 0x7f…`.
fn descriptor_of(call: &str) -> Option<u32> {
    const WITH_DESCRIPTOR: [libc::c_long; 20] = [
        libc::SYS_read,
        libc::SYS_write,
        libc::SYS_readv,
        libc::SYS_writev,
        libc::SYS_pread64,
        libc::SYS_pwrite64,
        libc::SYS_preadv,
        libc::SYS_pwritev,
        libc::SYS_preadv2,
        libc::SYS_pwritev2,
        libc::SYS_fsync,
        libc::SYS_fdatasync,
        libc::SYS_syncfs,
        libc::SYS_sync_file_range,
        libc::SYS_ftruncate,
        libc::SYS_fallocate,
        libc::SYS_getdents64,
        libc::SYS_fchmod,
        libc::SYS_ioctl,
        libc::SYS_flock,
    ];
    let mut words = call.split_whitespace();
    let number: libc::c_long = words.next()?.parse().ok()?;
    let first = words.next()?.strip_prefix("0x")?;
    WITH_DESCRIPTOR.contains(&number).then(|| u32::from_str_radix(first, 16).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_stack_begins_where_the_scheduler_was_called() {
        let text = "[<0>] __schedule+0x1/0x2\n[<0>] schedule+0x3d/0x110\n[<0>] percpu_rwsem_wait+0x115/0x140\n\
                    [<0>] __percpu_down_read+0x5/0x8 [ext4]\n[<0>] 0xffffffffffffffff\n";
        assert_eq!(parse_stack(text), ["percpu_rwsem_wait", "__percpu_down_read"]);
        assert_eq!(parse_stack(""), Vec::<String>::new());
    }

    #[test]
    fn a_call_names_its_descriptor() {
        let call = |number: libc::c_long| format!("{number} 0x1f 0x7ffd 0x0 0x0 0x0 0x0 0x7ffe 0x7f00\n");
        assert_eq!(descriptor_of(&call(libc::SYS_write)), Some(31));
        assert_eq!(descriptor_of(&call(libc::SYS_futex)), None, "an address");
        assert_eq!(descriptor_of("running\n"), None);
        assert_eq!(descriptor_of("-1 0x7ffd 0x0\n"), None, "in no call");
    }

    #[test]
    fn a_journal_thread_names_its_device() {
        assert_eq!(device_of("jbd2/nvme0n1p1-8"), Some("nvme0n1p1"));
        assert_eq!(device_of("jbd2/dm-0-8"), Some("dm-0"));
        assert_eq!(device_of("kworker/0:1"), None);
    }

    proptest! {
        #[test]
        fn any_text(text in "(\\[<0>\\] [a-z_.+0x/]{0,20}\n|\\PC{0,30}\n){0,4}") {
            parse_stack(&text);
            descriptor_of(&text);
            device_of(&text);
        }
    }
}
