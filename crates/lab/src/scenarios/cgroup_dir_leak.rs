//! A process creates cgroups and never removes them: live, but empty.

use super::zombies::{AwaitFreed, tracked_memcgs};
use super::{Need, PATIENCE, Scenario};
use crate::actors;
use crate::guard::{Cgroup, Child};
use crate::hierarchy::Hierarchy;
use crate::run_id::RunId;
use crate::stage::Stage;
use crate::truth::{Expected, ExpectedVerdict, Truth};
use anyhow::{Context, Result, ensure};
use serde_json::json;
use std::fs;
use std::time::Duration;

pub const SCENARIO: Scenario = Scenario {
    name: "cgroup-dir-leak",
    summary: "thousands of empty memory cgroups that nobody removes, and more all the time (--count N)",
    expects: &["cgroup-leak"],
    needs: &[Need::Root],
    perform,
};

/// Each takes 0.3 ms.
const LIMIT_EACH: Duration = Duration::from_millis(20);

fn perform(stage: &mut Stage) -> Result<()> {
    let count = stage.count.unwrap_or_else(|| stage.draw.number(3_000, 5_000));
    ensure!((1..=20_000).contains(&count), "--count must be from 1 to 20000");
    let comm = format!("runner-{}", stage.draw.tag());
    let prefix = stage.draw.one_of(&["job-", "sandbox-", "run-r", "task_"]).context("no prefix")?;
    let every_ms = stage.draw.number(50, 120);
    let tracked_before = tracked_memcgs();
    let hierarchy = Hierarchy::with("memory")?;
    let version = hierarchy.version;
    // Drops run backwards: the maker ends, the cgroups are removed, then the kernel gets time to free them.
    let what = format!("jobs-{}", stage.draw.tag());
    let dir = hierarchy.mount_point.join(RunId::of_this_process().name(&what));
    let _freed = AwaitFreed { parent: dir, version, tracked_before };
    let parent = Cgroup::with_controller("memory", &what)?;
    parent.hierarchy().enable(parent.dir(), "memory")?;
    let mut command = actors::command("leak-cgroups");
    command.args([
        "--comm",
        &comm,
        "--prefix",
        prefix,
        "--count",
        &count.to_string(),
        "--every-ms",
        &every_ms.to_string(),
    ]);
    let mut maker = Child::spawn(&comm, command.arg("--parent").arg(parent.dir()))?;
    stage.until("that many cgroups exist", LIMIT_EACH * count as u32 + PATIENCE, || {
        maker.expect_running()?;
        Ok((children(&parent)? > count).then_some(()))
    })?;

    let culprit = maker.label();
    let facts = json!({
        "count": count, "cgroup": parent.path(), "cgroup_version": version, "prefix": prefix, "pid": maker.pid(), "comm": comm,
        "every_ms": every_ms,
    });
    let truth = Truth::new(facts)
        .expect(Expected::new("cgroup-leak").about("cgroup", parent.path()))
        .verdict(ExpectedVerdict::new("cgroup-leak").about("cgroup", parent.path()).by(&culprit))
        .forbid(&["core-monopolised", "cpu-throttled", "nic-core-starved"]);
    stage.ready(&truth)?;
    let before = children(&parent)?;
    stage.hold(|| maker.expect_running())?;
    let now = children(&parent)?;
    stage.ended(json!({"cgroups": now, "grew_by": now.saturating_sub(before)}))
}

fn children(parent: &Cgroup) -> Result<u64> {
    let entries = fs::read_dir(parent.dir()).with_context(|| parent.dir().display().to_string())?;
    Ok(entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).count() as u64)
}
