//! Writes a recording.

use super::chunk::{self, CounterPoint, Streamed};
use super::profile::{self, ProfileRows, SampleRow, SourceRow, StackRow};
use super::schema::{APPLICATION_ID, CREATE, FORMAT};
use super::sync::{Syncer, copy_log};
use super::{FindingRow, RecordingError, kernel_work_rows, node_rows, rows, unit_rows, wait_rows, zombie_rows};
use crate::counters::{Counters, Series};
use crate::node::Node;
use crate::tasks::ThreadSample;
use crate::{CoreTimes, Evidence};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags, Transaction, TransactionBehavior, params};
use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Chunks of one second, which start with every core's and thread's total, take 2.7 times the bytes per core and 1.7 times per
/// thread; chunks of half a minute save another tenth.
pub const CHUNK_SPAN: Duration = Duration::from_secs(10);
/// 100 looks at 327 cores. Bounds the open chunk in memory, and what a reader must unpack at once.
pub const CHUNK_ROWS: usize = 32_768;
/// Space reserved for closing on a full disk: the last notes and the seal. Sealing copies the log into the file, so it takes as
/// much space again as the log.
const RESERVE: u64 = 512 << 10;
/// The fraction of it that [`Writer::use_reserve`] frees; the rest is for the seal.
const FOR_LAST_WORDS: u64 = 4;
/// How long an append waits for another program that writes into our file. None should.
const PATIENCE: Duration = Duration::from_millis(100);

/// Writes a recording. Once [`Writer::append`] has returned, its data survives kill -9; dropping the writer without
/// [`Writer::finish`] leaves a file that is complete but not sealed.
pub struct Writer {
    path: PathBuf,
    // Before `db`: dropped first, so that our connection is the last to close.
    sync: Syncer,
    db: Folding,
    node: Option<Node>,
    series: HashMap<Series, u64>,
    core_times: OpenChunk<CoreTimes>,
    thread_samples: OpenChunk<ThreadSample>,
    points: OpenChunk<CounterPoint>,
    profile_samples: OpenChunk<SampleRow>,
    profile_stacks: OpenChunk<StackRow>,
    reserve: Option<File>,
}

/// A connection that always leaves a single file if it can: so a file in WAL mode without its log means that the log was lost.
struct Folding(Connection);

impl Drop for Folding {
    fn drop(&mut self) {
        // If a reader is in the way, the log stays.
        let _ = self.0.busy_timeout(Duration::ZERO);
        let _ = self.0.execute_batch("PRAGMA synchronous=FULL");
        let mode = self.0.query_row("PRAGMA journal_mode=DELETE", [], |row| row.get::<_, String>(0));
        if mode.as_deref() != Ok("delete") {
            // If the reader leaves just now, closing would remove the log but leave a file that says it has one.
            let _ = self.0.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true);
        }
    }
}

/// The newest rows of a stream. Each append stores a small chunk; when there are enough, one large chunk replaces them.
struct OpenChunk<T> {
    ids: Vec<i64>,
    items: Vec<T>,
}

