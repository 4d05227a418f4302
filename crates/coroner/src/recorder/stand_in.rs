//! Until the directory has it.
use std::path::PathBuf;

pub fn running() -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(super::directory::RUNNING) else { return Vec::new() };
    let paths = entries.flatten().filter_map(|entry| std::fs::read_to_string(entry.path()).ok());
    paths.map(|path| PathBuf::from(path.trim())).filter(|path| super::directory::is_live(path)).collect()
}
