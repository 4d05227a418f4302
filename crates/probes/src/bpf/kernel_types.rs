//! The kernel's type information (BTF), cut down to the types that our BPF programs name.
//!
//! All of it is more than 100,000 types: parsing and searching them takes a third of a second and 30 MB. The few hundred that
//! matter take milliseconds. Format: Documentation/bpf/btf.rst in the kernel sources.

use std::collections::{HashMap, HashSet};
use std::io;

use aya::{Btf, Endianness};

use super::kernel_file::KernelFile;

/// The running kernel's types that our objects name, and the types these contain.
pub struct KernelTypes {
    btf: Btf,
}

impl KernelTypes {
    pub const FILE: &str = "/sys/kernel/btf/vmlinux";

    /// The types that `objects` name.
    pub fn of_running_kernel(objects: &[&[u8]]) -> io::Result<KernelTypes> {
        let malformed = |e: &dyn std::error::Error| io::Error::new(io::ErrorKind::InvalidData, e.to_string());
        let mut wanted = HashSet::new();
        for object in objects {
            let object = aya_obj::Object::parse(object).map_err(|e| malformed(&e))?;
            if let Some(btf) = object.btf {
                names(&btf.to_bytes(), &mut wanted);
            }
        }
        let whole = KernelFile::open(KernelTypes::FILE)?;
        // aya may understand BTF that we do not.
        let cut = cut_down(&whole, &wanted);
        let btf = Btf::parse(cut.as_deref().unwrap_or(&whole), Endianness::default()).map_err(|e| malformed(&e))?;
        Ok(KernelTypes { btf })
    }

    pub(super) fn btf(&self) -> &Btf {
        &self.btf
    }
}

/// The types of the running kernel's tracepoints.
pub struct TracepointTypes {
    ids: HashMap<String, u32>,
}

impl TracepointTypes {
    /// Those that exist of these.
    pub fn of_running_kernel(tracepoints: &[&str]) -> io::Result<TracepointTypes> {
        let whole = KernelFile::open(KernelTypes::FILE)?;
        Ok(TracepointTypes { ids: tracepoint_types(&whole, tracepoints).unwrap_or_default() })
    }

    pub(super) fn id(&self, tracepoint: &str) -> Option<u32> {
        self.ids.get(tracepoint).copied()
    }
}

/// The kernel has a type `btf_trace_NAME` for each tracepoint (include/trace/bpf_probe.h).
fn tracepoint_types(btf: &[u8], tracepoints: &[&str]) -> Option<HashMap<String, u32>> {
    let (types, strings) = sections(btf)?;
    let (mut at, mut id, mut ids) = (0, 1, HashMap::new());
    while at < types.len() {
        let info = word(types, at + 4)?;
        if kind(info) == TYPEDEF {
            let name = string(strings, word(types, at)?)?;
            let traced = name.strip_prefix(b"btf_trace_").and_then(|name| std::str::from_utf8(name).ok());
            if let Some(name) = traced.filter(|name| tracepoints.contains(name)) {
                ids.insert(name.to_owned(), id);
            }
        }
        at = after(types, at, info)?;
        id += 1;
    }
    Some(ids)
}

const MAGIC: u16 = 0xeb9f;
/// The part of the header we need: magic, version, flags, header length, offsets and lengths of types and strings.
const HEADER: usize = 24;
const TYPE: usize = 12;

const INT: u32 = 1;
const PTR: u32 = 2;
const ARRAY: u32 = 3;
const STRUCT: u32 = 4;
const UNION: u32 = 5;
const ENUM: u32 = 6;
const FWD: u32 = 7;
const TYPEDEF: u32 = 8;
const VOLATILE: u32 = 9;
const CONST: u32 = 10;
const RESTRICT: u32 = 11;
const FUNC: u32 = 12;
const FUNC_PROTO: u32 = 13;
const VAR: u32 = 14;
const DATASEC: u32 = 15;
const FLOAT: u32 = 16;
const DECL_TAG: u32 = 17;
const TYPE_TAG: u32 = 18;
const ENUM64: u32 = 19;

/// The type and string sections; `None` if this is not BTF we understand.
fn sections(btf: &[u8]) -> Option<(&[u8], &[u8])> {
    if u16::from_le_bytes(btf.get(..2)?.try_into().ok()?) != MAGIC {
        return None;
    }
    let header = word(btf, 4)? as usize;
    let section = |offset: usize, length: usize| {
        let start = header.checked_add(word(btf, offset)? as usize)?;
        btf.get(start..start.checked_add(word(btf, length)? as usize)?)
    };
    Some((section(8, 12)?, section(16, 20)?))
}

