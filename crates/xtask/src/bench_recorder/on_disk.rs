//! The size of samples on disk: whole pages of the tables, according to SQLite (dbstat).

use anyhow::{Context, bail};
use std::path::Path;
use std::process::Command;

#[derive(Default)]
pub struct OnDisk {
    pub samples: u64,
    pub sample_bytes: u64,
    pub name_bytes: u64,
    pub all_bytes: u64,
}

impl OnDisk {
    pub fn per_sample(&self) -> f64 {
        self.sample_bytes as f64 / self.samples.max(1) as f64
    }

    /// Stacks, frames, tasks and so on.
    pub fn names_per_sample(&self) -> f64 {
        self.name_bytes as f64 / self.samples.max(1) as f64
    }
}

pub fn look(dir: &Path) -> anyhow::Result<OnDisk> {
    let mut sum = OnDisk::default();
    for entry in std::fs::read_dir(dir)?.flatten() {
        let path = entry.path();
        if path.extension().is_none_or(|extension| extension != "coroner") {
            continue;
        }
        let ask = |sql: &str| -> anyhow::Result<u64> {
            let out = Command::new("sqlite3").arg(&path).arg(sql).output().context("sqlite3")?;
            if !out.status.success() {
                bail!("{}: {}", path.display(), String::from_utf8_lossy(&out.stderr));
            }
            Ok(String::from_utf8(out.stdout)?.trim().parse().unwrap_or(0))
        };
        sum.samples += ask("SELECT sum(rows) FROM profile_sample_chunks")?;
        sum.sample_bytes += ask("SELECT sum(pgsize) FROM dbstat WHERE name LIKE 'profile_sample_chunks%'")?;
        sum.name_bytes += ask(
            "SELECT sum(pgsize) FROM dbstat WHERE name LIKE 'profile_%' AND name NOT LIKE 'profile_sample_chunks%'",
        )?;
        sum.all_bytes += entry.metadata()?.len();
    }
    Ok(sum)
}
