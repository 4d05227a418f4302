//! Names and meanings of the kernel's functions at the addresses that were seen. /proc/kallsyms has 100,000 lines and more, and printing
//! them takes the kernel 50 ms: it is read once for a batch of samples, and only what the addresses need is kept of it.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader};

use coroner_evidence::kernel_work::{Meaning, meaning_of};

use crate::Root;

const KALLSYMS: &str = "/proc/kallsyms";

/// No function is longer; bounds what a missing neighbour can cover.
const LONGEST_FUNCTION: u64 = 64 << 10;

#[derive(Debug, thiserror::Error)]
pub(super) enum NoSymbols {
    #[error("{KALLSYMS}: {0}")]
    Unreadable(io::Error),
    #[error("{KALLSYMS} hides the kernel's addresses")]
    Hidden,
}

/// Whether there will be symbols, without reading all of them.
pub(super) fn can_be_read(root: &Root) -> Result<(), NoSymbols> {
    let seen = sees_addresses(open(root).map_err(NoSymbols::Unreadable)?).map_err(NoSymbols::Unreadable)?;
    if seen { Ok(()) } else { Err(NoSymbols::Hidden) }
}

fn sees_addresses(text: impl BufRead) -> io::Result<bool> {
    // Some kernels begin with what lies at 0 in each core's own memory.
    const AT_ZERO: usize = 64;
    let (mut lines, mut seen) = (0, false);
    each_symbol(text, |symbol| {
        seen |= symbol.address != 0;
        lines += 1;
        !seen && lines < AT_ZERO
    })?;
    Ok(seen)
}

/// The functions at some addresses.
#[derive(Debug, Default)]
pub(super) struct Symbols {
    /// Sorted.
    addresses: Vec<u64>,
    /// The number of each one's function.
    at: Vec<Option<u32>>,
    functions: Vec<(String, Meaning)>,
}

impl Symbols {
    /// Of these sorted addresses.
    pub fn read(root: &Root, addresses: Vec<u64>) -> Result<Symbols, NoSymbols> {
        let symbols = open(root).and_then(|text| Symbols::parse(text, addresses)).map_err(NoSymbols::Unreadable)?;
        // Somebody may have hidden them since the beginning.
        if symbols.functions.is_empty() && !symbols.addresses.is_empty() {
            return Err(NoSymbols::Hidden);
        }
        Ok(symbols)
    }

    fn parse(text: impl BufRead, addresses: Vec<u64>) -> io::Result<Symbols> {
        let mut found = Found {
            starts: vec![0; addresses.len()],
            at: vec![None; addresses.len()],
            addresses,
            names: Names::default(),
        };
        // A function ends where the next begins, so it is looked at when that is known.
        let mut open = Function::default();
        each_symbol(text, |symbol| {
            if symbol.address == 0 {
                return true;
            }
            if symbol.address != open.start {
                found.note(&open, symbol.address);
                open.start = symbol.address;
                open.names.clear();
            }
            if symbol.is_code() {
                open.add(&symbol);
            }
            true
        })?;
        found.note(&open, u64::MAX);
        Ok(Symbols { addresses: found.addresses, at: found.at, functions: found.names.functions })
    }

    fn function(&self, address: u64) -> Option<&(String, Meaning)> {
        let at = self.addresses.binary_search(&address).ok()?;
        self.functions.get((*self.at.get(at)?)? as usize)
    }

    pub fn name(&self, address: u64) -> Option<&str> {
        self.function(address).map(|(name, _)| name.as_str())
    }

    /// 0 if the function tells nothing.
    pub fn meaning(&self, address: u64) -> Meaning {
        self.function(address).map_or(0, |(_, meaning)| *meaning)
    }
}

/// One function with all its names. What they mean is asked only of those that somebody was in: it takes longer than reading them.
#[derive(Debug, Default)]
struct Function {
    start: u64,
    /// One in a line, those of modules after a tab; empty of what is no code.
    names: Vec<u8>,
}

impl Function {
    fn add(&mut self, symbol: &Symbol<'_>) {
        if symbol.module.is_some() {
            self.names.push(b'\t');
        }
        self.names.extend_from_slice(symbol.base_name());
        self.names.push(b'\n');
    }

