//! dpkg: the files of a package are listed in /var/lib/dpkg/info/NAME.list, its version is in /var/lib/dpkg/status. Distroless
//! images instead have one file per package in status.d, and md5sums in place of lists.

use std::collections::HashMap;
use std::io;

use coroner_evidence::Package;

use super::PathSet;
use crate::tree::{Tree, is_absent};

const INFO: &str = "/var/lib/dpkg/info";
const STATUS: &str = "/var/lib/dpkg/status";
const STATUS_D: &str = "/var/lib/dpkg/status.d";
const MAX_LIST: u64 = 64 << 20;

pub fn find(tree: &Tree, wanted: &PathSet, owners: &mut HashMap<String, Package>) -> io::Result<()> {
    let mut found: Vec<(String, String)> = Vec::new();
    // An unreadable file must not hide the owners in all others.
    let mut unread: Option<io::Error> = None;
    match tree.list(INFO) {
        Ok(entries) => {
            for entry in entries {
                // `libc6:amd64.list`
                let Some(package) = entry.name.strip_suffix(".list") else { continue };
                let package = package.split(':').next().unwrap_or(package);
                let path = format!("{INFO}/{}", entry.name);
                match tree.read(&path, MAX_LIST) {
                    Ok(bytes) => paths_in(&bytes, |line| Some(line), wanted, package, &mut found),
                    Err(e) => unread = Some(io::Error::new(e.kind(), format!("{path}: {e}"))),
                }
            }
        }
        Err(e) if is_absent(&e) => {}
        Err(e) => return Err(io::Error::new(e.kind(), format!("{INFO}: {e}"))),
    }
    let mut versions: HashMap<String, String> = HashMap::new();
    match tree.read(STATUS, MAX_LIST) {
        Ok(bytes) => read_status(&String::from_utf8_lossy(&bytes), &mut versions),
        Err(e) if is_absent(&e) => {}
        Err(e) => return Err(io::Error::new(e.kind(), format!("{STATUS}: {e}"))),
    }
    for entry in tree.list(STATUS_D).unwrap_or_default() {
        let Ok(bytes) = tree.read(&format!("{STATUS_D}/{}", entry.name), MAX_LIST) else { continue };
        match entry.name.strip_suffix(".md5sums") {
            // `d41d8cd98f00b204e9800998ecf8427e  usr/lib/…`
            Some(package) => {
                paths_in(&bytes, |line| line.split_once("  ").map(|(_, path)| path), wanted, package, &mut found);
            }
            None => read_status(&String::from_utf8_lossy(&bytes), &mut versions),
        }
    }
    for (path, name) in found {
        let version = versions.get(&name).cloned();
        owners.entry(path).or_insert(Package { name, version, manager: "dpkg".to_owned() });
    }
    unread.map_or(Ok(()), Err)
}

fn paths_in(
    bytes: &[u8],
    path_of: impl Fn(&str) -> Option<&str>,
    wanted: &PathSet,
    package: &str,
    found: &mut Vec<(String, String)>,
) {
    for line in bytes.split(|b| *b == b'\n').filter(|line| wanted.may_be(line)) {
        let Some(path) = std::str::from_utf8(line).ok().and_then(&path_of) else { continue };
        let asked = match path.strip_prefix('/') {
            Some(_) => wanted.asked(path),
            None => wanted.asked(&format!("/{path}")),
        };
        if let Some(asked) = asked {
            found.push((asked.clone(), package.to_owned()));
        }
    }
}

/// `Package:` and `Version:` of each stanza.
fn read_status(text: &str, versions: &mut HashMap<String, String>) {
    let mut package = None;
    for line in text.lines() {
        if line.is_empty() {
            package = None;
        } else if let Some(name) = line.strip_prefix("Package: ") {
            package = Some(name.trim().to_owned());
        } else if let (Some(version), Some(name)) = (line.strip_prefix("Version: "), &package) {
            versions.insert(name.clone(), version.trim().to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_text(bytes in prop::collection::vec(any::<u8>(), 0..200), text in "(Package: |Version: |\n|[a-z]){0,40}") {
            let mut found = Vec::new();
            paths_in(&bytes, |l| l.split_once("  ").map(|(_, p)| p), &PathSet::new(&["/a".to_owned()]), "p", &mut found);
            read_status(&text, &mut HashMap::new());
        }
    }
}
