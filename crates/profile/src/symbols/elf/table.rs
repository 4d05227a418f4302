//! The symbol tables of a file, by address.

use std::cmp::Reverse;
use std::ops::Range;

use super::debugdata;
use super::demangle::demangle;
use super::image::{Image, Section, u32_at, u64_at};
use super::plt::{Plt, StubName};

/// Limit for a symbol table (a large browser's is about 100 MB).
pub(super) const MAX_SYMBOLS: u64 = 1 << 30;
/// How much of a table is read at once: whole entries.
const CHUNK: usize = 24 * 4096;
/// How many symbols back an enclosing function is searched for.
const NESTED: usize = 32;
/// The end of a last function without a size: like perf, its page and one more.
const PAGE: u64 = 4096;

/// Average number of symbols per shelf.
const ON_A_SHELF: usize = 32;

pub(super) struct Table {
    symbols: Shelves,
    /// The tables, by [`Symbol::table`]: image, symbols, strings.
    tables: Vec<(usize, Section, Section)>,
    /// For each table, which sections of the image are code or data.
    code: Vec<Vec<bool>>,
    images: Vec<Image>,
    plt: Option<Plt>,
}

/// Symbols in buckets ("shelves") by address. A shelf is sorted when it is first searched: a recording hits few functions of a
/// large program.
#[derive(Default)]
struct Shelves {
    /// Shelf after shelf; a sorted shelf is ordered by start, symbols with the same start in file order.
    symbols: Vec<Symbol>,
    /// Where each shelf ends.
    ends: Vec<u32>,
    in_order: Vec<bool>,
    /// The lowest address, and how far an offset from it is shifted right to give the shelf.
    base: u64,
    shift: u32,
    /// The size of the longest function.
    longest: u64,
}

/// Small, as there may be a million of them.
#[derive(Clone, Copy, Default)]
struct Symbol {
    start: u64,
    /// Offset of its name in the strings, read when needed.
    name: u32,
    /// From high to low bits: its size, its table, its rank.
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

    /// Among names of one address, the highest rank is shown.
    fn rank(self) -> u32 {
        self.packed & 7
    }
}

const SYMTAB: u32 = 2;
const DYNSYM: u32 = 11;

impl Table {
    /// Reads the tables of `mapped` and, if given, of its debug file. `None` if one is larger than `most`.
    pub fn read(mapped: Image, debug: Option<Image>, most: u64) -> Option<Table> {
        let sections = mapped.sections()?;
        let packed = sections.iter().find(|section| section.name == b".gnu_debugdata");
        let packed = packed.and_then(|section| mapped.bytes(section.offset, section.size, most));
        let plt = Plt::of(&mapped, &sections);
        let stripped = !sections.iter().any(|section| section.kind == SYMTAB);
        let mut table =
            Table { symbols: Shelves::default(), tables: Vec::new(), code: Vec::new(), images: Vec::new(), plt };
        if stripped
            && debug.is_none()
            && let Some(packed) = packed.and_then(|packed| debugdata::unpack(&packed, most))
            && let Some(sections) = packed.sections()
        {
            table.add(packed, &sections, &[SYMTAB], most)?;
        }
        let has_names = |sections: &[Section]| sections.iter().any(|at| at.kind == SYMTAB && at.size > 24);
        let debug_sections = debug.as_ref().and_then(Image::sections).filter(|sections| has_names(sections));
        // A full symbol table includes the dynamic symbols.
        let whole = debug_sections.is_some() || has_names(&sections);
        if let (Some(debug), Some(sections)) = (debug, debug_sections) {
            table.add(debug, &sections, &[SYMTAB], most)?;
        }
        table.add(mapped, &sections, if whole { &[SYMTAB] } else { &[DYNSYM] }, most)?;
        table.symbols = Shelves::of(table.all_symbols());
        Some(table)
    }

