//! The kernel's symbols, as /proc/kallsyms lists them: `ADDRESS TYPE NAME [MODULE]`.

/// Functions and data by address. Data too: it says where the function before it ends.
pub struct Kallsyms {
    addresses: Vec<u64>,
    /// Where each name begins in `names`, its length, and its module.
    entries: Vec<Entry>,
    names: String,
    modules: Vec<String>,
}

#[derive(Clone, Copy)]
struct Entry {
    name: u32,
    length: u16,
    /// 0 for the kernel proper, else the module's position plus one.
    module: u16,
    kind: u8,
}

impl Kallsyms {
    /// `None` if no address is shown: the kernel prints zeros to those who may not know.
    pub fn parse(text: &[u8]) -> Option<Kallsyms> {
        let mut all: Vec<(u64, Entry)> = Vec::new();
        let mut names = String::new();
        let mut modules: Vec<String> = Vec::new();
        for line in text.split(|byte| *byte == b'\n') {
            let Ok(line) = std::str::from_utf8(line) else { continue };
            let mut words = line.split_ascii_whitespace();
            let (Some(address), Some(kind), Some(name)) = (words.next(), words.next(), words.next()) else { continue };
            let Ok(address) = u64::from_str_radix(address, 16) else { continue };
            let kind = kind.as_bytes()[0];
            // Absolute symbols are offsets into per-CPU memory; mapping symbols of ARM begin with $.
            if !matches!(kind.to_ascii_uppercase(), b'T' | b'W' | b'D' | b'B') || name.starts_with('$') || address == 0
            {
                continue;
            }
            let module = match words.next().and_then(|module| module.strip_prefix('[')?.strip_suffix(']')) {
                Some(module) => match modules.iter().rposition(|known| known == module) {
                    Some(at) => at + 1,
                    None => {
                        modules.push(module.to_owned());
                        modules.len()
                    }
                },
                None => 0,
            };
            let (Ok(start), Ok(length), Ok(module)) =
                (u32::try_from(names.len()), u16::try_from(name.len()), u16::try_from(module))
            else {
                continue;
            };
            names.push_str(name);
            all.push((address, Entry { name: start, length, module, kind }));
        }
        let text_of = |entry: &Entry| &names[entry.name as usize..][..usize::from(entry.length)];
        // Of several names for one address the best one first.
        all.sort_by(|(a_address, a), (b_address, b)| {
            a_address.cmp(b_address).then_with(|| preference(b.kind, text_of(b)).cmp(&preference(a.kind, text_of(a))))
        });
        all.dedup_by_key(|(address, _)| *address);
        let (addresses, entries): (Vec<u64>, Vec<Entry>) = all.into_iter().unzip();
        (!addresses.is_empty()).then_some(Kallsyms { addresses, entries, names, modules })
    }

    /// The symbol that covers `address`, and its module.
    pub fn find(&self, address: u64) -> Option<(&str, Option<&str>)> {
        let at = self.addresses.partition_point(|start| *start <= address).checked_sub(1)?;
        let entry = self.entries[at];
        // Nothing is that long; an address behind the last symbol is nobody's.
        if address - self.addresses[at] > 16 << 20 {
            return None;
        }
        let module = usize::from(entry.module).checked_sub(1).map(|module| self.modules[module].as_str());
        Some((&self.names[entry.name as usize..][..usize::from(entry.length)], module))
    }
}

/// Which of several names perf shows (tools/perf/util/symbol.c, `choose_best_symbol`): not weak, global, fewer leading
/// underscores, longer. Aliases for position-independent start-up code (`__pi_`) and for 32-bit calls of a 64-bit kernel come last.
fn preference(kind: u8, name: &str) -> (bool, bool, bool, isize, usize) {
    let underscores = name.bytes().take_while(|byte| *byte == b'_').count();
    let weak = kind.eq_ignore_ascii_case(&b'w');
    (
        !name.starts_with("__pi_") && !name.starts_with("__ia32_"),
        !weak,
        kind.is_ascii_uppercase(),
        -(underscores as isize),
        name.len(),
    )
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
        let kernel = Kallsyms::parse(text.as_bytes()).expect("symbols");
        assert_eq!(kernel.find(0xffff_ffff_8100_0000), Some(("startup_64", None)));
        assert_eq!(kernel.find(0xffff_ffff_8100_02ff), Some(("__do_softirq", None)));
        assert_eq!(kernel.find(0xffff_ffff_8100_0300), Some(("data", None)));
        assert_eq!(kernel.find(0xffff_ffff_c000_0010), Some(("nft_do_chain", Some("nf_tables"))));
        assert_eq!(kernel.find(0xffff_ffff_80ff_ffff), None);
        assert_eq!(kernel.find(u64::MAX), None);
        assert!(Kallsyms::parse(b"0000000000000000 T hidden\n").is_none());
    }

    proptest! {
        #[test]
        fn any_text(text in "([0-9a-f]{1,16} [a-zA-Z] [a-z_$]{0,6}( \\[[a-z]{0,3}\\])?\n){0,20}|.{0,200}", address: u64) {
            if let Some(kernel) = Kallsyms::parse(text.as_bytes()) {
                kernel.find(address);
            }
        }
    }
}
