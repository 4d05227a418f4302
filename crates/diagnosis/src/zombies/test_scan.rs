//! Scans made by hand.

use crate::rules::test_evidence::END;
use coroner_evidence::{Born, Charged, Hold, PinningFile, Time, Zombie, ZombieMethod, ZombieScan};

/// A scan at the end of the window, with dead cgroups at these paths; each holds a page of page cache that no file explains.
pub fn scan<S: Into<String>>(paths: impl IntoIterator<Item = S>) -> ZombieScan {
    let zombies: Vec<Zombie> = paths.into_iter().enumerate().map(|(i, path)| zombie(i as u64, path.into())).collect();
    ZombieScan {
        at: END,
        took_ns: 1_000_000,
        method: ZombieMethod::BpfTestRun,
        version: 1,
        tracked: Some(zombies.len() as u64 + 51),
        live: Some(50),
        dead: Some(zombies.len() as u64),
        zombies,
        ..ZombieScan::default()
    }
}

pub fn zombie(i: u64, path: String) -> Zombie {
    Zombie {
        id: 1000 + i,
        path,
        references: Some(1),
        held: Charged { file: 4096, ..Charged::default() },
        serial: 1000 + i,
        ..Zombie::default()
    }
}

pub fn file(path: Option<&str>, filesystem: &str) -> PinningFile {
    PinningFile {
        path: path.map(str::to_owned),
        mounted: true,
        filesystem: filesystem.to_owned(),
        device: (8, 1),
        inode: 12,
        size: 4096,
        ..PinningFile::default()
    }
}

/// Lets a file keep these zombies, with this many bytes of each.
pub fn pin(scan: &mut ZombieScan, mut file: PinningFile, zombies: std::ops::Range<usize>, bytes: u64) {
    file.bytes = bytes * zombies.len() as u64;
    file.zombies = zombies.len() as u64;
    let place = scan.files.len() as u32;
    scan.holds.extend(zombies.map(|i| Hold { zombie: i as u32, file: place, bytes }));
    scan.holds.sort_by_key(|hold| hold.zombie);
    scan.files.push(file);
}

pub fn born(at: Time, exact: bool) -> Option<Born> {
    Some(Born { at, exact })
}
