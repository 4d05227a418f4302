//! Reads the samples of a recording, and the names that are needed.
//!
//! Every byte of the file may be wrong: what cannot be read is an error of its chunk or row, never of the whole file.

use super::super::confine::{MOST_ROWS, Steps, are_tables, fits};
use super::super::open::{self, Opened};
use super::super::rows::U64;
use super::super::{About, RecordingError, chunk, read};
use super::{FrameRow, ProfileClock, SampleRow, SourceRow, StackRow, TaskRow};
use crate::Wall;
use crate::order::Order;
use rusqlite::{Connection, Row, Statement};
use std::collections::HashMap;
use std::ops::{ControlFlow, Range};
use std::path::{Path, PathBuf};

/// These must be tables: a view can be anything, even endless.
const TABLES: [&str; 7] = [
    "profile_source",
    "profile_events",
    "profile_tasks",
    "profile_frames",
    "profile_paths",
    "profile_stack_chunks",
    "profile_sample_chunks",
];

/// A recording, opened for its samples.
pub struct ProfileReader {
    db: Connection,
    steps: Steps,
    path: PathBuf,
    pub about: About,
    /// Parts of the file that cannot be reached, and why.
    pub missing: Vec<(String, String)>,
    /// False if the file has no samples and no tables for them.
    has_tables: bool,
}

/// A chunk of samples as stored, so that other threads can unpack it.
pub struct PackedChunk {
    id: i64,
    rows: u64,
    data: Result<Vec<u8>, String>,
}

impl PackedChunk {
    pub fn unpack(self) -> Chunk {
        let bytes = self.data.as_ref().map_or(0, |data| data.len() as u64);
        let samples = self.data.and_then(|data| chunk::decode(&data, self.rows).map_err(|e| e.to_string()));
        Chunk { id: self.id, bytes, samples }
    }
}

/// A chunk of samples, or why it could not be read.
pub struct Chunk {
    /// Its id in the file.
    pub id: i64,
    /// Its size in the file.
    pub bytes: u64,
    pub samples: Result<Vec<SampleRow>, String>,
}

impl ProfileReader {
    pub fn open(path: &Path) -> Result<ProfileReader, RecordingError> {
        let Opened { db, steps, missing } = open::open(path)?;
        let (about, _) = read::about(&db, path)?;
        db.set_prepared_statement_cache_capacity(16);
        let has_tables = are_tables(&db, &TABLES);
        Ok(ProfileReader { db, steps, path: path.to_owned(), about, missing, has_tables })
    }

    /// For reading more of the file than its samples.
    pub(in super::super) fn into_opened(self) -> Opened {
        Opened { db: self.db, steps: self.steps, missing: self.missing }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether there are samples, or a description of their source.
    pub fn has_profile(&self) -> bool {
        let any = |table| {
            self.db.query_row(&format!("SELECT EXISTS (SELECT 1 FROM {table})"), [], |row| row.get(0)).unwrap_or(true)
        };
        self.has_tables && (any("profile_source") || any("profile_sample_chunks"))
    }

    /// Where the samples come from. `None` if the file does not say, or it cannot be read.
    pub fn source(&self) -> Option<SourceRow> {
        let sql = "SELECT kind, file, host, clock_ns, real_ns, lost, report_json FROM profile_source WHERE id = 1";
        let row = |row: &Row<'_>| {
            let number = |at: usize| row.get::<_, Option<U64>>(at).map(|n| n.map(|n| n.0));
            Ok(SourceRow {
                kind: row.get(0)?,
                file: row.get(1)?,
                host: row.get(2)?,
                clock: number(3)?.zip(number(4)?).map(|(clock_ns, wall)| ProfileClock { clock_ns, wall: Wall(wall) }),
                lost: number(5)?,
                report_json: row.get(6)?,
            })
        };
        if !self.has_tables {
            return None;
        }
        self.db.query_row(sql, [], row).ok()
    }

    /// The time of the first and of the last sample.
    pub fn span(&self) -> Option<(u64, u64)> {
        let sql = "SELECT min(from_ns), max(to_ns) FROM profile_sample_chunks";
        let row = |row: &Row<'_>| Ok(row.get::<_, Option<U64>>(0)?.zip(row.get::<_, Option<U64>>(1)?));
        if !self.has_tables {
            return None;
        }
        self.db.query_row(sql, [], row).ok().flatten().map(|(from, to)| (from.0, to.0))
    }

    /// Number of samples, according to their chunks.
    pub fn count(&self) -> u64 {
        let sql = "SELECT coalesce(sum(rows), 0) FROM profile_sample_chunks";
        if !self.has_tables {
            return 0;
        }
        self.db.query_row(sql, [], |row| row.get::<_, U64>(0)).map_or(0, |count| count.0)
    }

