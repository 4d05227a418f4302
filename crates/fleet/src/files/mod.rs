//! Recordings of incidents that people asked for. A node cannot be called, so what is wanted is told to it with the answer to its next
//! report, and it sends the file piece by piece; see `reporter/files.rs` of the recorder.
//!
//! What is wanted is in memory only: who waits for a file asks again. Collectors that share a store also tell each other through it. One of
//! them takes a file; to the others its pieces come in vain until that one has been silent for a while. Files are bounded by size and by
//! age, the oldest go first. Nobody here reads what is in them.

mod bucket;
mod place;

use crate::store::clickhouse::wanted::{Board, Wish};
use anyhow::{Context, ensure};
use coroner_report::WantedFile;
use coroner_report::wanted::{GONE, PIECE_BYTES, REFUSED};
pub use place::{Place, Stored};
use ring::digest;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// Of one file. A node keeps 512 MiB of incidents, unless told otherwise.
pub const MOST_IN_FILE: u64 = 512 << 20;
/// Wanted at a time.
const MOST_WANTED: usize = 1000;
/// To a node in one answer.
const MOST_TOLD: usize = 16;
/// What nobody asked about for so long is no longer wanted.
const WANTED_FOR: Duration = Duration::from_secs(1800);
/// Files that come in at a time, each at 1 MiB a second.
const MOST_COMING: usize = 8;
/// An upload without a piece for so long has stopped.
const COMING_WITHIN: Duration = Duration::from_secs(120);
/// Another collector that tells nothing of a file for so long no longer takes it.
const TAKEN_WITHIN: Duration = Duration::from_secs(30);
/// It tells this often, at most, and in any case before that.
const TOLD_EVERY: Duration = Duration::from_secs(1);
/// Others see within this time that somebody still waits.
const ASKED_EVERY: Duration = Duration::from_secs(60);
/// What came of a file that never became complete.
const PARTS_KEPT: Duration = Duration::from_secs(86_400);

#[derive(Debug, Clone, Copy)]
pub struct Limits {
    pub bytes: u64,
    pub age: Duration,
}

/// An incident of a node. A node whose disk was replaced counts from 1 again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Id {
    pub node: String,
    pub number: u64,
    pub triggered_s: i64,
}

/// How far a wanted file is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Progress {
    /// Nobody asked for it, or too long ago.
    Unwanted,
    /// The node does not know yet, or has not answered.
    Waiting,
    Receiving {
        bytes: u64,
        of: u64,
    },
    /// The node's configuration forbids it.
    Refused,
    /// The node has no such file.
    Gone,
    TooLarge {
        bytes: u64,
    },
    /// Another collector has it, and this one does not find it.
    StoredElsewhere,
}

