//! What the lab makes for a benchmark.

use crate::child::Ended;
use anyhow::{Context, bail};
use rustix::process::Signal;
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{ChildStdout, Command, Stdio};

/// Made until dropped.
pub struct Lab {
    _runner: Ended,
    /// Kept open: the runner prints a last line when it ends.
    output: BufReader<ChildStdout>,
    /// What the lab says it made.
    pub ready: Value,
}

impl Lab {
    pub fn start(lab: &Path, arguments: &[&str]) -> anyhow::Result<Lab> {
        let mut runner = Command::new(lab)
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| lab.display().to_string())?;
        let output = BufReader::new(runner.stdout.take().context("no output of the lab")?);
        let mut lab = Lab { _runner: Ended::by(Signal::TERM, runner), output, ready: Value::Null };
        let mut line = String::new();
        lab.output.read_line(&mut line)?;
        lab.ready = serde_json::from_str(&line).unwrap_or_default();
        if lab.ready["ready"] != true {
            bail!("the lab could not `{}` (is this root?): {line}", arguments.join(" "));
        }
        Ok(lab)
    }
}
