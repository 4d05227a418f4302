//! Memory cgroups that stay after their removal, because a page charged to them lives on in a tmpfs.

use super::join_cgroup;
use anyhow::{Context, Result, bail};
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::time::{Duration, Instant};

/// Joins a new child, writes one page, leaves for `home`, removes the child; `count` times. 0.4 to 0.7 ms each.
pub fn make(parent: &Path, tmpfs: &Path, count: u64) -> Result<()> {
    // v2 allows no process in a cgroup that gives controllers to its children: wait in a leaf beside them.
    let home = parent.join("home");
    for i in 0..count {
        let child = parent.join(format!("z{i}"));
        fs::create_dir(&child).with_context(|| format!("cannot make the cgroup {}", child.display()))?;
        join_cgroup(&child)?;
        let page = tmpfs.join(format!("z{i}"));
        fs::write(&page, b"zombie").with_context(|| format!("cannot write {}", page.display()))?;
        join_cgroup(&home)?;
        remove(&child)?;
    }
    Ok(())
}

/// A cgroup that was just left may be busy for a moment.
fn remove(dir: &Path) -> Result<()> {
    let limit = Instant::now() + Duration::from_secs(5);
    while let Err(error) = fs::remove_dir(dir) {
        if error.kind() != ErrorKind::ResourceBusy || Instant::now() > limit {
            bail!("cannot remove the cgroup {}: {error}", dir.display());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}
