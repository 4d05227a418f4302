//! Which cpusets keep threads from some of the node's cores.

use crate::Root;
use crate::cgroups::mounts::{self, Hierarchy};
use coroner_evidence::cpusets::{Cpuset, CpusetLevel};
use coroner_evidence::{CoreSet, Evidence};

const ONLINE: &str = "/sys/devices/system/cpu/online";
/// Threads whose cgroup is read per look: more of the same cpuset tell nothing new.
const MOST_THREADS: usize = 256;

/// Adds the cpusets of the threads in `evidence`, from the one at `first` on, that may not run on every core.
pub fn look(root: &Root, first: usize, evidence: &mut Evidence) {
    let new = || evidence.threads.iter().skip(first).filter(|thread| !thread.kernel && thread.affinity.is_some());
    if new().next().is_none() {
        return;
    }
    let Some(online) = root.read_line(ONLINE).and_then(|line| CoreSet::parse_list(&line)) else { return };
    let is_narrow = |cores: &CoreSet| !online.iter().all(|core| cores.contains(core));
    let narrow: Vec<(u32, u32)> = new()
        .filter(|thread| thread.affinity.as_ref().is_some_and(is_narrow))
        .map(|thread| (thread.pid, thread.key.tid))
        .take(MOST_THREADS)
        .collect();
    if narrow.is_empty() {
        return;
    }
    // What is not mounted was noted by the cgroup probe.
    let mounts = mounts::find(root, &mut Evidence::default());
    let Some(hierarchy) = mounts::with_controller(root, &mounts, "cpuset") else { return };
    let mut found: Vec<Cpuset> = Vec::new();
    for (pid, tid) in narrow {
        let Ok(memberships) = root.read(&format!("/proc/{pid}/task/{tid}/cgroup")) else { continue };
        let Some(path) = path_of(&memberships, hierarchy.version) else { continue };
        match found.iter_mut().find(|known| known.cgroup == path) {
            Some(known) => known.threads.push(tid),
            None => found.push(Cpuset { threads: vec![tid], ..describe(root, &hierarchy, path, &online) }),
        }
    }
    // A thread that was only pinned has no cpuset to blame.
    evidence.cpusets.extend(found.into_iter().filter(|cpuset| !cpuset.levels.is_empty()));
}

/// The path of the hierarchy with the cpuset controller in /proc/PID/cgroup.
fn path_of(memberships: &str, version: u8) -> Option<&str> {
    memberships.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':');
        let (hierarchy, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        let is_it = match version {
            1 => controllers.split(',').any(|controller| controller == "cpuset"),
            _ => hierarchy == "0" && controllers.is_empty(),
        };
        is_it.then_some(path)
    })
}

fn describe(root: &Root, hierarchy: &Hierarchy, path: &str, online: &CoreSet) -> Cpuset {
    let mut cpuset =
        Cpuset { cgroup: path.to_owned(), version: hierarchy.version, cores: online.clone(), ..Cpuset::default() };
    let Some(below) = hierarchy.below(path) else { return cpuset };
    let mut directory = String::new();
    for part in below.split('/').filter(|part| !part.is_empty()) {
        directory = if directory.is_empty() { part.to_owned() } else { format!("{directory}/{part}") };
        let file = hierarchy.file(&format!("{directory}/cpuset.cpus"));
        // Empty on v2: as its parent. Without the file the controller is not enabled here, which means the same.
        let Some(own) = root.read_line(&file).and_then(|line| CoreSet::parse_list(&line)).filter(|own| !own.is_empty())
        else {
            continue;
        };
        cpuset.cores = CoreSet::new(cpuset.cores.iter().filter(|core| own.contains(*core)));
        if !online.iter().all(|core| own.contains(core)) {
            cpuset.levels.push(CpusetLevel { file, cores: own });
        }
    }
    cpuset
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_tree::{seen, tree};
    use coroner_evidence::{Thread, ThreadKey};

    const V1: &str = "31 25 0:26 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n";
    const V2: &str = "31 25 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";

    fn thread(tid: u32, cores: &str) -> Thread {
        Thread { key: ThreadKey { tid, started: 1 }, pid: 7, affinity: CoreSet::parse_list(cores), ..Thread::default() }
    }

    fn cpusets(files: &[(&str, &str)], threads: Vec<Thread>) -> Vec<Cpuset> {
        let dir = tree(files);
        let look = |root: &Root, evidence: &mut Evidence| {
            evidence.threads = threads;
            look(root, 0, evidence);
        };
        seen(dir.path(), look).cpusets
    }

    fn levels(cpuset: &Cpuset) -> Vec<(&str, String)> {
        cpuset.levels.iter().map(|level| (level.file.as_str(), level.cores.to_string())).collect()
    }

    #[test]
    fn each_level_that_leaves_cores_out_is_named_topmost_first() {
        let found = cpusets(
            &[
                (ONLINE, "0-3\n"),
                ("/proc/self/mountinfo", V1),
                ("/sys/fs/cgroup/cpuset/jobs/cpuset.cpus", "0-1\n"),
                ("/sys/fs/cgroup/cpuset/jobs/a/cpuset.cpus", "1\n"),
                ("/proc/7/task/7/cgroup", "4:cpuset:/jobs/a\n3:cpu:/other\n"),
                ("/proc/7/task/8/cgroup", "4:cpuset:/jobs/a\n"),
            ],
            vec![thread(7, "1"), thread(8, "1")],
        );
        let [cpuset] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!((cpuset.cgroup.as_str(), cpuset.version, cpuset.cores.to_string().as_str()), ("/jobs/a", 1, "1"));
        assert_eq!(cpuset.threads, [7, 8]);
        let files = ["/sys/fs/cgroup/cpuset/jobs/cpuset.cpus", "/sys/fs/cgroup/cpuset/jobs/a/cpuset.cpus"];
        assert_eq!(levels(cpuset), [(files[0], "0-1".to_owned()), (files[1], "1".to_owned())]);
    }

    #[test]
    fn on_v2_an_empty_or_missing_file_means_as_the_parent() {
        let found = cpusets(
            &[
                (ONLINE, "0-3\n"),
                ("/proc/self/mountinfo", V2),
                ("/sys/fs/cgroup/cgroup.controllers", "cpuset cpu memory\n"),
                ("/sys/fs/cgroup/jobs/cpuset.cpus", "2-3\n"),
                ("/sys/fs/cgroup/jobs/a/cpuset.cpus", "\n"),
                ("/proc/7/task/7/cgroup", "0::/jobs/a/b\n"),
            ],
            vec![thread(7, "2-3")],
        );
        let [cpuset] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!((cpuset.version, cpuset.cores.to_string()), (2, "2-3".to_owned()));
        assert_eq!(levels(cpuset), [("/sys/fs/cgroup/jobs/cpuset.cpus", "2-3".to_owned())]);
    }

    #[test]
    fn a_thread_that_is_only_pinned_has_no_cpuset() {
        let files = [
            (ONLINE, "0-3\n"),
            ("/proc/self/mountinfo", V1),
            ("/sys/fs/cgroup/cpuset/cpuset.cpus", "0-3\n"),
            ("/proc/7/task/7/cgroup", "4:cpuset:/\n"),
        ];
        assert_eq!(cpusets(&files, vec![thread(7, "1")]), []);
        assert_eq!(cpusets(&files, vec![thread(7, "0-3")]), []);
        assert_eq!(cpusets(&[], vec![thread(7, "1")]), []);
    }
}
