//! File systems, unmounted on drop.

use super::complain;
use crate::run_id::RunId;
use anyhow::{Context, Result, bail};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::ffi::CString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A tmpfs below the runtime directory. Its drop unmounts it, which also frees the pages in it.
#[derive(Debug)]
pub struct TmpfsMount {
    dir: PathBuf,
}

impl TmpfsMount {
    pub fn create(what: &str, size_bytes: u64, inodes: u64) -> Result<TmpfsMount> {
        let run = RunId::of_this_process();
        let dir = run.runtime_dir().join(what);
        fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        let options = CString::new(format!("size={size_bytes},nr_inodes={inodes},mode=700"))?;
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        if let Err(error) = mount(run.name(what), &dir, "tmpfs", flags, options.as_c_str()) {
            let _ = remove_runtime_dir(&run.runtime_dir());
            return Err(error).with_context(|| format!("cannot mount a tmpfs at {}", dir.display()));
        }
        Ok(TmpfsMount { dir })
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

impl Drop for TmpfsMount {
    fn drop(&mut self) {
        take_away(&self.dir);
    }
}

/// An ext4 with one file, on a loop device. Its drop unmounts it, which frees its page cache and the loop device.
#[derive(Debug)]
pub struct Ext4Mount {
    dir: PathBuf,
    file: PathBuf,
    _image: TmpfsMount,
}

impl Ext4Mount {
    /// Needs mke2fs and mount.
    pub fn with_file(what: &str, name: &str, contents: &[u8]) -> Result<Ext4Mount> {
        Ext4Mount::make(what, name, contents, "ro")
    }

    /// The same, to write to.
    pub fn writable(what: &str, name: &str, contents: &[u8]) -> Result<Ext4Mount> {
        Ext4Mount::make(what, name, contents, "rw")
    }

    fn make(what: &str, name: &str, contents: &[u8], access: &str) -> Result<Ext4Mount> {
        // Room for the file and for the image that contains it; larger files need more metadata blocks.
        let bytes = contents.len() as u64;
        let size = bytes + bytes / 16 + (2 << 20);
        let scratch = TmpfsMount::create(&format!("{what}-image"), 2 * size, 16)?;
        let (source, image) = (scratch.dir().join("source"), scratch.dir().join("image"));
        fs::create_dir(&source).and_then(|()| fs::write(source.join(name), contents)).context("the file for ext4")?;
        fs::File::create(&image).and_then(|f| f.set_len(size)).context("the image for ext4")?;
        // No journal and no checksums: nothing of it must last, and some kernels have the checksum in a module.
        run(Command::new("mke2fs")
            .args(["-q", "-F", "-t", "ext4", "-b", "4096", "-m", "0", "-O", "^has_journal,^metadata_csum", "-d"])
            .arg(&source)
            .arg(&image))?;
        let dir = RunId::of_this_process().runtime_dir().join(what);
        fs::create_dir(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        let options = format!("loop,{access},nosuid,nodev");
        if let Err(error) = run(Command::new("mount").args(["-t", "ext4", "-o", &options]).arg(&image).arg(&dir)) {
            let _ = fs::remove_dir(&dir);
            return Err(error);
        }
        Ok(Ext4Mount { file: dir.join(name), dir, _image: scratch })
    }

    pub fn file(&self) -> &Path {
        &self.file
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

impl Drop for Ext4Mount {
    fn drop(&mut self) {
        take_away(&self.dir);
    }
}

fn run(command: &mut Command) -> Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let out = command.output().with_context(|| format!("cannot run {program}"))?;
    if !out.status.success() {
        bail!("{program}: {}: {}", out.status, String::from_utf8_lossy(&out.stderr).trim());
    }
    Ok(())
}

fn take_away(mount_point: &Path) {
    // Detach: an open file must not keep the mount in the tree.
    if let Err(error) = unmount(mount_point, UnmountFlags::DETACH) {
        complain(&mount_point.display().to_string(), &error);
    }
    let _ = fs::remove_dir(mount_point);
    if let Some(run_dir) = mount_point.parent() {
        let _ = fs::remove_dir(run_dir);
        let _ = run_dir.parent().map(fs::remove_dir);
    }
}

/// Unmounts and removes what a run kept in its runtime directory. Removes only empty directories: never a file.
pub fn remove_runtime_dir(run_dir: &Path) -> Result<()> {
    for entry in fs::read_dir(run_dir).with_context(|| run_dir.display().to_string())?.flatten() {
        let path = entry.path();
        // Who writes to a frozen file system cannot even be killed.
        super::freeze::thaw_if_frozen(&path);
        while unmount(&path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW).is_ok() {}
        fs::remove_dir(&path).with_context(|| path.display().to_string())?;
    }
    fs::remove_dir(run_dir).with_context(|| run_dir.display().to_string())
}
