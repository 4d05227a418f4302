//! Creates cgroups and never removes them.

use super::spin::name_this_thread;
use anyhow::{Context, Result};
use std::fs;
use std::path::Path;
use std::time::Duration;

/// Far below the kernel's limit of 65,535, so that the node keeps working.
const MOST: u64 = 30_000;

/// The first `count` at once, then one every `every`.
pub fn leak(comm: &str, parent: &Path, prefix: &str, count: u64, every: Duration) -> Result<()> {
    name_this_thread(comm)?;
    for i in 0..MOST {
        let dir = parent.join(format!("{prefix}{i}"));
        fs::create_dir(&dir).with_context(|| dir.display().to_string())?;
        if i >= count {
            std::thread::sleep(every);
        }
    }
    loop {
        std::thread::park();
    }
}
