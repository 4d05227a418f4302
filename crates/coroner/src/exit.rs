//! Exit codes: documented in the README, never changed.

use std::process::ExitCode;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Nothing wrong in what was seen; there may be findings of severity info.
    NothingWrong = 0,
    /// A finding of severity warning or critical.
    Findings = 1,
    /// The node or file could not be examined; with `--strict`, something could not be seen. Also for wrong arguments.
    CouldNotExamine = 2,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit as u8)
    }
}
