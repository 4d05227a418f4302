//! One run of a scenario: its parameters, how it waits, what it prints.

use crate::draw::Draw;
use crate::interrupt;
use crate::node::CoreTimes;
use crate::truth::Truth;
use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::Write;
use std::time::{Duration, Instant};

/// Fails a scenario after its problem was made: tests use it to prove that the guards clean up.
pub const FAULT_VARIABLE: &str = "CORONER_LAB_FAULT";

/// How often a held scenario is checked.
const LOOK_EVERY: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub struct Stage {
    pub scenario: &'static str,
    pub seed: u64,
    /// How long to hold the problem.
    pub hold_for: Duration,
    pub count: Option<u64>,
    pub draw: Draw,
    /// How busy each core was while the problem was held, in percent.
    busy_percent: BTreeMap<u32, u64>,
}

impl Stage {
    pub fn new(scenario: &'static str, seed: u64, hold_for: Duration, count: Option<u64>) -> Stage {
        Stage { scenario, seed, hold_for, count, draw: Draw::new(seed), busy_percent: BTreeMap::new() }
    }

    /// Polls until `look` returns something. An error after the limit, or on Ctrl-C.
    pub fn until<T>(&self, what: &str, limit: Duration, mut look: impl FnMut() -> Result<Option<T>>) -> Result<T> {
        let end = Instant::now() + limit;
        loop {
            if let Some(seen) = look()? {
                return Ok(seen);
            }
            if interrupt::requested() {
                bail!("interrupted while waiting until {what}");
            }
            if Instant::now() > end {
                bail!("gave up after {} s waiting until {what}", limit.as_secs());
            }
            interrupt::pause(Duration::from_millis(10));
        }
    }

    /// Prints that the problem is there.
    pub fn ready(&self, truth: &Truth) -> Result<()> {
        match std::env::var(FAULT_VARIABLE).as_deref() {
            Ok("error") => bail!("told to fail by {FAULT_VARIABLE}"),
            Ok("panic") => panic!("told to panic by {FAULT_VARIABLE}"),
            _ => {}
        }
        say(&json!({"scenario": self.scenario, "ready": true, "seed": self.seed, "truth": truth}))
    }

    /// Holds the problem and checks regularly that it is still there; Ctrl-C ends it early.
    pub fn hold(&mut self, mut check: impl FnMut() -> Result<()>) -> Result<()> {
        let (end, before) = (Instant::now() + self.hold_for, CoreTimes::now()?);
        while !interrupt::requested() {
            check()?;
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            interrupt::pause(left.min(LOOK_EVERY));
        }
        self.busy_percent = CoreTimes::now()?.busy_percent_since(&before);
        Ok(())
    }

    pub fn ended(&self, mut measured: Value) -> Result<()> {
        measured["busy_percent"] = json!(self.busy_percent);
        let interrupted = interrupt::requested();
        say(&json!({"scenario": self.scenario, "ended": true, "interrupted": interrupted, "measured": measured}))
    }
}

/// Prints one line of JSON and flushes it.
pub fn say(line: &Value) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).context("cannot write to standard output")
}
