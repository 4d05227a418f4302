//! Where units are looked for, and in which order (systemd.unit(5), "Unit File Load Path").

use std::collections::{BTreeMap, HashMap};
use std::io;

use coroner_evidence::{Unseen, probe};

use crate::tree::{Entry, Kind, Tree, is_absent};

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
    // Debian and its kin before they merged /usr; elsewhere a link to the next one, or absent.
    ("/lib/systemd/system", Part::Other),
    ("/usr/lib/systemd/system", Part::Other),
    ("/run/systemd/generator.late", Part::Generated),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// What administrators change: /etc/systemd/system.
    Config,
    Runtime,
    Generated,
    Transient,
    Other,
}

/// One directory of the search path.
#[derive(Debug)]
pub struct SearchDirectory {
    /// Without links.
    pub path: String,
    pub part: Part,
    pub entries: Vec<Entry>,
    /// Names of links in it → where they point.
    pub links: BTreeMap<String, String>,
    /// `multi-user.target.wants` → links in it.
    pub pulls: BTreeMap<String, Vec<String>>,
}

#[derive(Debug)]
pub struct SearchPath {
    pub directories: Vec<SearchDirectory>,
    /// Name → (index of the directory, kind) for each place it is found at, highest first.
    found: HashMap<String, Vec<(usize, Kind)>>,
    /// Drop-in directories by name: `ecs.service.d` → directories, highest first.
    drop_ins: HashMap<String, Vec<String>>,
}

impl SearchPath {
    pub fn read(tree: &Tree, unseen: &mut Vec<Unseen>) -> SearchPath {
        let mut directories: Vec<SearchDirectory> = Vec::new();
        for (path, part) in PATHS {
            match directory(tree, path, part, unseen) {
                // Several of the paths may be links to one directory: it counts once, at its highest place.
                Ok(directory) if directories.iter().any(|d| d.path == directory.path) => {}
                Ok(directory) => directories.push(directory),
                Err(e) if is_absent(&e) => {}
                Err(e) => unseen.push(unseen_file("units of a directory", path, &e)),
            }
        }
        let mut found: HashMap<String, Vec<(usize, Kind)>> = HashMap::new();
        let mut drop_ins: HashMap<String, Vec<String>> = HashMap::new();
        for (i, directory) in directories.iter().enumerate() {
            for entry in &directory.entries {
                if entry.name.ends_with(".d") && matches!(entry.kind, Kind::Directory | Kind::Link) {
                    let path = format!("{}/{}", directory.path, entry.name);
                    drop_ins.entry(entry.name.clone()).or_default().push(path);
                } else {
                    found.entry(entry.name.clone()).or_default().push((i, entry.kind));
                }
            }
        }
        SearchPath { directories, found, drop_ins }
    }

    /// Where a unit of this name is described, highest first.
    pub fn places(&self, name: &str) -> impl Iterator<Item = (&SearchDirectory, Kind)> {
        self.found.get(name).into_iter().flatten().map(|(i, kind)| (&self.directories[*i], *kind))
    }

    /// Whether a path lies in or below one of the directories.
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

/// `wants`, `requires` or `upholds` at the end of a directory's name, and what stands before.
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
            Kind::Link => {
                if let Ok(target) = tree.link_target(&below) {
                    links.insert(entry.name.clone(), target);
                }
            }
            Kind::Directory if pulling_directory(&entry.name).is_some() => {
                let names = match tree.list(&below) {
                    Ok(names) => names,
                    Err(e) => {
                        unseen.push(unseen_file("what a directory pulls in", &below, &e));
                        continue;
                    }
                };
                let names = names.into_iter().filter(|e| e.kind == Kind::Link).map(|e| e.name).collect();
                pulls.insert(entry.name.clone(), names);
            }
            _ => {}
        }
    }
    Ok(SearchDirectory { path, part, entries, links, pulls })
}

/// Files with this ending in several directories, as systemd's conf_files_list_strv orders them: by name, and of those with one
/// name only that in the first directory. A link to /dev/null or an empty file hides the others and is not listed.
pub fn config_files(tree: &Tree, directories: &[String], ending: &str, unseen: &mut Vec<Unseen>) -> Vec<String> {
    let mut files: BTreeMap<String, Option<String>> = BTreeMap::new();
    for directory in directories {
        let entries = match tree.list(directory) {
            Ok(entries) => entries,
            Err(e) if is_absent(&e) => continue,
            Err(e) => {
                unseen.push(unseen_file("files of a directory", directory, &e));
                continue;
            }
        };
        for entry in entries {
            if !entry.name.ends_with(ending) || files.contains_key(&entry.name) {
                continue;
            }
            let path = format!("{directory}/{}", entry.name);
            let kept = match tree.find(&path) {
                Ok(place) if place.kind == Kind::File && place.bytes > 0 => Some(place.path),
                Ok(place) if place.kind == Kind::Directory => continue,
                Ok(_) => None,
                // In an image /dev may be empty: the link alone says what is meant.
                Err(_) if tree.link_target(&path).is_ok_and(|t| t == "/dev/null") => None,
                // What cannot be reached is the reader's to tell.
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
        what: format!("{what}: {path}"),
        why: format!("{path}: {error}"),
        how_to_see: if denied { "run as root".to_owned() } else { "look at the file itself".to_owned() },
    }
}
