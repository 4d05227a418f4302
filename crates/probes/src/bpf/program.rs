//! A program that the verifier has accepted.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use aya_obj::generated::{bpf_insn, bpf_prog_type};

use super::locked_memory::LockedMemory;
use super::object::Failure;
use super::syscalls;

/// Room for the verifier's log. At its end it says what it objects to, and kernels before 6.4 drop that end if the room is too
/// small (ENOSPC): then the most that they allow.
const LOG_BYTES: [usize; 2] = [1 << 20, (u32::MAX >> 8) as usize];
const LOG_LINES: usize = 4;

/// The verifier gives up when a signal comes (EAGAIN).
const INTERRUPTIONS: u32 = 5;

/// A loaded program. It is unloaded when the last file of it is closed.
#[derive(Debug)]
pub struct Program {
    fd: OwnedFd,
}

/// Drop detaches the program.
#[derive(Debug)]
pub struct Attached {
    _event: OwnedFd,
}

impl Program {
    pub(super) fn load(
        kind: bpf_prog_type,
        name: &str,
        instructions: &[bpf_insn],
        license: &CStr,
    ) -> Result<Program, Failure> {
        let _room = LockedMemory::raise_where_it_counts();
        let mut attempts = 0;
        let error = loop {
            match syscalls::load_program(kind, name, instructions, license, &mut []) {
                Ok(fd) => return Ok(Program { fd }),
                Err(e) if e.raw_os_error() == Some(libc::EAGAIN) && attempts < INTERRUPTIONS => attempts += 1,
                Err(e) => break e,
            }
        };
        // Once more, for its words. The log slows the verifier, so it is not asked for at first.
        let mut words = String::new();
        for bytes in LOG_BYTES {
            let mut log = vec![0; bytes];
            match syscalls::load_program(kind, name, instructions, license, &mut log) {
                Ok(fd) => return Ok(Program { fd }),
                Err(again) => {
                    words = last_lines(&log);
                    if again.raw_os_error() != Some(libc::ENOSPC) {
                        break;
                    }
                }
            }
        }
        Err(Failure::Program { name: name.to_owned(), words, error })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Runs it once in this thread, without any event. Raw tracepoint programs: from Linux 5.10.
    pub fn run(&self) -> io::Result<u32> {
        syscalls::run_program(self.fd.as_fd())
    }

    /// From Linux 4.17; the arguments are those of the kernel's TP_PROTO.
    pub fn attach_raw_tracepoint(&self, name: &CStr) -> io::Result<Attached> {
        Ok(Attached { _event: syscalls::open_raw_tracepoint(self.fd.as_fd(), name)? })
    }

    /// At minor faults of this thread only: nobody else is slowed.
    pub fn attach_to_own_page_faults(&self) -> io::Result<Attached> {
        Ok(Attached { _event: syscalls::open_own_page_faults(self.fd.as_fd())? })
    }
}

/// The verifier answers with its whole path through the program.
fn last_lines(log: &[u8]) -> String {
    let end = log.iter().position(|b| *b == 0).unwrap_or(log.len());
    let text = String::from_utf8_lossy(&log[..end]);
    let said = |line: &&str| {
        !line.trim().is_empty() && !line.starts_with("processed ") && !line.starts_with("verification time")
    };
    let mut lines: Vec<&str> = text.lines().rev().filter(said).take(LOG_LINES).collect();
    lines.reverse();
    lines.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_last_words_of_the_verifier_are_kept() {
        let log = b"0: R1=ctx()\n\n1: (79) r2 = *(u64 *)(r1 +8)\ninvalid bpf_context access off=8 size=8\n\
                    processed 2 insns (limit 1000000)\n\0rest";
        assert_eq!(
            last_lines(log),
            "0: R1=ctx(); 1: (79) r2 = *(u64 *)(r1 +8); invalid bpf_context access off=8 size=8"
        );
        assert_eq!(last_lines(b""), "");
    }

    proptest! {
        #[test]
        fn any_log(log in proptest::collection::vec(any::<u8>(), 0..200)) {
            last_lines(&log);
        }
    }
}
