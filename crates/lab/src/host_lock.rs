//! Tests that disturb the node take turns; tests that cannot be disturbed run beside each other.

use anyhow::{Context, Result};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Instant;

pub const LOCK_FILE: &str = "/tmp/coroner-host-tests.lock";

/// How many tests share the machine. They mostly wait, but each may boot a systemd.
const BESIDE: usize = 5;

/// Held by tests that run on the real node; the kernel releases it when the process dies. A waiting test that wants the machine for itself
/// gets it when nobody shares it: a program has only so many tests, so it does not wait forever.
#[derive(Debug)]
pub struct HostLock {
    _file: File,
    _place: Option<Place>,
    taken: Instant,
}

impl HostLock {
    /// Waits until it is alone.
    pub fn take() -> Result<HostLock> {
        let file = open()?;
        flock(&file, FlockOperation::LockExclusive).context(LOCK_FILE)?;
        Ok(HostLock { _file: file, _place: None, taken: Instant::now() })
    }

    /// `None` while somebody else holds it.
    pub fn try_take() -> Result<Option<HostLock>> {
        let file = open()?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => Ok(None),
            taken => {
                taken.context(LOCK_FILE)?;
                Ok(Some(HostLock { _file: file, _place: None, taken: Instant::now() }))
            }
        }
    }

    fn share() -> Result<HostLock> {
        let place = Place::take();
        let file = open()?;
        flock(&file, FlockOperation::LockShared).context(LOCK_FILE)?;
        Ok(HostLock { _file: file, _place: Some(place), taken: Instant::now() })
    }

    /// The machine for this test alone: it takes a core, or judges cores, waits or counts of the whole node. Without root, reports the test
    /// as skipped and returns `None`.
    pub fn take_as_root() -> Option<HostLock> {
        HostLock::as_root(HostLock::take)
    }

    /// The machine beside other tests that share it. Only for a test that takes no core, and judges nothing but what it made itself and can
    /// tell from what others make: its own systemd, bus, directory, namespace or cgroup.
    pub fn share_as_root() -> Option<HostLock> {
        HostLock::as_root(HostLock::share)
    }

    fn as_root(take: fn() -> Result<HostLock>) -> Option<HostLock> {
        if !rustix::process::geteuid().is_root() {
            skip("needs root");
            return None;
        }
        match take() {
            Ok(lock) => Some(lock),
            Err(error) => panic!("the lock of the host tests: {error:#}"),
        }
    }
}

impl Drop for HostLock {
    /// `cargo xtask steady` shows these times; those that libtest measures contain the wait for the lock.
    fn drop(&mut self) {
        note("CORONER_TEST_TIMES", &format!("{:.1} {}", self.taken.elapsed().as_secs_f64(), test_name()));
    }
}

/// One of the [`BESIDE`] places of this program; free again on drop.
#[derive(Debug)]
struct Place;

static TAKEN: Mutex<usize> = Mutex::new(0);
static FREED: Condvar = Condvar::new();

impl Place {
    fn take() -> Place {
        let taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
        let mut taken = FREED.wait_while(taken, |taken| *taken == BESIDE).unwrap_or_else(PoisonError::into_inner);
        *taken += 1;
        Place
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        *TAKEN.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        FREED.notify_one();
    }
}

/// Lets a test program start this many tests at once, so that the [`HostLock`] decides who runs. libtest starts as many as there are cores:
/// tests that wait for the machine would keep others from sharing it. Its commands find no running recorder: it would be another test's.
#[macro_export]
macro_rules! tests_at_once {
    ($count:literal) => {
        #[used]
        #[unsafe(link_section = ".init_array")]
        static TESTS_AT_ONCE: extern "C" fn() = {
            extern "C" fn before_main() {
                // SAFETY: before main there is only this thread.
                unsafe { std::env::set_var("CORONER_RUNNING", "/proc/no-recorder-runs") };
                if std::env::var_os("RUST_TEST_THREADS").is_none() {
                    // SAFETY: before main there is only this thread.
                    unsafe { std::env::set_var("RUST_TEST_THREADS", stringify!($count)) };
                }
            }
            before_main
        };
    };
}

fn open() -> Result<File> {
    // flock needs only read access, which works on another user's file.
    File::open(LOCK_FILE).or_else(|_| OpenOptions::new().create(true).append(true).open(LOCK_FILE)).context(LOCK_FILE)
}

/// Reports the current test as skipped. `./check` lists these at the end; in CI they are a failure.
pub fn skip(why: &str) {
    let test = test_name();
    println!("{test}: SKIPPED ({why})");
    note("CORONER_SKIPPED_TESTS", &format!("{test} ({why})"));
}

fn test_name() -> String {
    std::thread::current().name().unwrap_or("a test").to_owned()
}

/// Appends a line to the file that this variable names.
fn note(variable: &str, line: &str) {
    if let Some(list) = std::env::var_os(variable)
        && let Ok(mut list) = OpenOptions::new().create(true).append(true).open(list)
    {
        let _ = list.write_all(format!("{line}\n").as_bytes());
    }
}
