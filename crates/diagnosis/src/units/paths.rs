//! Which unit a cgroup path belongs to.

use coroner_evidence::{CgroupOwner, Evidence};
use std::collections::{HashMap, HashSet};

/// Where the units of this node have their cgroups.
#[derive(Debug, Default)]
pub struct UnitPaths<'e> {
    by_path: HashMap<&'e str, &'e str>,
    known: HashSet<&'e str>,
    /// The cgroup below which systemd has its slices: empty on the node itself, the container's if systemd runs in one.
    top: Option<&'e str>,
}

impl<'e> UnitPaths<'e> {
    /// From all looks: a unit that waits for its next restart has no cgroup, but had one before.
    pub fn of(evidence: &'e Evidence) -> UnitPaths<'e> {
        let mut paths = UnitPaths::default();
        for unit in &evidence.units {
            paths.known.insert(&unit.name);
            // What is in a slice belongs to the units in it.
            if let Some(path) = unit.cgroup.as_deref().map(|p| p.trim_end_matches('/'))
                && !path.is_empty()
                && !unit.name.ends_with(".slice")
            {
                paths.by_path.insert(path, &unit.name);
                paths.top = paths.top.or_else(|| top_of(path, &unit.name));
            }
        }
        paths
    }

    /// The unit at or above a cgroup: from systemd, else from the path.
    pub fn unit_of(&self, path: &str) -> Option<String> {
        let mut at = path.trim_end_matches('/');
        while !at.is_empty() {
            if let Some(unit) = self.by_path.get(at) {
                return Some((*unit).to_owned());
            }
            at = &at[..at.rfind('/')?];
        }
        // Another systemd on this node, in a container, may have a unit of the same name.
        if self.top.is_some_and(|top| !path.strip_prefix(top).is_some_and(is_in_slices)) {
            return None;
        }
        let owner = CgroupOwner::of_path(path);
        // A unit inside a container is not a unit of this node.
        let unit = owner.unit.filter(|_| owner.container_id.is_none())?;
        // There may be thousands of scopes that systemd no longer knows, each with its own name.
        (self.known.contains(unit.as_str()) || unit.ends_with(".service")).then_some(unit)
    }
}

/// The part of the path above the slices that hold a unit's cgroup.
fn top_of<'e>(cgroup: &'e str, unit: &str) -> Option<&'e str> {
    let mut top = cgroup.strip_suffix(unit)?.strip_suffix('/')?;
    while let Some((above, _)) = top.rsplit_once('/').filter(|(_, name)| name.ends_with(".slice")) {
        top = above;
    }
    Some(top)
}

/// Whether only slices are above the first unit of the path.
fn is_in_slices(path: &str) -> bool {
    let Some(path) = path.strip_prefix('/') else { return false };
    let mut names = path.split('/').skip_while(|name| name.ends_with(".slice"));
    names.next().is_some_and(|name| name.ends_with(".service") || name.ends_with(".scope"))
}

/// A unit name without its kind and instance: `getty` of `getty@tty1.service`.
pub fn stem(unit: &str) -> &str {
    let stem = unit.rsplit_once('.').map_or(unit, |(stem, _)| stem);
    stem.split('@').next().unwrap_or(stem)
}

/// User sessions: what people start there is their own business.
pub fn is_session(unit: &str) -> bool {
    let stem = stem(unit);
    unit.ends_with(".scope") && stem.starts_with("session-") || matches!(stem, "user" | "user-runtime-dir")
}

