//! Sealed batches that no collector has acknowledged yet, one file each: `spool/0000000000000042.zst`.
//!
//! Each file is a zstd frame of JSON lines, so several in a row are again a valid body. The limit is in bytes: if there are more, minutes
//! and stacks are dropped first and incidents last, the oldest first. Each run of the recorder is a stream of its own, so a sequence is never reused.

use anyhow::{Context, ensure};
use coroner_evidence::Wall;
use coroner_evidence::own_directory::id_of;
use coroner_report::{BatchHead, Dropped, ReportRow, batch};
use rustix::fs::OFlags;
use std::collections::VecDeque;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

const LEVEL: i32 = 6;
/// When over the limit, drop until this share of it is in use: not with every batch again.
const ROOM: u64 = 10;
/// A batch is some kilobytes; a file that claims to hold more is not ours.
const MOST_IN_BATCH: u64 = 16 << 20;
/// Of a body, once unpacked: half of what a collector takes.
const MOST_UNPACKED: u64 = 4 << 20;
/// Of the name of a file.
const DIGITS: usize = 16;

pub struct Spool {
    directory: PathBuf,
    max_size: u64,
    stream: String,
    sequence: u64,
    /// Oldest first.
    files: VecDeque<Spooled>,
    bytes: u64,
    next: u64,
    /// Done with, but their files could not be removed yet.
    unremoved: Vec<u64>,
    dropped: Dropped,
}

