//! The kernel's symbols, as /proc/kallsyms lists them: `ADDRESS TYPE NAME [MODULE]`.

use std::collections::HashMap;
use std::io::{self, BufRead, Read};

use crate::kernel_work::{Meaning, OF_MODULES, meaning_of};

/// No function is longer: an address farther after a symbol is in a gap between sections, or in code without symbols.
const LONGEST_FUNCTION: u64 = 256 << 10;
/// No line is longer: KSYM_NAME_LEN is 512.
pub const LONGEST_LINE: u64 = 1024;

/// Functions and data by address. Data too: it shows where the function before it ends.
#[derive(Debug)]
pub struct Kallsyms {
    text: Vec<u8>,
    /// Address and where its line begins in `text`; sorted by address, then in the order of lines.
    symbols: Vec<(u64, u32)>,
}

/// A parsed line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelSymbol<'a> {
    pub address: u64,
    kind: u8,
    pub name: &'a str,
    pub module: Option<&'a str>,
}

impl Kallsyms {
    /// `None` if all addresses are 0: the kernel hides them from unprivileged readers.
    pub fn parse(text: Vec<u8>) -> Option<Kallsyms> {
        let kernel = Kallsyms::index(text);
        (!kernel.symbols.is_empty()).then_some(kernel)
    }

    /// Reads a list and keeps only what covers these sorted addresses. `None` if all addresses are 0.
    pub fn covering(mut text: impl BufRead, addresses: &[u64]) -> io::Result<Option<Kallsyms>> {
        let (mut kept, mut open, mut line) = (Vec::new(), Vec::new(), Vec::new());
        let (mut start, mut is_shown) = (0, false);
        // A symbol ends where the next one begins. The kernel's own symbols are sorted, those of modules are not.
        let mut close = |open: &mut Vec<u8>, start: u64, next: u64| {
            let end = if next > start { next.min(start.saturating_add(LONGEST_FUNCTION)) } else { u64::MAX };
            if addresses.get(addresses.partition_point(|address| *address < start)).is_some_and(|first| *first < end) {
                kept.extend_from_slice(open);
            }
            open.clear();
        };
        while text.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line)? > 0 {
            is_shown |= address_of_line(&line).is_some_and(|address| address != 0);
            if let Some(address) = address_of_symbol(&line) {
                if address != start {
                    close(&mut open, start, address);
                    start = address;
                }
                open.extend_from_slice(&line);
            }
            line.clear();
        }
        close(&mut open, start, u64::MAX);
        Ok(is_shown.then(|| Kallsyms::index(kept)))
    }

    fn index(text: Vec<u8>) -> Kallsyms {
        let mut symbols: Vec<(u64, u32)> = Vec::with_capacity(text.len() / 40);
        let mut start = 0;
        while start < text.len() {
            let end = memchr::memchr(b'\n', &text[start..]).map_or(text.len(), |at| start + at);
            if let Some(address) = address_of_symbol(&text[start..end])
                && let Ok(line) = u32::try_from(start)
            {
                symbols.push((address, line));
            }
            start = end + 1;
        }
        if !symbols.is_sorted_by_key(|(address, _)| *address) {
            symbols.sort_by_key(|(address, _)| *address);
        }
        Kallsyms { text, symbols }
    }

    /// The symbol that covers `address`.
    pub fn find(&self, address: u64) -> Option<KernelSymbol<'_>> {
        let end = self.symbols.partition_point(|(start, _)| *start <= address);
        // Of several names for one address perf shows the last: to it the others have length 0, as the next begins at the same place.
        let (start, line) = *self.symbols[..end].last()?;
        if address - start >= LONGEST_FUNCTION { None } else { self.line(line) }
    }

    /// The address of the kernel's own symbol `name`.
    pub fn address_of(&self, name: &str) -> Option<u64> {
        address_of(&self.text, name)
    }

    /// The lowest address.
    pub fn begins(&self) -> Option<u64> {
        self.symbols.first().map(|(address, _)| *address)
    }

    /// The lowest code address of each module.
    pub fn modules(&self) -> HashMap<&str, u64> {
        let mut lowest = HashMap::new();
        let mut at = 0;
        // Only lines of modules have brackets, and most kernels load few modules.
        while let Some(found) = memchr::memchr(b'[', &self.text[at..]) {
            let line = memchr::memrchr(b'\n', &self.text[..at + found]).map_or(0, |end| end + 1);
            if let Some(symbol) = u32::try_from(line).ok().and_then(|line| self.line(line))
                && let Some(module) = symbol.module
                && symbol.kind.eq_ignore_ascii_case(&b't')
            {
                let lowest = lowest.entry(module).or_insert(symbol.address);
                *lowest = symbol.address.min(*lowest);
            }
            at += found + 1;
        }
        lowest
    }

    fn line(&self, start: u32) -> Option<KernelSymbol<'_>> {
        let rest = &self.text[start as usize..];
        let line = &rest[..memchr::memchr(b'\n', rest).unwrap_or(rest.len())];
        let (address, kind, rest) = address_and_kind(line)?;
        let mut words = std::str::from_utf8(rest).ok()?.split_ascii_whitespace();
        let name = words.next()?;
        let module = words.next().and_then(|module| module.strip_prefix('[')?.strip_suffix(']'));
        Some(KernelSymbol { address, kind, name, module })
    }
}

