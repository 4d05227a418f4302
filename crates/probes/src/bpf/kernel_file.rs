//! A large, constant file of /sys: mapped where the kernel allows it, otherwise read.

use std::ffi::c_void;
use std::fs::File;
use std::io::{self, Read};
use std::ops::Deref;
use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

pub(super) enum KernelFile {
    /// The kernel's own pages, read-only. BTF can be mapped since Linux 6.16 (kernel/bpf/sysfs_btf.c); reading it takes a
    /// system call per 4 KiB.
    Mapped {
        start: NonNull<c_void>,
        length: usize,
    },
    Read(Vec<u8>),
}

impl KernelFile {
    pub fn open(path: &str) -> io::Result<KernelFile> {
        let mut file = File::open(path)?;
        let length = usize::try_from(file.metadata()?.len()).unwrap_or(0);
        if length > 0
            && path.starts_with("/sys/")
            // SAFETY: a new mapping at an address the kernel chooses touches no memory of ours.
            && let Ok(start) = unsafe { mmap(std::ptr::null_mut(), length, ProtFlags::READ, MapFlags::PRIVATE, &file, 0) }
            && let Some(start) = NonNull::new(start)
        {
            return Ok(KernelFile::Mapped { start, length });
        }
        let mut bytes = Vec::with_capacity(length);
        file.read_to_end(&mut bytes)?;
        Ok(KernelFile::Read(bytes))
    }
}

impl Deref for KernelFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            // SAFETY: mapped with this length until drop, and nobody can write to it: /sys files that can be mapped for reading
            // are kernel constants.
            KernelFile::Mapped { start, length } => unsafe {
                std::slice::from_raw_parts(start.as_ptr().cast(), *length)
            },
            KernelFile::Read(bytes) => bytes,
        }
    }
}

impl Drop for KernelFile {
    fn drop(&mut self) {
        if let KernelFile::Mapped { start, length } = *self {
            // SAFETY: mapped by us, not used after this.
            let _ = unsafe { munmap(start.as_ptr(), length) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapping_and_reading_give_the_same_bytes() {
        let path = "/sys/kernel/btf/vmlinux";
        let Ok(read) = std::fs::read(path) else { return coroner_lab::skip("needs /sys/kernel/btf/vmlinux") };
        let file = KernelFile::open(path).unwrap();
        eprintln!("{}", if matches!(file, KernelFile::Mapped { .. }) { "mapped" } else { "read" });
        assert!(file[..] == read[..]);
        assert!(KernelFile::open("/sys/kernel/btf/none").is_err());
    }

    #[test]
    fn a_file_outside_sys_is_read() {
        let file = KernelFile::open("/proc/self/stat").unwrap();
        assert!(matches!(file, KernelFile::Read(_)) && !file.is_empty());
    }
}
