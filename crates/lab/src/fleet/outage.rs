//! The collector was away: then every node comes back in the same second, each with a connection of its own and all that it kept.
//! Nodes that are told to come later, or get no answer, do as recorders do.

use super::nodes::{Body, Fleet};
use super::send::Sender;
use crate::draw::Draw;
use anyhow::{Context, Result};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::Value;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// As crates/recorder/src/reporter/sender.rs pauses.
const SHORTEST_PAUSE: Duration = Duration::from_secs(2);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);
/// A thread for each node: small stacks.
const STACK: usize = 256 << 10;

/// How a node's request ended.
pub enum Answer {
    Stored,
    /// Not now; it may say when to come back.
    Later(Option<Duration>),
    Refused(String),
}

#[derive(Debug, Default)]
struct Counts {
    stored: AtomicUsize,
    shed: AtomicU64,
    unanswered: AtomicU64,
}

pub fn come_back(fleet: &mut Fleet, problem: &Value, sender: &Sender, now: u64, away: Duration) -> Result<()> {
    raise_open_files()?;
    let minutes = away.as_secs() / 60;
    let mut bodies: Vec<(String, Vec<u8>)> = Vec::new();
    for node in &mut fleet.nodes {
        let mut text = String::new();
        let mut key = None;
        for minute in (0..minutes).rev() {
            if let Some(Body { key: own, text: lines, .. }) = node.minute(problem, now - minute * 60, minute) {
                text.push_str(&lines);
                key = Some(own);
            }
        }
        if let Some(key) = key {
            bodies.push((key, zstd::bulk::compress(text.as_bytes(), 3)?));
        }
    }
    let nodes = bodies.len();
    let (counts, failed) = (Counts::default(), AtomicBool::new(false));
    let (together, began) = (Barrier::new(nodes + 1), Instant::now());
    let start = std::thread::scope(|scope| -> Result<Instant> {
        for (at, (key, packed)) in bodies.iter().enumerate() {
            let (counts, failed, together) = (&counts, &failed, &together);
            let node = move || {
                together.wait();
                until_stored(sender, key, packed, &mut Draw::new(at as u64 + 1), counts, failed);
            };
            // A node that cannot be started would leave the others waiting for it.
            if let Err(error) = std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, node) {
                eprintln!("coroner-lab: cannot start {nodes} threads: {error}");
                std::process::exit(2);
            }
        }
        together.wait();
        let start = Instant::now();
        let mut told = 0;
        while counts.stored.load(Ordering::Relaxed) < nodes && !failed.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(200));
            if start.elapsed().as_secs() >= told + 10 {
                told += 10;
                eprintln!("after {told} s: {} of {nodes} stored", counts.stored.load(Ordering::Relaxed));
            }
            if crate::interrupt::requested() {
                failed.store(true, Ordering::Relaxed);
            }
        }
        Ok(start)
    })?;
    anyhow::ensure!(!failed.load(Ordering::Relaxed), "not every node's report was taken");
    eprintln!(
        "{nodes} nodes came back at once after {minutes} minutes: all stored after {:.1} s; {} answers to come later, {} times no answer ({:.1} s to prepare)",
        start.elapsed().as_secs_f64(),
        counts.shed.load(Ordering::Relaxed),
        counts.unanswered.load(Ordering::Relaxed),
        (start - began).as_secs_f64(),
    );
    Ok(())
}

fn until_stored(sender: &Sender, key: &str, packed: &[u8], draw: &mut Draw, counts: &Counts, failed: &AtomicBool) {
    let mut failures = 0u32;
    while !failed.load(Ordering::Relaxed) {
        let asked = match sender.try_once(packed, key) {
            Ok(Answer::Stored) => {
                counts.stored.fetch_add(1, Ordering::Relaxed);
                return;
            }
            Ok(Answer::Refused(why)) => {
                eprintln!("coroner-lab: a report was refused: {why}");
                failed.store(true, Ordering::Relaxed);
                return;
            }
            Ok(Answer::Later(asked)) => {
                counts.shed.fetch_add(1, Ordering::Relaxed);
                asked
            }
            Err(_) => {
                counts.unanswered.fetch_add(1, Ordering::Relaxed);
                None
            }
        };
        failures += 1;
        let mut chance = || draw.number(0, 1_000_000) as f64 / 1e6;
        let longest = SHORTEST_PAUSE.saturating_mul(1 << failures.min(10)).min(LONGEST_PAUSE);
        let own = SHORTEST_PAUSE + (longest - SHORTEST_PAUSE).mul_f64(chance());
        let pause = asked.map_or(own, |asked| own.max(asked.mul_f64(1.0 + chance())));
        let until = Instant::now() + pause;
        while Instant::now() < until && !failed.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(500).min(until.saturating_duration_since(Instant::now())));
        }
    }
}

/// A socket for each node.
fn raise_open_files() -> Result<()> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })
        .context("cannot raise the limit of open files")
}