impl KernelSymbol<'_> {
    /// What the function means for the kernel's work.
    pub fn meaning(&self) -> Meaning {
        meaning_of(self.name) & if self.module.is_some() { OF_MODULES } else { Meaning::MAX }
    }
}

/// The address of the kernel's own symbol `name` in a list.
pub fn address_of(text: &[u8], name: &str) -> Option<u64> {
    let whole = format!(" {name}\n");
    let at = memchr::memmem::find(text, whole.as_bytes())?;
    let line = memchr::memrchr(b'\n', &text[..at]).map_or(0, |end| end + 1);
    address_and_kind(&text[line..at]).map(|(address, ..)| address).or_else(|| {
        let digits = std::str::from_utf8(&text[line..at]).ok()?;
        u64::from_str_radix(digits.split(' ').next()?, 16).ok()
    })
}

/// The address at the start of a line.
pub fn address_of_line(line: &[u8]) -> Option<u64> {
    address_and_kind(line).map(|(address, ..)| address)
}

/// The address of a line that marks the start of code or data.
fn address_of_symbol(line: &[u8]) -> Option<u64> {
    let (address, kind, name) = address_and_kind(line)?;
    // Absolute symbols are offsets into per-CPU memory; ARM's mapping symbols begin with $.
    let is_one = matches!(kind.to_ascii_uppercase(), b'T' | b'W' | b'D' | b'B') && !name.starts_with(b"$");
    (is_one && address != 0).then_some(address)
}

/// The value of each byte as a hex digit; 16 if it is none.
const DIGITS: [u8; 256] = {
    let mut digits = [16; 256];
    let mut n = 0;
    while n < 16 {
        digits[b"0123456789abcdef"[n] as usize] = n as u8;
        n += 1;
    }
    digits
};

