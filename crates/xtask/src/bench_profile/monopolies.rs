//! Monopolies found blind.

use super::Row;
use std::path::Path;

pub fn run(_binaries: &Path, _runs: u32) -> anyhow::Result<Vec<Row>> {
    Ok(Vec::new())
}
