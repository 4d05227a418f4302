//! Somebody froze a file system, as for a snapshot, and did not thaw it. Who writes there cannot even be killed.

use super::{Need, PATIENCE, REAL_NS, Scenario, ms};
use crate::actors;
use crate::guard::{Ext4Mount, Freeze};
use crate::loss::{Measured, now_ns};
use crate::stage::Stage;
use crate::truth::{Expected, ExpectedVerdict, Truth};
use anyhow::Result;
use serde_json::json;

pub const SCENARIO: Scenario = Scenario {
    name: "frozen-fs",
    summary: "a process writes to a file system that is frozen",
    expects: &["blocked"],
    needs: &[Need::Root, Need::LoopDevice, Need::Program("mke2fs", "e2fsprogs"), Need::Program("mount", "mount")],
    perform,
};

fn perform(stage: &mut Stage) -> Result<()> {
    let comm = format!("db-{}", stage.draw.tag());
    let file_system = Ext4Mount::writable(&format!("data-{}", stage.draw.tag()), "journal", &[0; 65536])?;
    let mut command = actors::command("write-file");
    command.args(["--comm", &comm, "--every-us", &stage.draw.number(2_000, 20_000).to_string()]);
    let mut writer = Measured::spawn(&comm, command.arg("--file").arg(file_system.file()))?;
    writer.await_first_words(PATIENCE)?;
    // Dropped before the writer, which only then can die.
    let freeze = Freeze::of(file_system.dir())?;
    let start = now_ns();
    stage.until("the writer is blocked", PATIENCE, || {
        writer.child.expect_running()?;
        Ok((is_blocked(writer.child.pid()) && writer.between(start, now_ns()).lost_ns() >= REAL_NS).then_some(()))
    })?;
    let truth = Truth::new(json!({
        "pid": writer.child.pid(), "comm": comm, "file_system": file_system.dir(), "file": file_system.file(),
    }))
    .expect(Expected::new("blocked").about("process", writer.child.label()))
    .verdict(ExpectedVerdict::new("blocked").about("process", writer.child.label()))
    .forbid(&["cpu-throttled", "nic-reset", "memory-reclaim", "fork-storm", "unfair-weight", "cpu-starved"]);
    stage.ready(&truth)?;
    let before = now_ns();
    stage.hold(|| writer.child.expect_running())?;
    let after = now_ns();
    drop(freeze);
    writer.await_account(after, PATIENCE)?;
    let loss = writer.between(before, after);
    stage.ended(json!({"victim_wanted_ms": ms(loss.wanted_ns), "victim_ran_ms": ms(loss.got_ns),
                       "victim_lost_ms": ms(loss.lost_ns())}))
}

/// In uninterruptible sleep.
fn is_blocked(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rfind(')').and_then(|end| stat.get(end + 2..end + 3)) == Some("D")
}
