//! Frames recorded without a name: an offset in a file that is identified by its build id.

use std::collections::{BTreeMap, HashMap};

use crate::model::{Dictionary, FileOffset, Frame, FrameId, FramePlace};
use crate::symbols::{Answer, MappedFile, Symbols};

/// What is done with them.
pub(super) enum Places<'s> {
    /// They stay unnamed.
    Kept,
    /// They are named by the files of this machine with the same build id. All offsets of a function become one frame; what stays
    /// unnamed becomes one frame per file, as in other profiles.
    Named(Files<'s>),
}

/// Ends and frames by start.
type Functions = BTreeMap<u64, (u64, FrameId)>;

pub(super) struct Files<'s> {
    symbols: &'s mut Symbols,
    /// By build id: a number for the symbols, and functions named before.
    known: HashMap<String, (u32, Functions)>,
}

impl<'s> Places<'s> {
    pub fn named_by(symbols: &'s mut Symbols) -> Places<'s> {
        Places::Named(Files { symbols, known: HashMap::new() })
    }

    pub fn frame(&mut self, names: &mut Dictionary, frame: Frame, build_id: &str, offset: u64) -> FrameId {
        match self {
            Places::Kept => {
                let at = FileOffset { build_id: names.strings.intern(build_id), offset };
                names.frames.intern_in_file(frame, at)
            }
            Places::Named(files) => files.frame(names, frame, build_id, offset),
        }
    }
}

impl Files<'_> {
    fn frame(&mut self, names: &mut Dictionary, frame: Frame, build_id: &str, offset: u64) -> FrameId {
        let id = unhex(build_id).filter(|id| !id.is_empty() && frame.place == FramePlace::User);
        let Some(id) = id else { return names.frames.intern(frame) };
        let next = self.known.len() as u32;
        if !self.known.contains_key(build_id) {
            self.known.insert(build_id.to_owned(), (next, BTreeMap::new()));
        }
        let Some((number, functions)) = self.known.get_mut(build_id) else { return names.frames.intern(frame) };
        if let Some((_, (end, known))) = functions.range(..=offset).next_back()
            && offset < *end
        {
            return *known;
        }
        let path = names.strings.get(frame.module).to_owned();
        let file = MappedFile { number: *number, path: &path, build_id: Some(&id), inode: None, pid: 0 };
        match self.symbols.user(&file, offset) {
            Answer::Function(function) => {
                let symbol = names.strings.intern(&function.name);
                let named = names.frames.intern(Frame { symbol, ..frame });
                functions.insert(function.offsets.start, (function.offsets.end, named));
                named
            }
            _ => names.frames.intern(frame),
        }
    }
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes().chunks_exact(2);
    if !digits.remainder().is_empty() || text.len() > 64 {
        return None;
    }
    digits.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}
