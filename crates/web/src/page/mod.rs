//! The page's data. [`shown`] reads the source, [`api`] routes requests, and one file each builds a document; most are those that
//! the commands print ([`crate::documents`]).

mod api;
pub mod axis;
mod cores;
mod export;
mod flame;
mod loading;
mod owners;
mod parallel;
mod question;
mod shown;
mod source;
mod temporary;
mod timeline;

pub use api::Page;

use anyhow::{Context, bail};
use std::path::Path;

/// Fails early, before the page is served.
fn must_be_readable(path: &Path) -> anyhow::Result<()> {
    if path == Path::new("-") {
        bail!("the page cannot show standard input; save it to a file first");
    }
    std::fs::metadata(path).map(drop).with_context(|| path.display().to_string())
}