/// Quoted for a command that somebody pastes into a shell: systemd puts `\x2d` into many names.
pub fn shell_word(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "@%_+=:,./-".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text.to_owned();
    }
    let printable: String = text.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
    // No backticks: we put commands between them. Every sh understands this way to write one.
    format!("'{}'", printable.replace('\'', r"'\''").replace('`', r#"'"$(printf '\140')"'"#))
}

/// The same as the last word of a command: a name that begins with a dash, such as `-.mount`, must not be taken for an option.
pub fn operand(name: &str) -> String {
    let dashes = if name.starts_with('-') { "-- " } else { "" };
    format!("{dashes}{}", shell_word(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use coroner_evidence::Unit;
    use proptest::prelude::*;

    #[test]
    fn the_unit_that_systemd_names_wins_over_the_path() {
        let unit =
            |name: &str, cgroup: &str| Unit { name: name.into(), cgroup: Some(cgroup.into()), ..Unit::default() };
        let evidence = Evidence {
            units: vec![
                unit("ecs.service", "/lab/system.slice/ecs.service"),
                unit("system.slice", "/lab/system.slice"),
                unit("-.slice", "/"),
                unit("job.service", "/elsewhere"),
            ],
            ..Evidence::default()
        };
        let paths = UnitPaths::of(&evidence);
        let of = |path: &str| paths.unit_of(path);
        assert_eq!(of("/lab/system.slice/ecs.service").as_deref(), Some("ecs.service"));
        assert_eq!(of("/lab/system.slice/ecs.service/agent.7").as_deref(), Some("ecs.service"));
        assert_eq!(of("/elsewhere/x").as_deref(), Some("job.service"));
        assert_eq!(of("/elsewhere2"), None);
        assert_eq!(of("/lab/system.slice/gone.service/x").as_deref(), Some("gone.service"), "from the path");
        assert_eq!(of("/lab/a.slice/a-b.slice/gone.service").as_deref(), Some("gone.service"));
        assert_eq!(of("/system.slice/ecs.service"), None, "of another systemd");
        assert_eq!(of("/lab2/system.slice/ecs.service"), None, "of another systemd");
        assert_eq!(of("/user.slice/session-7.scope"), None);
        let id = "0123456789abcdef".repeat(4);
        assert_eq!(of(&format!("/kubepods/podx/{id}/system.slice/ecs.service")), None, "of a systemd in a container");
        assert_eq!(of("/"), None);
    }

    #[test]
    fn stems_and_sessions() {
        assert_eq!(stem("serial-getty@ttyS0.service"), "serial-getty");
        assert!(is_session("session-3.scope") && is_session("user@1000.service"));
        assert!(!is_session("session-keeper.service") && !is_session("ecs.service"));
    }

    #[test]
    fn a_quoted_name_is_one_shell_word() {
        assert_eq!(shell_word("ecs.service"), "ecs.service");
        assert_eq!(shell_word(r"dev-sda\x2d1.swap"), r"'dev-sda\x2d1.swap'");
        assert_eq!(shell_word("a;'b"), r"'a;'\''b'");
        assert_eq!(shell_word(""), "''");
        assert_eq!(operand("ecs.service"), "ecs.service");
        assert_eq!(operand("-.mount"), "-- -.mount");
        assert_eq!(operand(r"-x y'.service"), r"-- '-x y'\''.service'");
        assert_eq!(operand(r"\x2dx.service"), r"'\x2dx.service'", "as systemd escapes it");
        for name in ["a`'$(id) #", "`", "a b`c", r"\x2d`"] {
            let word = shell_word(name);
            let said = std::process::Command::new("sh").arg("-c").arg(format!("printf %s {word}")).output().unwrap();
            assert_eq!(String::from_utf8_lossy(&said.stdout), name, "{word}");
            assert!(!word.contains('`'), "{word}");
        }
    }

    proptest! {
        #[test]
        fn any_path_is_handled(path in "\\PC{0,20}|(/[a-z.]{0,9}){0,5}", name in "\\PC{0,9}", cgroup in "\\PC{0,9}|(/[a-z]{0,2}){0,3}") {
            let unit = Unit { name, cgroup: Some(cgroup), ..Unit::default() };
            let evidence = Evidence { units: vec![unit], ..Evidence::default() };
            UnitPaths::of(&evidence).unit_of(&path);
            stem(&path);
            prop_assert!(!shell_word(&path).chars().any(char::is_control));
        }
    }
}