    fn all_symbols(&self) -> Vec<Symbol> {
        // A file may claim any size; only what exists is read.
        let sizes = self.tables.iter().map(|(image, symbols, _)| symbols.size.min(self.images[*image].length()));
        let mut symbols = Vec::with_capacity(sizes.map(|size| (size / 24) as usize).sum());
        self.each_symbol(|symbol| symbols.push(symbol));
        symbols
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

    /// Closes the files.
    pub fn close(&mut self) -> Option<()> {
        self.symbols.symbols.shrink_to_fit();
        let tables = &self.tables;
        let read = |image| ranges(tables, image, |(_, symbols, _)| symbols);
        let images = std::mem::take(&mut self.images).into_iter().enumerate();
        self.images = images.map(|(at, image)| image.close(read(at))).collect::<Option<_>>()?;
        Some(())
    }

    /// Drops what lookups left in the page cache.
    pub fn uncache(&self) {
        for (at, image) in self.images.iter().enumerate() {
            image.uncache(ranges(&self.tables, at, |(_, _, strings)| strings));
        }
    }

    /// Memory used.
    pub fn held_bytes(&self) -> usize {
        let images: usize = self.images.iter().map(Image::held_bytes).sum();
        self.symbols.held_bytes() + images + self.plt.as_ref().map_or(0, Plt::held_bytes)
    }

    /// The function at `address`: its name, and the range of addresses with the same answer.
    pub fn find(&mut self, address: u64) -> Option<(Range<u64>, String)> {
        let Some(plt) = &mut self.plt else { return self.function(address) };
        if let Some((range, name)) = plt.find(&self.images, address) {
            let name = match name {
                StubName::Symbol(name) => Some(demangle(&[&name, b"@plt".as_slice()].concat())),
                StubName::Function(start) => self.name_at(start).map(|name| name + "@plt"),
                StubName::Unknown => None,
            };
            return Some((range, name.unwrap_or(".plt".to_owned())));
        }
        let (range, name) = self.function(address)?;
        let range = self.plt.as_ref().map_or(range.clone(), |plt| plt.outside(range, address));
        Some((range, name))
    }

    /// The same from symbols alone. A range ends where another function begins, even a nested one.
    fn function(&mut self, address: u64) -> Option<(Range<u64>, String)> {
        let shelves = self.symbols.around(address);
        let symbols = &self.symbols.symbols[shelves];
        let end = symbols.partition_point(|symbol| symbol.start <= address);
        let nearest = symbols[..end].last()?.start;
        let longest = self.symbols.longest;
        let stop = symbols.get(end).map(|next| next.start);
        // The last end among the functions that end before `address`.
        let mut begin = 0;
        for (at, symbol) in symbols[..end].iter().enumerate().rev().take(NESTED) {
            let distance = address - symbol.start;
            let mut size = symbol.size();
            if distance < size {
                let (best, name) = self.best(symbols, at, symbol.start);
                size = best.size();
                if distance < size {
                    let name = name.unwrap_or_else(|| self.name(best));
                    let end = symbol.start.saturating_add(size);
                    return Some((begin.max(symbol.start)..stop.map_or(end, |stop| stop.min(end)), name));
                }
            }
            if distance >= longest && symbol.start < nearest {
                begin = begin.max(symbol.start + longest);
                break;
            }
            begin = begin.max(symbol.start + size);
        }
        // A function without a size ends where the next one begins; labels inside a function do not count.
        let (label, name) = self.best(symbols, end - 1, nearest);
        let stop =
            stop.unwrap_or_else(|| nearest.checked_next_multiple_of(PAGE).unwrap_or(u64::MAX).saturating_add(PAGE));
        let is_it = label.size() == 0 && address < stop;
        is_it.then(|| (begin.max(nearest)..stop, name.unwrap_or_else(|| self.name(label))))
    }

    /// The name of the symbol at `start`.
    fn name_at(&mut self, start: u64) -> Option<String> {
        let shelves = self.symbols.around(start);
        let symbols = &self.symbols.symbols[shelves];
        let end = symbols.partition_point(|symbol| symbol.start <= start);
        symbols[..end].last().filter(|symbol| symbol.start == start)?;
        let (best, name) = self.best(symbols, end - 1, start);
        Some(name.unwrap_or_else(|| self.name(best)))
    }

    /// The name shown among several at one address, chosen as perf does (tools/perf/util/symbol.c, `choose_best_symbol`): one that
    /// has a size, is not weak, is global; then fewer leading underscores, then the longer, then the first. With its name if it had
    /// to be read.
    fn best(&self, symbols: &[Symbol], last: usize, start: u64) -> (Symbol, Option<String>) {
        let same_start = symbols[..=last].iter().rev().take_while(|symbol| symbol.start == start);
        // perf compares demangled names.
        let taste = |name: &str| {
            let underscores = name.bytes().take_while(|byte| *byte == b'_').count();
            (Reverse(underscores), name.len())
        };
        let mut best = symbols[last];
        let mut best_name: Option<String> = None;
        for other in same_start.skip(1) {
            let order = other.rank().cmp(&best.rank());
            if order.is_eq() {
                let (ours, theirs) = (best_name.get_or_insert_with(|| self.name(best)), self.name(*other));
                if taste(&theirs) >= taste(ours) {
                    (best, best_name) = (*other, Some(theirs));
                }
            } else if order.is_gt() {
                (best, best_name) = (*other, None);
            }
        }
        (best, best_name)
    }

    fn name(&self, symbol: Symbol) -> String {
        let (image, _, strings) = &self.tables[symbol.table()];
        demangle(&self.images[*image].string(strings, symbol.name))
    }
}

impl Shelves {
    fn of(symbols: Vec<Symbol>) -> Shelves {
        let (mut base, mut last, mut longest) = (u64::MAX, 0, 0);
        for symbol in &symbols {
            (base, last, longest) = (base.min(symbol.start), last.max(symbol.start), longest.max(symbol.size()));
        }
        let span = last.saturating_sub(base);
        let shelves = (symbols.len() / ON_A_SHELF).next_power_of_two();
        let shift = (u64::BITS - span.leading_zeros()).saturating_sub(shelves.trailing_zeros()).min(63);
        // A counting sort: the number on each shelf, then its start, which moves to its end as it is filled.
        let mut ends = vec![0; (span >> shift) as usize + 1];
        for symbol in &symbols {
            ends[(symbol.start.saturating_sub(base) >> shift) as usize] += 1;
        }
        let mut begin = 0;
        for end in &mut ends {
            (begin, *end) = (begin + *end, begin);
        }
        let mut placed = vec![Symbol::default(); symbols.len()];
        for symbol in symbols {
            let end = &mut ends[((symbol.start - base) >> shift) as usize];
            placed[*end as usize] = symbol;
            *end += 1;
        }
        Shelves { symbols: placed, in_order: vec![false; ends.len()], ends, base, shift, longest }
    }

