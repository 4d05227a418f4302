//! A real-time thread owns one core; an ordinary thread pinned to that core hardly ever runs.

use super::{FIFO_PRIORITY, Need, PATIENCE, REAL_NS, Scenario, ms};
use crate::guard::Child;
use crate::node::{self, ThreadTimes};
use crate::stage::Stage;
use crate::truth::{Expected, ExpectedVerdict, Truth};
use anyhow::Result;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

pub const SCENARIO: Scenario = Scenario {
    name: "rt-monopoly",
    summary: "a SCHED_FIFO spinner owns one core, an ordinary thread starves there",
    expects: &["core-saturated", "core-monopolised"],
    needs: &[Need::Root, Need::TwoCores],
    perform,
};

fn perform(stage: &mut Stage) -> Result<()> {
    let core = super::take_core(&mut stage.draw)?;
    let mut monopoly = Monopoly::start(stage, core)?;
    let mut truth = Truth::new(monopoly.facts()).verdict(monopoly.verdict());
    truth.expect = monopoly.expected();
    stage.ready(&truth.forbid(&["cpu-throttled", "nic-reset", "memory-reclaim"]))?;
    let before = (monopoly.spinner_times()?, monopoly.victim_times()?);
    stage.hold(|| monopoly.expect_running())?;
    let (spinner, victim) = (monopoly.spinner_times()?, monopoly.end()?);
    stage.ended(json!({
        "spinner_ran_ms": ms(spinner.ran_ns - before.0.ran_ns),
        "victim_ran_ms": ms(victim.ran_ns - before.1.ran_ns),
        "victim_waited_ms": ms(victim.waited_ns - before.1.waited_ns),
    }))
}

/// A real-time spinner on a core, and an ordinary thread pinned to it.
pub(super) struct Monopoly {
    spinner: Child,
    victim: Child,
    core: u32,
}

impl Monopoly {
    /// Returns when the victim has to wait.
    pub fn start(stage: &mut Stage, core: u32) -> Result<Monopoly> {
        let (spin_comm, victim_comm) = (format!("spin-{}", stage.draw.tag()), format!("job-{}", stage.draw.tag()));
        let mut victim = super::start_victim(&victim_comm, core)?;
        stage.until("the victim has run", PATIENCE, || {
            victim.expect_running()?;
            let named = node::comm_of(victim.pid()).as_deref() == Some(&victim_comm);
            Ok((named && node::thread_times(victim.pid())?.ran_ns >= 2_000_000).then_some(()))
        })?;
        let mut spinner = super::start_fifo_spinner(stage, spin_comm, core)?;
        super::await_fifo_spinner(stage, &mut spinner, core)?;
        let mut monopoly = Monopoly { spinner, victim, core };
        let start = monopoly.victim_times()?;
        stage.until("the victim waits for its core", PATIENCE, || {
            monopoly.expect_running()?;
            Ok((monopoly.victim_times()?.waited_ns - start.waited_ns >= REAL_NS).then_some(()))
        })?;
        Ok(monopoly)
    }

    pub fn expect_running(&mut self) -> Result<()> {
        self.spinner.expect_running().and_then(|()| self.victim.expect_running())
    }

    pub fn spinner_times(&self) -> Result<ThreadTimes> {
        node::thread_times(self.spinner.pid())
    }

    pub fn victim_times(&self) -> Result<ThreadTimes> {
        node::thread_times(self.victim.pid())
    }

    /// The times of the victim. The kernel counts a wait when it is over, so the spinner ends first.
    pub fn end(self) -> Result<ThreadTimes> {
        let Monopoly { spinner, victim, .. } = self;
        let mut times = node::thread_times(victim.pid())?;
        let (ran_ns, end) = (times.ran_ns, Instant::now() + PATIENCE);
        drop(spinner);
        while times.ran_ns == ran_ns && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
            times = node::thread_times(victim.pid())?;
        }
        Ok(times)
    }

    pub fn facts(&self) -> Value {
        json!({
            "core": self.core, "pid": self.spinner.pid(), "comm": self.spinner.name(), "policy": "SCHED_FIFO",
            "priority": FIFO_PRIORITY, "victim": {"pid": self.victim.pid(), "comm": self.victim.name()},
        })
    }

    pub fn expected(&self) -> Vec<Expected> {
        let culprit = self.spinner.label();
        vec![
            Expected::new("core-saturated").about("core", self.core.to_string()).by(&culprit),
            Expected::new("core-monopolised").about("process", &culprit).by(&culprit),
        ]
    }

    pub fn verdict(&self) -> ExpectedVerdict {
        ExpectedVerdict::new("core-monopolised").by(self.spinner.label()).then("core-saturated")
    }
}
