//! The unit search path (systemd.unit(5), "Unit File Load Path").

use std::collections::{BTreeMap, HashMap};
use std::io;

use coroner_evidence::{Unseen, probe};

use crate::tree::{Entry, FileKind, Tree, is_absent};

/// Highest first.
const PATHS: [(&str, Part); 13] = [
    ("/etc/systemd/system.control", Part::Other),
    ("/run/systemd/system.control", Part::Runtime),
    ("/run/systemd/transient", Part::Transient),
    ("/run/systemd/generator.early", Part::Generated),
    ("/etc/systemd/system", Part::Config),
    ("/etc/systemd/system.attached", Part::Other),
    ("/run/systemd/system", Part::Runtime),
    ("/run/systemd/system.attached", Part::Runtime),
    ("/run/systemd/generator", Part::Generated),
    ("/usr/local/lib/systemd/system", Part::Other),
    // Debian and derivatives before merged /usr; elsewhere a link to the next one, or absent.
    ("/lib/systemd/system", Part::Other),
    ("/usr/lib/systemd/system", Part::Other),
    ("/run/systemd/generator.late", Part::Generated),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// For administrators: /etc/systemd/system.
    Config,
    Runtime,
    Generated,
    Transient,
    Other,
}

/// One directory of the search path.
#[derive(Debug)]
pub struct SearchDirectory {
    /// With links resolved.
    pub path: String,
    pub part: Part,
    pub entries: Vec<Entry>,
    /// Links in it → their targets.
    pub links: BTreeMap<String, String>,
    /// `multi-user.target.wants` → links in it.
    pub pulls: BTreeMap<String, Vec<String>>,
}

#[derive(Debug)]
pub struct SearchPath {
    pub directories: Vec<SearchDirectory>,
    /// Name → (index of the directory, kind) for each place where it is found, highest first.
    found: HashMap<String, Vec<(usize, FileKind)>>,
    /// Drop-in directories by name: `ecs.service.d` → directories, highest first.
    drop_ins: HashMap<String, Vec<String>>,
}

impl SearchPath {
    pub fn read(tree: &Tree, unseen: &mut Vec<Unseen>) -> SearchPath {
        let mut directories: Vec<SearchDirectory> = Vec::new();
        for (path, part) in PATHS {
            match directory(tree, path, part, unseen) {
                // Several paths may be links to one directory: it counts once, with its highest priority.
                Ok(directory) if directories.iter().any(|d| d.path == directory.path) => {}
                Ok(directory) => directories.push(directory),
                Err(e) if is_absent(&e) => {}
                Err(e) => unseen.push(unseen_file("units in the directory", path, &e)),
            }
        }
        let mut found: HashMap<String, Vec<(usize, FileKind)>> = HashMap::new();
        let mut drop_ins: HashMap<String, Vec<String>> = HashMap::new();
        for (i, directory) in directories.iter().enumerate() {
            for entry in &directory.entries {
                if entry.name.ends_with(".d") && matches!(entry.kind, FileKind::Directory | FileKind::Link) {
                    let path = format!("{}/{}", directory.path, entry.name);
                    drop_ins.entry(entry.name.clone()).or_default().push(path);
                } else {
                    found.entry(entry.name.clone()).or_default().push((i, entry.kind));
                }
            }
        }
        SearchPath { directories, found, drop_ins }
    }

    /// Where this unit is found, highest first.
    pub fn places(&self, name: &str) -> impl Iterator<Item = (&SearchDirectory, FileKind)> {
        self.found.get(name).into_iter().flatten().map(|(i, kind)| (&self.directories[*i], *kind))
    }

    /// Whether a path is inside one of the directories.
    pub fn covers(&self, path: &str) -> bool {
        self.directories.iter().any(|d| is_below(path, &d.path)) || PATHS.iter().any(|(p, _)| is_below(path, p))
    }

    pub fn drop_in_directories(&self, name: &str) -> &[String] {
        self.drop_ins.get(name).map_or(&[], Vec::as_slice)
    }
}

pub fn is_below(path: &str, directory: &str) -> bool {
    path.strip_prefix(directory).is_some_and(|rest| rest.starts_with('/'))
}

/// Splits `NAME.wants`, `NAME.requires` or `NAME.upholds`.
pub fn pulling_directory(name: &str) -> Option<(&str, &str)> {
    let (by, how) = name.rsplit_once('.')?;
    matches!(how, "wants" | "requires" | "upholds").then_some((by, how))
}

fn directory(tree: &Tree, path: &str, part: Part, unseen: &mut Vec<Unseen>) -> io::Result<SearchDirectory> {
    let path = tree.find(path)?.path;
    let entries = tree.list(&path)?;
    let mut links = BTreeMap::new();
    let mut pulls = BTreeMap::new();
    for entry in &entries {
        let below = format!("{path}/{}", entry.name);
        match entry.kind {
            FileKind::Link => {
                if let Ok(target) = tree.link_target(&below) {
                    links.insert(entry.name.clone(), target);
                }
            }
            FileKind::Directory if pulling_directory(&entry.name).is_some() => {
                let names = match tree.list(&below) {
                    Ok(names) => names,
                    Err(e) => {
                        unseen.push(unseen_file("units pulled in by the directory", &below, &e));
                        continue;
                    }
                };
                let names = names.into_iter().filter(|e| e.kind == FileKind::Link).map(|e| e.name).collect();
                pulls.insert(entry.name.clone(), names);
            }
            _ => {}
        }
    }
    Ok(SearchDirectory { path, part, entries, links, pulls })
}

/// Files with this suffix in several directories, ordered by name like systemd's conf_files_list_strv; of files with the same name
/// only that in the first directory. A link to /dev/null or an empty file masks the others and is not listed.
pub fn config_files(tree: &Tree, directories: &[String], ending: &str, unseen: &mut Vec<Unseen>) -> Vec<String> {
    let mut files: BTreeMap<String, Option<String>> = BTreeMap::new();
    for directory in directories {
        let entries = match tree.list(directory) {
            Ok(entries) => entries,
            Err(e) if is_absent(&e) => continue,
            Err(e) => {
                unseen.push(unseen_file("files in the directory", directory, &e));
                continue;
            }
        };
        for entry in entries {
            if !entry.name.ends_with(ending) || files.contains_key(&entry.name) {
                continue;
            }
            let path = format!("{directory}/{}", entry.name);
            let kept = match tree.find(&path) {
                Ok(place) if place.kind == FileKind::File && place.bytes > 0 => Some(place.path),
                Ok(place) if place.kind == FileKind::Directory => continue,
                Ok(_) => None,
                // In an image /dev may be empty, so the link target decides.
                Err(_) if tree.link_target(&path).is_ok_and(|t| t == "/dev/null") => None,
                // The caller reports it when reading fails.
                Err(_) => Some(path),
            };
            files.insert(entry.name, kept);
        }
    }
    files.into_values().flatten().collect()
}

pub fn unseen_file(what: &str, path: &str, error: &io::Error) -> Unseen {
    let denied = error.kind() == io::ErrorKind::PermissionDenied;
    Unseen {
        about: None,
        probe: probe::UNIT_FILES.to_owned(),
        what: format!("{what} {path}"),
        why: format!("{path}: {error}"),
        how_to_see: if denied { "run as root".to_owned() } else { "inspect the file".to_owned() },
    }
}
