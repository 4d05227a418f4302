//! Runs the fuzz target `fleet_ingest` on its corpus and on damaged copies of it; `fuzz/run fleet_ingest` lets this run for longer.

#[path = "targets/fleet_ingest.rs"]
mod fleet_ingest;

use std::path::Path;
use std::time::{Duration, Instant, UNIX_EPOCH};

const RUNS: usize = 5000;

/// A deterministic random generator.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % below.max(1)
    }
}

fn damaged(bytes: &[u8], others: &[u8], dice: &mut Dice) -> Vec<u8> {
    let mut copy = bytes.to_vec();
    for _ in 0..=dice.roll(5) {
        let at = dice.roll(copy.len() + 1);
        let length = dice.roll(64).min(copy.len() - at);
        match dice.roll(5) {
            0 if at < copy.len() => copy[at] ^= 1 << dice.roll(8),
            1 if at < copy.len() => copy[at] = b"\0\n\x1b\"0-9eE{}[],:\xff"[dice.roll(16)],
            2 => copy.truncate(at),
            3 => drop(copy.drain(at..at + length)),
            _ => {
                let from = dice.roll(others.len());
                let piece: Vec<u8> = others[from..].iter().copied().take(dice.roll(200)).collect();
                copy.splice(at..at + length, piece);
            }
        }
    }
    copy
}

#[test]
fn no_body_breaks_the_ingest() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/fleet_ingest");
    let files: Vec<Vec<u8>> =
        std::fs::read_dir(&corpus).unwrap().map(|entry| std::fs::read(entry.unwrap().path()).unwrap()).collect();
    assert!(!files.is_empty(), "no corpus in {}", corpus.display());
    let all = files.concat();
    let longer =
        std::env::var("CORONER_FUZZ_SECONDS").ok().and_then(|seconds| seconds.parse().ok()).map(Duration::from_secs);
    let mut dice = Dice(20_261_118);
    if longer.is_some() {
        dice.0 ^= UNIX_EPOCH.elapsed().map_or(0, |since| since.as_nanos() as u64);
    }
    let run = |bytes: &[u8]| {
        if let Err(panic) = std::panic::catch_unwind(|| fleet_ingest::check(bytes)) {
            let kept = std::env::temp_dir().join("fleet_ingest-failed");
            std::fs::write(&kept, bytes).unwrap();
            eprintln!("these bytes are in {}", kept.display());
            std::panic::resume_unwind(panic);
        }
    };
    files.iter().for_each(|bytes| run(bytes));
    let (started, mut runs) = (Instant::now(), 0);
    while runs < RUNS || longer.is_some_and(|longer| started.elapsed() < longer) {
        let bytes = &files[dice.roll(files.len())];
        run(&damaged(bytes, &all, &mut dice));
        runs += 1;
    }
}
