//! Writes a file that somebody named: complete, or not at all.

use anyhow::{Context, bail};
use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// What becomes of a file that is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Existing {
    Replace,
    /// Recordings are never overwritten.
    Keep,
}

/// Written under another name beside it and renamed; readable by its owner only. What is not a file, such as /dev/stdout, is written as
/// it is.
pub fn save<T>(
    path: &Path,
    existing: Existing,
    write: impl FnOnce(&mut File) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let cannot = || format!("{}: cannot write it", path.display());
    if std::fs::metadata(path).is_ok_and(|about| !about.is_file() && !about.is_dir()) {
        return write(&mut File::options().write(true).open(path).with_context(cannot)?);
    }
    must_be_free(path, existing)?;
    let part = Part(part(path)?);
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(&part.0).with_context(cannot)?;
    let written = write(&mut file)?;
    file.sync_all().with_context(cannot)?;
    match existing {
        Existing::Replace => std::fs::rename(&part.0, path).with_context(cannot)?,
        // Fails if there is one by now.
        Existing::Keep => std::fs::hard_link(&part.0, path).with_context(cannot)?,
    }
    Ok(written)
}

/// Before something is asked for that could not be written.
pub fn must_be_free(path: &Path, existing: Existing) -> anyhow::Result<()> {
    match std::fs::symlink_metadata(path) {
        Ok(about) if about.is_dir() => bail!("{} is a directory: name a file", path.display()),
        Ok(_) if existing == Existing::Keep => {
            bail!(
                "{}: already exists; recordings are never overwritten: remove it or choose another name",
                path.display()
            )
        }
        _ => {
            let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
            match parent.filter(|parent| !parent.is_dir()) {
                Some(parent) => bail!("{}: there is no directory {}", path.display(), parent.display()),
                None => Ok(()),
            }
        }
    }
}

fn part(path: &Path) -> anyhow::Result<PathBuf> {
    let name = path.file_name().with_context(|| format!("{}: name a file", path.display()))?;
    Ok(path.with_file_name(format!(".{}.{}.part", name.to_string_lossy(), std::process::id())))
}

/// Removed, unless it was renamed.
struct Part(PathBuf);

impl Drop for Part {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn names(dir: &Path) -> Vec<String> {
        std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn a_file_is_complete_or_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.csv");
        save(&path, Existing::Replace, |file| Ok(file.write_all(b"one")?)).unwrap();
        let failed = save::<()>(&path, Existing::Replace, |file| {
            file.write_all(b"half")?;
            bail!("the line broke")
        });
        let failed: anyhow::Error = failed.unwrap_err();
        assert_eq!(failed.to_string(), "the line broke");
        assert_eq!(std::fs::read(&path).unwrap(), b"one");
        save(&path, Existing::Replace, |file| Ok(file.write_all(b"two")?)).unwrap();
        assert_eq!((std::fs::read(&path).unwrap(), names(dir.path())), (b"two".to_vec(), vec!["x.csv".to_owned()]));
        let again = save(&path, Existing::Keep, |file| Ok(file.write_all(b"three")?)).unwrap_err();
        assert!(again.to_string().contains("already exists"), "{again}");
        assert_eq!(std::fs::read(&path).unwrap(), b"two");
        assert!(save(dir.path(), Existing::Replace, |_| Ok(())).is_err());
        save(&dir.path().join("y"), Existing::Keep, |file| Ok(file.write_all(b"y")?)).unwrap();
        assert_eq!(names(dir.path()).len(), 2);
    }
}
