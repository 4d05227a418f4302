//! One run of a scenario: its parameters, how it waits, what it prints.

use crate::draw::Draw;
use crate::interrupt;
use crate::truth::Truth;
use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
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
}

impl Stage {
    pub fn new(scenario: &'static str, seed: u64, hold_for: Duration, count: Option<u64>) -> Stage {
        Stage { scenario, seed, hold_for, count, draw: Draw::new(seed) }
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
    pub fn hold(&self, mut check: impl FnMut() -> Result<()>) -> Result<()> {
        let end = Instant::now() + self.hold_for;
        while !interrupt::requested() {
            check()?;
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            interrupt::pause(left.min(LOOK_EVERY));
        }
        Ok(())
    }

    pub fn ended(&self, measured: Value) -> Result<()> {
        say(
            &json!({"scenario": self.scenario, "ended": true, "interrupted": interrupt::requested(), "measured": measured}),
        )
    }
}

/// Prints one line of JSON and flushes it.
pub fn say(line: &Value) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).context("cannot write to standard output")
}
