//! Dead memory cgroups and who creates them, as rows and back.

use super::rows::{Table, U64, from_json, json, maybe_u64_of, u64_of, word_of};
use super::zombie_chunk;
use crate::zombies::{CgroupChurn, Charged, DeadBelow, Hold, Maker, PinningFile, Zombie, ZombieMethod, ZombieScan};
use rusqlite::{Row, Transaction, params};
use std::borrow::Cow;
use std::collections::HashMap;

/// Most files to store, those that hold most first: each is a row that people can read.
pub const MOST_FILES: usize = 5000;

pub const ZOMBIE_SCANS: Table = Table {
    name: "zombie_scans",
    columns: &[
        "at_ns",
        "took_ns",
        "method",
        "version",
        "tracked",
        "live",
        "dead",
        "leaving",
        "files_unseen",
        "truncated",
        "instead_of_json",
    ],
};

const HELD: [&str; 7] = [
    "file_bytes",
    "swap_backed_bytes",
    "unevictable_bytes",
    "anonymous_bytes",
    "shmem_bytes",
    "kernel_bytes",
    "swap_bytes",
];

pub const ZOMBIES_BELOW: Table = Table {
    name: "zombies_below",
    columns: &["scan_id", "parent", "dead", HELD[0], HELD[1], HELD[2], HELD[3], HELD[4], HELD[5], HELD[6]],
};

pub const ZOMBIE_FILES: Table = Table {
    name: "zombie_files",
    columns: &[
        "scan_id",
        "place",
        "path",
        "seen_by_pid",
        "is_mounted",
        "filesystem",
        "device_major",
        "device_minor",
        "inode",
        "size",
        "is_deleted",
        "bytes",
        "zombies",
    ],
};

/// `held_bytes` and `example` are for people.
pub const ZOMBIE_CHUNKS: Table =
    Table { name: "zombie_chunks", columns: &["scan_id", "rows", "held_bytes", "example", "data"] };

pub fn insert_zombie_scans(tx: &Transaction<'_>, items: &[ZombieScan]) -> rusqlite::Result<()> {
    let mut insert = tx.prepare_cached(&ZOMBIE_SCANS.insert())?;
    for scan in items {
        let ZombieScan {
            at,
            took_ns,
            method,
            version,
            tracked,
            live,
            dead,
            leaving,
            zombies,
            below,
            files,
            holds,
            files_unseen,
            truncated,
            instead_of,
        } = scan;
        let scan_id = insert.insert(params![
            at,
            U64(*took_ns),
            method.as_str(),
            version,
            tracked.map(U64),
            live.map(U64),
            dead.map(U64),
            U64(*leaving),
            files_unseen_with(files_unseen.as_deref(), files.get(MOST_FILES..).unwrap_or_default()),
            truncated,
            json(instead_of)?,
        ])?;
        insert_below(tx, scan_id, below)?;
        let files = &files[..files.len().min(MOST_FILES)];
        insert_files(tx, scan_id, files)?;
        insert_zombies(tx, scan_id, zombies, holds, files.len())?;
    }
    Ok(())
}

/// Adds to a scan's note on missing files that some of its files are not stored.
fn files_unseen_with<'a>(unseen: Option<&'a str>, left_out: &[PinningFile]) -> Option<Cow<'a, str>> {
    if left_out.is_empty() {
        return unseen.map(Cow::Borrowed);
    }
    let bytes = left_out.iter().fold(0u64, |sum, file| sum.saturating_add(file.bytes));
    let told = format!(
        "{} files that hold the least ({bytes} bytes together) were left out: a recording stores at most {MOST_FILES}",
        left_out.len()
    );
    Some(unseen.map_or(told.clone(), |unseen| format!("{unseen}; {told}")).into())
}

fn insert_below(tx: &Transaction<'_>, scan_id: i64, items: &[DeadBelow]) -> rusqlite::Result<()> {
    let mut insert = tx.prepare_cached(&ZOMBIES_BELOW.insert())?;
    for DeadBelow { parent, dead, held } in items {
        let [file, swap_backed, unevictable, anonymous, shmem, kernel, swap] =
            held.as_ref().map_or([None; 7], |held| {
                let Charged { file, swap_backed, unevictable, anonymous, shmem, kernel, swap } = *held;
                [Some(file), Some(swap_backed), Some(unevictable), anonymous, shmem, kernel, swap]
            });
        insert.execute(params![
            scan_id,
            parent,
            dead.map(U64),
            file.map(U64),
            swap_backed.map(U64),
            unevictable.map(U64),
            anonymous.map(U64),
            shmem.map(U64),
            kernel.map(U64),
            swap.map(U64),
        ])?;
    }
    Ok(())
}

