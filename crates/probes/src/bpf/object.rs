//! A loaded object file: its maps exist, its programs are ready for the verifier.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::{AsFd, AsRawFd};

use aya::maps::{Map, MapData, MapError};
use aya_obj::generated::{bpf_map_type, bpf_prog_type};
use aya_obj::{EbpfSectionKind, ProgramSection};

use super::kernel_types::{KernelTypes, TracepointTypes};
use super::locked_memory::LockedMemory;
use super::program::Program;
use super::syscalls::{self, Kind};

/// What went wrong on the way from an object file to a running program.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("cannot parse the BPF object")]
    Parse(#[from] aya_obj::ParseError),
    #[error("the BPF object does not match this kernel's types")]
    Types(#[from] aya_obj::btf::BtfRelocationError),
    #[error("cannot link the BPF object")]
    Link(#[from] aya_obj::relocation::EbpfRelocationError),
    #[error("BPF map error")]
    Map(#[from] MapError),
    #[error("{call} failed")]
    Call {
        call: &'static str,
        #[source]
        error: io::Error,
    },
    #[error("BPF program {name} rejected{}", in_brackets(.words))]
    Program {
        name: String,
        /// The end of the verifier's log; empty if something else rejected the program.
        words: String,
        #[source]
        error: io::Error,
    },
    #[error("the BPF object has no {what} {name} of the expected kind")]
    Missing { what: &'static str, name: String },
}

fn in_brackets(words: &str) -> String {
    if words.is_empty() { String::new() } else { format!(" ({words})") }
}

/// A loaded object. It keeps its maps alive, so programs can be loaded at any time.
pub struct Object {
    parsed: aya_obj::Object,
    maps: HashMap<String, (aya_obj::Map, MapData)>,
}

impl Object {
    /// `globals` are constants of the program (`const volatile`), set before the verifier sees them.
    pub fn load(types: &KernelTypes, bytes: &[u8], globals: &[(&str, &[u8])]) -> Result<Object, Failure> {
        Object::load_sized(types, bytes, globals, &[])
    }

    /// With these numbers of entries instead of the object's.
    pub fn load_sized(
        types: &KernelTypes,
        bytes: &[u8],
        globals: &[(&str, &[u8])],
        entries: &[(&str, u32)],
    ) -> Result<Object, Failure> {
        let mut parsed = aya_obj::Object::parse(bytes)?;
        parsed.patch_map_data(globals.iter().map(|(name, value)| (*name, (*value, true))).collect())?;
        parsed.relocate_btf(types.btf())?;
        let _room = LockedMemory::raise_where_it_counts();
        let mut maps = HashMap::new();
        for (name, mut definition) in parsed.maps.drain() {
            if let Some((_, entries)) = entries.iter().find(|(sized, _)| *sized == name) {
                definition.set_max_entries(*entries);
            }
            let map = make_map(&name, &definition)?;
            maps.insert(name, (definition, map));
        }
        let code: HashSet<usize> = parsed.functions.keys().map(|(section, _)| *section).collect();
        let fds =
            maps.iter().map(|(name, (definition, map))| (name.as_str(), map.fd().as_fd().as_raw_fd(), definition));
        parsed.relocate_maps(fds, &code)?;
        parsed.relocate_calls(&code)?;
        Ok(Object { parsed, maps })
    }

    /// A map by name, as one of aya's types: `Array<MapData, u64>`, `RingBuf<MapData>`.
    pub fn map<M: TryFrom<Map, Error = MapError>>(&self, name: &str) -> Result<M, Failure> {
        let (_, map) = self.maps.get(name).ok_or_else(|| missing("map", name))?;
        let fd = map.fd().as_fd().try_clone_to_owned().map_err(|error| Failure::Call { call: "dup", error })?;
        Ok(M::try_from(Map::from_map_data(MapData::from_fd(fd)?)?)?)
    }

    /// Loads and verifies a program.
    pub fn program(&self, name: &str) -> Result<Program, Failure> {
        let program = self.parsed.programs.get(name).ok_or_else(|| missing("program", name))?;
        let kind = match program.section {
            ProgramSection::RawTracePoint => bpf_prog_type::BPF_PROG_TYPE_RAW_TRACEPOINT,
            ProgramSection::PerfEvent => bpf_prog_type::BPF_PROG_TYPE_PERF_EVENT,
            ProgramSection::TracePoint => bpf_prog_type::BPF_PROG_TYPE_TRACEPOINT,
            _ => return Err(missing("program", name)),
        };
        self.load_program(name, program, Kind::Plain(kind))
    }

    /// Loads and verifies a program of a `tp_btf` section for its tracepoint.
    pub fn traced_program(&self, name: &str, tracepoint: &str, types: &TracepointTypes) -> Result<Program, Failure> {
        let program = self.parsed.programs.get(name).ok_or_else(|| missing("program", name))?;
        if !matches!(program.section, ProgramSection::BtfTracePoint) {
            return Err(missing("program", name));
        }
        let id = types.id(tracepoint).ok_or_else(|| missing("tracepoint", tracepoint))?;
        self.load_program(name, program, Kind::Traced(id))
    }

    fn load_program(&self, name: &str, program: &aya_obj::Program, kind: Kind) -> Result<Program, Failure> {
        let function = self.parsed.functions.get(&program.function_key()).ok_or_else(|| missing("function", name))?;
        Program::load(kind, name, &function.instructions, &program.license)
    }

    /// Puts a program into a program array, for bpf_tail_call. The kernel empties the array when nobody has it open.
    pub fn put_program(&self, name: &str, index: u32, program: &Program) -> Result<(), Failure> {
        let (definition, map) = self.maps.get(name).ok_or_else(|| missing("map", name))?;
        let sizes = (definition.map_type(), definition.key_size(), definition.value_size());
        if sizes != (bpf_map_type::BPF_MAP_TYPE_PROG_ARRAY as u32, 4, 4) {
            return Err(missing("map", name));
        }
        let value = program.fd().as_raw_fd().to_ne_bytes();
        // SAFETY: the map was created with a 4-byte key and a 4-byte value.
        unsafe { syscalls::update_map(map.fd().as_fd(), &index.to_ne_bytes(), &value) }
            .map_err(|error| Failure::Call { call: "BPF_MAP_UPDATE_ELEM", error })
    }
}

fn missing(what: &'static str, name: &str) -> Failure {
    Failure::Missing { what, name: name.to_owned() }
}

/// Drops the BTF types of keys and values: only tools that print maps need them.
fn make_map(name: &str, definition: &aya_obj::Map) -> Result<MapData, Failure> {
    let mut definition = definition.clone();
    if let aya_obj::Map::Btf(map) = &mut definition {
        (map.def.btf_key_type_id, map.def.btf_value_type_id) = (0, 0);
    }
    let (section, data) = (definition.section_kind(), definition.data().to_vec());
    let value_bytes = definition.value_size() as usize;
    let map = MapData::create(definition, name, None)?;
    // Global variables are a map with one value.
    if !data.is_empty() && data.len() == value_bytes {
        // SAFETY: such a map is an array, so its key has 4 bytes; its value is as long as the data.
        unsafe { syscalls::update_map(map.fd().as_fd(), &0u32.to_ne_bytes(), &data) }
            .map_err(|error| Failure::Call { call: "BPF_MAP_UPDATE_ELEM", error })?;
    }
    if section == EbpfSectionKind::Rodata {
        syscalls::freeze_map(map.fd().as_fd()).map_err(|error| Failure::Call { call: "BPF_MAP_FREEZE", error })?;
    }
    Ok(map)
}

#[cfg(test)]
mod tests {
    use super::*;
    use aya::maps::Array;
    use coroner_lab::{Cgroup, HostLock};

    /// Its program `walk` counts its runs in a map.
    static OBJECT: &[u8] = aya::include_bytes_aligned!("../../../../bpf/zombies.test_run.o");

    fn load() -> Result<Object, Failure> {
        Object::load(&KernelTypes::of_running_kernel(&[OBJECT]).unwrap(), OBJECT, &[("NODES", &1u32.to_ne_bytes())])
    }

    #[test]
    fn a_program_runs_at_a_raw_tracepoint_until_it_is_dropped() {
        let Some(_lock) = HostLock::take_as_root() else { return };
        let object = load().unwrap();
        let mut walk: Array<MapData, [u64; 230]> = object.map("WALK").unwrap();
        let runs = |walk: &Array<MapData, [u64; 230]>| walk.get(&0, 0).unwrap()[2];
        let attached = object.program("walk").unwrap().attach_raw_tracepoint(c"cgroup_mkdir").unwrap();
        assert_eq!(runs(&walk), 0);
        let made = Cgroup::with_controller("memory", "coroner-test-tracepoint").unwrap();
        assert!(runs(&walk) > 0, "an attached program outlives its handle");
        drop(attached);
        walk.set(0, [0; 230], 0).unwrap();
        let another = made.child("another").unwrap();
        assert_eq!(runs(&walk), 0, "detached");
        drop((another, made));
    }

    #[test]
    fn what_is_missing_is_named() {
        let Some(_lock) = HostLock::take_as_root() else { return };
        let object = load().unwrap();
        let none = object.map::<Array<MapData, u64>>("NONE").map(drop).unwrap_err();
        assert!(none.to_string().contains("no map NONE"), "{none}");
        assert!(object.map::<Array<MapData, u64>>("WALK").is_err(), "a value of another size");
        assert!(object.program("none").unwrap_err().to_string().contains("no program none"));
        let walk = object.program("walk").unwrap();
        assert!(object.put_program("WALK", 0, &walk).is_err(), "a map of another kind");
        let error = walk.attach_raw_tracepoint(c"no_such_tracepoint").map(drop).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOENT));
        let types = KernelTypes::of_running_kernel(&[OBJECT]).unwrap();
        assert!(Object::load(&types, OBJECT, &[("NO_SUCH_GLOBAL", &[0; 4])]).is_err());
        assert!(Object::load(&types, &OBJECT[..100], &[]).is_err());
    }

    #[test]
    fn the_verifiers_message_is_in_the_error() {
        let Some(_lock) = HostLock::take_as_root() else { return };
        let mut object = load().unwrap();
        let key = object.parsed.programs["walk"].function_key();
        let function = object.parsed.functions.get_mut(&key).unwrap();
        // Only the exit instruction is left, without a return value.
        let last = function.instructions.len() - 1;
        function.instructions.drain(..last);
        let error = object.program("walk").map(drop).unwrap_err();
        assert!(error.to_string().contains("R0 !read_ok"), "{error}");
    }
}
