//! Where the cgroup hierarchies are mounted, and which one has a controller.

use coroner_evidence::{CgroupMount, Evidence, probe};

use crate::Root;

const MOUNTINFO: &str = "/proc/self/mountinfo";

/// The hierarchy with a controller, as mounted here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hierarchy {
    pub version: u8,
    pub mount_point: String,
    /// The mounted directory of the hierarchy; `/` unless in a container.
    pub root: String,
    /// Whether the mount shows the node's whole hierarchy. In a cgroup namespace `root` is `/` for a part of it too; the files
    /// tell.
    pub whole: bool,
}

impl Hierarchy {
    /// A path from /proc/PID/cgroup relative to the mount, without a leading slash; `None` if it is not below this mount.
    pub fn below<'p>(&self, path: &'p str) -> Option<&'p str> {
        let root = self.root.trim_end_matches('/');
        let rest = path.strip_prefix(root)?;
        let rest = match rest.strip_prefix('/') {
            Some(rest) => rest,
            None if rest.is_empty() && !path.is_empty() => "",
            None => return None,
        };
        // A cgroup namespace shows paths outside of it with `/..`.
        (!rest.split('/').any(|part| part == "..")).then_some(rest.trim_end_matches('/'))
    }

    /// The path as in /proc/PID/cgroup: the inverse of [`Hierarchy::below`].
    pub fn full_path(&self, below: &str) -> String {
        let root = self.root.trim_end_matches('/');
        if below.is_empty() && root.is_empty() { "/".to_owned() } else { join(root, below) }
    }

    /// Whether process paths can be matched with directories. Not if the mount is an ancestor of our cgroup namespace: the
    /// directory names in between are hidden (`/..`).
    pub fn paths_match(&self) -> bool {
        !self.root.split('/').any(|part| part == "..")
    }

    pub fn file(&self, name: &str) -> String {
        join(self.mount_point.trim_end_matches('/'), name)
    }
}

fn join(parent: &str, name: &str) -> String {
    if name.is_empty() { parent.to_owned() } else { format!("{parent}/{name}") }
}

/// Finds the cgroup mounts and notes what is unseen. Returns one mount per hierarchy: the one that shows most.
pub(crate) fn find(root: &Root, evidence: &mut Evidence) -> Vec<CgroupMount> {
    let text = match root.read(MOUNTINFO) {
        Ok(text) => text,
        Err(e) => {
            evidence.unseen(probe::CGROUPS, "cgroups", e.to_string(), "mount /proc where this process may read it");
            return Vec::new();
        }
    };
    let mut mounts = parse_mountinfo(&text);
    for mount in &mut mounts {
        if mount.version == 2 {
            let file = join(mount.mount_point.trim_end_matches('/'), "cgroup.controllers");
            mount.controllers = match root.read(&file) {
                Ok(text) => text.split_whitespace().map(str::to_owned).collect(),
                Err(_) => Vec::new(),
            };
        }
    }
    let mut best: Vec<CgroupMount> = Vec::new();
    for mount in mounts {
        match best.iter_mut().find(|b| same_hierarchy(b, &mount)) {
            Some(known) if rank(root, &mount) < rank(root, known) => *known = mount,
            Some(_) => {}
            None => best.push(mount),
        }
    }
    if best.is_empty() {
        evidence.unseen(
            probe::CGROUPS,
            "cgroups: how many there are, their limits and throttling",
            format!("{MOUNTINFO} lists no cgroup mount"),
            "run on the host, or mount its /sys/fs/cgroup into the container",
        );
    }
    best
}

fn same_hierarchy(a: &CgroupMount, b: &CgroupMount) -> bool {
    // There is only one v2 hierarchy; cgroup.controllers differs with the mounted part.
    a.version == b.version && (a.version == 2 || a.controllers == b.controllers)
}

/// Smaller is better: the whole before a part, then root `/`, then the shortest mount point.
fn rank(root: &Root, mount: &CgroupMount) -> (bool, bool, usize) {
    (!is_whole(root, mount), mount.root != "/", mount.mount_point.len())
}

