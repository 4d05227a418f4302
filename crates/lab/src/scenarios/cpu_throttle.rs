//! A job wants a core, but its cgroup may use only a fraction of one. The cores themselves are free.

use super::{Need, PATIENCE, Scenario};
use crate::actors;
use crate::guard::{Cgroup, Child};
use crate::node;
use crate::stage::Stage;
use crate::truth::{Expected, ExpectedVerdict, Truth};
use anyhow::Result;
use serde_json::{Value, json};

pub const SCENARIO: Scenario = Scenario {
    name: "cpu-throttle",
    summary: "a busy thread in a cgroup whose CPU quota is exhausted in every period",
    expects: &["cpu-throttled"],
    needs: &[Need::Root],
    perform,
};

const PERIOD_US: u64 = 100_000;

/// Throttled periods before the scenario is ready.
const THROTTLED_PERIODS: u64 = 5;

fn perform(stage: &mut Stage) -> Result<()> {
    let mut throttled = Throttled::start(stage)?;
    let facts = throttled.facts();
    let truth = Truth::new(facts)
        .expect(Expected::new("cpu-throttled").about("cgroup", throttled.job.path()))
        .verdict(throttled.verdict())
        .forbid(&["core-saturated", "core-monopolised", "nic-core-starved", "memory-reclaim"]);
    stage.ready(&truth)?;
    let before = throttled.periods()?;
    let ran_before = node::thread_times(throttled.spinner.pid())?.ran_ns;
    stage.hold(|| throttled.spinner.expect_running())?;
    let after = throttled.periods()?;
    stage.ended(json!({
        "periods": after.0 - before.0,
        "throttled_periods": after.1 - before.1,
        "ran_ms": super::ms(node::thread_times(throttled.spinner.pid())?.ran_ns - ran_before),
    }))
}

/// A busy thread in a cgroup with a quota.
pub(super) struct Throttled {
    // Dropped in this order: the member before its cgroup, that before its parent.
    pub spinner: Child,
    pub job: Cgroup,
    _group: Cgroup,
    quota_us: u64,
}

impl Throttled {
    /// Returns when the quota has run out several times.
    pub fn start(stage: &mut Stage) -> Result<Throttled> {
        // A fraction of one core, so that no core gets saturated.
        let percent = stage.draw.number(15, 30);
        let quota_us = PERIOD_US * percent / 100;
        let comm = format!("quota-{}", stage.draw.tag());
        let group = Cgroup::with_controller("cpu", "throttle")?;
        group.hierarchy().enable(group.dir(), "cpu")?;
        // Only its quota must stop it, so it gets the highest weight, even on a loaded machine.
        let (weight, most) =
            if group.hierarchy().version == 1 { ("cpu.shares", "262144") } else { ("cpu.weight", "10000") };
        group.write(weight, most)?;
        let job = group.child(&format!("job-{}", stage.draw.tag()))?;
        if job.hierarchy().version == 1 {
            job.write("cpu.cfs_period_us", &PERIOD_US.to_string())?;
            job.write("cpu.cfs_quota_us", &quota_us.to_string())?;
        } else {
            job.write("cpu.max", &format!("{quota_us} {PERIOD_US}"))?;
        }
        let mut command = actors::command("spin");
        let spinner = Child::spawn(&comm, command.args(["--comm", &comm]).arg("--join").arg(job.dir()))?;
        let mut throttled = Throttled { spinner, job, _group: group, quota_us };
        stage.until("the quota runs out again and again", PATIENCE, || {
            throttled.spinner.expect_running()?;
            Ok((throttled.periods()?.1 >= THROTTLED_PERIODS).then_some(()))
        })?;
        Ok(throttled)
    }

    /// All, and those in which the quota ran out.
    pub fn periods(&self) -> Result<(u64, u64)> {
        Ok((self.job.counter("cpu.stat", "nr_periods ")?, self.job.counter("cpu.stat", "nr_throttled ")?))
    }

    pub fn facts(&self) -> Value {
        json!({
            "cgroup": self.job.path(), "cgroup_version": self.job.hierarchy().version, "pid": self.spinner.pid(),
            "comm": self.spinner.name(), "quota_us": self.quota_us, "period_us": PERIOD_US,
        })
    }

    pub fn verdict(&self) -> ExpectedVerdict {
        ExpectedVerdict::new("cpu-throttled").about("cgroup", self.job.path()).by(self.job.path())
    }
}
