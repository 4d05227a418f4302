//! A process with a lot of memory, and an agent that scans it all the time; an agent that reads the statistics of all cgroups.

use super::spin::name_this_thread;
use crate::node;
use anyhow::{Context, Result};
use rustix::thread::disable_transparent_huge_pages;
use std::fs::{self, File};
use std::hint::black_box;
use std::io::Read;
use std::path::Path;
use std::time::{Duration, Instant};

/// Holds memory in small pages and sleeps.
pub fn hold_memory(comm: &str, bytes: usize) -> Result<()> {
    name_this_thread(comm)?;
    disable_transparent_huge_pages(true).context("cannot ask for small pages")?;
    let mut memory = vec![0u8; bytes];
    for page in memory.chunks_mut(rustix::param::page_size()) {
        page[0] = 1;
    }
    black_box(&memory);
    loop {
        std::thread::park();
    }
}

/// Like an agent that tracks which memory is in use: reads smaps, then clears the referenced bits for the next pass.
pub fn observe(comm: &str, core: u32, target: u32) -> Result<()> {
    name_this_thread(comm)?;
    node::pin(None, &[core])?;
    let (smaps, clear_refs) = (format!("/proc/{target}/smaps"), format!("/proc/{target}/clear_refs"));
    let mut text = Vec::new();
    loop {
        text.clear();
        File::open(&smaps).and_then(|mut file| file.read_to_end(&mut text)).with_context(|| smaps.clone())?;
        fs::write(&clear_refs, "1").with_context(|| clear_refs.clone())?;
    }
}

/// Like kubelet's housekeeping: reads memory.numa_stat and memory.stat of every cgroup. A pass that takes longer than `every` is followed by the
/// next one that is due.
pub fn read_stats(memory: &Path, every: Duration) -> Result<()> {
    loop {
        let began = Instant::now();
        read_below(memory);
        let into = began.elapsed().as_nanos() % every.as_nanos().max(1);
        std::thread::sleep(every - Duration::from_nanos(into as u64));
    }
}

fn read_below(cgroup: &Path) {
    // A cgroup may be removed at any moment.
    for file in ["memory.numa_stat", "memory.stat"] {
        let _ = fs::read(cgroup.join(file));
    }
    for entry in fs::read_dir(cgroup).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            read_below(&entry.path());
        }
    }
}