    /// The first name, and what all say.
    fn tell(&self) -> (String, Meaning) {
        let names = String::from_utf8_lossy(&self.names);
        let mut lines = names.lines();
        // Nothing that we look for is in a module.
        let meaning = lines.clone().filter(|name| !name.starts_with('\t')).fold(0, |all, name| all | meaning_of(name));
        (lines.next().unwrap_or_default().trim_start().to_owned(), meaning)
    }
}

struct Found {
    addresses: Vec<u64>,
    /// Where the function of each address begins.
    starts: Vec<u64>,
    at: Vec<Option<u32>>,
    names: Names,
}

impl Found {
    /// The kernel's own come in the order of their addresses, those of modules do not: the nearest one before an address counts.
    fn note(&mut self, function: &Function, next: u64) {
        if function.names.is_empty() {
            return;
        }
        let reach = function.start.saturating_add(LONGEST_FUNCTION);
        let end = if next > function.start { next.min(reach) } else { reach };
        let first = self.addresses.partition_point(|&address| address < function.start);
        let mut number = None;
        for i in (first..self.addresses.len()).take_while(|&i| self.addresses[i] < end) {
            if function.start > self.starts[i] {
                self.starts[i] = function.start;
                self.at[i] = Some(*number.get_or_insert_with(|| self.names.number(function)));
            }
        }
    }
}

#[derive(Default)]
struct Names {
    functions: Vec<(String, Meaning)>,
    numbers: HashMap<(String, Meaning), u32>,
}

impl Names {
    fn number(&mut self, function: &Function) -> u32 {
        let key = function.tell();
        let next = self.functions.len() as u32;
        *self.numbers.entry(key).or_insert_with_key(|key| {
            self.functions.push(key.clone());
            next
        })
    }
}

fn open(root: &Root) -> io::Result<BufReader<File>> {
    Ok(BufReader::with_capacity(64 << 10, File::open(root.path(KALLSYMS))?))
}

/// One line: `ffffffff81234560 t shrink_node`, for a module with its name after a tab: `\t[xfs]`.
struct Symbol<'a> {
    address: u64,
    kind: u8,
    name: &'a [u8],
    module: Option<&'a [u8]>,
}

impl<'a> Symbol<'a> {
    fn parse(line: &'a [u8]) -> Option<Symbol<'a>> {
        let (address, rest) = line.split_at_checked(line.iter().position(|&b| b == b' ')?)?;
        let address = u64::from_str_radix(std::str::from_utf8(address).ok()?, 16).ok()?;
        let [b' ', kind, b' ', name @ ..] = rest else { return None };
        let end = name.iter().position(|&b| b == b'\t').unwrap_or(name.len());
        let (name, module) = name.split_at(end);
        (!name.is_empty()).then_some(Symbol { address, kind: *kind, name, module: module.get(1..) })
    }

    fn is_code(&self) -> bool {
        matches!(self.kind, b't' | b'T' | b'w' | b'W')
    }

    fn base_name(&self) -> &'a [u8] {
        // A leading dot is part of the name.
        match self.name.iter().skip(1).position(|&b| b == b'.') {
            Some(dot) => &self.name[..=dot],
            None => self.name,
        }
    }
}

