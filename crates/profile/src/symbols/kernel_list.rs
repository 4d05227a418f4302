//! Kernel symbols in a file that perf copied. Only the needed parts are read: it has 120,000 lines and more, and a recording
//! hits a few hundred functions.
//!
//! The kernel lists its own symbols sorted by address (scripts/kallsyms.c), then those of modules and BPF programs unsorted, with
//! their owner in brackets. So the first part is searched by bisection and the second is read whole.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use coroner_evidence::kallsyms::{self, Kallsyms, KernelSymbol, LONGEST_LINE, address_of_line};

/// The file is read in blocks of this size.
const BLOCK: u64 = 4096;
/// The first line of a block must be within this much.
const PEEK: usize = 256;
/// How many lines are compared to check that the file is sorted.
const PROBES: u64 = 64;
/// Limit for the unsorted part.
const MAX_UNSORTED: u64 = 256 << 20;

/// A sorted list, read as needed.
pub(super) struct KernelList {
    file: File,
    length: u64,
    /// The address of the first line of each sorted block, if read.
    firsts: Vec<Option<u64>>,
    blocks: Vec<Block>,
    /// Symbols of modules.
    modules: Option<Kallsyms>,
}

/// A part of the list.
enum Block {
    NotRead,
    Read(Kallsyms),
    /// No usable line.
    Useless,
}

impl KernelList {
    /// `None` if the file does not exist or is not sorted.
    pub fn open(path: &Path) -> Option<KernelList> {
        let length = std::fs::metadata(path).ok().filter(|about| about.is_file())?.len();
        let file = File::open(path).ok()?;
        let blocks = usize::try_from(length.div_ceil(BLOCK)).ok().filter(|blocks| *blocks > 1)?;
        let mut list = KernelList { file, length, firsts: vec![None; blocks], blocks: Vec::new(), modules: None };
        let unsorted = list.first_block_with_owners()? * BLOCK;
        list.firsts.truncate((unsorted / BLOCK) as usize);
        if unsorted < length {
            let size = (length - unsorted).min(MAX_UNSORTED);
            let text = list.lines(unsorted, size)?;
            list.modules = Kallsyms::parse(text);
        }
        list.blocks.resize_with(list.firsts.len(), || Block::NotRead);
        let count = list.firsts.len() as u64;
        let mut last = 0;
        for probe in 0..PROBES.min(count) {
            let first = list.first(probe * count / PROBES.min(count))?;
            if first < last {
                return None;
            }
            last = first;
        }
        Some(list)
    }

    /// The block with the first line that has an owner: nothing after it is sorted.
    fn first_block_with_owners(&mut self) -> Option<u64> {
        let (mut without, mut with) = (0, self.firsts.len() as u64);
        while without < with {
            let middle = without + (with - without) / 2;
            let text = self.lines(middle * BLOCK, BLOCK)?;
            if memchr::memchr(b'[', &text).is_some() {
                with = middle;
            } else {
                without = middle + 1;
            }
        }
        Some(with)
    }