#[derive(Debug, Clone, Copy)]
struct Spooled {
    number: u64,
    bytes: u64,
    /// What is still in it.
    left: Left,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Left {
    All,
    DiagnosesAndIncidents,
    Incidents,
}

/// The oldest batch, which cannot be read.
#[derive(Debug)]
pub struct Unreadable {
    /// Somebody removed it.
    pub is_gone: bool,
    pub why: String,
}

impl Spool {
    /// Takes over what an earlier recorder left.
    pub fn open(directory: &Path, max_size: u64) -> anyhow::Result<Spool> {
        let cannot = || format!("cannot use the spool {}", directory.display());
        DirBuilder::new().recursive(true).mode(0o700).create(directory).with_context(cannot)?;
        ensure!(
            id_of(directory).is_some(),
            "{}: it is a link, which the recorder does not follow; make it a directory, or choose another --dir",
            cannot()
        );
        let (mut files, mut last) = (Vec::new(), 0);
        for entry in std::fs::read_dir(directory).with_context(cannot)? {
            let entry = entry.with_context(cannot)?;
            let Some((number, extension)) = entry.file_name().to_str().and_then(of_name) else { continue };
            last = last.max(number);
            // A file may vanish meanwhile, and what is no file is not ours.
            let Some(about) = entry.metadata().ok().filter(|about| about.is_file()) else { continue };
            match extension {
                Extension::Part => drop(std::fs::remove_file(entry.path())),
                Extension::Batch => files.push(Spooled { number, bytes: about.len(), left: Left::All }),
            }
        }
        files.sort_unstable_by_key(|file| file.number);
        let stream =
            std::fs::read_to_string("/proc/sys/kernel/random/uuid").context("no random number for the spool")?;
        Ok(Spool {
            directory: directory.to_owned(),
            max_size,
            stream: stream.trim().to_owned(),
            sequence: 0,
            bytes: files.iter().map(|file| file.bytes).sum(),
            next: last + 1,
            files: files.into(),
            unremoved: Vec::new(),
            dropped: Dropped::default(),
        })
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn batches(&self) -> usize {
        self.files.len()
    }

    /// In this stream, and rows that were lost before they came here.
    pub fn dropped(&mut self) -> &mut Dropped {
        &mut self.dropped
    }

    /// Stores rows as one batch. On failure nothing is stored, and they can be tried again. The limit is not looked at.
    pub fn seal(&mut self, node: &str, boot_id: &str, sealed: Wall, rows: &[ReportRow]) -> anyhow::Result<()> {
        let head = BatchHead {
            schema: batch::SCHEMA.to_owned(),
            node: node.to_owned(),
            stream: self.stream.clone(),
            sequence: self.sequence + 1,
            boot_id: boot_id.to_owned(),
            sealed,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            dropped: self.dropped,
        };
        // Another one after a failure: something could stand in this one's way.
        let number = self.next;
        self.next += 1;
        let bytes = self.write(number, &ReportRow::Batch(head), rows)?;
        self.sequence += 1;
        self.files.push_back(Spooled { number, bytes, left: Left::All });
        self.bytes += bytes;
        Ok(())
    }

    /// The oldest batches, up to `most` bytes but at least one, as one body; and how many they are. It fails only if the very oldest
    /// one cannot be read.
    pub fn oldest(&self, most: u64) -> Result<Option<(Vec<u8>, usize)>, Unreadable> {
        let (mut body, mut count, mut unpacked) = (Vec::new(), 0, 0u64);
        for file in &self.files {
            let before = body.len();
            if count > 0 && before as u64 + file.bytes > most {
                break;
            }
            if let Err(error) = self.append(file.number, &mut body) {
                if count == 0 {
                    let why = format!("cannot read {}: {error}", self.path(file.number).display());
                    return Err(Unreadable { is_gone: error.kind() == ErrorKind::NotFound, why });
                }
                // Those before it are well; its turn comes when it is the oldest.
                body.truncate(before);
                break;
            }
            unpacked = unpacked.saturating_add(unpacked_size(&body[before..]));
            if count > 0 && unpacked > MOST_UNPACKED {
                body.truncate(before);
                break;
            }
            count += 1;
        }
        Ok((count > 0).then_some((body, count)))
    }

    /// Whether a batch behind the oldest one can be read: if not, the fault is not that file's.
    pub fn another_is_readable(&self) -> bool {
        self.files.iter().skip(1).any(|file| self.append(file.number, &mut Vec::new()).is_ok())
    }

    fn append(&self, number: u64, body: &mut Vec<u8>) -> io::Result<()> {
        self.open_file(number)?.take(MOST_IN_BATCH).read_to_end(body).map(drop)
    }

    fn open_file(&self, number: u64) -> io::Result<File> {
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
        OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(self.path(number))
    }

    /// Forgets the oldest batches, which are stored elsewhere or will never be, and removes their files. One that cannot be removed is
    /// tried again with the next ones: a batch must not be sent again and again because of it.
    pub fn remove(&mut self, count: usize) -> anyhow::Result<()> {
        let earlier = std::mem::take(&mut self.unremoved);
        self.unremoved = earlier.into_iter().filter(|number| self.unlink(*number).is_err()).collect();
        let mut result = Ok(());
        for file in self.files.drain(..count.min(self.files.len())).collect::<Vec<_>>() {
            self.bytes = self.bytes.saturating_sub(file.bytes);
            if let Err(error) = self.unlink(file.number) {
                self.unremoved.push(file.number);
                result = Err(error);
            }
        }
        result
    }

    /// Forgets the oldest batch and counts its rows as dropped.
    pub fn drop_oldest(&mut self) -> anyhow::Result<()> {
        if let Some(file) = self.files.front() {
            let rows = self.rows(file.number);
            self.dropped.add(rows);
        }
        self.remove(1)
    }

    /// Forgets the oldest batches whose files somebody removed, up to the first that is there; returns how many.
    pub fn drop_gone(&mut self) -> usize {
        let mut gone = 0;
        while let Some(file) = self.files.front().copied()
            && std::fs::symlink_metadata(self.path(file.number)).is_err_and(|error| error.kind() == ErrorKind::NotFound)
        {
            self.dropped.add(self.rows(file.number));
            self.bytes = self.bytes.saturating_sub(file.bytes);
            self.files.pop_front();
            gone += 1;
        }
        gone
    }

    /// Rows of a batch by kind. One that cannot be read is taken for a minute, which is what most batches have.
    fn rows(&self, number: u64) -> Dropped {
        let Ok((_, rows)) = self.read(number) else { return Dropped { minutes: 1, ..Dropped::default() } };
        let mut sum = Dropped::default();
        rows.iter().for_each(|row| count(&mut sum, row));
        sum
    }

    /// It is well if it is gone already.
    fn unlink(&self, number: u64) -> anyhow::Result<()> {
        let path = self.path(number);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(error).with_context(|| format!("cannot remove {}", path.display()))
            }
            _ => Ok(()),
        }
    }

