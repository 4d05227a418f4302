//! The segments in the recorder's directory: their size, eviction, and repair after a kill.

use crate::warn;
use coroner_evidence::Wall;
use coroner_evidence::own_directory::id_of;
use coroner_evidence::recording::{self, RecordingError, Writer, segments as names};
use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};

/// A segment is at most this fraction of the limit, so that each eviction removes little.
const PARTS: u64 = 16;
/// Space freed ahead of need: about a second of a large node.
const AHEAD: u64 = 1 << 20;
/// What each segment begins with takes most of a megabyte; a smaller segment would hold little else.
const SMALLEST_SEGMENT: u64 = 2 << 20;

pub struct Segments {
    directory: PathBuf,
    limit: u64,
    /// To notice if the path later leads to another directory, or to a link.
    id: Option<(u64, u64)>,
    /// Oldest first, with the size last seen.
    files: VecDeque<(PathBuf, u64)>,
}

impl Segments {
    /// Resumes with the segments in the directory, which nobody else writes.
    pub fn open(directory: &Path, limit: u64) -> std::io::Result<Segments> {
        let (found, _) = names::list(directory)?;
        let mut files = VecDeque::new();
        for segment in found {
            if !after_a_kill(&segment.path) {
                continue;
            }
            let bytes = size_with_log(&segment.path);
            files.push_back((segment.path, bytes));
        }
        Ok(Segments { directory: directory.to_owned(), limit, id: id_of(directory), files })
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    pub fn limit(&self) -> u64 {
        self.limit
    }

    pub fn count(&self) -> usize {
        self.files.len()
    }

    /// How large a segment may become.
    pub fn largest(&self) -> u64 {
        (self.limit / PARTS).max(SMALLEST_SEGMENT)
    }

    pub fn size_of_open(&self, path: &Path) -> u64 {
        size_with_log(path)
    }

    /// All segments together.
    pub fn bytes(&self, open: Option<&Path>) -> u64 {
        let sealed = self.files.iter().filter(|(path, _)| Some(path.as_path()) != open).map(|(_, bytes)| bytes);
        sealed.sum::<u64>() + open.map_or(0, size_with_log)
    }

    /// Begins the segment of this moment.
    pub fn create(&mut self, wall: Wall) -> Result<(PathBuf, Writer), RecordingError> {
        if self.id.is_none() || id_of(&self.directory) != self.id {
            let why = "was removed, moved or replaced after recording began".to_owned();
            return Err(RecordingError::Other { path: self.directory.clone(), why });
        }
        let mut place = 1;
        loop {
            let path = self.directory.join(names::name(wall, place));
            match Writer::create(&path) {
                Ok(writer) => {
                    self.files.push_back((path.clone(), 0));
                    return Ok((path, writer));
                }
                Err(RecordingError::Exists { .. } | RecordingError::LeftOver { .. }) if place < 1000 => place += 1,
                Err(error) => return Err(error),
            }
        }
    }

    /// Removes the oldest until there is room; those that an open incident needs only if nothing else is left.
    pub fn make_room(&mut self, open: Option<&Path>, needed_from: Option<Wall>) {
        self.measure(open);
        while self.bytes(open) + AHEAD.min(self.limit / PARTS) > self.limit {
            let may_go = |path: &Path| Some(path) != open;
            let needed = |path: &Path| needed_from.is_some_and(|from| ends_after(path, from));
            let at = self.files.iter().position(|(path, _)| may_go(path) && !needed(path));
            let Some(at) = at.or_else(|| self.files.iter().position(|(path, _)| may_go(path))) else { return };
            let Some((path, _)) = self.files.remove(at) else { return };
            remove(&path);
        }
    }

    /// A segment being sealed still changes its size, and somebody may have removed one.
    fn measure(&mut self, open: Option<&Path>) {
        let from = self.files.len().saturating_sub(3);
        for (path, bytes) in self.files.iter_mut().skip(from) {
            if Some(path.as_path()) != open {
                *bytes = size_with_log(path);
            }
        }
    }
}

/// Judged without its successor's name: a segment may hold ten minutes from its beginning.
fn ends_after(path: &Path, wall: Wall) -> bool {
    names::start_of(path).unwrap_or_default() + names::LONGEST > wall
}

fn remove(path: &Path) {
    // The log first: left alone, it would be taken for part of a new file of the same name.
    for suffix in ["-wal", "-shm", ""] {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        if let Err(error) = fs::remove_file(&name)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            warn(&format!("cannot remove {}: {error}", Path::new(&name).display()));
        }
    }
}

fn size_with_log(path: &Path) -> u64 {
    ["", "-wal", "-shm"]
        .iter()
        .map(|suffix| {
            let mut name = path.as_os_str().to_owned();
            name.push(suffix);
            fs::metadata(name).map_or(0, |meta| meta.len())
        })
        .sum()
}

/// Merges the log of a killed writer into its file. False if the segment was empty and was removed.
fn after_a_kill(path: &Path) -> bool {
    if fs::metadata(path).is_ok_and(|meta| meta.len() == 0) {
        remove(path);
        return false;
    }
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    if fs::symlink_metadata(&log).is_ok()
        && let Err(error) = recording::fold_log(path)
    {
        warn(&format!("{error}; the file is left as it is and can be read"));
    }
    true
}
