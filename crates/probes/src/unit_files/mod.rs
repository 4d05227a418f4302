//! Unit files of a node or of an image that never booted: what is enabled, what it runs, what pulls it in.
//!
//! Does not query systemd. The states equal those of `systemctl --root=DIR list-unit-files`.

mod names;
mod presets;
mod search;
mod settings;
mod state;
mod syntax;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use coroner_evidence::{Enablement, PullIn, UnitFile, Unseen, probe};
use sha2::{Digest, Sha256};

pub use names::{NameKind, UnitName};

use crate::root::{ReadError, Root};
use crate::tree::{FileKind, Tree, is_absent};
use presets::Presets;
use search::{SearchPath, config_files, pulling_directory, unseen_file};
use state::{MAX_UNIT_FILE, States};

/// More units than any node has; the rest is ignored.
const MAX_UNITS: usize = 20_000;

/// The units of a tree, by name, and what could not be seen of them.
#[derive(Debug, Default)]
pub struct UnitFiles {
    pub units: Vec<UnitFile>,
    pub unseen: Vec<Unseen>,
}

/// Reads all unit files below a root. Packages are not looked up here.
pub fn read(root: &Root) -> Result<UnitFiles, ReadError> {
    Ok(read_tree(&Tree::open(root)?))
}

pub fn read_tree(tree: &Tree) -> UnitFiles {
    let mut unseen = Vec::new();
    let search = SearchPath::read(tree, &mut unseen);
    if search.directories.is_empty() {
        unseen.push(Unseen {
            about: None,
            probe: probe::UNIT_FILES.to_owned(),
            what: "unit files".to_owned(),
            why: "there is no systemd unit directory below this root".to_owned(),
            how_to_see: "pass the root of the image's file system with --root".to_owned(),
        });
    }
    let presets = Presets::read(tree, &mut unseen);
    let states = States { tree, search: &search };
    let pulls = pull_ins(&search);

    let mut names: BTreeSet<&str> = BTreeSet::new();
    for directory in &search.directories {
        for entry in &directory.entries {
            if matches!(entry.kind, FileKind::File | FileKind::Link) && UnitName::of(&entry.name).is_some() {
                names.insert(&entry.name);
            }
        }
    }
    // Instances have no file, only links.
    names.extend(pulls.keys().copied().filter(|n| UnitName::of(n).is_some_and(|u| u.kind() == NameKind::Instance)));
    if names.len() > MAX_UNITS {
        unseen.push(Unseen {
            about: None,
            probe: probe::UNIT_FILES.to_owned(),
            what: format!("units beyond the first {MAX_UNITS}"),
            why: format!("{} units found, more than any real node has", names.len()),
            how_to_see: "inspect the systemd unit directories".to_owned(),
        });
    }
    let mut units: Vec<UnitFile> = Vec::new();
    use Enablement::{Alias, Generated, Static, Transient};
    for name in names.into_iter().take(MAX_UNITS) {
        let mut unit = UnitFile { name: name.to_owned(), ..UnitFile::default() };
        unit.instance_of = UnitName::of(name).filter(|u| u.kind() == NameKind::Instance).and_then(|u| u.template());
        unit.pulled_in_by = pulls.get(name).cloned().unwrap_or_default();
        match states.find(name) {
            Ok(Some(found)) => {
                unit.enablement = states.enablement(name, &found);
                unit.path = Some(found.path.clone());
                if unit.enablement == Alias {
                    unit.alias_of = Some(found.name.clone());
                }
                let install = &found.install;
                for by in [&install.wanted_by, &install.required_by, &install.upheld_by] {
                    unit.install_wanted_by.extend(by.iter().cloned());
                }
            }
            // A .wants link to a unit that is not installed.
            Ok(None) => continue,
            Err(bad) => unit.bad = Some(bad.to_string()),
        }
        if !matches!(unit.enablement, Alias | Static | Generated | Transient) {
            unit.preset = Some(presets.of(name));
        }
        units.push(unit);
    }
    name_aliases(&mut units);
    for unit in &mut units {
        describe(tree, &search, unit, &mut unseen);
    }
    link_triggers(&mut units);
    UnitFiles { units, unseen }
}