/// The names of all structs, unions and enums, without the `___` suffix that marks versions of one type (CO-RE flavors).
fn names(btf: &[u8], into: &mut HashSet<Vec<u8>>) -> Option<()> {
    let (types, strings) = sections(btf)?;
    let mut at = 0;
    while at < types.len() {
        let info = word(types, at + 4)?;
        if is_named_whole(info) {
            let name = string(strings, word(types, at)?)?;
            let end = name.windows(3).position(|w| w == b"___").unwrap_or(name.len());
            if end > 0 {
                into.insert(name[..end].to_vec());
            }
        }
        at = after(types, at, info)?;
    }
    Some(())
}

/// `None` if this is not BTF we understand; the caller then passes all of it to aya.
fn cut_down(btf: &[u8], wanted: &HashSet<Vec<u8>>) -> Option<Vec<u8>> {
    let (types, strings) = sections(btf)?;
    // A type has 12 bytes, and its trailing data at least 12 more on average.
    Cut { types, strings, offsets: Vec::with_capacity(types.len() / 24) }.run(wanted)
}

/// Kinds that a relocation can name.
fn is_named_whole(info: u32) -> bool {
    matches!(kind(info), STRUCT | UNION | ENUM | ENUM64)
}

fn string(strings: &[u8], at: u32) -> Option<&[u8]> {
    strings.get(at as usize..)?.split(|b| *b == 0).next()
}

/// Where the next type starts.
fn after(types: &[u8], at: usize, info: u32) -> Option<usize> {
    let (size, count) = following(info)?;
    let next = at.checked_add(TYPE)?.checked_add(size.checked_mul(count)?)?;
    (next <= types.len()).then_some(next)
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

fn kind(info: u32) -> u32 {
    info >> 24 & 0x1f
}

/// Size and number of the items that follow a type.
fn following(info: u32) -> Option<(usize, usize)> {
    let count = (info & 0xffff) as usize;
    Some(match kind(info) {
        INT | VAR | DECL_TAG => (4, 1),
        ARRAY => (12, 1),
        STRUCT | UNION | DATASEC | ENUM64 => (12, count),
        ENUM | FUNC_PROTO => (8, count),
        PTR | FWD | TYPEDEF | VOLATILE | CONST | RESTRICT | FUNC | FLOAT | TYPE_TAG => (0, 0),
        _ => return None,
    })
}

struct Cut<'a> {
    types: &'a [u8],
    strings: &'a [u8],
    /// Where each type starts; type 1 is the first.
    offsets: Vec<u32>,
}

impl Cut<'_> {
    fn run(mut self, wanted: &HashSet<Vec<u8>>) -> Option<Vec<u8>> {
        let mut kept = Kept::default();
        let mut at = 0;
        while at < self.types.len() {
            let info = word(self.types, at + 4)?;
            self.offsets.push(at as u32);
            if is_named_whole(info) && wanted.contains(self.name(word(self.types, at)?)?) {
                kept.id(self.offsets.len() as u32);
            }
            at = after(self.types, at, info)?;
        }
        // Writing a type may queue the types it contains; each is written once.
        let mut written = 0;
        while let Some(&old) = kept.old.get(written) {
            self.write(old, &mut kept)?;
            written += 1;
        }
        Some(kept.finish())
    }

    fn name(&self, at: u32) -> Option<&[u8]> {
        string(self.strings, at)
    }

    fn write(&self, old: u32, kept: &mut Kept) -> Option<()> {
        let at = *self.offsets.get((old as usize).checked_sub(1)?)? as usize;
        let (name, info, last) = (word(self.types, at)?, word(self.types, at + 4)?, word(self.types, at + 8)?);
        let (size, count) = following(info)?;
        let name = kept.string(name, self.name(name)?);
        // The last word is a size for the first group and a type id for the rest. Pointed-to types do not matter.
        let last = match kind(info) {
            INT | STRUCT | UNION | ENUM | ENUM64 | FLOAT | FWD | DATASEC => last,
            PTR | FUNC | FUNC_PROTO => 0,
            ARRAY => 0,
            _ => kept.id(last),
        };
        kept.words(&[name, info, last]);
        for i in 0..count {
            let item = at + TYPE + i * size;
            let words = |n: usize| word(self.types, item + 4 * n);
            match kind(info) {
                STRUCT | UNION => {
                    let name = kept.string(words(0)?, self.name(words(0)?)?);
                    let of = kept.id(words(1)?);
                    kept.words(&[name, of, words(2)?]);
                }
                ENUM | ENUM64 => {
                    let name = kept.string(words(0)?, self.name(words(0)?)?);
                    kept.words(&[name]);
                    kept.bytes(self.types.get(item + 4..item + size)?);
                }
                ARRAY => {
                    let (element, index) = (kept.id(words(0)?), kept.id(words(1)?));
                    kept.words(&[element, index, words(2)?]);
                }
                FUNC_PROTO => kept.words(&[0, 0]),
                _ => kept.bytes(self.types.get(item..item + size)?),
            }
        }
        Some(())
    }
}

