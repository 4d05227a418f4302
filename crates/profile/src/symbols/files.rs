//! Symbol tables that were read, within a bound.

use std::collections::HashMap;

use super::elf::NamedFile;
use crate::model::hash::Seeded;

/// The most files that are kept with their symbols; a node runs some hundred.
const MAX_FILES: usize = 4096;

/// By the caller's number.
pub(super) struct Files {
    files: HashMap<u32, Kept, Seeded>,
    most_bytes: usize,
    bytes: usize,
    /// Counts looks, to know what was not asked for longest.
    looks: u64,
    pub read: u64,
}

struct Kept {
    /// `None`: there is nothing to be named by.
    file: Option<NamedFile>,
    bytes: usize,
    looked: u64,
}

impl Files {
    pub fn new(most_bytes: usize) -> Files {
        Files { files: HashMap::default(), most_bytes, bytes: 0, looks: 0, read: 0 }
    }

    pub fn has(&self, number: u32) -> bool {
        self.files.contains_key(&number)
    }

    pub fn clear(&mut self) {
        self.files.clear();
        self.bytes = 0;
    }

    pub fn get(&mut self, number: u32, read: impl FnOnce() -> Option<NamedFile>) -> Option<&mut NamedFile> {
        self.looks += 1;
        if !self.has(number) {
            let file = read();
            let bytes = file.as_ref().map_or(0, NamedFile::held_bytes);
            while self.files.len() >= MAX_FILES
                || (self.bytes.saturating_add(bytes) > self.most_bytes && self.bytes > 0)
            {
                self.drop_oldest();
            }
            self.read += 1;
            self.bytes += bytes;
            self.files.insert(number, Kept { file, bytes, looked: self.looks });
        }
        let kept = self.files.get_mut(&number)?;
        kept.looked = self.looks;
        kept.file.as_mut()
    }

    fn drop_oldest(&mut self) {
        let with_bytes = self.files.len() < MAX_FILES;
        let candidates = self.files.iter().filter(|(_, kept)| !with_bytes || kept.bytes > 0);
        let oldest = candidates.min_by_key(|(_, kept)| kept.looked).map(|(number, _)| *number);
        match oldest.and_then(|number| self.files.remove(&number)) {
            Some(kept) => self.bytes -= kept.bytes,
            None => self.clear(),
        }
    }
}
