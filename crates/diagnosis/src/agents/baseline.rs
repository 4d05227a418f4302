//! The units of a good node or image, to tell later what is new, gone or changed.

use coroner_evidence::{Enablement, Preset, UnitFile, Wall};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

pub const SCHEMA: &str = "coroner.baseline/1";

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Baseline {
    pub schema: String,
    /// What it was taken from: PRETTY_NAME of os-release.
    pub os: Option<String>,
    #[serde(rename = "made_real_ns", serialize_with = "Wall::as_number")]
    pub made: Option<Wall>,
    pub units: BTreeMap<String, BaselineUnit>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BaselineUnit {
    pub enablement: Enablement,
    pub preset: Option<Preset>,
    pub path: Option<String>,
    pub package: Option<String>,
    pub version: Option<String>,
    /// SHA-256 of the unit's file and drop-ins; `None` if it cannot be compared, because a part lasts only until the next boot.
    pub content: Option<String>,
}

/// Why a baseline cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BaselineError(String);

impl fmt::Display for BaselineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BaselineError {}

impl Baseline {
    pub fn of(units: &[UnitFile], os: Option<String>, made: Option<Wall>) -> Baseline {
        let units = units.iter().filter(|u| is_lasting(u)).map(|u| (u.name.clone(), BaselineUnit::of(u))).collect();
        Baseline { schema: SCHEMA.to_owned(), os, made, units }
    }

    pub fn to_json(&self) -> String {
        // Cannot fail: text keys and plain values.
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }

    pub fn parse(text: &str) -> Result<Baseline, BaselineError> {
        #[derive(Deserialize)]
        struct Head {
            schema: String,
        }
        let head: Head = serde_json::from_str(text).map_err(|e| BaselineError(format!("not a baseline: {e}")))?;
        if head.schema != SCHEMA {
            return Err(BaselineError(format!("schema is \"{}\", expected \"{SCHEMA}\"", head.schema)));
        }
        serde_json::from_str(text).map_err(|e| BaselineError(format!("damaged baseline: {e}")))
    }
}

/// What generators and programs make at run time is not part of the image. A mask in /run is kept because it hides what is.
fn is_lasting(unit: &UnitFile) -> bool {
    let made_now = matches!(unit.enablement, Enablement::Generated | Enablement::Transient)
        || unit.path.as_deref().is_some_and(|path| path.starts_with("/run/"));
    !made_now || unit.enablement == Enablement::MaskedRuntime
}

impl BaselineUnit {
    /// A mask until the next boot hides what the unit is.
    fn is_hidden(&self) -> bool {
        self.enablement == Enablement::MaskedRuntime
    }

    fn of(unit: &UnitFile) -> BaselineUnit {
        BaselineUnit {
            enablement: unit.enablement,
            preset: unit.preset,
            path: unit.path.clone(),
            package: unit.package.as_ref().map(|p| p.name.clone()),
            version: unit.package.as_ref().and_then(|p| p.version.clone()),
            // The hash covers drop-ins; those in /run are not from the image.
            content: unit.content_hash.clone().filter(|_| !unit.drop_ins.iter().any(|d| d.starts_with("/run/"))),
        }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Drift {
    pub new: Vec<DriftedUnit>,
    pub gone: Vec<DriftedUnit>,
    pub changed: Vec<ChangedUnit>,
}

impl Drift {
    pub fn is_empty(&self) -> bool {
        self.new.is_empty() && self.gone.is_empty() && self.changed.is_empty()
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DriftedUnit {
    pub name: String,
    #[serde(flatten)]
    pub unit: BaselineUnit,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ChangedUnit {
    pub name: String,
    pub changes: Vec<Change>,
}

/// What of a unit is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Aspect {
    Enablement,
    Preset,
    Path,
    Package,
    Version,
    /// A hash of its files.
    Content,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Change {
    pub what: Aspect,
    pub was: Option<String>,
    pub is: Option<String>,
}

impl Change {
    /// `version 1 → 2`; `None` for the content: a hash means nothing to people.
    pub fn words(&self) -> Option<String> {
        let what = match self.what {
            Aspect::Enablement => "enablement",
            Aspect::Preset => "preset",
            Aspect::Path => "path",
            Aspect::Package => "package",
            Aspect::Version => "version",
            Aspect::Content => return None,
        };
        let or_none = |value: &'_ Option<String>| value.clone().unwrap_or_else(|| "none".to_owned());
        Some(format!("{what} {} → {}", or_none(&self.was), or_none(&self.is)))
    }
}

/// What is new, gone or changed, each by name.
pub fn compare(baseline: &Baseline, now: &Baseline) -> Drift {
    let listed =
        |units: &BTreeMap<String, BaselineUnit>, others: &BTreeMap<String, BaselineUnit>| -> Vec<DriftedUnit> {
            let missing = units.iter().filter(|(name, unit)| !others.contains_key(*name) && !unit.is_hidden());
            missing.map(|(name, unit)| DriftedUnit { name: name.clone(), unit: unit.clone() }).collect()
        };
    let mut changed = Vec::new();
    for (name, is) in &now.units {
        let Some(was) = baseline.units.get(name) else { continue };
        let changes = changes(was, is);
        if !changes.is_empty() {
            changed.push(ChangedUnit { name: name.clone(), changes });
        }
    }
    Drift { new: listed(&now.units, &baseline.units), gone: listed(&baseline.units, &now.units), changed }
}

fn changes(was: &BaselineUnit, is: &BaselineUnit) -> Vec<Change> {
    if was.is_hidden() || is.is_hidden() {
        return Vec::new();
    }
    // Enabled or linked until the next boot says nothing about what lasts.
    let for_now = |u: &BaselineUnit| matches!(u.enablement, Enablement::EnabledRuntime | Enablement::LinkedRuntime);
    let compared = !for_now(was) && !for_now(is);
    let enablement = |u: &BaselineUnit| compared.then(|| u.enablement.as_str().to_owned());
    let preset = |u: &BaselineUnit| u.preset.map(|p| p.as_str().to_owned());
    let both_read = was.content.is_some() && is.content.is_some();
    let content = |u: &BaselineUnit| u.content.clone().filter(|_| both_read);
    [
        (Aspect::Enablement, enablement(was), enablement(is)),
        (Aspect::Preset, preset(was), preset(is)),
        (Aspect::Path, was.path.clone(), is.path.clone()),
        (Aspect::Package, was.package.clone(), is.package.clone()),
        (Aspect::Version, was.version.clone(), is.version.clone()),
        (Aspect::Content, content(was), content(is)),
    ]
    .into_iter()
    .filter(|(_, was, is)| was != is)
    .map(|(what, was, is)| Change { what, was, is })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use coroner_evidence::Package;
    use proptest::prelude::*;

    fn unit(name: &str, enablement: Enablement, version: &str, content: &str) -> UnitFile {
        UnitFile {
            name: name.to_owned(),
            enablement,
            path: Some(format!("/usr/lib/systemd/system/{name}")),
            package: Some(Package { name: "p".into(), version: Some(version.into()), manager: "dpkg".into() }),
            content_hash: Some(content.to_owned()),
            ..UnitFile::default()
        }
    }

    #[test]
    fn what_is_new_gone_and_changed() {
        let good = [
            unit("a.service", Enablement::Enabled, "1", "x"),
            unit("b.service", Enablement::Disabled, "1", "x"),
            unit("c.service", Enablement::Static, "1", "x"),
        ];
        let now = [
            unit("a.service", Enablement::Enabled, "1", "x"),
            unit("b.service", Enablement::Enabled, "2", "y"),
            unit("ecs.service", Enablement::Enabled, "1", "x"),
            unit("run-1.service", Enablement::Transient, "1", "x"),
        ];
        let stored = Baseline::of(&good, Some("Debian".into()), Some(Wall(1))).to_json();
        let good = Baseline::parse(&stored).unwrap();
        let drift = compare(&good, &Baseline::of(&now, None, None));
        assert_eq!(drift.new.iter().map(|u| u.name.as_str()).collect::<Vec<_>>(), ["ecs.service"]);
        assert_eq!(drift.gone.iter().map(|u| u.name.as_str()).collect::<Vec<_>>(), ["c.service"]);
        assert_eq!(drift.changed.len(), 1);
        let what: Vec<_> = drift.changed[0].changes.iter().map(|c| (c.what, c.is.as_deref().unwrap())).collect();
        assert_eq!(what, [(Aspect::Enablement, "enabled"), (Aspect::Version, "2"), (Aspect::Content, "y")]);
        assert!(compare(&good, &good).is_empty());
    }

    #[test]
    fn a_running_node_matches_its_image() {
        let image = [
            unit("a.service", Enablement::Enabled, "1", "x"),
            unit("b.service", Enablement::Disabled, "1", "x"),
            unit("c.service", Enablement::Static, "1", "x"),
            unit("getty@tty1.service", Enablement::Enabled, "1", "x"),
        ];
        let in_run = |name: &str, enablement| UnitFile {
            path: Some(format!("/run/systemd/system/{name}")),
            ..unit(name, enablement, "1", "z")
        };
        let mut dropped_in = unit("c.service", Enablement::Static, "1", "with the drop-in");
        dropped_in.drop_ins = vec!["/run/systemd/system/c.service.d/10-memory.conf".into()];
        let node = [
            in_run("a.service", Enablement::MaskedRuntime),
            unit("b.service", Enablement::EnabledRuntime, "1", "x"),
            dropped_in,
            unit("getty@tty1.service", Enablement::Enabled, "1", "x"),
            in_run("netplan-wpa.service", Enablement::Static),
            in_run("nothing.service", Enablement::MaskedRuntime),
            unit("sysv.service", Enablement::Generated, "1", "x"),
            unit("session-1.scope", Enablement::Transient, "1", "x"),
        ];
        let (image, node) = (Baseline::of(&image, None, None), Baseline::of(&node, None, None));
        assert_eq!(compare(&image, &node), Drift::default());
        assert_eq!(compare(&node, &image), Drift::default());
        // An instance started by a link belongs to the image; without the link it is gone.
        let mut less = image.clone();
        less.units.remove("getty@tty1.service");
        assert_eq!(compare(&image, &less).gone[0].name, "getty@tty1.service");
    }

    #[test]
    fn other_files_are_refused() {
        let error = |text: &str| Baseline::parse(text).unwrap_err().to_string();
        assert!(error("{}").contains("not a baseline"));
        assert!(error(r#"{"schema": "coroner.baseline/7", "units": 3}"#).contains("expected \"coroner.baseline/1\""));
        assert!(error(r#"{"schema": "coroner.baseline/1", "units": 3}"#).contains("damaged"));
    }

    proptest! {
        #[test]
        fn what_is_stored_comes_back(names in prop::collection::btree_set("[a-z]{1,8}\\.service", 0..8), state in 0usize..13) {
            let units: Vec<UnitFile> = names.iter().map(|n| unit(n, Enablement::ALL[state], "1", "x")).collect();
            let baseline = Baseline::of(&units, None, None);
            prop_assert_eq!(Baseline::parse(&baseline.to_json()).unwrap(), baseline);
        }

        #[test]
        fn any_text(text in "[{}\":a-z0-9\\[\\], ]{0,80}") {
            let _ = Baseline::parse(&text);
        }
    }
}
