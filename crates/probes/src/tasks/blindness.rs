//! Why processes may be hidden from us.

use coroner_evidence::{Evidence, probe};

use super::stat::parse_stat;
use crate::Root;

/// The initial pid namespace's inode number (include/linux/proc_ns.h, PROC_PID_INIT_INO).
const FIRST_PID_NAMESPACE: &str = "pid:[4026531836]";

/// Notes which processes cannot be seen. True if those of other users are hidden.
pub fn note_blindness(root: &Root, evidence: &mut Evidence) -> bool {
    // Kernel threads exist only in the initial namespace: if they are visible, this is the host's /proc, whatever our namespace.
    let kthreadd =
        root.read("/proc/2/stat").is_ok_and(|stat| parse_stat(stat.as_bytes()).is_ok_and(|stat| stat.kernel));
    if !kthreadd
        && let Ok(namespace) = std::fs::read_link(root.path("/proc/self/ns/pid"))
        && namespace.to_string_lossy() != FIRST_PID_NAMESPACE
    {
        evidence.unseen(
            probe::TASKS,
            "processes outside this container",
            format!("/proc shows a container's pid namespace ({})", namespace.to_string_lossy()),
            "run on the node itself, or in a container with the host's pid namespace (hostPID: true, --pid=host)",
        );
    }
    // Root and the mount's group still see everything; process 1 shows whether we do.
    if let Ok(mounts) = root.read("/proc/self/mountinfo")
        && let Some(mode) = hidepid(&mounts)
        && root.read("/proc/1/stat").is_err()
    {
        evidence.unseen(
            probe::TASKS,
            "processes of other users",
            format!("/proc is mounted with hidepid={mode}"),
            "run as root",
        );
        return true;
    }
    false
}

/// The active hidepid mode of /proc, if any: a number, or a word since Linux 5.8.
fn hidepid(mountinfo: &str) -> Option<&str> {
    let mut mode = None;
    for line in mountinfo.lines() {
        let Some((mount, source)) = line.split_once(" - ") else { continue };
        if mount.split(' ').nth(4) == Some("/proc") && source.starts_with("proc ") {
            // The last mount hides earlier ones.
            let options = source.split(' ').nth(2).unwrap_or_default();
            mode = options.split(',').find_map(|option| option.strip_prefix("hidepid="));
        }
    }
    mode.filter(|mode| !matches!(*mode, "0" | "off"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn the_last_mount_counts() {
        let plain = "22 27 0:21 / /proc rw,relatime - proc proc rw\n";
        let hiding = "23 27 0:22 / /proc rw shared:1 - proc proc rw,gid=4,hidepid=invisible\n";
        assert_eq!(hidepid(plain), None);
        assert_eq!(hidepid(&format!("{plain}{hiding}")), Some("invisible"));
        assert_eq!(hidepid(&format!("{hiding}{plain}")), None);
        assert_eq!(hidepid("23 27 0:22 / /proc rw - proc proc rw,hidepid=off\n"), None);
    }

    #[test]
    fn a_container_and_hidden_processes_are_reported() {
        let tree = tempfile::tempdir().unwrap();
        let own = tree.path().join("proc/self/ns");
        std::fs::create_dir_all(&own).unwrap();
        symlink("pid:[4026532201]", own.join("pid")).unwrap();
        std::fs::write(tree.path().join("proc/self/mountinfo"), "1 2 0:3 / /proc rw - proc proc rw,hidepid=2\n")
            .unwrap();
        let root = Root::at(tree.path());
        let mut evidence = Evidence::default();
        assert!(note_blindness(&root, &mut evidence));
        let what: Vec<&str> = evidence.unseen.iter().map(|u| u.what.as_str()).collect();
        assert_eq!(what, ["processes outside this container", "processes of other users"]);

        // For root, hidepid hides nothing, and with the host's /proc a container sees all processes.
        std::fs::create_dir(tree.path().join("proc/1")).unwrap();
        std::fs::create_dir(tree.path().join("proc/2")).unwrap();
        let kthreadd =
            "2 (kthreadd) S 0 0 0 0 -1 2129984 0 0 0 0 0 0 0 0 20 0 1 0 1 0 0 1 0 0 0 0 0 0 0 1 0 0 0 0 0 0 0 0 0 0\n";
        std::fs::write(tree.path().join("proc/2/stat"), kthreadd).unwrap();
        std::fs::write(tree.path().join("proc/1/stat"), "1 (init) S").unwrap();
        let mut evidence = Evidence::default();
        assert!(!note_blindness(&root, &mut evidence));
        assert_eq!(evidence.unseen, []);
    }

    proptest! {
        #[test]
        fn any_text_is_read(text in "([a-z/0-9: ,=-]{0,40}\n){0,6}") {
            let _ = hidepid(&text);
        }
    }
}