/// A part of a file, as a node sends it.
pub struct Piece<'a> {
    pub size: u64,
    /// Of the whole file, in hex.
    pub sha256: &'a str,
    pub offset: u64,
    pub bytes: &'a [u8],
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotReceived {
    NotWanted,
    /// It must go on from here.
    Elsewhere(u64),
    TooLarge,
    /// It is another file than its checksum says.
    Damaged,
    Bad(&'static str),
    Busy,
    Failed(String),
}

impl From<anyhow::Error> for NotReceived {
    fn from(error: anyhow::Error) -> NotReceived {
        NotReceived::Failed(format!("{error:#}"))
    }
}

struct Want {
    triggered_s: i64,
    asked: Instant,
    answer: Answer,
    coming: Option<Coming>,
    /// A piece is being written.
    is_busy: bool,
    /// How far another collector is, and when it said so.
    elsewhere: Option<(u64, u64, Instant)>,
    /// When the others were told last that somebody waits, and how far it is.
    asked_them: Option<Instant>,
    told_them: Option<Instant>,
}

impl Want {
    fn new(triggered_s: i64, asked: Instant) -> Want {
        Want {
            triggered_s,
            asked,
            answer: Answer::None,
            coming: None,
            is_busy: false,
            elsewhere: None,
            asked_them: None,
            told_them: None,
        }
    }

    fn is_elsewhere(&self) -> bool {
        self.elsewhere.is_some_and(|(_, _, at)| at.elapsed() < TAKEN_WITHIN)
    }
}

enum Answer {
    None,
    Refused,
    Gone,
    TooLarge(u64),
    Stored,
    StoredElsewhere,
}

#[derive(Clone)]
struct Coming {
    sha256: String,
    size: u64,
    have: u64,
    at: Instant,
}

pub struct Files {
    place: Place,
    /// What is not complete yet.
    parts: PathBuf,
    limits: Limits,
    wants: Mutex<HashMap<(String, u64), Want>>,
    board: Option<Board>,
}

impl Files {
    /// `own`: the collector's directory.
    pub fn open(place: Place, own: &Path, limits: Limits, board: Option<Board>) -> anyhow::Result<Files> {
        let parts = own.join("parts");
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&parts)
            .with_context(|| format!("cannot create {}", parts.display()))?;
        Ok(Files { place, parts, limits, wants: Mutex::default(), board })
    }

    fn wants(&self) -> MutexGuard<'_, HashMap<(String, u64), Want>> {
        // Valid after a panic: each change is one assignment.
        self.wants.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the node for it, once more if it declined before.
    pub fn want(&self, id: &Id) -> Result<(), NotReceived> {
        let mut wants = self.wants();
        wants.retain(|_, want| want.asked.elapsed() < WANTED_FOR);
        let key = (id.node.clone(), id.number);
        if !wants.contains_key(&key) && wants.len() >= MOST_WANTED {
            return Err(NotReceived::Busy);
        }
        let want = wants.entry(key).or_insert_with(|| Want::new(id.triggered_s, Instant::now()));
        (want.asked, want.triggered_s, want.answer) = (Instant::now(), id.triggered_s, Answer::None);
        let Some(board) = &self.board else { return Ok(()) };
        want.asked_them = Some(Instant::now());
        drop(wants);
        Ok(board.ask(&id.node, id.number, id.triggered_s)?)
    }

    pub fn progress(&self, id: &Id) -> anyhow::Result<Progress> {
        self.hear(Some((&id.node, id.number)))?;
        let mut wants = self.wants();
        let Some(want) = wants.get_mut(&(id.node.clone(), id.number)) else { return Ok(Progress::Unwanted) };
        want.asked = Instant::now();
        let progress = match (&want.answer, &want.coming, want.elsewhere) {
            (Answer::Refused, ..) => Progress::Refused,
            (Answer::Gone, ..) => Progress::Gone,
            (Answer::TooLarge(bytes), ..) => Progress::TooLarge { bytes: *bytes },
            (Answer::StoredElsewhere, ..) => Progress::StoredElsewhere,
            (_, Some(coming), _) => Progress::Receiving { bytes: coming.have, of: coming.size },
            (_, None, Some((bytes, of, at))) if at.elapsed() < COMING_WITHIN => Progress::Receiving { bytes, of },
            (_, None, _) => Progress::Waiting,
        };
        let is_open = matches!(want.answer, Answer::None);
        let says_so = is_open && want.asked_them.is_none_or(|at| at.elapsed() >= ASKED_EVERY);
        if let Some(board) = self.board.as_ref().filter(|_| says_so) {
            want.asked_them = Some(Instant::now());
            drop(wants);
            board.ask(&id.node, id.number, id.triggered_s)?;
        }
        Ok(progress)
    }

    /// Whether there are other collectors to hear.
    pub fn has_others(&self) -> bool {
        self.board.is_some()
    }

    /// What other collectors say: of all recordings, or of one.
    pub fn hear(&self, only: Option<(&str, u64)>) -> anyhow::Result<()> {
        let Some(board) = &self.board else { return Ok(()) };
        let wishes = board.read(WANTED_FOR.as_secs(), only)?;
        let mut wants = self.wants();
        wants.retain(|_, want| want.asked.elapsed() < WANTED_FOR);
        for wish in wishes {
            let key = (wish.node.clone(), wish.number);
            if wants.len() < MOST_WANTED || wants.contains_key(&key) {
                let ago = |ms| Instant::now().checked_sub(Duration::from_millis(ms)).unwrap_or_else(Instant::now);
                let asked = ago(wish.asked_ago);
                let want = wants.entry(key).or_insert_with(|| Want::new(wish.triggered.into(), asked));
                heard(want, &wish, asked, ago(wish.told_ago));
            }
        }
        Ok(())
    }

    fn tell(&self, node: &str, number: u64, state: &str, bytes: u64, of: u64) -> anyhow::Result<()> {
        self.board.as_ref().map_or(Ok(()), |board| board.tell(node, number, state, bytes, of))
    }

    /// What to tell a node.
    pub fn wanted_of(&self, node: &str) -> Vec<WantedFile> {
        let wants = self.wants();
        let open = wants.iter().filter(|((of, _), want)| {
            of == node && matches!(want.answer, Answer::None) && want.asked.elapsed() < WANTED_FOR
        });
        open.map(|((_, incident), _)| WantedFile { incident: *incident }).take(MOST_TOLD).collect()
    }

    /// The node sends nothing, and says why.
    pub fn unsent(&self, node: &str, number: u64, why: &str) -> Result<(), NotReceived> {
        self.hear_of_new(node, number)?;
        let mut wants = self.wants();
        let want = wants.get_mut(&(node.to_owned(), number)).ok_or(NotReceived::NotWanted)?;
        want.answer = match why {
            REFUSED => Answer::Refused,
            GONE => Answer::Gone,
            _ => return Err(NotReceived::Bad("unsent: expected refused or gone")),
        };
        want.coming = None;
        drop(wants);
        Ok(self.tell(node, number, why, 0, 0)?)
    }

    /// Another collector may have told the node of it a moment ago.
    fn hear_of_new(&self, node: &str, number: u64) -> anyhow::Result<()> {
        let is_known = self.wants().contains_key(&(node.to_owned(), number));
        if is_known { Ok(()) } else { self.hear(Some((node, number))) }
    }

    /// Before a file begins here, and after a pause: does another collector take it?
    fn claim(&self, key: &(String, u64), size: u64) -> Result<(), NotReceived> {
        if self.board.is_none() {
            return Ok(());
        }
        let is_ours =
            |want: &Want| want.coming.is_some() && want.told_them.is_some_and(|at| at.elapsed() < TAKEN_WITHIN / 2);
        if self.wants().get(key).is_some_and(is_ours) {
            return Ok(());
        }
        self.hear(Some((&key.0, key.1)))?;
        let mut wants = self.wants();
        let want = wants.get_mut(key).ok_or(NotReceived::NotWanted)?;
        if want.is_elsewhere() {
            want.coming = None;
            return Err(NotReceived::Busy);
        }
        if !matches!(want.answer, Answer::None) {
            return Ok(());
        }
        want.told_them = Some(Instant::now());
        drop(wants);
        Ok(self.tell(&key.0, key.1, "receiving", 0, size)?)
    }

    /// Returns how much of the file is here.
    pub fn receive(&self, node: &str, number: u64, piece: &Piece<'_>) -> Result<u64, NotReceived> {
        let is_hex = piece.sha256.len() == 64 && piece.sha256.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        if !is_hex {
            return Err(NotReceived::Bad("sha256: expected 64 hexadecimal digits"));
        }
        let end = piece.offset.saturating_add(piece.bytes.len() as u64);
        if piece.bytes.len() as u64 > PIECE_BYTES || end > piece.size {
            return Err(NotReceived::Bad("a piece is larger than 256 KiB, or goes beyond the file's end"));
        }
        let key = (node.to_owned(), number);
        self.hear_of_new(node, number)?;
        self.claim(&key, piece.size)?;
        let begun = self.begin(&key, piece);
        if begun == Err(NotReceived::TooLarge) {
            self.tell(node, number, "too large", 0, piece.size)?;
        }
        let Some((id, known)) = begun? else {
            // Its answer was lost.
            return if end == piece.size { Ok(end) } else { Err(NotReceived::Elsewhere(piece.size)) };
        };
        let taken = self.take(&id, piece, known);
        let mut wants = self.wants();
        if let Some(want) = wants.get_mut(&key) {
            want.is_busy = false;
            let have = match &taken {
                Ok(have) | Err(NotReceived::Elsewhere(have)) => Some(*have),
                Err(_) => None,
            };
            let coming = |have| Coming { sha256: piece.sha256.to_owned(), size: piece.size, have, at: Instant::now() };
            want.coming = have.map(coming);
            if taken == Ok(piece.size) {
                (want.answer, want.coming) = (Answer::Stored, None);
            }
            let state = if matches!(want.answer, Answer::Stored) { "stored" } else { "receiving" };
            if let Some(have) = have
                && (state == "stored" || want.told_them.is_none_or(|at| at.elapsed() >= TOLD_EVERY))
            {
                want.told_them = Some(Instant::now());
                drop(wants);
                // The next piece tells as well; a stored file is found in any case.
                let _ = self.tell(node, number, state, have, piece.size);
            }
        }
        taken
    }

    /// Marks it as busy; and how much is here, if that is known. `None`: all of it is.
    fn begin(&self, key: &(String, u64), piece: &Piece<'_>) -> Result<Option<(Id, Option<u64>)>, NotReceived> {
        let mut wants = self.wants();
        let coming = wants.values().filter_map(|want| want.coming.as_ref());
        let coming = coming.filter(|coming| coming.at.elapsed() < COMING_WITHIN).count();
        let want = wants.get_mut(key).ok_or(NotReceived::NotWanted)?;
        if matches!(want.answer, Answer::Stored | Answer::StoredElsewhere) {
            return Ok(None);
        }
        if piece.size > MOST_IN_FILE.min(self.limits.bytes) {
            want.answer = Answer::TooLarge(piece.size);
            return Err(NotReceived::TooLarge);
        }
        let same = want.coming.as_ref().filter(|c| c.sha256 == piece.sha256 && c.size == piece.size);
        let known = same.map(|coming| coming.have);
        if want.is_busy || known.is_none() && coming >= MOST_COMING {
            return Err(NotReceived::Busy);
        }
        want.is_busy = true;
        Ok(Some((Id { node: key.0.clone(), number: key.1, triggered_s: want.triggered_s }, known)))
    }

    fn take(&self, id: &Id, piece: &Piece<'_>, known: Option<u64>) -> Result<u64, NotReceived> {
        let path = self.parts.join(format!("{}-{}-{}.part", place::node_name(&id.node), id.number, piece.sha256));
        let cannot = || format!("cannot write {}", path.display());
        let have = match known {
            Some(have) => have,
            None => {
                self.remove_other_parts(id, &path)?;
                self.tidy(piece.size)?;
                // What came before a restart of the collector.
                std::fs::metadata(&path).map_or(0, |about| about.len())
            }
        };
        if have > piece.size {
            let _ = std::fs::remove_file(&path);
            return Err(NotReceived::Elsewhere(0));
        }
        if piece.offset != have {
            return Err(NotReceived::Elsewhere(have));
        }
        let mut options = File::options();
        let mut file =
            options.read(true).write(true).create(true).truncate(false).mode(0o600).open(&path).with_context(cannot)?;
        let written = file.seek(SeekFrom::Start(have)).and_then(|_| file.write_all(piece.bytes));
        if let Err(error) = written {
            // Half a piece is none.
            let _ = file.set_len(have);
            return Err(anyhow::Error::from(error).context(cannot()).into());
        }
        let have = have + piece.bytes.len() as u64;
        if have < piece.size {
            return Ok(have);
        }
        if sha256(&mut file).with_context(cannot)? != piece.sha256 {
            std::fs::remove_file(&path).with_context(cannot)?;
            return Err(NotReceived::Damaged);
        }
        file.sync_all().with_context(cannot)?;
        self.place.store(id, piece.sha256, &path)?;
        let _ = std::fs::remove_file(&path);
        Ok(have)
    }

    /// Of each wanted file there is one part, whatever a node claims it to be.
    fn remove_other_parts(&self, id: &Id, path: &Path) -> anyhow::Result<()> {
        let begins = format!("{}-{}-", place::node_name(&id.node), id.number);
        for (other, ..) in place::listed(&self.parts)? {
            let is_same = other.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&begins));
            if is_same && other != path {
                std::fs::remove_file(&other).with_context(|| format!("cannot remove {}", other.display()))?;
            }
        }
        Ok(())
    }

    pub fn find(&self, id: &Id) -> anyhow::Result<Option<Stored>> {
        self.place.find(id)
    }

    pub fn open_stored(&self, stored: &Stored) -> anyhow::Result<Box<dyn Read + Send>> {
        self.place.open(stored)
    }

    /// Removes what is too old, and the oldest until so many bytes more have room; fails if they cannot have it.
    pub fn tidy(&self, room: u64) -> anyhow::Result<()> {
        let now = SystemTime::now();
        let is_older = |at: SystemTime, than: Duration| now.duration_since(at).is_ok_and(|age| age > than);
        let mut bytes = room;
        for (path, size, changed) in place::listed(&self.parts)? {
            match is_older(changed, PARTS_KEPT) {
                true => std::fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?,
                false => bytes += size,
            }
        }
        let mut stored = self.place.all()?;
        stored.sort_by_key(|stored| stored.at);
        bytes += stored.iter().map(|stored| stored.bytes).sum::<u64>();
        for oldest in stored {
            if bytes <= self.limits.bytes && !is_older(oldest.at, self.limits.age) {
                break;
            }
            self.place.remove(&oldest)?;
            bytes = bytes.saturating_sub(oldest.bytes);
        }
        ensure!(
            room == 0 || bytes <= self.limits.bytes,
            "files that are still coming leave no room for another (--files-max)"
        );
        Ok(())
    }
}

/// What is known here is newer than what this collector told itself.
fn heard(want: &mut Want, wish: &Wish, asked: Instant, told: Instant) {
    // A second, as its time is that of another clock.
    if asked > want.asked + Duration::from_secs(1) && want.coming.is_none() {
        (want.asked, want.answer) = (asked, Answer::None);
    }
    if !wish.is_of_another || wish.state.is_empty() {
        return;
    }
    want.elsewhere = (wish.state == "receiving").then_some((wish.bytes, wish.of, told));
    let answer = match wish.state.as_str() {
        REFUSED => Answer::Refused,
        GONE => Answer::Gone,
        "too large" => Answer::TooLarge(wish.of),
        "stored" => Answer::StoredElsewhere,
        _ => return,
    };
    (want.answer, want.coming) = (answer, None);
}

fn sha256(file: &mut File) -> std::io::Result<String> {
    file.seek(SeekFrom::Start(0))?;
    let mut context = digest::Context::new(&digest::SHA256);
    let mut buffer = vec![0; PIECE_BYTES as usize];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hex(context.finish().as_ref())),
            read => context.update(&buffer[..read]),
        }
    }
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests;
