//! Finds the file on this machine that ran.

use std::path::{Path, PathBuf};

use super::image::Image;

/// A file as a recording describes it.
#[derive(Clone, Copy, Debug)]
pub(in crate::symbols) struct FileId<'a> {
    pub path: &'a str,
    pub build_id: Option<&'a [u8]>,
    /// The inode number, if recorded.
    pub inode: Option<u64>,
    /// A process that had it mapped.
    pub pid: u32,
}

pub(super) struct LocatedFile {
    /// The file that was mapped.
    pub mapped: Image,
    /// The distribution's debug symbols for it.
    pub debug: Option<Image>,
}

/// The file itself if it has the recorded build id; else perf's copy (`~/.debug`); else the file as the process sees it, for
/// processes in containers. A file with another build id is not used.
pub(super) fn locate(root: &Path, wanted: &FileId<'_>, problem: &mut dyn FnMut(String)) -> Result<LocatedFile, String> {
    let path = wanted.path;
    let below = |path: &str| root.join(path.trim_start_matches('/'));
    let in_its_namespace = || Image::open(&below(&format!("proc/{}/root{path}", wanted.pid)));
    let there = Image::open(&below(path));
    let Some(id) = wanted.build_id.filter(|id| id.len() > 2) else {
        let mapped = match there {
            Some(image) => {
                if wanted.inode.is_some_and(|inode| inode_of(&below(path)).is_some_and(|now| now != inode)) {
                    problem(format!(
                        "{path}: may not be the file that ran: its inode differs, and no build id was recorded"
                    ));
                }
                image
            }
            None => in_its_namespace().ok_or_else(|| format!("{path}: no such file; its functions stay unnamed"))?,
        };
        let debug = mapped.build_id().and_then(|id| debug_file(root, &id));
        return Ok(LocatedFile { mapped, debug });
    };
    let is_it = |image: &Image| image.build_id().as_deref() == Some(id);
    let existed = there.is_some();
    let mapped = there
        .filter(is_it)
        .or_else(|| Image::open(&cached(root, id).join("elf")).filter(is_it))
        .or_else(|| in_its_namespace().filter(is_it));
    match mapped {
        Some(mapped) => Ok(LocatedFile { mapped, debug: debug_file(root, id) }),
        None if existed => {
            Err(format!("{path}: not the file that ran (which had build id {}); its functions stay unnamed", hex(id)))
        }
        None => Err(format!("{path}: no such file, and no copy with build id {}; its functions stay unnamed", hex(id))),
    }
}

fn inode_of(path: &Path) -> Option<u64> {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(path).ok().map(|metadata| metadata.ino())
}

fn debug_file(root: &Path, id: &[u8]) -> Option<Image> {
    let hex = hex(id);
    let (first, rest) = hex.split_at_checked(2)?;
    let usual = root.join(format!("usr/lib/debug/.build-id/{first}/{rest}.debug"));
    Image::open(&usual).or_else(|| Image::open(&cached(root, id).join("debug")))
}

/// Where `perf record` and `perf buildid-cache` keep the file with this build id.
pub(in crate::symbols) fn cached(root: &Path, id: &[u8]) -> PathBuf {
    let hex = hex(id);
    let (first, rest) = hex.split_at_checked(2).unwrap_or((&hex, ""));
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    root.join(home.strip_prefix("/").unwrap_or(&home)).join(format!(".debug/.build-id/{first}/{rest}"))
}

pub(crate) fn hex(id: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |half: u8| char::from(DIGITS[usize::from(half & 15)]);
    id.iter().flat_map(|byte| [digit(byte >> 4), digit(*byte)]).collect()
}