    /// Drops minutes and stacks, then diagnoses, then all, until there is room. The batches stay usable if it fails.
    pub fn keep_limit(&mut self) -> anyhow::Result<()> {
        if self.bytes <= self.max_size {
            return Ok(());
        }
        let enough = self.max_size - self.max_size / ROOM;
        if self.thin_all(enough).is_err() && self.bytes > enough {
            // The disk may have no room for what is to stay of a batch; a whole one less makes some.
            self.drop_until(self.bytes.saturating_sub(1))?;
            let _ = self.thin_all(enough);
        }
        self.drop_until(enough)
    }

    /// Fails if some could not be rewritten, after it has tried all.
    fn thin_all(&mut self, enough: u64) -> anyhow::Result<()> {
        let mut result = Ok(());
        for left in [Left::DiagnosesAndIncidents, Left::Incidents] {
            let mut at = 0;
            while at < self.files.len() && self.bytes > enough {
                match self.files[at].left < left {
                    true => match self.thin(at, left) {
                        Ok(Thinned::Removed) => {}
                        Ok(Thinned::Kept) => at += 1,
                        Err(error) => (result, at) = (Err(error), at + 1),
                    },
                    false => at += 1,
                }
            }
        }
        result
    }

    /// Rewrites a batch without its less important rows, or removes it if nothing would be left. One that cannot be read goes as a whole,
    /// when its turn comes.
    fn thin(&mut self, at: usize, left: Left) -> anyhow::Result<Thinned> {
        let file = self.files[at];
        let Ok((head, rows)) = self.read(file.number) else { return Ok(Thinned::Kept) };
        let (kept, gone): (Vec<_>, Vec<_>) = rows.into_iter().partition(|row| stays(row, left));
        if kept.is_empty() {
            self.unlink(file.number)?;
            self.bytes = self.bytes.saturating_sub(file.bytes);
            self.files.remove(at);
        } else if !gone.is_empty() {
            let bytes = self.write(file.number, &head, &kept)?;
            self.bytes = self.bytes.saturating_sub(file.bytes) + bytes;
            self.files[at].bytes = bytes;
        }
        gone.iter().for_each(|row| count(&mut self.dropped, row));
        if kept.is_empty() {
            return Ok(Thinned::Removed);
        }
        self.files[at].left = left;
        Ok(Thinned::Kept)
    }

    /// Drops whole batches, the oldest first; fails if some that cannot be removed are still too many.
    fn drop_until(&mut self, enough: u64) -> anyhow::Result<()> {
        let (mut at, mut result) = (0, Ok(()));
        while self.bytes > enough
            && let Some(file) = self.files.get(at).copied()
        {
            let rows = self.rows(file.number);
            if let Err(error) = self.unlink(file.number) {
                (result, at) = (Err(error), at + 1);
                continue;
            }
            self.dropped.add(rows);
            self.bytes = self.bytes.saturating_sub(file.bytes);
            self.files.remove(at);
        }
        if self.bytes > enough { result } else { Ok(()) }
    }

    fn path(&self, number: u64) -> PathBuf {
        self.directory.join(format!("{number:0DIGITS$}.zst"))
    }

