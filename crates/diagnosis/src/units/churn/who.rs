//! Who is behind a birth, and whose job it is to make cgroups and processes.

use crate::units::paths::{UnitPaths, is_session, stem};
use coroner_evidence::{CgroupChurn, CgroupOwner, Maker};

/// Container runtimes and their owners. Their births are containers: a container that loops has a finding of its own.
const RUNTIMES: &[&str] = &[
    "kubelet",
    "containerd",
    "containerd-shim",
    "dockerd",
    "docker",
    "docker-init",
    "docker-containerd",
    "runc",
    "crun",
    "youki",
    "crio",
    "cri-o",
    "conmon",
    "podman",
    "k3s",
    "rke2",
    "nomad",
    "lxd",
    "lxcfs",
    "libvirtd",
    "machined",
];

/// Batch systems and build servers: making a cgroup for each of many different jobs is their purpose. It is churn only if what they
/// start keeps failing in the same way.
const STARTS_SHORT_THINGS: &[&str] = &[
    "slurmd",
    "slurmstepd",
    "condor",
    "pbs",
    "gitlab-runner",
    "buildkite-agent",
    "buildkit",
    "buildkitd",
    "actions.runner",
    "jenkins",
    "concourse",
    "teamcity",
    "cron",
    "crond",
    "atd",
];

/// Programs whose job is to restart what died.
const SUPERVISORS: &[&str] = &[
    "supervisord",
    "runsv",
    "runit",
    "s6-supervise",
    "supervise",
    "perpd",
    "monit",
    "circusd",
    "amazon-ecs-init",
    "ecs-init",
    "forever",
    "nodemon",
    "immortal",
];

/// Commands that answer by their exit code, and shells, through which scripts and agents ask: exit status 1 is an answer.
const ANSWERS: &[&str] = &[
    "[",
    "test",
    "grep",
    "egrep",
    "fgrep",
    "zgrep",
    "rg",
    "pgrep",
    "pidof",
    "pkill",
    "killall",
    "kill",
    "diff",
    "cmp",
    "which",
    "expr",
    "ping",
    "ping6",
    "fping",
    "arping",
    "curl",
    "wget",
    "nc",
    "ncat",
    "nslookup",
    "dig",
    "host",
    "getent",
    "id",
    "ls",
    "stat",
    "cat",
    "find",
    "readlink",
    "mountpoint",
    "findmnt",
    "lsmod",
    "modprobe",
    "ip",
    "ss",
    "ethtool",
    "tc",
    "nft",
    "iptables",
    "ip6tables",
    "ipset",
    "systemctl",
    "loginctl",
    "timeout",
    "flock",
    "lsof",
    "fuser",
    "jq",
    "awk",
    "sed",
    "false",
    "rpm",
    "dpkg",
    "dpkg-query",
    "apt-get",
    "apt-config",
    "snap",
    "kubectl",
    "crictl",
    "ctr",
    "nerdctl",
    "nvidia-smi",
    "lspci",
    "lsblk",
    "blkid",
    "udevadm",
    "dmidecode",
    "smartctl",
    "git",
    "ssh",
    "sudo",
    "runuser",
    "su",
    "sh",
    "bash",
    "dash",
    "ash",
    "zsh",
    "ksh",
    "busybox",
    "pg_isready",
    "redis-cli",
    "mysqladmin",
    "chronyc",
    "ntpq",
];

/// By name, or by its beginning up to a separator: `containerd-shim-runc-v2`, `runc:[2:INIT]`, `k3s-agent`.
fn is_one_of(name: &str, names: &[&str]) -> bool {
    names.iter().any(|known| {
        name.strip_prefix(known).is_some_and(|rest| rest.is_empty() || rest.starts_with(['-', ':', '.', ' ', '_']))
    })
}

/// Whether a unit, or a program, makes cgroups and processes on behalf of others: systemd and container runtimes.
pub fn makes_for_others(unit: &str, comm: &str) -> bool {
    let stem = stem(unit);
    unit == "init.scope"
        || stem.starts_with("systemd-")
        || stem.starts_with("snap.microk8s.")
        || is_one_of(stem, RUNTIMES)
        || comm == "systemd"
        || comm.starts_with("(sd-")
        || is_one_of(comm, RUNTIMES)
}

pub fn starts_short_things(unit: &str) -> bool {
    is_one_of(stem(unit), STARTS_SHORT_THINGS)
}

pub fn is_supervisor(comm: &str) -> bool {
    // The kernel cuts names at 15 bytes: `amazon-ecs-init` just fits. pm2 calls itself `PM2 v5.3.0: God`.
    is_one_of(comm, SUPERVISORS) || comm.starts_with("PM2 ")
}

pub fn answers_by_its_exit_code(comm: &str) -> bool {
    ANSWERS.contains(&comm)
}

/// The unit behind births: the one whose cgroup they are below, else the one whose process makes them.
pub fn unit_behind(row: &CgroupChurn, maker: &Maker, paths: &UnitPaths<'_>) -> Option<String> {
    if maker.pid == 1 || maker.comm == "systemd" {
        return None;
    }
    let parent = CgroupOwner::of_path(&row.parent);
    if parent.pod_uid.is_some() || parent.container_id.is_some() {
        return None;
    }
    let unit = match paths.unit_of(&row.parent) {
        // Whoever acts there acts for this unit.
        Some(unit) => Some(unit).filter(|unit| !makes_for_others(unit, "")),
        None => {
            let unit = paths.unit_of(maker.cgroup.as_deref()?)?;
            Some(unit).filter(|unit| !makes_for_others(unit, &maker.comm))
        }
    };
    unit.filter(|unit| !is_session(unit))
}