fn insert_files(tx: &Transaction<'_>, scan_id: i64, items: &[PinningFile]) -> rusqlite::Result<()> {
    let mut insert = tx.prepare_cached(&ZOMBIE_FILES.insert())?;
    for (place, file) in items.iter().enumerate() {
        let PinningFile { path, seen_by, mounted, filesystem, device, inode, size, deleted, bytes, zombies } = file;
        insert.execute(params![
            scan_id,
            place as i64,
            path,
            seen_by,
            mounted,
            filesystem,
            device.0,
            device.1,
            U64(*inode),
            U64(*size),
            deleted,
            U64(*bytes),
            U64(*zombies),
        ])?;
    }
    Ok(())
}

fn insert_zombies(
    tx: &Transaction<'_>,
    scan_id: i64,
    zombies: &[Zombie],
    holds: &[Hold],
    files: usize,
) -> rusqlite::Result<()> {
    let mut insert = tx.prepare_cached(&ZOMBIE_CHUNKS.insert())?;
    let mut holds: Vec<Hold> = holds.iter().filter(|h| (h.file as usize) < files).copied().collect();
    // A scan has them sorted already.
    holds.sort_by_key(|h| h.zombie);
    let all = zombie_chunk::pinned(zombies, &holds);
    for part in zombie_chunk::parts(&all) {
        let data = zombie_chunk::encode(part).map_err(|e| rusqlite::Error::ToSqlConversionFailure(e.into()))?;
        let held = part.iter().fold(0u64, |sum, p| sum.saturating_add(p.zombie.held.total()));
        let example = part.first().map(|p| &p.zombie.path);
        insert.execute(params![scan_id, part.len() as i64, U64(held), example, data])?;
    }
    Ok(())
}

/// Without what other tables hold.
pub fn zombie_scan(row: &Row<'_>) -> rusqlite::Result<ZombieScan> {
    Ok(ZombieScan {
        at: row.get("at_ns")?,
        took_ns: u64_of(row, "took_ns")?,
        method: word_of(row, "method", &ZombieMethod::ALL.map(|m| (m, m.as_str())))?,
        version: row.get("version")?,
        tracked: maybe_u64_of(row, "tracked")?,
        live: maybe_u64_of(row, "live")?,
        dead: maybe_u64_of(row, "dead")?,
        leaving: u64_of(row, "leaving")?,
        zombies: Vec::new(),
        below: Vec::new(),
        files: Vec::new(),
        holds: Vec::new(),
        files_unseen: row.get("files_unseen")?,
        truncated: row.get("truncated")?,
        instead_of: from_json(&row.get::<_, String>("instead_of_json")?)?,
    })
}

/// Dead ones below a parent, and the id of the scan.
pub fn dead_below(row: &Row<'_>) -> rusqlite::Result<(i64, DeadBelow)> {
    let held = match maybe_u64_of(row, HELD[0])? {
        None => None,
        Some(file) => Some(Charged {
            file,
            swap_backed: u64_of(row, HELD[1])?,
            unevictable: u64_of(row, HELD[2])?,
            anonymous: maybe_u64_of(row, HELD[3])?,
            shmem: maybe_u64_of(row, HELD[4])?,
            kernel: maybe_u64_of(row, HELD[5])?,
            swap: maybe_u64_of(row, HELD[6])?,
        }),
    };
    Ok((row.get("scan_id")?, DeadBelow { parent: row.get("parent")?, dead: maybe_u64_of(row, "dead")?, held }))
}

/// A file with its place in the scan's list, and the id of the scan.
pub fn zombie_file(row: &Row<'_>) -> rusqlite::Result<(i64, (u32, PinningFile))> {
    let file = PinningFile {
        path: row.get("path")?,
        seen_by: row.get("seen_by_pid")?,
        mounted: row.get("is_mounted")?,
        filesystem: row.get("filesystem")?,
        device: (row.get("device_major")?, row.get("device_minor")?),
        inode: u64_of(row, "inode")?,
        size: u64_of(row, "size")?,
        deleted: row.get("is_deleted")?,
        bytes: u64_of(row, "bytes")?,
        zombies: u64_of(row, "zombies")?,
    };
    Ok((row.get("scan_id")?, (row.get("place")?, file)))
}