/// Whether the mounted directory is the hierarchy's root: v1's `release_agent` is CFTYPE_ONLY_ON_ROOT
/// (kernel/cgroup/cgroup-v1.c), v2's `cgroup.events` is CFTYPE_NOT_ON_ROOT (kernel/cgroup/cgroup.c).
fn is_whole(root: &Root, mount: &CgroupMount) -> bool {
    let at = mount.mount_point.trim_end_matches('/');
    match mount.version {
        1 => root.path(&join(at, "release_agent")).exists(),
        _ => !root.path(&join(at, "cgroup.events")).exists(),
    }
}

/// The hierarchy with a controller. On hybrid nodes a controller is in only one, and v1 has precedence.
pub(crate) fn with_controller(root: &Root, mounts: &[CgroupMount], controller: &str) -> Option<Hierarchy> {
    let mount = mounts.iter().filter(|m| m.has(controller)).min_by_key(|m| m.version)?;
    Some(Hierarchy {
        version: mount.version,
        mount_point: mount.mount_point.clone(),
        root: mount.root.clone(),
        whole: is_whole(root, mount),
    })
}

/// The cgroup mounts in a mountinfo file; other lines are skipped.
pub(crate) fn parse_mountinfo(text: &str) -> Vec<CgroupMount> {
    text.lines().filter_map(parse_mountinfo_line).collect()
}

/// `35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory` (proc_pid_mountinfo(5)).
fn parse_mountinfo_line(line: &str) -> Option<CgroupMount> {
    // The number of optional fields before the dash varies. A mount point cannot contain " - ": its spaces are written \040.
    let (head, tail) = line.split_once(" - ")?;
    let mut tail = tail.split(' ');
    let version = match tail.next()? {
        "cgroup" => 1,
        "cgroup2" => 2,
        _ => return None,
    };
    let options = tail.nth(1).unwrap_or("");
    let mut head = head.split(' ').skip(3);
    let (root, mount_point) = (unescape(head.next()?), unescape(head.next()?));
    if !mount_point.starts_with('/') {
        return None;
    }
    let controllers = match version {
        1 => options.split(',').filter(|o| is_controller(o)).map(unescape).collect(),
        _ => Vec::new(),
    };
    Some(CgroupMount { version, controllers, mount_point, root })
}

/// A v1 mount's options are its controllers, its name, and these (cgroup1_show_options in kernel/cgroup/cgroup-v1.c).
fn is_controller(option: &str) -> bool {
    match option {
        "" | "rw" | "ro" | "sync" | "dirsync" | "mand" | "lazytime" | "seclabel" | "noprefix" | "xattr"
        | "clone_children" | "cpuset_v2_mode" | "favordynmods" | "none" | "all" => false,
        other => other.starts_with("name=") || !other.contains('='),
    }
}

