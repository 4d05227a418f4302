//! A page fault of our own, on purpose: what runs the programs where BPF_PROG_TEST_RUN cannot.

use std::ffi::c_void;
use std::io;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// One page that faults at each touch.
#[derive(Debug)]
pub(super) struct FaultingPage {
    page: *mut c_void,
    size: usize,
}

impl FaultingPage {
    pub fn map() -> io::Result<FaultingPage> {
        let size = rustix::param::page_size();
        // SAFETY: a new private mapping at an address of the kernel's choice touches no memory of ours.
        let page = unsafe {
            mmap_anonymous(std::ptr::null_mut(), size, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)?
        };
        Ok(FaultingPage { page, size })
    }

    /// Gives the page back, then writes to it: exactly one minor fault of this thread.
    pub fn touch(&mut self) -> io::Result<()> {
        // SAFETY: the page is ours alone, mapped until drop, and nobody keeps a reference into it, so that the kernel may take
        // its content, and a byte may be written.
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
