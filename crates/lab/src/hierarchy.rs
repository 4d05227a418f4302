//! Where the cgroup hierarchies are mounted, v1 and v2.

use anyhow::{Context, Result, anyhow};
use std::fs;
use std::path::{Path, PathBuf};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hierarchy {
    /// 1 or 2.
    pub version: u8,
    /// Controllers of a v1 hierarchy (`cpu`, `name=systemd`); of v2 what cgroup.controllers of the root lists.
    pub controllers: Vec<String>,
    pub mount_point: PathBuf,
}

impl Hierarchy {
    /// Every hierarchy mounted in this namespace, each once.
    pub fn all() -> Result<Vec<Hierarchy>> {
        let path = "/proc/self/mountinfo";
        let text = fs::read_to_string(path).context(path)?;
        let mut all = parse_mounts(&text);
        for h in all.iter_mut().filter(|h| h.version == 2) {
            let listed = fs::read_to_string(h.mount_point.join("cgroup.controllers")).unwrap_or_default();
            h.controllers = listed.split_ascii_whitespace().map(str::to_owned).collect();
        }
        Ok(all)
    }

    /// The hierarchy that has this controller.
    pub fn with(controller: &str) -> Result<Hierarchy> {
        let found = Hierarchy::all()?.into_iter().find(|h| h.controllers.iter().any(|c| c == controller));
        found.ok_or_else(|| anyhow!("no mounted cgroup hierarchy has the {controller} controller"))
    }

    /// The path of a directory as in /proc/PID/cgroup, relative to the mounted root.
    pub fn path_of(&self, dir: &Path) -> String {
        let below = dir.strip_prefix(&self.mount_point).unwrap_or(dir);
        format!("/{}", below.display())
    }

    /// v2: enables the controller for children of `dir`. Returns whether that changed anything. v1: nothing to do.
    pub fn enable(&self, dir: &Path, controller: &str) -> Result<bool> {
        if self.version == 1 {
            return Ok(false);
        }
        let file = dir.join("cgroup.subtree_control");
        let enabled = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        if enabled.split_ascii_whitespace().any(|c| c == controller) {
            return Ok(false);
        }
        fs::write(&file, format!("+{controller}"))
            .with_context(|| format!("cannot enable {controller} in {}", file.display()))?;
        Ok(true)
    }
}

fn parse_mounts(text: &str) -> Vec<Hierarchy> {
    let mut all: Vec<Hierarchy> = Vec::new();
    for line in text.lines() {
        let Some((mount, fs)) = line.split_once(" - ") else { continue };
        let Some(mount_point) = mount.split(' ').nth(4).map(unescape) else { continue };
        let mut fs = fs.split(' ');
        let kind = fs.next();
        let options = fs.nth(1).unwrap_or_default();
        let (version, controllers) = match kind {
            Some("cgroup2") => (2, Vec::new()),
            Some("cgroup") => (1, options.split(',').filter(|o| is_controller(o)).map(str::to_owned).collect()),
            _ => continue,
        };
        // A hierarchy may be mounted twice; take the first mount.
        if !all.iter().any(|h| h.version == version && h.controllers == controllers) {
            all.push(Hierarchy { version, controllers, mount_point: mount_point.into() });
        }
    }
    all
}

/// The super block options of a v1 mount are controllers and a few switches (kernel/cgroup/cgroup-v1.c).
fn is_controller(option: &str) -> bool {
    let switches = ["rw", "ro", "xattr", "noprefix", "clone_children", "cpuset_v2_mode", "favordynmods", "none", "all"];
    !switches.contains(&option) && !option.starts_with("release_agent=")
}

/// mountinfo writes space, tab, newline and backslash as three octal digits.
fn unescape(text: &str) -> String {
    ["\\040", "\\011", "\\012", "\\134"]
        .iter()
        .zip([" ", "\t", "\n", "\\"])
        .fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<(u8, String, String)> {
        let all = parse_mounts(text);
        all.into_iter().map(|h| (h.version, h.controllers.join("+"), h.mount_point.display().to_string())).collect()
    }

    #[test]
    fn v1_v2_and_hybrid() {
        let text = "30 29 0:26 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:9 - cgroup cgroup rw,cpu,cpuacct\n\
                    31 29 0:27 / /sys/fs/cgroup/systemd rw - cgroup systemd rw,xattr,release_agent=/lib/x,name=systemd\n\
                    32 29 0:28 / /sys/fs/cgroup/with\\040space rw - cgroup2 cgroup2 rw,nsdelegate\n\
                    33 29 0:26 / /mnt/again rw - cgroup cgroup rw,cpu,cpuacct\n\
                    34 29 0:30 / /tmp rw - tmpfs tmpfs rw\ngarbage\n";
        let expected = [
            (1, "cpu+cpuacct", "/sys/fs/cgroup/cpu,cpuacct"),
            (1, "name=systemd", "/sys/fs/cgroup/systemd"),
            (2, "", "/sys/fs/cgroup/with space"),
        ];
        assert_eq!(found(text), expected.map(|(v, c, m)| (v, c.to_owned(), m.to_owned())));
    }

    #[test]
    fn paths_are_relative_to_the_mounted_root() {
        let h = Hierarchy { version: 1, controllers: vec!["cpu".into()], mount_point: "/sys/fs/cgroup/cpu".into() };
        assert_eq!(h.path_of(Path::new("/sys/fs/cgroup/cpu/a/b")), "/a/b");
    }
}
