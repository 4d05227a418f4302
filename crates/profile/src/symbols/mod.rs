//! Names for addresses: the kernel's from kallsyms, a program's from its symbol table, JIT code's from perf's PID maps.
//!
//! Everything is read below a root directory, so that a test can use a small tree and a recording of another machine can be named
//! from a copy of its files. A file with another build id than recorded is not used: a wrong name is worse than none. Nothing is
//! read before the first address that needs it.

mod elf;
mod kernel;
mod kernel_list;
mod perf_map;
mod sparing;

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub use coroner_evidence::kallsyms::Kallsyms;
pub use kernel::RecordedKernel;
pub use perf_map::PerfMap;

pub(crate) use elf::hex;
use elf::{FileId, Image, NamedFile};
use kernel::Kernel;
pub(crate) use sparing::Budget;
use sparing::Sparing;

/// The largest text file read for names. /proc/kallsyms of a large kernel has about 20 MB.
const MAX_TEXT: u64 = 256 << 20;
const MAX_PROBLEMS: usize = 50;
/// Minimum time between reads of the kernel's symbols, which take a tenth of a second.
const KERNEL_AGAIN_AFTER: Duration = Duration::from_secs(60);
/// The most files kept open with their symbols; a node runs a few hundred.
const MAX_FILES: usize = 4096;

#[derive(Default)]
pub struct Symbols {
    /// `None`: nothing is named.
    root: Option<PathBuf>,
    recorded: RecordedKernel,
    kernel: Option<Option<Kernel>>,
    kernel_read: Option<Instant>,
    /// By the caller's number.
    files: HashMap<u32, Option<NamedFile>>,
    perf_maps: HashMap<u32, Option<PerfMap>>,
    /// Set on a live node, which must not notice that names are read.
    sparing: Option<Sparing>,
    /// What could not be named and why, one per file; bounded.
    pub problems: Vec<String>,
}

/// A function of a program and its range in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    pub name: String,
    pub offsets: Range<u64>,
}

/// The result of looking up a file offset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Function(Function),
    /// The file has no name there; the function's range, if at least that is known.
    Unnamed(Option<Range<u64>>),
    /// The file is missing, is not the one that ran, or has too many symbols.
    NotRead,
    /// Reading would cost too much right now.
    Later,
}

/// A mapped file as a recording describes it.
#[derive(Clone, Copy, Debug)]
pub struct MappedFile<'a> {
    /// A unique number of the file.
    pub number: u32,
    pub path: &'a str,
    pub build_id: Option<&'a [u8]>,
    pub inode: Option<u64>,
    /// A process that had it mapped.
    pub pid: u32,
}

impl Symbols {
    /// Names from the files of this machine.
    pub fn of_this_machine() -> Symbols {
        Symbols::below(Path::new("/"))
    }

    /// Names from a tree that looks like a machine's root directory.
    pub fn below(root: &Path) -> Symbols {
        Symbols { root: Some(root.to_owned()), ..Symbols::none() }
    }

    /// Names from the files of a live node, within memory and time limits: the rest stays unnamed.
    pub fn sparing(root: &Path) -> Symbols {
        Symbols { root: Some(root.to_owned()), sparing: Some(Sparing::new()), ..Symbols::none() }
    }

    /// Number of files read so far.
    pub fn files_read(&self) -> u64 {
        self.sparing.as_ref().map_or(0, |sparing| sparing.read)
    }

    /// Drops what reading names left in the page cache.
    pub fn uncache(&mut self) {
        if let Some(sparing) = &mut self.sparing {
            sparing.uncache();
        }
    }

    /// File numbers are reused from now on.
    pub fn forget_files(&mut self) {
        self.files.clear();
        self.perf_maps.clear();
        if let Some(sparing) = &mut self.sparing {
            sparing.forget();
        }
    }

    /// No names at all.
    pub fn none() -> Symbols {
        Symbols::default()
    }

    /// Sets the recorded kernel for all later lookups.
    pub fn set_kernel(&mut self, recorded: RecordedKernel) {
        self.recorded = recorded;
        self.kernel = None;
    }

    /// A kernel function and its module (none for the kernel proper).
    pub fn kernel(&mut self, address: u64) -> (Option<&str>, Option<&str>) {
        let Some(root) = &self.root else { return (None, None) };
        // A module may have been loaded since the list was read.
        if self.sparing.is_some()
            && self.kernel_read.is_some_and(|read| read.elapsed() > KERNEL_AGAIN_AFTER)
            && let Some(Some(kernel)) = &mut self.kernel
            && kernel.find(address) == (None, None)
        {
            self.kernel = None;
        }
        if self.kernel.is_none() {
            self.kernel_read = Some(Instant::now());
            let loaded = Kernel::load(root, &self.recorded);
            self.kernel = Some(loaded.map_err(|problem| keep(&mut self.problems, problem)).ok());
        }
        match &mut self.kernel {
            Some(Some(kernel)) => kernel.find(address),
            _ => (None, None),
        }
    }

