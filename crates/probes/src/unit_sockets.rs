//! Open internet sockets of a unit's processes: an agent that neither listens nor is connected serves nobody.
//!
//! A process's descriptors (`/proc/PID/fd`) name its sockets by inode, and the tables of its network namespace
//! (`/proc/PID/net/tcp` and the like) give the state of each.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, Read};
use std::time::{Duration, Instant};

use coroner_evidence::{CgroupMount, Evidence, Order, Time, UnitSockets, probe};

use crate::Root;
use crate::cgroups::mounts;

const MAX_UNITS: usize = 30;
const MAX_PROCESSES: usize = 200;
const MAX_CGROUPS: usize = 200;
/// Descriptors per process.
const MAX_DESCRIPTORS: usize = 20_000;
/// Enough for 40,000 sockets.
const MAX_TABLE: u64 = 6 << 20;
const LIMIT: Duration = Duration::from_millis(100);

const WHAT: &str = "network connections of agents";

/// A running unit and its cgroup, as in /proc/PID/cgroup.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RunningUnit {
    pub unit: String,
    pub cgroup: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    Listening,
    Connected,
}

pub fn look(root: &Root, units: &[RunningUnit], at: Time, evidence: &mut Evidence) {
    if units.is_empty() {
        return;
    }
    // The cgroup probe reports missing mounts.
    let mounts = mounts::find(root, &mut Evidence::default());
    let mut look = Look { root, mounts, tables: HashMap::new(), deadline: Instant::now() + LIMIT, processes: 0 };
    for (done, running) in units.iter().enumerate() {
        let seen = if done < MAX_UNITS { look.unit(running, at) } else { Err(too_many()) };
        match seen {
            Ok(Some(sockets)) => evidence.unit_sockets.push(sockets),
            Ok(None) => {}
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
                return evidence.unseen(probe::UNIT_SOCKETS, WHAT, e.to_string(), "run as root");
            }
            Err(e) => {
                let what = format!("network connections of {} and other units", running.unit);
                return evidence.unseen(probe::UNIT_SOCKETS, what, e.to_string(), "ss --processes --all");
            }
        }
    }
}

fn too_many() -> io::Error {
    io::Error::other(format!("too many: the limit is {MAX_UNITS} units, {MAX_PROCESSES} processes and {LIMIT:?}"))
}

struct Look<'a> {
    root: &'a Root,
    mounts: Vec<CgroupMount>,
    /// The use of each socket by inode, for each network namespace.
    tables: HashMap<String, HashMap<u64, Use>>,
    deadline: Instant,
    processes: usize,
}

