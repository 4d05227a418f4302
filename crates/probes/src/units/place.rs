//! Where the queried systemd runs: in a container or another namespace its cgroup paths and pids differ from this node's.

use std::os::unix::net::UnixStream;

use coroner_evidence::{CgroupMount, Evidence, Order, Unit};

use crate::Root;
use crate::cgroups::mounts::{self, Hierarchy};

/// In a unit with more processes the main process is not searched for.
const MAX_SEARCHED: usize = 256;

pub struct SystemdPlace {
    /// What this node puts before systemd's cgroup paths; `None` if unknown.
    prefix: Option<String>,
    /// Whether systemd's pids are ours.
    same_pids: Option<bool>,
}

impl SystemdPlace {
    /// The process listening on the socket is systemd, or the bus that one of its units runs: its cgroup as we see it and as systemd
    /// names it differ by the prefix. `told` are cgroups as systemd names them.
    pub fn find<'a>(root: &Root, socket: &UnixStream, told: impl Iterator<Item = &'a str>) -> SystemdPlace {
        let unknown = SystemdPlace { prefix: None, same_pids: None };
        let Ok(peer) = rustix::net::sockopt::socket_peercred(socket) else { return unknown };
        // 0 for a process outside our pid namespace.
        let pid = peer.pid.as_raw_pid();
        if pid <= 0 {
            return unknown;
        }
        let Ok(membership) = root.read(&format!("/proc/{pid}/cgroup")) else { return unknown };
        let prefix = prefix_of(&membership, told);
        let namespace = |pid: &str| std::fs::read_link(root.path(&format!("/proc/{pid}/ns/pid"))).ok();
        let same_pids = match (namespace(&pid.to_string()), namespace("self")) {
            // A peer outside this systemd's cgroups proves nothing.
            (Some(theirs), Some(ours)) if prefix.is_some() => Some(theirs == ours),
            _ => None,
        };
        SystemdPlace { prefix, same_pids }
    }

    /// Converts cgroup and main process to this node's names.
    pub fn translate(&self, root: &Root, cgroups: &UnitCgroups, unit: &mut Unit) {
        if let (Some(prefix), Some(path)) = (&self.prefix, &mut unit.cgroup) {
            path.insert_str(0, prefix);
        }
        unit.main_pid = match (unit.main_pid, self.same_pids, &unit.cgroup) {
            (pid, Some(true), _) => pid,
            (Some(pid), Some(false), Some(path)) => {
                cgroups.processes(path).take(MAX_SEARCHED).find(|&ours| innermost_pid(root, ours) == Some(pid))
            }
            _ => None,
        };
    }
}

/// Lines of `hierarchy:controllers:path`. The longest cgroup in `told` that a path ends with is that process's unit. systemd keeps its
/// own tree in name=systemd or in v2; other hierarchies it may use only in part.
fn prefix_of<'a>(membership: &str, told: impl Iterator<Item = &'a str>) -> Option<String> {
    let rank = |controllers: &str| match controllers {
        "name=systemd" => 0,
        "" => 1,
        _ => 2,
    };
    let mut paths: Vec<(u8, &str)> = membership
        .lines()
        .filter_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            Some((rank(parts.next()?), parts.next()?))
        })
        .collect();
    paths.order_by_key(|&(rank, _)| rank);
    let told: Vec<&str> = told.filter(|t| t.len() > 1 && t.starts_with('/')).collect();
    paths.iter().find_map(|(_, path)| {
        let unit = told.iter().filter(|t| path.ends_with(*t)).max_by_key(|t| t.len())?;
        Some(path[..path.len() - unit.len()].to_owned())
    })
}

/// `NSpid:\t21383\t34`: a process's pid in our namespace and in nested ones, the innermost last.
fn innermost_pid(root: &Root, pid: u32) -> Option<u32> {
    let status = root.read(&format!("/proc/{pid}/status")).ok()?;
    let pids = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    pids.split_whitespace().next_back()?.parse().ok()
}

/// Cgroup files with a unit's resource usage. Reading them ourselves costs PID 1 nothing, and works even if accounting is turned off in
/// systemd.
pub struct UnitCgroups {
    root: Root,
    unified: Option<Hierarchy>,
    named: Option<Hierarchy>,
    cpu: Option<Hierarchy>,
    memory: Option<Hierarchy>,
    pids: Option<Hierarchy>,
}

impl UnitCgroups {
    pub fn find(root: &Root) -> UnitCgroups {
        // The cgroup probe reports missing mounts.
        let mounted = mounts::find(root, &mut Evidence::default());
        let with = |controller| mounts::with_controller(root, &mounted, controller);
        let plain = |m: &CgroupMount| Hierarchy {
            version: m.version,
            mount_point: m.mount_point.clone(),
            root: m.root.clone(),
            whole: false,
        };
        UnitCgroups {
            root: root.clone(),
            unified: mounted.iter().find(|m| m.version == 2).map(plain),
            named: with("name=systemd"),
            cpu: with("cpuacct").filter(|h| h.version == 1),
            memory: with("memory"),
            pids: with("pids"),
        }
    }

