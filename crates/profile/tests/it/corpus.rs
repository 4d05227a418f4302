//! Runs the fuzz targets on every corpus file and a bounded number of damaged copies.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, UNIX_EPOCH};

use crate::targets::{ALL, Target};

/// A deterministic random generator.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % below.max(1)
    }
}

fn corpus(target: &Target) -> Vec<(PathBuf, Vec<u8>)> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let own = here.join("../../fuzz/corpus").join(target.name);
    let recordings = here.join("testdata").join(target.name);
    let entries = [own, recordings].into_iter().filter_map(|directory| fs::read_dir(directory).ok()).flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    paths.into_iter().map(|path| (path.clone(), fs::read(path).expect("a file"))).collect()
}

/// A damaged copy of `bytes`: flipped bits, special numbers, cuts, duplicated and foreign pieces.
fn damaged(bytes: &[u8], others: &[u8], dice: &mut Dice) -> Vec<u8> {
    let mut copy = bytes.to_vec();
    for _ in 0..=dice.roll(6) {
        let at = dice.roll(copy.len() + 1);
        let length = dice.roll(64).min(copy.len() - at);
        match dice.roll(7) {
            0 if at < copy.len() => copy[at] ^= 1 << dice.roll(8),
            1 if at < copy.len() => copy[at] = [0, 1, 9, 10, 32, 0x7f, 0x80, 0xff][dice.roll(8)],
            2 => copy.truncate(at),
            3 => drop(copy.drain(at..at + length)),
            4 => {
                let piece = copy[at..at + length].to_vec();
                copy.splice(at..at, piece);
            }
            5 if !others.is_empty() => {
                let from = dice.roll(others.len());
                let piece = others[from..].iter().copied().take(dice.roll(200)).collect::<Vec<u8>>();
                copy.splice(at..at + length, piece);
            }
            _ => {
                let special = [0u64, 1, 8, 0xffff, 1 << 31, u64::from(u32::MAX), u64::MAX, 1 << 63][dice.roll(8)];
                for (byte, new) in copy[at..].iter_mut().zip(special.to_le_bytes()) {
                    *byte = new;
                }
            }
        }
    }
    copy
}

/// How much work is done: enough for easy finds, little enough for every test run.
const CUTS: usize = 1500;
const BYTES: usize = 3_000_000;
const LONGEST: Duration = Duration::from_secs(2);

fn replay(name: &str) {
    let target = Target::named(name);
    let files = corpus(target);
    assert!(!files.is_empty(), "no corpus for {name}");
    let all: Vec<u8> = files.iter().flat_map(|(_, bytes)| bytes.iter().copied()).collect();
    let mut dice = Dice(20_261_116);
    let budget = BYTES / files.len();
    let started = Instant::now();
    // `fuzz/run` runs longer, with another seed each time.
    let longer = std::env::var("CORONER_FUZZ_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    let longer = Duration::from_secs(longer.unwrap_or(0));
    if !longer.is_zero() {
        dice.0 ^= UNIX_EPOCH.elapsed().map_or(0, |since| since.as_nanos() as u64);
    }
    for (path, bytes) in &files {
        let run = |bytes: &[u8], what: &str| {
            if let Err(panic) = std::panic::catch_unwind(|| target.check(bytes)) {
                let kept = std::env::temp_dir().join(format!("{name}-failed"));
                fs::write(&kept, bytes).expect("a file");
                eprintln!("{} {what}; these bytes are in {}", path.display(), kept.display());
                std::panic::resume_unwind(panic);
            }
        };
        run(bytes, "as it is");
        let step = bytes.len().div_ceil(CUTS.min(budget / bytes.len().max(1) + 16)).max(1);
        for length in (0..bytes.len()).step_by(step) {
            run(&bytes[..length], "cut");
        }
        let mut spent = 0;
        let until = Instant::now() + longer / files.len() as u32;
        while (spent < budget && started.elapsed() < LONGEST) || Instant::now() < until {
            let copy = damaged(bytes, &all, &mut dice);
            // Each run costs something even without input.
            spent += copy.len() + 4000;
            run(&copy, "damaged");
        }
    }
}

macro_rules! replayed {
    ($($name:ident),*) => {
        $(#[test]
        fn $name() {
            replay(stringify!($name));
        })*

        #[test]
        fn every_target_is_replayed() {
            assert_eq!(ALL.iter().map(|target| target.name).collect::<Vec<_>>(), [$(stringify!($name)),*]);
        }
    };
}

replayed!(perf_script, perf_data, folded, gz, file, perf_map, kallsyms, recording, views);