impl Look<'_> {
    /// `None` if the unit's processes cannot be found or are gone.
    fn unit(&mut self, running: &RunningUnit, at: Time) -> io::Result<Option<UnitSockets>> {
        let pids = self.processes_of(&running.cgroup);
        let mut seen = UnitSockets { at, unit: running.unit.clone(), processes: 0, listening: 0, connected: 0 };
        // Children share sockets with their parents.
        let mut counted: HashSet<(String, u64)> = HashSet::new();
        for pid in pids {
            if self.processes >= MAX_PROCESSES || Instant::now() >= self.deadline {
                return Err(too_many());
            }
            self.processes += 1;
            let Some((namespace, sockets)) = self.sockets_of(pid)? else { continue };
            seen.processes += 1;
            if sockets.is_empty() {
                continue;
            }
            let table = self.table(pid, &namespace)?;
            for number in sockets {
                let Some(does) = table.get(&number) else { continue };
                if counted.insert((namespace.clone(), number)) {
                    match does {
                        Use::Listening => seen.listening += 1,
                        Use::Connected => seen.connected += 1,
                    }
                }
            }
        }
        Ok((seen.processes > 0).then_some(seen))
    }

    /// Processes in the cgroup and below it, in the hierarchy in which systemd tracks them: v2, or v1 `name=systemd`.
    fn processes_of(&self, cgroup: &str) -> Vec<u32> {
        let rank = |mount: &CgroupMount| match mount.version {
            2 => 0,
            _ if mount.has("name=systemd") => 1,
            _ => 2,
        };
        let mut mounts: Vec<&CgroupMount> = self.mounts.iter().collect();
        mounts.order_by_key(|mount| rank(mount));
        for mount in mounts {
            let top = mount.root.trim_end_matches('/');
            let Some(below) = cgroup.strip_prefix(top).filter(|b| b.starts_with('/') && b.len() > 1) else { continue };
            if below.split('/').any(|part| part == "..") {
                continue;
            }
            let pids = self.processes_below(&format!("{}{below}", mount.mount_point.trim_end_matches('/')));
            if !pids.is_empty() {
                return pids;
            }
        }
        Vec::new()
    }

    fn processes_below(&self, directory: &str) -> Vec<u32> {
        let mut pids = Vec::new();
        let mut ahead = vec![directory.to_owned()];
        let mut read = 0;
        while let Some(directory) = ahead.pop() {
            read += 1;
            if read > MAX_CGROUPS || pids.len() > MAX_PROCESSES {
                break;
            }
            if let Ok(text) = self.root.read(&format!("{directory}/cgroup.procs")) {
                // Processes in another pid namespace show as 0.
                pids.extend(text.lines().filter_map(|line| line.trim().parse::<u32>().ok()).filter(|pid| *pid > 0));
            }
            let Ok(entries) = std::fs::read_dir(self.root.path(&directory)) else { continue };
            for entry in entries.flatten().filter(|e| e.file_type().is_ok_and(|t| t.is_dir())) {
                ahead.push(format!("{directory}/{}", entry.file_name().to_string_lossy()));
            }
        }
        pids
    }

    /// The process's network namespace and the inodes of its sockets; `None` if it is gone.
    fn sockets_of(&self, pid: u32) -> io::Result<Option<(String, Vec<u64>)>> {
        let denied = |what: &str, e: io::Error| match e.kind() {
            io::ErrorKind::PermissionDenied => Err(io::Error::new(e.kind(), format!("/proc/{pid}/{what}: {e}"))),
            _ => Ok(None),
        };
        let namespace = match std::fs::read_link(self.root.path(&format!("/proc/{pid}/ns/net"))) {
            Ok(target) => target.to_string_lossy().into_owned(),
            Err(e) => return denied("ns/net", e),
        };
        let directory = self.root.path(&format!("/proc/{pid}/fd"));
        let entries = match std::fs::read_dir(&directory) {
            Ok(entries) => entries,
            Err(e) => return denied("fd", e),
        };
        let targets = entries.flatten().take(MAX_DESCRIPTORS).filter_map(|e| std::fs::read_link(e.path()).ok());
        Ok(Some((namespace, targets.filter_map(|t| socket_number(&t.to_string_lossy())).collect())))
    }

    fn table(&mut self, pid: u32, namespace: &str) -> io::Result<&HashMap<u64, Use>> {
        if !self.tables.contains_key(namespace) {
            let mut table = HashMap::new();
            for (name, protocol) in [("tcp", Tcp), ("tcp6", Tcp), ("udp", Udp), ("udp6", Udp)] {
                let path = format!("/proc/{pid}/net/{name}");
                let mut text = Vec::new();
                // Without IPv6 there is no tcp6.
                let Ok(file) = File::open(self.root.path(&path)) else { continue };
                file.take(MAX_TABLE + 1).read_to_end(&mut text)?;
                if text.len() as u64 > MAX_TABLE {
                    return Err(io::Error::other(format!("{path}: too many sockets to read")));
                }
                table.extend(parse_table(&String::from_utf8_lossy(&text), protocol));
            }
            self.tables.insert(namespace.to_owned(), table);
        }
        Ok(&self.tables[namespace])
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Protocol {
    Tcp,
    Udp,
}
use Protocol::{Tcp, Udp};

/// `socket:[4711]`
fn socket_number(target: &str) -> Option<u64> {
    target.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

/// `  0: 0100007F:0035 00000000:0000 0A 00000000:00000000 00:00000000 00000000   101        0 4711 1 …`
/// (proc_net_tcp in Documentation/networking). States are those of include/net/tcp_states.h; a UDP socket with a peer is
/// ESTABLISHED, one without CLOSE.
fn parse_table(text: &str, protocol: Protocol) -> impl Iterator<Item = (u64, Use)> + '_ {
    text.lines().skip(1).filter_map(move |line| {
        let mut fields = line.split_whitespace().skip(3);
        let state = fields.next()?;
        let number: u64 = fields.nth(5)?.parse().ok()?;
        let does = match (protocol, state) {
            (_, "01") => Use::Connected,
            (Tcp, "0A") | (Udp, "07") => Use::Listening,
            _ => return None,
        };
        Some((number, does))
    })
}

#[cfg(test)]
#[path = "unit_sockets/tests.rs"]
mod tests;
