//! Jumps into other libraries: `malloc@plt` is the stub through which a program calls `malloc`.
//!
//! A stub has no symbol. It jumps through a slot, and a relocation says whose address the slot gets.

use std::collections::HashMap;
use std::ops::Range;

use super::image::{Image, Section, u32_at, u64_at};

const MAX_RELOCATIONS: u64 = 256 << 20;

pub(super) struct Plt {
    stubs: Vec<Section>,
    relocations: Vec<Section>,
    /// The dynamic symbols and their strings.
    dynamic: (Section, Section),
    machine: u16,
    /// By slot the place of the symbol in the dynamic table, and the symbols of `.rela.plt` in order; read when first needed.
    slots: Option<(HashMap<u64, u32>, Vec<u32>)>,
}

const X86_64: u16 = 62;
const AARCH64: u16 = 183;
const STUB: u64 = 16;
/// What fills a slot on x86-64 (`R_X86_64_*`).
const GLOB_DAT: u32 = 6;
const JUMP_SLOT: u32 = 7;
const IRELATIVE: u32 = 37;

impl Plt {
    pub fn of(image: &Image, sections: &[Section]) -> Option<Plt> {
        let named = |names: &[&[u8]]| -> Vec<Section> {
            let fits = |section: &&Section| names.contains(&section.name.as_slice()) && section.kind != Section::NOBITS;
            sections.iter().filter(fits).cloned().collect()
        };
        let dynamic = sections.iter().find(|section| section.name == b".dynsym")?.clone();
        let strings = sections.get(dynamic.link as usize)?.clone();
        let stubs = named(&[b".plt", b".plt.sec", b".plt.got"]);
        let relocations = named(&[b".rela.plt", b".rela.dyn"]);
        let machine = image.machine()?;
        (!stubs.is_empty()).then_some(Plt { stubs, relocations, dynamic: (dynamic, strings), machine, slots: None })
    }

    /// What it takes of memory, about.
    pub fn held_bytes(&self) -> usize {
        self.slots.as_ref().map_or(0, |(slots, in_order)| slots.len() * 24 + in_order.len() * 4)
    }

    pub fn covers(&self, address: u64) -> bool {
        self.stubs.iter().any(|section| section.covers(address))
    }

    /// The stub at `address`. The last of `images` is the mapped file.
    pub fn find(&mut self, images: &[Image], address: u64) -> Option<(Range<u64>, Vec<u8>)> {
        let image = images.last()?;
        let section = self.stubs.iter().find(|section| section.covers(address))?;
        let each = if section.name == b".plt.got" && section.entry_size == 8 { 8 } else { STUB };
        let at = (address - section.address) / each * each;
        let code = image.bytes(section.offset.checked_add(at)?, each.min(section.size - at), STUB)?;
        let start = section.address + at;
        let (slots, in_order) = self.slots.get_or_insert_with(|| slots(image, &self.relocations));
        let symbol = match self.machine {
            X86_64 => match jump(&code) {
                Jump::Through(displacement) => slots.get(&start.wrapping_add(displacement)).copied(),
                Jump::Numbered(number) => in_order.get(number as usize).copied(),
                Jump::Other => None,
            },
            // Two entries' room for the way into the linker, then a stub for each relocation.
            AARCH64 => (at / STUB).checked_sub(2).and_then(|number| in_order.get(number as usize)).copied(),
            _ => None,
        }?;
        let (symbols, strings) = &self.dynamic;
        let entry = image.bytes(symbols.offset.checked_add(u64::from(symbol) * 24)?, 24, 24)?;
        let mut name = image.string(strings, u32_at(&entry, 0)?);
        // Without a name, as perf has it, if the linker chooses among variants of a function of the same file.
        name.extend_from_slice(b"@plt");
        Some((start..start + each, name))
    }
}

enum Jump {
    /// `jmp *slot(%rip)`: how far the slot is from the stub.
    Through(u64),
    /// `push $n`: the stub's relocation, counted.
    Numbered(u32),
    Other,
}

fn jump(code: &[u8]) -> Jump {
    const ENDBR: &[u8] = &[0xf3, 0x0f, 0x1e, 0xfa];
    const BND: &[u8] = &[0xf2];
    let rest = code.strip_prefix(ENDBR).unwrap_or(code);
    let rest = rest.strip_prefix(BND).unwrap_or(rest);
    let at = code.len() - rest.len();
    match rest {
        [0xff, 0x25, a, b, c, d, ..] => {
            let displacement = i64::from(i32::from_le_bytes([*a, *b, *c, *d]));
            Jump::Through((at as i64 + 6 + displacement) as u64)
        }
        [0x68, a, b, c, d, ..] => Jump::Numbered(u32::from_le_bytes([*a, *b, *c, *d])),
        _ => Jump::Other,
    }
}

fn slots(image: &Image, relocations: &[Section]) -> (HashMap<u64, u32>, Vec<u32>) {
    let mut slots = HashMap::new();
    let mut in_order = Vec::new();
    for section in relocations {
        let Some(bytes) = image.bytes(section.offset, section.size, MAX_RELOCATIONS) else { continue };
        for entry in bytes.chunks_exact(24) {
            let (Some(slot), Some(info)) = (u64_at(entry, 0), u64_at(entry, 8)) else { continue };
            let (symbol, kind) = ((info >> 32) as u32, info as u32);
            // Most of them are of no stub's slot.
            if [GLOB_DAT, JUMP_SLOT, IRELATIVE].contains(&kind) {
                slots.insert(slot, symbol);
            }
            if section.name == b".rela.plt" {
                in_order.push(symbol);
            }
        }
    }
    (slots, in_order)
}
