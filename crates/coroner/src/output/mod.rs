//! Everything that is printed.

pub mod cores_text;
pub mod diagnosis_text;
pub mod fix_json;
pub mod fix_text;
pub mod from_recording;
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
pub mod waits_text;
pub mod zombies_text;

use coroner_source::recorded::Recorded;
pub use coroner_web::documents::document as json_text;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{self, Write};

/// Return to the start of the line and clear it.
const CLEAR: &str = "\r\x1b[K";

/// How long a warning waits for a slow reader.
const PATIENCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };

/// Writes to standard output. A reader that went away (`coroner | head`) is not an error and does not change the exit code; a
/// full disk is an error.
pub fn print(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(safe::text(text).as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

/// Writes a line to standard error, replacing the progress line. A missing reader must not end us.
pub fn warn(text: &str) {
    // Nor may a stuck reader block us: drop what cannot be written soon.
    let stderr = io::stderr();
    if poll(&mut [PollFd::new(&stderr, PollFlags::OUT)], Some(&PATIENCE)) == Ok(0) {
        return;
    }
    let mut stderr = stderr.lock();
    let clear = if io::IsTerminal::is_terminal(&stderr) { CLEAR } else { "" };
    let _ = writeln!(stderr, "{clear}coroner: {}", safe::one_line(text));
}

/// Asks the user, replacing the progress line.
pub fn ask(question: &str) {
    let mut stderr = io::stderr().lock();
    let _ = write!(stderr, "{CLEAR}{}", safe::text(question));
    let _ = stderr.flush();
}

/// Rewrites the progress line.
fn show_progress(line: &str) {
    let mut stderr = io::stderr().lock();
    let _ = write!(stderr, "{CLEAR}{}", safe::one_line(line));
    let _ = stderr.flush();
}

/// Puts the line that says where the evidence comes from above the text.
pub fn with_line(text: String, recorded: Option<&Recorded>) -> String {
    match recorded.map(|recorded| recorded.line.as_str()).filter(|line| !line.is_empty()) {
        Some(line) => format!("{}\n{text}", safe::one_line(line)),
        None => text,
    }
}

/// Prints log messages of our own crates as warnings; other crates' logs are for their developers.
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

/// Prints warnings of the recorder and of sources from now on.
pub fn print_warnings() {
    // Only a second logger could fail, and there is none.
    let _ = log::set_logger(&Warnings);
    log::set_max_level(log::LevelFilter::Warn);
}
