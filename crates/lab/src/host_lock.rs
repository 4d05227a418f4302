//! Tests that disturb the node take turns.

use anyhow::{Context, Result};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io::Write;

pub const LOCK_FILE: &str = "/tmp/coroner-host-tests.lock";

/// Held by the one test that may disturb the node now; the kernel releases it when the process dies.
#[derive(Debug)]
pub struct HostLock {
    _file: File,
}

impl HostLock {
    /// Waits for its turn.
    pub fn take() -> Result<HostLock> {
        let file = open()?;
        flock(&file, FlockOperation::LockExclusive).context(LOCK_FILE)?;
        Ok(HostLock { _file: file })
    }

    /// `None` while somebody else holds it.
    pub fn try_take() -> Result<Option<HostLock>> {
        let file = open()?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => Ok(None),
            taken => taken.context(LOCK_FILE).map(|()| Some(HostLock { _file: file })),
        }
    }

    /// The machine for this test alone. Without root, reports the test as skipped and returns `None`.
    pub fn take_as_root() -> Option<HostLock> {
        if !rustix::process::geteuid().is_root() {
            skip("needs root");
            return None;
        }
        match HostLock::take() {
            Ok(lock) => Some(lock),
            Err(error) => panic!("the lock of the host tests: {error:#}"),
        }
    }
}

fn open() -> Result<File> {
    // flock needs only read access, which works on another user's file.
    File::open(LOCK_FILE).or_else(|_| OpenOptions::new().create(true).append(true).open(LOCK_FILE)).context(LOCK_FILE)
}

/// Reports the current test as skipped. `./check` lists these at the end; in CI they are a failure.
pub fn skip(why: &str) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    println!("{test}: SKIPPED ({why})");
    if let Some(list) = std::env::var_os("CORONER_SKIPPED_TESTS")
        && let Ok(mut list) = OpenOptions::new().create(true).append(true).open(list)
    {
        let _ = writeln!(list, "{test} ({why})");
    }
}
