//! The ring buffer with the records of one core.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use coroner_evidence::perf::{HEADER, record_header};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::{Attributes, Event};

/// Offsets in struct perf_event_mmap_page.
const DATA_HEAD: usize = 1024;
const DATA_TAIL: usize = 1032;

/// The ring of one core's events.
#[derive(Debug)]
pub(crate) struct Ring {
    /// The first owns the ring, the others write into it.
    events: Vec<Event>,
    /// The control page, followed by the data.
    base: NonNull<u8>,
    page: usize,
    data_size: usize,
    tail: u64,
    /// Holds a record that wraps around the end of the ring.
    whole: Vec<u8>,
}

// SAFETY: this value alone owns the mapping, which is bound to no thread.
unsafe impl Send for Ring {}

impl Ring {
    /// The ring of a new event on this core. `data_size` is rounded up to a power of two of pages.
    pub fn open(core: u32, attributes: &Attributes, data_size: usize) -> io::Result<Ring> {
        Ring::of(Event::open(core, attributes)?, data_size)
    }

    /// The ring of an event that has none yet.
    pub fn of(event: Event, data_size: usize) -> io::Result<Ring> {
        let page = rustix::param::page_size();
        let data_size = page * data_size.div_ceil(page).next_power_of_two();
        // Writable, so that the kernel does not overwrite unread records and counts lost ones (kernel/events/ring_buffer.c).
        // SAFETY: a new shared mapping at an address the kernel chooses touches no memory of ours.
        let base = unsafe {
            mmap(
                std::ptr::null_mut(),
                page + data_size,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                event.as_fd(),
                0,
            )?
        };
        let base = NonNull::new(base.cast()).ok_or_else(|| io::Error::other("mapped at address 0"))?;
        Ok(Ring { events: vec![event], base, page, data_size, tail: 0, whole: Vec::new() })
    }

    /// The event that owns the ring.
    pub fn owner(&self) -> &Event {
        &self.events[0]
    }

    /// Makes another event write into this ring too.
    pub fn add(&mut self, event: Event) -> io::Result<()> {
        event.write_into(self.owner())?;
        self.events.push(event);
        Ok(())
    }

    /// Removes all events but the owner.
    pub fn take_added(&mut self) -> Vec<Event> {
        self.events.split_off(1)
    }

    pub fn events(&self) -> &[Event] {
        &self.events
    }

    pub fn enable(&self) -> io::Result<()> {
        self.events.iter().try_for_each(Event::enable)
    }

    pub fn disable(&self) -> io::Result<()> {
        self.events.iter().try_for_each(Event::disable)
    }

    /// Records lost since the start; `None` on kernels that do not count them.
    pub fn lost(&self) -> Option<u64> {
        self.events.iter().map(Event::lost).sum()
    }

    /// Readable when the watermark is reached.
    pub fn pollable(&self) -> BorrowedFd<'_> {
        self.owner().as_fd()
    }

    /// Passes on each record present now (at most one ring full), with its header, and frees the space. False if the content is
    /// corrupt; it is then skipped.
    pub fn drain(&mut self, mut each: impl FnMut(&[u8])) -> bool {
        // Acquire: makes visible what the kernel wrote before it moved the head (ring_buffer.c: perf_output_put_handle).
        let head = self.position(DATA_HEAD).load(Ordering::Acquire);
        let room = self.data_size as u64;
        // More than a ring full is impossible, so nothing can be trusted then.
        let mut sound = head.wrapping_sub(self.tail) <= room;
        while sound && self.tail != head {
            let left = head.wrapping_sub(self.tail).min(room) as usize;
            let at = (self.tail % room) as usize;
            // Records are aligned to 8 bytes, so a header never wraps.
            let size = if left < HEADER { 0 } else { record_header(self.data(at, HEADER), false).2 };
            // Not a valid record: skip everything.
            if size < HEADER || size > left {
                sound = false;
                break;
            }
            let first = size.min(self.data_size - at);
            if first == size {
                each(self.data(at, size));
            } else {
                let mut whole = std::mem::take(&mut self.whole);
                whole.clear();
                whole.extend_from_slice(self.data(at, first));
                whole.extend_from_slice(self.data(0, size - first));
                each(&whole);
                self.whole = whole;
            }
            self.tail = self.tail.wrapping_add(size as u64);
        }
        if !sound {
            self.tail = head;
        }
        // Release: all reads above are done before the kernel may write there again.
        self.position(DATA_TAIL).store(self.tail, Ordering::Release);
        sound
    }

    fn position(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: the control page is mapped while self lives, the fields are aligned u64, and both sides access them only as
        // atomics.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(offset).cast()) }
    }

    /// Bytes between tail and head, which the kernel does not touch until we move the tail.
    fn data(&self, at: usize, length: usize) -> &[u8] {
        assert!(at <= self.data_size && length <= self.data_size - at);
        // SAFETY: checked to be within the mapping; `drain` asks only for what lies between tail and head.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(self.page + at), length) }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: mapped by us with this length, not used after this.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.page + self.data_size) };
    }
}
