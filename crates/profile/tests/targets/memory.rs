//! Measures memory use: an allocator that counts per thread, so that parallel tests do not mix. Memory allocated by C code (zstd)
//! is not counted.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// Hard limit: an abort with a backtrace is better than a machine without memory.
const HARD_LIMIT: isize = 2 << 30;

thread_local! {
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Returns whether that much more is allowed.
fn count(change: isize) -> bool {
    let live = LIVE.get().wrapping_add(change);
    if live > HARD_LIMIT {
        return false;
    }
    LIVE.set(live);
    PEAK.set(PEAK.get().max(live));
    true
}

// SAFETY: all calls are passed unchanged to the system allocator; a null pointer means out of memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise is passed on.
        if count(layout.size() as isize) { unsafe { System.alloc(layout) } } else { std::ptr::null_mut() }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise is passed on.
        if count(layout.size() as isize) { unsafe { System.alloc_zeroed(layout) } } else { std::ptr::null_mut() }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if !count(size as isize - layout.size() as isize) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's promise is passed on.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

/// The peak memory of `work`, beyond what was allocated before.
pub fn peak<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = LIVE.get();
    PEAK.set(before);
    let result = work();
    (result, usize::try_from(PEAK.get() - before).unwrap_or(0))
}
