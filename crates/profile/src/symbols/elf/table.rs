//! The symbol tables of a file, by address.

use std::cmp::Reverse;
use std::ops::Range;

use super::debugdata;
use super::demangle::demangle;
use super::image::{Image, Section, u32_at, u64_at};
use super::plt::Plt;

/// No symbol table is larger than this (a large browser's is some 100 MB).
pub(super) const MAX_SYMBOLS: u64 = 1 << 30;
/// How much of a table is read at once, in whole entries.
const CHUNK: usize = 24 * 4096;
/// How far a function that holds others is looked for.
const NESTED: usize = 32;
/// Where the last function ends if it does not say: perf takes the page it is on and one more.
const PAGE: u64 = 4096;

pub(super) struct Table {
    /// By start; of several with one start in the order of the files.
    symbols: Vec<Symbol>,
    /// The tables that [`Symbol::table`] counts: in which image, the symbols, their strings.
    tables: Vec<(usize, Section, Section)>,
    images: Vec<Image>,
    /// The size of the longest function.
    longest: u64,
    plt: Option<Plt>,
}

/// Small, as there may be a million of them.
#[derive(Clone, Copy)]
struct Symbol {
    start: u64,
    /// Where its name is among the strings. It is looked up there when it is asked for.
    name: u32,
    /// Its size, below it which table it is from, below it how much its name is preferred.
    packed: u32,
}

const MAX_SIZE: u64 = (1 << 26) - 1;

impl Symbol {
    fn size(self) -> u64 {
        u64::from(self.packed >> 6)
    }

    fn table(self) -> usize {
        (self.packed >> 3 & 7) as usize
    }

    /// The more, the rather is its name shown.
    fn rank(self) -> u32 {
        self.packed & 7
    }
}

const SYMTAB: u32 = 2;
const DYNSYM: u32 = 11;

impl Table {
    /// Reads the tables of `mapped` and, if there is one, of the file with its debug symbols. `None` if one is larger than `most`.
    pub fn read(mapped: Image, debug: Option<Image>, most: u64) -> Option<Table> {
        let sections = mapped.sections()?;
        let packed = sections.iter().find(|section| section.name == b".gnu_debugdata");
        let packed = packed.and_then(|section| mapped.bytes(section.offset, section.size, most));
        let plt = Plt::of(&mapped, &sections);
        let stripped = !sections.iter().any(|section| section.kind == SYMTAB);
        let mut table = Table { symbols: Vec::new(), tables: Vec::new(), images: Vec::new(), longest: 0, plt };
        if stripped
            && debug.is_none()
            && let Some(packed) = packed.and_then(|packed| debugdata::unpack(&packed, most))
            && let Some(sections) = packed.sections()
        {
            table.add(packed, &sections, &[SYMTAB], most)?;
        }
        let has_names = |sections: &[Section]| sections.iter().any(|at| at.kind == SYMTAB && at.size > 24);
        let debug_sections = debug.as_ref().and_then(Image::sections).filter(|sections| has_names(sections));
        // The dynamic symbols are among all symbols, where those are.
        let whole = debug_sections.is_some() || has_names(&sections);
        if let (Some(debug), Some(sections)) = (debug, debug_sections) {
            table.add(debug, &sections, &[SYMTAB], most)?;
        }
        table.add(mapped, &sections, if whole { &[SYMTAB] } else { &[DYNSYM] }, most)?;
        // Stable: those that begin alike stay in the order of the files. By digits: comparing took a fifth of an import.
        let base = table.symbols.iter().map(|symbol| symbol.start).min().unwrap_or(0);
        let span = table.symbols.iter().map(|symbol| symbol.start - base).max().unwrap_or(0);
        if u32::try_from(span).is_ok() {
            radsort::sort_by_key(&mut table.symbols, |symbol| (symbol.start - base) as u32);
        } else {
            radsort::sort_by_key(&mut table.symbols, |symbol| symbol.start);
        }
        table.longest = table.symbols.iter().map(|symbol| symbol.size()).max().unwrap_or(0);
        Some(table)
    }

    fn add(&mut self, image: Image, sections: &[Section], kinds: &[u32], most: u64) -> Option<()> {
        for kind in kinds {
            let is_table = |section: &&Section| section.kind == *kind && section.entry_size == 24;
            let Some(section) = sections.iter().find(is_table) else { continue };
            let Some(strings) = sections.get(section.link as usize) else { continue };
            if section.size > most {
                return None;
            }
            if self.tables.len() == 8 {
                continue;
            }
            let from = self.tables.len() as u32;
            self.tables.push((self.images.len(), section.clone(), strings.clone()));
            let named = |section: &Section, part: &str| memchr::memmem::find(&section.name, part.as_bytes()).is_some();
            let code: Vec<bool> = sections.iter().map(|at| named(at, "text") || named(at, "data")).collect();
            self.symbols.reserve((section.size / 24) as usize);
            let mut buffer = vec![0; CHUNK];
            for at in (0..section.size).step_by(CHUNK) {
                let want = CHUNK.min((section.size - at) as usize);
                let n = image.read_at(&mut buffer[..want], section.offset.saturating_add(at));
                let entries = buffer[..n].chunks_exact(24);
                self.symbols.extend(entries.filter_map(|bytes| symbol(bytes, from, &code)));
                if n < want {
                    break;
                }
            }
        }
        self.images.push(image);
        Some(())
    }

