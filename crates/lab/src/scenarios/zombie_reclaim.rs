//! Tens of thousands of dead memory cgroups, and a process that makes the kernel reclaim over them: one core is at 100 % system while
//! the node's average looks fine.
//!
//! The walker does the work but is not to blame: with few dead cgroups its request is short. Whatever made them is gone, so the
//! verdict must name where they are.

use super::zombies::Graveyard;
use super::{Need, PATIENCE, REAL_NS, Scenario, ms};
use crate::actors;
use crate::draw::Draw;
use crate::guard::Child;
use crate::node;
use crate::stage::Stage;
use crate::truth::{Expected, ExpectedVerdict, Truth};
use anyhow::{Context, Result, ensure};
use serde_json::json;
use std::fs;
use std::path::Path;
use std::time::Instant;

pub const SCENARIO: Scenario = Scenario {
    name: "zombie-reclaim",
    summary: "tens of thousands of dead memory cgroups (--count N), and a process that reclaims over them on one core",
    expects: &["zombie-memcgs", "memcg-walk", "core-saturated"],
    needs: &[Need::Root, Need::TwoCores],
    perform,
};

const WORDS: [&str; 5] = ["pod", "runner", "task", "sandbox", "build"];

fn perform(stage: &mut Stage) -> Result<()> {
    let core = super::take_core(&mut stage.draw)?;
    let count = stage.count.unwrap_or_else(|| stage.draw.number(20_000, 40_000));
    ensure!((1_000..=200_000).contains(&count), "--count must be from 1000 to 200000");
    let word = stage.draw.one_of(&WORDS).unwrap_or("pod");
    let graveyard = Graveyard::open(&format!("{word}s-{}", stage.draw.tag()), count, 1)?;
    let name = format!("{word}-{}", stage.draw.tag());
    let started = Instant::now();
    graveyard.fill(stage, &name, count)?;
    let made_in = started.elapsed();
    let mut walker = Walker::start(stage, core, graveyard.parent.dir(), &[])?;

    let culprit = walker.child.label();
    let facts = graveyard.facts(json!({
        "core": core, "pid": walker.child.pid(), "comm": walker.child.name(), "count": count,
        "pattern": format!("{name}-*"), "made_in_ms": made_in.as_millis() as u64,
    }));
    let truth = Truth::new(facts)
        .expect(Expected::new("zombie-memcgs"))
        .expect(Expected::new("memcg-walk").about("process", &culprit).by(&culprit))
        .expect(Expected::new("core-saturated").about("core", core.to_string()).by(&culprit))
        .verdict(
            ExpectedVerdict::new("zombie-memcgs")
                .by(graveyard.parent.path())
                .then("memcg-walk")
                .then("core-saturated")
                .needs_bpf(),
        )
        .forbid(&["cpu-throttled", "nic-core-starved", "memory-reclaim", "unit-crashloop"]);
    stage.ready(&truth)?;
    let before = walker.times()?;
    stage.hold(|| walker.child.expect_running())?;
    let (system, user) = walker.times()?;
    stage.ended(json!({
        "pinned": graveyard.pinned()?, "walker_system_ms": ms(system - before.0), "walker_user_ms": ms(user - before.1),
    }))
}

/// A process that asks the kernel to empty a cgroup, over and over.
pub(super) struct Walker {
    pub child: Child,
}

const AGENTS: [&str; 5] = ["kubelet", "cadvisor", "memwatch", "nodeagent", "poolkeeper"];

impl Walker {
    /// On this core, over everything below the cgroup; returns when it has been in the kernel for a while.
    pub fn start(stage: &mut Stage, core: u32, cgroup: &Path, more: &[&str]) -> Result<Walker> {
        let comm = name(&mut stage.draw);
        let mut command = actors::command("reclaim");
        command.args(["--comm", &comm, "--core", &core.to_string()]).arg("--cgroup").arg(cgroup).args(more);
        let mut walker = Walker { child: Child::spawn(&comm, &mut command)? };
        stage.until("the walker is in the kernel on its core", PATIENCE, || {
            walker.child.expect_running()?;
            let there = node::task_stat(walker.child.pid()).is_some_and(|s| s.core == core);
            let (system, user) = walker.times()?;
            Ok((there && system >= REAL_NS && system > 9 * user).then_some(()))
        })?;
        Ok(walker)
    }

    /// Its system and user time, in nanoseconds.
    pub fn times(&self) -> Result<(u64, u64)> {
        let text = fs::read_to_string(format!("/proc/{}/stat", self.child.pid())).context("the walker is gone")?;
        let fields = text.rsplit_once(')').map_or("", |(_, rest)| rest).split_ascii_whitespace();
        // Fields 14 and 15; the first one here is the third.
        let ticks: Vec<u64> = fields.skip(11).take(2).map_while(|t| t.parse().ok()).collect();
        let [user, system] = ticks[..] else { anyhow::bail!("unexpected /proc/PID/stat: {text}") };
        let tick_ns = 1_000_000_000 / rustix::param::clock_ticks_per_second();
        Ok((system * tick_ns, user * tick_ns))
    }
}

/// A typical agent's name with a random tag.
fn name(draw: &mut Draw) -> String {
    format!("{}-{}", draw.one_of(&AGENTS).unwrap_or("kubelet"), draw.tag())
}
