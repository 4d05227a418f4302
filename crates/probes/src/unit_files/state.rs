//! Whether a unit is enabled, from files alone, with the same result as `systemctl is-enabled` (systemd's src/shared/install.c,
//! unit_file_lookup_state).

use std::io;

use coroner_evidence::Enablement;

use super::names::{NameKind, UnitName, may_alias};
use super::search::{Part, SearchDirectory, SearchPath, config_files, is_below};
use super::syntax::{self, Assignment};
use crate::tree::{FileKind, Tree, base_name, is_absent, split};

/// The most links followed from unit to unit (UNIT_FILE_FOLLOW_SYMLINK_MAX).
const MAX_FOLLOWED: usize = 64;

/// A real unit file has a few KiB.
pub const MAX_UNIT_FILE: u64 = 4 << 20;

/// The [Install] section of a unit, with its drop-ins.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Install {
    pub aliases: Vec<String>,
    pub wanted_by: Vec<String>,
    pub required_by: Vec<String>,
    pub upheld_by: Vec<String>,
    pub also: Vec<String>,
    pub default_instance: Option<String>,
}

/// A unit that was found, with all links followed.
#[derive(Debug, Clone)]
pub struct FoundUnitFile {
    /// Its own name: that of the target if an alias was requested.
    pub name: String,
    pub path: String,
    pub masked: bool,
    pub install: Install,
}

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Bad(pub String);

impl From<io::Error> for Bad {
    fn from(e: io::Error) -> Bad {
        Bad(e.to_string())
    }
}

/// What is found at a path.
enum At {
    Masked,
    File,
    /// A link into the search path: an alias.
    Alias(String),
    /// A link to a file outside it.
    Linked(String),
}

pub struct States<'a> {
    pub tree: &'a Tree,
    pub search: &'a SearchPath,
}

