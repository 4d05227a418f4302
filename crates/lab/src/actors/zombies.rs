//! Memory cgroups that stay after removal because a page charged to them stays in a file.

use super::join_cgroup;
use crate::node;
use anyhow::{Context, Result, bail};
use clap::Args;
use rustix::fs::{Advice, fadvise};
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Cgroups that share one file: each is pinned by one page of it.
#[derive(Debug, Args)]
pub struct Pin {
    #[arg(long)]
    pub parent: PathBuf,
    /// Their names are `NAME-FROM` and so on.
    #[arg(long)]
    pub name: String,
    #[arg(long)]
    pub from: u64,
    #[arg(long)]
    pub count: u64,
    #[arg(long)]
    pub file: PathBuf,
    /// Write the pages instead of reading them.
    #[arg(long)]
    pub write: bool,
}

/// Joins a new child, writes one page, leaves for `home`, removes the child; `count` times. 0.4 to 0.7 ms each.
pub fn make(parent: &Path, tmpfs: &Path, count: u64) -> Result<()> {
    // v2 allows no process in a cgroup that delegates controllers to children: wait in a leaf beside them.
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

/// Joins a new child, uses the next page of the file, goes home, removes the child; `count` times.
pub fn pin(pin: &Pin) -> Result<()> {
    let Pin { parent, name, from, count, file, write } = pin;
    let page = rustix::param::page_size();
    let open = OpenOptions::new().read(!write).write(*write).open(file);
    let open = open.with_context(|| format!("cannot open {}", file.display()))?;
    // No readahead: it would charge the pages of the next ones to this one.
    fadvise(&open, 0, None, Advice::Random).with_context(|| file.display().to_string())?;
    let mut bytes = vec![b'z'; page];
    let mut home = members(&parent.join("home"))?;
    let cores = node::allowed_cores()?;
    for (i, core) in (0..*count).zip(cores.iter().cycle()) {
        // Change cores, so that pages are on every NUMA node.
        node::pin(None, &[*core])?;
        let child = parent.join(format!("{name}-{}", from + i));
        fs::create_dir(&child).with_context(|| format!("cannot make the cgroup {}", child.display()))?;
        // Opened at home, so that nothing but the page is charged to the child.
        let mut inside = members(&child)?;
        let at = i * page as u64;
        inside.write_all(b"0").with_context(|| format!("cannot join {}", child.display()))?;
        let used = if *write { open.write_all_at(&bytes, at) } else { open.read_exact_at(&mut bytes, at) };
        home.write_all(b"0").with_context(|| format!("cannot leave {}", child.display()))?;
        used.with_context(|| format!("page {i} of {}", file.display()))?;
        remove(&child)?;
    }
    Ok(())
}

fn members(cgroup: &Path) -> Result<File> {
    let path = cgroup.join("cgroup.procs");
    OpenOptions::new().write(true).open(&path).with_context(|| format!("cannot open {}", path.display()))
}

/// A cgroup that was just left may be busy for a moment.
pub(super) fn remove(dir: &Path) -> Result<()> {
    let limit = Instant::now() + Duration::from_secs(60);
    while let Err(error) = fs::remove_dir(dir) {
        if error.kind() != ErrorKind::ResourceBusy || Instant::now() > limit {
            bail!("cannot remove the cgroup {}: {error}", dir.display());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}
