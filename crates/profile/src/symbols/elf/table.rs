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

/// Larger tables, in bytes, are read only around what is asked for …
const LARGE: u64 = 24 << 16;
/// … so far to both sides …
const AROUND: u64 = 64 << 10;
/// … and not more often than this: each time all of the table passes by.
const MOST_PARTS: usize = 6;

pub(super) struct Table {
    /// By start; of several with one start in the order of the files. Empty as long as only `parts` were read.
    symbols: Vec<Symbol>,
    is_whole: bool,
    /// Parts of a large table, of which a recording often meets but a few functions.
    parts: Vec<Vec<Symbol>>,
    /// The tables that [`Symbol::table`] counts: in which image, the symbols, their strings.
    tables: Vec<(usize, Section, Section)>,
    /// For each of them, which sections of the image are code or data.
    code: Vec<Vec<bool>>,
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
        let mut table = Table {
            symbols: Vec::new(),
            is_whole: false,
            parts: Vec::new(),
            tables: Vec::new(),
            code: Vec::new(),
            images: Vec::new(),
            longest: 0,
            plt,
        };
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
        if table.tables.iter().map(|(_, symbols, _)| symbols.size).sum::<u64>() <= LARGE {
            table.read_whole();
        }
        Some(table)
    }

    fn read_whole(&mut self) {
        let most: u64 = self.tables.iter().map(|(_, symbols, _)| symbols.size / 24).sum();
        let mut symbols = Vec::with_capacity(most as usize);
        self.each_symbol(|symbol| symbols.push(symbol));
        sort(&mut symbols);
        self.longest = symbols.iter().map(|symbol| symbol.size()).max().unwrap_or(0);
        self.symbols = symbols;
        self.is_whole = true;
        self.parts.clear();
    }

    /// Reads the symbols around an address.
    fn read_part(&mut self, address: u64) -> Vec<Symbol> {
        let around = address.saturating_sub(AROUND)..address.saturating_add(AROUND);
        let (mut part, mut longest) = (Vec::new(), 0);
        self.each_symbol(|symbol| {
            longest = symbol.size().max(longest);
            if around.contains(&symbol.start) {
                part.push(symbol);
            }
        });
        self.longest = longest;
        sort(&mut part);
        part
    }

    fn each_symbol(&self, mut take: impl FnMut(Symbol)) {
        let mut buffer = vec![0; CHUNK];
        for (from, ((image, section, _), code)) in self.tables.iter().zip(&self.code).enumerate() {
            for at in (0..section.size).step_by(CHUNK) {
                let want = CHUNK.min((section.size - at) as usize);
                let n = self.images[*image].read_at(&mut buffer[..want], section.offset.saturating_add(at));
                let entries = buffer[..n].chunks_exact(24);
                entries.filter_map(|bytes| symbol(bytes, from as u32, code)).for_each(&mut take);
                if n < want {
                    break;
                }
            }
        }
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
            self.tables.push((self.images.len(), section.clone(), strings.clone()));
            let named = |section: &Section, part: &str| memchr::memmem::find(&section.name, part.as_bytes()).is_some();
            self.code.push(sections.iter().map(|at| named(at, "text") || named(at, "data")).collect());
        }
        self.images.push(image);
        Some(())
    }

    /// Keeps no file open from now on.
    pub fn close(&mut self) -> Option<()> {
        if !self.is_whole {
            self.read_whole();
        }
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
        if !self.is_whole && self.parts.iter().all(|part| !self.tells(part, address)) {
            if self.parts.len() < MOST_PARTS {
                let part = self.read_part(address);
                self.parts.push(part);
            }
            if !self.parts.last().is_some_and(|part| self.tells(part, address)) {
                self.read_whole();
            }
        }
        match self.parts.iter().find(|part| self.tells(part, address)) {
            Some(part) => self.find_in(part, address),
            None => self.find_in(&self.symbols, address),
        }
    }

    /// Whether a part holds all that [`Table::find_in`] looks at for an address: what follows, and what may reach up to it.
    fn tells(&self, part: &[Symbol], address: u64) -> bool {
        let end = part.partition_point(|symbol| symbol.start <= address);
        let (Some(first), Some(nearest)) = (part.first(), part[..end].last()) else { return false };
        // All that begin alike, and as many others as are looked at.
        end < part.len()
            && first.start < nearest.start
            && (end > NESTED && part[end - 1 - NESTED].start > first.start || address - first.start > self.longest)
    }

    fn find_in(&self, symbols: &[Symbol], address: u64) -> Option<(Range<u64>, Vec<u8>)> {
        let end = symbols.partition_point(|symbol| symbol.start <= address);
        let nearest = symbols[..end].last()?.start;
        for (at, symbol) in symbols[..end].iter().enumerate().rev().take(NESTED) {
            let distance = address - symbol.start;
            if distance < symbol.size() {
                let best = self.best(symbols, at, symbol.start);
                if distance < best.size() {
                    return Some((symbol.start..symbol.start + best.size(), self.name(best)));
                }
            }
            if distance >= self.longest && symbol.start < nearest {
                break;
            }
        }
        // What has no size ends where the next begins, but a label in a function is not one.
        let label = self.best(symbols, end - 1, nearest);
        let stop = match symbols.get(end) {
            Some(next) => next.start,
            None => nearest.next_multiple_of(PAGE).saturating_add(PAGE),
        };
        (label.size() == 0 && address < stop).then(|| (nearest..stop, self.name(label)))
    }

    /// Which of several names for one address is shown, as perf chooses it (tools/perf/util/symbol.c, `choose_best_symbol`): one
    /// that has a size, is not weak, is global; then fewer leading underscores, then the longer one, then the first.
    fn best(&self, symbols: &[Symbol], last: usize, start: u64) -> Symbol {
        let same_start = symbols[..=last].iter().rev().take_while(|symbol| symbol.start == start);
        // perf compares names after it made them readable.
        let taste = |symbol: Symbol| {
            let name = demangle(&self.name(symbol));
            let underscores = name.bytes().take_while(|byte| *byte == b'_').count();
            (Reverse(underscores), name.len())
        };
        let mut best = symbols[last];
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

/// Stable: those that begin alike stay in the order of the files. By digits: comparing took a fifth of an import.
fn sort(symbols: &mut [Symbol]) {
    let base = symbols.iter().map(|symbol| symbol.start).min().unwrap_or(0);
    let span = symbols.iter().map(|symbol| symbol.start - base).max().unwrap_or(0);
    if u32::try_from(span).is_ok() {
        radsort::sort_by_key(symbols, |symbol| (symbol.start - base) as u32);
    } else {
        radsort::sort_by_key(symbols, |symbol| symbol.start);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_table_say_what_the_whole_says() {
        let read = || {
            let image = Image::open(&std::env::current_exe().expect("a path")).expect("a file");
            Table::read(image, None, MAX_SYMBOLS).expect("a table")
        };
        let mut whole = read();
        whole.read_whole();
        let addresses: Vec<u64> = whole.symbols.iter().map(|symbol| symbol.start).collect();
        assert!(addresses.len() > 1000);
        let anew = || Table { symbols: Vec::new(), is_whole: false, ..read() };
        for share in [0, 1, 3, 7, 9, 10] {
            let mut parts = anew();
            let from = (addresses.len() - 1) * share / 10;
            for address in
                addresses[from..].iter().take(50).flat_map(|start| [start.wrapping_sub(1), *start, start + 9])
            {
                assert_eq!(parts.find(address), whole.find(address), "{address:x}");
            }
        }
        let mut parts = anew();
        assert!(!parts.is_whole);
        for start in addresses.iter().step_by(addresses.len() / 300) {
            assert_eq!(parts.find(start + 3), whole.find(start + 3), "{start:x}");
        }
        assert!(parts.is_whole, "where much is asked for, all is read");
    }
}
