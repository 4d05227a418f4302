//! Which cgroup hierarchy has the memory controller. systemd creates the same directory in each hierarchy; only one counts.

use crate::Root;
use crate::zombies::{Blind, Reason};

/// Its number in the kernel, as in /proc/cgroups; 0 for the unified one (v2).
pub(super) fn of_memory(root: &Root) -> Result<u32, Blind> {
    let no_controller = |why: &str| Blind::new(Reason::NoMemoryController, why, "boot without cgroup_disable=memory");
    let text = root
        .read("/proc/cgroups")
        .map_err(|e| Blind::new(Reason::Kernel, e.to_string(), "mount /proc, on a kernel with CONFIG_CGROUPS"))?;
    match memory_row(&text) {
        Some((_, false)) => Err(no_controller("the memory controller is disabled")),
        Some((hierarchy, true)) => Ok(hierarchy),
        // Kernels without v1's memory controller omit the row (kernel/cgroup/cgroup-v1.c: proc_cgroupstats_show).
        None => Ok(0),
    }
}

/// `memory 4 20 1`: name, hierarchy, number, enabled.
fn memory_row(text: &str) -> Option<(u32, bool)> {
    let row = text.lines().find(|line| line.split_whitespace().next() == Some("memory"))?;
    let mut fields = row.split_whitespace().skip(1);
    Some((fields.next()?.parse().ok()?, fields.nth(1)? != "0"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(text: &str) -> Result<u32, Reason> {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("proc")).unwrap();
        std::fs::write(dir.path().join("proc/cgroups"), text).unwrap();
        of_memory(&Root::at(dir.path())).map_err(|blind| blind.reason)
    }

    #[test]
    fn the_hierarchy_is_that_of_the_memory_row() {
        let head = "#subsys_name\thierarchy\tnum_cgroups\tenabled\ncpu\t1\t1\t1\n";
        assert_eq!(of(&format!("{head}memory\t4\t20\t1\n")), Ok(4));
        assert_eq!(of(&format!("{head}memory\t0\t20\t1\n")), Ok(0));
        assert_eq!(of(head), Ok(0));
        assert_eq!(of(&format!("{head}memory\t0\t1\t0\n")), Err(Reason::NoMemoryController));
    }

    proptest! {
        #[test]
        fn any_text(text in "(memory(\\s[0-9]{0,12}){0,4}\n|\\PC{0,30}\n){0,4}") {
            memory_row(&text);
        }
    }
}
