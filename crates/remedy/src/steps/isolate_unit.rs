//! Limit a unit with a drop-in: its CPU, its memory and how often it restarts.

use super::{Done, Hands, StepError, Undone};
use crate::guards;
use crate::tree::{self, Links, Tree};
use rustix::fs::{AtFlags, unlinkat};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

/// Sorts after most drop-ins of packages, before an administrator's `override.conf` or `99-…`.
const FILE: &str = "50-coroner-isolate.conf";

/// The limit, its section, and the property by which systemd says what is in force.
const LIMITS: &[(&str, &str, &str)] = &[
    ("CPUQuota", "Service", "CPUQuotaPerSecUSec"),
    ("CPUWeight", "Service", "CPUWeight"),
    ("AllowedCPUs", "Service", ""),
    ("MemoryMax", "Service", "MemoryMax"),
    ("RestartSec", "Service", "RestartUSec"),
    ("StartLimitIntervalSec", "Unit", "StartLimitIntervalUSec"),
    ("StartLimitBurst", "Unit", "StartLimitBurst"),
];

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IsolateUnit {
    pub unit: String,
    /// As in the drop-in: `CPUQuota` → `20%`.
    pub limits: BTreeMap<String, String>,
    /// In /etc, so that it survives a reboot, instead of /run.
    pub persistent: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DropInBefore {
    /// The drop-in's text; `None` if there was none.
    pub text: Option<String>,
    pub directory_was_there: bool,
    /// The limits in force; `u64::MAX` is no limit.
    pub in_force: BTreeMap<String, u64>,
}

/// A limit from the command line, `MemoryMax=512M`.
pub fn parse_limit(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("expected NAME=VALUE, such as CPUQuota=20%")?;
    let (name, value) = (name.trim(), value.trim());
    if !LIMITS.iter().any(|(known, ..)| *known == name) {
        let known: Vec<&str> = LIMITS.iter().map(|(known, ..)| *known).collect();
        return Err(format!("no such limit; expected one of: {}", known.join(", ")));
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || "%.,- ".contains(c);
    if value.is_empty() || !value.chars().all(plain) || !has_form_of(name, value) {
        return Err(format!("{value:?} is not a valid value of {name}"));
    }
    Ok((name.to_owned(), value.to_owned()))
}

/// Whether systemd understands it. If not, it would only log that and ignore the limit.
fn has_form_of(name: &str, value: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_digit() || c == '.');
    match name {
        "CPUQuota" => value.strip_suffix('%').is_some_and(is_number),
        "MemoryMax" => {
            value == "infinity" || is_number(value.trim_end_matches(['K', 'M', 'G', 'T', 'P', 'E', 'B', '%']))
        }
        "CPUWeight" => value == "idle" || value.chars().all(|c| c.is_ascii_digit()),
        "StartLimitBurst" => value.chars().all(|c| c.is_ascii_digit()),
        "AllowedCPUs" => value.chars().all(|c| c.is_ascii_digit() || "-, ".contains(c)),
        // A time span: 5, 5s, 1h 30min.
        _ => value == "infinity" || value.starts_with(|c: char| c.is_ascii_digit()),
    }
}

impl IsolateUnit {
    /// The drop-in's path on that systemd's node.
    pub fn path(&self) -> String {
        let top = if self.persistent { "/etc" } else { "/run" };
        format!("{top}/systemd/system/{}.d/{FILE}", self.unit)
    }

    pub fn text(&self) -> String {
        let mut text = "# Written by `coroner fix --isolate`; `coroner undo` removes it.\n".to_owned();
        for section in ["Unit", "Service"] {
            let of_it = |name: &str| LIMITS.iter().any(|(known, its, _)| *known == name && *its == section);
            let lines: Vec<String> = self
                .limits
                .iter()
                .filter(|(name, _)| of_it(name))
                .map(|(name, value)| format!("{name}={value}\n"))
                .collect();
            if !lines.is_empty() {
                text.push_str(&format!("[{section}]\n{}", lines.concat()));
            }
        }
        text
    }

    /// The directory of the unit's drop-ins on that systemd's node.
    fn directory(&self) -> String {
        self.path().rsplit_once('/').map_or_else(String::new, |(directory, _)| directory.to_owned())
    }

    /// The node's own files, and the drop-in directory if it exists.
    fn place(&self, hands: &mut Hands<'_>) -> Result<(Tree, Option<OwnedFd>), StepError> {
        if self.unit.contains('/') || !self.unit.ends_with(".service") {
            return Err(StepError::refused(format!("{} is not a service: only services can be limited", self.unit)));
        }
        let tree = hands.checked_root()?;
        let directory = match tree.directory(&self.directory(), Links::Follow) {
            Ok(directory) => Some(directory),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => None,
            Err(e) => return Err(StepError::io(&tree.shown(&self.directory()), e)),
        };
        Ok((tree, directory))
    }

    /// The drop-in's text; `None` if there is none.
    fn read(&self, tree: &Tree) -> Result<Option<String>, StepError> {
        match tree.read_to_string(&self.path()) {
            Ok(text) => Ok(Some(text)),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(StepError::io(&tree.shown(&self.path()), e)),
        }
    }

    fn write(&self, tree: &Tree, text: &str) -> Result<(), StepError> {
        tree.make_directory(&self.directory())
            .and_then(|directory| tree::write(&directory, FILE, text))
            .map_err(|e| StepError::io(&tree.shown(&self.path()), e))
    }

    fn in_force(&self, hands: &mut Hands<'_>) -> Result<BTreeMap<String, u64>, StepError> {
        let manager = hands.manager()?;
        let mut all = BTreeMap::new();
        for (name, _, property) in
            LIMITS.iter().filter(|(name, _, property)| self.limits.contains_key(*name) && !property.is_empty())
        {
            if let Some(value) = manager.service_number(&self.unit, property)? {
                all.insert((*name).to_owned(), value);
            }
        }
        Ok(all)
    }

    pub fn prepare(&self, hands: &mut Hands<'_>) -> Result<DropInBefore, StepError> {
        guards::may_limit(&self.unit, hands)?;
        let (tree, directory) = self.place(hands)?;
        let text = self.read(&tree)?;
        Ok(DropInBefore { text, directory_was_there: directory.is_some(), in_force: self.in_force(hands)? })
    }

    pub fn act(&self, before: &DropInBefore, hands: &mut Hands<'_>) -> Result<Done, StepError> {
        // Check again: it may have changed since.
        guards::may_limit(&self.unit, hands)?;
        let (tree, _) = self.place(hands)?;
        self.write(&tree, &self.text())?;
        hands.manager()?.reload()?;
        let now = hands.manager()?.unit(&self.unit)?;
        if !now.drop_ins.iter().any(|path| *path == self.path()) {
            return Err(StepError::failed(format!(
                "{} was written, but systemd does not read it for {}",
                tree.shown(&self.path()).display(),
                self.unit
            )));
        }
        let in_force = self.in_force(hands)?;
        // A limit that another drop-in overrides has no effect: say so.
        let unchanged: Vec<&str> = in_force
            .iter()
            .filter(|(name, value)| before.in_force.get(*name) == Some(value) && before.text.is_none())
            .map(|(name, _)| name.as_str())
            .collect();
        let mut words = format!("{} now has {}", self.unit, self.words());
        if !unchanged.is_empty() {
            words.push_str(&format!(
                "; unchanged: {} (already set, or overridden by a later drop-in)",
                unchanged.join(", ")
            ));
        }
        let mut done = Done::new(words, json!({ "in_force": in_force, "drop_in": self.path() }));
        if unchanged.len() == in_force.len() && !in_force.is_empty() {
            done.in_vain = Some("no limit changed".to_owned());
        }
        Ok(done)
    }

    /// `CPUQuota=20%, MemoryMax=512M`
    pub fn words(&self) -> String {
        self.limits.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(", ")
    }

    pub fn undo(&self, before: &DropInBefore, hands: &mut Hands<'_>, force: bool) -> Result<Undone, StepError> {
        let (tree, directory) = self.place(hands)?;
        let now = self.read(&tree)?;
        if now == before.text {
            return Ok(Undone::AlreadySo(match now {
                None => format!("{} does not exist", self.path()),
                Some(_) => format!("{} is restored", self.path()),
            }));
        }
        if now.as_deref().is_some_and(|now| now != self.text()) && !force {
            return Ok(Undone::ChangedSince(format!(
                "{} was edited since; check it, then remove it by hand or with --force",
                self.path()
            )));
        }
        match (&before.text, directory) {
            (Some(text), _) => self.write(&tree, text)?,
            (None, Some(directory)) => {
                match unlinkat(&directory, FILE, AtFlags::empty()) {
                    Ok(()) | Err(rustix::io::Errno::NOENT) => {}
                    Err(e) => return Err(StepError::io(&tree.shown(&self.path()), e)),
                }
                // Fails if somebody has put something there since.
                let drop_ins = self.directory();
                let (above, name) = drop_ins.rsplit_once("/").unwrap_or_default();
                if let Ok(above) = tree.directory(above, Links::Follow)
                    && !before.directory_was_there
                {
                    let _ = unlinkat(&above, name, AtFlags::REMOVEDIR);
                }
            }
            (None, None) => {}
        }
        hands.manager()?.reload()?;
        Ok(Undone::Restored(match before.text {
            None => format!("{} is removed; {} has its previous limits again", self.path(), self.unit),
            Some(_) => format!("{} is restored", self.path()),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_in_their_sections() {
        let limits = [("CPUQuota", "20%"), ("RestartSec", "5min"), ("StartLimitBurst", "5")];
        let limits = limits.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let step = IsolateUnit { unit: "ecs.service".into(), limits, persistent: false };
        let text = step.text();
        assert_eq!(
            text.lines().skip(1).collect::<Vec<_>>(),
            ["[Unit]", "StartLimitBurst=5", "[Service]", "CPUQuota=20%", "RestartSec=5min"]
        );
        assert_eq!(step.path(), "/run/systemd/system/ecs.service.d/50-coroner-isolate.conf");
    }

    #[test]
    fn only_valid_limits_are_accepted() {
        assert_eq!(parse_limit("MemoryMax=512M"), Ok(("MemoryMax".into(), "512M".into())));
        for wrong in [
            "CPUQuota=abc",
            "MemoryMax=lots",
            "RestartSec=soon",
            "ExecStart=/bin/sh",
            "CPUQuota",
            "CPUQuota=",
            "CPUQuota=1\nExecStart=x",
            "RestartSec=$(id)",
        ] {
            assert!(parse_limit(wrong).is_err(), "{wrong:?} was accepted");
        }
    }
}
