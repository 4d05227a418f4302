//! Tens of thousands of zombies, packed like the streams of [`chunk`](super::chunk), each with what holds it.
//!
//! In the order of creation, neighbours are alike: serial, id and birth differ little, and paths share a prefix. What holds a zombie
//! is stored with it, so that a lost chunk takes nothing from the others.

use super::chunk::{self, ChunkError, MAX_PAYLOAD, MAX_UNPACKED, put, put_difference};
use crate::time::Time;
use crate::zombies::{Born, Charged, Hold, Zombie};

const COLUMNS: [&str; 18] = [
    "serial",
    "id",
    "shared",
    "length",
    "path",
    "flags",
    "references",
    "file",
    "swap_backed",
    "unevictable",
    "anonymous",
    "shmem",
    "kernel",
    "swap",
    "born",
    "holds",
    "held_by",
    "held_bytes",
];

/// Bits of the column `flags`: a zombie's properties, and which of its columns have a number.
const DIRECTORY_LIVES: u64 = 1;
const REFERENCES: u64 = 1 << 1;
const ANONYMOUS: u64 = 1 << 2;
const SHMEM: u64 = 1 << 3;
const KERNEL: u64 = 1 << 4;
const SWAP: u64 = 1 << 5;
const BORN: u64 = 1 << 6;
const BORN_EXACT: u64 = 1 << 7;
const ALL_FLAGS: u64 = (1 << 8) - 1;

/// Container names are random digits without repetitions: level 3 takes twice the time and makes them no smaller, other names by
/// an eighth.
const ZSTD_LEVEL: i32 = 2;

/// A zombie with its holds.
#[derive(Debug, Clone, Copy)]
pub struct Pinned<'a> {
    pub zombie: &'a Zombie,
    pub holds: &'a [Hold],
}

impl Pinned<'_> {
    /// The most bytes it can take in a payload: ten per number.
    fn weight(&self) -> usize {
        10 * COLUMNS.len() + self.zombie.path.len() + 20 * self.holds.len()
    }
}

/// The zombies of a scan with their holds, which must be sorted. A hold on no zombie is left out.
pub fn pinned<'a>(zombies: &'a [Zombie], mut holds: &'a [Hold]) -> Vec<Pinned<'a>> {
    let mut all = Vec::with_capacity(zombies.len());
    for (place, zombie) in zombies.iter().enumerate() {
        let own = holds.iter().take_while(|h| h.zombie as usize <= place).count();
        let (own, later) = holds.split_at(own);
        all.push(Pinned { zombie, holds: own });
        holds = later;
    }
    all
}

/// Splits them so that each part fits into a chunk, whatever its numbers are.
pub fn parts<'a, 'b>(all: &'b [Pinned<'a>]) -> impl Iterator<Item = &'b [Pinned<'a>]> {
    let mut rest = all;
    std::iter::from_fn(move || {
        let mut weight = 10 * (1 + COLUMNS.len());
        let fitting = rest.iter().take_while(|p| {
            weight += p.weight();
            weight <= MAX_PAYLOAD
        });
        // A single one always fits: a path has at most some tens of levels with names of 255 bytes.
        let (part, later) = rest.split_at(fitting.count().max(1).min(rest.len()));
        rest = later;
        (!part.is_empty()).then_some(part)
    })
}

