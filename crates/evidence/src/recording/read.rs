//! Reads a recording: all of it, or what a window needs.
//!
//! Every byte of the file may be wrong. What cannot be read is left out and reported as an [`Unseen`](crate::Unseen) of the probe
//! [`PROBE`]; everything else is returned.

use super::chunk::{self, CounterPoint, Streamed};
use super::confine::{MOST_PAIRS, MOST_ROWS, Steps, fits, is_table};
use super::open::{self, Opened};
use super::rows::{Columns, Stored, Table, U64};
use super::schema::{APPLICATION_ID, FORMAT};
use super::unit_rows::{self, TextFileRow};
use super::zombie_rows::{self, Unpacked};
use super::{About, Logs, PROBE, Recording, RecordingError, cut, node_rows};
use crate::counters::{Counters, Point, Series, Source};
use crate::order::Order;
use crate::time::{Clocks, Time, Window};
use crate::{CoreTicks, CoreTimes, Evidence, Nic, Node, ThreadKey, ThreadSample, Unit, Unseen, WaitLedger, ZombieScan};
use rusqlite::types::Value;
use rusqlite::{Connection, ErrorCode, OptionalExtension, Row};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

const HOW_TO_SEE: &str = "copy the recording again, with FILE-wal if there is one";

/// Most memory for all rows of a recording. An hour of 192 cores takes this much; a small malicious file could unpack to a
/// thousand times its size.
pub const MAX_BYTES: usize = 512 << 20;

/// A window is extended back to the last look at the threads before it, but by no more than this.
const LOOK_BEFORE: Duration = Duration::from_secs(10);

pub fn read(path: &Path) -> Result<Recording, RecordingError> {
    read_within(path, MAX_BYTES)
}

fn read_within(path: &Path, bytes: usize) -> Result<Recording, RecordingError> {
    Ok(RecordingReader::open(path)?.read(None, &mut Room::of(bytes)))
}

/// An open, readable recording.
pub struct RecordingReader {
    db: Connection,
    steps: Steps,
    path: PathBuf,
    about: About,
    evidence: Evidence,
    /// With their row ids, which their details refer to.
    units: Vec<(i64, Unit)>,
    room: Room,
    /// The time to read; `None`: all.
    window: Option<Window>,
}

/// How many bytes may still be read into memory.
#[derive(Clone, Copy)]
pub struct Room {
    all: usize,
    left: usize,
}

impl Room {
    pub fn of(bytes: usize) -> Room {
        Room { all: bytes, left: bytes }
    }

    fn take(&mut self, bytes: usize) -> Result<(), Bad> {
        let why = || format!("the recording unpacks to more than {} MB; the rest was left out", self.all >> 20);
        self.left = self.left.checked_sub(bytes).ok_or_else(|| Bad::TooMuch(why()))?;
        Ok(())
    }
}

/// Why a row is not read.
enum Bad {
    Row(String),
    /// Stop: neither this row nor any after it.
    TooMuch(String),
}

impl From<rusqlite::Error> for Bad {
    fn from(e: rusqlite::Error) -> Bad {
        match e.sqlite_error_code() {
            Some(ErrorCode::OperationInterrupted) => {
                Bad::TooMuch("reading it took too many steps and was stopped".to_owned())
            }
            _ => Bad::Row(e.to_string()),
        }
    }
}

/// Rows of a table that could not be read.
#[derive(Default)]
struct Damage {
    rows: u64,
    first: Option<String>,
}

impl Damage {
    fn note(&mut self, why: impl FnOnce() -> String) {
        self.rows += 1;
        self.first.get_or_insert_with(why);
    }
}

impl RecordingReader {
    pub fn open(path: &Path) -> Result<RecordingReader, RecordingError> {
        RecordingReader::of(open::open(path)?, path)
    }