impl Writer {
    /// Creates a new file; refuses to overwrite one. Only its owner may read it: it holds the kernel log and everybody's processes.
    pub fn create(path: &Path) -> Result<Writer, RecordingError> {
        let other = |why: String| RecordingError::Other { path: path.to_owned(), why };
        // SQLite gives names like `:memory:` a special meaning.
        let path = std::path::absolute(path).map_err(|e| other(e.to_string()))?;
        for suffix in ["-wal", "-journal"] {
            let beside = beside(&path, suffix);
            if fs::symlink_metadata(&beside).is_ok() && fs::symlink_metadata(&path).is_err() {
                return Err(RecordingError::LeftOver { path: beside });
            }
        }
        match File::options().write(true).create_new(true).mode(0o600).open(&path) {
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => return Err(RecordingError::Exists { path }),
            Err(e) if e.kind() == io::ErrorKind::StorageFull => return Err(RecordingError::DiskFull { path }),
            Err(source) => return Err(RecordingError::Unreadable { path, source }),
        }
        let made = make_tables(&path).map_err(|e| error(&path, "cannot create the tables", e)).and_then(|db| {
            let sync = Syncer::start(&path).map_err(other)?;
            Ok((db, sync))
        });
        match made {
            Ok((db, sync)) => Ok(Writer {
                reserve: reserve_beside(&path),
                path,
                sync,
                db: Folding(db),
                node: None,
                series: HashMap::new(),
                core_times: OpenChunk::new(),
                thread_samples: OpenChunk::new(),
                points: OpenChunk::new(),
                profile_samples: OpenChunk::new(),
                profile_stacks: OpenChunk::new(),
            }),
            Err(e) => {
                // We just created it, and it is empty.
                for suffix in ["", "-wal", "-shm"] {
                    let _ = fs::remove_file(beside(&path, suffix));
                }
                Err(e)
            }
        }
    }

    /// How often the file is synced to the disk (default: every five seconds): bounds what a power cut costs.
    pub fn sync_every(self, every: Duration) -> Writer {
        self.sync.set_every(every);
        self
    }

    /// Frees a part of the reserved space: then an append of a few rows fits on a full disk.
    pub fn use_reserve(&mut self) {
        if let Some(reserve) = &self.reserve {
            let size = reserve.metadata().map_or(0, |m| m.len());
            // If this fails, the next append reports it.
            let _ = reserve.set_len(size - size / FOR_LAST_WORDS);
        }
    }

    /// Stores a fragment: all of it, or nothing if it returns an error. The writer stays usable: once the disk has room again, appends
    /// succeed. Does not wait for the disk to sync, unless the log has grown beyond 4 MiB.
    pub fn append(&mut self, fragment: &Evidence) -> Result<(), RecordingError> {
        self.append_with_samples(fragment, &ProfileRows::default())
    }

    /// The same, with CPU samples and their new names: one commit costs half as much as two.
    pub fn append_with_samples(&mut self, fragment: &Evidence, new: &ProfileRows) -> Result<(), RecordingError> {
        let Writer {
            path,
            sync,
            db,
            node,
            series,
            core_times,
            thread_samples,
            points,
            profile_samples,
            profile_stacks,
            ..
        } = self;
        let stored = sync.append(|| -> Result<_, StoreError> {
            let tx = db.0.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let changed_node = fragment.node.as_ref().filter(|new| node.as_ref() != Some(new));
            insert_rows(&tx, fragment, changed_node)?;
            let (new_points, new_series) = number_points(&tx, &fragment.counters, series)?;
            let core_times = core_times.store(&tx, &fragment.core_times)?;
            let thread_samples = thread_samples.store(&tx, &fragment.thread_samples)?;
            let stored_points = points.store(&tx, &new_points)?;
            profile::insert_names(&tx, new)?;
            let profile = (profile_stacks.store(&tx, &new.stacks)?, profile_samples.store(&tx, &new.samples)?);
            tx.commit()?;
            Ok((changed_node, new_series, core_times, thread_samples, (stored_points, new_points), profile))
        });
        let (changed_node, new_series, stored_times, stored_samples, (stored_points, new_points), (stacks, samples)) =
            stored.map_err(|e| e.of(path, "cannot store evidence"))?;
        // Remembered as stored only now that it is in the file.
        if let Some(changed) = changed_node {
            *node = Some(changed.clone());
        }
        series.extend(new_series);
        core_times.keep(stored_times, &fragment.core_times);
        thread_samples.keep(stored_samples, &fragment.thread_samples);
        points.keep(stored_points, &new_points);
        profile_stacks.keep(stacks, &new.stacks);
        profile_samples.keep(samples, &new.samples);
        Ok(())
    }