/// By the name of the link, which is what systemd goes by; the target is only a hint.
fn pull_ins(search: &SearchPath) -> HashMap<&str, Vec<PullIn>> {
    let mut pulls: HashMap<&str, Vec<PullIn>> = HashMap::new();
    for directory in &search.directories {
        for (name, links) in &directory.pulls {
            let Some((by, how)) = pulling_directory(name) else { continue };
            for link in links {
                let path = format!("{}/{name}/{link}", directory.path);
                pulls.entry(link).or_default().push(PullIn { by: by.to_owned(), how: how.to_owned(), link: path });
            }
        }
    }
    pulls
}

fn name_aliases(units: &mut [UnitFile]) {
    let mut aliases: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for unit in units.iter() {
        if let Some(of) = &unit.alias_of {
            aliases.entry(of.clone()).or_default().push(unit.name.clone());
        }
    }
    for unit in units {
        unit.aliases = aliases.remove(&unit.name).unwrap_or_default();
    }
}

/// Reads the file and its drop-ins. An alias has no settings of its own.
fn describe(tree: &Tree, search: &SearchPath, unit: &mut UnitFile, unseen: &mut Vec<Unseen>) {
    use Enablement::{Alias, Bad, Masked, MaskedRuntime};
    if matches!(unit.enablement, Alias | Bad | Masked | MaskedRuntime) {
        return;
    }
    let Some(path) = unit.path.clone() else { return };
    unit.drop_ins = drop_ins(tree, search, unit, unseen);
    let mut hash = Sha256::new();
    let mut all = Vec::new();
    for file in std::iter::once(&path).chain(&unit.drop_ins) {
        let parsed = tree.read(file, MAX_UNIT_FILE).and_then(|bytes| {
            // The length distinguishes two files from one with the same bytes.
            hash.update((bytes.len() as u64).to_le_bytes());
            hash.update(&bytes);
            syntax::parse(&bytes)
        });
        match parsed {
            Ok(assignments) => all.extend(assignments),
            // A drop-in that is a dangling link has no effect.
            Err(e) if is_absent(&e) => {}
            Err(e) => unseen.push(unseen_file("the unit file", file, &e)),
        }
    }
    unit.content_hash = Some(hash.finalize().iter().map(|b| format!("{b:02x}")).collect());
    settings::apply(unit, &all);
    settings::judge_conditions(&mut unit.conditions, tree);
    if unit.triggers.is_empty() {
        unit.triggers.extend(settings::default_trigger(unit, &all));
    }
}

fn drop_ins(tree: &Tree, search: &SearchPath, unit: &UnitFile, unseen: &mut Vec<Unseen>) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for name in std::iter::once(&unit.name).chain(&unit.aliases) {
        names.extend(UnitName::of(name).map(|n| n.drop_in_names()).unwrap_or_default());
    }
    names.extend(UnitName::of(&unit.name).map(|n| n.unit_type.to_owned()));
    let mut directories: Vec<String> = Vec::new();
    for name in names {
        for directory in search.drop_in_directories(&format!("{name}.d")) {
            if !directories.contains(directory) {
                directories.push(directory.clone());
            }
        }
    }
    config_files(tree, &directories, ".conf", unseen)
}

/// Links services to the timers, sockets and paths that start them.
fn link_triggers(units: &mut [UnitFile]) {
    let mut by_target: HashMap<String, Vec<String>> = HashMap::new();
    for unit in units.iter() {
        for target in &unit.triggers {
            by_target.entry(target.clone()).or_default().push(unit.name.clone());
        }
    }
    for unit in units {
        if let Some(by) = by_target.remove(&unit.name) {
            unit.triggered_by = by;
        }
    }
}

#[cfg(test)]
mod host_tests;
#[cfg(test)]
mod tests;