impl States<'_> {
    /// Finds the unit file for a name. `Ok(None)` if there is none.
    pub fn find(&self, asked: &str) -> Result<Option<FoundUnitFile>, Bad> {
        let mut name = asked.to_owned();
        let Some((mut path, mut at)) = self.search(&name)? else { return Ok(None) };
        for _ in 0..MAX_FOLLOWED {
            match at {
                At::Masked => return Ok(Some(FoundUnitFile { name, path, masked: true, install: Install::default() })),
                At::File => {
                    let install = self.install(&name, &path)?;
                    return Ok(Some(FoundUnitFile { name, path, masked: false, install }));
                }
                At::Linked(target) => {
                    at = self.at(&name, &target)?;
                    path = target;
                }
                At::Alias(target) => {
                    let target_name = base_name(&target).to_owned();
                    let next = match (UnitName::of(&name), UnitName::of(&target_name)) {
                        (Some(own), Some(theirs))
                            if own.kind() == NameKind::Instance && theirs.kind() == NameKind::Template =>
                        {
                            theirs.with_instance(own.instance.unwrap_or_default())
                        }
                        _ => target_name.clone(),
                    };
                    if next == name {
                        // An instance's link to its own template.
                        at = self.at(&name, &target)?;
                        path = target;
                        continue;
                    }
                    name = next;
                    match self.search(&name)? {
                        Some(found) => (path, at) = found,
                        None => return Err(Bad(format!("points to {name}, which does not exist"))),
                    }
                }
            }
        }
        Err(Bad(format!("more than {MAX_FOLLOWED} links, possibly a loop")))
    }

    fn search(&self, name: &str) -> Result<Option<(String, At)>, Bad> {
        let unit = UnitName::of(name).ok_or_else(|| Bad(format!("{name} is not a valid unit name")))?;
        let template = (unit.kind() == NameKind::Instance).then(|| unit.template()).flatten();
        for candidate in std::iter::once(name).chain(template.as_deref()) {
            for (directory, _) in self.search.places(candidate) {
                let path = format!("{}/{candidate}", directory.path);
                match self.at(name, &path) {
                    Ok(at) => return Ok(Some((path, at))),
                    Err(e) if is_absent(&e) || e.kind() == io::ErrorKind::PermissionDenied => {}
                    Err(e) => return Err(Bad(format!("{path}: {e}"))),
                }
            }
        }
        Ok(None)
    }

    fn at(&self, name: &str, path: &str) -> io::Result<At> {
        let invalid = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
        if let Some(unit) = UnitName::of(name)
            && unit.kind() != NameKind::Plain
            && !unit.may_be_template()
        {
            return Err(invalid(format!("a {} cannot be a template", unit.unit_type)));
        }
        let place = self.tree.find_link(path)?;
        match place.kind {
            FileKind::NullDevice => return Ok(At::Masked),
            FileKind::File if place.bytes == 0 => return Ok(At::Masked),
            FileKind::File => return Ok(At::File),
            FileKind::Link => {}
            FileKind::Directory | FileKind::Other => return Err(invalid("is neither a file nor a link".to_owned())),
        }
        let target = self.tree.link_target(path)?;
        let target = if target.starts_with('/') { target } else { format!("{}/{target}", split(path).0) };
        let target = self.tree.simplified(&target)?;
        let inside = self.search.covers(&target);
        if inside {
            let (link, aim) = (base_name(path), base_name(&target));
            let valid = UnitName::of(link).zip(UnitName::of(aim)).is_some_and(|(l, t)| may_alias(&l, &t));
            if !valid {
                return Err(invalid(format!("a link named {link} cannot be an alias of {aim}")));
            }
        }
        // In an image /dev may be empty, so the path decides.
        let null_or_empty = target == "/dev/null"
            || match self.tree.find(&target) {
                Ok(place) => place.kind == FileKind::NullDevice || (place.kind == FileKind::File && place.bytes == 0),
                Err(e) if is_absent(&e) => false,
                Err(e) => return Err(e),
            };
        Ok(match (null_or_empty, inside) {
            (true, _) => At::Masked,
            (false, true) => At::Alias(target),
            (false, false) => At::Linked(target),
        })
    }

    /// [Install] of the file at this path and of the drop-ins for the exact name. Drop-ins for prefixes and for the type do not
    /// count here, though they do when the unit runs.
    fn install(&self, name: &str, path: &str) -> Result<Install, Bad> {
        let mut install = Install::default();
        let bytes = self.tree.read(path, MAX_UNIT_FILE)?;
        install.apply(name, &syntax::parse(&bytes)?);
        let template = UnitName::of(name).filter(|u| u.kind() == NameKind::Instance).and_then(|u| u.template());
        let mut directories = self.search.drop_in_directories(&format!("{name}.d")).to_vec();
        if let Some(template) = template {
            directories.extend_from_slice(self.search.drop_in_directories(&format!("{template}.d")));
        }
        for path in config_files(self.tree, &directories, ".conf", &mut Vec::new()) {
            let bytes = self.tree.read(&path, MAX_UNIT_FILE)?;
            install.apply(name, &syntax::parse(&bytes)?);
        }
        Ok(install)
    }

    /// The state that `systemctl is-enabled` would print.
    pub fn enablement(&self, asked: &str, found: &FoundUnitFile) -> Enablement {
        let part = |path: &str| {
            let directory = split(path).0;
            self.search.directories.iter().find(|d| d.path == directory).map(|d| d.part)
        };
        if found.masked {
            let runtime = is_below(&found.path, "/run")
                || matches!(part(&found.path), Some(Part::Runtime | Part::Generated | Part::Transient));
            return if runtime { Enablement::MaskedRuntime } else { Enablement::Masked };
        }
        let unit = UnitName::of(&found.name);
        let is_instance = unit.is_some_and(|u| u.kind() == NameKind::Instance);
        if base_name(&found.path) != asked && !is_instance {
            return Enablement::Alias;
        }
        match part(&found.path) {
            Some(Part::Generated) => return Enablement::Generated,
            Some(Part::Transient) => return Enablement::Transient,
            _ => {}
        }
        if let Some(enablement) = self.by_links(found, true) {
            return enablement;
        }
        if self.by_links(found, false).is_some() {
            return Enablement::Indirect;
        }
        let install = &found.install;
        let rules = [&install.aliases, &install.wanted_by, &install.required_by, &install.upheld_by];
        if rules.iter().any(|r| !r.is_empty()) {
            Enablement::Disabled
        } else if !install.also.is_empty() {
            Enablement::Indirect
        } else {
            Enablement::Static
        }
    }

    /// `known_names`: count only links with a name that `systemctl enable` would create.
    fn by_links(&self, found: &FoundUnitFile, known_names: bool) -> Option<Enablement> {
        let mut below_own_file = false;
        let (mut in_runtime, mut anywhere) = (false, false);
        let (mut linked, mut linked_runtime) = (false, false);
        for directory in &self.search.directories {
            let runtime = is_below(&directory.path, "/run");
            match links_in(directory, found, known_names, below_own_file) {
                Links::Enabling if directory.part == Part::Config => return Some(Enablement::Enabled),
                Links::Enabling if runtime => in_runtime = true,
                Links::Enabling => anywhere = true,
                Links::SameName if directory.part == Part::Config => linked = true,
                Links::SameName => linked_runtime |= runtime,
                Links::None => {}
            }
            below_own_file |= is_below(&found.path, &directory.path);
        }
        let is_instance = UnitName::of(&found.name).is_some_and(|u| u.kind() == NameKind::Instance);
        if in_runtime {
            Some(Enablement::EnabledRuntime)
        } else if anywhere && is_instance {
            Some(Enablement::Static)
        } else if linked {
            Some(Enablement::Linked)
        } else if linked_runtime {
            Some(Enablement::LinkedRuntime)
        } else {
            None
        }
    }
}