    /// Sets where the samples come from; the latest wins.
    pub fn set_profile_source(&mut self, source: &SourceRow) -> Result<(), RecordingError> {
        self.store("cannot store the source of the samples", |tx| profile::replace_source(tx, source))
    }

    /// Stores rows of one kind: all of them, or nothing if it returns an error.
    pub(super) fn store(
        &mut self,
        doing: &str,
        rows: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<()>,
    ) -> Result<(), RecordingError> {
        let Writer { path, sync, db, .. } = self;
        let stored = sync.append(|| -> rusqlite::Result<()> {
            let tx = db.0.transaction_with_behavior(TransactionBehavior::Immediate)?;
            rows(&tx)?;
            tx.commit()
        });
        stored.map_err(|e| error(path, doing, e))
    }

    /// The recording's current size on disk: the file and its log, without the reserved space.
    pub fn bytes(&self) -> u64 {
        let size = |path: &Path| fs::metadata(path).map_or(0, |meta| meta.len());
        size(&self.path) + size(&beside(&self.path, "-wal"))
    }

    /// Seals the file: one file, nothing beside it, synced to the disk.
    pub fn finish(self, findings: &[FindingRow]) -> Result<(), RecordingError> {
        let Writer {
            path,
            sync,
            mut db,
            core_times,
            thread_samples,
            points,
            profile_samples,
            profile_stacks,
            reserve,
            ..
        } = self;
        drop(reserve);
        drop(sync);
        db.0.execute_batch("PRAGMA synchronous=FULL").map_err(|e| error(&path, "cannot seal the recording", e))?;
        // Frees the log's space: on a full disk, the seal needs it.
        let _ = copy_log(&db.0, "TRUNCATE");
        let mut seal = |merge: bool| -> Result<(), StoreError> {
            let tx = db.0.transaction_with_behavior(TransactionBehavior::Immediate)?;
            insert_findings(&tx, findings)?;
            if merge {
                core_times.close(&tx)?;
                thread_samples.close(&tx)?;
                points.close(&tx)?;
                profile_samples.close(&tx)?;
                profile_stacks.close(&tx)?;
            }
            tx.execute("UPDATE meta SET value = 1 WHERE key = 'sealed'", [])?;
            Ok(tx.commit()?)
        };
        // Large chunks take less space; without room to create them, the small ones do as well.
        seal(true).or_else(|_| seal(false)).map_err(|e| e.of(&path, "cannot seal the recording"))?;
        let alone = || -> rusqlite::Result<bool> {
            db.0.busy_timeout(Duration::from_secs(5))?;
            copy_log(&db.0, "TRUNCATE")?;
            db.0.query_row("PRAGMA journal_mode=DELETE", [], |row| Ok(row.get::<_, String>(0)? == "delete"))
        };
        match alone() {
            Ok(true) => {}
            Ok(false) => return Err(RecordingError::NotAlone { path }),
            Err(e) if is_locked(&e) => return Err(RecordingError::NotAlone { path }),
            Err(e) => return Err(error(&path, "cannot seal the recording", e)),
        }
        drop(db);
        forget_pages(&path);
        Ok(())
    }
}

/// Merges the log of a recording whose writer was killed. It stays unsealed: what the writer had in memory is lost.
pub fn fold_log(path: &Path) -> Result<(), RecordingError> {
    let doing = "cannot merge its log (-wal) into it";
    let db = Folding(open_to_write(path).map_err(|e| error(path, doing, e))?);
    db.0.execute_batch("PRAGMA synchronous=FULL").map_err(|e| error(path, doing, e))?;
    copy_log(&db.0, "TRUNCATE").map_err(|e| error(path, doing, e))?;
    let mode: String =
        db.0.query_row("PRAGMA journal_mode=DELETE", [], |row| row.get(0)).map_err(|e| error(path, doing, e))?;
    drop(db);
    forget_pages(path);
    if mode == "delete" { Ok(()) } else { Err(RecordingError::NotAlone { path: path.to_owned() }) }
}

