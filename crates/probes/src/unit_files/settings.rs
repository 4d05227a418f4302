//! A unit's settings: its file with all drop-ins applied.

use coroner_evidence::{Condition, UnitFile};

use super::names::UnitName;
use super::syntax::{Assignment, is_true, time_span_us, words};
use crate::tree::{FileKind, Tree, is_absent};

/// Lists are truncated here; no real unit is longer.
const MAX_LIST: usize = 200;

/// Applies the assignments in order: later ones win, an empty value clears a list.
pub fn apply(unit: &mut UnitFile, assignments: &[Assignment]) {
    for Assignment { section, key, value } in assignments {
        match (section.as_str(), key.as_str()) {
            ("Unit", "Description") => unit.description = some(value),
            ("Service", "Type") => unit.service_type = some(value),
            ("Service", "ExecStart") => extend(&mut unit.exec_start, value, |v| vec![v.to_owned()]),
            ("Service", "Restart") => unit.restart = some(value),
            ("Service", "RestartSec") => unit.restart_delay_us = time_span_us(value),
            // Before systemd 230 they were in [Service], where they are still accepted.
            ("Unit", "StartLimitIntervalSec" | "StartLimitInterval") | ("Service", "StartLimitInterval") => {
                unit.start_limit_interval_us = time_span_us(value);
            }
            ("Unit" | "Service", "StartLimitBurst") => unit.start_limit_burst = value.parse().ok(),
            ("Service", "EnvironmentFile") => extend(&mut unit.environment_files, value, |v| vec![v.to_owned()]),
            ("Unit", key) if key.starts_with("Condition") || key.starts_with("Assert") => {
                // An empty value clears all conditions, or all assertions.
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

/// What a timer, socket or path starts by default: the service of the same name.
pub fn default_trigger(unit: &UnitFile, assignments: &[Assignment]) -> Option<String> {
    let name = UnitName::of(&unit.name)?;
    let accepts =
        assignments.iter().rfind(|a| a.section == "Socket" && a.key == "Accept").is_some_and(|a| is_true(&a.value));
    let stem = unit.name.strip_suffix(name.unit_type)?;
    match name.unit_type {
        "timer" | "path" => Some(format!("{stem}service")),
        // One instance per connection.
        "socket" if accepts => Some(format!("{}@.service", name.prefix)),
        "socket" => Some(format!("{stem}service")),
        _ => None,
    }
}

/// Evaluates conditions about files, as far as the tree allows. What exists only on a running node (/run, /proc, /sys, /dev) cannot
/// be judged from an image.
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
            "PathIsDirectory" => is_kind(tree, &path, true, |kind, _| kind == FileKind::Directory),
            "PathIsSymbolicLink" => is_kind(tree, &path, false, |kind, _| kind == FileKind::Link),
            "FileNotEmpty" => is_kind(tree, &path, true, |kind, bytes| kind == FileKind::File && bytes > 0),
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

fn is_kind(tree: &Tree, path: &str, follow: bool, is: impl Fn(FileKind, u64) -> bool) -> std::io::Result<bool> {
    match if follow { tree.find(path) } else { tree.find_link(path) } {
        Ok(place) => Ok(is(place.kind, place.bytes)),
        Err(e) if is_absent(&e) => Ok(false),
        Err(e) => Err(e),
    }
}
