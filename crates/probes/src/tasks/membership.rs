//! Which cgroups a process is in, and so who owns it.

use coroner_evidence::CgroupOwner;

/// The content of /proc/PID/cgroup.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Membership {
    pub memory: Option<String>,
    pub cpu: Option<String>,
    pub owner: CgroupOwner,
}

/// Parses lines of `hierarchy:controllers:path` (kernel/cgroup/cgroup.c, proc_cgroup_show). The unified hierarchy has the line
/// `0::path` and every controller that no v1 hierarchy has. Other lines are skipped.
pub fn parse_membership(text: &str) -> Membership {
    let (mut memory, mut cpu, mut systemd, mut unified) = (None, None, None, None);
    for line in text.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(hierarchy), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        // A zombie process may outlive its cgroup's directory.
        let path = path.strip_suffix(" (deleted)").unwrap_or(path);
        if !path.starts_with('/') {
            continue;
        }
        if hierarchy == "0" && controllers.is_empty() {
            unified = Some(path);
        }
        for controller in controllers.split(',') {
            match controller {
                "memory" => memory = Some(path),
                "cpu" => cpu = Some(path),
                "name=systemd" => systemd = Some(path),
                _ => {}
            }
        }
    }
    let memory = memory.or(unified);
    let cpu = cpu.or(unified);
    Membership {
        memory: memory.map(str::to_owned),
        cpu: cpu.map(str::to_owned),
        owner: owner([systemd, unified, memory, cpu]),
    }
}

/// The owner from the most informative path; the first of equals.
fn owner(paths: [Option<&str>; 4]) -> CgroupOwner {
    let mut best = CgroupOwner::default();
    let telling = |o: &CgroupOwner| {
        usize::from(o.unit.is_some()) + usize::from(o.pod_uid.is_some()) + usize::from(o.container_id.is_some())
    };
    let mut read: [&str; 4] = [""; 4];
    for (at, path) in paths.into_iter().flatten().enumerate() {
        if path == "/" || read[..at].contains(&path) {
            continue;
        }
        read[at] = path;
        let owner = CgroupOwner::of_path(path);
        if telling(&owner) > telling(&best) {
            best = owner;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    #[test]
    fn v1_has_a_line_for_each_controller() {
        let seen = parse_membership(
            "9:name=systemd:/system.slice/ecs.service\n4:memory:/system.slice/ecs.service/agent\n2:cpu,cpuacct:/throttled\n",
        );
        assert_eq!(seen.memory.as_deref(), Some("/system.slice/ecs.service/agent"));
        assert_eq!(seen.cpu.as_deref(), Some("/throttled"));
        assert_eq!(seen.owner.unit.as_deref(), Some("ecs.service"));
    }

    #[test]
    fn v2_has_every_controller() {
        let seen = parse_membership("0::/user.slice/user-0.slice/session-3.scope\n");
        assert_eq!(seen.memory, seen.cpu);
        assert_eq!(seen.memory.as_deref(), Some("/user.slice/user-0.slice/session-3.scope"));
        assert_eq!(seen.owner.unit.as_deref(), Some("session-3.scope"));
    }

    #[test]
    fn hybrid_prefers_the_controllers_own_hierarchy_and_the_most_informative_owner() {
        let seen = parse_membership(&format!("4:memory:/docker/{ID}\n1:name=systemd:/\n0::/with:colon\n"));
        assert_eq!(seen.memory, Some(format!("/docker/{ID}")));
        assert_eq!(seen.cpu.as_deref(), Some("/with:colon"));
        assert_eq!(seen.owner.container_id.as_deref(), Some(ID));
    }

    #[test]
    fn nothing_is_made_up() {
        assert_eq!(parse_membership(""), Membership::default());
        assert_eq!(parse_membership("memory\n::\n4:memory\n4:memory:relative"), Membership::default());
        assert_eq!(parse_membership("0::/gone (deleted)\n").memory.as_deref(), Some("/gone"));
    }

    proptest! {
        #[test]
        fn any_text_is_read(text in "([0-9]{0,3}:[a-z=,]{0,12}:[/a-z. -]{0,30}\n|.{0,40}\n){0,12}") {
            let _ = parse_membership(&text);
        }
    }
}