/// Drops cached pages of a file: they would keep our memory cgroup alive after we exit.
fn forget_pages(path: &Path) {
    if let Ok(file) = File::open(path) {
        let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
    }
}

/// The name of a file that SQLite keeps beside a database.
pub fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// An unnamed file in the same directory: it takes space until it is closed, even by kill -9. `None` if the file system lacks such
/// files or has no room.
fn reserve_beside(path: &Path) -> Option<File> {
    use rustix::fs::{FallocateFlags, Mode, OFlags};
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    let file = rustix::fs::open(path.parent()?, flags, Mode::RUSR | Mode::WUSR).ok()?;
    let kept = |size| rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, size).is_ok();
    [RESERVE, RESERVE / 2, RESERVE / 4].into_iter().any(kept).then(|| file.into())
}

pub fn open_to_write(path: &Path) -> rusqlite::Result<Connection> {
    let db = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    db.busy_timeout(PATIENCE)?;
    db.set_prepared_statement_cache_capacity(40);
    // Half a megabyte of cache: we mostly write.
    db.execute_batch("PRAGMA synchronous=OFF; PRAGMA wal_autocheckpoint=0; PRAGMA cache_size=-512;")?;
    Ok(db)
}

/// A version 4 UUID (RFC 9562), from the system call itself: a bare root file system has no /dev/urandom.
fn new_uuid() -> String {
    let mut bytes = [0; 16];
    if rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::NONBLOCK) != Ok(bytes.len()) {
        // The kernel is just booting. Unique enough: process id and time.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
        bytes = (now << 32 | u128::from(std::process::id())).to_be_bytes();
    }
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

fn make_tables(path: &Path) -> rusqlite::Result<Connection> {
    let mut db = open_to_write(path)?;
    let tx = db.transaction()?;
    tx.pragma_update(None, "application_id", APPLICATION_ID)?;
    tx.pragma_update(None, "user_version", FORMAT)?;
    tx.execute_batch(CREATE)?;
    let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as i64);
    let mut insert = tx.prepare("INSERT INTO meta (key, value) VALUES (?, ?)")?;
    insert.execute(params!["format", FORMAT])?;
    insert.execute(params!["uuid", new_uuid()])?;
    insert.execute(params!["coroner_version", env!("CARGO_PKG_VERSION")])?;
    insert.execute(params!["created_real_ns", created])?;
    insert.execute(params!["sealed", 0])?;
    drop(insert);
    tx.commit()?;
    // After the tables, so that they are in the file itself, whatever happens to the log.
    db.query_row("PRAGMA journal_mode=WAL", [], |_| Ok(()))?;
    Ok(db)
}

