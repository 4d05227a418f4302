//! Ctrl-C and other end signals only set a flag, which every wait checks, so that the guards clean up.

use crate::syscalls;
use rustix::thread::nanosleep;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

extern "C" fn remember(_signal: i32) {
    INTERRUPTED.store(true, Ordering::Relaxed);
}

/// From now on SIGINT, SIGTERM and SIGHUP only set the flag that [`requested`] returns.
pub fn listen() {
    syscalls::handle_end_signals(remember);
}

pub fn requested() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// Sleeps; a signal ends it early.
pub fn pause(time: Duration) {
    // A signal between the caller's check and this sleep would go unnoticed: sleep in slices.
    const SLICE: Duration = Duration::from_millis(100);
    let end = Instant::now() + time;
    while !requested() {
        let left = end.saturating_duration_since(Instant::now()).min(SLICE);
        if left.is_zero() {
            return;
        }
        let Ok(slice) = left.try_into() else { return };
        let _ = nanosleep(&slice);
    }
}