    /// The same for an open file.
    pub fn of(Opened { db, steps, missing }: Opened, path: &Path) -> Result<RecordingReader, RecordingError> {
        let (about, damage) = about(&db, path)?;
        let mut reader = RecordingReader {
            db,
            steps,
            path: path.to_owned(),
            about,
            evidence: Evidence::default(),
            units: Vec::new(),
            room: Room::of(0),
            window: None,
        };
        if let Some(e) = damage {
            reader.lost("all or part of table meta".to_owned(), format!("table meta: {e}"));
        }
        if reader.is_only_profile() {
            return Err(RecordingError::OnlyProfile { path: path.to_owned() });
        }
        for (what, why) in missing {
            reader.lost(what, why);
        }
        Ok(reader)
    }

    /// Reads all of it, or what `window` needs: what is in it, and the state when it began.
    pub fn read(mut self, window: Option<Window>, room: &mut Room) -> Recording {
        (self.room, self.window) = (*room, window);
        // First, because this extends the window to a look at the threads.
        self.evidence.thread_samples = self.thread_samples();
        self.evidence.core_times = self.stream::<CoreTimes>(&mut |_| {});
        self.evidence.counters = self.counters();
        self.plain_tables();
        self.evidence.zombie_scans = self.zombie_scans();
        self.evidence.cgroup_churn = self.values();
        self.evidence.cgroup_fates = self.values_if_stored();
        self.what_is_installed_to_run();
        self.evidence.kernel_work = self.values();
        self.evidence.waits = self.wait_ledgers();
        self.evidence.units = self.units.into_iter().map(|(_, unit)| unit).collect();
        if let Some(window) = self.window {
            cut::cut(&mut self.evidence, window);
        }
        *room = self.room;
        Recording { evidence: self.evidence, about: self.about }
    }

    /// Whether nothing was missing so far.
    pub fn is_whole(&self) -> bool {
        self.evidence.unseen.is_empty()
    }