fn insert_rows(tx: &Transaction<'_>, fragment: &Evidence, changed_node: Option<&Node>) -> rusqlite::Result<()> {
    // Field by field, so that a new one cannot be forgotten. The streams are stored by the caller.
    let Evidence {
        node: _,
        clocks,
        core_times: _,
        processes,
        threads,
        cpusets,
        thread_samples: _,
        observers,
        memory_holders,
        counters: _,
        nics,
        cgroup_mounts,
        cgroup_censuses,
        stat_reads,
        zombie_scans,
        cgroup_churn,
        cgroup_fates,
        kernel_work,
        waits,
        log,
        units,
        unit_files,
        // Recordings are made of running nodes.
        image: _,
        agent_files,
        catalogues,
        baseline,
        unit_log,
        unit_sockets,
        child_exits,
        containers,
        unseen,
        cost,
    } = fragment;
    if let Some(node) = changed_node {
        node_rows::replace(tx, node)?;
        for (key, value) in [("machine_id", &node.machine_id), ("boot_id", &node.boot_id)] {
            tx.execute("REPLACE INTO meta (key, value) VALUES (?, ?)", params![key, value])?;
        }
    }
    rows::insert(tx, clocks)?;
    rows::insert(tx, processes)?;
    rows::insert(tx, threads)?;
    rows::insert(tx, observers)?;
    rows::insert(tx, memory_holders)?;
    unit_rows::insert_cpusets(tx, cpusets)?;
    rows::insert_each(tx, None, nics, |nic, id| rows::insert_below(tx, id, &nic.queues))?;
    rows::insert(tx, cgroup_mounts)?;
    rows::insert_each(tx, None, cgroup_censuses, |census, id| rows::insert_below(tx, id, &census.crowded))?;
    rows::insert(tx, stat_reads)?;
    zombie_rows::insert_zombie_scans(tx, zombie_scans)?;
    rows::insert(tx, cgroup_churn)?;
    rows::insert(tx, cgroup_fates)?;
    kernel_work_rows::insert_kernel_work(tx, kernel_work)?;
    wait_rows::insert_waits(tx, waits)?;
    rows::insert(tx, log)?;
    unit_rows::insert_units(tx, units)?;
    unit_rows::replace_unit_files(tx, unit_files)?;
    unit_rows::replace_agent_files(tx, agent_files)?;
    unit_rows::replace_text_files(tx, unit_rows::CATALOGUE, catalogues)?;
    unit_rows::replace_text_files(tx, unit_rows::BASELINE, baseline.as_slice())?;
    rows::insert(tx, unit_log)?;
    rows::insert(tx, unit_sockets)?;
    rows::insert(tx, child_exits)?;
    rows::insert(tx, containers)?;
    rows::insert_unseen(tx, unseen)?;
    if let Some(cost) = cost {
        rows::replace(tx, cost)?;
    }
    Ok(())
}

fn insert_findings(tx: &Transaction<'_>, findings: &[FindingRow]) -> rusqlite::Result<()> {
    let mut insert = tx.prepare_cached(
        "INSERT INTO findings (code, severity, subject_kind, subject, title, detail, remedy) VALUES (?, ?, ?, ?, ?, ?, ?)",
    )?;
    for FindingRow { code, severity, subject_kind, subject, title, detail, remedy } in findings {
        insert.execute(params![code, severity, subject_kind, subject, title, detail, remedy])?;
    }
    Ok(())
}

type NumberedPoints = (Vec<CounterPoint>, Vec<(Series, u64)>);

/// The points with the numbers of their series; new series are added to the dictionary.
fn number_points(
    tx: &Transaction<'_>,
    counters: &Counters,
    known: &HashMap<Series, u64>,
) -> rusqlite::Result<NumberedPoints> {
    let mut insert = tx.prepare_cached("INSERT INTO series (id, source, subject, name) VALUES (?, ?, ?, ?)")?;
    let (mut numbered, mut new) = (Vec::new(), Vec::new());
    for (series, points) in counters.iter() {
        let number = match known.get(series) {
            Some(&number) => number,
            None => {
                let number = (known.len() + new.len()) as u64;
                insert.execute(params![number as i64, series.source.as_str(), series.subject, series.name])?;
                new.push((series.clone(), number));
                number
            }
        };
        numbered.extend(points.iter().map(|p| CounterPoint { series: number, at: p.at, value: p.value }));
    }
    Ok((numbered, new))
}

/// How an append's rows of a stream were stored.
enum Stored {
    Nothing,
    /// As a small chunk with this id.
    Open(i64),
    /// As large chunks, together with all earlier small ones.
    Closed,
}

impl<T: Streamed> OpenChunk<T> {
    fn new() -> OpenChunk<T> {
        OpenChunk { ids: Vec::new(), items: Vec::new() }
    }

