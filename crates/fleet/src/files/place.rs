//! Where complete files are kept: `NODE/NUMBER-TRIGGERED-SHA256.coroner`, so that a list of names is all that has to be known. NODE is a
//! checksum of the node's name, which may be any text.

use super::bucket::Bucket;
use super::{Id, hex};
use anyhow::{Context, bail};
use ring::digest;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

const NODE_DIGITS: usize = 32;

#[derive(Debug)]
pub enum Place {
    Directory(PathBuf),
    Bucket(Bucket),
}

/// A complete file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// Below the place.
    name: String,
    pub bytes: u64,
    pub sha256: String,
    pub at: SystemTime,
}

impl Stored {
    /// `None`: it is not one of ours.
    pub fn named(name: &str, bytes: u64, at: SystemTime) -> Option<Stored> {
        let (node, file) = name.split_once('/')?;
        let (numbers, sha256) = file.strip_suffix(".coroner")?.rsplit_once('-')?;
        let is_hex = |text: &str, digits| text.len() == digits && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let is_ours = is_hex(node, NODE_DIGITS) && is_hex(sha256, 64) && numbers.contains('-');
        is_ours.then(|| Stored { name: name.to_owned(), bytes, sha256: sha256.to_owned(), at })
    }

    pub fn name(&self) -> &str {
        &self.name
    }
}

pub fn node_name(node: &str) -> String {
    let mut name = hex(digest::digest(&digest::SHA256, node.as_bytes()).as_ref());
    name.truncate(NODE_DIGITS);
    name
}

fn name(id: &Id, sha256: &str) -> String {
    format!("{}/{}-{}-{sha256}.coroner", node_name(&id.node), id.number, id.triggered_s)
}

impl Place {
    /// A directory, or `s3://BUCKET/PREFIX`.
    pub fn parse(text: &str) -> anyhow::Result<Place> {
        if let Some(bucket) = text.strip_prefix("s3://") {
            return Ok(Place::Bucket(Bucket::open(bucket)?));
        }
        if text.contains("://") {
            bail!("--files {text}: expected a directory or s3://BUCKET/PREFIX");
        }
        let directory = PathBuf::from(text);
        make(&directory)?;
        Ok(Place::Directory(directory))
    }

    /// Takes over a file that is complete and on disk.
    pub fn store(&self, id: &Id, sha256: &str, from: &Path) -> anyhow::Result<()> {
        let directory = match self {
            Place::Directory(directory) => directory,
            Place::Bucket(bucket) => return bucket.store(&name(id, sha256), from),
        };
        let path = directory.join(name(id, sha256));
        path.parent().map_or(Ok(()), make)?;
        // Another file system, perhaps: then it is copied, under a name that nobody finds.
        if std::fs::rename(from, &path).is_err() {
            let part = path.with_extension("part");
            let copied = std::fs::copy(from, &part).and_then(|_| File::open(&part)?.sync_all());
            let moved = copied.and_then(|()| std::fs::rename(&part, &path)).inspect_err(|_| {
                let _ = std::fs::remove_file(&part);
            });
            moved.with_context(|| format!("cannot write {}", path.display()))?;
        }
        // So that the name survives, too.
        path.parent().map_or(Ok(()), |parent| File::open(parent)?.sync_all()).context("cannot sync a directory")
    }

    pub fn find(&self, id: &Id) -> anyhow::Result<Option<Stored>> {
        let begins = format!("{}-{}-", id.number, id.triggered_s);
        let found = match self {
            Place::Directory(directory) => stored_in(directory, &node_name(&id.node))?,
            Place::Bucket(bucket) => bucket.listed(Some(&node_name(&id.node)))?,
        };
        Ok(found
            .into_iter()
            .find(|stored| stored.name.split_once('/').is_some_and(|(_, name)| name.starts_with(&begins))))
    }

    pub fn open(&self, stored: &Stored) -> anyhow::Result<Box<dyn Read + Send>> {
        let directory = match self {
            Place::Directory(directory) => directory,
            Place::Bucket(bucket) => return Ok(Box::new(bucket.reader(stored))),
        };
        let path = directory.join(&stored.name);
        Ok(Box::new(File::open(&path).with_context(|| format!("cannot read {}", path.display()))?))
    }

    pub fn remove(&self, stored: &Stored) -> anyhow::Result<()> {
        let directory = match self {
            Place::Directory(directory) => directory,
            Place::Bucket(bucket) => return bucket.remove(stored),
        };
        let path = directory.join(&stored.name);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(error).with_context(|| format!("cannot remove {}", path.display()))
            }
            _ => Ok(()),
        }
    }

    pub fn all(&self) -> anyhow::Result<Vec<Stored>> {
        let directory = match self {
            Place::Directory(directory) => directory,
            Place::Bucket(bucket) => return bucket.listed(None),
        };
        let mut all = Vec::new();
        for entry in std::fs::read_dir(directory).with_context(|| format!("cannot list {}", directory.display()))? {
            if let Some(node) = entry?.file_name().to_str() {
                all.extend(stored_in(directory, node)?);
            }
        }
        Ok(all)
    }
}

fn make(directory: &Path) -> anyhow::Result<()> {
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory);
    made.with_context(|| format!("cannot create {}", directory.display()))
}

/// Ours only: other names are left alone.
fn stored_in(directory: &Path, node: &str) -> anyhow::Result<Vec<Stored>> {
    let place = directory.join(node);
    if node.len() != NODE_DIGITS || !place.is_dir() {
        return Ok(Vec::new());
    }
    let stored = listed(&place)?
        .into_iter()
        .filter_map(|(path, bytes, at)| Stored::named(&format!("{node}/{}", path.file_name()?.to_str()?), bytes, at));
    Ok(stored.collect())
}

/// The files of a directory, with size and time of change.
pub fn listed(directory: &Path) -> anyhow::Result<Vec<(PathBuf, u64, SystemTime)>> {
    let cannot = || format!("cannot list {}", directory.display());
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory).with_context(cannot)? {
        let entry = entry.with_context(cannot)?;
        // It may have been removed meanwhile.
        let Ok(about) = entry.metadata() else { continue };
        if about.is_file() {
            files.push((entry.path(), about.len(), about.modified().unwrap_or(SystemTime::UNIX_EPOCH)));
        }
    }
    Ok(files)
}
