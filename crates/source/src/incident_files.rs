//! The files of incidents: `N.json` describes one, `N.coroner` holds its minutes.

use crate::directory;
use crate::incident::Incident;
use anyhow::{Context, bail};
use rustix::fs::OFlags;
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Ours are a few kilobytes.
const MOST_JSON: u64 = 1 << 20;
const PART: &str = ".part";

pub fn json(directory: &Path, number: u64) -> PathBuf {
    directory::incidents(directory).join(format!("{number}.json"))
}

pub fn recording(directory: &Path, number: u64) -> PathBuf {
    directory::incidents(directory).join(format!("{number}.coroner"))
}

/// Where the recording is written before it is renamed.
pub fn part(directory: &Path, number: u64) -> PathBuf {
    directory::incidents(directory).join(format!("{number}.coroner{PART}"))
}

/// Removes all that SQLite may have left of an unfinished file.
pub fn remove_part(directory: &Path, number: u64) {
    let part = part(directory, number).into_os_string();
    for suffix in ["", "-wal", "-shm", "-journal"] {
        let mut name = part.clone();
        name.push(suffix);
        let _ = fs::remove_file(name);
    }
}

pub fn read(directory: &Path, number: u64) -> anyhow::Result<Incident> {
    let path = json(directory, number);
    let mut text = String::new();
    // A pipe of that name must not block us.
    let flags = (OFlags::NONBLOCK | OFlags::NOFOLLOW).bits() as i32;
    let file = fs::OpenOptions::new().read(true).custom_flags(flags).open(&path);
    let file = file.with_context(|| path.display().to_string())?;
    if !file.metadata().is_ok_and(|about| about.is_file()) {
        bail!("{}: not a regular file", path.display());
    }
    file.take(MOST_JSON).read_to_string(&mut text).with_context(|| path.display().to_string())?;
    let incident: Incident =
        serde_json::from_str(&text).with_context(|| format!("{}: not an incident", path.display()))?;
    if incident.number != number {
        bail!("{}: describes incident {}: the file was renamed", path.display(), incident.number);
    }
    Ok(incident)
}

/// Writes all of it, or leaves the file as it was.
pub fn write(directory: &Path, incident: &Incident) -> anyhow::Result<()> {
    let path = json(directory, incident.number);
    let temporary = path.with_extension("json.part");
    let written = serde_json::to_vec_pretty(incident)
        .map_err(io::Error::other)
        .and_then(|text| {
            // Private: it names processes and units.
            let options = fs::OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .custom_flags(OFlags::NOFOLLOW.bits() as i32)
                .open(&temporary);
            options?.write_all(&text)
        })
        .and_then(|()| fs::rename(&temporary, &path));
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written.with_context(|| format!("cannot write {}", path.display()))
}

/// The numbers of all incidents with files.
pub fn numbers(directory: &Path) -> io::Result<Vec<u64>> {
    let mut numbers: Vec<u64> = listed(directory)?.keys().copied().collect();
    numbers.sort_unstable();
    Ok(numbers)
}

/// The size of each incident's files, in bytes. Other files are ignored.
pub fn listed(directory: &Path) -> io::Result<BTreeMap<u64, u64>> {
    let mut sizes: BTreeMap<u64, u64> = BTreeMap::new();
    let entries = match fs::read_dir(directory::incidents(directory)) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(sizes),
        Err(error) => return Err(error),
    };
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        let Some((number, rest)) = name.to_str().and_then(|name| name.split_once('.')) else { continue };
        if rest != "json" && !rest.starts_with("coroner") {
            continue;
        }
        let Ok(number) = number.parse::<u64>() else { continue };
        // Gone by now: the recorder evicts and renames.
        let bytes = entry.metadata().map_or(0, |about| about.len());
        *sizes.entry(number).or_default() += bytes;
    }
    Ok(sizes)
}

/// Removes all files of an incident.
pub fn remove(directory: &Path, number: u64) -> io::Result<()> {
    remove_part(directory, number);
    for path in [recording(directory, number), json(directory, number)] {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}
