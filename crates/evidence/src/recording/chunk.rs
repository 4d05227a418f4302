//! Packs the dense streams: rows become columns of differences, differences become varints, zstd does the rest.
//!
//! Each chunk is self-contained, so that any one can be lost or read alone. Its payload, before zstd, is: the number of columns,
//! then each column as its length in bytes and its numbers, all LEB128 varints. Differences are modulo 2⁶⁴ and zigzagged, so
//! every value survives. A decoder takes any bytes: it never allocates more than a small multiple of [`MAX_PAYLOAD`] and returns
//! an error if something does not fit.

use crate::cores::{CoreTicks, CoreTimes, MAX_CORES};
use crate::tasks::{SchedTimes, ThreadKey, ThreadSample};
use crate::time::Time;
use std::cell::RefCell;
use std::collections::HashMap;
use std::io::{self, Read};

/// Most bytes a chunk may unpack to. The largest that a writer makes, 32,768 thread samples of random numbers, takes 5 MB.
pub const MAX_PAYLOAD: usize = 8 << 20;
/// Most memory for a chunk's values, where few bytes could stand for long values.
pub const MAX_UNPACKED: usize = 4 * MAX_PAYLOAD;

/// Level 9 makes core times 6 % smaller but takes 1.7 times the CPU time of a whole append; level 1 saves a fifth of it.
const ZSTD_LEVEL: i32 = 3;

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChunkError {
    #[error("not zstd data: {0}")]
    Zstd(String),
    #[error("unpacks to more than {MAX_PAYLOAD} bytes")]
    TooLarge,
    #[error("takes more than {MAX_UNPACKED} bytes of memory")]
    TooMuchMemory,
    #[error("column {0}: expected a number")]
    Number(&'static str),
    #[error("column {0} is missing")]
    Column(&'static str),
    #[error("column {0}: {1} is out of range")]
    Range(&'static str, u64),
    #[error("column {0} has more numbers than there are rows")]
    Surplus(&'static str),
    #[error("column {0}: the text is not UTF-8 or too short")]
    Text(&'static str),
    #[error("holds {found} rows, expected {expected}")]
    Rows { expected: u64, found: u64 },
}

/// An item of a dense stream.
pub trait Streamed: Clone {
    const TABLE: &'static str;
    /// Whether it is recorded only when it changes, so that its current state must be looked up in the past.
    const IS_STATE: bool = false;
    /// `None` if it has no time.
    fn at(&self) -> Option<Time>;
    /// Number of rows it takes in the packed columns.
    fn rows(&self) -> usize;
    /// Its size in memory.
    fn bytes(&self) -> usize {
        size_of::<Self>()
    }
    fn pack(items: &[Self]) -> Vec<u8>;
    fn unpack(payload: &[u8]) -> Result<Vec<Self>, ChunkError>;
}

/// A point of a counter, with the number of its series.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CounterPoint {
    pub series: u64,
    pub at: Time,
    pub value: u64,
}

pub fn encode<T: Streamed>(items: &[T]) -> Result<Vec<u8>, ChunkError> {
    compress(&T::pack(items), ZSTD_LEVEL)
}

pub fn compress(payload: &[u8], level: i32) -> Result<Vec<u8>, ChunkError> {
    if payload.len() > MAX_PAYLOAD {
        return Err(ChunkError::TooLarge);
    }
    let compressed = COMPRESSOR.with_borrow_mut(|kept| {
        let compressor = match kept {
            Some(compressor) => compressor,
            None => kept.insert(zstd::bulk::Compressor::new(level)?),
        };
        compressor.set_compression_level(level)?;
        let compressed = compressor.compress(payload);
        // After a large one it would keep megabytes for the next small ones.
        if payload.len() > MOST_KEPT || compressed.is_err() {
            *kept = None;
        }
        compressed
    });
    compressed.map_err(|e: io::Error| ChunkError::Zstd(e.to_string()))
}

/// The compressor is kept up to this size: enough for a recorder's seconds.
const MOST_KEPT: usize = 256 << 10;

thread_local! {
    /// Creating one for each of a few small chunks a second costs more than compressing them.
    static COMPRESSOR: RefCell<Option<zstd::bulk::Compressor<'static>>> = const { RefCell::new(None) };
    static DECOMPRESSOR: RefCell<Option<zstd::bulk::Decompressor<'static>>> = const { RefCell::new(None) };
}

pub fn decode<T: Streamed>(data: &[u8], rows: u64) -> Result<Vec<T>, ChunkError> {
    let items = T::unpack(&decompress(data)?)?;
    let found = items.iter().map(|i| i.rows() as u64).sum();
    if found == rows { Ok(items) } else { Err(ChunkError::Rows { expected: rows, found }) }
}

pub fn decompress(data: &[u8]) -> Result<Vec<u8>, ChunkError> {
    decompress_at_once(data).map_or_else(|| decompress_in_steps(data), Ok)
}

/// As our writers make them: one frame that states its size. Several times as fast.
fn decompress_at_once(data: &[u8]) -> Option<Vec<u8>> {
    let claimed = zstd::zstd_safe::get_frame_content_size(data).ok().flatten()?;
    let claimed = usize::try_from(claimed).ok().filter(|claimed| *claimed <= MAX_PAYLOAD)?;
    DECOMPRESSOR.with_borrow_mut(|kept| {
        let decompressor = match kept {
            Some(decompressor) => decompressor,
            None => kept.insert(zstd::bulk::Decompressor::new().ok()?),
        };
        decompressor.decompress(data, claimed).ok()
    })
}

/// Any other data.
fn decompress_in_steps(data: &[u8]) -> Result<Vec<u8>, ChunkError> {
    // Streamed, so that memory grows with the data and not with what a header claims.
    let unzip = || -> io::Result<Vec<u8>> {
        let mut decoder = zstd::stream::read::Decoder::with_buffer(data)?;
        decoder.window_log_max(MAX_PAYLOAD.ilog2())?;
        let mut payload = Vec::new();
        decoder.take(MAX_PAYLOAD as u64 + 1).read_to_end(&mut payload)?;
        Ok(payload)
    };
    let payload = unzip().map_err(|e| ChunkError::Zstd(e.to_string()))?;
    if payload.len() > MAX_PAYLOAD { Err(ChunkError::TooLarge) } else { Ok(payload) }
}

pub fn put(column: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        column.push(value as u8 | 0x80);
        value >>= 7;
    }
    column.push(value as u8);
}

pub fn put_difference(column: &mut Vec<u8>, value: u64, before: u64) {
    let signed = value.wrapping_sub(before) as i64;
    put(column, ((signed << 1) ^ (signed >> 63)) as u64);
}

fn take(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        let bits = u64::from(byte & 0x7f);
        // The tenth byte holds only one bit.
        if shift == 63 && bits > 1 {
            return None;
        }
        value |= bits << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

pub fn join<const N: usize>(columns: [Vec<u8>; N]) -> Vec<u8> {
    let mut payload = Vec::with_capacity(columns.iter().map(|c| c.len() + 4).sum());
    put(&mut payload, N as u64);
    for column in columns {
        put(&mut payload, column.len() as u64);
        payload.extend_from_slice(&column);
    }
    payload
}

/// Columns beyond those named here come from a newer coroner and are ignored.
pub fn split<'a, const N: usize>(
    mut payload: &'a [u8],
    names: [&'static str; N],
) -> Result<[Column<'a>; N], ChunkError> {
    let present = take(&mut payload).ok_or(ChunkError::Number("count"))?;
    let mut columns = names.map(|name| Column { name, rest: &[] });
    for (i, column) in columns.iter_mut().enumerate() {
        let missing = ChunkError::Column(column.name);
        if i as u64 >= present {
            return Err(missing);
        }
        let length = take(&mut payload).and_then(|l| usize::try_from(l).ok());
        match length.and_then(|l| payload.split_at_checked(l)) {
            Some((column_bytes, rest)) => (column.rest, payload) = (column_bytes, rest),
            None => return Err(missing),
        }
    }
    Ok(columns)
}

#[derive(Clone)]
pub struct Column<'a> {
    name: &'static str,
    rest: &'a [u8],
}

impl<'a> Column<'a> {
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    #[inline]
    pub fn next(&mut self) -> Result<u64, ChunkError> {
        // Nearly all numbers are small.
        if let Some((&byte, rest)) = self.rest.split_first()
            && byte < 0x80
        {
            self.rest = rest;
            return Ok(u64::from(byte));
        }
        take(&mut self.rest).ok_or(ChunkError::Number(self.name))
    }

    pub fn after(&mut self, before: u64) -> Result<u64, ChunkError> {
        let zigzag = self.next()?;
        Ok(before.wrapping_add((zigzag >> 1) ^ (zigzag & 1).wrapping_neg()))
    }

    pub fn after_u32(&mut self, before: u32) -> Result<u32, ChunkError> {
        let value = self.after(u64::from(before))?;
        u32::try_from(value).map_err(|_| ChunkError::Range(self.name, value))
    }

    /// Text is stored in a column as it is; another column has its length.
    pub fn bytes(&mut self, length: u64) -> Result<&'a [u8], ChunkError> {
        let split = usize::try_from(length).ok().and_then(|l| self.rest.split_at_checked(l));
        let (bytes, rest) = split.ok_or(ChunkError::Text(self.name))?;
        self.rest = rest;
        Ok(bytes)
    }
}

pub fn all_used<const N: usize>(columns: [Column<'_>; N]) -> Result<(), ChunkError> {
    match columns.iter().find(|c| !c.is_empty()) {
        Some(column) => Err(ChunkError::Surplus(column.name)),
        None => Ok(()),
    }
}

/// The columns of a core. Idle time is stored as the sum of all ticks: that grows at the same pace on every core, while idle time
/// would repeat what the other columns say.
fn ticks_of(c: &CoreTicks) -> [u64; 8] {
    let all = [c.user, c.nice, c.system, c.idle, c.iowait, c.irq, c.softirq, c.steal];
    let sum = all.iter().fold(0, |sum: u64, ticks| sum.wrapping_add(*ticks));
    [c.user, c.nice, c.system, sum, c.iowait, c.irq, c.softirq, c.steal]
}

fn core_ticks(core: u32, [user, nice, system, sum, iowait, irq, softirq, steal]: [u64; 8]) -> CoreTicks {
    let others = [user, nice, system, iowait, irq, softirq, steal];
    let idle = others.iter().fold(sum, |rest, ticks| rest.wrapping_sub(*ticks));
    CoreTicks { core, user, nice, system, idle, iowait, irq, softirq, steal }
}

/// Each core is stored as the difference to the same place in the look before: as long as no core comes or goes, its number costs
/// nothing and its ticks are small.
impl Streamed for CoreTimes {
    const TABLE: &'static str = "core_time_chunks";

    fn at(&self) -> Option<Time> {
        Some(self.at)
    }

    fn rows(&self) -> usize {
        self.cores.len()
    }

    fn bytes(&self) -> usize {
        size_of::<CoreTimes>() + size_of_val(self.cores.as_slice())
    }

    fn pack(looks: &[CoreTimes]) -> Vec<u8> {
        let [mut at, mut count, mut core] = [const { Vec::new() }; 3];
        let mut ticks = [const { Vec::new() }; 8];
        let (mut last_at, mut before): (u64, &[CoreTicks]) = (0, &[]);
        for look in looks {
            put_difference(&mut at, look.at.0, last_at);
            put_difference(&mut count, look.cores.len() as u64, before.len() as u64);
            for (i, row) in look.cores.iter().enumerate() {
                let old = before.get(i).copied().unwrap_or(CoreTicks { core: i as u32, ..CoreTicks::default() });
                put_difference(&mut core, u64::from(row.core), u64::from(old.core));
                for (column, (new, old)) in ticks.iter_mut().zip(ticks_of(row).into_iter().zip(ticks_of(&old))) {
                    put_difference(column, new, old);
                }
            }
            (last_at, before) = (look.at.0, &look.cores);
        }
        let [user, nice, system, sum, iowait, irq, softirq, steal] = ticks;
        join([at, count, core, user, nice, system, sum, iowait, irq, softirq, steal])
    }

    fn unpack(payload: &[u8]) -> Result<Vec<CoreTimes>, ChunkError> {
        let (mut packed, mut looks) = (PackedLooks::of(payload)?, Vec::new());
        while let Some(at) = packed.step()? {
            looks.push(packed.look(at));
        }
        all_used(packed.columns)?;
        Ok(looks)
    }
}

/// A chunk of looks, unpacked step by step.
struct PackedLooks<'a> {
    columns: [Column<'a>; 11],
    at: u64,
    /// The cores at the last look, with their columns.
    cores: Vec<(u32, [u64; 8])>,
}

impl<'a> PackedLooks<'a> {
    fn of(payload: &'a [u8]) -> Result<PackedLooks<'a>, ChunkError> {
        let names = ["at", "count", "core", "user", "nice", "system", "sum", "iowait", "irq", "softirq", "steal"];
        Ok(PackedLooks { columns: split(payload, names)?, at: 0, cores: Vec::new() })
    }

    /// Goes to the next look, if there is one, and returns its time.
    fn step(&mut self) -> Result<Option<Time>, ChunkError> {
        let [at, count, core, ticks @ ..] = &mut self.columns;
        if at.is_empty() {
            return Ok(None);
        }
        self.at = at.after(self.at)?;
        let known = self.cores.len();
        let cores = count.after(known as u64)?;
        if cores > MAX_CORES as u64 {
            return Err(ChunkError::Range("count", cores));
        }
        self.cores.truncate(cores as usize);
        // One by one: a few bytes can claim many cores.
        for i in 0..cores as usize {
            if i >= known {
                self.cores.push((i as u32, [0; 8]));
            }
            let (number, values) = &mut self.cores[i];
            *number = core.after_u32(*number)?;
            for (value, column) in values.iter_mut().zip(ticks.iter_mut()) {
                *value = column.after(*value)?;
            }
        }
        Ok(Some(Time(self.at)))
    }

    /// The look at which it stands.
    fn look(&self, at: Time) -> CoreTimes {
        CoreTimes { at, cores: self.cores.iter().map(|(core, ticks)| core_ticks(*core, *ticks)).collect() }
    }
}

/// The first look of a packed chunk, for readers that skip the rest. Later numbers are not checked.
pub fn first_look(data: &[u8]) -> Result<Option<CoreTimes>, ChunkError> {
    let payload = decompress(data)?;
    let mut packed = PackedLooks::of(&payload)?;
    Ok(packed.step()?.map(|at| packed.look(at)))
}

/// The times of all looks of a packed chunk with `rows` rows, and the looks that `wants` chooses by time.
pub fn chosen_looks(
    data: &[u8],
    rows: u64,
    wants: &dyn Fn(&[Time]) -> Vec<bool>,
) -> Result<(Vec<Time>, Vec<CoreTimes>), ChunkError> {
    let payload = decompress(data)?;
    let mut packed = PackedLooks::of(&payload)?;
    let mut times: Vec<Time> = Vec::new();
    let mut column = packed.columns[0].clone();
    while !column.is_empty() {
        times.push(Time(column.after(times.last().map_or(0, |before| before.0))?));
    }
    let mut wanted = wants(&times).into_iter();
    let (mut looks, mut found) = (Vec::new(), 0);
    while let Some(at) = packed.step()? {
        found += packed.cores.len() as u64;
        if wanted.next() == Some(true) {
            looks.push(packed.look(at));
        }
    }
    all_used(packed.columns)?;
    if found == rows { Ok((times, looks)) } else { Err(ChunkError::Rows { expected: rows, found }) }
}

/// A thread is interned at its first sample in the chunk; later ones are stored as differences to its last.
impl Streamed for ThreadSample {
    const TABLE: &'static str = "thread_sample_chunks";
    const IS_STATE: bool = true;

    fn at(&self) -> Option<Time> {
        Some(self.at)
    }

    fn rows(&self) -> usize {
        1
    }

    fn pack(samples: &[ThreadSample]) -> Vec<u8> {
        let [mut at, mut thread, mut tid, mut started, mut state, mut core] = [const { Vec::new() }; 6];
        let [mut user, mut system, mut minor, mut major] = [const { Vec::new() }; 4];
        let [mut has_sched, mut run, mut wait, mut slices] = [const { Vec::new() }; 4];
        let mut numbers: HashMap<ThreadKey, usize> = HashMap::new();
        let mut threads: Vec<ThreadSample> = Vec::new();
        let (mut last_at, mut last_thread) = (0, 0);
        for sample in samples {
            put_difference(&mut at, sample.at.0, last_at);
            let number = *numbers.entry(sample.key).or_insert(threads.len());
            put_difference(&mut thread, number as u64, last_thread);
            if number == threads.len() {
                let before = threads.last().map_or(ThreadKey { tid: 0, started: 0 }, |t| t.key);
                put_difference(&mut tid, u64::from(sample.key.tid), u64::from(before.tid));
                put_difference(&mut started, sample.key.started, before.started);
                threads.push(unmoved(sample.key));
            }
            let old = &mut threads[number];
            put(&mut state, u64::from(u32::from(sample.state)));
            put_difference(&mut core, u64::from(sample.core), u64::from(old.core));
            put_difference(&mut user, sample.user_ticks, old.user_ticks);
            put_difference(&mut system, sample.system_ticks, old.system_ticks);
            put_difference(&mut minor, sample.minor_faults, old.minor_faults);
            put_difference(&mut major, sample.major_faults, old.major_faults);
            put(&mut has_sched, u64::from(sample.sched.is_some()));
            if let Some(sched) = sample.sched {
                let before = old.sched.unwrap_or(NO_TIMES);
                put_difference(&mut run, sched.run_ns, before.run_ns);
                put_difference(&mut wait, sched.wait_ns, before.wait_ns);
                put_difference(&mut slices, sched.slices, before.slices);
            }
            *old = *sample;
            (last_at, last_thread) = (sample.at.0, number as u64);
        }
        join([at, thread, tid, started, state, core, user, system, minor, major, has_sched, run, wait, slices])
    }

    fn unpack(payload: &[u8]) -> Result<Vec<ThreadSample>, ChunkError> {
        let names = [
            "at",
            "thread",
            "tid",
            "started",
            "state",
            "core",
            "user",
            "system",
            "minor",
            "major",
            "has_sched",
            "run",
            "wait",
            "slices",
        ];
        let mut columns = split(payload, names)?;
        let mut samples: Vec<ThreadSample> = Vec::new();
        let mut threads: Vec<ThreadSample> = Vec::new();
        let (mut last_at, mut last_thread) = (0, 0);
        while !columns[0].is_empty() {
            let [at, thread, tid, started, state, core, user, system, minor, major, has_sched, run, wait, slices] =
                &mut columns;
            last_at = at.after(last_at)?;
            last_thread = thread.after(last_thread)?;
            if last_thread == threads.len() as u64 {
                let before = threads.last().map_or(ThreadKey { tid: 0, started: 0 }, |t| t.key);
                let key = ThreadKey { tid: tid.after_u32(before.tid)?, started: started.after(before.started)? };
                threads.push(unmoved(key));
            }
            let number = usize::try_from(last_thread).unwrap_or(usize::MAX);
            let old = threads.get_mut(number).ok_or(ChunkError::Range("thread", last_thread))?;
            let letter = state.next()?;
            let letter = u32::try_from(letter).ok().and_then(char::from_u32).ok_or(ChunkError::Range("state", letter));
            let before = old.sched.unwrap_or(NO_TIMES);
            *old = ThreadSample {
                at: Time(last_at),
                key: old.key,
                state: letter?,
                core: core.after_u32(old.core)?,
                user_ticks: user.after(old.user_ticks)?,
                system_ticks: system.after(old.system_ticks)?,
                minor_faults: minor.after(old.minor_faults)?,
                major_faults: major.after(old.major_faults)?,
                sched: match has_sched.next()? {
                    0 => None,
                    1 => Some(SchedTimes {
                        run_ns: run.after(before.run_ns)?,
                        wait_ns: wait.after(before.wait_ns)?,
                        slices: slices.after(before.slices)?,
                    }),
                    other => return Err(ChunkError::Range("has_sched", other)),
                },
            };
            samples.push(*old);
        }
        all_used(columns)?;
        Ok(samples)
    }
}

const NO_TIMES: SchedTimes = SchedTimes { run_ns: 0, wait_ns: 0, slices: 0 };

fn unmoved(key: ThreadKey) -> ThreadSample {
    ThreadSample { key, ..ThreadSample::default() }
}

/// Series by series; many series share the time of a look, so times are interned.
impl Streamed for CounterPoint {
    const TABLE: &'static str = "counter_chunks";
    const IS_STATE: bool = true;

    fn at(&self) -> Option<Time> {
        Some(self.at)
    }

    fn rows(&self) -> usize {
        1
    }

    fn pack(points: &[CounterPoint]) -> Vec<u8> {
        let [mut time, mut series, mut count, mut moment, mut value] = [const { Vec::new() }; 5];
        let mut numbers: HashMap<Time, u64> = HashMap::new();
        let mut last_time = 0;
        for point in points {
            let next = numbers.len() as u64;
            numbers.entry(point.at).or_insert_with(|| {
                put_difference(&mut time, point.at.0, last_time);
                last_time = point.at.0;
                next
            });
        }
        // Stable: the points of one series stay in order.
        let mut points = points.to_vec();
        points.sort_by_key(|p| p.series);
        let (mut last_series, mut last_first) = (0, 0);
        for group in points.chunk_by(|a, b| a.series == b.series) {
            put_difference(&mut series, group[0].series, last_series);
            put(&mut count, group.len() as u64);
            let (mut expected, mut last_value) = (last_first, 0);
            for point in group {
                let number = numbers[&point.at];
                put_difference(&mut moment, number, expected);
                put_difference(&mut value, point.value, last_value);
                (expected, last_value) = (number + 1, point.value);
            }
            (last_series, last_first) = (group[0].series, numbers[&group[0].at]);
        }
        join([time, series, count, moment, value])
    }

    fn unpack(payload: &[u8]) -> Result<Vec<CounterPoint>, ChunkError> {
        let [mut time, mut series, mut count, mut moment, mut value] =
            split(payload, ["time", "series", "count", "moment", "value"])?;
        let mut times = Vec::new();
        while !time.is_empty() {
            times.push(Time(time.after(times.last().map_or(0, |t: &Time| t.0))?));
        }
        let mut points = Vec::new();
        let (mut last_series, mut last_first) = (0, 0);
        while !series.is_empty() {
            last_series = series.after(last_series)?;
            let (mut expected, mut last_value) = (last_first, 0);
            for i in 0..count.next()? {
                let number = moment.after(expected)?;
                let at = usize::try_from(number).ok().and_then(|n| times.get(n));
                let at = *at.ok_or(ChunkError::Range("moment", number))?;
                last_value = value.after(last_value)?;
                points.push(CounterPoint { series: last_series, at, value: last_value });
                expected = number.wrapping_add(1);
                if i == 0 {
                    last_first = number;
                }
            }
        }
        all_used([time, series, count, moment, value])?;
        Ok(points)
    }
}

#[cfg(test)]
#[path = "chunk_tests.rs"]
mod tests;