enum Links {
    Enabling,
    SameName,
    None,
}

fn links_in(directory: &SearchDirectory, found: &FoundUnitFile, known_names: bool, below_own_file: bool) -> Links {
    let counts = |link: &str| !known_names || is_known_name(found, link);
    for links in directory.pulls.values() {
        let of_unit = |link: &&String| {
            **link == found.name
                || UnitName::of(link).and_then(|u| u.template()).is_some_and(|template| template == found.name)
        };
        if links.iter().filter(of_unit).any(|link| counts(link)) {
            return Links::Enabling;
        }
    }
    let mut same_name = false;
    for (link, target) in &directory.links {
        let by_target = base_name(target) == found.name;
        let by_name = !below_own_file && *link == found.name;
        if by_target && by_name {
            same_name = true;
        } else if (by_target || by_name) && counts(link) {
            return Links::Enabling;
        }
    }
    if same_name { Links::SameName } else { Links::None }
}

fn is_known_name(found: &FoundUnitFile, link: &str) -> bool {
    let of_default_instance = || {
        let unit = UnitName::of(&found.name).filter(|u| u.kind() == NameKind::Template)?;
        Some(unit.with_instance(found.install.default_instance.as_deref()?) == link)
    };
    link == found.name
        || found.install.aliases.iter().any(|alias| alias == link)
        || of_default_instance().unwrap_or(false)
}

impl Install {
    pub fn apply(&mut self, name: &str, assignments: &[Assignment]) {
        let unit = UnitName::of(name);
        for Assignment { section, key, value } in assignments {
            if section != "Install" {
                continue;
            }
            let list = match key.as_str() {
                "Alias" if unit.is_some_and(|u| u.may_be_alias()) => &mut self.aliases,
                "WantedBy" => &mut self.wanted_by,
                "RequiredBy" => &mut self.required_by,
                "UpheldBy" => &mut self.upheld_by,
                "Also" => {
                    self.also.extend(syntax::words(value));
                    continue;
                }
                "DefaultInstance" => {
                    if unit.is_some_and(|u| u.kind() == NameKind::Template) {
                        self.default_instance = (!value.is_empty()).then(|| value.clone());
                    }
                    continue;
                }
                _ => continue,
            };
            if value.is_empty() {
                list.clear();
            }
            list.extend(syntax::words(value));
        }
    }
}
