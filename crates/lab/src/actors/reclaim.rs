//! Threads that make the kernel reclaim memory.

use super::join_cgroup;
use super::spin::name_this_thread;
use crate::draw::Draw;
use crate::node;
use anyhow::{Context, Result, bail};
use clap::Args;
use rustix::fs::{Advice, fadvise};
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

/// Asks the kernel to empty a cgroup over and over, like agents that keep a pool of free memory.
#[derive(Debug, Args)]
pub struct Reclaim {
    #[arg(long)]
    pub comm: String,
    #[arg(long)]
    pub core: u32,
    /// A cpu cgroup to join first.
    #[arg(long)]
    pub join: Option<PathBuf>,
    /// The memory cgroup: the kernel visits it and all below it, dead ones included.
    #[arg(long)]
    pub cgroup: PathBuf,
}

pub fn reclaim(reclaim: &Reclaim) -> Result<()> {
    name_this_thread(&reclaim.comm)?;
    if let Some(dir) = &reclaim.join {
        join_cgroup(dir)?;
    }
    node::pin(None, &[reclaim.core])?;
    // v1 and v2; either frees what it can, which may be nothing.
    let ways = [("memory.force_empty", "0"), ("memory.reclaim", "1G")];
    let way = ways.into_iter().find(|(file, _)| reclaim.cgroup.join(file).exists());
    let Some((file, text)) = way else { bail!("{} has no file to ask for reclaim", reclaim.cgroup.display()) };
    let path = reclaim.cgroup.join(file);
    loop {
        match std::fs::write(&path, text) {
            Err(error) if !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                return Err(error).with_context(|| path.display().to_string());
            }
            _ => {}
        }
    }
}

/// Reads random pages of a file that is larger than its cgroup's memory limit.
#[derive(Debug, Args)]
pub struct FileReader {
    #[arg(long)]
    pub comm: String,
    #[arg(long)]
    pub threads: u32,
    #[arg(long)]
    pub file: PathBuf,
    #[arg(long)]
    pub join: PathBuf,
}

pub fn read_here_and_there(reader: &FileReader) -> Result<()> {
    name_this_thread(&reader.comm)?;
    join_cgroup(&reader.join)?;
    let file = File::open(&reader.file).with_context(|| reader.file.display().to_string())?;
    // No readahead.
    fadvise(&file, 0, None, Advice::Random).with_context(|| reader.file.display().to_string())?;
    let page = rustix::param::page_size();
    let pages = file.metadata()?.len() / page as u64;
    let file = Arc::new(file);
    let read_for_ever = move |file: &File, seed: u64| -> Result<()> {
        let (mut draw, mut bytes) = (Draw::new(seed), vec![0; page]);
        loop {
            file.read_exact_at(&mut bytes, draw.number(0, pages.saturating_sub(1)) * page as u64)?;
        }
    };
    for seed in 1..u64::from(reader.threads) {
        let (comm, file) = (reader.comm.clone(), Arc::clone(&file));
        std::thread::Builder::new().spawn(move || {
            if let Err(error) = name_this_thread(&comm).and_then(|()| read_for_ever(&file, seed)) {
                eprintln!("coroner-lab: {comm}: {error:#}");
                std::process::exit(1);
            }
        })?;
    }
    read_for_ever(&file, 0)
}
