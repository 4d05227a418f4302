//! A deliberate page fault of our own, to run the programs where BPF_PROG_TEST_RUN is not available.

use std::ffi::c_void;
use std::io;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// A page that faults on each touch.
#[derive(Debug)]
pub(super) struct FaultingPage {
    page: *mut c_void,
    size: usize,
}

impl FaultingPage {
    pub fn map() -> io::Result<FaultingPage> {
        let size = rustix::param::page_size();
        // SAFETY: a new private mapping at an address the kernel chooses touches no memory of ours.
        let page = unsafe {
            mmap_anonymous(std::ptr::null_mut(), size, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)?
        };
        Ok(FaultingPage { page, size })
    }

    /// Frees the page, then writes to it: exactly one minor fault in this thread.
    pub fn touch(&mut self) -> io::Result<()> {
        // SAFETY: the page is ours alone and mapped until drop; nobody holds a reference into it, so its content may go and a
        // byte be written.
        unsafe {
            madvise(self.page, self.size, Advice::LinuxDontNeed)?;
            self.page.cast::<u8>().write_volatile(1);
        }
        Ok(())
    }
}

impl Drop for FaultingPage {
    fn drop(&mut self) {
        // SAFETY: mapped by us, not used after this.
        let _ = unsafe { munmap(self.page, self.size) };
    }
}