    /// Written under another name and renamed: a kill leaves no half file.
    fn write(&self, number: u64, head: &ReportRow, rows: &[ReportRow]) -> anyhow::Result<u64> {
        let mut text = Vec::new();
        for row in std::iter::once(head).chain(rows) {
            serde_json::to_writer(&mut text, row)?;
            text.push(b'\n');
        }
        let packed = zstd::bulk::compress(&text, LEVEL)?;
        let path = self.path(number);
        let part = path.with_extension("part");
        let create = || {
            let mut options = OpenOptions::new();
            let options = options.write(true).create(true).truncate(true).mode(0o600);
            options.custom_flags(OFlags::NOFOLLOW.bits() as i32).open(&part)
        };
        let store = || -> io::Result<()> {
            let mut file = match create() {
                // Somebody removed the spool.
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    DirBuilder::new().mode(0o700).create(&self.directory)?;
                    create()?
                }
                created => created?,
            };
            file.write_all(&packed)?;
            std::fs::rename(&part, &path)
        };
        // Without the name, which is another one each time: a trouble that lasts is told once.
        store().with_context(|| format!("cannot write to {}", self.directory.display())).inspect_err(|_| {
            let _ = std::fs::remove_file(&part);
        })?;
        Ok(packed.len() as u64)
    }

    fn read(&self, number: u64) -> anyhow::Result<(ReportRow, Vec<ReportRow>)> {
        let text = BufReader::new(zstd::Decoder::new(self.open_file(number)?)?.take(MOST_IN_BATCH));
        let mut rows = Vec::new();
        for line in text.lines() {
            rows.push(serde_json::from_str(&line?)?);
        }
        ensure!(!rows.is_empty(), "an empty batch");
        let head = rows.remove(0);
        Ok((head, rows))
    }
}

enum Thinned {
    Kept,
    Removed,
}

enum Extension {
    Batch,
    Part,
}

/// Only names that this file makes: somebody else's `video.part` is none of them.
fn of_name(name: &str) -> Option<(u64, Extension)> {
    let (digits, extension) = name.split_once('.')?;
    let extension = match extension {
        "zst" => Extension::Batch,
        "part" => Extension::Part,
        _ => return None,
    };
    let is_ours = digits.len() == DIGITS && digits.bytes().all(|byte| byte.is_ascii_digit());
    Some((digits.parse().ok().filter(|_| is_ours)?, extension))
}

/// As its frame says; of a damaged one, nothing.
fn unpacked_size(frame: &[u8]) -> u64 {
    zstd::zstd_safe::get_frame_content_size(frame).ok().flatten().unwrap_or(0)
}

fn stays(row: &ReportRow, left: Left) -> bool {
    match row {
        ReportRow::Minute(_) | ReportRow::Stacks(_) | ReportRow::Unknown => left == Left::All,
        ReportRow::Diagnosis(_) => left <= Left::DiagnosesAndIncidents,
        ReportRow::Batch(_) | ReportRow::Node(_) | ReportRow::Incident(_) => true,
    }
}

pub fn count(dropped: &mut Dropped, row: &ReportRow) {
    let of_its_kind = match row {
        ReportRow::Node(_) => &mut dropped.nodes,
        ReportRow::Minute(_) => &mut dropped.minutes,
        ReportRow::Diagnosis(_) => &mut dropped.diagnoses,
        ReportRow::Incident(_) => &mut dropped.incidents,
        ReportRow::Stacks(_) => &mut dropped.stacks,
        ReportRow::Batch(_) | ReportRow::Unknown => return,
    };
    *of_its_kind = of_its_kind.saturating_add(1);
}

#[cfg(test)]
mod tests {
    use super::*;
    use coroner_report::{Concluded, Minute};

    fn minute(n: u64) -> ReportRow {
        // Hardly compressible, so that a batch has some size.
        let stall = n.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        ReportRow::Minute(Minute { minute: Wall(n * 1_000_000_000), cpu_stall_us: Some(stall), ..Minute::default() })
    }

    fn diagnosis() -> ReportRow {
        ReportRow::Diagnosis(Concluded::default())
    }

