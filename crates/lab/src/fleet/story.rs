//! What is wrong with a simulated fleet.

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Story {
    /// An image brings an agent that leaks cgroups: after days of uptime kubelet walks them.
    ZombiesInOneImage,
    /// NICs with one driver reset.
    BadNicDriver,
    /// One kernel stalls, and one zone has most nodes with it.
    KernelRegression,
    /// Jobs of one zone are throttled.
    HotZone,
    /// An agent that several images enable crashloops.
    CrashingAgent,
    /// One kernel on one instance type only.
    KernelOnOneType,
    /// Some nodes are sick, for no common reason.
    Nothing,
}

impl Story {
    pub const ALL: [Story; 7] = [
        Story::ZombiesInOneImage,
        Story::BadNicDriver,
        Story::KernelRegression,
        Story::HotZone,
        Story::CrashingAgent,
        Story::KernelOnOneType,
        Story::Nothing,
    ];

    pub fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// The code of the problem that sick nodes have.
    pub fn condition(self) -> &'static str {
        match self {
            Story::ZombiesInOneImage => "zombie-memcgs",
            Story::BadNicDriver => "nic-reset",
            Story::KernelRegression => "kernel-stall",
            Story::HotZone | Story::Nothing => "cpu-throttled",
            Story::CrashingAgent => "unit-crashloop",
            Story::KernelOnOneType => "interrupt-storm",
        }
    }

    fn golden(self) -> &'static str {
        match self {
            Story::ZombiesInOneImage | Story::BadNicDriver | Story::KernelRegression => "the-incident-5.4.coroner",
            Story::HotZone | Story::Nothing => "cpu-throttle.coroner",
            Story::CrashingAgent => "crashloop.coroner",
            Story::KernelOnOneType => "softirq-storm.coroner",
        }
    }

    /// The problem as coroner told it of a real recording, as a recorder reports it.
    pub fn problem(self, golden: &Path, coroner: Option<&Path>) -> Result<Value> {
        let beside = std::env::current_exe().context("cannot find this program's own path")?.with_file_name("coroner");
        let coroner = coroner.unwrap_or(&beside);
        let file = golden.join(self.golden());
        ensure!(file.is_file(), "{} does not exist; name the directory with --golden", file.display());
        let output = Command::new(coroner).args(["diagnose", "--json", "--from"]).arg(&file).output();
        let output = output.with_context(|| format!("cannot run {}", coroner.display()))?;
        let diagnosis: Value = serde_json::from_slice(&output.stdout)
            .with_context(|| format!("{} diagnosed {} without an answer", coroner.display(), file.display()))?;
        let findings = diagnosis["findings"].as_array().context("no findings")?;
        let finding = findings.iter().find(|finding| finding["code"] == self.condition());
        let finding = finding.with_context(|| format!("{}: no {} in it", file.display(), self.condition()))?;
        Ok(json!({
            "key": finding["key"], "code": finding["code"], "subject_kind": finding["subject"]["kind"],
            "subject": finding["subject"]["name"], "severity": finding["severity"], "certainty": "proven",
            "title": finding["title"], "began_real_ns": null, "ended_real_ns": null,
        }))
    }
}
