//! Cgroups: where they are mounted, how many there are, and who owns them.

use crate::time::Time;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupMount {
    /// 1 or 2.
    pub version: u8,
    /// Controllers of a v1 hierarchy (`cpu`, `cpuacct`, `name=systemd`); for v2, the root's cgroup.controllers.
    pub controllers: Vec<String>,
    pub mount_point: String,
    /// The part of the hierarchy mounted there; `/` unless seen from inside a container.
    pub root: String,
}

impl CgroupMount {
    pub fn has(&self, controller: &str) -> bool {
        self.controllers.iter().any(|c| c == controller)
    }
}

/// Number of directories and of cgroups tracked by the kernel, read together, in the hierarchy with the memory controller.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupCensus {
    pub at: Time,
    pub version: u8,
    pub mount_point: String,
    /// Cgroup directories, the root included.
    pub live: u64,
    /// Tracked by the kernel: /proc/cgroups num_cgroups (v1), live and dying together (v2). `None` if it does not say.
    pub tracked: Option<u64>,
    /// Removed but not yet freed: from the kernel on v2, tracked − live on v1.
    pub dying: Option<u64>,
    /// The source of `dying`, for people: `/proc/cgroups`, `cgroup.stat nr_dying_subsys_memory`.
    pub dying_source: String,
    /// Live cgroups with no process in them or below them. `None` if not all processes could be seen.
    pub empty: Option<u64>,
    /// Parents with the most children, most first; a handful.
    pub crowded: Vec<CrowdedParent>,
    /// The walk hit its limit: `live` is a lower bound.
    pub truncated: bool,
    pub took_ns: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CrowdedParent {
    pub path: String,
    pub children: u64,
    /// Children with no process in or below them.
    pub empty: Option<u64>,
    /// Dying descendants, if the kernel says (v2).
    pub dying: Option<u64>,
    /// One child's name, so that people recognise them.
    pub example: Option<String>,
}

/// A guarded, timed read of one statistics file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatRead {
    pub at: Time,
    pub path: String,
    pub took_ns: u64,
    /// CPU time of the read; elapsed time may include waiting for a core.
    pub cpu_ns: Option<u64>,
    /// False if it had not returned when we stopped waiting: then `took_ns` is a lower bound.
    pub finished: bool,
}

/// The owner of a cgroup, as far as its path tells.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CgroupOwner {
    /// `ecs.service`, `session-3.scope`.
    pub unit: Option<String>,
    pub pod_uid: Option<String>,
    pub container_id: Option<String>,
}

impl CgroupOwner {
    /// Whether it belongs to a pod, a container or a unit.
    pub fn is_known(&self) -> bool {
        self.pod_uid.is_some() || self.container_id.is_some() || self.unit.is_some()
    }

    /// Parses the owner from a cgroup path; knows systemd, kubelet with both cgroup drivers, containerd, CRI-O, Docker, Podman.
    pub fn of_path(path: &str) -> CgroupOwner {
        let mut owner = CgroupOwner::default();
        for part in path.split('/') {
            let stem = part.strip_suffix(".slice").or_else(|| part.strip_suffix(".scope")).unwrap_or(part);
            // kubepods-burstable-pod6f9b_….slice (systemd driver) or pod6f9b-… (cgroupfs driver)
            if owner.pod_uid.is_none()
                && let Some(at) = stem.rfind("pod")
                && (at == 0 || stem[..at].ends_with('-'))
            {
                let uid = stem[at + 3..].replace('_', "-");
                if is_pod_uid(&uid) {
                    owner.pod_uid = Some(uid);
                }
            }
            // cri-containerd-<id>.scope, docker-<id>.scope, libpod-<id>.scope, crio-<id>.scope, or the bare id
            if owner.container_id.is_none() {
                let id = stem.rsplit(['-', ':']).next().unwrap_or(stem);
                if id.len() == 64 && id.bytes().all(|b| b.is_ascii_hexdigit()) {
                    owner.container_id = Some(id.to_owned());
                }
            }
            // The first one is the node's own systemd; deeper ones belong to a user's systemd or to one inside a container.
            if owner.unit.is_none() && is_unit(part) {
                owner.unit = Some(part.to_owned());
            }
        }
        owner
    }
}

/// A Kubernetes UID, or the 32 hex digits (a config hash) that static pods have.
fn is_pod_uid(text: &str) -> bool {
    let dashed = text.len() == 36 && text.bytes().filter(|&b| b == b'-').count() == 4;
    (dashed || text.len() == 32) && text.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-')
}

fn is_unit(part: &str) -> bool {
    [".service", ".scope", ".socket", ".mount", ".swap"].iter().any(|s| part.len() > s.len() && part.ends_with(s))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_parsed_from_paths() {
        let id = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
        let systemd = CgroupOwner::of_path(&format!(
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod6f9b1c7e_1111_2222_3333_444455556666.slice/cri-containerd-{id}.scope"
        ));
        assert_eq!(systemd.pod_uid.as_deref(), Some("6f9b1c7e-1111-2222-3333-444455556666"));
        assert_eq!(systemd.container_id.as_deref(), Some(id));
        let cgroupfs =
            CgroupOwner::of_path(&format!("/kubepods/besteffort/pod6f9b1c7e-1111-2222-3333-444455556666/{id}"));
        assert_eq!(cgroupfs.pod_uid, systemd.pod_uid);
        assert_eq!(cgroupfs.container_id, systemd.container_id);
        assert_eq!(cgroupfs.unit, None);
        assert_eq!(CgroupOwner::of_path("/system.slice/ecs.service").unit.as_deref(), Some("ecs.service"));
        assert_eq!(
            CgroupOwner::of_path("/user.slice/user-0.slice/session-3.scope").unit.as_deref(),
            Some("session-3.scope")
        );
        assert_eq!(CgroupOwner::of_path("/"), CgroupOwner::default());
        assert_eq!(CgroupOwner::of_path("/podium/tripod").pod_uid, None);
        let docker = CgroupOwner::of_path(&format!("/docker/{id}"));
        assert_eq!((docker.unit, docker.container_id.as_deref()), (None, Some(id)));
    }
}