    fn incident() -> ReportRow {
        let text = r#"{"schema":"coroner.incident/1","number":3,"code":"mark","subject":"node","core":null,"text":"x",
            "triggered_real_ns":5,"from_real_ns":1,"until_real_ns":9,"state":"open","repeats":0,"error":null}"#;
        ReportRow::Incident(Box::new(serde_json::from_str(text).unwrap()))
    }

    /// As the reporter does.
    fn seal(spool: &mut Spool, n: u64, rows: &[ReportRow]) {
        spool.seal("node", "boot", Wall(n), rows).unwrap();
        spool.keep_limit().unwrap();
    }

    /// With `count` batches, each of a minute.
    fn filled(directory: &Path, count: u64) -> Spool {
        let mut spool = Spool::open(directory, 1 << 20).unwrap();
        (1..=count).for_each(|n| seal(&mut spool, n, &[minute(n)]));
        spool
    }

    fn minutes(body: &[u8]) -> Vec<u64> {
        let minute = |row| match row {
            ReportRow::Minute(minute) => Some(minute.minute.0 / 1_000_000_000),
            _ => None,
        };
        rows(body).into_iter().filter_map(minute).collect()
    }

    fn heads(spool: &Spool) -> Vec<(String, u64)> {
        let head = |file: &Spooled| match spool.read(file.number).unwrap().0 {
            ReportRow::Batch(head) => (head.stream, head.sequence),
            other => panic!("{other:?}"),
        };
        spool.files.iter().map(head).collect()
    }

    fn rows(body: &[u8]) -> Vec<ReportRow> {
        let text = zstd::decode_all(body).unwrap();
        text.split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty())
            .map(|line| serde_json::from_slice(line).unwrap())
            .collect()
    }

    #[test]
    fn batches_come_back_in_order_and_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let mut spool = Spool::open(dir.path(), 1 << 20).unwrap();
        assert!(spool.oldest(1 << 20).unwrap().is_none());
        for n in 0..3 {
            spool.seal("node", "boot", Wall(n), &[minute(n), diagnosis()]).unwrap();
        }
        std::fs::write(dir.path().join("0000000000000009.part"), "half a file").unwrap();
        std::fs::write(dir.path().join("notes.txt"), "not ours").unwrap();
        let mut again = Spool::open(dir.path(), 1 << 20).unwrap();
        again.seal("node", "boot", Wall(9), &[incident()]).unwrap();
        let heads = heads(&again);
        assert_eq!(heads.iter().map(|(_, sequence)| *sequence).collect::<Vec<_>>(), [1, 2, 3, 1]);
        assert!(heads[0].0 == heads[2].0 && heads[2].0 != heads[3].0, "each run is a stream: {heads:?}");
        let (body, count) = again.oldest(1 << 20).unwrap().unwrap();
        assert_eq!(count, 4);
        let rows = rows(&body);
        assert_eq!(rows.iter().filter(|row| matches!(row, ReportRow::Batch(_))).count(), 4);
        assert_eq!(rows[1..3], [minute(0), diagnosis()]);
        let (_, first) = again.oldest(1).unwrap().unwrap();
        assert_eq!(first, 1, "at least one, however large");
        again.remove(4).unwrap();
        assert_eq!((again.batches(), again.bytes()), (0, 0));
        assert!(!dir.path().join("0000000000000009.part").exists() && dir.path().join("notes.txt").exists());
    }

    #[test]
    fn a_full_spool_drops_minutes_first_and_incidents_last() {
        let dir = tempfile::tempdir().unwrap();
        let mut spool = Spool::open(dir.path(), 40_000).unwrap();
        for n in 0..60 {
            let rows: Vec<_> = (0..20).map(|i| minute(n * 20 + i)).chain([diagnosis(), incident()]).collect();
            seal(&mut spool, n, &rows);
            assert!(spool.bytes() <= 40_000);
        }
        let on_disk: u64 = std::fs::read_dir(dir.path()).unwrap().map(|f| f.unwrap().metadata().unwrap().len()).sum();
        assert_eq!(on_disk, spool.bytes());
        let dropped = *spool.dropped();
        let (body, _) = spool.oldest(1 << 20).unwrap().unwrap();
        let rows = rows(&body);
        let left = |is: fn(&ReportRow) -> bool| rows.iter().filter(|row| is(row)).count() as u64;
        assert_eq!(left(|row| matches!(row, ReportRow::Minute(_))) + dropped.minutes, 1200, "{dropped:?}");
        assert_eq!(left(|row| matches!(row, ReportRow::Diagnosis(_))) + dropped.diagnoses, 60);
        assert_eq!(left(|row| matches!(row, ReportRow::Incident(_))), 60, "{dropped:?}");
        assert!(dropped.minutes > 100 && dropped.incidents == 0, "{dropped:?}");
    }

    #[test]
    fn a_damaged_batch_does_not_stop_the_others() {
        let dir = tempfile::tempdir().unwrap();
        let mut spool = Spool::open(dir.path(), 3_000).unwrap();
        spool.seal("node", "boot", Wall(1), &[diagnosis()]).unwrap();
        std::fs::write(spool.path(1), "not zstd").unwrap();
        for n in 0..40 {
            seal(&mut spool, n, &[minute(n), incident()]);
        }
        assert!(spool.bytes() <= 3_000 && spool.batches() > 1);
    }

    #[test]
    fn a_batch_that_cannot_be_read_costs_no_other_one() {
        let dir = tempfile::tempdir().unwrap();
        let mut spool = filled(dir.path(), 20);
        std::fs::remove_file(spool.path(15)).unwrap();
        std::fs::remove_file(spool.path(17)).unwrap();
        std::fs::create_dir(spool.path(17)).unwrap();
        let (body, count) = spool.oldest(1 << 20).unwrap().unwrap();
        assert_eq!((count, minutes(&body)), (14, (1..15).collect()), "those before it, and no half one");
        spool.remove(count).unwrap();
        assert!(spool.oldest(1 << 20).unwrap_err().is_gone);
        assert_eq!((spool.drop_gone(), spool.dropped().minutes), (1, 1));
        assert_eq!(minutes(&spool.oldest(1 << 20).unwrap().unwrap().0), [16]);
        spool.remove(1).unwrap();
        let directory = spool.oldest(1 << 20).unwrap_err();
        assert!(!directory.is_gone && directory.why.contains("0000000000000017.zst"), "{directory:?}");
        assert!(spool.another_is_readable());
        assert!(spool.drop_oldest().is_err(), "a directory cannot be removed, and is told");
        let (body, count) = spool.oldest(1 << 20).unwrap().unwrap();
        assert_eq!((count, minutes(&body)), (3, vec![18, 19, 20]));
        spool.remove(count).unwrap();
        assert_eq!((spool.dropped().minutes, spool.batches(), spool.bytes()), (2, 0, 0));
    }

    #[test]
    fn a_request_stays_small_once_it_is_unpacked() {
        let dir = tempfile::tempdir().unwrap();
        let mut spool = Spool::open(dir.path(), 1 << 20).unwrap();
        for _ in 0..8 {
            // A megabyte that is a few hundred bytes in its file.
            let conclusion = "x".repeat(1 << 20);
            seal(&mut spool, 1, &[ReportRow::Diagnosis(Concluded { conclusion, ..Concluded::default() })]);
        }
        let (body, count) = spool.oldest(1 << 20).unwrap().unwrap();
        assert_eq!((count, heads(&spool).len()), (3, 8));
        assert_eq!(rows(&body).len(), 6);
    }

    #[test]
    fn a_disk_without_room_costs_minutes_before_incidents() {
        let dir = tempfile::tempdir().unwrap();
        let mut spool = Spool::open(dir.path(), 1 << 20).unwrap();
        for n in 1..=20 {
            let rows = if n % 5 == 0 { vec![minute(n), incident()] } else { vec![minute(n)] };
            seal(&mut spool, n, &rows);
            // No batch can be rewritten.
            std::fs::create_dir(spool.path(n).with_extension("part")).unwrap();
        }
        spool.max_size = spool.bytes() - 1;
        spool.keep_limit().unwrap();
        assert!(spool.bytes() <= spool.max_size);
        assert_eq!((spool.dropped().incidents, spool.batches() as u64), (0, 20 - spool.dropped().minutes));
        while spool.batches() > 4 {
            spool.max_size = spool.bytes() - 1;
            spool.keep_limit().unwrap();
        }
        assert_eq!(spool.dropped().incidents, 0);
        // With room again, their minutes go before them.
        (1..=20).for_each(|n| std::fs::remove_dir(spool.path(n).with_extension("part")).unwrap());
        spool.max_size = spool.bytes() - 1;
        spool.keep_limit().unwrap();
        assert_eq!((spool.dropped().incidents, spool.batches()), (0, 4));
        assert!(spool.dropped().minutes > 16, "{:?}", spool.dropped());
    }

    #[test]
    fn a_batch_is_stored_once_also_when_the_limit_cannot_be_kept() {
        let dir = tempfile::tempdir().unwrap();
        let mut spool = Spool::open(dir.path(), 1).unwrap();
        spool.seal("node", "boot", Wall(1), &[incident()]).unwrap();
        std::fs::remove_file(spool.path(1)).unwrap();
        std::fs::create_dir(spool.path(1)).unwrap();
        spool.seal("node", "boot", Wall(2), &[incident()]).unwrap();
        assert!(spool.bytes() > 1 && spool.sequence == 2);
        assert!(spool.keep_limit().is_err(), "a directory cannot be removed");
        assert_eq!((spool.batches(), spool.dropped().incidents), (1, 1), "all others can");
    }

    #[test]
    fn only_files_of_its_own_are_touched() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("spool");
        drop(filled(&path, 2));
        let foreign =
            ["video.part", "42.zst", "00000000000000001.part", "+000000000000001.zst", "000000000000000a.part"];
        foreign.iter().for_each(|name| std::fs::write(path.join(name), "not ours").unwrap());
        std::fs::write(path.join("0000000000000007.part"), "half a file").unwrap();
        std::fs::create_dir(path.join("0000000000000003.zst")).unwrap();
        std::os::unix::fs::symlink(path.join("42.zst"), path.join("0000000000000004.zst")).unwrap();
        let mut spool = Spool::open(&path, 1 << 20).unwrap();
        assert!(foreign.iter().all(|name| path.join(name).exists()));
        assert!(!path.join("0000000000000007.part").exists());
        seal(&mut spool, 8, &[minute(8)]);
        assert_eq!(minutes(&spool.oldest(1 << 20).unwrap().unwrap().0), [1, 2, 8]);
        drop(spool);

        // Nothing is done through a link.
        let elsewhere = dir.path().join("elsewhere");
        std::fs::create_dir(&elsewhere).unwrap();
        std::fs::write(elsewhere.join("0000000000000001.part"), "of another one").unwrap();
        std::fs::remove_dir_all(&path).unwrap();
        std::os::unix::fs::symlink(&elsewhere, &path).unwrap();
        let refused = Spool::open(&path, 1 << 20).err().unwrap().to_string();
        assert!(refused.contains("it is a link"), "{refused}");
        assert!(elsewhere.join("0000000000000001.part").exists());
    }

    #[test]
    fn a_spool_that_somebody_removed_is_made_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("spool");
        let mut spool = filled(&path, 3);
        std::fs::remove_dir_all(&path).unwrap();
        seal(&mut spool, 4, &[minute(4)]);
        assert_eq!(spool.drop_gone(), 3);
        assert_eq!(minutes(&spool.oldest(1 << 20).unwrap().unwrap().0), [4]);
    }
}
