//! Tens of thousands of dead memory cgroups in seconds.

use super::spin::name_this_thread;
use super::zombies::remove;
use anyhow::{Context, Result};
use clap::Args;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

#[derive(Debug, Args)]
pub struct Leak {
    /// The live cgroup in which they are created.
    #[arg(long)]
    pub parent: PathBuf,
    /// The live cgroup in which to wait between two of them.
    #[arg(long)]
    pub home: PathBuf,
    #[arg(long)]
    pub name: String,
    /// Call them `NAME-0` and so on; otherwise all have the same name, like those of a unit that restarts.
    #[arg(long)]
    pub numbered: bool,
    #[arg(long)]
    pub count: u64,
    /// A file in a tmpfs; each keeps one page of it.
    #[arg(long)]
    pub file: PathBuf,
    /// The number of the first.
    #[arg(long, default_value_t = 0)]
    pub from: u64,
    /// What the process is called.
    #[arg(long)]
    pub comm: Option<String>,
    /// How long to wait after each.
    #[arg(long, default_value_t = 0)]
    pub every_ms: u64,
    /// Write no page: the kernel frees each at once.
    #[arg(long)]
    pub tidy: bool,
}

/// Joins a new child, writes the next page of the file, goes home, removes the child; `count` times.
pub fn leak(leak: &Leak) -> Result<()> {
    if let Some(comm) = &leak.comm {
        name_this_thread(comm)?;
    }
    let page = vec![b'z'; rustix::param::page_size()];
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(&leak.file);
    let file = file.with_context(|| format!("cannot open {}", leak.file.display()))?;
    let mut home = members(&leak.home)?;
    for i in 0..leak.count {
        let name = if leak.numbered { format!("{}-{}", leak.name, leak.from + i) } else { leak.name.clone() };
        let child = leak.parent.join(name);
        fs::create_dir(&child).with_context(|| format!("cannot make the cgroup {}", child.display()))?;
        if leak.tidy {
            remove(&child)?;
            std::thread::sleep(Duration::from_millis(leak.every_ms));
            continue;
        }
        // Opened at home, so that nothing but the page is charged to the child.
        let mut inside = members(&child)?;
        inside.write_all(b"0").with_context(|| format!("cannot join {}", child.display()))?;
        let written = file.write_all_at(&page, i * page.len() as u64);
        home.write_all(b"0").with_context(|| format!("cannot leave {}", child.display()))?;
        written.with_context(|| format!("page {i} of {}", leak.file.display()))?;
        remove(&child)?;
        std::thread::sleep(Duration::from_millis(leak.every_ms));
    }
    Ok(())
}

/// v1 can move a single thread without the lock that stops every fork and exit on the node; that lock would take most of the time.
fn members(cgroup: &Path) -> Result<File> {
    let single = cgroup.join("tasks");
    let path = if single.exists() { single } else { cgroup.join("cgroup.procs") };
    OpenOptions::new().write(true).open(&path).with_context(|| format!("cannot open {}", path.display()))
}
