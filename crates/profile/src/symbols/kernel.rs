//! Kernel symbols, from a list that may be from another boot.
//!
//! The kernel may be loaded at another address on each boot (KASLR), and modules always are. A recording has the address of the
//! kernel (`[kernel.kallsyms]_text`, with the address of `_text`) and of each module; the list has those of the boot it was
//! written in. Addresses are shifted by the difference.

use std::collections::HashMap;
use std::path::Path;

use coroner_evidence::Order;
use coroner_evidence::kallsyms::{Kallsyms, KernelSymbol};

use super::elf::{cached, hex};
use super::kernel_list::KernelList;
use super::read_bounded;

/// The kernel as a recording describes it.
#[derive(Clone, Debug, Default)]
pub struct RecordedKernel {
    pub build_id: Option<Vec<u8>>,
    /// `uname -r`.
    pub release: Option<String>,
    /// A reference symbol and its address.
    pub reference: Option<(String, u64)>,
    /// Modules: start, end and name.
    pub modules: Vec<(u64, u64, String)>,
}

/// More modules than any kernel has.
const MAX_MODULES: usize = 1 << 14;
/// KASLR moves the kernel by a multiple of this (arm64; x86 uses 2 MB). Another distance means another kernel.
const KASLR_STEP: u64 = 64 << 10;
const PAGE: u64 = 4096;

impl RecordedKernel {
    /// Adds a kernel mapping: `[kernel.kallsyms]_text` with the symbol's address, or a module's name or file.
    pub fn mapped(&mut self, path: &str, start: u64, length: u64, reference: u64) {
        if let Some(symbol) = path.strip_prefix("[kernel.kallsyms]") {
            if !symbol.is_empty() {
                self.reference = Some((symbol.to_owned(), reference));
            }
        } else if let Some(name) = module_name(path)
            && self.modules.len() < MAX_MODULES
        {
            self.modules.push((start, start.saturating_add(length), name));
        }
    }
}

/// `[nf_tables]` and `/lib/modules/6.1/kernel/net/nf-tables.ko.xz` are the module `nf_tables`.
fn module_name(path: &str) -> Option<String> {
    if let Some(name) = path.strip_prefix('[').and_then(|name| name.strip_suffix(']')) {
        return Some(name.to_owned());
    }
    let (name, _) = path.rsplit('/').next()?.split_once(".ko")?;
    Some(name.replace('-', "_"))
}

/// A list of the kernel's symbols, read as a whole or as needed.
enum List {
    Whole(Kallsyms),
    AsNeeded(KernelList),
}

impl List {
    fn find(&mut self, address: u64) -> Option<KernelSymbol<'_>> {
        match self {
            List::Whole(list) => list.find(address),
            List::AsNeeded(list) => list.find(address),
        }
    }

    fn address_of(&self, name: &str) -> Option<u64> {
        match self {
            List::Whole(list) => list.address_of(name),
            List::AsNeeded(list) => list.address_of(name),
        }
    }

    fn modules(&self) -> HashMap<&str, u64> {
        match self {
            List::Whole(list) => list.modules(),
            List::AsNeeded(list) => list.modules(),
        }
    }
}

pub(super) struct Kernel {
    symbols: List,
    /// Recorded address of the kernel minus the one in the list.
    moved: u64,
    /// Modules by recorded address: start, end, offset from the list (`None` if it lacks the module), name.
    modules: Vec<(u64, u64, Option<u64>, String)>,
    /// The list is the running kernel's, and the kernel was not moved since the recording.
    same_boot: bool,
}

