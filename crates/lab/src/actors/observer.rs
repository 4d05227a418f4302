//! A process with a lot of memory, and an agent that scans it all the time.

use super::spin::name_this_thread;
use crate::node;
use anyhow::{Context, Result};
use rustix::thread::disable_transparent_huge_pages;
use std::fs::{self, File};
use std::hint::black_box;
use std::io::Read;

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
