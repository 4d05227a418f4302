//! A node's bus, through its own busctl: strings as arguments, one string or number as the answer. Not the probes' client, so that a
//! scenario's truth does not come from the code under test.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::process::Command;

/// Seconds. A runner that waits for ever cannot clean up.
const ANSWER: &str = "--timeout=30";

/// The bus of the systemd that is PID 1 of these namespaces.
#[derive(Debug)]
pub struct Bus {
    pub leader: u32,
}

impl Bus {
    /// Calls a method and waits for the answer: a string, a number, or null.
    pub fn call(&self, to: &str, path: &str, interface: &str, member: &str, arguments: &[&str]) -> Result<Value> {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.leader.to_string(), "--all", "busctl", "--system", "--json=short", ANSWER]);
        command.args(["call", to, path, interface, member]);
        if !arguments.is_empty() {
            command.arg("s".repeat(arguments.len())).args(arguments);
        }
        let out = command.output().context("nsenter")?;
        let said = String::from_utf8_lossy(&out.stderr);
        ensure!(out.status.success(), "{member}({}): {}", arguments.join(", "), said.trim());
        let answer: Value = serde_json::from_slice(&out.stdout).unwrap_or_default();
        let first = answer["data"][0].clone();
        // A variant has a type of its own.
        Ok(if first.is_object() { first["data"].clone() } else { first })
    }
}
