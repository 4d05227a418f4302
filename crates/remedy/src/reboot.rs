//! What only a reboot frees: the proof, and the commands.

use coroner_diagnosis::units::paths::shell_word;
use coroner_evidence::Node;
use serde::Serialize;

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Reboot {
    /// What stays without it, and why nothing else frees that.
    pub why: String,
    /// What to do before, or it starts again.
    pub first: Option<String>,
    pub commands: Vec<Command>,
    /// What will happen if nothing is done.
    pub if_nothing_is_done: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Command {
    /// Where to type it.
    pub run_at: &'static str,
    pub command: String,
    pub why: &'static str,
}

const CLUSTER: &str = "where kubectl works";
const NODE: &str = "on the node";

pub fn plan(node: &Node, why: String, first: Option<String>, risk: Option<String>) -> Reboot {
    let has_kubelet = node.kubelet.as_ref().is_some_and(|kubelet| kubelet.running != Some(false));
    let host = shell_word(node.host.as_deref().unwrap_or("NODE"));
    let mut commands = Vec::new();
    if has_kubelet {
        commands.push(Command {
            run_at: CLUSTER,
            command: format!("kubectl cordon {host}"),
            why: "no new pods are scheduled here",
        });
        commands.push(Command {
            run_at: CLUSTER,
            command: format!("kubectl drain {host} --ignore-daemonsets --delete-emptydir-data"),
            why: "pods move elsewhere; data in emptyDir volumes is lost",
        });
    }
    commands.push(Command { run_at: NODE, command: "systemctl reboot".to_owned(), why: "frees every dead cgroup" });
    if has_kubelet {
        commands.push(Command {
            run_at: CLUSTER,
            command: format!("kubectl uncordon {host}"),
            why: "when `kubectl get node` says Ready",
        });
    }
    Reboot { why, first, commands, if_nothing_is_done: risk }
}

#[cfg(test)]
mod tests {
    use super::*;
    use coroner_evidence::node::Software;

    #[test]
    fn a_cluster_node_is_drained_first() {
        let kubelet =
            Software { name: "kubelet".into(), running: Some(true), version: None, seen_by: "process".into() };
        let node = Node { host: Some("gpu-7".into()), kubelet: Some(kubelet), ..Node::default() };
        let commands: Vec<String> =
            plan(&node, String::new(), None, None).commands.into_iter().map(|c| c.command).collect();
        assert_eq!(commands.len(), 4);
        assert_eq!(commands[0], "kubectl cordon gpu-7");
        assert!(
            commands[1].starts_with("kubectl drain gpu-7") && commands[3] == "kubectl uncordon gpu-7",
            "{commands:?}"
        );
        assert_eq!(plan(&Node::default(), String::new(), None, None).commands.len(), 1, "no cluster, no kubectl");
    }
}
