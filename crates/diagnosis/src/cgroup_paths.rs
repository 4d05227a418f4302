//! Cgroup paths in words.

use coroner_evidence::CgroupOwner;

/// Whether a cgroup is this one or is below it.
pub fn is_same_or_below(path: &str, ancestor: &str) -> bool {
    path.strip_prefix(ancestor.trim_end_matches('/')).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// What a person calls a cgroup, for titles: `container 0123456789ab of pod 6f9b…`, `ecs.service`, `cgroup /a/b`.
pub fn cgroup_name(path: &str) -> String {
    let owner = CgroupOwner::of_path(path);
    match (owner.pod_uid, owner.container_id, owner.unit) {
        (Some(pod), Some(id), _) => format!("container {} of pod {pod}", short_id(&id)),
        (Some(pod), None, _) => format!("pod {pod}"),
        (None, Some(id), _) => format!("container {}", short_id(&id)),
        (None, None, Some(unit)) => unit,
        (None, None, None) => format!("cgroup {}", path.replace('`', "'")),
    }
}

/// Whose cgroup it is, to follow its path: ` (pod 6f9b…, container 0123456789ab)`; empty if unknown.
pub fn cgroup_owner(path: &str) -> String {
    let owner = CgroupOwner::of_path(path);
    let mut parts = Vec::new();
    if let Some(pod) = owner.pod_uid {
        parts.push(format!("pod {pod}"));
    }
    if let Some(id) = owner.container_id {
        parts.push(format!("container {}", short_id(&id)));
    } else if let Some(unit) = owner.unit {
        parts.push(format!("unit {unit}"));
    }
    if parts.is_empty() { String::new() } else { format!(" ({})", parts.join(", ")) }
}

/// The part of a container ID that crictl and docker show.
fn short_id(id: &str) -> String {
    id.chars().take(12).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn below_means_a_whole_directory() {
        assert!(is_same_or_below("/a/b", "/a"));
        assert!(is_same_or_below("/a", "/a"));
        assert!(is_same_or_below("/a", "/"));
        assert!(!is_same_or_below("/ab", "/a"));
        assert!(!is_same_or_below("/", "/a"));
    }

    #[test]
    fn a_path_becomes_a_name() {
        let id = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
        let pod = "/kubepods/pod6f9b1c7e-1111-2222-3333-444455556666";
        assert_eq!(
            cgroup_name(&format!("{pod}/{id}")),
            "container 0123456789ab of pod 6f9b1c7e-1111-2222-3333-444455556666"
        );
        assert_eq!(cgroup_name(pod), "pod 6f9b1c7e-1111-2222-3333-444455556666");
        assert_eq!(cgroup_name("/system.slice/ecs.service"), "ecs.service");
        assert_eq!(cgroup_name("/batch"), "cgroup /batch");
        assert_eq!(cgroup_owner("/batch"), "");
        assert_eq!(cgroup_owner("/system.slice/ecs.service"), " (unit ecs.service)");
    }
}
