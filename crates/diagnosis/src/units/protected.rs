//! The units we never disable or suggest disabling: without them nobody can log in, or nothing runs. The only list of them, for
//! advice and for action.

use super::paths::stem;
use crate::agents::{Action, Catalogue};

/// By name, without kind and instance.
const BY_NAME: &[(&str, &[&str])] = &[
    (
        "people log in through it",
        &["ssh", "sshd", "getty", "serial-getty", "console-getty", "amazon-ssm-agent", "sssd"],
    ),
    (
        "the node's jobs run under it",
        &[
            "kubelet",
            "containerd",
            "docker",
            "crio",
            "cri-docker",
            "cri-dockerd",
            "podman",
            "k3s",
            "k3s-agent",
            "k0scontroller",
            "k0sworker",
            "rke2-server",
            "rke2-agent",
            "nvidia-persistenced",
            "nvidia-fabricmanager",
            "etcd",
            "libvirtd",
            "virtqemud",
            "kube-proxy",
        ],
    ),
    (
        "the node's network needs it",
        &[
            "NetworkManager",
            "networking",
            "network",
            "wpa_supplicant",
            "dhclient",
            "dhcpcd",
            "wicked",
            "wickedd",
            "ifup",
            "netplan-ovs-cleanup",
            "networkd-dispatcher",
            "openvswitch-switch",
            "rpcbind",
            "firewalld",
            "nftables",
            "iptables",
            "ufw",
            "frr",
            "bird",
            "keepalived",
            "cilium",
        ],
    ),
    ("the system needs it", &["dbus", "dbus-broker", "polkit", "init", "chronyd", "chrony", "ntpd", "dracut", "user"]),
    (
        "the node's disks need it",
        &["lvm2-monitor", "multipathd", "iscsid", "iscsi", "open-iscsi", "nfs-client", "zfs-mount", "zfs-import-cache"],
    ),
    ("the cloud reaches the node through it", &["cloud-init", "google-guest-agent", "walinuxagent", "waagent"]),
];

const BY_BEGINNING: &[(&str, &[&str])] = &[
    ("the system needs it", &["systemd-", "user-", "dbus-org.freedesktop."]),
    ("people log in through it", &["snap.amazon-ssm-agent", "session-"]),
    ("the node's jobs run under it", &["snap.docker."]),
    ("the cloud reaches the node through it", &["cloud-init-", "cloud-config", "cloud-final"]),
];

/// Kinds of units that contain others, or that the system depends on.
const BY_KIND: &[(&str, &[&str])] = &[
    ("other units are in it or wait for it", &[".slice", ".target"]),
    ("it is a file system, a device or swap", &[".mount", ".automount", ".swap", ".device"]),
];

/// Why disabling the unit could lock people out or stop the node's jobs; `None` if it could not.
pub fn why_protected(name: &str) -> Option<&'static str> {
    why_protected_by(&Catalogue::built_in(), name)
}

/// The same with a catalogue that may include agents that users added.
pub fn why_protected_by(catalogue: &Catalogue, name: &str) -> Option<&'static str> {
    let stem = stem(name);
    let named = BY_NAME.iter().find(|(_, names)| names.contains(&stem));
    let begins = BY_BEGINNING.iter().find(|(_, all)| all.iter().any(|beginning| stem.starts_with(beginning)));
    let kind = BY_KIND.iter().find(|(_, kinds)| kinds.iter().any(|kind| name.ends_with(kind)));
    let by_list = named.or(begins).or(kind).map(|(why, _)| *why);
    by_list.or_else(|| match catalogue.agent_of(name) {
        Some(agent) if agent.only_way_in => Some("it may be the only way in"),
        Some(agent) if agent.action == Action::Report => Some("the agent catalogue says to report it only"),
        _ => None,
    })
}

pub fn is_protected(name: &str) -> bool {
    why_protected(name).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_for_logging_in_and_running_jobs_are_protected() {
        for name in [
            "sshd.service",
            "ssh@7-10.0.0.1:22.service",
            "kubelet.service",
            "containerd.service",
            "systemd-networkd.service",
            "dbus-org.freedesktop.network1.service",
            "getty@tty1.service",
            "amazon-ssm-agent.service",
            "system.slice",
            "multi-user.target",
            "-.mount",
            "tailscaled.service",
        ] {
            assert!(is_protected(name), "{name}");
        }
        for name in ["ecs.service", "snapd.service", "my-app.service", "sshd-report.service"] {
            assert!(!is_protected(name), "{name}: {:?}", why_protected(name));
        }
    }
}
