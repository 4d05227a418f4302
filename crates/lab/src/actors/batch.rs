//! A batch job: one process after the other, as many at a time as there are cores.

use super::spin::name_this_thread;
use super::{command, join_cgroup};
use crate::draw::Draw;
use crate::syscalls::die_with_parent;
use anyhow::{Result, bail};
use clap::Args;
use std::hint::black_box;
use std::path::PathBuf;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

#[derive(Debug, Args)]
pub struct Batch {
    #[arg(long)]
    pub comm: String,
    /// Processes at a time.
    #[arg(long)]
    pub at_once: u32,
    /// Cgroup directories to join first.
    #[arg(long)]
    pub join: Vec<PathBuf>,
}

/// How long each task lives.
const TASK_MS: (u64, u64) = (50, 300);

pub fn batch(batch: &Batch) -> Result<()> {
    name_this_thread(&batch.comm)?;
    for dir in &batch.join {
        join_cgroup(dir)?;
    }
    let slots: Vec<_> = (0..batch.at_once)
        .map(|slot| {
            let comm = batch.comm.clone();
            thread::spawn(move || one_after_the_other(&comm, slot))
        })
        .collect();
    for slot in slots {
        match slot.join() {
            Ok(result) => result?,
            Err(_) => bail!("a slot of the batch job panicked"),
        }
    }
    Ok(())
}

fn one_after_the_other(comm: &str, slot: u32) -> Result<()> {
    let mut draw = Draw::new(slot.into());
    loop {
        let mut task = command("batch-task");
        task.args(["--comm", comm, "--ms", &draw.number(TASK_MS.0, TASK_MS.1).to_string()]).stdin(Stdio::null());
        die_with_parent(&mut task);
        let status = task.status()?;
        if !status.success() {
            bail!("a task of {comm} failed: {status}");
        }
    }
}

/// Works for this long, then ends.
pub fn task(comm: &str, ms: u64) -> Result<()> {
    name_this_thread(comm)?;
    let end = Instant::now() + Duration::from_millis(ms);
    while Instant::now() < end {
        black_box(());
    }
    Ok(())
}
