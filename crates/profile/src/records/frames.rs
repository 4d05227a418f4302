//! From addresses to frames and stacks.

use std::collections::{BTreeMap, HashMap};

use coroner_evidence::perf::sample::CONTEXT;

use super::Limits;
use super::space::{Dso, Tasks};
use crate::model::{
    ByteTable, Dictionary, FileOffset, Frame, FrameId, FramePlace, Seeded, StackId, StrId, Strings, label,
};
use crate::symbols::{Answer, Function, MappedFile, Symbols, hex};

/// Markers in a call chain: whose the following addresses are.
const CONTEXT_HYPERVISOR: u64 = -32i64 as u64;
const CONTEXT_KERNEL: u64 = -128i64 as u64;
const CONTEXT_USER: u64 = -512i64 as u64;
const CONTEXT_DEFERRED: u64 = -640i64 as u64;
const CONTEXT_GUEST: u64 = -2048i64 as u64;
const CONTEXT_GUEST_KERNEL: u64 = -2176i64 as u64;
const CONTEXT_GUEST_USER: u64 = -2560i64 as u64;

/// Whose address it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Kernel,
    User,
    /// In a guest or in the hypervisor: nothing here can name it.
    Foreign,
}

impl Mode {
    /// From the mode bits of a record's `misc`.
    pub fn of_record(misc: u16) -> Mode {
        match misc & 7 {
            1 => Mode::Kernel,
            3..=5 => Mode::Foreign,
            _ => Mode::User,
        }
    }
}

#[derive(Default)]
pub(crate) struct Namer {
    limits: Limits,
    /// Unnamed frames keep their build id and file offset.
    pub keeps_places: bool,
    /// BPF programs and other code loaded or unloaded while recording: end and name by start.
    generated: BTreeMap<u64, (u64, Box<str>)>,
    kernel_frames: HashMap<u64, u32, Seeded>,
    /// Frames by file and offset, for all processes.
    user_frames: HashMap<(u32, u64), u32, Seeded>,
    /// Frames of recent user addresses, by address space version: most samples hit addresses seen before.
    latest: Vec<(u64, u32, u32)>,
    /// The frame of all unmapped addresses. The kernel finds many when it unwinds programs without frame pointers.
    nowhere: Option<u32>,
    /// Module and build id of files with unnamed frames, interned.
    nameless: HashMap<u32, (StrId, StrId), Seeded>,
    /// Functions named before, by file and start: their end and frame. A lookup here is cheaper than naming the address again.
    functions: HashMap<u32, BTreeMap<u64, (u64, u32)>>,
    /// Caller chains seen before: raw bytes of the file, prefixed with the address space version.
    seen: ByteTable,
    seen_stacks: Vec<StackId>,
    seen_bytes: usize,
    key: Vec<u8>,
    stack: Vec<u32>,
}

/// The context for naming an address of a process.
pub(crate) struct Around<'a> {
    pub names: &'a mut Dictionary,
    pub tasks: &'a mut Tasks,
    pub symbols: &'a mut Symbols,
    pub pid: u32,
}

/// How many recent addresses are remembered.
const LATEST: usize = 1 << 11;

fn latest_slot(address: u64, version: u32) -> usize {
    let mixed = (address ^ u64::from(version) << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 53) as usize
}

const MAX_GENERATED: usize = 1 << 17;

impl Namer {
    pub fn new(limits: Limits) -> Namer {
        Namer { limits, ..Namer::default() }
    }

    /// Kernel code was loaded (a BPF program, a trampoline) or, without a name, unloaded.
    pub fn generated(&mut self, start: u64, length: u64, name: Option<&str>) {
        match name {
            Some(name) if self.generated.len() < MAX_GENERATED => {
                self.generated.insert(start, (start.saturating_add(length), name.into()));
            }
            Some(_) => {}
            None => {
                self.generated.remove(&start);
            }
        }
        self.forget_kernel();
    }

    /// Drops cached kernel frames: addresses may mean something else now.
    pub fn forget_kernel(&mut self) {
        self.kernel_frames.clear();
        self.forget_seen();
    }

    /// Drops cached user frames: addresses may mean something else now.
    pub fn forget_programs(&mut self) {
        self.user_frames.clear();
        self.latest.clear();
        self.nowhere = None;
        self.nameless.clear();
        self.functions.clear();
        self.forget_seen();
    }

    pub fn forget_seen(&mut self) {
        if self.seen_bytes > 0 {
            (self.seen, self.seen_bytes) = (ByteTable::default(), 0);
            self.seen_stacks.clear();
        }
    }

