//! Threads of any class, weight, place and rhythm that measure what they lose, and processes that start others all the time.

use super::spin::name_this_thread;
use super::{command, join_cgroup};
use crate::draw::Draw;
use crate::hierarchy::Hierarchy;
use crate::loss::{Meter, now_ns};
use crate::node;
use crate::syscalls::{self, die_with_parent};
use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use serde::Serialize;
use std::hint::black_box;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::{Duration, Instant};

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Class {
    Other,
    Batch,
    Idle,
    Fifo,
    RoundRobin,
    Deadline,
}

/// What a turn is spent on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Effort {
    Spin,
    /// Maps memory, touches it, and gives it back.
    Fault,
    /// Reads what the kernel has to compute.
    Read,
    /// Writes into memory that the kernel keeps.
    Write,
}

/// Where and how a process runs.
#[derive(Debug, Clone, Args)]
pub struct Manner {
    #[arg(long)]
    pub comm: String,
    /// Cgroup directories to join first.
    #[arg(long)]
    pub join: Vec<PathBuf>,
    /// All threads may use these, and no others. [default: as inherited]
    #[arg(long, value_delimiter = ',')]
    pub cores: Vec<u32>,
    #[arg(long, value_enum, default_value_t = Class::Other)]
    pub class: Class,
    /// Of a real-time class: its priority; of SCHED_DEADLINE: its percentage of a core.
    #[arg(long, default_value_t = 0)]
    pub priority: u32,
    #[arg(long, default_value_t = 0, allow_hyphen_values = true)]
    pub nice: i32,
}

#[derive(Debug, Args)]
pub struct Load {
    #[command(flatten)]
    pub manner: Manner,
    #[arg(long, default_value_t = 1)]
    pub threads: usize,
    /// CPU time of each turn.
    #[arg(long, default_value_t = 1000)]
    pub turn_us: u64,
    /// A turn begins this long after the last began, or at once if that took longer.
    #[arg(long, default_value_t = 0)]
    pub every_us: u64,
    #[arg(long, value_enum, default_value_t = Effort::Spin)]
    pub effort: Effort,
}

#[derive(Debug, Args)]
pub struct Storm {
    #[command(flatten)]
    pub manner: Manner,
    /// The children's name.
    #[arg(long)]
    pub child: String,
    /// Children at a time.
    #[arg(long)]
    pub at_once: u64,
    /// Each works for this long, at least and at most.
    #[arg(long, num_args = 2)]
    pub ms: Vec<u64>,
}

#[derive(Debug, Args)]
pub struct HandOver {
    #[command(flatten)]
    pub manner: Manner,
    /// Each pair hands one thing to and fro.
    #[arg(long)]
    pub pairs: u64,
    /// How often before it pauses for a few milliseconds.
    #[arg(long)]
    pub times: u64,
}

#[derive(Debug, Args)]
pub struct WriteFile {
    #[arg(long)]
    pub comm: String,
    #[arg(long)]
    pub file: PathBuf,
    #[arg(long)]
    pub every_us: u64,
}

/// The period of a deadline thread.
const DEADLINE_PERIOD: Duration = Duration::from_millis(100);

impl Manner {
    /// For the calling thread and those it starts from now on.
    fn assume(&self) -> Result<()> {
        name_this_thread(&self.comm)?;
        for dir in &self.join {
            join_cgroup(dir)?;
        }
        if !self.cores.is_empty() {
            node::pin(None, &self.cores)?;
        }
        if self.nice != 0 {
            rustix::process::setpriority_process(None, self.nice).context("cannot set the nice value")?;
        }
        let policy = match self.class {
            Class::Other => return Ok(()),
            Class::Deadline => {
                // The kernel refuses a deadline thread that may not use every core.
                node::pin_anywhere(rustix::thread::gettid().as_raw_nonzero().get() as u32)?;
                let runtime = DEADLINE_PERIOD * self.priority / 100;
                return syscalls::become_deadline(runtime, DEADLINE_PERIOD).context("cannot get SCHED_DEADLINE");
            }
            Class::Batch => libc::SCHED_BATCH,
            Class::Idle => libc::SCHED_IDLE,
            Class::Fifo => libc::SCHED_FIFO,
            Class::RoundRobin => libc::SCHED_RR,
        };
        match syscalls::become_class(policy, self.priority as i32) {
            // See `preempt_everyone` of the spinner.
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                join_cgroup(&Hierarchy::with("cpu")?.mount_point)?;
                syscalls::become_class(policy, self.priority as i32)
            }
            other => other,
        }
        .with_context(|| format!("cannot change to {:?}", self.class))
    }
}