    /// The names of all events.
    pub fn events(&self) -> Vec<String> {
        let read = || -> rusqlite::Result<Vec<String>> {
            let mut select = self.db.prepare("SELECT name FROM profile_events ORDER BY id LIMIT 1000")?;
            select.query_map([], |row| row.get(0))?.collect()
        };
        if self.has_tables { read().unwrap_or_default() } else { Vec::new() }
    }

    /// Passes the chunks that may have samples in `range` (default: all) one by one, oldest first. A chunk with some samples in the
    /// range has its others as well. `wants` decides whether to read each. An error says why the list of chunks ends early.
    pub fn chunks(
        &self,
        range: Option<&Range<u64>>,
        wants: &mut dyn FnMut() -> bool,
        take: &mut dyn FnMut(PackedChunk) -> ControlFlow<()>,
    ) -> Result<(), String> {
        if !self.has_tables {
            return Ok(());
        }
        let mut chunks: Vec<(Option<U64>, i64)> = Vec::new();
        let list = |chunks: &mut Vec<(Option<U64>, i64)>| -> rusqlite::Result<()> {
            // Time beyond 2⁶³ ns is 292 years.
            let bound = |time: u64| i64::try_from(time).unwrap_or(i64::MAX);
            let mut select = match range {
                Some(_) => self.db.prepare_cached(
                    "SELECT from_ns, id FROM profile_sample_chunks WHERE to_ns >= ?1 AND from_ns < ?2",
                )?,
                None => self.db.prepare_cached("SELECT from_ns, id FROM profile_sample_chunks")?,
            };
            let mut rows = match range {
                Some(range) => select.query([bound(range.start), bound(range.end)])?,
                None => select.query([])?,
            };
            while let Some(row) = rows.next()?
                && chunks.len() < MOST_ROWS
            {
                chunks.push((row.get(0)?, row.get(1)?));
            }
            Ok(())
        };
        self.steps.again();
        let listed = list(&mut chunks);
        // Chunks without times come last.
        chunks.order_by_key(|(from, id)| (from.map_or(u64::MAX, |from| from.0), *id));
        chunks.dedup();
        for (_, id) in chunks {
            if wants() && take(self.chunk(id)).is_break() {
                break;
            }
        }
        listed.map_err(|e| format!("table profile_sample_chunks: {e}"))
    }

    fn chunk(&self, id: i64) -> PackedChunk {
        self.steps.again();
        let read = || -> rusqlite::Result<PackedChunk> {
            let mut select = self.db.prepare_cached("SELECT rows, data FROM profile_sample_chunks WHERE id = ?")?;
            select.query_row([id], |row| {
                let (rows, data) = (row.get::<_, U64>(0)?.0, row.get_ref(1)?.as_blob()?);
                Ok(PackedChunk { id, rows, data: Ok(data.to_vec()) })
            })
        };
        read().unwrap_or_else(|e| PackedChunk { id, rows: 0, data: Err(e.to_string()) })
    }

    /// All stacks, chunk by chunk, in the file's order, which is normally that of their numbers; or why a chunk could not be read.
    pub fn stacks(&self, take: &mut dyn FnMut(Result<Vec<StackRow>, String>) -> ControlFlow<()>) {
        if !self.has_tables {
            return;
        }
        let read = |take: &mut dyn FnMut(Result<Vec<StackRow>, String>) -> ControlFlow<()>| -> rusqlite::Result<()> {
            let mut ids: Vec<i64> = Vec::new();
            let mut select = self.db.prepare_cached("SELECT id FROM profile_stack_chunks ORDER BY id")?;
            let mut found = select.query([])?;
            while let Some(row) = found.next()?
                && ids.len() < MOST_ROWS
            {
                ids.push(row.get(0)?);
            }
            ids.dedup();
            let mut select = self.db.prepare_cached("SELECT rows, data FROM profile_stack_chunks WHERE id = ?")?;
            for id in ids {
                self.steps.again();
                let stacks = select.query_row([id], |row| {
                    let (rows, data) = (row.get::<_, U64>(0)?.0, row.get_ref(1)?.as_blob()?);
                    Ok(chunk::decode::<StackRow>(data, rows).map_err(|e| format!("chunk {id} {e}")))
                });
                if take(stacks.unwrap_or_else(|e| Err(format!("chunk {id}: {e}")))).is_break() {
                    break;
                }
            }
            Ok(())
        };
        if let Err(e) = read(take) {
            let _ = take(Err(e.to_string()));
        }
    }

