//! Stubs through which a program calls into libraries: `malloc@plt`.
//!
//! A stub has no symbol. It jumps through a slot, and a relocation names the function whose address goes there. perf counts stubs
//! and relocations instead (tools/perf/util/symbol-elf.c, `dso__synthesize_plt_symbols`) and gets the same names.

use std::collections::HashMap;
use std::ops::Range;

use super::image::{Image, Section, u32_at, u64_at};

const MAX_RELOCATIONS: u64 = 256 << 20;

pub(super) struct Plt {
    stubs: Vec<Section>,
    relocations: Vec<Section>,
    /// The dynamic symbols and their strings; a static program has none.
    dynamic: Option<(Section, Section)>,
    machine: u16,
    /// The target of each slot, and the targets of `.rela.plt` in order; read when first needed.
    slots: Option<(HashMap<u64, Target>, Vec<Target>)>,
}

/// Where a stub jumps to.
#[derive(Clone, Copy)]
enum Target {
    /// A symbol, by its index in the dynamic table.
    Symbol(u32),
    /// An IFUNC of the same file: the resolver at this address chooses the variant and has its name.
    ChosenBy(u64),
}

/// The name of a stub.
pub(super) enum StubName {
    Symbol(Vec<u8>),
    /// The name of the function at this address.
    Function(u64),
    /// The header that all stubs share (the way into the linker), or an unknown kind of stub.
    Unknown,
}

const X86_64: u16 = 62;
const AARCH64: u16 = 183;
const STUB: u64 = 16;

impl Plt {
    pub fn of(image: &Image, sections: &[Section]) -> Option<Plt> {
        let named = |names: &[&[u8]]| -> Vec<Section> {
            let fits = |section: &&Section| names.contains(&section.name.as_slice()) && section.kind != Section::NOBITS;
            sections.iter().filter(fits).cloned().collect()
        };
        let dynamic = sections.iter().find(|section| section.name == b".dynsym");
        let dynamic = dynamic.and_then(|symbols| Some((symbols.clone(), sections.get(symbols.link as usize)?.clone())));
        let stubs = named(&[b".plt", b".plt.sec", b".plt.got"]);
        let relocations = named(&[b".rela.plt", b".rela.dyn"]);
        let machine = image.machine()?;
        (!stubs.is_empty()).then_some(Plt { stubs, relocations, dynamic, machine, slots: None })
    }

    /// Memory used, approximately.
    pub fn held_bytes(&self) -> usize {
        self.slots.as_ref().map_or(0, |(slots, in_order)| slots.len() * 40 + in_order.len() * size_of::<Target>())
    }

    /// The part of `range` around `address` that holds no stubs.
    pub fn outside(&self, range: Range<u64>, address: u64) -> Range<u64> {
        self.stubs.iter().fold(range, |range, section| {
            if section.address > address {
                range.start..range.end.min(section.address)
            } else {
                range.start.max(section.address.saturating_add(section.size)).min(address)..range.end
            }
        })
    }

    /// The stub at `address`. The last of `images` is the mapped file.
    pub fn find(&mut self, images: &[Image], address: u64) -> Option<(Range<u64>, StubName)> {
        let section = self.stubs.iter().find(|section| section.covers(address))?;
        let each = match (self.machine, section.entry_size) {
            // arm64 with pointer authentication and branch target checks.
            (AARCH64, 24) => 24,
            (AARCH64, _) => STUB,
            (_, 8 | 16) => section.entry_size,
            (_, _) if section.alignment == 8 => 8,
            _ => STUB,
        };
        let at = (address - section.address) / each * each;
        let start = section.address + at;
        let range = start..start.saturating_add(each.min(section.size - at));
        let image = images.last()?;
        let (slots, in_order) = self.slots.get_or_insert_with(|| slots(image, &self.relocations));
        let target = match self.machine {
            X86_64 => {
                let code = image.bytes(section.offset.checked_add(at)?, range.end - range.start, STUB);
                match jump(&code.unwrap_or_default()) {
                    Jump::Through(displacement) => slots.get(&start.wrapping_add(displacement)),
                    Jump::Numbered(number) => in_order.get(number as usize),
                    Jump::Other => None,
                }
            }
            // A 32-byte header, then one stub per relocation.
            AARCH64 => at.checked_sub(32).and_then(|past| in_order.get((past / each) as usize)),
            _ => None,
        };
        let name = match target {
            Some(Target::ChosenBy(address)) => StubName::Function(*address),
            Some(Target::Symbol(symbol)) => {
                let (symbols, strings) = self.dynamic.as_ref()?;
                let entry = image.bytes(symbols.offset.checked_add(u64::from(*symbol) * 24)?, 24, 24)?;
                StubName::Symbol(image.string(strings, u32_at(&entry, 0)?))
            }
            None => StubName::Unknown,
        };
        Some((range, name))
    }
}

enum Jump {
    /// `jmp *slot(%rip)`: the distance from the stub to the slot.
    Through(u64),
    /// `push $n`: the index of the stub's relocation.
    Numbered(u32),
    Other,
}

fn jump(code: &[u8]) -> Jump {
    const ENDBR: &[u8] = &[0xf3, 0x0f, 0x1e, 0xfa];
    const BND: &[u8] = &[0xf2];
    let rest = code.strip_prefix(ENDBR).unwrap_or(code);
    // mold's stubs begin with the relocation's index: mov $n, %r11d.
    let rest = if rest.starts_with(&[0x41, 0xbb]) { rest.get(6..).unwrap_or_default() } else { rest };
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

fn slots(image: &Image, relocations: &[Section]) -> (HashMap<u64, Target>, Vec<Target>) {
    // R_X86_64_* and R_AARCH64_*; most relocations belong to no stub.
    const GLOB_DAT: u32 = 6;
    const JUMP_SLOT: u32 = 7;
    const IRELATIVE: [u32; 2] = [37, 1032];
    let mut slots = HashMap::new();
    let mut in_order = Vec::new();
    for section in relocations {
        let Some(bytes) = image.bytes(section.offset, section.size, MAX_RELOCATIONS) else { continue };
        for entry in bytes.chunks_exact(24) {
            let fields = (u64_at(entry, 0), u64_at(entry, 8), u64_at(entry, 16));
            let (Some(slot), Some(info), Some(addend)) = fields else { continue };
            let (symbol, kind) = ((info >> 32) as u32, info as u32);
            let target = if IRELATIVE.contains(&kind) { Target::ChosenBy(addend) } else { Target::Symbol(symbol) };
            if [GLOB_DAT, JUMP_SLOT].contains(&kind) || IRELATIVE.contains(&kind) {
                slots.insert(slot, target);
            }
            if section.name == b".rela.plt" {
                in_order.push(target);
            }
        }
    }
    (slots, in_order)
}
