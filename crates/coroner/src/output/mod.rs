//! What people and programs read.

pub mod cores_text;
pub mod diagnosis_text;
pub mod fix_json;
pub mod fix_text;
pub mod history_text;
pub mod incidents_text;
pub mod markdown;
pub mod profile;
pub mod progress;
pub mod report;
pub mod safe;
pub mod telling;
pub mod terminal;
#[cfg(test)]
mod test_diagnosis;
pub mod undo_text;
pub mod units_text;
pub mod verdict_text;
pub mod zombies_text;

use coroner_source::recorded::Recorded;
pub use coroner_web::documents::document as json_text;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{self, Write};

/// To the beginning of the line, which is emptied.
const CLEAR: &str = "\r\x1b[K";

/// How long a warning waits for its reader.
const PATIENCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };

/// Writes to standard output. A reader that went away (`coroner | head`) is not an error, and changes no exit code; a full
/// disk is one.
pub fn print(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(safe::text(text).as_bytes()).and_then(|()| stdout.flush()) {
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
    let clear = if io::IsTerminal::is_terminal(&stderr) { CLEAR } else { "" };
    let _ = writeln!(stderr, "{clear}coroner: {}", safe::one_line(text));
}

/// Asks a person, in place of the progress line.
pub fn ask(question: &str) {
    let mut stderr = io::stderr().lock();
    let _ = write!(stderr, "{CLEAR}{}", safe::text(question));
    let _ = stderr.flush();
}

/// Rewrites the line that tells how far it is.
fn show_progress(line: &str) {
    let mut stderr = io::stderr().lock();
    let _ = write!(stderr, "{CLEAR}{}", safe::one_line(line));
    let _ = stderr.flush();
}

/// A text for people with the line that says where it comes from.
pub fn with_line(text: String, recorded: Option<&Recorded>) -> String {
    match recorded.map(|recorded| recorded.line.as_str()).filter(|line| !line.is_empty()) {
        Some(line) => format!("{}\n{text}", safe::one_line(line)),
        None => text,
    }
}

/// What libraries of ours say is printed as our own warnings are; what others' log is their developers' business.
struct Warnings;

impl log::Log for Warnings {
    fn enabled(&self, about: &log::Metadata<'_>) -> bool {
        about.target().starts_with("coroner")
    }

    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            warn(&record.args().to_string());
        }
    }

    fn flush(&self) {}
}

/// From now on warnings of the recorder and of sources are printed.
pub fn print_warnings() {
    // Only a second logger could fail, and there is none.
    let _ = log::set_logger(&Warnings);
    log::set_max_level(log::LevelFilter::Warn);
}