/// Until `each` says false. Lines that are none of this kind are skipped, and so is the rest of one that is endless.
fn each_symbol(mut text: impl BufRead, mut each: impl FnMut(Symbol<'_>) -> bool) -> io::Result<()> {
    const LONGEST_LINE: u64 = 1024;
    let mut line = Vec::new();
    loop {
        line.clear();
        let mut limited = io::Read::take(&mut text, LONGEST_LINE);
        if limited.read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        if let Some(symbol) = Symbol::parse(line.strip_suffix(b"\n").unwrap_or(&line))
            && !each(symbol)
        {
            return Ok(());
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use coroner_evidence::kernel_work::{IDLE, INTERRUPT, RECLAIM, STEP, WALK};
    use proptest::prelude::*;

    pub const TEXT: &str = "\
0000000000000000 A fixed_percpu_data
ffffffff81000000 T _stext
ffffffff81000100 t shrink_node
ffffffff81000300 t memcg_stat_show.constprop.0
ffffffff81000380 T alias_of_iter
ffffffff81000380 T mem_cgroup_iter
ffffffff81000400 T shrink_folio_list
ffffffff81000500 T do_idle
ffffffff81000600 T asm_sysvec_apic_timer_interrupt
ffffffff81000700 T something_else
ffffffff81000780 d mem_cgroup_iter
ffffffffc0000200 t xfs_late\t[xfs]
ffffffffc0000100 t shrink_slab\t[evil]
";

    pub fn symbols(text: &str, addresses: &[u64]) -> Symbols {
        Symbols::parse(text.as_bytes(), addresses.to_vec()).unwrap()
    }

    #[test]
    fn a_function_reaches_to_the_next() {
        let base = 0xffff_ffff_8100_0000;
        let module = 0xffff_ffff_c000_0000;
        let low = [0, 0xff, 0x100, 0x2ff, 0x300, 0x3ff, 0x400, 0x500, 0x600, 0x700, 0x780];
        let mut addresses = vec![0x10];
        addresses.extend(low.iter().map(|low| base + low));
        addresses.extend([module + 0x1ff, module + 0x280, module + 0x9_0000]);
        let symbols = symbols(TEXT, &addresses);
        let of = |low: u64| (symbols.name(base + low).unwrap_or(""), symbols.meaning(base + low));
        assert_eq!(of(0xff), ("_stext", 0));
        assert_eq!(of(0x100), ("shrink_node", STEP | RECLAIM));
        assert_eq!(of(0x2ff), ("shrink_node", STEP | RECLAIM));
        assert_eq!(of(0x300), ("memcg_stat_show", WALK), "what the compiler appends is not part of the name");
        assert_eq!(of(0x3ff), ("alias_of_iter", WALK), "the second of two names counts");
        assert_eq!(of(0x400), ("shrink_folio_list", RECLAIM));
        assert_eq!(of(0x500), ("do_idle", IDLE));
        assert_eq!(of(0x600), ("asm_sysvec_apic_timer_interrupt", INTERRUPT));
        assert_eq!(of(0x700), ("something_else", 0));
        assert_eq!(of(0x780), ("", 0), "data is not code");
        assert_eq!(symbols.name(module + 0x1ff), Some("shrink_slab"), "modules are in no order");
        assert_eq!(symbols.meaning(module + 0x1ff), 0, "a module's is not the kernel's");
        assert_eq!(symbols.name(module + 0x280), Some("xfs_late"));
        assert_eq!(symbols.name(module + 0x9_0000), None, "too far from anything");
        assert_eq!((symbols.name(0x10), symbols.name(0x11)), (None, None));
    }

    #[test]
    fn hidden_symbols_are_found_at_once() {
        let hidden = TEXT.lines().map(|l| format!("{:016x}{}\n", 0, &l[16..])).collect::<String>();
        assert!(sees_addresses(TEXT.as_bytes()).unwrap());
        assert!(!sees_addresses(hidden.as_bytes()).unwrap());
        assert!(!sees_addresses(&b""[..]).unwrap());
    }

    #[test]
    fn this_kernel_has_the_functions_that_matter() {
        if let Err(error) = can_be_read(&Root::live()) {
            return coroner_lab::skip(&error.to_string());
        }
        let mut starts = Vec::new();
        each_symbol(open(&Root::live()).unwrap(), |symbol| {
            starts.extend((symbol.module.is_none() && symbol.is_code()).then_some(symbol.address));
            true
        })
        .unwrap();
        starts.sort_unstable();
        starts.dedup();
        let symbols = Symbols::read(&Root::live(), starts).unwrap();
        let all = symbols.functions.iter().fold(0, |all, (_, meaning)| all | meaning);
        assert_eq!(all, (1 << 10) - 1, "each meaning has a function in this kernel");
    }

    proptest! {
        #[test]
        fn any_text_is_read(text in proptest::collection::vec(prop_oneof![
            proptest::collection::vec(any::<u8>(), 0..60),
            "[0-9a-f]{1,17} [tTdDwW] (shrink_node|mem_cgroup_iter|do_idle|.{0,10})(\\.isra\\.0)?(\t\\[x\\])?".prop_map(String::into_bytes),
        ], 0..40), addresses in proptest::collection::btree_set(any::<u64>(), 0..20)) {
            let text = text.join(&b'\n');
            let symbols = Symbols::parse(text.as_slice(), addresses.iter().copied().collect()).unwrap();
            for &address in &addresses {
                prop_assert!(symbols.meaning(address) == 0 || symbols.name(address).is_some());
            }
        }
    }
}