    /// The stack of the addresses in `chain`, eight bytes each, leaf first; and whether it is complete. Most samples differ from an
    /// earlier one only in their leaf, so all callers are looked up at once.
    pub fn stack(&mut self, chain: &[u8], swap: bool, mode: Mode, around: &mut Around<'_>) -> (StackId, bool) {
        let word = |at: usize| {
            let word = chain.get(at * 8..at * 8 + 8).and_then(|bytes| bytes.try_into().ok()).map(u64::from_ne_bytes);
            word.map(|word| if swap { word.swap_bytes() } else { word })
        };
        let (Some(context), Some(leaf)) = (word(0), word(1)) else {
            return self.walk(chain, swap, mode, around);
        };
        let Some(mode) = context_mode(context).filter(|_| leaf < CONTEXT) else {
            return self.walk(chain, swap, mode, around);
        };
        let version = around.tasks.space(around.pid).map_or(0, |space| space.version);
        self.key.clear();
        self.key.extend_from_slice(&version.to_ne_bytes());
        self.key.extend_from_slice(&chain[..8]);
        self.key.extend_from_slice(&chain[16..]);
        let callers = match self.seen.find(&self.key) {
            Some(id) => self.seen_stacks[id as usize],
            None => {
                let (stack, whole) = self.walk(&chain[16..], swap, mode, around);
                if !whole {
                    let leaf = self.frame(leaf, mode, around);
                    return (around.names.stacks.push(stack, FrameId(leaf)), false);
                }
                if self.seen_bytes > self.limits.seen_bytes {
                    self.forget_seen();
                }
                self.seen_bytes += self.key.len() + 32;
                self.seen.add(&self.key);
                self.seen_stacks.push(stack);
                stack
            }
        };
        let leaf = self.frame(leaf, mode, around);
        (around.names.stacks.push(callers, FrameId(leaf)), true)
    }

    fn walk(&mut self, chain: &[u8], swap: bool, mut mode: Mode, around: &mut Around<'_>) -> (StackId, bool) {
        let mut stack = std::mem::take(&mut self.stack);
        stack.clear();
        let mut whole = true;
        for word in chain.chunks_exact(8) {
            let address = u64::from_ne_bytes(word.try_into().expect("eight bytes"));
            let address = if swap { address.swap_bytes() } else { address };
            if address < CONTEXT {
                stack.push(self.frame(address, mode, around));
                continue;
            }
            match context_mode(address) {
                Some(next) => mode = next,
                None if address == CONTEXT_DEFERRED => break, // A number follows, not an address.
                None => {
                    // No such context: garbage from a program without frame pointers. perf drops the whole stack.
                    whole = false;
                    break;
                }
            }
        }
        let id = around.names.stacks.intern(&stack);
        self.stack = stack;
        (id, whole)
    }

    /// A stack of one address.
    pub fn single(&mut self, address: u64, mode: Mode, around: &mut Around<'_>) -> StackId {
        let frame = self.frame(address, mode, around);
        around.names.stacks.push(StackId::EMPTY, FrameId(frame))
    }

    /// The frame of an address.
    fn frame(&mut self, address: u64, mode: Mode, around: &mut Around<'_>) -> u32 {
        match mode {
            Mode::Kernel => {
                if let Some(frame) = self.kernel_frames.get(&address) {
                    return *frame;
                }
                let frame = self.kernel_frame(address, around);
                if self.kernel_frames.len() >= self.limits.addresses {
                    self.kernel_frames.clear();
                }
                self.kernel_frames.insert(address, frame);
                frame
            }
            Mode::User => self.user_frame(address, around),
            Mode::Foreign => {
                let module = around.names.strings.intern("[guest]");
                let place = FramePlace::Kernel;
                around.names.frames.intern(Frame { symbol: Strings::EMPTY, module, place, inlined: false }).0
            }
        }
    }

    fn kernel_frame(&mut self, address: u64, around: &mut Around<'_>) -> u32 {
        let strings = &mut around.names.strings;
        let generated = self.generated.range(..=address).next_back().filter(|(_, (end, _))| address < *end);
        let (symbol, module) = match generated {
            Some((_, (_, name))) => (strings.intern(name), strings.intern("[bpf]")),
            None => {
                let (name, module) = around.symbols.kernel(address);
                let module = module.map_or("[kernel.kallsyms]".to_owned(), |module| format!("[{module}]"));
                (name.map_or(Strings::EMPTY, |name| strings.intern(name)), strings.intern(&module))
            }
        };
        around.names.frames.intern(Frame { symbol, module, place: FramePlace::Kernel, inlined: false }).0
    }

