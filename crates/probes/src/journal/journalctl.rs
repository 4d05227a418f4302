//! Runs `journalctl` with limits on time and output.
//!
//! The journal file format is internal to systemd and changes, so systemd's own reader is used. A hung disk or a journal of
//! gigabytes must not block us, so the child is killed when its time is up, and what it printed until then counts.

use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

/// Where distributions install it. PATH is not searched: we may be root.
const PLACES: [&str; 3] = ["/usr/bin/journalctl", "/bin/journalctl", "/run/current-system/sw/bin/journalctl"];

const MAX_OUTPUT: usize = 8 << 20;
const MAX_COMPLAINT: usize = 4096;

#[derive(Debug, Default)]
pub struct JournalctlOutput {
    /// Whole lines only.
    pub output: Vec<u8>,
    /// The first line on stderr.
    pub complaint: Option<String>,
    /// Why it was killed before it finished.
    pub cut: Option<&'static str>,
    pub failed: bool,
}

/// Makes the child die with us, even if we are killed.
fn end_with_us(command: &mut Command) {
    let us = rustix::process::getpid();
    let arm = move || {
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
        // We may have died before the line above; then the signal would never come.
        if rustix::process::getppid() == Some(us) { Ok(()) } else { Err(rustix::io::Errno::SRCH.into()) }
    };
    // SAFETY: between fork and exec it makes plain system calls only, and neither allocates nor locks.
    unsafe { command.pre_exec(arm) };
}

pub fn program() -> Option<PathBuf> {
    PLACES.iter().map(PathBuf::from).find(|place| place.is_file())
}

/// Runs the program until it exits, has printed `enough` lines or too much, or the time is up.
pub fn run(program: &Path, arguments: &[String], enough: usize, deadline: Instant) -> io::Result<JournalctlOutput> {
    let mut command = Command::new(program);
    command.args(arguments).env_clear().env("LC_ALL", "C").env("PATH", "/usr/bin:/bin");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    end_with_us(&mut command);
    let mut child = Ended(command.spawn()?);
    let (mut output, mut complaint) = (Vec::new(), Vec::new());
    let (Some(mut out), Some(mut err)) = (child.0.stdout.take(), child.0.stderr.take()) else {
        return Err(io::Error::other("no pipes to the child"));
    };
    for pipe in [out.as_fd(), err.as_fd()] {
        fcntl_setfl(pipe, fcntl_getfl(pipe)? | OFlags::NONBLOCK)?;
    }
    let mut said = JournalctlOutput::default();
    let (mut out_open, mut err_open, mut lines, mut counted) = (true, true, 0, 0);
    while out_open || err_open {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            said.cut = Some("time limit reached");
            break;
        }
        let mut waited = Vec::with_capacity(2);
        if out_open {
            waited.push(PollFd::new(&out, PollFlags::IN));
        }
        if err_open {
            waited.push(PollFd::new(&err, PollFlags::IN));
        }
        match poll(&mut waited, Some(&timespec(left))) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
        out_open = out_open && drain(&mut out, &mut output, MAX_OUTPUT)?;
        // Output beyond the limit is read and discarded, so that the child does not block.
        err_open = err_open && drain(&mut err, &mut complaint, usize::MAX)?;
        complaint.truncate(MAX_COMPLAINT);
        lines += output[counted..].iter().filter(|b| **b == b'\n').count();
        counted = output.len();
        if lines >= enough {
            break;
        }
        if output.len() >= MAX_OUTPUT {
            said.cut = Some("more than 8 MB of output");
            break;
        }
    }
    if !out_open && !err_open {
        said.failed = !child.0.wait()?.success();
    }
    let whole = output.iter().rposition(|b| *b == b'\n').map_or(0, |end| end + 1);
    output.truncate(whole);
    said.output = output;
    let complaint =
        String::from_utf8_lossy(&complaint).lines().map(str::trim).find(|l| !l.is_empty()).map(str::to_owned);
    said.complaint = complaint;
    Ok(said)
}

/// Reads what is available; false at the end.
fn drain(pipe: &mut impl Read, into: &mut Vec<u8>, limit: usize) -> io::Result<bool> {
    let mut buffer = [0; 65536];
    while into.len() < limit {
        match pipe.read(&mut buffer) {
            Ok(0) => return Ok(false),
            Ok(n) => into.extend_from_slice(&buffer[..n]),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(true),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(true)
}

fn timespec(duration: Duration) -> Timespec {
    Timespec { tv_sec: duration.as_secs().min(3600) as i64, tv_nsec: i64::from(duration.subsec_nanos()) }
}

/// A child that does not outlive us.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        if let Ok(None) = self.0.try_wait() {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit: Duration) -> JournalctlOutput {
        let arguments = ["-c".to_owned(), script.to_owned()];
        run(Path::new("/bin/sh"), &arguments, usize::MAX, Instant::now() + limit).unwrap()
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn output_and_complaint_are_separate() {
        let said = shell("echo one; echo oh no >&2; echo two; printf half; exit 3", LONG);
        assert_eq!(String::from_utf8(said.output).unwrap(), "one\ntwo\n");
        assert_eq!((said.complaint.as_deref(), said.cut, said.failed), (Some("oh no"), None, true));
    }

    #[test]
    fn a_hung_child_is_killed_and_its_output_counts() {
        let started = Instant::now();
        let said = shell("echo one; exec sleep 600", Duration::from_secs(3));
        assert_eq!((said.output.as_slice(), said.cut), (&b"one\n"[..], Some("time limit reached")));
        assert!(started.elapsed() < Duration::from_secs(300), "{:?}", started.elapsed());
    }

    #[test]
    fn a_child_with_enough_output_is_stopped() {
        let arguments = ["-c".to_owned(), "echo first; exec yes".to_owned()];
        let said = run(Path::new("/bin/sh"), &arguments, 1, Instant::now() + LONG).unwrap();
        assert!(said.output.starts_with(b"first\n") && said.output.len() < MAX_OUTPUT);
        assert_eq!((said.cut, said.failed), (None, false));
    }

    #[test]
    fn a_child_with_endless_output_is_killed() {
        let said = shell("exec yes", LONG);
        assert!(said.output.len() <= MAX_OUTPUT + 65536 && said.cut.is_some());
        let said = shell("yes | head -c 3000000 >&2; echo done", LONG);
        assert_eq!((said.output.as_slice(), said.complaint.as_deref()), (&b"done\n"[..], Some("y")));
    }
}
