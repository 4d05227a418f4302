//! What people and programs read.

pub mod cores_text;
pub mod diagnosis_json;
pub mod diagnosis_text;
pub mod fix_json;
pub mod fix_text;
pub mod incidents_json;
pub mod incidents_text;
pub mod markdown;
pub mod profile;
pub mod progress;
pub mod report;
pub mod telling;
pub mod terminal;
#[cfg(test)]
mod test_diagnosis;
pub mod undo_text;
pub mod units_json;
pub mod units_text;
pub mod verdict_text;
pub mod zombies_json;
pub mod zombies_text;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{self, Write};

/// How long a warning waits for its reader.
const PATIENCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };

/// Writes to standard output. A reader that went away (`coroner | head`) is not an error, and changes no exit code; a full
/// disk is one.
pub fn print(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

/// Writes a line to standard error, in place of the progress line if there is one. That nobody reads it must not end us.
pub fn warn(text: &str) {
    // Nor must one who does not read on: what cannot be written soon is not said.
    let stderr = io::stderr();
    if poll(&mut [PollFd::new(&stderr, PollFlags::OUT)], Some(&PATIENCE)) == Ok(0) {
        return;
    }
    let mut stderr = stderr.lock();
    let clear = if io::IsTerminal::is_terminal(&stderr) { "\r\x1b[K" } else { "" };
    // Names of files and threads may hold anything.
    let lines: Vec<String> = text.lines().map(terminal::printable).collect();
    let _ = writeln!(stderr, "{clear}coroner: {}", lines.join("\n"));
}
