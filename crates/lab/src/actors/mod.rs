//! The processes that make the problems: this binary with the hidden subcommand `actor`, so that the lab needs neither a compiler
//! nor a scripting language. They run until killed, and die with their parent.

mod dir_leak;
mod leak;
pub mod load;
mod net;
mod observer;
mod packets;
mod reclaim;
mod spin;
mod systemd;
mod zombies;

use crate::live::lab_binary;
use anyhow::{Context, Result};
use clap::Subcommand;
use std::ffi::OsString;
use std::net::SocketAddrV4;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

#[derive(Debug, Subcommand)]
pub enum Actor {
    /// Burns user time: one thread per core given, or one thread anywhere.
    Spin {
        #[arg(long)]
        comm: String,
        #[arg(long, value_delimiter = ',')]
        cores: Vec<u32>,
        /// SCHED_FIFO with this priority.
        #[arg(long)]
        fifo: Option<i32>,
        /// A cgroup directory to join first.
        #[arg(long)]
        join: Option<PathBuf>,
    },
    /// Creates and removes memory cgroups, each pinned by a page in a tmpfs.
    Zombies {
        #[arg(long)]
        parent: PathBuf,
        #[arg(long)]
        tmpfs: PathBuf,
        #[arg(long)]
        count: u64,
    },
    /// Creates and removes memory cgroups, each pinned by one page of a shared file.
    Pin(zombies::Pin),
    /// The same much faster, for tens of thousands.
    Leak(leak::Leak),
    /// Asks the kernel to empty a memory cgroup, over and over.
    Reclaim(reclaim::Reclaim),
    /// Reads more of a file than its cgroup may keep in memory.
    Reader(reclaim::FileReader),
    /// One of the short processes of a storm.
    BatchTask {
        #[arg(long)]
        comm: String,
        #[arg(long)]
        ms: u64,
    },
    /// Sends UDP packets through a veth device.
    Flood {
        #[arg(long)]
        netns: PathBuf,
        #[arg(long)]
        device: String,
        #[arg(long)]
        to: SocketAddrV4,
        #[arg(long)]
        rate: u64,
    },
    /// Gives a veth device a NAPI thread and receives.
    Sink {
        #[arg(long)]
        netns: PathBuf,
        #[arg(long)]
        device: String,
        #[arg(long)]
        port: u16,
    },
    /// Sends UDP packets in bursts that the kernel splits.
    Stream {
        #[arg(long)]
        comm: String,
        #[arg(long)]
        netns: PathBuf,
        #[arg(long)]
        to: SocketAddrV4,
        #[arg(long)]
        rate: u64,
    },
    /// Steers a device's packets to one core (RPS) and listens.
    Receive {
        #[arg(long)]
        netns: PathBuf,
        #[arg(long)]
        device: String,
        #[arg(long)]
        port: u16,
        #[arg(long)]
        steer_to: u32,
        #[arg(long)]
        sockets: u32,
    },
    /// Holds memory in small pages.
    HoldMemory {
        #[arg(long)]
        comm: String,
        #[arg(long)]
        bytes: usize,
    },
    /// Reads smaps and clears clear_refs of a process without pause.
    Observe {
        #[arg(long)]
        comm: String,
        #[arg(long)]
        core: u32,
        #[arg(long)]
        target: u32,
    },
    /// Reads the memory statistics of every cgroup, over and over.
    ReadStats {
        /// Where the memory controller (v1) is mounted.
        #[arg(long)]
        memory: PathBuf,
        #[arg(long)]
        every_ms: u64,
    },
    /// Creates cgroups and never removes them.
    LeakCgroups {
        #[arg(long)]
        comm: String,
        #[arg(long)]
        parent: PathBuf,
        #[arg(long)]
        prefix: String,
        #[arg(long)]
        count: u64,
        #[arg(long)]
        every_ms: u64,
    },
    /// Works in turns of any rhythm, class, weight and place, and tells what it lost.
    Load(load::Load),
    /// Starts short processes all the time.
    Storm(load::Storm),
    /// Threads that wake each other all the time.
    HandOver(load::HandOver),
    /// Writes to a file, and tells how long it was kept from it.
    WriteFile(load::WriteFile),
    /// Joins cgroups, then becomes the command.
    Enter {
        #[arg(long)]
        join: Vec<PathBuf>,
        #[arg(last = true)]
        command: Vec<OsString>,
    },
    /// As the first process of new namespaces: mounts a root file system and becomes systemd.
    Systemd {
        #[arg(long)]
        lower: PathBuf,
        #[arg(long)]
        scratch: PathBuf,
        #[arg(long)]
        hostname: String,
        /// A host directory to bind into the node: HOST:PATH.
        #[arg(long = "bind")]
        binds: Vec<String>,
    },
}

impl Actor {
    pub fn perform(self) -> Result<()> {
        match self {
            Actor::Spin { comm, cores, fifo, join } => spin::spin(&comm, &cores, fifo, join.as_deref()),
            Actor::Zombies { parent, tmpfs, count } => zombies::make(&parent, &tmpfs, count),
            Actor::Pin(pin) => zombies::pin(&pin),
            Actor::Leak(leak) => leak::leak(&leak),
            Actor::Reclaim(reclaim) => reclaim::reclaim(&reclaim),
            Actor::Reader(reader) => reclaim::read_here_and_there(&reader),
            Actor::BatchTask { comm, ms } => load::task(&comm, ms),
            Actor::Flood { netns, device, to, rate } => net::flood(&netns, &device, to, rate),
            Actor::Sink { netns, device, port } => net::sink(&netns, &device, port),
            Actor::Stream { comm, netns, to, rate } => packets::stream(&comm, &netns, to, rate),
            Actor::Receive { netns, device, port, steer_to, sockets } => {
                packets::receive(&netns, &device, port, steer_to, sockets)
            }
            Actor::HoldMemory { comm, bytes } => observer::hold_memory(&comm, bytes),
            Actor::Observe { comm, core, target } => observer::observe(&comm, core, target),
            Actor::ReadStats { memory, every_ms } => observer::read_stats(&memory, Duration::from_millis(every_ms)),
            Actor::LeakCgroups { comm, parent, prefix, count, every_ms } => {
                dir_leak::leak(&comm, &parent, &prefix, count, Duration::from_millis(every_ms))
            }
            Actor::Load(load) => load::load(&load),
            Actor::Storm(storm) => load::storm(&storm),
            Actor::HandOver(hand_over) => load::hand_over(&hand_over),
            Actor::WriteFile(write) => load::write_file(&write),
            Actor::Enter { join, command } => enter(&join, &command),
            Actor::Systemd { lower, scratch, hostname, binds } => systemd::boot(&lower, &scratch, &hostname, &binds),
        }
    }
}

/// The command of an actor; start it with [`crate::Child::spawn`].
pub fn command(actor: &str) -> Command {
    let mut command = Command::new(lab_binary());
    command.args(["actor", actor]).stdout(Stdio::null());
    command
}

pub(crate) fn join_cgroup(dir: &Path) -> Result<()> {
    std::fs::write(dir.join("cgroup.procs"), "0").with_context(|| format!("cannot join the cgroup {}", dir.display()))
}

fn enter(join: &[PathBuf], command: &[OsString]) -> Result<()> {
    for dir in join {
        join_cgroup(dir)?;
    }
    let (program, args) = command.split_first().context("no command given")?;
    let error = Command::new(program).args(args).exec();
    Err(error).with_context(|| format!("cannot run {}", program.to_string_lossy()))
}