/// The types that stay, renumbered in the order they were found.
#[derive(Default)]
struct Kept {
    old: Vec<u32>,
    new: HashMap<u32, u32>,
    types: Vec<u8>,
    strings: Vec<u8>,
    new_strings: HashMap<u32, u32>,
}

impl Kept {
    fn id(&mut self, old: u32) -> u32 {
        if old == 0 {
            return 0;
        }
        let kept = &mut self.old;
        *self.new.entry(old).or_insert_with(|| {
            kept.push(old);
            kept.len() as u32
        })
    }

    fn string(&mut self, old: u32, text: &[u8]) -> u32 {
        if text.is_empty() {
            return 0;
        }
        let strings = &mut self.strings;
        *self.new_strings.entry(old).or_insert_with(|| {
            // Offset 0 is the empty string.
            let at = strings.len() as u32 + 1;
            strings.extend_from_slice(text);
            strings.push(0);
            at
        })
    }

    fn words(&mut self, words: &[u32]) {
        for word in words {
            self.bytes(&word.to_le_bytes());
        }
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.types.extend_from_slice(bytes);
    }

    fn finish(self) -> Vec<u8> {
        let (types, strings) = (self.types.len() as u32, self.strings.len() as u32 + 1);
        let mut btf = Vec::with_capacity(HEADER + self.types.len() + self.strings.len() + 1);
        btf.extend_from_slice(&MAGIC.to_le_bytes());
        btf.extend_from_slice(&[1, 0]);
        for word in [HEADER as u32, 0, types, types, strings] {
            btf.extend_from_slice(&word.to_le_bytes());
        }
        btf.extend_from_slice(&self.types);
        btf.push(0);
        btf.extend_from_slice(&self.strings);
        btf
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    static OBJECT: &[u8] = aya::include_bytes_aligned!("../../../../bpf/zombies.test_run.o");

    fn wanted() -> HashSet<Vec<u8>> {
        let mut wanted = HashSet::new();
        let object = aya_obj::Object::parse(OBJECT).unwrap();
        names(&object.btf.unwrap().to_bytes(), &mut wanted).unwrap();
        wanted
    }

    #[test]
    fn an_object_names_the_types_it_needs() {
        let wanted = wanted();
        for name in ["mem_cgroup", "cgroup_subsys_state", "cgroup_subsys_id", "page", "kernfs_node"] {
            assert!(wanted.contains(name.as_bytes()), "{name}");
        }
        assert!(!wanted.iter().any(|name| name.windows(3).any(|w| w == b"___") || name.is_empty()));
    }

    #[test]
    fn this_kernels_types_shrink_tenfold_and_still_parse() {
        let Ok(whole) = std::fs::read(KernelTypes::FILE) else {
            return coroner_lab::skip("needs /sys/kernel/btf/vmlinux");
        };
        let cut = cut_down(&whole, &wanted()).expect("BTF we understand");
        assert!(cut.len() * 10 < whole.len(), "{} of {} bytes", cut.len(), whole.len());
        Btf::parse(&cut, Endianness::default()).unwrap();
        eprintln!("{} of {} bytes", cut.len(), whole.len());
    }

    proptest! {
        #[test]
        fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..200), types in 0u32..120) {
            let mut btf = vec![0x9f, 0xeb, 1, 0];
            for word in [24, 0, types, types, 60] {
                btf.extend_from_slice(&u32::to_le_bytes(word));
            }
            btf.extend_from_slice(&bytes);
            let mut wanted = HashSet::new();
            names(&btf, &mut wanted);
            names(&bytes, &mut wanted);
            cut_down(&btf, &wanted);
            cut_down(&bytes, &wanted);
        }
    }
}
