//! Removed memory cgroups that are kept for different reasons: files in a tmpfs, and page cache of a file on ext4.
//!
//! Each holds exactly one page, so what a diagnosis must say is known to the byte: parent, names, count, bytes of each kind,
//! and each file with what it keeps.

use super::zombies::{AwaitFreed, await_maker, pinned, tracked_memcgs};
use super::{Need, PATIENCE, Scenario};
use crate::actors;
use crate::guard::{Cgroup, Ext4Mount, TmpfsMount};
use crate::stage::Stage;
use crate::syscalls::{Mapping, drain_lru_batches};
use crate::truth::{Expected, ExpectedVerdict, Truth};
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;

pub const SCENARIO: Scenario = Scenario {
    name: "zombies-pinned",
    summary: "300 memory cgroups (--count N) removed, kept by pages of three tmpfs files and of one ext4 file",
    expects: &["zombie-memcgs"],
    needs: &[Need::Root, Need::LoopDevice, Need::Program("mke2fs", "e2fsprogs"), Need::Program("mount", "mount")],
    perform,
};

const WORDS: [&str; 6] = ["ingest", "render", "shuffle", "tokenize", "reindex", "evaluate"];

/// The tmpfs files keep one, two and three sixths of their half, so their order by size is known.
const TMPFS_FILES: u64 = 3;
const SHARES: u64 = 6;

fn perform(stage: &mut Stage) -> Result<()> {
    let count = stage.count.unwrap_or(300);
    ensure!((12..=20_000).contains(&count), "--count must be from 12 to 20000");
    let page = rustix::param::page_size() as u64;
    let tracked_before = tracked_memcgs();

    let parent = Cgroup::with_controller("memory", &format!("pool-{}", stage.draw.tag()))?;
    let version = parent.hierarchy().version;
    parent.hierarchy().enable(parent.dir(), "memory")?;
    // Before 5.11 v1 counts children only with this switch; later kernels always do, and may lack it.
    let _ = parent.write("memory.use_hierarchy", "1");
    // Stays: a live cgroup among the dead ones.
    let home = parent.child("home")?;
    // Drops run backwards: the files are removed, the zombies awaited, then their parent is removed.
    let _freed = AwaitFreed { parent: parent.dir().to_owned(), version, tracked_before };

    let (name, tag) = (stage.draw.one_of(&WORDS).unwrap_or("ingest"), stage.draw.tag());
    let first = stage.draw.number(1_000, 9_000);
    let mut made = Makers { stage, parent: &parent, name, next: first };
    let mut files: Vec<Value> = Vec::new();

    let tmpfs = TmpfsMount::create("spool", (count + 16) * page, 16)?;
    for i in 0..TMPFS_FILES {
        let path = tmpfs.dir().join(format!("spool-{tag}-{i}"));
        File::create(&path).with_context(|| path.display().to_string())?;
        let zombies = count / 2 * (i + 1) / SHARES;
        made.pin(&path, zombies, true)?;
        files.push(kept_by(&path, "tmpfs", zombies, page));
    }
    let in_tmpfs = made.next - first;
    let in_ext4 = count - in_tmpfs;
    let contents = vec![b'x'; (in_ext4 * page) as usize];
    let ext4 = Ext4Mount::with_file("layer", &format!("layer-{tag}.bin"), &contents)?;
    // Open it here, so that its metadata is not charged to the first zombie.
    let layer = File::open(ext4.file()).with_context(|| ext4.file().display().to_string())?;
    let mapping = Mapping::of(layer.as_fd(), contents.len()).context("cannot map the file on ext4")?;
    ensure!(mapping.resident()? == 0, "{} is in memory before anyone read it", ext4.file().display());
    made.pin(ext4.file(), in_ext4, false)?;
    let last = made.next - 1;
    let resident = mapping.resident()? as u64;
    ensure!(resident == in_ext4, "somebody dropped the page cache: {resident} of {in_ext4} pages are left");
    mapping.touch();
    // From here on the pages must stay: one that is read again is charged to its reader, not to the dead cgroup.
    let _held = mapping.hold_pages().context("cannot hold the pages of the file on ext4")?;
    files.push(kept_by(ext4.file(), "ext4", in_ext4, page));
    files.reverse();
    // Files are found through the LRU lists. Without this, a few zombies have no file yet.
    let drained = drain_lru_batches().is_ok();

    stage
        .until("as many zombies are pinned", PATIENCE, || Ok((pinned(&parent, page)? >= count).then_some(())))
        .context("this kernel frees removed cgroups although pages stay")?;

    let facts = json!({
        "count": count, "parent": parent.path(), "cgroup_version": version, "live_child": home.path(),
        "pattern": format!("{name}-*"), "first": format!("{name}-{first}"), "last": format!("{name}-{last}"),
        "bytes": {"file": in_ext4 * page, "shmem": in_tmpfs * page}, "files": files, "all_on_lists": drained,
        "ext4_pages_on_nodes": mapping.nodes().ok(),
        "tracked_before": tracked_before, "tracked": tracked_memcgs(),
    });
    let truth = Truth::new(facts)
        .expect(Expected::new("zombie-memcgs").severity("info"))
        .verdict(ExpectedVerdict::new("zombie-memcgs").by(parent.path()).needs_bpf())
        .forbid(&["core-monopolised", "cpu-throttled", "nic-core-starved"]);
    stage.ready(&truth)?;
    stage.hold(|| Ok(()))?;
    let resident = mapping.resident()?;
    stage.ended(json!({"pinned": pinned(&parent, page)?, "pages_in_ext4": resident}))
}

fn kept_by(file: &Path, filesystem: &str, zombies: u64, page: u64) -> Value {
    json!({"path": file, "filesystem": filesystem, "zombies": zombies, "bytes": zombies * page})
}

/// Runs the actors that make the cgroups, one after the other.
struct Makers<'s> {
    stage: &'s Stage,
    parent: &'s Cgroup,
    name: &'s str,
    next: u64,
}

impl Makers<'_> {
    fn pin(&mut self, file: &Path, count: u64, write: bool) -> Result<()> {
        let mut command = actors::command("pin");
        command.arg("--parent").arg(self.parent.dir()).args(["--name", self.name]).arg("--file").arg(file);
        command.args(["--from", &self.next.to_string(), "--count", &count.to_string()]);
        if write {
            command.arg("--write");
        }
        await_maker(self.stage, &mut command, count)?;
        self.next += count;
        Ok(())
    }
}
