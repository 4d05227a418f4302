//! Files that users provide for the audit: additions to the catalogue of agents, and baselines.

use crate::warn;
use anyhow::{Context, bail};
use coroner_diagnosis::agents::{Catalogue, Need};
use coroner_evidence::TextFile;
use coroner_probes::watch::AuditOptions;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Read at every audit.
const ADDED_CATALOGUES: &str = "/etc/coroner/catalogue.d";
/// Compared with by `diagnose`, if it exists.
const DEFAULT_BASELINE: &str = "/etc/coroner/baseline.json";

/// Far more than anybody writes by hand.
const MAX_CATALOGUE: u64 = 4 << 20;
/// 20,000 units take 6 MB.
const MAX_BASELINE: u64 = 64 << 20;

/// The known agents, and what users added.
pub struct KnownAgents {
    pub catalogue: Catalogue,
    pub added: Vec<TextFile>,
}

impl KnownAgents {
    /// Reads the catalogues in /etc and those `named`. A broken named file is an error; one in /etc is reported and ignored.
    pub fn read(named: &[PathBuf]) -> anyhow::Result<KnownAgents> {
        let mut added = Vec::new();
        for path in toml_files(Path::new(ADDED_CATALOGUES)).unwrap_or_default() {
            match read_text(&path, MAX_CATALOGUE) {
                Ok(file) => added.push(file),
                Err(error) => warn(&format!("{error:#}; this catalogue is ignored")),
            }
        }
        if let Err(error) = Catalogue::load(&added) {
            warn(&format!("{error}; all of {ADDED_CATALOGUES} is ignored until this is fixed"));
            added.clear();
        }
        for path in named {
            let is_dir = std::fs::metadata(path).with_context(|| path.display().to_string())?.is_dir();
            let files = if is_dir { toml_files(path)? } else { vec![path.clone()] };
            if files.is_empty() {
                bail!("{}: no *.toml files in this directory", path.display());
            }
            for path in files {
                added.push(read_text(&path, MAX_CATALOGUE)?);
            }
        }
        Ok(KnownAgents { catalogue: Catalogue::load(&added)?, added })
    }

    /// What to look at on the node for these agents.
    pub fn audit_options(&self, baseline: Option<TextFile>) -> AuditOptions {
        let agents = || self.catalogue.agents();
        let mut questions: Vec<_> = agents().flat_map(|a| &a.needs).flat_map(Need::questions).collect();
        questions.sort_unstable();
        questions.dedup();
        AuditOptions {
            questions,
            agent_units: agents().flat_map(|a| a.units.iter().cloned()).collect(),
            catalogues: self.added.clone(),
            baseline,
        }
    }
}

fn toml_files(dir: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(dir).with_context(|| dir.display().to_string())?;
    let mut files: Vec<PathBuf> = entries
        .collect::<Result<Vec<_>, _>>()
        .with_context(|| dir.display().to_string())?
        .into_iter()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|e| e == "toml"))
        .collect();
    files.sort_unstable();
    Ok(files)
}

/// The baseline to compare with: the named one, else the node's own, if any.
pub fn read_baseline(named: Option<&Path>) -> anyhow::Result<Option<TextFile>> {
    match named {
        Some(path) => read_text(path, MAX_BASELINE).map(Some),
        None if Path::new(DEFAULT_BASELINE).exists() => read_text(Path::new(DEFAULT_BASELINE), MAX_BASELINE).map(Some),
        None => Ok(None),
    }
}

fn read_text(path: &Path, limit: u64) -> anyhow::Result<TextFile> {
    let read = || -> std::io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        // Opening a FIFO would block until somebody writes to it.
        let no_wait = rustix::fs::OFlags::NONBLOCK.bits() as i32;
        let file = std::fs::OpenOptions::new().read(true).custom_flags(no_wait).open(path)?;
        if !file.metadata()?.is_file() {
            return Err(std::io::Error::other("not a regular file"));
        }
        file.take(limit + 1).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = read().with_context(|| path.display().to_string())?;
    if bytes.len() as u64 > limit {
        bail!("{}: larger than {} MiB", path.display(), limit >> 20);
    }
    let text = String::from_utf8(bytes).ok().with_context(|| format!("{}: not UTF-8 text", path.display()))?;
    Ok(TextFile { path: path.display().to_string(), text })
}
