//! The header of an installed package in rpm's database (rpm's docs/manual/hregions.md, lib/header.c): two counts,
//! an index of 16-byte entries (tag, type, offset, count; all big-endian), and the data they point into.

use super::{PathSet, invalid};
use std::collections::HashMap;
use std::io;

use coroner_evidence::Package;

const NAME: u32 = 1000;
const VERSION: u32 = 1001;
const RELEASE: u32 = 1002;
const EPOCH: u32 = 1003;
const DIR_INDEXES: u32 = 1116;
const BASE_NAMES: u32 = 1117;
const DIR_NAMES: u32 = 1118;
/// Full paths, in packages older than rpm 4.
const OLD_FILE_NAMES: u32 = 1027;

const INT32: u32 = 4;
const STRING: u32 = 6;
const STRING_ARRAY: u32 = 8;

/// HEADER_DATA_MAX and HEADER_TAGS_MAX of rpm.
const MAX_DATA: usize = 0x0fff_ffff;
const MAX_TAGS: usize = 0xffff;

struct Header<'a> {
    index: &'a [u8],
    data: &'a [u8],
}

fn be32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

impl<'a> Header<'a> {
    fn parse(blob: &'a [u8]) -> io::Result<Header<'a>> {
        let counts = be32(blob, 0).zip(be32(blob, 4)).ok_or_else(|| invalid("a package header is truncated"))?;
        let (tags, bytes) = (counts.0 as usize, counts.1 as usize);
        if tags > MAX_TAGS || bytes > MAX_DATA {
            return Err(invalid("a package header has impossible sizes"));
        }
        let data_at = 8 + tags * 16;
        match (blob.get(8..data_at), blob.get(data_at..data_at + bytes)) {
            (Some(index), Some(data)) => Ok(Header { index, data }),
            _ => Err(invalid("a package header is truncated")),
        }
    }

    /// Type, data starting at its offset, and count.
    fn entry(&self, tag: u32) -> Option<(u32, &'a [u8], usize)> {
        for entry in self.index.chunks_exact(16) {
            if be32(entry, 0) == Some(tag) {
                let (kind, offset, count) = (be32(entry, 4)?, be32(entry, 8)?, be32(entry, 12)?);
                return Some((kind, self.data.get(offset as usize..)?, count as usize));
            }
        }
        None
    }

    fn text(&self, tag: u32) -> Option<String> {
        let (kind, data, _) = self.entry(tag)?;
        (kind == STRING).then(|| String::from_utf8_lossy(until_nul(data)).into_owned())
    }

    fn number(&self, tag: u32) -> Option<u32> {
        let (kind, data, count) = self.entry(tag)?;
        (kind == INT32 && count > 0).then(|| be32(data, 0)).flatten()
    }

    fn texts(&self, tag: u32) -> Vec<&'a [u8]> {
        match self.entry(tag) {
            Some((STRING_ARRAY, data, count)) => data.split(|b| *b == 0).take(count).collect(),
            _ => Vec::new(),
        }
    }

    fn numbers(&self, tag: u32) -> impl Iterator<Item = u32> + 'a {
        let (data, count) = match self.entry(tag) {
            Some((INT32, data, count)) => (data, count),
            _ => (&[][..], 0),
        };
        data.chunks_exact(4).take(count).filter_map(|n| be32(n, 0))
    }
}

fn until_nul(data: &[u8]) -> &[u8] {
    &data[..data.iter().position(|b| *b == 0).unwrap_or(data.len())]
}