/// The zombies of one scan, as far as they were read. Holds refer to files by their place in the scan.
#[derive(Debug, Default)]
pub struct Unpacked {
    zombies: Vec<Zombie>,
    holds: Vec<Hold>,
}

impl Unpacked {
    /// Adds those of the next chunk.
    pub fn add(&mut self, zombies: Vec<Zombie>, holds: Vec<Hold>) {
        let before = u32::try_from(self.zombies.len()).unwrap_or(u32::MAX);
        let moved = holds.into_iter().map(|h| Hold { zombie: h.zombie.saturating_add(before), ..h });
        self.holds.extend(moved);
        self.zombies.extend(zombies);
    }

    /// Moves them and the files into their scan. A file whose row is lost takes only its own holds with it.
    pub fn give_to(self, scan: &mut ZombieScan, files: Vec<(u32, PinningFile)>) {
        let places: HashMap<u32, u32> = files.iter().zip(0..).map(|((place, _), now)| (*place, now)).collect();
        scan.files = files.into_iter().map(|(_, file)| file).collect();
        scan.zombies = self.zombies;
        let still_there = |h: Hold| Some(Hold { file: *places.get(&h.file)?, ..h });
        scan.holds = self.holds.into_iter().filter_map(still_there).collect();
    }
}

/// A chunk's zombies and holds, and the id of the scan.
pub fn zombie_chunk(row: &Row<'_>) -> Result<(i64, Vec<Zombie>, Vec<Hold>), String> {
    let read = || -> rusqlite::Result<(i64, u64, &[u8])> {
        Ok((row.get("scan_id")?, u64_of(row, "rows")?, row.get_ref("data")?.as_blob()?))
    };
    let (scan_id, rows, data) = read().map_err(|e| e.to_string())?;
    let (zombies, holds) = zombie_chunk::decode(data, rows).map_err(|e| format!("(scan {scan_id}): the chunk {e}"))?;
    Ok((scan_id, zombies, holds))
}

pub const CGROUP_CHURN: Table = Table {
    name: "cgroup_churn",
    columns: &[
        "from_ns",
        "to_ns",
        "parent",
        "pattern",
        "example",
        "born",
        "removed",
        "freed",
        "maker_pid",
        "maker_comm",
        "maker_via",
        "maker_processes",
        "maker_command",
        "maker_parent_pid",
        "maker_parent_comm",
        "maker_cgroup",
    ],
};

pub fn insert_cgroup_churn(tx: &Transaction<'_>, items: &[CgroupChurn]) -> rusqlite::Result<()> {
    let mut insert = tx.prepare_cached(&CGROUP_CHURN.insert())?;
    for CgroupChurn { from, to, parent, pattern, example, born, removed, freed, maker } in items {
        let maker = maker.as_ref().map(|maker| {
            let Maker { pid, comm, via, processes, command, parent_pid, parent_comm, cgroup } = maker;
            (
                pid,
                comm,
                via.as_ref(),
                command.as_ref(),
                *parent_pid,
                parent_comm.as_ref(),
                cgroup.as_ref(),
                U64(*processes),
            )
        });
        insert.execute(params![
            from,
            to,
            parent,
            pattern,
            example,
            U64(*born),
            U64(*removed),
            U64(*freed),
            maker.map(|m| m.0),
            maker.map(|m| m.1),
            maker.and_then(|m| m.2),
            maker.map(|m| m.7),
            maker.and_then(|m| m.3),
            maker.and_then(|m| m.4),
            maker.and_then(|m| m.5),
            maker.and_then(|m| m.6),
        ])?;
    }
    Ok(())
}

pub fn cgroup_churn(row: &Row<'_>) -> rusqlite::Result<CgroupChurn> {
    let maker = match row.get::<_, Option<u32>>("maker_pid")? {
        None => None,
        Some(pid) => Some(Maker {
            pid,
            comm: row.get("maker_comm")?,
            via: row.get("maker_via")?,
            processes: u64_of(row, "maker_processes")?,
            command: row.get("maker_command")?,
            parent_pid: row.get("maker_parent_pid")?,
            parent_comm: row.get("maker_parent_comm")?,
            cgroup: row.get("maker_cgroup")?,
        }),
    };
    Ok(CgroupChurn {
        from: row.get("from_ns")?,
        to: row.get("to_ns")?,
        parent: row.get("parent")?,
        pattern: row.get("pattern")?,
        example: row.get("example")?,
        born: u64_of(row, "born")?,
        removed: u64_of(row, "removed")?,
        freed: u64_of(row, "freed")?,
        maker,
    })
}
