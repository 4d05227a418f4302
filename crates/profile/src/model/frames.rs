//! One frame of a stack: a function in a module. Addresses are dropped: they would make nearly every stack distinct.

use serde::{Deserialize, Serialize};

use super::{StrId, Strings, WordTable};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FrameId(pub u32);

/// Whose code a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FramePlace {
    User,
    /// Code generated at run time; named by perf's `/tmp/perf-PID.map`.
    Jit,
    Kernel,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Frame {
    /// The function as the file or the symbol table names it; empty if unknown.
    pub symbol: StrId,
    /// The path or bracketed name of the mapping; empty if not recorded.
    pub module: StrId,
    pub place: FramePlace,
    /// Inlined into the function below it.
    pub inlined: bool,
}

/// The location of an unnamed frame, so that it can be named later, possibly on another machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileOffset {
    /// Build id of the file, in hexadecimal.
    pub build_id: StrId,
    /// File offset of the function if known, else of the address.
    pub offset: u64,
}

/// Interned frames.
#[derive(Clone, Debug, Default)]
pub struct Frames {
    table: WordTable,
}

impl Frames {
    pub fn intern(&mut self, frame: Frame) -> FrameId {
        FrameId(self.table.intern(&words(frame)).0)
    }

    /// An unnamed frame, distinguished from others of the same file by its offset.
    pub fn intern_in_file(&mut self, frame: Frame, at: FileOffset) -> FrameId {
        let [symbol, module, kind] = words(frame);
        FrameId(self.table.intern(&[symbol, module, kind, at.build_id.0, at.offset as u32, (at.offset >> 32) as u32]).0)
    }

    /// The location of an unnamed frame, if it was kept.
    pub fn file_offset(&self, id: FrameId) -> Option<FileOffset> {
        match self.table.get(id.0) {
            [_, _, _, build_id, low, high] => {
                Some(FileOffset { build_id: StrId(*build_id), offset: u64::from(*high) << 32 | u64::from(*low) })
            }
            _ => None,
        }
    }

    pub fn get(&self, id: FrameId) -> Frame {
        let words = self.table.get(id.0);
        let place = match words[2] >> 1 {
            0 => FramePlace::User,
            1 => FramePlace::Jit,
            _ => FramePlace::Kernel,
        };
        Frame { symbol: StrId(words[0]), module: StrId(words[1]), place, inlined: words[2] & 1 == 1 }
    }

    pub fn held_bytes(&self) -> usize {
        self.table.held_bytes()
    }

    pub fn len(&self) -> usize {
        self.table.len()
    }

    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = (FrameId, Frame)> {
        (0..self.len() as u32).map(|id| (FrameId(id), self.get(FrameId(id))))
    }
}

fn words(frame: Frame) -> [u32; 3] {
    let place = match frame.place {
        FramePlace::User => 0,
        FramePlace::Jit => 1,
        FramePlace::Kernel => 2,
    };
    [frame.symbol.0, frame.module.0, place << 1 | u32::from(frame.inlined)]
}

impl Frame {
    pub fn symbol<'a>(&self, strings: &'a Strings) -> &'a str {
        strings.get(self.symbol)
    }

    pub fn module<'a>(&self, strings: &'a Strings) -> &'a str {
        strings.get(self.module)
    }
}