    /// Looks up names.
    pub fn names(&self) -> Names<'_> {
        let prepare = |sql: &str| self.has_tables.then(|| self.db.prepare(sql).ok()).flatten();
        let frames =
            "SELECT symbol, module_path_id, place, is_inlined, build_id, file_offset, id FROM profile_frames WHERE id";
        Names {
            event: prepare("SELECT name FROM profile_events WHERE id = ?"),
            path: prepare("SELECT path FROM profile_paths WHERE id = ?"),
            task: prepare("SELECT pid, tid, comm, cgroup_path_id FROM profile_tasks WHERE id = ?"),
            frame: prepare(&format!("{frames} = ?")),
            frames: prepare(&format!("{frames} BETWEEN ? AND ?")),
            ahead: Ahead::default(),
            steps: &self.steps,
        }
    }
}

/// Looks up names by number. `None`: missing or unreadable.
pub struct Names<'r> {
    event: Option<Statement<'r>>,
    path: Option<Statement<'r>>,
    task: Option<Statement<'r>>,
    frame: Option<Statement<'r>>,
    frames: Option<Statement<'r>>,
    ahead: Ahead,
    steps: &'r Steps,
}

/// Frames read ahead. Numbers follow the order of first use, so a request for one is soon followed by requests for its neighbours,
/// and reading a neighbour costs a fraction of a lookup.
#[derive(Default)]
struct Ahead {
    /// By number, in blocks. `None`: taken already, or missing.
    blocks: HashMap<u32, Vec<Option<FrameRow>>>,
    bytes: usize,
}

impl Ahead {
    const BLOCK: u32 = 64;
    /// Rough limit for all blocks. Beyond it, frames are looked up one by one.
    const MOST_BYTES: usize = 16 << 20;

    fn take(&mut self, number: u32) -> Option<FrameRow> {
        self.blocks.get_mut(&(number / Ahead::BLOCK))?.get_mut((number % Ahead::BLOCK) as usize)?.take()
    }

    /// Reads the block of a frame, as far as possible; what is missing in it is looked up individually.
    fn read(&mut self, select: &mut Option<Statement<'_>>, number: u32) {
        let (Some(select), false) = (select, self.bytes > Ahead::MOST_BYTES) else { return };
        let block = number / Ahead::BLOCK;
        let std::collections::hash_map::Entry::Vacant(entry) = self.blocks.entry(block) else { return };
        let rows = entry.insert(vec![None; Ahead::BLOCK as usize]);
        self.bytes += size_of_val(rows.as_slice());
        let first = block * Ahead::BLOCK;
        let Ok(mut found) = select.query([first, first.saturating_add(Ahead::BLOCK - 1)]) else { return };
        while let Ok(Some(row)) = found.next()
            && self.bytes <= Ahead::MOST_BYTES
        {
            let (Ok(id), Ok(frame)) = (row.get::<_, u32>(6), frame_row(row)) else { continue };
            self.bytes += frame.symbol.len() + frame.place.len() + frame.at.as_ref().map_or(0, |at| at.0.len());
            if let Some(kept) = id.checked_sub(first).and_then(|at| rows.get_mut(at as usize)) {
                *kept = Some(frame);
            }
        }
    }
}

fn frame_row(row: &Row<'_>) -> rusqlite::Result<FrameRow> {
    fits(row)?;
    let at = row.get::<_, Option<String>>(4)?.zip(row.get::<_, Option<U64>>(5)?);
    Ok(FrameRow {
        symbol: row.get(0)?,
        module: row.get(1)?,
        place: row.get(2)?,
        is_inlined: row.get(3)?,
        at: at.map(|(build_id, offset)| (build_id, offset.0)),
    })
}

impl Names<'_> {
    pub fn event(&mut self, number: u32) -> Option<String> {
        look_up(self.steps, &mut self.event, number, |row| row.get(0))
    }

    pub fn path(&mut self, number: u32) -> Option<String> {
        look_up(self.steps, &mut self.path, number, |row| row.get(0))
    }

    pub fn task(&mut self, number: u32) -> Option<TaskRow> {
        look_up(self.steps, &mut self.task, number, |row| {
            Ok(TaskRow { pid: row.get(0)?, tid: row.get(1)?, comm: row.get(2)?, cgroup: row.get(3)? })
        })
    }

    pub fn frame(&mut self, number: u32) -> Option<FrameRow> {
        if let Some(frame) = self.ahead.take(number) {
            return Some(frame);
        }
        self.steps.again();
        self.ahead.read(&mut self.frames, number);
        self.ahead.take(number).or_else(|| look_up(self.steps, &mut self.frame, number, frame_row))
    }
}

fn look_up<T>(
    steps: &Steps,
    select: &mut Option<Statement<'_>>,
    number: u32,
    value: fn(&Row<'_>) -> rusqlite::Result<T>,
) -> Option<T> {
    steps.again();
    select.as_mut()?.query_row([number], |row| fits(row).and_then(|_| value(row))).ok()
}