pub fn encode(part: &[Pinned<'_>]) -> Result<Vec<u8>, ChunkError> {
    chunk::compress(&pack(part), ZSTD_LEVEL)
}

/// Zombies, and the holds on them by their index in this chunk.
pub fn decode(data: &[u8], rows: u64) -> Result<(Vec<Zombie>, Vec<Hold>), ChunkError> {
    let (zombies, holds) = unpack(&chunk::decompress(data)?)?;
    let found = zombies.len() as u64;
    if found == rows { Ok((zombies, holds)) } else { Err(ChunkError::Rows { expected: rows, found }) }
}

fn pack(part: &[Pinned<'_>]) -> Vec<u8> {
    let [mut serials, mut ids, mut shared, mut lengths, mut paths, mut flags] = [const { Vec::new() }; 6];
    let [mut references_told, mut files, mut swap_backeds, mut unevictables] = [const { Vec::new() }; 4];
    let [mut anonymouses, mut shmems, mut kernels, mut swaps, mut borns] = [const { Vec::new() }; 5];
    let [mut counts, mut held_by, mut held_bytes] = [const { Vec::new() }; 3];
    let (mut last_serial, mut last_id, mut last_born, mut last_file) = (0, 0, 0, 0);
    let mut last_path: &[u8] = &[];
    for Pinned { zombie, holds } in part {
        let Zombie { id, path, references, held, born, directory_lives, serial } = zombie;
        let Charged { file, swap_backed, unevictable, anonymous, shmem, kernel, swap } = *held;
        put_difference(&mut serials, *serial, last_serial);
        put_difference(&mut ids, *id, last_id);
        let path = path.as_bytes();
        let alike = path.iter().zip(last_path).take_while(|(a, b)| a == b).count();
        put(&mut shared, alike as u64);
        put(&mut lengths, (path.len() - alike) as u64);
        paths.extend_from_slice(&path[alike..]);
        let mut flag = if *directory_lives { DIRECTORY_LIVES } else { 0 };
        let mut told = |bit, column: &mut Vec<u8>, number: Option<u64>| {
            if let Some(number) = number {
                flag |= bit;
                put(column, number);
            }
        };
        told(REFERENCES, &mut references_told, *references);
        told(ANONYMOUS, &mut anonymouses, anonymous);
        told(SHMEM, &mut shmems, shmem);
        told(KERNEL, &mut kernels, kernel);
        told(SWAP, &mut swaps, swap);
        if let Some(Born { at, exact }) = *born {
            flag |= BORN | if exact { BORN_EXACT } else { 0 };
            put_difference(&mut borns, at.0, last_born);
            last_born = at.0;
        }
        put(&mut flags, flag);
        put(&mut files, file);
        put(&mut swap_backeds, swap_backed);
        put(&mut unevictables, unevictable);
        put(&mut counts, holds.len() as u64);
        for &Hold { zombie: _, file, bytes } in *holds {
            put_difference(&mut held_by, u64::from(file), last_file);
            put(&mut held_bytes, bytes);
            last_file = u64::from(file);
        }
        (last_serial, last_id, last_path) = (*serial, *id, path);
    }
    chunk::join([
        serials,
        ids,
        shared,
        lengths,
        paths,
        flags,
        references_told,
        files,
        swap_backeds,
        unevictables,
        anonymouses,
        shmems,
        kernels,
        swaps,
        borns,
        counts,
        held_by,
        held_bytes,
    ])
}

fn unpack(payload: &[u8]) -> Result<(Vec<Zombie>, Vec<Hold>), ChunkError> {
    let mut columns = chunk::split(payload, COLUMNS)?;
    let (mut zombies, mut holds): (Vec<Zombie>, Vec<Hold>) = (Vec::new(), Vec::new());
    let (mut last_serial, mut last_id, mut last_born, mut last_file) = (0, 0, 0, 0);
    // A few bytes can stand for a long path: count what is built.
    let mut room = MAX_UNPACKED;
    let mut take = |bytes: usize| match room.checked_sub(bytes) {
        Some(left) => {
            room = left;
            Ok(())
        }
        None => Err(ChunkError::TooMuchMemory),
    };
    while !columns[0].is_empty() {
        let [
            serial,
            id,
            shared,
            length,
            path,
            flags,
            references,
            file,
            swap_backed,
            unevictable,
            anonymous,
            shmem,
            kernel,
            swap,
            born,
            count,
            held_by,
            held_bytes,
        ] = &mut columns;
        last_serial = serial.after(last_serial)?;
        last_id = id.after(last_id)?;
        let before = zombies.last().map_or(&[][..], |z| z.path.as_bytes());
        let alike = shared.next()?;
        let alike = usize::try_from(alike).ok().and_then(|n| before.get(..n)).ok_or(ChunkError::Range("shared", alike));
        let (alike, new) = (alike?, path.bytes(length.next()?)?);
        take(size_of::<Zombie>() + alike.len() + new.len())?;
        let path = String::from_utf8([alike, new].concat()).map_err(|_| ChunkError::Text("path"))?;
        let flag = flags.next()?;
        if flag > ALL_FLAGS {
            return Err(ChunkError::Range("flags", flag));
        }
        let told = |bit, column: &mut chunk::Column<'_>| match flag & bit {
            0 => Ok(None),
            _ => column.next().map(Some),
        };
        let held = Charged {
            file: file.next()?,
            swap_backed: swap_backed.next()?,
            unevictable: unevictable.next()?,
            anonymous: told(ANONYMOUS, anonymous)?,
            shmem: told(SHMEM, shmem)?,
            kernel: told(KERNEL, kernel)?,
            swap: told(SWAP, swap)?,
        };
        let born = if flag & BORN == 0 {
            None
        } else {
            last_born = born.after(last_born)?;
            Some(Born { at: Time(last_born), exact: flag & BORN_EXACT != 0 })
        };
        for _ in 0..count.next()? {
            take(size_of::<Hold>())?;
            last_file = held_by.after_u32(last_file)?;
            holds.push(Hold { zombie: zombies.len() as u32, file: last_file, bytes: held_bytes.next()? });
        }
        zombies.push(Zombie {
            id: last_id,
            path,
            references: told(REFERENCES, references)?,
            held,
            born,
            directory_lives: flag & DIRECTORY_LIVES != 0,
            serial: last_serial,
        });
    }
    chunk::all_used(columns)?;
    Ok((zombies, holds))
}

#[cfg(test)]
#[path = "zombie_chunk_tests.rs"]
mod tests;
