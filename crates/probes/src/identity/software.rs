//! Programs of interest: kubelet, container runtimes, Ray.

use std::collections::HashSet;

use coroner_evidence::node::Software;
use coroner_evidence::{Evidence, probe};

use super::place::ObserverPlace;
use crate::root::Root;

pub(super) struct Processes {
    names: HashSet<String>,
    /// Whether the list is complete: not in a container, nor if /proc hides other users' processes.
    complete: bool,
}

impl Processes {
    pub fn find(root: &Root, place: &ObserverPlace, evidence: &mut Evidence) -> Processes {
        let mut names: HashSet<String> =
            evidence.processes.iter().filter(|p| !p.kernel).map(|p| p.comm.clone()).collect();
        if names.is_empty() {
            let pids = match root.list("/proc") {
                Ok(entries) => entries.into_iter().filter(|name| name.bytes().all(|b| b.is_ascii_digit())),
                Err(error) => {
                    evidence.unseen(
                        probe::NODE,
                        "which agents are running",
                        error.to_string(),
                        "run where /proc is mounted and complete",
                    );
                    return Processes { names, complete: false };
                }
            };
            names.extend(pids.filter_map(|pid| root.read_line(&format!("/proc/{pid}/comm"))));
        }
        // If hidepid hides other users' processes from us, it also hides process 1.
        let complete = place.node_processes && root.read_line("/proc/1/comm").is_some();
        Processes { names, complete }
    }

    /// `comms` and `paths` identify a program by its processes or its files.
    fn software(&self, name: &str, comms: &[&str], paths: &[&str], files: Option<&Root>) -> Option<Software> {
        let process = comms.iter().find(|comm| self.names.contains(**comm));
        let path = || paths.iter().find(|path| files.is_some_and(|files| files.path(path).exists()));
        let (running, seen_by) = match process {
            Some(comm) => (Some(true), format!("process {comm}")),
            None => (self.complete.then_some(false), (*path()?).to_owned()),
        };
        Some(Software { name: name.to_owned(), running, version: None, seen_by })
    }
}

/// The kubelet, or a program with one built in. A running one is preferred to one that is only installed.
pub(super) fn kubelet(processes: &Processes, files: Option<&Root>) -> Option<Software> {
    let paths = ["/usr/bin/kubelet", "/usr/local/bin/kubelet", "/home/kubernetes/bin/kubelet", "/opt/bin/kubelet"];
    let found: Vec<Software> = [
        processes.software("kubelet", &["kubelet"], &paths, files),
        processes.software("k3s", &["k3s-server", "k3s-agent"], &["/usr/local/bin/k3s"], files),
        processes.software("microk8s", &["kubelite"], &["/snap/microk8s"], files),
    ]
    .into_iter()
    .flatten()
    .collect();
    found.iter().find(|s| s.running == Some(true)).or(found.first()).cloned()
}

pub(super) fn container_runtimes(processes: &Processes, files: Option<&Root>) -> Vec<Software> {
    [
        processes.software(
            "containerd",
            &["containerd"],
            &["/usr/bin/containerd", "/usr/local/bin/containerd", "/run/containerd/containerd.sock"],
            files,
        ),
        processes.software("cri-o", &["crio"], &["/usr/bin/crio", "/usr/local/bin/crio"], files),
        processes.software("docker", &["dockerd"], &["/usr/bin/dockerd", "/usr/local/bin/dockerd"], files),
        // It has no daemon: it runs only during a command or a request to its socket.
        processes.software("podman", &["podman"], &["/usr/bin/podman", "/usr/local/bin/podman"], files),
    ]
    .into_iter()
    .flatten()
    .collect()
}

pub(super) fn ray(processes: &Processes, files: Option<&Root>) -> Option<Software> {
    processes.software("ray", &["raylet", "gcs_server"], &["/tmp/ray"], files)
}
