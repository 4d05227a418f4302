//! Sealed batches that no collector has acknowledged yet, one file each: `spool/0000000000000042.zst`.
//!
//! Each file is a zstd frame of JSON lines, so several in a row are again a valid body. The limit is in bytes: if there are more, minutes
//! and stacks are dropped first and incidents last, the oldest first. Each run of the recorder is a stream of its own, so a sequence is never reused.

use anyhow::{Context, ensure};
use coroner_evidence::Wall;
use coroner_report::{BatchHead, Dropped, ReportRow, batch};
use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

const LEVEL: i32 = 6;
/// When over the limit, drop until this share of it is in use: not with every batch again.
const ROOM: u64 = 10;
/// A batch is some kilobytes; a file that claims to hold more is not ours.
const MOST_IN_BATCH: u64 = 16 << 20;

pub struct Spool {
    directory: PathBuf,
    max_size: u64,
    stream: String,
    sequence: u64,
    /// Oldest first.
    files: VecDeque<Spooled>,
    bytes: u64,
    next: u64,
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

impl Spool {
    /// Takes over what an earlier recorder left.
    pub fn open(directory: &Path, max_size: u64) -> anyhow::Result<Spool> {
        let cannot = || format!("cannot use the spool {}", directory.display());
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory).with_context(cannot)?;
        let mut files = Vec::new();
        for entry in std::fs::read_dir(directory).with_context(cannot)? {
            let entry = entry.with_context(cannot)?;
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            if name.ends_with(".part") {
                let _ = std::fs::remove_file(entry.path());
            } else if let Some(number) = name.strip_suffix(".zst").and_then(|number| number.parse().ok()) {
                let bytes = entry.metadata().with_context(cannot)?.len();
                files.push(Spooled { number, bytes, left: Left::All });
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
            next: files.last().map_or(1, |last| last.number.saturating_add(1)),
            files: files.into(),
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

    /// Stores rows as one batch. On failure nothing is stored, and they can be tried again.
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
        let number = self.next;
        let bytes = self.write(number, &ReportRow::Batch(head), rows)?;
        self.sequence += 1;
        self.next += 1;
        self.files.push_back(Spooled { number, bytes, left: Left::All });
        self.bytes += bytes;
        self.keep_limit()
    }

    /// The oldest batches, up to `most` bytes but at least one, as one body; and how many they are.
    pub fn oldest(&self, most: u64) -> anyhow::Result<Option<(Vec<u8>, usize)>> {
        let (mut body, mut count) = (Vec::new(), 0);
        for file in &self.files {
            if count > 0 && body.len() as u64 + file.bytes > most {
                break;
            }
            let path = self.path(file.number);
            let read = std::fs::File::open(&path).and_then(|file| file.take(MOST_IN_BATCH).read_to_end(&mut body));
            read.with_context(|| format!("cannot read {}", path.display()))?;
            count += 1;
        }
        Ok((count > 0).then_some((body, count)))
    }

    /// Removes the oldest batches: they are stored elsewhere, or nobody will ever take them.
    pub fn remove(&mut self, count: usize) -> anyhow::Result<()> {
        for _ in 0..count {
            let Some(file) = self.files.front().copied() else { break };
            self.remove_file(file)?;
            self.files.pop_front();
        }
        Ok(())
    }

    /// Removes the oldest batch and counts its rows as dropped.
    pub fn drop_oldest(&mut self) -> anyhow::Result<()> {
        let Some(file) = self.files.front().copied() else { return Ok(()) };
        let rows = self.read(file.number).map(|(_, rows)| rows).unwrap_or_default();
        self.remove(1)?;
        rows.iter().for_each(|row| count(&mut self.dropped, row));
        Ok(())
    }

    fn remove_file(&mut self, file: Spooled) -> anyhow::Result<()> {
        let path = self.path(file.number);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("cannot remove {}", path.display()));
            }
            _ => self.bytes = self.bytes.saturating_sub(file.bytes),
        }
        Ok(())
    }

    /// Drops minutes and stacks, then diagnoses, then all, until there is room.
    fn keep_limit(&mut self) -> anyhow::Result<()> {
        if self.bytes <= self.max_size {
            return Ok(());
        }
        let enough = self.max_size - self.max_size / ROOM;
        for left in [Left::DiagnosesAndIncidents, Left::Incidents] {
            for at in 0..self.files.len() {
                if self.bytes <= enough {
                    return Ok(());
                }
                if self.files[at].left < left {
                    self.thin(at, left)?;
                }
            }
        }
        while self.bytes > enough && !self.files.is_empty() {
            self.drop_oldest()?;
        }
        Ok(())
    }

    /// Rewrites a batch without its less important rows. One that cannot be read goes as a whole, when its turn comes.
    fn thin(&mut self, at: usize, left: Left) -> anyhow::Result<()> {
        let file = self.files[at];
        self.files[at].left = left;
        let Ok((head, rows)) = self.read(file.number) else { return Ok(()) };
        let (kept, gone): (Vec<_>, Vec<_>) = rows.into_iter().partition(|row| stays(row, left));
        if gone.is_empty() {
            return Ok(());
        }
        let bytes = self.write(file.number, &head, &kept)?;
        self.bytes = self.bytes.saturating_sub(file.bytes) + bytes;
        self.files[at].bytes = bytes;
        gone.iter().for_each(|row| count(&mut self.dropped, row));
        Ok(())
    }

    fn path(&self, number: u64) -> PathBuf {
        self.directory.join(format!("{number:016}.zst"))
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
        let store = || -> std::io::Result<()> {
            let mut options = std::fs::OpenOptions::new();
            let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&part)?;
            std::io::Write::write_all(&mut file, &packed)?;
            std::fs::rename(&part, &path)
        };
        store().with_context(|| format!("cannot write {}", path.display())).inspect_err(|_| {
            let _ = std::fs::remove_file(&part);
        })?;
        Ok(packed.len() as u64)
    }

    fn read(&self, number: u64) -> anyhow::Result<(ReportRow, Vec<ReportRow>)> {
        let file = std::fs::File::open(self.path(number))?;
        let text = BufReader::new(zstd::Decoder::new(file)?.take(MOST_IN_BATCH));
        let mut rows = Vec::new();
        for line in text.lines() {
            rows.push(serde_json::from_str(&line?)?);
        }
        ensure!(!rows.is_empty(), "an empty batch");
        let head = rows.remove(0);
        Ok((head, rows))
    }
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
        ReportRow::Minute(Minute { minute: Wall(n), cpu_stall_us: Some(stall), ..Minute::default() })
    }

    fn diagnosis() -> ReportRow {
        ReportRow::Diagnosis(Concluded::default())
    }

    fn incident() -> ReportRow {
        let text = r#"{"schema":"coroner.incident/1","number":3,"code":"mark","subject":"node","core":null,"text":"x",
            "triggered_real_ns":5,"from_real_ns":1,"until_real_ns":9,"state":"open","repeats":0,"error":null}"#;
        ReportRow::Incident(Box::new(serde_json::from_str(text).unwrap()))
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
            spool.seal("node", "boot", Wall(n), &rows).unwrap();
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
            spool.seal("node", "boot", Wall(n), &[minute(n), incident()]).unwrap();
        }
        assert!(spool.bytes() <= 3_000 && spool.batches() > 1);
    }
}
