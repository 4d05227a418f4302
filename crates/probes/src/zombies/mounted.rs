//! Where the file systems of pinning files are mounted: in our mount namespace or another one.

use std::collections::{HashMap, HashSet};

use crate::Root;
use crate::cgroups::mounts::unescape;

/// Each container has a mount namespace; those beyond this limit are not searched.
const MAX_NAMESPACES: usize = 512;

#[derive(Debug, Clone, PartialEq, Eq)]
struct Mount {
    /// The mounted directory of the file system.
    root: String,
    mount_point: String,
}

#[derive(Debug, Default)]
pub(super) struct Mounts {
    here: HashMap<(u32, u32), Vec<Mount>>,
    elsewhere: HashMap<(u32, u32), (u32, Vec<Mount>)>,
}

/// A path, and a process that sees it if we do not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Located {
    pub path: String,
    pub seen_by: Option<u32>,
}

impl Mounts {
    /// Reads our own mounts, and other processes' namespaces for devices not mounted in ours.
    pub fn find(root: &Root, devices: &HashSet<(u32, u32)>) -> Mounts {
        let mut mounts = Mounts::default();
        if let Ok(text) = root.read("/proc/self/mountinfo") {
            for (device, mount) in parse(&text) {
                mounts.here.entry(device).or_default().push(mount);
            }
        }
        let mut missing: HashSet<(u32, u32)> =
            devices.iter().copied().filter(|d| !mounts.here.contains_key(d)).collect();
        if !missing.is_empty() {
            mounts.look_elsewhere(root, &mut missing);
        }
        mounts
    }

    fn look_elsewhere(&mut self, root: &Root, missing: &mut HashSet<(u32, u32)>) {
        let namespace = |pid: &str| std::fs::read_link(root.path(&format!("/proc/{pid}/ns/mnt"))).ok();
        let mut known: HashSet<_> = namespace("self").into_iter().collect();
        for name in root.list("/proc").unwrap_or_default() {
            let Ok(pid) = name.parse::<u32>() else { continue };
            let Some(id) = namespace(&name) else { continue };
            if missing.is_empty() || known.len() > MAX_NAMESPACES {
                return;
            }
            if !known.insert(id) {
                continue;
            }
            let Ok(text) = root.read(&format!("/proc/{pid}/mountinfo")) else { continue };
            for (device, mount) in parse(&text) {
                if missing.contains(&device) {
                    self.elsewhere.entry(device).or_insert((pid, Vec::new())).1.push(mount);
                }
            }
            missing.retain(|d| !self.elsewhere.contains_key(d));
        }
    }

    /// Turns a path within a file system into a path on the node; `None` if we see no mount of that part.
    pub fn locate(&self, device: (u32, u32), path: &str) -> Option<Located> {
        let within = |mounts: &[Mount]| {
            let placed = mounts.iter().filter_map(|m| Some((m.mount_point.trim_end_matches('/'), m.below(path)?)));
            let (mount_point, below) = placed.min_by_key(|(mount_point, below)| mount_point.len() + below.len())?;
            let path = [mount_point, below].concat();
            Some(if path.is_empty() { "/".to_owned() } else { path })
        };
        if let Some(path) = self.here.get(&device).and_then(|m| within(m)) {
            return Some(Located { path, seen_by: None });
        }
        let (pid, mounts) = self.elsewhere.get(&device)?;
        Some(Located { path: within(mounts)?, seen_by: Some(*pid) })
    }
}

impl Mount {
    /// The path relative to the mounted directory.
    fn below<'p>(&self, path: &'p str) -> Option<&'p str> {
        let below = path.strip_prefix(self.root.trim_end_matches('/'))?;
        (below.is_empty() || below.starts_with('/')).then_some(below)
    }
}

fn parse(text: &str) -> impl Iterator<Item = ((u32, u32), Mount)> {
    text.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(2);
        let (major, minor) = fields.next()?.split_once(':')?;
        let device = (major.parse().ok()?, minor.parse().ok()?);
        Some((device, Mount { root: unescape(fields.next()?), mount_point: unescape(fields.next()?) }))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_tree::tree;
    use proptest::prelude::*;

    #[test]
    fn whole_parts_and_escapes() {
        let text = "21 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
                    22 21 8:1 /var/lib/x /mnt/bind rw - ext4 /dev/sda1 rw\n\
                    23 21 0:40 / /dev/shm rw - tmpfs tmpfs rw\n\
                    24 21 0:41 /pods/a /run/with\\040space rw - tmpfs tmpfs rw\n\
                    nonsense\n25 21 x:y / / - a b c\n";
        let dir = tree(&[("proc/self/mountinfo", text)]);
        let mounts = Mounts::find(&Root::at(dir.path()), &HashSet::new());
        let at = |device, path| mounts.locate(device, path).map(|l| l.path);
        assert_eq!(at((8, 1), "/var/lib/x/f").as_deref(), Some("/mnt/bind/f"), "the shorter path");
        assert_eq!(at((8, 1), "/etc/passwd").as_deref(), Some("/etc/passwd"));
        assert_eq!(at((0, 40), "/f").as_deref(), Some("/dev/shm/f"));
        assert_eq!(at((0, 41), "/pods/a/f").as_deref(), Some("/run/with space/f"));
        assert_eq!(at((0, 41), "/pods/ab/f"), None, "not below the mounted directory");
        assert_eq!(at((9, 9), "/f"), None);
    }

    #[test]
    fn a_containers_mount_is_found_through_its_process() {
        let dir = tree(&[
            ("proc/self/mountinfo", "21 1 8:1 / / rw - ext4 /dev/sda1 rw\n"),
            ("proc/77/mountinfo", "31 1 0:50 / /dev/shm rw - tmpfs shm rw\n"),
        ]);
        for (pid, id) in [("self", "mnt:[1]"), ("77", "mnt:[2]")] {
            std::fs::create_dir_all(dir.path().join(format!("proc/{pid}/ns"))).unwrap();
            std::os::unix::fs::symlink(id, dir.path().join(format!("proc/{pid}/ns/mnt"))).unwrap();
        }
        let mounts = Mounts::find(&Root::at(dir.path()), &HashSet::from([(0, 50)]));
        let located = Located { path: "/dev/shm/sem".into(), seen_by: Some(77) };
        assert_eq!(mounts.locate((0, 50), "/sem"), Some(located));
    }

    proptest! {
        #[test]
        fn any_mountinfo(text in "([0-9:/ \\\\a-z-]{0,40}\n){0,5}", path in "/[a-z/]{0,10}") {
            for (_, mount) in parse(&text) {
                mount.below(&path);
            }
        }
    }
}
