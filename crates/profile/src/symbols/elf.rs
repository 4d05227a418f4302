//! Symbols of programs and libraries, by blazesym.

use std::collections::HashMap;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use blazesym::symbolize::source::{Elf, Source};
use blazesym::symbolize::{Input, Symbolizer};

/// A function and where it lies in its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    pub name: String,
    pub offsets: Range<u64>,
}

pub(super) struct ElfSymbols {
    symbolizer: Symbolizer,
    /// Which file stands for a recorded path and build id; `None` if none does.
    files: HashMap<(String, Option<Vec<u8>>), Option<Named>>,
}

/// Where the names of a mapped file are.
struct Named {
    /// The file itself, or the one with its debug symbols.
    file: PathBuf,
    /// What the file that was mapped loads where.
    segments: Vec<Segment>,
}

/// A part of a file that is loaded: offset, size, address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Segment {
    offset: u64,
    size: u64,
    address: u64,
}

impl Default for ElfSymbols {
    fn default() -> ElfSymbols {
        let symbolizer =
            Symbolizer::builder().enable_code_info(false).enable_inlined_fns(false).enable_auto_reload(false);
        ElfSymbols { symbolizer: symbolizer.build(), files: HashMap::new() }
    }
}

impl ElfSymbols {
    /// The function at an offset into the file. An error is said once for each file.
    pub fn find(
        &mut self,
        root: &Path,
        path: &str,
        build_id: Option<&[u8]>,
        file_offset: u64,
    ) -> Result<Option<Function>, String> {
        let key = (path.to_owned(), build_id.map(<[u8]>::to_vec));
        if !self.files.contains_key(&key) {
            let (file, problem) = match file_for(root, path, build_id) {
                Ok(file) => (Some(file), None),
                Err(problem) => (None, Some(problem)),
            };
            self.files.insert(key.clone(), file);
            if let Some(problem) = problem {
                return Err(problem);
            }
        }
        let Some(Some(Named { file, segments })) = self.files.get(&key) else { return Ok(None) };
        let segment = segments.iter().find(|segment| file_offset.wrapping_sub(segment.offset) < segment.size);
        let Some(segment) = segment else { return Ok(None) };
        let address = segment.address.wrapping_add(file_offset - segment.offset);
        let source = Source::Elf(Elf::new(file));
        match self.symbolizer.symbolize_single(&source, Input::VirtOffset(address)) {
            Ok(symbolized) => Ok(symbolized.into_sym().map(|symbol| {
                let start = symbol.addr.wrapping_sub(segment.address).wrapping_add(segment.offset);
                let end = start.saturating_add(symbol.size.unwrap_or(0) as u64);
                let covers = (start..end).contains(&file_offset);
                let offsets = if covers { start..end } else { file_offset..file_offset.saturating_add(1) };
                Function { name: symbol.name.into_owned(), offsets }
            })),
            Err(error) => {
                let problem = format!("{path}: {error}");
                self.files.insert(key, None);
                Err(problem)
            }
        }
    }
}

/// The file with the names: the distribution's debug file if there is one for the recorded build id, else the file itself, else
/// perf's cache of files (`~/.debug`).
fn file_for(root: &Path, path: &str, build_id: Option<&[u8]>) -> Result<Named, String> {
    let file = root.join(path.trim_start_matches('/'));
    let there = file.is_file();
    let on_disk = there.then(|| blazesym::helper::read_elf_build_id(&file).ok().flatten()).flatten();
    let wanted = build_id.filter(|id| id.len() > 2).or(on_disk.as_deref());
    let Some(wanted) = wanted else {
        return if there {
            named(file.clone(), &file)
        } else {
            Err(format!("{path}: no such file; its functions stay unnamed"))
        };
    };
    let hex: String = wanted.iter().map(|byte| format!("{byte:02x}")).collect();
    let (first, rest) = hex.split_at(2);
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let cached = home.join(format!(".debug/.build-id/{first}/{rest}/elf"));
    let mapped = if on_disk.as_deref() == Some(wanted) {
        file
    } else if cached.is_file() {
        cached
    } else if there {
        return Err(format!("{path}: is not the file that ran (that had build id {hex}); its functions stay unnamed"));
    } else {
        return Err(format!("{path}: no such file, nor one with build id {hex}; its functions stay unnamed"));
    };
    let debug = root.join(format!("usr/lib/debug/.build-id/{first}/{rest}.debug"));
    let names = if debug.is_file() { debug } else { mapped.clone() };
    named(names, &mapped)
}

fn named(file: PathBuf, mapped: &Path) -> Result<Named, String> {
    match segments(mapped) {
        Some(segments) if !segments.is_empty() => Ok(Named { file, segments }),
        _ => Err(format!("{}: is no program or library; its functions stay unnamed", mapped.display())),
    }
}

/// The loaded parts of a 64-bit ELF file of this machine's byte order.
fn segments(path: &Path) -> Option<Vec<Segment>> {
    const LOAD: u32 = 1;
    let file = File::open(path).ok()?;
    let mut head = [0; 64];
    file.read_exact_at(&mut head, 0).ok()?;
    let word = |bytes: &[u8], at: usize| Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    let half = |at: usize| usize::from(u16::from_ne_bytes([head[at], head[at + 1]]));
    if !head.starts_with(b"\x7fELF\x02") {
        return None;
    }
    let (table, each, count) = (word(&head, 32)?, half(54), half(56));
    if each < 56 {
        return None;
    }
    let mut bytes = vec![0; each * count];
    file.read_exact_at(&mut bytes, table).ok()?;
    let segment = |entry: &[u8]| {
        let kind = u32::from_ne_bytes(entry[..4].try_into().ok()?);
        let segment = Segment { offset: word(entry, 8)?, address: word(entry, 16)?, size: word(entry, 32)? };
        (kind == LOAD).then_some(segment)
    };
    Some(bytes.chunks_exact(each).filter_map(segment).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_program_names_its_own_functions_and_a_wrong_build_id_names_none() {
        let me = std::env::current_exe().expect("a path");
        let path = me.to_str().expect("text");
        let mut elf = ElfSymbols::default();
        // The test's own code, found through the map of this process.
        let address = this_program_names_its_own_functions_and_a_wrong_build_id_names_none as fn() as usize as u64;
        let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
        let offset = maps
            .lines()
            .find_map(|line| {
                let mut words = line.split_ascii_whitespace();
                let (range, _, offset) = (words.next()?, words.next()?, words.next()?);
                let (start, end) = range.split_once('-')?;
                let hex = |text| u64::from_str_radix(text, 16).ok();
                let (start, end) = (hex(start)?, hex(end)?);
                (start..end).contains(&address).then(|| hex(offset).map(|offset| offset + address - start))?
            })
            .expect("the code is mapped");
        let found = elf.find(Path::new("/"), path, None, offset).expect("a file").expect("a name");
        assert!(found.name.contains("this_program_names_its_own_functions"), "{found:?}");
        assert!(found.offsets.contains(&offset), "{found:?}");
        let other = elf.find(Path::new("/"), path, Some(&[7; 20]), offset);
        assert!(other.is_err_and(|problem| problem.contains("not the file that ran")));
        assert!(elf.find(Path::new("/"), "/no/such/file", None, 0).is_err());
        assert!(elf.find(Path::new("/"), "/proc/self/maps", None, 0).is_err());
    }
}