pub fn load(load: &Load) -> Result<()> {
    load.manner.assume()?;
    let (turn, every) = (Duration::from_micros(load.turn_us), Duration::from_micros(load.every_us));
    let effort = load.effort;
    for number in 1..load.threads {
        thread::Builder::new().name(load.manner.comm.clone()).spawn(move || {
            if let Err(error) = take_turns(number, turn, every, effort) {
                eprintln!("coroner-lab: a load failed: {error:#}");
                std::process::exit(1);
            }
        })?;
    }
    take_turns(0, turn, every, effort)
}

fn take_turns(number: usize, turn: Duration, every: Duration, effort: Effort) -> Result<()> {
    let (turn, every) = (turn.as_nanos() as u64, every.as_nanos() as u64);
    let kernel_memory = rustix::fs::memfd_create("load", rustix::fs::MemfdFlags::CLOEXEC)?.into();
    let mut meter = Meter::start(number)?;
    let mut due = now_ns();
    loop {
        let done = meter.got_ns() + turn;
        while meter.got_ns() < done {
            exert(effort, &kernel_memory)?;
            meter.account()?;
        }
        due = now_ns().max(due + every);
        meter.sleep_until(due);
    }
}

/// Some microseconds of work.
fn exert(effort: Effort, kernel_memory: &std::fs::File) -> Result<()> {
    match effort {
        Effort::Spin => {
            for i in 0..20_000u64 {
                black_box(i);
            }
        }
        // Large enough for the allocator to map it anew each time.
        Effort::Fault => {
            let mut memory: Vec<u8> = Vec::with_capacity(1 << 20);
            memory.spare_capacity_mut().iter_mut().step_by(4096).for_each(|byte| {
                byte.write(1);
            });
            black_box(&memory);
        }
        Effort::Read => drop(black_box(std::fs::read("/proc/stat")?)),
        Effort::Write => kernel_memory.write_all_at(&[7; 65536], 0)?,
    }
    Ok(())
}

pub fn storm(storm: &Storm) -> Result<()> {
    let [least, most] = storm.ms[..] else { bail!("--ms takes two numbers") };
    storm.manner.assume()?;
    let slots: Vec<_> = (0..storm.at_once)
        .map(|slot| {
            let child = storm.child.clone();
            thread::Builder::new()
                .name(storm.manner.comm.clone())
                .spawn(move || start_children(&child, slot, (least, most)))
        })
        .collect::<std::io::Result<_>>()?;
    for slot in slots {
        match slot.join() {
            Ok(result) => result?,
            Err(_) => bail!("a thread that starts children panicked"),
        }
    }
    Ok(())
}

fn start_children(comm: &str, slot: u64, (least, most): (u64, u64)) -> Result<()> {
    let mut draw = Draw::new(slot);
    loop {
        let mut task = command("batch-task");
        task.args(["--comm", comm, "--ms", &draw.number(least, most.max(least)).to_string()]).stdin(Stdio::null());
        // When the parent is killed, a child that it just forked complains that nobody hears of it.
        task.stderr(Stdio::null());
        die_with_parent(&mut task);
        let status = task.status()?;
        if !status.success() {
            bail!("a child of the storm failed: {status}");
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

/// Threads that wake each other all the time: many switches, each to somebody who waits for nothing but the other.
pub fn hand_over(hand_over: &HandOver) -> Result<()> {
    hand_over.manner.assume()?;
    let (comm, times) = (&hand_over.manner.comm, hand_over.times);
    let mut pairs = Vec::new();
    for _ in 0..hand_over.pairs {
        let ((there, at_other), (back, at_one)) = (sync_channel::<u64>(0), sync_channel::<u64>(0));
        pairs.push(thread::Builder::new().name(comm.clone()).spawn(move || {
            for count in 0.. {
                if there.send(count).is_err() || at_one.recv().is_err() {
                    return;
                }
                if count % times.max(1) == 0 {
                    thread::sleep(Duration::from_millis(2));
                }
            }
        })?);
        thread::Builder::new().name(comm.clone()).spawn(move || {
            while let Ok(count) = at_other.recv() {
                if back.send(count).is_err() {
                    return;
                }
            }
        })?;
    }
    for pair in pairs {
        if pair.join().is_err() {
            bail!("a thread that hands things over panicked");
        }
    }
    Ok(())
}

/// Writes the first page of a file over and over; the write is what it wants.
pub fn write_file(write: &WriteFile) -> Result<()> {
    name_this_thread(&write.comm)?;
    let mut file = open(&write.file)?;
    let page = [7u8; 4096];
    let mut meter = Meter::start(0)?;
    loop {
        file.write_all_at(&page, 0).and_then(|()| file.flush()).context("cannot write")?;
        meter.account()?;
        meter.sleep_until(now_ns() + write.every_us * 1000);
    }
}

fn open(path: &Path) -> Result<std::fs::File> {
    let mut options = std::fs::OpenOptions::new();
    options.create(true).truncate(false).write(true).open(path).with_context(|| path.display().to_string())
}
