//! Names for addresses: the kernel's from kallsyms, a program's from its symbol table, generated code's from perf's PID maps.
//!
//! Everything is read below a root directory, so that a test can hand in a small tree and a recording of another machine can be
//! named from a copy of its files. A file whose build id differs from the recorded one names nothing: a wrong name is worse
//! than none.

mod elf;
mod kallsyms;
mod perf_map;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

pub use elf::Function;
pub use kallsyms::Kallsyms;
pub use perf_map::PerfMap;

/// The largest text file that is read for names. /proc/kallsyms of a large kernel is about 20 MB.
const MAX_TEXT: u64 = 256 << 20;

pub struct Symbols {
    root: PathBuf,
    kernel: Option<Kallsyms>,
    elf: elf::ElfSymbols,
    perf_maps: HashMap<u32, Option<PerfMap>>,
    /// What could not be named and why, by file; bounded.
    pub problems: Vec<String>,
}

const MAX_PROBLEMS: usize = 50;

impl Symbols {
    /// Names from the files of this machine.
    pub fn of_this_machine() -> Symbols {
        Symbols::below(Path::new("/"))
    }

    /// Names from a tree that looks like a machine's root directory.
    pub fn below(root: &Path) -> Symbols {
        let mut problems = Vec::new();
        let kernel = match read_bounded(&root.join("proc/kallsyms")) {
            Ok(text) => match Kallsyms::parse(&text) {
                Some(kernel) => Some(kernel),
                None => {
                    problems.push(
                        "proc/kallsyms: no addresses are shown; read it as root (kernel.kptr_restrict)".to_owned(),
                    );
                    None
                }
            },
            Err(error) => {
                problems.push(format!("proc/kallsyms: {error}"));
                None
            }
        };
        Symbols { root: root.to_owned(), kernel, elf: elf::ElfSymbols::default(), perf_maps: HashMap::new(), problems }
    }

    /// No names at all.
    pub fn none() -> Symbols {
        Symbols {
            root: PathBuf::from("/nonexistent"),
            kernel: None,
            elf: elf::ElfSymbols::default(),
            perf_maps: HashMap::new(),
            problems: Vec::new(),
        }
    }

    /// The recorded kernel is not the one whose symbols are at hand: use none of them.
    pub fn check_kernel(&mut self, recorded_build_id: &[u8]) {
        let notes = std::fs::read(self.root.join("sys/kernel/notes")).unwrap_or_default();
        // The notes hold the id as it is; looking for it saves walking them.
        let known = !recorded_build_id.is_empty() && !notes.is_empty();
        if known && memchr::memmem::find(&notes, recorded_build_id).is_none() && self.kernel.take().is_some() {
            self.problem(
                "kernel: the recording is of another kernel than proc/kallsyms; its functions stay unnamed".to_owned(),
            );
        }
    }

    /// A kernel function and its module (none for the kernel proper).
    pub fn kernel(&self, address: u64) -> Option<(&str, Option<&str>)> {
        self.kernel.as_ref()?.find(address)
    }

    /// A function of the program or library at `path`, at an offset into the file.
    pub fn user(&mut self, path: &str, build_id: Option<&[u8]>, file_offset: u64) -> Option<Function> {
        let found = self.elf.find(&self.root, path, build_id, file_offset);
        found.unwrap_or_else(|problem| {
            self.problem(problem);
            None
        })
    }

    /// A function that process `pid` generated.
    pub fn jit(&mut self, pid: u32, address: u64) -> Option<&str> {
        let root = &self.root;
        let map = self.perf_maps.entry(pid).or_insert_with(|| {
            read_bounded(&root.join(format!("tmp/perf-{pid}.map"))).ok().map(|text| PerfMap::parse(&text))
        });
        map.as_ref()?.find(address)
    }

    fn problem(&mut self, problem: String) {
        if self.problems.len() < MAX_PROBLEMS && !self.problems.contains(&problem) {
            self.problems.push(problem);
        }
    }
}

fn read_bounded(path: &Path) -> std::io::Result<Vec<u8>> {
    use std::io::Read;
    let mut text = Vec::new();
    std::fs::File::open(path)?.take(MAX_TEXT).read_to_end(&mut text)?;
    Ok(text)
}