    /// Keeps no file open from now on.
    pub fn close(&mut self) -> Option<()> {
        self.symbols.shrink_to_fit();
        let tables = &self.tables;
        let read = |image| ranges(tables, image, |(_, symbols, _)| symbols);
        let images = std::mem::take(&mut self.images).into_iter().enumerate();
        self.images = images.map(|(at, image)| image.close(read(at))).collect::<Option<_>>()?;
        Some(())
    }

    /// Lets go of the names that looking left in the page cache.
    pub fn uncache(&self) {
        for (at, image) in self.images.iter().enumerate() {
            image.uncache(ranges(&self.tables, at, |(_, _, strings)| strings));
        }
    }

    /// What it takes of memory.
    pub fn held_bytes(&self) -> usize {
        let images: usize = self.images.iter().map(Image::held_bytes).sum();
        self.symbols.capacity() * size_of::<Symbol>() + images + self.plt.as_ref().map_or(0, Plt::held_bytes)
    }

    /// The function at `address`: where it lies, and its name as it stands in the file.
    pub fn find(&mut self, address: u64) -> Option<(Range<u64>, Vec<u8>)> {
        if let Some(plt) = &mut self.plt
            && plt.covers(address)
            && let Some(found) = plt.find(&self.images, address)
        {
            return Some(found);
        }
        let end = self.symbols.partition_point(|symbol| symbol.start <= address);
        let nearest = self.symbols[..end].last()?.start;
        for (at, symbol) in self.symbols[..end].iter().enumerate().rev().take(NESTED) {
            let distance = address - symbol.start;
            if distance < symbol.size() {
                let best = self.best(at, symbol.start);
                if distance < best.size() {
                    return Some((symbol.start..symbol.start + best.size(), self.name(best)));
                }
            }
            if distance >= self.longest && symbol.start < nearest {
                break;
            }
        }
        // What has no size ends where the next begins, but a label in a function is not one.
        let label = self.best(end - 1, nearest);
        let stop = match self.symbols.get(end) {
            Some(next) => next.start,
            None => nearest.next_multiple_of(PAGE).saturating_add(PAGE),
        };
        (label.size() == 0 && address < stop).then(|| (nearest..stop, self.name(label)))
    }

    /// Which of several names for one address is shown, as perf chooses it (tools/perf/util/symbol.c, `choose_best_symbol`): one
    /// that has a size, is not weak, is global; then fewer leading underscores, then the longer one, then the first.
    fn best(&self, last: usize, start: u64) -> Symbol {
        let same_start = self.symbols[..=last].iter().rev().take_while(|symbol| symbol.start == start);
        // perf compares names after it made them readable.
        let taste = |symbol: Symbol| {
            let name = demangle(&self.name(symbol));
            let underscores = name.bytes().take_while(|byte| *byte == b'_').count();
            (Reverse(underscores), name.len())
        };
        let mut best = self.symbols[last];
        let mut best_taste = None;
        for other in same_start.skip(1) {
            let order = other.rank().cmp(&best.rank());
            if order.is_eq() {
                let (ours, theirs) = (*best_taste.get_or_insert_with(|| taste(best)), taste(*other));
                if theirs >= ours {
                    (best, best_taste) = (*other, Some(theirs));
                }
            } else if order.is_gt() {
                (best, best_taste) = (*other, None);
            }
        }
        best
    }

    fn name(&self, symbol: Symbol) -> Vec<u8> {
        let (image, _, strings) = &self.tables[symbol.table()];
        self.images[*image].string(strings, symbol.name)
    }
}

/// Where parts of the tables of one image are.
fn ranges(
    tables: &[(usize, Section, Section)],
    image: usize,
    part: impl Fn(&(usize, Section, Section)) -> &Section,
) -> impl Iterator<Item = Range<u64>> {
    let of_image = tables.iter().filter(move |(at, ..)| *at == image).map(part);
    of_image.map(|section| section.offset..section.offset.saturating_add(section.size))
}

/// A function, or a label in code or data, as perf takes them (tools/perf/util/symbol-elf.c).
fn symbol(bytes: &[u8], from: u32, code: &[bool]) -> Option<Symbol> {
    const NO_TYPE: u8 = 0;
    const OBJECT: u8 = 1;
    const FUNCTION: u8 = 2;
    const INDIRECT: u8 = 10;
    const ABSOLUTE: u16 = 0xfff1;
    let name = u32_at(bytes, 0)?;
    let (info, other) = (bytes[4], bytes[5]);
    let section = u16::from_ne_bytes([bytes[6], bytes[7]]);
    if name == 0 || section == 0 || section == ABSOLUTE {
        return None;
    }
    match info & 15 {
        FUNCTION | INDIRECT | OBJECT => {}
        NO_TYPE => {
            let hidden = matches!(other & 3, 1 | 2);
            if hidden || !code.get(usize::from(section)).copied().unwrap_or(false) {
                return None;
            }
        }
        _ => return None,
    }
    let (start, size) = (u64_at(bytes, 8)?, u64_at(bytes, 16)?);
    let (global, weak) = (info >> 4 == 1, info >> 4 == 2);
    let rank = u32::from(size > 0) << 2 | u32::from(!weak) << 1 | u32::from(global);
    Some(Symbol { start, name, packed: (size.min(MAX_SIZE) as u32) << 6 | from << 3 | rank })
}
