//! Keeps the allocator's memory close to what is in use, over months.

/// Otherwise each thread gets its own heap, and memory free in one is of no use to another.
pub fn share_heaps() {
    #[cfg(target_env = "gnu")]
    // SAFETY: mallopt only sets a number of the allocator; M_ARENA_MAX may be set at any time.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 2);
    }
}

/// Gives free pages back to the kernel.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim has no precondition.
    unsafe {
        libc::malloc_trim(0);
    }
}
