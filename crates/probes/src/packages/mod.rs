//! Which package a file belongs to, from the package databases on disk: dpkg, rpm (sqlite, ndb, Berkeley DB), apk, and snaps by
//! the names of their units. Only the requested paths are looked up, and no program is run.

mod apk;
mod dpkg;
mod rpm_bdb;
mod rpm_header;
mod rpm_ndb;
mod rpm_sqlite;

use std::collections::{BTreeMap, HashMap};
use std::io;

use coroner_evidence::{Package, UnitFile, Unseen, probe};

use crate::tree::{FileKind, ResolvedPath, Tree, base_name, is_absent};

/// Databases larger than this are not read.
const MAX_DATABASE: u64 = 1 << 30;

/// The packages that own the files.
#[derive(Debug, Default)]
pub struct Owners {
    pub by_path: HashMap<String, Package>,
    /// Databases that were read: `dpkg`, `rpm` …
    pub databases: Vec<&'static str>,
    pub unseen: Vec<Unseen>,
}

/// The requested paths and their other spellings: distributions with merged /usr still list /lib/… for some packages.
#[derive(Debug, Default)]
struct PathSet {
    /// Each spelling → the requested path.
    paths: HashMap<String, String>,
    /// Their endings: a handful, such as `.service`, that most lines of a database do not have.
    endings: Vec<[u8; 4]>,
}

impl PathSet {
    fn new(paths: &[String]) -> PathSet {
        let mut wanted = PathSet::default();
        for path in paths {
            wanted.paths.insert(path.clone(), path.clone());
            for top in ["/lib", "/lib64", "/bin", "/sbin"] {
                let merged = format!("/usr{top}");
                let other = match (path.strip_prefix(&merged), path.strip_prefix(top)) {
                    (Some(rest), _) if rest.starts_with('/') => format!("{top}{rest}"),
                    (_, Some(rest)) if rest.starts_with('/') => format!("{merged}{rest}"),
                    _ => continue,
                };
                // The requested spelling has priority.
                wanted.paths.entry(other).or_insert_with(|| path.clone());
            }
        }
        for spelling in wanted.paths.keys() {
            if let Some(ending) = spelling.as_bytes().last_chunk()
                && !wanted.endings.contains(ending)
            {
                wanted.endings.push(*ending);
            }
        }
        wanted
    }

    /// A cheap check whether a path can be one of these at all.
    fn may_be(&self, path: &[u8]) -> bool {
        path.last_chunk().is_none_or(|ending| self.endings.contains(ending))
    }

    fn asked(&self, spelling: &str) -> Option<&String> {
        self.paths.get(spelling)
    }
}

/// Finds the owners of these absolute paths.
pub fn find(tree: &Tree, paths: &[String]) -> Owners {
    let wanted = PathSet::new(paths);
    let mut owners = Owners::default();
    type Reader = fn(&Tree, &PathSet, &mut HashMap<String, Package>) -> io::Result<()>;
    let databases: [(&str, &[&str], Reader); 6] = [
        ("dpkg", &["/var/lib/dpkg/status", "/var/lib/dpkg/status.d"], dpkg::find),
        ("rpm", rpm_sqlite::PATHS, rpm_sqlite::find),
        ("rpm", rpm_ndb::PATHS, rpm_ndb::find),
        ("rpm", rpm_bdb::PATHS, rpm_bdb::find),
        ("apk", &[apk::INSTALLED], apk::find),
        ("apk", &[apk::INSTALLED_MERGED], apk::find),
    ];
    for (name, signs, read) in databases {
        let exists = signs.iter().any(|sign| !matches!(tree.find(sign), Err(e) if is_absent(&e)));
        if !exists {
            continue;
        }
        match read(tree, &wanted, &mut owners.by_path) {
            Ok(()) if !owners.databases.contains(&name) => owners.databases.push(name),
            Ok(()) => {}
            Err(e) => owners.unseen.push(unseen(name, &e.to_string())),
        }
    }
    if owners.databases.is_empty() && owners.unseen.is_empty() {
        owners.unseen.push(Unseen {
            about: None,
            probe: probe::PACKAGES.to_owned(),
            what: "which packages the units belong to".to_owned(),
            why: "no dpkg, rpm or apk database found".to_owned(),
            how_to_see: "nothing to do if the image was built without a package manager".to_owned(),
        });
    }
    owners
}

/// Reads each of these databases that exists, once even if several paths lead to it.
fn each_database(tree: &Tree, paths: &[&str], mut read: impl FnMut(&ResolvedPath) -> io::Result<()>) -> io::Result<()> {
    let mut done = Vec::new();
    for path in paths {
        let Ok(place) = tree.find(path) else { continue };
        if place.kind != FileKind::File || done.contains(&place.path) {
            continue;
        }
        if place.bytes > MAX_DATABASE {
            return Err(invalid(format!("{path} is larger than 1 GiB")));
        }
        read(&place).map_err(|e| io::Error::new(e.kind(), format!("{path}: {e}")))?;
        done.push(place.path);
    }
    Ok(())
}

fn unseen(database: &str, why: &str) -> Unseen {
    Unseen {
        about: None,
        probe: probe::PACKAGES.to_owned(),
        what: "which packages the units belong to".to_owned(),
        why: format!("{database} database: {why}"),
        how_to_see: match database {
            "rpm" => "rpm --root DIR -qf FILE",
            "dpkg" => "dpkg --root=DIR -S FILE",
            _ => "run as root",
        }
        .to_owned(),
    }
}

/// Fills in the packages of units and returns what could not be seen.
pub fn name_packages(tree: &Tree, units: &mut [UnitFile]) -> Vec<Unseen> {
    let mut paths: Vec<String> = units.iter().filter_map(|u| u.path.clone()).collect();
    paths.sort_unstable();
    paths.dedup();
    let owners = find(tree, &paths);
    let mut snaps = BTreeMap::new();
    for unit in units {
        let Some(path) = &unit.path else { continue };
        unit.package = owners.by_path.get(path).cloned().or_else(|| snap_of(tree, path, &mut snaps));
    }
    owners.unseen
}

/// snapd generates the units of snaps: `snap.NAME.APP.service`. The revision is used as the version.
fn snap_of(tree: &Tree, path: &str, known: &mut BTreeMap<String, Option<String>>) -> Option<Package> {
    let name = base_name(path).strip_prefix("snap.")?.split('.').next()?.to_owned();
    let version = known.entry(name.clone()).or_insert_with(|| {
        let target = tree.link_target(&format!("/snap/{name}/current")).ok()?;
        Some(format!("revision {}", base_name(&target)))
    });
    Some(Package { version: version.clone(), name, manager: "snap".to_owned() })
}

fn invalid(why: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.into())
}

#[cfg(test)]
mod tests;
