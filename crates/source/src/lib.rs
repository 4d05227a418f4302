//! Opens what a command looks at: this node ([`live`]), a recording or a recorder's directory ([`recorded`]), a CPU profile
//! ([`profile`]).
//!
//! Prints nothing: messages to the user go to the log, and the program decides how to print them.

pub mod audit_files;
pub mod directory;
pub mod history;
pub mod incident_files;
pub mod incident_report;
pub mod kernel_work;
pub mod live;
pub mod moment;
pub mod profile;
pub mod recorded;

pub use coroner_report::incident;
fn warn(text: &str) {
    log::warn!("{text}");
}
