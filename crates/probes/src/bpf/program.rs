//! A program accepted by the verifier.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use aya_obj::generated::bpf_insn;

use super::locked_memory::LockedMemory;
use super::object::Failure;
use super::syscalls::{self, Kind};

/// Buffer sizes for the verifier's log. The objection is at its end, which kernels before 6.4 drop if the buffer is too small
/// (ENOSPC); then we retry with the largest buffer allowed.
const LOG_BYTES: [usize; 2] = [1 << 20, (u32::MAX >> 8) as usize];
const LOG_LINES: usize = 4;

/// A signal makes the verifier give up (EAGAIN); we retry this often.
const INTERRUPTIONS: u32 = 5;

/// A loaded program. The kernel unloads it when its last file descriptor is closed.
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
    pub(super) fn load(kind: Kind, name: &str, instructions: &[bpf_insn], license: &CStr) -> Result<Program, Failure> {
        let _room = LockedMemory::raise_where_it_counts();
        let mut attempts = 0;
        let error = loop {
            match syscalls::load_program(kind, name, instructions, license, &mut []) {
                Ok(fd) => return Ok(Program { fd }),
                Err(e) if e.raw_os_error() == Some(libc::EAGAIN) && attempts < INTERRUPTIONS => attempts += 1,
                Err(e) => break e,
            }
        };
        // Once more, for the log. It slows the verifier, so the first attempt goes without.
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

    /// Runs it once in this thread, without an event. Raw tracepoint programs: since Linux 5.10.
    pub fn run(&self) -> io::Result<u32> {
        syscalls::run_program(self.fd.as_fd())
    }

    /// Since Linux 4.17. The program's arguments are those of the kernel's TP_PROTO.
    pub fn attach_raw_tracepoint(&self, name: &CStr) -> io::Result<Attached> {
        Ok(Attached { _event: syscalls::open_raw_tracepoint(self.fd.as_fd(), Some(name))? })
    }

    /// To the tracepoint that it was loaded for ([`super::Object::traced_program`]).
    pub fn attach_to_its_tracepoint(&self) -> io::Result<Attached> {
        Ok(Attached { _event: syscalls::open_raw_tracepoint(self.fd.as_fd(), None)? })
    }

    /// Only on minor faults of this thread, so nobody else is slowed down.
    pub fn attach_to_own_page_faults(&self) -> io::Result<Attached> {
        Ok(Attached { _event: syscalls::open_own_page_faults(self.fd.as_fd())? })
    }
}

/// The end of the log, which otherwise lists the verifier's whole path through the program.
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
    fn the_last_lines_of_the_verifiers_log_are_kept() {
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