/// `ADDRESS KIND REST`.
fn address_and_kind(line: &[u8]) -> Option<(u64, u8, &[u8])> {
    // The usual width; otherwise search for the space.
    let digits = match line.get(16) {
        Some(b' ') => 16,
        _ => line.iter().position(|byte| *byte == b' ').filter(|digits| (1..=16).contains(digits))?,
    };
    let (mut address, mut worst) = (0, 0);
    for byte in &line[..digits] {
        let digit = DIGITS[usize::from(*byte)];
        worst |= digit;
        address = address << 4 | u64::from(digit & 15);
    }
    if worst > 15 {
        return None;
    }
    match &line[digits + 1..] {
        [kind, b' ', rest @ ..] if !rest.is_empty() && rest != b"\n" => Some((address, *kind, rest)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_symbol_that_covers_an_address() {
        let text = "ffffffff81000000 T _text\nffffffff81000000 T startup_64\nffffffff81000100 t __do_softirq\n\
                    ffffffff81000100 W weak_name\nffffffff81000200 a absolute\nffffffff81000300 d data\n\
                    ffffffffc0000000 t nft_do_chain\t[nf_tables]\n";
        let kernel = Kallsyms::parse(text.as_bytes().to_vec()).expect("symbols");
        let find = |address| kernel.find(address).map(|symbol| (symbol.name, symbol.module));
        assert_eq!(find(0xffff_ffff_8100_0000), Some(("startup_64", None)));
        assert_eq!(find(0xffff_ffff_8100_02ff), Some(("weak_name", None)));
        assert_eq!(find(0xffff_ffff_8100_0300), Some(("data", None)));
        assert_eq!(find(0xffff_ffff_c000_0010), Some(("nft_do_chain", Some("nf_tables"))));
        assert_eq!(find(0xffff_ffff_80ff_ffff), None);
        assert_eq!(find(u64::MAX), None);
        assert_eq!(kernel.address_of("_text"), Some(0xffff_ffff_8100_0000));
        assert_eq!(kernel.address_of("text"), None);
        assert_eq!(kernel.modules(), HashMap::from([("nf_tables", 0xffff_ffff_c000_0000)]));
        assert!(Kallsyms::parse(b"0000000000000000 T hidden\n".to_vec()).is_none());
    }

    #[test]
    fn only_what_is_needed_is_kept_and_hidden_addresses_are_noticed() {
        let text = "0000000000000000 A fixed_percpu_data\nffffffff81000000 T _stext\nffffffff81000100 t shrink_node\n\
                    ffffffff81000300 t memcg_stat_show.constprop.0\nffffffff81000380 T iter_alias\nffffffff81000380 T mem_cgroup_iter\n\
                    ffffffff81000780 d mem_cgroup_iter\nffffffffc0000200 t xfs_late\t[xfs]\nffffffffc0000100 t shrink_slab\t[evil]\n";
        let (base, module) = (0xffff_ffff_8100_0000, 0xffff_ffff_c000_0000);
        let addresses = [0x10, base + 0x2ff, base + 0x3ff, module + 0x1ff, module + 0x280, module + 0x9_0000];
        let kernel = Kallsyms::covering(text.as_bytes(), &addresses).unwrap().expect("addresses are shown");
        let name = |address| kernel.find(address).map(|symbol| symbol.name);
        assert_eq!(name(base + 0x2ff), Some("shrink_node"));
        assert_eq!(name(base + 0x3ff), Some("mem_cgroup_iter"));
        assert_eq!(name(module + 0x1ff), Some("shrink_slab"), "modules are not sorted");
        assert_eq!(name(module + 0x280), Some("xfs_late"));
        assert_eq!((name(0x10), name(module + 0x9_0000)), (None, None), "too far from anything");
        assert!(!String::from_utf8_lossy(&kernel.text).contains("memcg_stat_show"), "no address is in it");
        assert_eq!(kernel.find(base + 0x2ff).unwrap().meaning(), meaning_of("shrink_node"));
        assert_eq!(
            kernel.find(module + 0x1ff).unwrap().meaning(),
            meaning_of("anything"),
            "a module's symbol is not the kernel's"
        );
        let hidden = text.lines().map(|line| format!("{:016x}{}\n", 0, &line[16..])).collect::<String>();
        assert!(Kallsyms::covering(hidden.as_bytes(), &addresses).unwrap().is_none());
        assert!(Kallsyms::covering(&b""[..], &[]).unwrap().is_none());
        assert!(Kallsyms::covering(text.as_bytes(), &[]).unwrap().is_some());
    }

    proptest! {
        #[test]
        fn a_part_names_what_the_whole_names(lines in proptest::collection::vec((0u64..40, 0..4usize, 0..3usize), 0..40),
                                             sorted: bool, addresses in proptest::collection::btree_set(0u64..45_000, 0..20)) {
            let mut lines = lines;
            if sorted {
                lines.sort_unstable();
            }
            let text: String = lines
                .iter()
                .enumerate()
                .map(|(n, (at, kind, module))| {
                    format!("{:x} {} f{n}{}\n", at * 1000, ["t", "T", "d", "a"][*kind], ["", "\t[x]", "\t[y]"][*module])
                })
                .collect();
            let addresses: Vec<u64> = addresses.into_iter().collect();
            let part = Kallsyms::covering(text.as_bytes(), &addresses).unwrap();
            let whole = Kallsyms::parse(text.into_bytes());
            for address in addresses {
                let of = |kernel: &Option<Kallsyms>| {
                    kernel.as_ref().and_then(|kernel| kernel.find(address)).map(|symbol| symbol.name.to_owned())
                };
                prop_assert_eq!(of(&part), of(&whole), "{}", address);
            }
        }

        #[test]
        fn any_text(text in "([0-9a-f]{1,16} [a-zA-Z] [a-z_$]{0,6}( \\[[a-z]{0,3}\\])?\n){0,20}|.{0,200}", address: u64) {
            if let Some(kernel) = Kallsyms::parse(text.into_bytes()) {
                kernel.find(address);
                kernel.modules();
                kernel.address_of("a");
            }
        }
    }
}