    /// The unit's resource usage, if its cgroup can be read.
    pub fn note_use(&self, unit: &mut Unit) {
        let Some(path) = &unit.cgroup else { return };
        // v2 counts CPU time in every cgroup, whatever its controllers.
        let unified = self.read(&self.unified, path, "cpu.stat").and_then(|text| usage_ns(&text));
        let cpu = unified.or_else(|| self.number(&self.cpu, path, "cpuacct.usage"));
        if cpu.is_some() {
            unit.cpu_ns = cpu;
        }
        unit.memory_bytes = match &self.memory {
            Some(memory) if memory.version == 1 => self.number(&self.memory, path, "memory.usage_in_bytes"),
            _ => self.number(&self.memory, path, "memory.current"),
        };
        unit.tasks = self.number(&self.pids, path, "pids.current");
    }

    fn processes(&self, path: &str) -> impl Iterator<Item = u32> + use<> {
        let read = |hierarchy| self.read(hierarchy, path, "cgroup.procs");
        let text = read(&self.named).or_else(|| read(&self.unified)).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect::<Vec<u32>>().into_iter()
    }

    fn number(&self, hierarchy: &Option<Hierarchy>, path: &str, file: &str) -> Option<u64> {
        self.read(hierarchy, path, file)?.trim().parse().ok()
    }

    fn read(&self, hierarchy: &Option<Hierarchy>, path: &str, file: &str) -> Option<String> {
        let hierarchy = hierarchy.as_ref()?;
        let below = hierarchy.below(path).filter(|below| !below.is_empty())?;
        self.root.read(&hierarchy.file(&format!("{below}/{file}"))).ok()
    }
}

fn usage_ns(stat: &str) -> Option<u64> {
    let us: u64 = stat.lines().find_map(|line| line.strip_prefix("usage_usec "))?.trim().parse().ok()?;
    us.checked_mul(1000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LAB: &str = "9:name=systemd:/lab/init.scope\n7:blkio:/lab\n4:memory:/lab/init.scope\n0::/lab/init.scope\n";

    #[test]
    fn finds_the_prefix_that_systemd_does_not_see() {
        let of = |membership: &str, told: &[&str]| prefix_of(membership, told.iter().copied());
        assert_eq!(of(LAB, &["/system.slice/dbus.service", "/init.scope"]).as_deref(), Some("/lab"));
        assert_eq!(of("0::/init.scope\n", &["/init.scope"]).as_deref(), Some(""), "the node's own");
        assert_eq!(
            of("0::/docker/1/system.slice/dbus.service\n", &["/init.scope", "/system.slice/dbus.service"]).as_deref(),
            Some("/docker/1")
        );
        // A user's systemd reports full paths.
        let user = "/user.slice/user-1.slice/user@1.service/init.scope";
        assert_eq!(of(&format!("0::{user}\n"), &[user]).as_deref(), Some(""));
        assert_eq!(of("0::/lab/other.service\n", &["/init.scope", "", "/"]), None);
        // v1, with systemd's tree only in name=systemd.
        assert_eq!(of("3:cpuset:/\n2:cpu:/\n1:name=systemd:/x/init.scope\n", &["/init.scope"]).as_deref(), Some("/x"));
    }

    #[test]
    fn main_processes_are_found_by_their_inner_pid() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::at(dir.path());
        let write = |path: &str, text: &str| crate::test_tree::write(dir.path(), path, text);
        write("proc/self/mountinfo", "30 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
        write("sys/fs/cgroup/cgroup.controllers", "cpu memory pids\n");
        let service = "sys/fs/cgroup/lab/system.slice/a.service";
        write(&format!("{service}/cgroup.procs"), "500\n501\n");
        write(&format!("{service}/cpu.stat"), "usage_usec 1500\nuser_usec 1000\n");
        write(&format!("{service}/memory.current"), "4096\n");
        write(&format!("{service}/pids.current"), "2\n");
        write("proc/500/status", "Name:\tsh\nNSpid:\t500\t7\n");
        write("proc/501/status", "Name:\tsleep\nNSpid:\t501\t8\n");
        let cgroups = UnitCgroups::find(&root);
        let told = Unit { main_pid: Some(8), cgroup: Some("/system.slice/a.service".into()), ..Unit::default() };

        let mut unit = told.clone();
        SystemdPlace { prefix: Some("/lab".into()), same_pids: Some(false) }.translate(&root, &cgroups, &mut unit);
        cgroups.note_use(&mut unit);
        assert_eq!((unit.main_pid, unit.cgroup.as_deref()), (Some(501), Some("/lab/system.slice/a.service")));
        assert_eq!((unit.cpu_ns, unit.memory_bytes, unit.tasks), (Some(1_500_000), Some(4096), Some(2)));

        let mut unit = told.clone();
        SystemdPlace { prefix: None, same_pids: None }.translate(&root, &cgroups, &mut unit);
        cgroups.note_use(&mut unit);
        assert_eq!(unit, Unit { main_pid: None, ..told.clone() }, "unchanged; no pid is invented");

        let mut unit = told.clone();
        SystemdPlace { prefix: Some(String::new()), same_pids: Some(true) }.translate(&root, &cgroups, &mut unit);
        assert_eq!(unit, told);
    }

    proptest! {
        #[test]
        fn any_membership_is_survived(text in "\\PC*", told in "[/a-zä.]*") {
            let _ = prefix_of(&text, [told.as_str(), "/a"].into_iter());
            let _ = prefix_of(&format!("0::/{text}{told}"), [told.as_str()].into_iter());
            let _ = usage_ns(&text);
        }
    }
}
