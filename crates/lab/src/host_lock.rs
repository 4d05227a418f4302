//! Tests that make trouble on the node take turns.

use anyhow::{Context, Result};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io::Write;

pub const LOCK_FILE: &str = "/tmp/coroner-host-tests.lock";

/// Held by the one test that may trouble the node now; the kernel gives it back when the process dies.
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

    /// `None` while somebody else has it.
    pub fn try_take() -> Result<Option<HostLock>> {
        let file = open()?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => Ok(None),
            taken => taken.context(LOCK_FILE).map(|()| Some(HostLock { _file: file })),
        }
    }

    /// The machine for this test alone; `None`, and a word about it, where the test cannot run because we are not root.
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
    // Reading is enough for flock, and works on a file that another user made.
    File::open(LOCK_FILE).or_else(|_| OpenOptions::new().create(true).append(true).open(LOCK_FILE)).context(LOCK_FILE)
}

/// Says that the test of this thread cannot run here. `./check` names these at the end, and in CI they are a failure.
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
