//! A job reads more than its cgroup may keep in memory: each new page evicts another one. Nothing is killed, because page cache can
//! always be dropped.

use super::{Need, PATIENCE, Scenario};
use crate::actors;
use crate::guard::{Cgroup, Child, Ext4Mount};
use crate::stage::Stage;
use crate::truth::{Expected, ExpectedVerdict, Truth};
use anyhow::{Context, Result, ensure};
use serde_json::json;

pub const SCENARIO: Scenario = Scenario {
    name: "memory-limit-reclaim",
    summary: "a job reads random pages of a file that is larger than its cgroup's memory limit, and reclaims all the time",
    expects: &["memory-reclaim"],
    needs: &[Need::Root, Need::LoopDevice, Need::Program("mke2fs", "e2fsprogs"), Need::Program("mount", "mount")],
    perform,
};

const MIB: u64 = 1 << 20;
/// How often the limit must be hit before the scenario is ready.
const HITS: u64 = 1_000;

fn perform(stage: &mut Stage) -> Result<()> {
    // Far more than the reader itself needs.
    let limit = stage.draw.number(24, 40) * MIB;
    let file_bytes = limit * stage.draw.number(15, 25) / 10;
    let threads = stage.draw.number(3, 4);
    let comm = format!("loader-{}", stage.draw.tag());
    let name = format!("shard-{}.bin", stage.draw.tag());
    let data = Ext4Mount::with_file("data", &name, &vec![b'd'; file_bytes as usize])?;
    let group = Cgroup::with_controller("memory", "limit")?;
    group.hierarchy().enable(group.dir(), "memory")?;
    let job = Limited::create(&group, &format!("job-{}", stage.draw.tag()), limit)?;
    let mut command = actors::command("reader");
    command.args(["--comm", &comm, "--threads", &threads.to_string()]).arg("--file").arg(data.file());
    let mut reader = Child::spawn(&comm, command.arg("--join").arg(job.group.dir()))?;
    stage.until("the limit is hit again and again", PATIENCE, || {
        reader.expect_running()?;
        Ok((job.hits()? >= HITS).then_some(()))
    })?;

    let facts = json!({
        "cgroup": job.group.path(), "cgroup_version": job.group.hierarchy().version, "pid": reader.pid(), "comm": comm,
        "threads": threads, "limit_bytes": limit, "file": data.file(), "file_bytes": file_bytes,
    });
    let path = job.group.path();
    let truth = Truth::new(facts)
        .expect(Expected::new("memory-reclaim").about("cgroup", &path))
        .verdict(ExpectedVerdict::new("memory-reclaim").about("cgroup", &path).by(&path))
        .forbid(&["cpu-throttled", "core-monopolised", "nic-core-starved", "memcg-walk"]);
    stage.ready(&truth)?;
    let before = job.hits()?;
    stage.hold(|| {
        ensure!(job.kills()? == 0, "the kernel killed a process in {path}: this must never happen");
        reader.expect_running()
    })?;
    stage.ended(json!({
        "limit_hits": job.hits()? - before, "kills": job.kills()?,
    }))
}

/// A cgroup with a memory limit.
struct Limited {
    group: Cgroup,
}

impl Limited {
    fn create(parent: &Cgroup, name: &str, limit: u64) -> Result<Limited> {
        let group = parent.child(name)?.freeing_cache();
        if group.hierarchy().version == 1 {
            group.write("memory.limit_in_bytes", &limit.to_string())?;
            // If memory runs out anyway, members wait instead of being killed, until the guards end them.
            group.write("memory.oom_control", "1").context("cannot turn off the OOM killer")?;
        } else {
            group.write("memory.max", &limit.to_string())?;
        }
        Ok(Limited { group })
    }

    fn hits(&self) -> Result<u64> {
        match self.group.hierarchy().version {
            1 => self.group.counter("memory.failcnt", ""),
            _ => self.group.counter("memory.events", "max "),
        }
    }

    fn kills(&self) -> Result<u64> {
        match self.group.hierarchy().version {
            1 => self.group.counter("memory.oom_control", "oom_kill "),
            _ => self.group.counter("memory.events", "oom_kill "),
        }
    }
}
