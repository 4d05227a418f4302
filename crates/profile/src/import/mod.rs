//! Readers of what others write. Each takes any bytes, gives what is there, and says in a [`Report`] what it could not use.

pub mod folded;
pub mod gz;
pub mod perf_data;
pub mod perf_script;
mod report;

pub use report::{Oddity, OddityKind, Report};

/// Why a file could not be read at all.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    #[error("reading failed: {0}")]
    Read(#[from] std::io::Error),
    #[error("this is no {expected} file")]
    NotThisFormat { expected: &'static str },
}
