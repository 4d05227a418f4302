//! The ring in which the kernel leaves the records of one core.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use coroner_evidence::perf::{HEADER, record_header};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::{Attributes, Event};

/// Where struct perf_event_mmap_page keeps what we need of it.
const DATA_HEAD: usize = 1024;
const DATA_TAIL: usize = 1032;

/// The records of one core's events, until it is dropped.
#[derive(Debug)]
pub(crate) struct Ring {
    /// The first owns the ring, the others write into it.
    events: Vec<Event>,
    /// The control page, and after it the data.
    base: NonNull<u8>,
    page: usize,
    data_size: usize,
    tail: u64,
    /// A record that goes over the end of the ring, in one piece.
    whole: Vec<u8>,
}

// SAFETY: the mapping belongs to this value alone and is bound to no thread.
unsafe impl Send for Ring {}

impl Ring {
    /// The ring of a new event on this core. `data_size` becomes a power of two of pages.
    pub fn open(core: u32, attributes: &Attributes, data_size: usize) -> io::Result<Ring> {
        Ring::of(Event::open(core, attributes)?, data_size)
    }

    /// The ring of an event that has none yet.
    pub fn of(event: Event, data_size: usize) -> io::Result<Ring> {
        let page = rustix::param::page_size();
        let data_size = page * data_size.div_ceil(page).next_power_of_two();
        // Writable, so that the kernel keeps what we have not read yet and counts what it has no room for
        // (kernel/events/ring_buffer.c).
        // SAFETY: a new shared mapping at an address of the kernel's choice touches no memory of ours.
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

    /// Another event writes into this ring, too.
    pub fn add(&mut self, event: Event) -> io::Result<()> {
        event.write_into(self.owner())?;
        self.events.push(event);
        Ok(())
    }

    /// The events beside the owner, which then end.
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

    /// How many records found no room since the beginning; `None` on kernels that do not count them.
    pub fn lost(&self) -> Option<u64> {
        self.events.iter().map(Event::lost).sum()
    }

    /// Ready when the watermark is reached.
    pub fn pollable(&self) -> BorrowedFd<'_> {
        self.owner().as_fd()
    }

    /// Hands over each record that is there now (at most one ring full), with its header, and makes room. False if the ring makes
    /// no sense: its content is then passed over.
    pub fn drain(&mut self, mut each: impl FnMut(&[u8])) -> bool {
        // Acquire: what the kernel wrote before it moved the head is there for us (ring_buffer.c: perf_output_put_handle).
        let head = self.position(DATA_HEAD).load(Ordering::Acquire);
        let room = self.data_size as u64;
        // More than a ring full is impossible; whatever it is, nothing of it can be trusted.
        let mut sound = head.wrapping_sub(self.tail) <= room;
        while sound && self.tail != head {
            let left = head.wrapping_sub(self.tail).min(room) as usize;
            let at = (self.tail % room) as usize;
            // Records are aligned to 8 bytes, so that a header never goes over the end.
            let size = if left < HEADER { 0 } else { record_header(self.data(at, HEADER), false).2 };
            // No record is like this: skip all, rather than read what nobody wrote.
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
        // SAFETY: the control page is mapped as long as self lives, the fields are aligned u64, and both sides touch them as
        // atomics only.
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