/// mangle() in fs/seq_file.c writes space, tab, newline, backslash and # as three octal digits.
pub(crate) fn unescape(field: &str) -> String {
    let bytes = field.as_bytes();
    let mut plain = Vec::with_capacity(bytes.len());
    let mut i = 0;
    while i < bytes.len() {
        let octal = bytes
            .get(i + 1..i + 4)
            .filter(|d| bytes[i] == b'\\' && d[0] <= b'3' && d.iter().all(|b| (b'0'..=b'7').contains(b)));
        if let Some(d) = octal {
            plain.push((d[0] - b'0') << 6 | (d[1] - b'0') << 3 | (d[2] - b'0'));
            i += 4;
        } else {
            plain.push(bytes[i]);
            i += 1;
        }
    }
    String::from_utf8_lossy(&plain).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HYBRID: &str = "\
31 23 0:28 / /sys/fs/cgroup ro,nosuid - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/unified rw,relatime shared:5 - cgroup2 cgroup2 rw,nsdelegate
33 31 0:30 / /sys/fs/cgroup/systemd rw,relatime shared:6 master:1 - cgroup cgroup rw,xattr,release_agent=/lib/systemd/systemd-cgroups-agent,name=systemd
34 31 0:31 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 /docker/0123 /sys/fs/cgroup/memory\\040with\\134blank rw,relatime - cgroup cgroup rw,memory,clone_children
";

    #[test]
    fn mounts_of_a_hybrid_node_and_a_container_are_told_apart() {
        let mounts = parse_mountinfo(&HYBRID.replace("\\\\", "\\"));
        assert_eq!(mounts.len(), 4);
        assert_eq!((mounts[0].version, mounts[0].mount_point.as_str()), (2, "/sys/fs/cgroup/unified"));
        assert_eq!(mounts[1].controllers, ["name=systemd"]);
        assert_eq!(mounts[2].controllers, ["cpu", "cpuacct"]);
        assert_eq!(mounts[3].controllers, ["memory"]);
        assert_eq!(mounts[3].root, "/docker/0123");
        assert_eq!(mounts[3].mount_point, "/sys/fs/cgroup/memory with\\blank");
    }

    #[test]
    fn paths_of_processes_are_matched_with_the_mounted_part() {
        let at = |root: &str| Hierarchy { version: 1, mount_point: "/m".into(), root: root.into(), whole: true };
        assert_eq!(at("/").below("/"), Some(""));
        assert_eq!(at("/").below("/a/b"), Some("a/b"));
        assert_eq!(at("/").below("/../b"), None);
        assert_eq!(at("/").below(""), None);
        assert_eq!(at("/docker/x").below("/docker/x"), Some(""));
        assert_eq!(at("/docker/x").below("/docker/x/y"), Some("y"));
        assert_eq!(at("/docker/x").below("/docker/xy"), None);
        assert_eq!(at("/docker/x").full_path("y"), "/docker/x/y");
        assert_eq!(at("/docker/x").full_path(""), "/docker/x");
        assert_eq!(at("/").full_path(""), "/");
        assert_eq!(at("/").full_path("a"), "/a");
        assert!(!at("/../..").paths_match());
    }

    #[test]
    fn of_two_mounts_of_a_hierarchy_the_whole_one_wins() {
        let dir = crate::test_tree::tree(&[
            (
                "proc/self/mountinfo",
                "1 0 0:1 / /part rw - cgroup cgroup rw,memory\n2 0 0:1 /.. /longer/whole rw - cgroup cgroup rw,memory\n",
            ),
            ("part/tasks", ""),
            ("longer/whole/release_agent", ""),
        ]);
        let root = Root::at(dir.path());
        let mut evidence = Evidence::default();
        let mounts = find(&root, &mut evidence);
        assert_eq!(mounts.len(), 1);
        assert_eq!(mounts[0].mount_point, "/longer/whole");
        assert!(with_controller(&root, &mounts, "memory").unwrap().whole);
        assert!(with_controller(&root, &mounts, "cpu").is_none());
    }

    proptest! {
        #[test]
        fn any_mountinfo_is_handled(text in "\\PC*", bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            parse_mountinfo(&text);
            parse_mountinfo(&String::from_utf8_lossy(&bytes));
            parse_mountinfo(&format!("35 31 0:32 {text} - cgroup cgroup rw,{text}"));
            let h = Hierarchy { version: 1, mount_point: text.clone(), root: text.clone(), whole: true };
            h.below(&text);
        }

        #[test]
        fn below_and_full_path_are_inverse(root in "(/[a-z]{1,3}){0,3}", below in "([a-z]{1,3}(/[a-z]{1,3}){0,2})?") {
            let root = if root.is_empty() { "/".to_owned() } else { root };
            let h = Hierarchy { version: 2, mount_point: "/m".into(), root, whole: true };
            let full = h.full_path(&below);
            prop_assert_eq!(h.below(&full), Some(below.as_str()));
        }
    }
}
