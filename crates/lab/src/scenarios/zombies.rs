//! Removed memory cgroups that the kernel cannot free, because pages charged to them stay in a tmpfs.

use super::{Need, PATIENCE, Scenario};
use crate::actors;
use crate::guard::{Cgroup, Child, TmpfsMount};
use crate::stage::Stage;
use crate::truth::{Expected, ExpectedVerdict, Truth};
use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

pub const SCENARIO: Scenario = Scenario {
    name: "zombies",
    summary: "hundreds of memory cgroups removed, each kept by one page in a tmpfs (--count N)",
    expects: &["zombie-memcgs"],
    needs: &[Need::Root],
    perform,
};

/// We measured 0.7 ms each.
const LIMIT_EACH: Duration = Duration::from_millis(50);

fn perform(stage: &mut Stage) -> Result<()> {
    let count = stage.count.unwrap_or_else(|| stage.draw.number(500, 700));
    ensure!((1..=200_000).contains(&count), "--count must be from 1 to 200000");
    let graveyard = Graveyard::open(&format!("agent-{}", stage.draw.tag()), count, count)?;
    let home = graveyard.parent.child("home")?;
    let mut command = actors::command("zombies");
    command.arg("--parent").arg(graveyard.parent.dir()).arg("--tmpfs").arg(graveyard.tmpfs.dir());
    let started = Instant::now();
    await_maker(stage, command.args(["--count", &count.to_string()]), count)?;
    let made_in = started.elapsed();
    drop(home);
    graveyard.await_pinned(stage, count)?;

    let parent = &graveyard.parent;
    let facts = graveyard.facts(json!({"count": count, "tmpfs": graveyard.tmpfs.dir()}));
    let truth = Truth::new(facts)
        .expect(Expected::new("zombie-memcgs"))
        .verdict(ExpectedVerdict::new("zombie-memcgs").by(parent.path()).needs_bpf())
        .forbid(&["core-monopolised", "cpu-throttled", "nic-core-starved"]);
    stage.ready(&truth)?;
    stage.hold(|| Ok(()))?;
    stage.ended(json!({"pinned": graveyard.pinned()?, "made_in_ms": made_in.as_millis() as u64}))
}

/// A live cgroup whose children die, and the tmpfs whose pages keep them. Its drop frees them and waits until they are gone.
pub(super) struct Graveyard {
    // Dropped in this order: the pages are freed, the zombies awaited, then their parent is removed.
    pub tmpfs: TmpfsMount,
    freed: AwaitFreed,
    pub parent: Cgroup,
    page: u64,
}

impl Graveyard {
    /// With room for this many pages and files.
    pub fn open(what: &str, pages: u64, files: u64) -> Result<Graveyard> {
        let page = rustix::param::page_size() as u64;
        let tracked_before = tracked_memcgs();
        let parent = Cgroup::with_controller("memory", what)?;
        let version = parent.hierarchy().version;
        parent.hierarchy().enable(parent.dir(), "memory")?;
        // Before 5.11 v1 counts children only with this switch; later kernels always do, and may lack it.
        let _ = parent.write("memory.use_hierarchy", "1");
        let freed = AwaitFreed { parent: parent.dir().to_owned(), version, tracked_before };
        let tmpfs = TmpfsMount::create("pins", (pages + 16) * page, files + 16)?;
        Ok(Graveyard { tmpfs, freed, parent, page })
    }

    /// Creates and removes `NAME-0` and so on below the parent; each is kept by a page of one file in the tmpfs.
    pub fn fill(&self, stage: &Stage, name: &str, count: u64) -> Result<()> {
        let home = self.parent.child("home")?;
        let mut command = actors::command("leak");
        command.arg("--parent").arg(self.parent.dir()).arg("--home").arg(home.dir()).args(["--name", name]);
        command.arg("--file").arg(self.tmpfs.dir().join("pages")).args(["--numbered", "--count", &count.to_string()]);
        await_maker(stage, &mut command, count)?;
        drop(home);
        self.await_pinned(stage, count)
    }

    pub fn await_pinned(&self, stage: &Stage, count: u64) -> Result<()> {
        stage
            .until("as many zombies are pinned", PATIENCE, || Ok((self.pinned()? >= count).then_some(())))
            .context("this kernel frees removed cgroups although pages stay")
    }

    pub fn pinned(&self) -> Result<u64> {
        pinned(&self.parent, self.page)
    }

    /// The same while cgroups are being made: v1's charge then includes pages that each CPU has set aside, up to 64 for each cgroup that it
    /// charges (mm/memcontrol.c: MEMCG_CHARGE_BATCH). Others make and remove cgroups too, but not hundreds.
    pub fn dead(&self) -> Result<u64> {
        match (self.freed.version, tracked_memcgs(), self.freed.tracked_before) {
            (1, Some(now), Some(before)) => Ok(now.saturating_sub(before)),
            _ => self.pinned(),
        }
    }

    /// Adds the graveyard's facts to these.
    pub fn facts(&self, mut facts: Value) -> Value {
        facts["cgroup"] = json!(self.parent.path());
        facts["cgroup_version"] = json!(self.freed.version);
        facts["tracked_before"] = json!(self.freed.tracked_before);
        facts["tracked"] = json!(tracked_memcgs());
        facts
    }
}

/// Runs an actor that makes `count` dead cgroups, and waits until it is done.
pub(super) fn await_maker(stage: &Stage, command: &mut Command, count: u64) -> Result<()> {
    let mut maker = Child::spawn("zombie maker", command)?;
    stage.until("all the cgroups are made", LIMIT_EACH * count as u32 + PATIENCE, || match maker.ended()? {
        Some(status) if status.success() => Ok(Some(())),
        Some(status) => bail!("the zombie maker failed: {status}"),
        None => Ok(None),
    })
}

/// How many removed children of `parent` are still there. v2 counts them; on v1 each holds one non-kernel page, and no live child
/// holds any. Not from memory.stat: before 5.13 it omits what each CPU has not yet flushed, up to 32 pages per cgroup.
pub(super) fn pinned(parent: &Cgroup, page: u64) -> Result<u64> {
    if parent.hierarchy().version == 2 {
        return parent.counter("cgroup.stat", "nr_dying_descendants ");
    }
    let charged = parent.counter("memory.usage_in_bytes", "")?;
    let kernel = parent.counter("memory.kmem.usage_in_bytes", "").unwrap_or(0);
    Ok(charged.saturating_sub(kernel) / page)
}

/// Live and dead memory cgroups of the node, if /proc/cgroups has them (v1).
pub(super) fn tracked_memcgs() -> Option<u64> {
    let text = fs::read_to_string("/proc/cgroups").ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix("memory\t"))?;
    line.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// Its drop waits until the kernel has freed the zombies, so that nobody counts them later.
pub(super) struct AwaitFreed {
    pub parent: PathBuf,
    pub version: u8,
    pub tracked_before: Option<u64>,
}

impl AwaitFreed {
    /// Others create and remove cgroups meanwhile, so an exact match may never come.
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
        // 60,000 take 3 s on a quiet node.
        let limit = Instant::now() + Duration::from_secs(30);
        while !self.done() && Instant::now() < limit {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