    /// A function of a program or library, at an offset into the file.
    pub fn user(&mut self, mapped: &MappedFile<'_>, file_offset: u64) -> Answer {
        let Some(root) = &self.root else { return Answer::NotRead };
        let (recorded, problems) = (&self.recorded, &mut self.problems);
        let MappedFile { number, path, build_id, inode, pid } = *mapped;
        let wanted = FileId { path, build_id, inode, pid };
        let file = match &mut self.sparing {
            None => {
                if self.files.len() >= MAX_FILES && !self.files.contains_key(&number) {
                    self.files.clear();
                }
                self.files.entry(number).or_insert_with(|| match path {
                    "[vdso]" => vdso(root, build_id, recorded),
                    _ => NamedFile::open(root, &wanted, &mut |problem| keep(problems, problem)),
                })
            }
            Some(sparing) => return sparing.user(root, &wanted, number, file_offset, recorded),
        };
        let Some(file) = file else { return Answer::NotRead };
        match file.find(file_offset) {
            Some((offsets, name)) => Answer::Function(Function { name, offsets }),
            None => Answer::Unnamed(None),
        }
    }

    /// A function that process `pid` generated.
    pub fn jit(&mut self, pid: u32, address: u64) -> Option<&str> {
        // Runtimes append to these files as long as they run; some reach hundreds of megabytes.
        if self.sparing.is_some() {
            return None;
        }
        let root = self.root.as_ref()?;
        if self.perf_maps.len() >= MAX_FILES && !self.perf_maps.contains_key(&pid) {
            self.perf_maps.clear();
        }
        if !self.perf_maps.contains_key(&pid) {
            let map = perf_map(root, pid);
            let map = map.map_err(|problem| keep(&mut self.problems, problem)).ok();
            self.perf_maps.insert(pid, map);
        }
        self.perf_maps.get(&pid)?.as_ref()?.find(address)
    }
}

/// `/tmp/perf-PID.map`, or for a process in a container the map in its own /tmp, under its PID there.
fn perf_map(root: &Path, pid: u32) -> Result<PerfMap, String> {
    let own = root.join(format!("tmp/perf-{pid}.map"));
    let in_container = || {
        let status = std::fs::read_to_string(root.join(format!("proc/{pid}/status"))).ok()?;
        let inner =
            status.lines().find_map(|line| line.strip_prefix("NSpid:"))?.split_ascii_whitespace().next_back()?;
        let path = root.join(format!("proc/{pid}/root/tmp/perf-{inner}.map"));
        path.exists().then_some(path)
    };
    let path = if own.exists() { Some(own) } else { in_container() };
    let path =
        path.ok_or(format!("/tmp/perf-{pid}.map: no such file; code that process {pid} generated stays unnamed"))?;
    let cannot = |why: String| format!("{}: {why}; code that process {pid} generated stays unnamed", path.display());
    // Anybody can write to /tmp: like perf, trust only files of our own user and of root.
    let owner = std::fs::metadata(&path).map_err(|error| cannot(error.to_string()))?.uid();
    if owner != 0 && owner != effective_uid() {
        return Err(cannot(format!("belongs to user {owner}, not to you or root")));
    }
    Ok(PerfMap::parse(&read_bounded(&path).map_err(|error| cannot(error.to_string()))?))
}

fn effective_uid() -> u32 {
    std::fs::metadata("/proc/self").map_or(0, |about| about.uid())
}

/// The vdso: perf's copy, or our own process's if this is the recorded kernel.
fn vdso(root: &Path, build_id: Option<&[u8]>, recorded: &RecordedKernel) -> Option<NamedFile> {
    if let Some(image) = build_id.and_then(|id| Image::open(&elf::cached(root, id).join("vdso"))) {
        return NamedFile::read(image, None, MAX_TEXT);
    }
    if root != Path::new("/") {
        return None;
    }
    let image = own_vdso()?;
    let same = match build_id {
        Some(id) => image.build_id().as_deref() == Some(id),
        None => kernel::is_running(root, recorded).is_ok(),
    };
    same.then(|| NamedFile::read(image, None, MAX_TEXT))?
}

fn own_vdso() -> Option<Image> {
    use std::os::unix::fs::FileExt;
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let (start, end) = maps.lines().find(|line| line.ends_with("[vdso]"))?.split(' ').next()?.split_once('-')?;
    let hex = |text| u64::from_str_radix(text, 16).ok();
    let mut bytes = vec![0; usize::try_from(hex(end)?.checked_sub(hex(start)?)?).ok()?];
    std::fs::File::open("/proc/self/mem").ok()?.read_exact_at(&mut bytes, hex(start)?).ok()?;
    Some(Image::Memory(bytes))
}

/// The build id of a program or library, if it has one.
pub(crate) fn build_id_of(path: &Path) -> Option<Vec<u8>> {
    Image::open(path)?.build_id()
}

fn keep(problems: &mut Vec<String>, problem: String) {
    if problems.len() < MAX_PROBLEMS && !problems.contains(&problem) {
        problems.push(problem);
    }
}

/// Reads a text file; never a pipe or a device, which could block.
fn read_bounded(path: &Path) -> std::io::Result<Vec<u8>> {
    use std::io::Read;
    let metadata = std::fs::metadata(path)?;
    if !metadata.is_file() {
        return Err(std::io::Error::from(std::io::ErrorKind::InvalidInput));
    }
    let mut text = Vec::with_capacity(metadata.len().clamp(64 << 10, MAX_TEXT) as usize);
    std::fs::File::open(path)?.take(MAX_TEXT).read_to_end(&mut text)?;
    Ok(text)
}