    fn user_frame(&mut self, address: u64, around: &mut Around<'_>) -> u32 {
        let Some(space) = around.tasks.space(around.pid) else { return self.nowhere(around.names) };
        let version = space.version;
        let slot = latest_slot(address, version);
        if let Some((known, of, frame)) = self.latest.get(slot)
            && (*known, *of) == (address, version)
            && version != 0
        {
            return *frame;
        }
        let Some((number, offset)) = space.find(address).map(|(at, offset)| (at.dso, offset)) else {
            return self.nowhere(around.names);
        };
        if let Some(frame) = self.user_frames.get(&(number, offset)).copied() {
            self.remember(slot, address, version, frame);
            return frame;
        }
        let (Dso { path, build_id, inode }, first_pid) = around.tasks.dso(number);
        let anonymous = ["//anon", "/dev/zero", "/anon_hugepage"].iter().any(|name| path.starts_with(name));
        if anonymous || path.is_empty() {
            // JIT code: the same address is a different function in each process.
            let name = around.symbols.jit(around.pid, address).map(str::to_owned);
            return intern(around.names, name.as_deref(), &format!("/tmp/perf-{}.map", around.pid));
        }
        let known = self.functions.get(&number).and_then(|functions| functions.range(..=offset).next_back());
        let frame = match known {
            Some((_, (end, frame))) if offset < *end => *frame,
            _ if path.starts_with('[') && &**path != "[vdso]" => intern(around.names, None, path),
            _ => {
                let (build_id, pid) = (build_id.as_deref(), *first_pid);
                let file = MappedFile { number, path, build_id, inode: *inode, pid };
                match around.symbols.user(&file, offset) {
                    Answer::Function(Function { name, offsets }) => {
                        let frame = intern(around.names, Some(&name), path);
                        self.functions.entry(number).or_default().insert(offsets.start, (offsets.end, frame));
                        frame
                    }
                    Answer::Unnamed(Some(offsets)) => {
                        let frame = self.place(around.names, &file, offsets.start);
                        self.functions.entry(number).or_default().insert(offsets.start, (offsets.end, frame));
                        frame
                    }
                    Answer::Unnamed(None) => intern(around.names, None, path),
                    Answer::NotRead => self.place(around.names, &file, offset),
                    // It may be named later, so this is not cached.
                    Answer::Later => return self.place(around.names, &file, offset),
                }
            }
        };
        if self.user_frames.len() >= self.limits.addresses {
            self.user_frames.clear();
        }
        self.user_frames.insert((number, offset), frame);
        self.remember(slot, address, version, frame);
        frame
    }

    fn nowhere(&mut self, names: &mut Dictionary) -> u32 {
        *self.nowhere.get_or_insert_with(|| intern(names, None, ""))
    }

    fn remember(&mut self, slot: usize, address: u64, version: u32, frame: u32) {
        if self.latest.is_empty() {
            self.latest = vec![(0, 0, 0); LATEST];
        }
        self.latest[slot] = (address, version, frame);
    }

    /// An unnamed file offset. A live node has many until the files' symbols are read, and every stack asks again.
    fn place(&mut self, names: &mut Dictionary, file: &MappedFile<'_>, offset: u64) -> u32 {
        let path = file.path;
        let Some(build_id) = file.build_id.filter(|id| self.keeps_places && !id.is_empty()) else {
            return intern(names, None, path);
        };
        let (module, build_id) = *self
            .nameless
            .entry(file.number)
            .or_insert_with(|| (names.strings.intern(path), names.strings.intern(&hex(build_id))));
        let frame = Frame { symbol: Strings::EMPTY, module, place: label::place_of(path, false), inlined: false };
        names.frames.intern_in_file(frame, FileOffset { build_id, offset }).0
    }
}

fn context_mode(word: u64) -> Option<Mode> {
    match word {
        CONTEXT_KERNEL => Some(Mode::Kernel),
        CONTEXT_USER => Some(Mode::User),
        CONTEXT_HYPERVISOR | CONTEXT_GUEST | CONTEXT_GUEST_KERNEL | CONTEXT_GUEST_USER => Some(Mode::Foreign),
        _ => None,
    }
}

fn intern(names: &mut Dictionary, name: Option<&str>, module: &str) -> u32 {
    let place = label::place_of(module, false);
    let symbol = name.map_or(Strings::EMPTY, |name| names.strings.intern(name));
    let module = names.strings.intern(module);
    names.frames.intern(Frame { symbol, module, place, inlined: false }).0
}
