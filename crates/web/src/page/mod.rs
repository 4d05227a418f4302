//! The page's data. [`shown`] knows what is shown and reads it, [`api`] finds the document that is asked for, and one file each
//! builds them: most are those that the commands print ([`crate::documents`]).

mod api;
mod axis;
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

/// A file that cannot be shown is told at once, not by the page.
fn must_be_readable(path: &Path) -> anyhow::Result<()> {
    if path == Path::new("-") {
        bail!("the page cannot show standard input; save it to a file first");
    }
    std::fs::metadata(path).map(drop).with_context(|| path.display().to_string())
}
