//! NAPI threads, found by their names `napi/DEVICE-ID` (net/core/dev.c, `napi_kthread_create`).

use crate::root::Root;

/// A kernel thread that polls a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NapiThread {
    pub tid: u32,
    pub comm: String,
    /// Whether this kernel shows long names in full.
    pub is_whole: bool,
}

/// Before 5.17 a kernel thread's name is cut after 15 bytes (TASK_COMM_LEN is 16).
const COMM_LENGTH: usize = 15;
/// No node runs more kernel threads than this; bounds the scan.
const MAX_THREADS: usize = 100_000;

impl NapiThread {
    /// Whether it may be a thread of this device, and its NAPI id if the name still contains it.
    ///
    /// The inner `None`: the name was cut, so another device with the same prefix matches too.
    pub fn of_device(&self, device: &str) -> Option<Option<u32>> {
        let rest = self.comm.strip_prefix("napi/")?;
        let id = rest.strip_prefix(device).and_then(|r| r.strip_prefix('-'));
        if let Some(id) = id.and_then(|id| id.parse::<u32>().ok()) {
            return Some((self.is_whole || self.comm.len() != COMM_LENGTH).then_some(id));
        }
        let cut = !self.is_whole && self.comm.len() == COMM_LENGTH && format!("{device}-").starts_with(rest);
        cut.then_some(None)
    }
}

/// All NAPI threads of the node. Empty if the pid namespace has no kernel threads.
pub fn scan(root: &Root) -> Vec<NapiThread> {
    let names: Vec<(u32, String)> = kernel_threads(root)
        .into_iter()
        .filter_map(|tid| Some((tid, root.read_line(&format!("/proc/{tid}/comm"))?)))
        .collect();
    // kworkers had long names before 5.17 too.
    let is_whole = names.iter().any(|(_, comm)| comm.len() > COMM_LENGTH && !comm.starts_with("kworker/"));
    let polling = names.into_iter().filter(|(_, comm)| comm.starts_with("napi/"));
    polling.map(|(tid, comm)| NapiThread { tid, comm, is_whole }).collect()
}

/// The children of kthreadd, in one read where the kernel has CONFIG_PROC_CHILDREN, else every process.
fn kernel_threads(root: &Root) -> Vec<u32> {
    if root.read_line("/proc/2/comm").as_deref() == Some("kthreadd")
        && let Ok(children) = root.read("/proc/2/task/2/children")
    {
        return children.split_ascii_whitespace().filter_map(|p| p.parse().ok()).take(MAX_THREADS).collect();
    }
    let names = root.list("/proc").unwrap_or_default();
    names.iter().filter_map(|name| name.parse().ok()).take(MAX_THREADS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(comm: &str, device: &str) -> Option<Option<u32>> {
        NapiThread { tid: 1, comm: comm.to_owned(), is_whole: false }.of_device(device)
    }

    #[test]
    fn a_name_contains_device_and_id_unless_it_was_cut() {
        assert_eq!(of("napi/vb-259", "vb"), Some(Some(259)));
        assert_eq!(of("napi/vb-259", "v"), None);
        assert_eq!(of("napi/a-b-7", "a-b"), Some(Some(7)));
        assert_eq!(of("napi/a-b-7", "a"), None);
        assert_eq!(of("napi/enp0s31f6-8193", "enp0s31f6"), Some(Some(8193)), "a full name, as since 5.17");
        assert_eq!(of("napi/enp0s31f6-", "enp0s31f6"), Some(None), "cut after 15 bytes");
        assert_eq!(of("napi/eth0-81930", "eth0"), Some(None), "15 bytes: the id may be cut");
        assert_eq!(of("napi/enp0s31f6n", "enp0s31f6np0"), Some(None));
        assert_eq!(of("napi/enp0s31f6n", "enp0s31f6"), None);
        assert_eq!(of("ksoftirqd/0", "eth0"), None);
    }

    #[test]
    fn a_kernel_with_long_names_cuts_none() {
        let threads = |names: &[&str]| {
            let dir = tempfile::tempdir().unwrap();
            for (tid, name) in names.iter().enumerate() {
                std::fs::create_dir_all(dir.path().join(format!("proc/{}", tid + 3))).unwrap();
                std::fs::write(dir.path().join(format!("proc/{}/comm", tid + 3)), format!("{name}\n")).unwrap();
            }
            scan(&Root::at(dir.path())).iter().map(|t| t.of_device("ens33")).collect::<Vec<_>>()
        };
        // As on 5.15, where the id in a name of 15 bytes may be cut, and on 6.1, where it is not.
        assert_eq!(threads(&["napi/ens33-8193", "rcu_tasks_rude_", "kworker/u16:0-flush-8:0"]), [Some(None)]);
        assert_eq!(threads(&["napi/ens33-8193", "rcu_tasks_rude_kthread"]), [Some(Some(8193))]);
    }

    proptest! {
        #[test]
        fn any_name_is_read(comm in ".{0,20}", device in ".{0,15}") {
            let _ = of(&comm, &device);
            let _ = of(&format!("napi/{comm}"), &device);
        }
    }
}
