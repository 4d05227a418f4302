//! Who is to blame for dead memory cgroups: those whose cgroups stay, not those who make most.

use super::zombies::{Graveyard, await_maker};
use super::{Need, PATIENCE, Scenario};
use crate::actors;
use crate::guard::{Cgroup, Child};
use crate::node;
use crate::stage::Stage;
use crate::truth::{Expected, ExpectedVerdict, Truth};
use anyhow::{Result, ensure};
use serde_json::json;

pub const GONE: Scenario = Scenario {
    name: "leaker-gone",
    summary: "hundreds of dead memory cgroups (--count N) whose maker is gone, and another process that makes and frees cgroups there",
    expects: &["zombie-memcgs"],
    needs: &[Need::Root],
    perform: leaker_gone,
};

pub const TWO: Scenario = Scenario {
    name: "two-leakers",
    summary: "two processes that each leave 25 dead memory cgroups a second, and one that frees what it makes",
    expects: &["zombie-memcgs"],
    needs: &[Need::Root],
    perform: two_leakers,
};

/// Enough for any hold; each actor ends with its scenario.
const FOR_LONG: u64 = 1_000_000;
/// The tmpfs must have a page for each: 100 a second for several minutes.
const ROOM: u64 = 60_000;

/// An actor that makes cgroups `NAME-FROM` and so on below the graveyard's parent.
struct Maker<'g> {
    graveyard: &'g Graveyard,
    home: &'g Cgroup,
    comm: String,
    name: &'g str,
    from: u64,
    count: u64,
    every_ms: u64,
    tidy: bool,
}

impl Maker<'_> {
    fn command(&self) -> std::process::Command {
        let mut command = actors::command("leak");
        command.args(["--comm", &self.comm, "--name", self.name, "--numbered"]);
        command.arg("--parent").arg(self.graveyard.parent.dir()).arg("--home").arg(self.home.dir());
        command.arg("--file").arg(self.graveyard.tmpfs.dir().join(format!("pages-{}", self.comm)));
        command.args(["--from", &self.from.to_string(), "--count", &self.count.to_string()]);
        command.args(["--every-ms", &self.every_ms.to_string()]);
        if self.tidy {
            command.arg("--tidy");
        }
        command
    }

    fn start(&self) -> Result<Child> {
        Child::spawn(&self.comm, &mut self.command())
    }
}

fn leaker_gone(stage: &mut Stage) -> Result<()> {
    let count = stage.count.unwrap_or_else(|| stage.draw.number(500, 700));
    ensure!((300..=20_000).contains(&count), "--count must be from 300 to 20000");
    let graveyard = Graveyard::open(&format!("jobs-{}", stage.draw.tag()), count, 8)?;
    let home = graveyard.parent.child("home")?;
    let name = stage.draw.one_of(&["job", "step", "task"]).unwrap_or("job");
    let gone = Maker {
        graveyard: &graveyard,
        home: &home,
        comm: format!("gone-{}", stage.draw.tag()),
        name,
        from: 0,
        count,
        every_ms: 0,
        tidy: false,
    };
    await_maker(stage, &mut gone.command(), count)?;
    graveyard.await_pinned(stage, count)?;
    // The same parent, the same names.
    let (comm, every_ms) = (format!("tidy-{}", stage.draw.tag()), stage.draw.number(5, 30));
    let innocent = Maker { comm, from: FOR_LONG, count: FOR_LONG, every_ms, tidy: true, ..gone };
    let mut tidy = innocent.start()?;
    stage.until("it has its name", PATIENCE, || {
        tidy.expect_running()?;
        Ok((node::comm_of(tidy.pid()).as_deref() == Some(&innocent.comm)).then_some(()))
    })?;
    let parent = graveyard.parent.path();
    let facts = graveyard.facts(json!({
        "count": count, "comm": innocent.comm, "pid": tidy.pid(), "every_ms": every_ms, "name": name,
    }));
    let truth = Truth::new(facts)
        .expect(Expected::new("zombie-memcgs"))
        .verdict(ExpectedVerdict::new("zombie-memcgs").by(parent).needs_bpf())
        .innocent(tidy.label())
        .forbid(&["core-monopolised", "cpu-throttled", "nic-core-starved"]);
    stage.ready(&truth)?;
    stage.hold(|| tidy.expect_running())?;
    stage.ended(json!({"dead": graveyard.dead()?}))
}

fn two_leakers(stage: &mut Stage) -> Result<()> {
    const EVERY_MS: u64 = 40;
    let graveyard = Graveyard::open(&format!("jobs-{}", stage.draw.tag()), ROOM, 8)?;
    let home = graveyard.parent.child("home")?;
    let name = stage.draw.one_of(&["job", "step", "task"]).unwrap_or("job");
    let maker = |comm: String, from: u64, every_ms: u64, tidy: bool| {
        let (graveyard, home) = (&graveyard, &home);
        Maker { graveyard, home, comm, name, from, count: FOR_LONG, every_ms, tidy }
    };
    let mut first = maker(format!("leak-a{}", stage.draw.tag()), 0, EVERY_MS, false).start()?;
    let mut second = maker(format!("leak-b{}", stage.draw.tag()), FOR_LONG, EVERY_MS, false).start()?;
    let mut tidy = maker(format!("tidy-{}", stage.draw.tag()), 2 * FOR_LONG, EVERY_MS / 4, true).start()?;
    // From here on it is worth a warning, and grows by half within seconds.
    const WORTH_A_WARNING: u64 = 320;
    stage.until("hundreds are dead", PATIENCE, || {
        for child in [&mut first, &mut second, &mut tidy] {
            child.expect_running()?;
        }
        Ok((graveyard.dead()? >= WORTH_A_WARNING).then_some(()))
    })?;
    let facts = graveyard.facts(json!({
        "comms": [first.label(), second.label(), tidy.label()], "pids": [first.pid(), second.pid()], "every_ms": EVERY_MS,
        "name": name,
    }));
    let truth = Truth::new(facts)
        .expect(Expected::new("zombie-memcgs").by(first.label()))
        .expect(Expected::new("zombie-memcgs").by(second.label()))
        .verdict(ExpectedVerdict::new("zombie-memcgs").by(first.label()))
        .innocent(tidy.label())
        .forbid(&["core-monopolised", "cpu-throttled", "nic-core-starved"]);
    stage.ready(&truth)?;
    let before = graveyard.dead()?;
    stage.hold(|| {
        for child in [&mut first, &mut second, &mut tidy] {
            child.expect_running()?;
        }
        Ok(())
    })?;
    let now = graveyard.dead()?;
    stage.ended(json!({"dead": now, "grew_by": now.saturating_sub(before)}))
}