    fn held_bytes(&self) -> usize {
        self.symbols.capacity() * size_of::<Symbol>() + self.ends.len() * (size_of::<u32>() + size_of::<bool>())
    }

    fn begin(&self, shelf: usize) -> usize {
        if shelf == 0 { 0 } else { self.ends[shelf - 1] as usize }
    }

    fn put_in_order(&mut self, shelf: usize) {
        if !std::mem::replace(&mut self.in_order[shelf], true) {
            let begin = self.begin(shelf);
            self.symbols[begin..self.ends[shelf] as usize].sort_by_key(|symbol| symbol.start);
        }
    }

    /// Sorts and returns all symbols that matter for `address`: the next one, and before it as many as are searched or as could
    /// reach it.
    fn around(&mut self, address: u64) -> Range<usize> {
        if self.symbols.is_empty() {
            return 0..0;
        }
        let last = self.ends.len() - 1;
        let shelf = (address.saturating_sub(self.base) >> self.shift).min(last as u64) as usize;
        let (mut low, mut high) = (shelf, shelf);
        self.put_in_order(shelf);
        let end = self.symbols[self.begin(shelf)..self.ends[shelf] as usize].partition_point(|at| at.start <= address);
        let end = self.begin(shelf) + end;
        while high < last && self.ends[high] as usize == end {
            high += 1;
            self.put_in_order(high);
        }
        while low > 0 && !self.is_enough(self.begin(low), end, address) {
            low -= 1;
            self.put_in_order(low);
        }
        self.begin(low)..self.ends[high] as usize
    }

    /// Symbols with the same start are on one shelf, so none of them is missing.
    fn is_enough(&self, begin: usize, end: usize, address: u64) -> bool {
        let before = &self.symbols[begin..end];
        before.len() >= NESTED || before.first().is_some_and(|first| address - first.start >= self.longest)
    }
}

/// The ranges of the tables of one image.
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
    fn shelves_and_the_whole_table_agree() {
        let read = || {
            let image = Image::open(&std::env::current_exe().expect("a path")).expect("a file");
            Table::read(image, None, MAX_SYMBOLS).expect("a table")
        };
        let mut whole = read();
        let mut symbols = whole.all_symbols();
        symbols.sort_by_key(|symbol| symbol.start);
        let addresses: Vec<u64> = symbols.iter().map(|symbol| symbol.start).collect();
        assert!(addresses.len() > 1000);
        // All on one sorted shelf.
        let longest = symbols.iter().map(|symbol| symbol.size()).max().unwrap_or(0);
        let (ends, in_order) = (vec![symbols.len() as u32], vec![true]);
        whole.symbols = Shelves { symbols, ends, in_order, base: addresses[0], shift: 63, longest };
        let mut shelves = read();
        assert!(shelves.symbols.ends.len() > 20);
        let mut ask = |starts: &[u64]| {
            for start in starts.iter().step_by(1 + starts.len() / 1500) {
                for address in [start.wrapping_sub(1), *start, start.saturating_add(9)] {
                    assert_eq!(shelves.find(address), whole.find(address), "{address:x}");
                }
            }
            shelves.symbols.in_order.iter().filter(|is| !**is).count()
        };
        let (low, high) = addresses.split_at(addresses.len() / 2);
        ask(&[0, addresses[0] / 2, u64::MAX]);
        let left = ask(low);
        assert!(left > 0, "untouched shelves stay unsorted");
        assert!(ask(high) < left);
    }

    #[test]
    fn symbols_anywhere() {
        let at = |start| Symbol { start, ..Symbol::default() };
        for starts in [vec![], vec![0], vec![u64::MAX], vec![0, u64::MAX], vec![7; 100], (0..1000).rev().collect()] {
            let mut shelves = Shelves::of(starts.iter().copied().map(at).collect());
            for address in [0, 1, 7, 500, 5000, u64::MAX] {
                let around = shelves.around(address);
                let near = &shelves.symbols[around];
                assert!(near.is_sorted_by_key(|symbol| symbol.start));
                let below = starts.iter().filter(|start| **start <= address).max();
                let found = near.iter().rev().find(|symbol| symbol.start <= address).map(|symbol| symbol.start);
                assert_eq!(found.as_ref(), below, "{address} in {} symbols", starts.len());
                let above = starts.iter().filter(|start| **start > address).min();
                let found = near.iter().find(|symbol| symbol.start > address).map(|symbol| symbol.start);
                assert_eq!(found.as_ref(), above, "{address} in {} symbols", starts.len());
            }
        }
    }
}