    fn store(&self, tx: &Transaction<'_>, new: &[T]) -> Result<Stored, StoreError> {
        let Some(last) = new.last() else { return Ok(Stored::Nothing) };
        let first = self.items.first().unwrap_or(&new[0]);
        let rows = rows_of(&self.items) + rows_of(new);
        let span = first.at().zip(last.at()).map_or(Duration::ZERO, |(first, last)| last.since(first));
        if rows < CHUNK_ROWS && span < CHUNK_SPAN {
            return Ok(Stored::Open(insert_chunk(tx, new)?));
        }
        self.replace(tx, new)?;
        Ok(Stored::Closed)
    }

    fn keep(&mut self, stored: Stored, new: &[T]) {
        match stored {
            Stored::Nothing => {}
            Stored::Open(id) => {
                self.ids.push(id);
                self.items.extend_from_slice(new);
            }
            Stored::Closed => {
                self.ids.clear();
                self.items.clear();
            }
        }
    }

    fn close(&self, tx: &Transaction<'_>) -> Result<(), StoreError> {
        if self.ids.len() > 1 { self.replace(tx, &[]) } else { Ok(()) }
    }

    /// Stores the small chunks' rows and the new ones as large chunks.
    fn replace(&self, tx: &Transaction<'_>, new: &[T]) -> Result<(), StoreError> {
        let mut delete = tx.prepare_cached(&format!("DELETE FROM {} WHERE id = ?", T::TABLE))?;
        for id in &self.ids {
            delete.execute([id])?;
        }
        let mut all: Vec<T> = Vec::with_capacity(self.items.len() + new.len());
        all.extend_from_slice(&self.items);
        all.extend_from_slice(new);
        let mut rest = all.as_slice();
        while !rest.is_empty() {
            let mut rows = 0;
            let fitting = rest.iter().take_while(|item| {
                rows += item.rows().max(1);
                rows <= CHUNK_ROWS
            });
            let (chunk, later) = rest.split_at(fitting.count().max(1));
            insert_chunk(tx, chunk)?;
            rest = later;
        }
        Ok(())
    }
}

fn rows_of<T: Streamed>(items: &[T]) -> usize {
    items.iter().map(|i| i.rows().max(1)).sum()
}

fn insert_chunk<T: Streamed>(tx: &Transaction<'_>, items: &[T]) -> Result<i64, StoreError> {
    let from = items.iter().filter_map(T::at).min();
    let to = items.iter().filter_map(T::at).max();
    let rows: usize = items.iter().map(T::rows).sum();
    let data = chunk::encode(items)?;
    let mut insert =
        tx.prepare_cached(&format!("INSERT INTO {} (from_ns, to_ns, rows, data) VALUES (?, ?, ?, ?)", T::TABLE))?;
    Ok(insert.insert(params![from, to, rows as i64, data])?)
}

#[derive(thiserror::Error, Debug)]
enum StoreError {
    #[error(transparent)]
    Sqlite(#[from] rusqlite::Error),
    #[error(transparent)]
    Chunk(#[from] chunk::ChunkError),
}

impl StoreError {
    fn of(self, path: &Path, doing: &str) -> RecordingError {
        match self {
            StoreError::Sqlite(e) => error(path, doing, e),
            StoreError::Chunk(e) => {
                RecordingError::Other { path: path.to_owned(), why: format!("{doing}: a chunk {e}") }
            }
        }
    }
}

fn is_locked(e: &rusqlite::Error) -> bool {
    matches!(e.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}

fn error(path: &Path, doing: &str, e: rusqlite::Error) -> RecordingError {
    let path = path.to_owned();
    // The log's index (-shm) grows by one byte per page, which fails with its own error if the disk is full.
    let no_room_for_index = e.sqlite_error().map(|e| e.extended_code) == Some(rusqlite::ffi::SQLITE_IOERR_SHMSIZE);
    if e.sqlite_error_code() == Some(ErrorCode::DiskFull) || no_room_for_index {
        RecordingError::DiskFull { path }
    } else if is_locked(&e) {
        RecordingError::Locked { path }
    } else {
        RecordingError::Other { path, why: format!("{doing}: {e}") }
    }
}