    pub fn about(&self) -> &About {
        &self.about
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn boot_id(&self) -> Option<String> {
        self.db.query_row("SELECT value FROM meta WHERE key = 'boot_id'", [], |row| row.get(0)).ok().flatten()
    }

    /// The latest clock readings.
    pub fn clocks(&self) -> Option<Clocks> {
        let sql = "SELECT at_ns, real_ns, boot_ns FROM clocks ORDER BY id DESC LIMIT 1";
        self.db.query_row(sql, [], Columns::get).ok()
    }

    /// The first and the last look at the cores.
    pub fn looks(&self) -> Option<Window> {
        let sql = "SELECT min(from_ns), max(to_ns) FROM core_time_chunks";
        let ends =
            self.db.query_row(sql, [], |row| Ok((row.get::<_, Option<Time>>(0)?, row.get::<_, Option<Time>>(1)?)));
        let (from, to) = ends.ok()?;
        Some(Window { from: from?, to: to? })
    }

    /// The cores of the first look.
    pub fn first_cores(&self) -> Vec<u32> {
        let sql = "SELECT data FROM core_time_chunks ORDER BY id LIMIT 1";
        let first = self.db.query_row(sql, [], |row| Ok(chunk::first_look(row.get_ref(0)?.as_blob()?)));
        let look = first.ok().and_then(Result::ok).flatten();
        look.map_or_else(Vec::new, |look| look.cores.iter().map(|core| core.core).collect())
    }

    /// Only the node's identity.
    pub fn only_node(mut self) -> Option<Node> {
        let node = self.pairs("node");
        node_rows::node(node).0
    }

    /// Only the network devices, each as last seen.
    pub fn only_nics(mut self) -> Vec<Nic> {
        self.room = Room::of(MAX_BYTES);
        let nics = self.parents(|nic: &mut Nic, queues| nic.queues = queues);
        let mut latest: BTreeMap<(Option<String>, String), Nic> = BTreeMap::new();
        for nic in nics {
            let key = (nic.netns.clone(), nic.name.clone());
            if latest.get(&key).is_none_or(|known| known.at <= nic.at) {
                latest.insert(key, nic);
            }
        }
        latest.into_values().collect()
    }

    /// Only the logs of the kernel and of units.
    pub fn only_logs(mut self) -> Logs {
        self.room = Room::of(MAX_BYTES);
        Logs { log: self.values(), unit_log: self.values() }
    }

    /// Roughly the memory that the streams of this window take.
    pub fn bytes_of(&self, window: Window) -> usize {
        let rows = |table: &str, size: usize| {
            let sql = format!("SELECT coalesce(sum(rows), 0) FROM {table} WHERE to_ns >= ?1 AND from_ns <= ?2");
            let rows = self.db.query_row(&sql, [window.from, window.to], |row| row.get::<_, U64>(0));
            usize::try_from(rows.map_or(0, |n| n.0)).unwrap_or(usize::MAX).saturating_mul(size)
        };
        rows(CoreTimes::TABLE, size_of::<CoreTicks>())
            .saturating_add(rows(ThreadSample::TABLE, size_of::<ThreadSample>()))
            .saturating_add(rows(CounterPoint::TABLE, size_of::<CounterPoint>()))
    }

    fn lost(&mut self, what: String, why: String) {
        let why = format!("{}: {why}", self.path.display());
        self.evidence.unseen(PROBE, what, why, HOW_TO_SEE);
    }

    /// Whether the file holds nothing but CPU samples.
    fn is_only_profile(&self) -> bool {
        let sql = "SELECT EXISTS (SELECT 1 FROM profile_source) AND NOT EXISTS (SELECT 1 FROM node)
                   AND NOT EXISTS (SELECT 1 FROM clocks) AND NOT EXISTS (SELECT 1 FROM core_time_chunks)
                   AND NOT EXISTS (SELECT 1 FROM unseen)";
        self.db.query_row(sql, [], |row| row.get(0)).unwrap_or(false)
    }

    fn plain_tables(&mut self) {
        let node = self.pairs("node");
        let (node, bad) = node_rows::node(node);
        self.evidence.node = node;
        for why in bad {
            self.lost("part of the node's identity".to_owned(), format!("table node: {why}"));
        }
        self.evidence.clocks = self.values();
        self.evidence.processes = self.values();
        self.evidence.threads = self.values();
        self.evidence.observers = self.values_if_stored();
        self.evidence.memory_holders = self.values_if_stored();
        self.evidence.nics = self.parents(|nic, queues| nic.queues = queues);
        self.evidence.cgroup_mounts = self.values();
        self.evidence.cgroup_censuses = self.parents(|census, crowded| census.crowded = crowded);
        self.evidence.stat_reads = self.values();
        self.evidence.log = self.values();
        self.units = self.rows();
        self.evidence.cost = self.values().pop();
        let mut unseen: Vec<Unseen> = self.values();
        if unseen.len() > MOST_PAIRS {
            let why = format!("table unseen: more than {MOST_PAIRS} rows");
            self.lost(format!("{} entries on what could not be seen", unseen.len() - MOST_PAIRS), why);
            unseen.truncate(MOST_PAIRS);
        }
        for unseen in unseen {
            if !self.evidence.unseen.contains(&unseen) {
                self.evidence.unseen.push(unseen);
            }
        }
    }

    fn what_is_installed_to_run(&mut self) {
        let mut details = self.children::<unit_rows::Details>();
        for (id, unit) in &mut self.units {
            for details in details.remove(id).unwrap_or_default() {
                details.give(unit);
            }
        }
        self.evidence.unit_files = self.values();
        self.evidence.agent_files = self.values();
        for TextFileRow { kind, file } in self.values() {
            match kind.as_str() {
                unit_rows::CATALOGUE => self.evidence.catalogues.push(file),
                unit_rows::BASELINE => self.evidence.baseline = Some(file),
                unit_rows::CPUSET => match serde_json::from_str(&file.text) {
                    Ok(cpuset) => self.evidence.cpusets.push(cpuset),
                    Err(why) => self.lost("a cpuset".to_owned(), format!("table text_files: {}: {why}", file.path)),
                },
                _ => {}
            }
        }
        self.evidence.unit_log = self.values();
        self.evidence.unit_sockets = self.values();
        self.evidence.child_exits = self.values();
        self.evidence.containers = self.values();
    }

    /// Reads a (key, value) table.
    fn pairs(&mut self, table: &str) -> HashMap<String, Value> {
        let (pairs, damage) = pairs(&self.db, table);
        if let Some(e) = damage {
            self.lost(format!("all or part of table {table}"), format!("table {table}: {e}"));
        }
        pairs
    }

    fn values<T: Stored>(&mut self) -> Vec<T> {
        self.rows().into_iter().map(|(_, value)| value).collect()
    }

    /// The same of a table that earlier versions did not write: without it, nothing is lost.
    fn values_if_stored<T: Stored>(&mut self) -> Vec<T> {
        let sql = "SELECT count(*) FROM sqlite_schema WHERE name = ?1";
        let stored = self.db.query_row(sql, [T::TABLE], |row| row.get::<_, i64>(0)).unwrap_or(0) > 0;
        if stored { self.values() } else { Vec::new() }
    }

    /// By the id of the row they belong to.
    fn children<T: Stored>(&mut self) -> HashMap<i64, Vec<T>> {
        let parent = T::PARENT.unwrap_or("id");
        let mut children: HashMap<i64, Vec<T>> = HashMap::new();
        for (_, (parent, child)) in self.rows_of(&Table::of::<T>(), |row| Ok((row.get(parent)?, T::get(row)?))) {
            children.entry(parent).or_default().push(child);
        }
        children
    }

    fn parents<T: Stored, C: Stored>(&mut self, give: fn(&mut T, Vec<C>)) -> Vec<T> {
        let mut children = self.children();
        let mut parents = self.rows();
        for (id, parent) in &mut parents {
            give(parent, children.remove(id).unwrap_or_default());
        }
        parents.into_iter().map(|(_, parent)| parent).collect()
    }

    fn rows<T: Stored>(&mut self) -> Vec<(i64, T)> {
        self.rows_of(&Table::of::<T>(), T::get)
    }

    /// All readable rows with their ids, in order; reports the others.
    fn rows_of<T>(&mut self, table: &Table, value: impl Fn(&Row<'_>) -> rusqlite::Result<T>) -> Vec<(i64, T)> {
        let mut damage = Damage::default();
        let mut found = Vec::new();
        match is_table(&self.db, table.name) {
            Ok(()) => {
                let room = &mut self.room;
                let mut bounded = |row: &Row<'_>| {
                    let texts = fits(row)?;
                    let value = value(row)?;
                    room.take(size_of::<(i64, T)>() + texts).map(|()| value)
                };
                self.steps.again();
                scan(&self.db, table, &mut bounded, &mut found, &mut damage);
            }
            Err(why) => damage.note(|| why),
        }
        self.tell(table.name, found.len(), damage);
        found
    }

    fn tell(&mut self, table: &str, read: usize, damage: Damage) {
        if let Some(first) = damage.first {
            let what = format!("part of table {table}: {read} rows could be read, {} or more could not", damage.rows);
            self.lost(what, format!("table {table}: {first}"));
        }
    }

    /// CPU use of threads: every sample in the window, and the state of each thread at its beginning. The window is extended back to
    /// the look at the threads before it, so that everything they consumed since is in it.
    fn thread_samples(&mut self) -> Vec<ThreadSample> {
        let mut before: HashMap<ThreadKey, ThreadSample> = HashMap::new();
        let samples = self.stream::<ThreadSample>(&mut |sample| {
            let latest = before.entry(sample.key).or_insert(sample);
            if sample.at >= latest.at {
                *latest = sample;
            }
        });
        let Some((window, last_look)) = self.window.as_mut().zip(before.values().map(|s| s.at).max()) else {
            return samples;
        };
        window.from = last_look.max(window.from - LOOK_BEFORE);
        // A thread without a sample at that look has not run since its last one.
        let at = window.from;
        let mut stood: Vec<ThreadSample> = before.into_values().map(|sample| ThreadSample { at, ..sample }).collect();
        stood.order_by_key(|sample| sample.key);
        let _ = self.room.take(size_of_val(stood.as_slice()));
        stood.extend(samples);
        stood
    }

    /// All rows of a stream; with a window, those in it, while earlier ones are passed to `before`.
    fn stream<T: Streamed>(&mut self, before: &mut dyn FnMut(T)) -> Vec<T> {
        let table = Table { name: T::TABLE, columns: vec!["from_ns", "to_ns", "rows", "data"] };
        let window = self.window;
        let mut items = Vec::new();
        self.chunks(&table, |row, room| {
            let read = || -> rusqlite::Result<(Time, Time, u64)> {
                Ok((row.get("from_ns")?, row.get("to_ns")?, row.get::<_, U64>("rows")?.0))
            };
            let (from, to, rows) = read()?;
            if let Some(window) = window
                && (from > window.to || (to < window.from && !T::IS_STATE))
            {
                return Ok(());
            }
            let data = row.get_ref("data").and_then(|data| Ok(data.as_blob()?))?;
            let why = |why: String| format!("({from:?} to {to:?} after boot): the chunk {why}");
            let mut unpacked = chunk::decode::<T>(data, rows).map_err(|e| Bad::Row(why(e.to_string())))?;
            if let Some(window) = window {
                let mut within = Vec::with_capacity(unpacked.len());
                for item in unpacked {
                    match item.at() {
                        Some(at) if at < window.from => before(item),
                        Some(at) if at > window.to => {}
                        _ => within.push(item),
                    }
                }
                unpacked = within;
            }
            room.take(unpacked.iter().map(T::bytes).sum())?;
            items.extend(unpacked);
            Ok(())
        });
        items
    }

    /// Unpacks chunks one by one as they are read.
    fn chunks(&mut self, table: &Table, mut unpack: impl FnMut(&Row<'_>, &mut Room) -> Result<(), Bad>) {
        let (mut chunks, mut damage) = (Vec::new(), Damage::default());
        let room = &mut self.room;
        self.steps.again();
        match is_table(&self.db, table.name) {
            Ok(()) => scan(&self.db, table, &mut |row| unpack(row, room), &mut chunks, &mut damage),
            Err(why) => damage.note(|| why),
        }
        self.tell(table.name, chunks.len(), damage);
    }

    fn wait_ledgers(&mut self) -> Vec<WaitLedger> {
        let table = Table::of::<WaitLedger>();
        let named = "SELECT count(*) FROM sqlite_schema WHERE name = ?";
        // Recordings made before there was a ledger lack the table.
        if self.db.query_row(named, [table.name], |row| row.get(0)) == Ok(0) {
            return Vec::new();
        }
        let (mut ledgers, window) = (Vec::new(), self.window);
        self.chunks(&table, |row, room| {
            let (from, to): (Time, Time) = (row.get("from_ns")?, row.get("to_ns")?);
            if window.is_some_and(|window| from > window.to || to < window.from) {
                return Ok(());
            }
            fits(row)?;
            let ledger = WaitLedger::get(row)?;
            room.take(ledger.bytes())?;
            ledgers.push(ledger);
            Ok(())
        });
        ledgers
    }

    fn zombie_scans(&mut self) -> Vec<ZombieScan> {
        let mut scans: Vec<(i64, ZombieScan)> = self.rows();
        if let Some(window) = self.window {
            let named = self.named_scans();
            let dead = |(_, scan): &(i64, ZombieScan)| scan.dead.unwrap_or(0);
            scans = cut::scans(scans, window, |(_, scan)| scan.at, dead, |(id, _)| named.contains(id));
        }
        let wanted: HashSet<i64> = scans.iter().map(|(id, _)| *id).collect();
        let mut zombies: HashMap<i64, Unpacked> = HashMap::new();
        self.chunks(&zombie_rows::zombie_chunks(), |row, room| {
            if row.get("scan_id").is_ok_and(|id| !wanted.contains(&id)) {
                return Ok(());
            }
            let (scan, unpacked, holds) = zombie_rows::zombie_chunk(row).map_err(Bad::Row)?;
            let paths: usize = unpacked.iter().map(|z| z.path.len()).sum();
            room.take(paths + size_of_val(unpacked.as_slice()) + size_of_val(holds.as_slice()))?;
            zombies.entry(scan).or_default().add(unpacked, holds);
            Ok(())
        });
        let mut files = self.children();
        let mut below = self.children();
        for (id, scan) in &mut scans {
            scan.below = below.remove(id).unwrap_or_default();
            zombies.remove(id).unwrap_or_default().give_to(scan, files.remove(id).unwrap_or_default());
        }
        scans.into_iter().map(|(_, scan)| scan).collect()
    }

    /// The scans that name zombies. One that cannot be read is not chosen for its names.
    fn named_scans(&self) -> HashSet<i64> {
        let ids = || -> rusqlite::Result<HashSet<i64>> {
            let mut select = self.db.prepare("SELECT DISTINCT scan_id FROM zombie_chunks")?;
            select.query_map([], |row| row.get(0))?.collect()
        };
        ids().unwrap_or_default()
    }

    fn counters(&mut self) -> Counters {
        let table = Table { name: "series", columns: vec!["source", "subject", "name"] };
        let named = self.rows_of(&table, |row| {
            Ok((row.get::<_, String>("source")?, row.get::<_, String>("subject")?, row.get::<_, String>("name")?))
        });
        let (mut series, mut index, mut damage) = (Vec::new(), HashMap::new(), Damage::default());
        for (id, (source, subject, name)) in named {
            match Source::parse(&source) {
                Some(source) => {
                    index.insert(id as u64, series.len());
                    series.push((Series { source, subject, name }, Vec::new()));
                }
                None => damage.note(|| format!("row {id}: unknown source {source:?}")),
            }
        }
        self.tell("series", series.len(), damage);
        let (mut good, mut damage) = (0, Damage::default());
        // The value of each counter when the window began: it is stored only when it moves.
        let mut before: BTreeMap<u64, CounterPoint> = BTreeMap::new();
        let points = self.stream::<CounterPoint>(&mut |point| {
            let latest = before.entry(point.series).or_insert(point);
            if point.at >= latest.at {
                *latest = point;
            }
        });
        let began = self.window.map(|window| window.from);
        for point in points.iter().filter(|point| Some(point.at) == began) {
            before.remove(&point.series);
        }
        let stood = before.into_values().map(|point| CounterPoint { at: began.unwrap_or(point.at), ..point });
        for CounterPoint { series: id, at, value } in stood.chain(points) {
            match index.get(&id) {
                Some(&i) => {
                    let (_, points): &mut (Series, Vec<Point>) = &mut series[i];
                    points.push(Point { at, value });
                    good += 1;
                }
                None => damage.note(|| format!("a point of series {id}, which is not in table series")),
            }
        }
        self.tell(CounterPoint::TABLE, good, damage);
        Counters::from(series)
    }
}

/// A file's metadata, if it is a readable recording, and what of it is damaged.
pub fn about(db: &Connection, path: &Path) -> Result<(About, Option<String>), RecordingError> {
    let path = path.to_owned();
    let pragma = |name: &str| db.pragma_query_value(None, name, |row| row.get::<_, i32>(0));
    let damaged = |e: rusqlite::Error| RecordingError::Damaged { path: path.clone(), why: e.to_string() };
    if pragma("application_id").map_err(damaged)? != APPLICATION_ID {
        return Err(RecordingError::NotRecording { path });
    }
    let format = pragma("user_version").map_err(damaged)? as u32;
    let (meta, damage) = pairs(db, "meta");
    let text = |key: &str| match meta.get(key) {
        Some(Value::Text(text)) => text.clone(),
        _ => "unknown".to_owned(),
    };
    let made_by = text("coroner_version");
    match format {
        0 => return Err(RecordingError::Damaged { path, why: "it has no format version".to_owned() }),
        1..FORMAT => return Err(RecordingError::Older { path, made_by, format, reads: FORMAT }),
        FORMAT => {}
        _ => return Err(RecordingError::Newer { path, made_by, format, reads: FORMAT }),
    }
    let sealed = meta.get("sealed") == Some(&Value::Integer(1));
    Ok((About { format, uuid: text("uuid"), coroner_version: made_by, sealed }, damage))
}

/// What can be read of a (key, value) table, and the error that stopped it, if any.
fn pairs(db: &Connection, table: &str) -> (HashMap<String, Value>, Option<String>) {
    let mut pairs = HashMap::new();
    let mut read = || -> rusqlite::Result<()> {
        let mut select = db.prepare(&format!("SELECT key, value FROM {table} LIMIT {MOST_PAIRS} + 1"))?;
        let mut found = select.query([])?;
        while let Some(row) = found.next()? {
            fits(row)?;
            pairs.insert(row.get(0)?, row.get(1)?);
        }
        Ok(())
    };
    let damage = match read() {
        Ok(()) if pairs.len() > MOST_PAIRS => Some(format!("more than {MOST_PAIRS} rows; the rest was left out")),
        read => read.err().map(|e| e.to_string()),
    };
    (pairs, damage)
}

/// Reads a table from start to end; if that fails, row by row around the damage.
fn scan<T>(
    db: &Connection,
    table: &Table,
    value: &mut dyn FnMut(&Row<'_>) -> Result<T, Bad>,
    found: &mut Vec<(i64, T)>,
    damage: &mut Damage,
) {
    let select = format!("SELECT id, {} FROM {}", table.columns.join(", "), table.name);
    // The id of the last row that was read or skipped.
    let mut last = -1;
    // Keeps a row, or notes why not. Breaks if reading must stop.
    let mut keep = |id: i64, read: Result<T, Bad>| -> ControlFlow<()> {
        match read {
            Ok(_) if found.len() >= MOST_ROWS => {
                damage.note(|| format!("row {id}: it has more than {MOST_ROWS} rows; the rest was left out"));
                return ControlFlow::Break(());
            }
            Ok(value) => found.push((id, value)),
            Err(Bad::Row(why)) => damage.note(|| format!("row {id}: {why}")),
            Err(Bad::TooMuch(why)) => {
                damage.note(|| format!("row {id}: {why}"));
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    };
    let mut forward = || -> rusqlite::Result<()> {
        let mut select = db.prepare(&format!("{select} ORDER BY id"))?;
        let mut rows = select.query([])?;
        while let Some(row) = rows.next()? {
            let id: i64 = row.get(0)?;
            if id <= last {
                return Err(rusqlite::Error::IntegralValueOutOfRange(0, id));
            }
            last = id;
            if keep(id, value(row)).is_break() {
                return Ok(());
            }
        }
        Ok(())
    };
    let Err(e) = forward() else { return };
    if keep(last, Err(Bad::from(e))).is_break() {
        return;
    }
    // A broken page holds an unknown number of rows: skip it in growing steps.
    let mut step = 1;
    let next = format!("SELECT id FROM {} WHERE id > ? ORDER BY id LIMIT 1", table.name);
    let one = format!("{select} WHERE id = ?");
    while step < 1 << 40 {
        match db.query_row(&next, [last], |row| row.get::<_, i64>(0)).optional() {
            Ok(None) => return,
            Ok(Some(id)) if id > last => {
                let read = db.query_row(&one, [id], |row| Ok(value(row))).unwrap_or_else(|e| Err(Bad::from(e)));
                if keep(id, read).is_break() {
                    return;
                }
                (last, step) = (id, 1);
            }
            _ => {
                last = last.saturating_add(step);
                step *= 2;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Wall;
    use crate::recording::Writer;

    #[test]
    fn a_small_file_that_unpacks_to_too_much_is_read_in_part() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.coroner");
        let look = |i: u64| {
            let cores = (0..4096).map(|core| CoreTicks { core, ..CoreTicks::default() }).collect();
            Evidence { core_times: vec![CoreTimes { at: Time::from_millis(i), cores }], ..Evidence::default() }
        };
        let mut writer = Writer::create(&path).unwrap();
        for i in 0..40 {
            writer.append(&look(i)).unwrap();
        }
        writer.finish(&[]).unwrap();
        assert!(std::fs::metadata(&path).unwrap().len() < 1 << 20);
        let whole = read_within(&path, 64 << 20).unwrap().evidence;
        assert_eq!((whole.core_times.len(), whole.unseen.len()), (40, 0));
        let part = read_within(&path, 8 << 20).unwrap().evidence;
        let bytes: usize = part.core_times.iter().map(Streamed::bytes).sum();
        assert!(!part.core_times.is_empty() && bytes <= 8 << 20, "{bytes}");
        let [told] = part.unseen.as_slice() else { panic!("{:?}", part.unseen) };
        assert!(told.why.contains("more than 8 MB"), "{told:?}");
    }

    #[test]
    fn rows_of_plain_tables_count_towards_the_limit() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.coroner");
        let mut writer = Writer::create(&path).unwrap();
        let clocks = vec![Clocks { at: Time(1), wall: Wall(2), boot_ns: 3 }; 1000];
        writer.append(&Evidence { clocks, ..Evidence::default() }).unwrap();
        writer.finish(&[]).unwrap();
        let part = read_within(&path, 16_000).unwrap().evidence;
        assert!((100..1000).contains(&part.clocks.len()), "{}", part.clocks.len());
        assert!(part.unseen[0].what.contains("clocks"), "{:?}", part.unseen);
    }
    #[test]
    fn zombie_paths_with_a_common_prefix_count_in_full() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.coroner");
        let deep = "/some-parent".repeat(300);
        let held = crate::Charged::default();
        let zombie = |i: u64| {
            let path = format!("{deep}/{i}");
            crate::Zombie { id: i, path, references: None, held, born: None, directory_lives: false, serial: i }
        };
        let scan = ZombieScan {
            at: Time(1),
            took_ns: 1,
            method: crate::ZombieMethod::BpfTestRun,
            version: 2,
            dead: Some(10_000),
            zombies: (0..10_000).map(zombie).collect(),
            ..ZombieScan::default()
        };
        let mut writer = Writer::create(&path).unwrap();
        writer.append(&Evidence { zombie_scans: vec![scan.clone()], ..Evidence::default() }).unwrap();
        writer.finish(&[]).unwrap();
        assert!(std::fs::metadata(&path).unwrap().len() < 1 << 20);
        assert!(read_within(&path, 64 << 20).unwrap().evidence.zombie_scans == [scan]);
        let part = read_within(&path, 20 << 20).unwrap().evidence;
        let [scan] = part.zombie_scans.as_slice() else { panic!() };
        assert!((2000..5600).contains(&scan.zombies.len()), "{}", scan.zombies.len());
        assert!(part.unseen[0].why.contains("more than 20 MB"), "{:?}", part.unseen);
    }
}
