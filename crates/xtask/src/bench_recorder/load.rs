//! The load during the measurement.

use crate::lab::terminate;
use anyhow::Context;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// `stress-ng --cpu 2`; ended on drop.
pub struct Stress(Child);

impl Stress {
    pub fn start() -> anyhow::Result<Stress> {
        let stress = Command::new("stress-ng").args(["--cpu", "2", "--quiet"]).stdout(Stdio::null()).spawn();
        let stress = Stress(stress.context("stress-ng")?);
        std::thread::sleep(Duration::from_secs(1));
        Ok(stress)
    }
}

impl Drop for Stress {
    fn drop(&mut self) {
        terminate(&mut self.0);
    }
}
