//! Memory cgroups that were removed but live on, because pages charged to them stay in a tmpfs.

use super::{Need, Scenario};
use crate::actors;
use crate::guard::{Cgroup, Child, TmpfsMount};
use crate::stage::Stage;
use crate::truth::{Expected, Truth};
use anyhow::{Context, Result, bail, ensure};
use serde_json::json;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

pub const SCENARIO: Scenario = Scenario {
    name: "zombies",
    summary: "hundreds of memory cgroups removed, each kept by one page in a tmpfs (--count N)",
    expects: &["zombie-memcgs"],
    needs: &[Need::Root],
    perform,
};

/// Far above what we measured (0.7 ms each), far below for ever.
const LIMIT_EACH: Duration = Duration::from_millis(50);

fn perform(stage: &mut Stage) -> Result<()> {
    let count = stage.count.unwrap_or_else(|| stage.draw.number(500, 700));
    ensure!((1..=200_000).contains(&count), "--count must be from 1 to 200000");
    let page = rustix::param::page_size() as u64;
    let tracked_before = tracked_memcgs();

    let parent = Cgroup::with_controller("memory", &format!("agent-{}", stage.draw.tag()))?;
    let version = parent.hierarchy().version;
    parent.hierarchy().enable(parent.dir(), "memory")?;
    // Before 5.11 v1 counts children only if told so; later kernels always do, and may lack the switch.
    let _ = parent.write("memory.use_hierarchy", "1");
    let home = parent.child("home")?;
    // Drops run backwards: the tmpfs goes, then the zombies are awaited, then their parent is removed.
    let _freed = AwaitFreed { parent: parent.dir().to_owned(), version, tracked_before };
    let tmpfs = TmpfsMount::create("pins", (count + 16) * page, count + 16)?;
    let mut command = actors::command("zombies");
    command.arg("--parent").arg(parent.dir()).arg("--tmpfs").arg(tmpfs.dir()).args(["--count", &count.to_string()]);
    let mut maker = Child::spawn("zombie maker", &mut command)?;
    let started = Instant::now();
    stage.until("all the cgroups are made", LIMIT_EACH * count as u32 + Duration::from_secs(10), || {
        match maker.ended()? {
            Some(status) if status.success() => Ok(Some(())),
            Some(status) => bail!("the zombie maker failed: {status}"),
            None => Ok(None),
        }
    })?;
    let made_in = started.elapsed();
    drop(home);
    stage
        .until("as many zombies are pinned", Duration::from_secs(10), || {
            Ok((pinned(&parent, page)? >= count).then_some(()))
        })
        .context("this kernel frees removed cgroups although pages stay")?;

    let facts = json!({
        "count": count, "cgroup": parent.path(), "cgroup_version": version, "tmpfs": tmpfs.dir(),
        "tracked_before": tracked_before, "tracked": tracked_memcgs(),
    });
    let truth = Truth::new(facts).expect(Expected::new("zombie-memcgs")).forbid(&[
        "core-monopolised",
        "cpu-throttled",
        "nic-core-starved",
    ]);
    stage.ready(&truth)?;
    stage.hold(|| Ok(()))?;
    stage.ended(json!({"pinned": pinned(&parent, page)?, "made_in_ms": made_in.as_millis() as u64}))
}

/// How many removed children of `parent` are still there. v2 counts them; on v1 each holds one page that is not the kernel's, and
/// no live child holds any. Not memory.stat: before 5.13 it leaves out what each CPU has not yet added up, up to 32 pages of each
/// cgroup.
pub(super) fn pinned(parent: &Cgroup, page: u64) -> Result<u64> {
    if parent.hierarchy().version == 2 {
        return parent.counter("cgroup.stat", "nr_dying_descendants ");
    }
    let charged = parent.counter("memory.usage_in_bytes", "")?;
    let kernel = parent.counter("memory.kmem.usage_in_bytes", "").unwrap_or(0);
    Ok(charged.saturating_sub(kernel) / page)
}

/// Live and dead memory cgroups of the node, where /proc/cgroups tells (it does on v1).
pub(super) fn tracked_memcgs() -> Option<u64> {
    let text = fs::read_to_string("/proc/cgroups").ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix("memory\t"))?;
    line.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// Its drop waits until the kernel has freed the zombies, so that the next look at the node does not count them.
pub(super) struct AwaitFreed {
    pub parent: PathBuf,
    pub version: u8,
    pub tracked_before: Option<u64>,
}

impl AwaitFreed {
    /// Others make and remove cgroups meanwhile, so that an exact match may never come.
    const SLACK: u64 = 20;

    fn done(&self) -> bool {
        if self.version == 2 {
            let text = fs::read_to_string(self.parent.join("cgroup.stat")).unwrap_or_default();
            return !text.lines().any(|l| l.strip_prefix("nr_dying_descendants ").is_some_and(|n| n != "0"));
        }
        match (tracked_memcgs(), self.tracked_before) {
            (Some(now), Some(before)) => now <= before + AwaitFreed::SLACK,
            _ => true,
        }
    }
}

impl Drop for AwaitFreed {
    fn drop(&mut self) {
        let limit = Instant::now() + Duration::from_secs(15);
        while !self.done() && Instant::now() < limit {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