    /// The symbol that covers `address`; the same answer as [`Kallsyms::find`] on the whole file.
    pub fn find(&mut self, address: u64) -> Option<KernelSymbol<'_>> {
        let in_order = match self.block_of(address).map(|block| &self.blocks[block]) {
            Some(Block::Read(block)) => block.find(address),
            _ => None,
        };
        let of_module = self.modules.as_ref().and_then(|modules| modules.find(address));
        match (in_order, of_module) {
            (Some(one), Some(other)) => Some(if other.address >= one.address { other } else { one }),
            (one, other) => one.or(other),
        }
    }

    /// The block with the last symbol that begins at `address` or before.
    fn block_of(&mut self, address: u64) -> Option<usize> {
        let (mut below, mut above) = (0, self.firsts.len());
        while below < above {
            let middle = below + (above - below) / 2;
            if self.first(middle as u64)? <= address {
                below = middle + 1;
            } else {
                above = middle;
            }
        }
        // It may have no usable line.
        (0..below).rev().find(|block| {
            if matches!(self.blocks[*block], Block::NotRead) {
                let lines = self.lines(*block as u64 * BLOCK, BLOCK);
                let read = lines.and_then(Kallsyms::parse);
                self.blocks[*block] = read.map_or(Block::Useless, Block::Read);
            }
            matches!(&self.blocks[*block], Block::Read(read) if read.begins().is_some_and(|begins| begins <= address))
        })
    }

    fn first(&mut self, block: u64) -> Option<u64> {
        if let Some(known) = self.firsts[block as usize] {
            return Some(known);
        }
        let mut buffer = [0; PEEK];
        let from = (block * BLOCK).saturating_sub(1);
        let n = self.file.read_at(&mut buffer, from).ok()?;
        let start = if block == 0 { 0 } else { memchr::memchr(b'\n', &buffer[..n])? + 1 };
        let address = match address_of_line(&buffer[start..n]) {
            Some(address) => address,
            // A line longer than PEEK: read the whole block.
            None => address_of_line(&self.lines(block * BLOCK, BLOCK)?)?,
        };
        self.firsts[block as usize] = Some(address);
        Some(address)
    }

    /// The lines that begin in `from..from + size`.
    fn lines(&self, from: u64, size: u64) -> Option<Vec<u8>> {
        let before = from.saturating_sub(1);
        let end = from.saturating_add(size).saturating_add(LONGEST_LINE).min(self.length);
        let size_read = usize::try_from(end.checked_sub(before)?).ok()?;
        let mut small = [0; (BLOCK + LONGEST_LINE + 1) as usize];
        let mut large = Vec::new();
        let text = match small.get_mut(..size_read) {
            Some(text) => text,
            None => {
                large.resize(size_read, 0);
                &mut large[..]
            }
        };
        self.file.read_exact_at(text, before).ok()?;
        let start = if from == 0 { 0 } else { memchr::memchr(b'\n', text)? + 1 };
        // Completes the last line that begins within.
        let last = usize::try_from((from + size).min(self.length) - before).ok()?.checked_sub(1)?;
        let stop = memchr::memchr(b'\n', text.get(last..)?).map_or(text.len(), |at| last + at + 1);
        Some(text[start.min(stop)..stop].to_vec())
    }

    /// The address of the kernel's own symbol `name`. Those that recordings refer to are near the start.
    pub fn address_of(&self, name: &str) -> Option<u64> {
        const STEP: u64 = 64 << 10;
        let mut from = 0;
        while from < self.length {
            let text = self.lines(from, STEP)?;
            if let Some(address) = kallsyms::address_of(&text, name) {
                return Some(address);
            }
            from += STEP;
        }
        None
    }

    /// The lowest code address of each module.
    pub fn modules(&self) -> HashMap<&str, u64> {
        self.modules.as_ref().map(Kallsyms::modules).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn both(text: &str) -> (Kallsyms, Option<KernelList>) {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), text).expect("written");
        (Kallsyms::parse(text.as_bytes().to_vec()).expect("symbols"), KernelList::open(file.path()))
    }

    fn text(functions: u64, modules: u64) -> String {
        let mut text = String::new();
        for n in 0..300 {
            text.push_str(&format!("{:016x} A percpu_{n}\n", n * 8));
        }
        text.push_str("ffffffff81000000 T _stext\nffffffff81000000 T _text\n");
        for n in 0..functions {
            let kind = if n % 500 < 150 { 'r' } else { 't' };
            text.push_str(&format!(
                "{:016x} {kind} function_{}\n",
                0xffff_ffff_8100_0000u64 + n / 3 * 48,
                "x".repeat(n as usize % 90)
            ));
        }
        for n in 0..modules {
            let address = 0xffff_ffff_c000_0000u64 + n * 7919 % 4096 * 16;
            text.push_str(&format!("{address:016x} t in_module_{n}\t[mod_{}]\n", n % 5));
        }
        text
    }

    #[test]
    fn it_agrees_with_the_whole_file() {
        for (functions, modules) in [(20_000, 0), (20_000, 3000), (300, 1)] {
            let text = text(functions, modules);
            let (whole, list) = both(&text);
            let mut list = list.expect("in order");
            let mut draw = 7u64;
            for n in 0..5000 {
                draw = draw.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let within = (draw >> 33) % (functions * 17);
                let address = match n % 4 {
                    0 => 0xffff_ffff_c000_0000 + (draw >> 33) % (1 << 17),
                    1 => draw,
                    _ => 0xffff_ffff_8100_0000 + within,
                };
                assert_eq!(list.find(address), whole.find(address), "{address:x}");
            }
            for name in ["_text", "_stext", "percpu_299", "nobody"] {
                assert_eq!(list.address_of(name), whole.address_of(name), "{name}");
            }
            assert_eq!(list.modules(), whole.modules());
        }
    }

    #[test]
    fn unsorted_files_are_refused() {
        let (_, small) = both("ffffffff81000000 T _text\n");
        assert!(small.is_none());
        let reversed: String = text(5000, 0).lines().rev().map(|line| format!("{line}\n")).collect();
        assert!(both(&reversed).1.is_none());
        let nonsense = "no address here\n".repeat(5000) + "ffffffff81000000 T _text\n";
        assert!(both(&nonsense).1.is_none());
    }
}