/// Looks for wanted files in one package.
pub fn find(blob: &[u8], wanted: &PathSet, owners: &mut HashMap<String, Package>) -> io::Result<()> {
    let header = Header::parse(blob)?;
    let mut found = Vec::new();
    let directories = header.texts(DIR_NAMES);
    // Most packages have no unit; checking their directories first avoids building every path.
    let of_interest: Vec<bool> = directories
        .iter()
        .map(|d| wanted.paths.keys().any(|p| p.as_bytes().strip_prefix(*d).is_some_and(|rest| !rest.contains(&b'/'))))
        .collect();
    if of_interest.contains(&true) {
        for (base, directory) in header.texts(BASE_NAMES).into_iter().zip(header.numbers(DIR_INDEXES)) {
            let directory = directory as usize;
            if of_interest.get(directory) == Some(&true) {
                let path = [directories[directory], base].concat();
                found.extend(std::str::from_utf8(&path).ok().and_then(|p| wanted.asked(p)).cloned());
            }
        }
    }
    for path in header.texts(OLD_FILE_NAMES) {
        found.extend(std::str::from_utf8(path).ok().and_then(|p| wanted.asked(p)).cloned());
    }
    if found.is_empty() {
        return Ok(());
    }
    let name = header.text(NAME).ok_or_else(|| invalid("a package has no name"))?;
    let version = header.text(VERSION).map(|version| {
        let epoch = header.number(EPOCH).map(|e| format!("{e}:")).unwrap_or_default();
        let release = header.text(RELEASE).map(|r| format!("-{r}")).unwrap_or_default();
        format!("{epoch}{version}{release}")
    });
    for path in found {
        let package = Package { name: name.clone(), version: version.clone(), manager: "rpm".to_owned() };
        owners.entry(path).or_insert(package);
    }
    Ok(())
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A header with these files, as rpm would store it.
    pub fn header(name: &str, version: &str, release: &str, files: &[&str]) -> Vec<u8> {
        let mut directories: Vec<String> = Vec::new();
        let (mut bases, mut indexes) = (Vec::new(), Vec::new());
        for file in files {
            let at = file.rfind('/').unwrap() + 1;
            let directory = file[..at].to_owned();
            let index = directories.iter().position(|d| *d == directory).unwrap_or_else(|| {
                directories.push(directory);
                directories.len() - 1
            });
            bases.push(file[at..].to_owned());
            indexes.push(index as u32);
        }
        let texts = |all: &[String]| all.iter().flat_map(|t| [t.as_bytes(), b"\0"].concat()).collect::<Vec<u8>>();
        let entries: Vec<(u32, u32, Vec<u8>, usize)> = vec![
            (NAME, STRING, texts(&[name.to_owned()]), 1),
            (VERSION, STRING, texts(&[version.to_owned()]), 1),
            (RELEASE, STRING, texts(&[release.to_owned()]), 1),
            (DIR_INDEXES, INT32, indexes.iter().flat_map(|i| i.to_be_bytes()).collect(), indexes.len()),
            (BASE_NAMES, STRING_ARRAY, texts(&bases), bases.len()),
            (DIR_NAMES, STRING_ARRAY, texts(&directories), directories.len()),
        ];
        let (mut index, mut data) = (Vec::new(), Vec::new());
        for (tag, kind, bytes, count) in &entries {
            while *kind == INT32 && data.len() % 4 != 0 {
                data.push(0);
            }
            for n in [*tag, *kind, data.len() as u32, *count as u32] {
                index.extend(n.to_be_bytes());
            }
            data.extend(bytes);
        }
        let mut blob = (entries.len() as u32).to_be_bytes().to_vec();
        blob.extend((data.len() as u32).to_be_bytes());
        blob.extend(index);
        blob.extend(data);
        blob
    }

    fn owner(blob: &[u8], path: &str) -> Option<Package> {
        let mut owners = HashMap::new();
        find(blob, &PathSet::new(&[path.to_owned()]), &mut owners).unwrap();
        owners.remove(path)
    }

    #[test]
    fn finds_the_package_of_a_file() {
        let blob =
            header("ecs-init", "1.86.3", "1.amzn2023", &["/etc/ecs/ecs.config", "/usr/lib/systemd/system/ecs.service"]);
        let package =
            Package { name: "ecs-init".into(), version: Some("1.86.3-1.amzn2023".into()), manager: "rpm".into() };
        assert_eq!(owner(&blob, "/usr/lib/systemd/system/ecs.service"), Some(package.clone()));
        assert_eq!(owner(&blob, "/lib/systemd/system/ecs.service"), Some(package));
        assert_eq!(owner(&blob, "/usr/lib/systemd/system/ecs.config"), None);
    }

    proptest! {
        #[test]
        fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = find(&bytes, &PathSet::new(&["/a/b".to_owned()]), &mut HashMap::new());
        }

        #[test]
        fn a_damaged_header(at in 0usize..300, byte in any::<u8>()) {
            let mut blob = header("n", "1", "2", &["/a/b", "/c/d"]);
            if let Some(b) = blob.get_mut(at) {
                *b = byte;
            }
            let _ = find(&blob, &PathSet::new(&["/a/b".to_owned()]), &mut HashMap::new());
        }
    }
}