impl Kernel {
    /// The list for the recorded kernel: perf's copy of it, else the running kernel's, if it is the same kernel.
    pub fn load(root: &Path, recorded: &RecordedKernel) -> Result<Kernel, String> {
        let copied = recorded.build_id.as_deref().map(|id| cached(root, id).join("kallsyms"));
        if let Some(copied) = copied {
            let whole = || Kallsyms::parse(read_bounded(&copied).ok()?).map(List::Whole);
            if let Some(symbols) = KernelList::open(&copied).map(List::AsNeeded).or_else(whole)
                && let Ok(kernel) = Kernel::relocated(symbols, recorded, false)
            {
                return Ok(kernel);
            }
        }
        is_running(root, recorded)?;
        let text = read_bounded(&root.join("proc/kallsyms")).map_err(|error| format!("proc/kallsyms: {error}"))?;
        let symbols = Kallsyms::parse(text)
            .ok_or("proc/kallsyms: addresses are hidden; read it as root (kernel.kptr_restrict)")?;
        Kernel::relocated(List::Whole(symbols), recorded, true)
    }

    fn relocated(symbols: List, recorded: &RecordedKernel, running: bool) -> Result<Kernel, String> {
        let moved = match &recorded.reference {
            Some((name, address)) => match symbols.address_of(name) {
                Some(now) => address.wrapping_sub(now),
                None => return Err(format!("kernel: {name} is not in kallsyms; kernel functions stay unnamed")),
            },
            None => 0,
        };
        if moved % KASLR_STEP != 0 {
            return Err("kernel: no KASLR offset leads from its address in kallsyms to the recorded one; \
                        kernel functions stay unnamed"
                .to_owned());
        }
        let mut modules = Vec::new();
        if !recorded.modules.is_empty() {
            let lowest = symbols.modules();
            for (start, end, name) in &recorded.modules {
                // A module's code starts at a page boundary; its first symbol is on that page.
                let moved = lowest.get(name.as_str()).map(|first| match (*start..*end).contains(first) {
                    true => 0,
                    false => start.wrapping_sub(first & !(PAGE - 1)),
                });
                modules.push((*start, *end, moved, name.clone()));
            }
            modules.order_by_key(|(start, ..)| *start);
        }
        Ok(Kernel { symbols, moved, modules, same_boot: running && moved == 0 })
    }

    /// The function at `address` and its module (none for the kernel proper).
    pub fn find(&mut self, address: u64) -> (Option<&str>, Option<&str>) {
        let at = self.modules.partition_point(|(start, ..)| *start <= address);
        if let Some((_, _, moved, name)) = self.modules[..at].last().filter(|(_, end, ..)| address < *end) {
            let symbol = moved.and_then(|moved| self.symbols.find(address.wrapping_sub(moved)));
            let symbol = symbol.filter(|symbol| symbol.module == Some(name));
            return (symbol.map(|symbol| symbol.name), Some(name));
        }
        match self.symbols.find(address.wrapping_sub(self.moved)) {
            // The recording has no module there; the list's may be from another boot.
            Some(symbol) if symbol.module.is_some() && !self.same_boot => (None, None),
            Some(symbol) => (Some(symbol.name), symbol.module),
            None => (None, None),
        }
    }
}

/// Whether the running kernel is the recorded one, as far as can be told.
pub(super) fn is_running(root: &Path, recorded: &RecordedKernel) -> Result<(), String> {
    let notes = std::fs::read(root.join("sys/kernel/notes")).unwrap_or_default();
    let running = super::elf::build_id_in(&notes);
    if let (Some(recorded), Some(running)) = (&recorded.build_id, &running) {
        return if recorded == running {
            Ok(())
        } else {
            Err(format!(
                "kernel: recorded on another kernel (build id {}) than proc/kallsyms; kernel functions stay unnamed",
                hex(recorded)
            ))
        };
    }
    let release = std::fs::read_to_string(root.join("proc/sys/kernel/osrelease")).unwrap_or_default();
    match &recorded.release {
        Some(recorded) if !release.is_empty() && recorded != release.trim() => Err(format!(
            "kernel: recorded on Linux {recorded}, this is {}; kernel functions stay unnamed",
            release.trim()
        )),
        _ => Ok(()),
    }
}
