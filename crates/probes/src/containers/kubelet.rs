//! Pods: `/var/log/pods/NAMESPACE_POD_UID/CONTAINER/N.log`, where N is the number of restarts of the container.
//!
//! kubelet's pkg/kubelet/kuberuntime: BuildPodLogsDirectory and buildContainerLogsPath (`helpers.go`). It keeps the logs of the
//! running container and of the previous one, and creates the container's directory before its first start. `N.log.TIME` and
//! `N.log.TIME.gz` are rotated parts (`pkg/kubelet/logs`). With docker the file is a link to docker's own log.

use std::io::Read;

use coroner_evidence::{Container, Time, Wall};
use rustix::fs::{AtFlags, StatxFlags, statx};

use super::Budget;
use super::moment::{first_entry, statx_ns};
use crate::tree::{Entry, FileKind, Tree, is_absent};

const PODS: &str = "/var/log/pods";

/// Enough for the timestamp at the start of a line.
const FIRST_BYTES: u64 = 64 << 10;

pub fn look(tree: &Tree, at: Time, budget: &mut Budget, containers: &mut Vec<Container>) {
    let pods = match tree.list(PODS) {
        Ok(pods) => pods,
        Err(e) if is_absent(&e) => return,
        Err(e) => return budget.unread.push(format!("{PODS}: {e}")),
    };
    for directory in pods.iter().filter(|e| e.kind == FileKind::Directory) {
        let Some(pod) = Pod::of_directory(&directory.name) else { continue };
        let path = format!("{PODS}/{}", directory.name);
        let names = match tree.list(&path) {
            Ok(names) => names,
            // The pod was deleted meanwhile.
            Err(e) if is_absent(&e) => continue,
            Err(e) => {
                budget.unread.push(format!("{path}: {e}"));
                continue;
            }
        };
        for name in names.into_iter().filter(|e| e.kind == FileKind::Directory).map(|e| e.name) {
            if !budget.take() {
                return;
            }
            let Ok(logs) = tree.list(&format!("{path}/{name}")) else { continue };
            containers.extend(container(tree, at, &pod, name, &path, &logs));
        }
    }
}

fn container(tree: &Tree, at: Time, pod: &Pod, name: String, path: &str, logs: &[Entry]) -> Option<Container> {
    let restarts = logs.iter().filter_map(|log| restarts_of(&log.name)).max()?;
    let directory = format!("{path}/{name}");
    let started_at = |n: u64| {
        let parts = logs.iter().filter(|log| restarts_of(&log.name) == Some(n));
        parts.filter_map(|log| began(tree, &format!("{directory}/{}", log.name))).min()
    };
    let started = started_at(restarts);
    let oldest = logs.iter().filter_map(|log| restarts_of(&log.name)).min().filter(|n| *n < restarts);
    let first = [born(tree, &directory), oldest.and_then(started_at), started].into_iter().flatten().min();
    Some(Container {
        at,
        runtime: "kubelet".to_owned(),
        name,
        namespace: Some(pod.namespace.clone()),
        pod: Some(pod.name.clone()),
        pod_uid: Some(pod.uid.clone()),
        id: id_of(tree, &directory, restarts),
        restarts,
        started,
        first_started: first,
        exit_code: None,
    })
}

/// When a log began: the creation time of the file, or its first entry if that is older (the file was copied).
fn began(tree: &Tree, path: &str) -> Option<Wall> {
    let first = || {
        let place = tree.find(path).ok()?;
        let mut bytes = Vec::new();
        tree.open_place(&place).ok()?.take(FIRST_BYTES).read_to_end(&mut bytes).ok()?;
        first_entry(&bytes)
    };
    [born(tree, path), first()].into_iter().flatten().min()
}

/// When a file or directory was created, if the file system records it.
fn born(tree: &Tree, path: &str) -> Option<Wall> {
    let place = tree.find(path).ok()?;
    let (directory, name) = place.at();
    let found = statx(directory, name, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::BTIME).ok()?;
    let has_birth = found.stx_mask & StatxFlags::BTIME.bits() != 0;
    if has_birth { statx_ns(found.stx_btime.tv_sec, found.stx_btime.tv_nsec) } else { None }
}

/// With docker the log is a link to `/var/lib/docker/containers/ID/ID-json.log`.
fn id_of(tree: &Tree, directory: &str, restarts: u64) -> Option<String> {
    let target = tree.link_target(&format!("{directory}/{restarts}.log")).ok()?;
    let id = target.rsplit('/').next()?.strip_suffix("-json.log")?;
    (id.len() == 64 && id.bytes().all(|b| b.is_ascii_hexdigit())).then(|| id.to_owned())
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Pod {
    namespace: String,
    name: String,
    /// A hash for a static pod.
    uid: String,
}

impl Pod {
    /// Namespace, pod name and uid cannot contain `_`. Before Kubernetes 1.14 the directory was named by uid alone and had no
    /// subdirectory per container.
    fn of_directory(name: &str) -> Option<Pod> {
        let mut parts = name.split('_');
        let (namespace, pod, uid) = (parts.next()?, parts.next()?, parts.next()?);
        let whole = parts.next().is_none() && ![namespace, pod, uid].contains(&"");
        whole.then(|| Pod { namespace: namespace.to_owned(), name: pod.to_owned(), uid: uid.to_owned() })
    }
}

/// `3.log`, `3.log.20180215-010737`, `3.log.20180215-010737.gz` → 3.
fn restarts_of(log: &str) -> Option<u64> {
    let (number, rest) = log.split_once(".log")?;
    let is_number = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
    (is_number && (rest.is_empty() || rest.starts_with('.'))).then(|| number.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_of_logs_and_pods() {
        assert_eq!(restarts_of("12.log"), Some(12));
        assert_eq!(restarts_of("3.log.20180215-010737.gz"), Some(3));
        assert_eq!(restarts_of("3.logx"), None);
        assert_eq!(restarts_of("+3.log"), None);
        assert_eq!(restarts_of("99999999999999999999.log"), None);
        let pod = Pod::of_directory("kube-system_etcd-node.example_0f3b3a5f2b0c4ab0b5b7b8a2c1d0e9f8").unwrap();
        assert_eq!((pod.namespace.as_str(), pod.name.as_str()), ("kube-system", "etcd-node.example"));
        assert_eq!(Pod::of_directory("57146449-11ec-11e8-90e1-42010af00002"), None);
        assert_eq!(Pod::of_directory("a__c"), None);
        assert_eq!(Pod::of_directory("a_b_c_d"), None);
    }

    proptest! {
        #[test]
        fn kubelet_directory_names_round_trip(namespace in "[a-z0-9-]{1,20}", name in "[a-z0-9.-]{1,40}", uid in "[0-9a-f-]{1,36}",
                restarts in any::<u32>(), any_name in any::<String>()) {
            let pod = Pod::of_directory(&format!("{namespace}_{name}_{uid}"));
            prop_assert_eq!(pod, Some(Pod { namespace, name, uid }));
            prop_assert_eq!(restarts_of(&format!("{restarts}.log")), Some(u64::from(restarts)));
            let _ = (Pod::of_directory(&any_name), restarts_of(&any_name));
        }
    }
}
