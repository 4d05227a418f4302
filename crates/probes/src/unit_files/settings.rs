//! What a unit does when it runs: its file with all drop-ins.

use coroner_evidence::{Condition, UnitFile};

use super::names::UnitName;
use super::syntax::{Assignment, is_true, time_span_us, words};
use crate::tree::{Kind, Tree, is_absent};

/// Lists are cut here: no real unit has more of one thing.
const MAX_LIST: usize = 200;

/// Puts what the assignments say into the unit, in their order: later ones win, an empty one empties a list.
pub fn apply(unit: &mut UnitFile, assignments: &[Assignment]) {
    for Assignment { section, key, value } in assignments {
        match (section.as_str(), key.as_str()) {
            ("Unit", "Description") => unit.description = some(value),
            ("Service", "Type") => unit.service_type = some(value),
            ("Service", "ExecStart") => extend(&mut unit.exec_start, value, |v| vec![v.to_owned()]),
            ("Service", "Restart") => unit.restart = some(value),
            ("Service", "RestartSec") => unit.restart_delay_us = time_span_us(value),
            // Before systemd 230 they stood in [Service]; there they are still read.
            ("Unit", "StartLimitIntervalSec" | "StartLimitInterval") | ("Service", "StartLimitInterval") => {
                unit.start_limit_interval_us = time_span_us(value);
            }
            ("Unit" | "Service", "StartLimitBurst") => unit.start_limit_burst = value.parse().ok(),
            ("Service", "EnvironmentFile") => extend(&mut unit.environment_files, value, |v| vec![v.to_owned()]),
            ("Unit", key) if key.starts_with("Condition") || key.starts_with("Assert") => {
                // An empty value empties the list of all conditions, or of all assertions.
                let family = if key.starts_with("Condition") { "Condition" } else { "Assert" };
                if value.is_empty() {
                    unit.conditions.retain(|c| !c.key.starts_with(family));
                } else if unit.conditions.len() < MAX_LIST {
                    unit.conditions.push(Condition { key: key.to_owned(), value: value.clone(), holds: None });
                }
            }
            ("Timer" | "Path", "Unit") | ("Socket", "Service") => unit.triggers = some(value).into_iter().collect(),
            _ => {}
        }
    }
    unit.install_wanted_by.truncate(MAX_LIST);
}

fn some(value: &str) -> Option<String> {
    (!value.is_empty()).then(|| value.to_owned())
}

fn extend(list: &mut Vec<String>, value: &str, split: impl Fn(&str) -> Vec<String>) {
    if value.is_empty() {
        list.clear();
    } else if list.len() < MAX_LIST {
        list.extend(split(value));
    }
}

/// What a timer, socket or path starts if it does not say so itself: the service of its name.
pub fn default_trigger(unit: &UnitFile, assignments: &[Assignment]) -> Option<String> {
    let name = UnitName::of(&unit.name)?;
    let accepts =
        assignments.iter().rfind(|a| a.section == "Socket" && a.key == "Accept").is_some_and(|a| is_true(&a.value));
    let stem = unit.name.strip_suffix(name.unit_type)?;
    match name.unit_type {
        "timer" | "path" => Some(format!("{stem}service")),
        // One instance for each connection.
        "socket" if accepts => Some(format!("{}@.service", name.prefix)),
        "socket" => Some(format!("{stem}service")),
        _ => None,
    }
}

/// Whether the conditions hold that ask for files, as far as the tree can tell. What only exists on a running node (/run, /proc,
/// /sys, /dev) cannot be told from an image.
pub fn judge_conditions(conditions: &mut [Condition], tree: &Tree) {
    for condition in conditions {
        let test = condition.key.trim_start_matches("Condition").trim_start_matches("Assert");
        let value = condition.value.trim_start_matches('|').trim_start();
        let (negated, path) = match value.strip_prefix('!') {
            Some(path) => (true, path.trim_start()),
            None => (false, value),
        };
        let Some(path) = words(path).into_iter().next().filter(|p| p.starts_with('/') && !p.contains('%')) else {
            continue;
        };
        let only_when_booted = ["/run", "/var/run", "/proc", "/sys", "/dev", "/tmp"]
            .iter()
            .any(|top| path == *top || path.starts_with(&format!("{top}/")));
        if only_when_booted && !tree.root().is_live() {
            continue;
        }
        let answer = match test {
            "PathExists" => tree.exists(&path),
            "PathIsDirectory" => is_kind(tree, &path, true, |kind, _| kind == Kind::Directory),
            "PathIsSymbolicLink" => is_kind(tree, &path, false, |kind, _| kind == Kind::Link),
            "FileNotEmpty" => is_kind(tree, &path, true, |kind, bytes| kind == Kind::File && bytes > 0),
            "DirectoryNotEmpty" => match tree.list(&path) {
                Ok(entries) => Ok(!entries.is_empty()),
                Err(e) if is_absent(&e) => Ok(false),
                Err(e) => Err(e),
            },
            _ => continue,
        };
        condition.holds = answer.ok().map(|holds| holds != negated);
    }
}

fn is_kind(tree: &Tree, path: &str, follow: bool, is: impl Fn(Kind, u64) -> bool) -> std::io::Result<bool> {
    match if follow { tree.find(path) } else { tree.find_link(path) } {
        Ok(place) => Ok(is(place.kind, place.bytes)),
        Err(e) if is_absent(&e) => Ok(false),
        Err(e) => Err(e),
    }
}
