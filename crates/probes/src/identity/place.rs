//! Where coroner runs: on the node or in a container on it; and whether it can reach the node's files.
//!
//! A leftover /.dockerenv proves nothing (images of virtual machines are made from containers), and a pod with hostPID shares
//! the node's pid namespace but has its own files. So the namespaces decide, then the root directory of process 1, and such
//! signs only if neither is readable.

use std::fs;
use std::os::unix::fs::MetadataExt;

use crate::root::Root;

/// PROC_PID_INIT_INO and PROC_UTS_INIT_INO (include/linux/proc_ns.h): the node's own namespaces.
const NODE_PID_NAMESPACE: u64 = 0xEFFF_FFFC;
const NODE_UTS_NAMESPACE: u64 = 0xEFFF_FFFE;

/// The node's own mount namespace has a fixed number since Linux 6.18 (MNT_NS_INIT_INO in include/uapi/linux/nsfs.h); before
/// that it has the first or second number that the kernel assigns at boot, which is never reused.
const NODE_MOUNT_NAMESPACES: [u64; 3] = [0xEFFF_FFF8, 0xF000_0000, 0xF000_0001];

#[derive(Debug, Clone)]
pub(super) struct ObserverPlace {
    /// Why we are believed to be in a container; `None` if we are not.
    pub in_container: Option<String>,
    /// The root of the node's own files; `None` if they are not accessible.
    pub node_files: Option<Root>,
    /// Whether the processes that we see may be all of the node's.
    pub node_processes: bool,
    /// Whether the host name that we see is the node's.
    pub own_host_name: bool,
}

impl ObserverPlace {
    pub fn find(root: &Root) -> ObserverPlace {
        let namespace = |kind: &str| namespace(root, kind);
        let foreign_pid = namespace("pid").filter(|id| *id != NODE_PID_NAMESPACE);
        let given = directory(root, "/");
        let own = directory(root, "/proc/self/root/.").or(given);
        let node = directory(root, "/proc/1/root/.").filter(|_| foreign_pid.is_none());

        let in_container = if let Some(id) = foreign_pid {
            Some(format!("its pid namespace pid:[{id}] is not the node's{}", and_signs(root)))
        } else if let (Some(own), Some(node)) = (own, node) {
            (own != node).then(|| format!("its root directory is not that of process 1{}", and_signs(root)))
        } else if namespace("mnt").is_some_and(|id| NODE_MOUNT_NAMESPACES.contains(&id)) {
            None
        } else {
            let signs = signs(root);
            (!signs.is_empty()).then(|| signs.join(", "))
        };

        let node_files = if in_container.is_none() || (given.is_some() && given == node) {
            Some(root.clone())
        } else if node.is_some() {
            Some(Root::at(root.path("/proc/1/root")))
        } else if root.is_live() {
            None
        } else {
            // The caller passed the node's files, mounted somewhere in our container.
            Some(root.clone())
        };
        ObserverPlace {
            in_container,
            node_files,
            node_processes: foreign_pid.is_none() || !root.is_live(),
            own_host_name: namespace("uts").is_none_or(|id| id == NODE_UTS_NAMESPACE),
        }
    }
}

/// The number in a link such as `pid:[4026531836]`.
fn namespace(root: &Root, kind: &str) -> Option<u64> {
    let link = fs::read_link(root.path(&format!("/proc/self/ns/{kind}"))).ok()?;
    link.to_str()?.strip_prefix(kind)?.strip_prefix(":[")?.strip_suffix(']')?.parse().ok()
}

/// Identifies a directory. For that of process 1 we need permission to trace it.
fn directory(root: &Root, absolute: &str) -> Option<(u64, u64)> {
    let metadata = fs::metadata(root.path(absolute)).ok()?;
    Some((metadata.dev(), metadata.ino()))
}

fn and_signs(root: &Root) -> String {
    signs(root).iter().map(|sign| format!("; {sign}")).collect()
}

fn signs(root: &Root) -> Vec<String> {
    let exists = |path: &str| {
        let own = root.path(&format!("/proc/self/root{path}"));
        own.exists() || (root.is_live() && root.path(path).exists())
    };
    let mut signs = Vec::new();
    if exists("/var/run/secrets/kubernetes.io/serviceaccount") {
        signs.push("it is a Kubernetes pod with a service account".to_owned());
    }
    for path in ["/.dockerenv", "/run/.containerenv"] {
        if exists(path) {
            signs.push(format!("{path} exists"));
        }
    }
    if let Ok(cgroups) = root.read("/proc/self/cgroup") {
        let marks = ["/kubepods", "/docker", "/libpod", "/containerd", "/crio-", "/cri-containerd"];
        if let Some(line) = cgroups.lines().find(|line| marks.iter().any(|mark| line.contains(mark))) {
            let path = line.splitn(3, ':').nth(2).unwrap_or(line);
            signs.push(format!("its cgroup is {path}"));
        }
    }
    signs
}
