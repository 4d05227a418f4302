//! What a node has on top of the plain Debian: the upper layer of its overlay.

use anyhow::{Context, Result};
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// Paths are as the node sees them, with or without a leading slash.
#[derive(Debug)]
pub struct Furniture {
    lower: PathBuf,
    upper: PathBuf,
}

/// Where packages put units, and where administrators and `systemctl enable` put them.
const VENDOR_UNITS: &str = "/usr/lib/systemd/system";
const ADMIN_UNITS: &str = "/etc/systemd/system";

/// Nothing may run that is not part of the scenario, and there is no terminal.
const MASKED: [&str; 9] = [
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "dpkg-db-backup.timer",
    "fstrim.timer",
    "e2scrub_all.timer",
    "systemd-tmpfiles-clean.timer",
    "console-getty.service",
    "getty@.service",
    "serial-getty@.service",
];

impl Furniture {
    /// A layer with only the node's name. `scratch` is for the overlay and its mount point.
    pub fn new(lower: &Path, scratch: &Path, hostname: &str, machine_id: &str) -> Result<Furniture> {
        let furniture = Furniture { lower: lower.to_owned(), upper: scratch.join("up") };
        for dir in ["up", "wk", "m"] {
            fs::create_dir_all(scratch.join(dir)).with_context(|| dir.to_owned())?;
        }
        // The scratch directory is private, but the node's / must not be.
        for dir in ["up", "m"] {
            fs::set_permissions(scratch.join(dir), fs::Permissions::from_mode(0o755))?;
        }
        // Set, so that this is not a first boot.
        furniture.file("/etc/machine-id", &format!("{machine_id}\n"))?;
        furniture.file("/etc/hostname", &format!("{hostname}\n"))?;
        for unit in MASKED {
            furniture.link("/dev/null", &format!("{ADMIN_UNITS}/{unit}"))?;
        }
        Ok(furniture)
    }

    fn place(&self, path: &str) -> Result<PathBuf> {
        let place = self.upper.join(path.trim_start_matches('/'));
        if let Some(dir) = place.parent() {
            fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
        }
        Ok(place)
    }

    pub fn dir(&self, path: &str) -> Result<()> {
        let place = self.place(path)?;
        fs::create_dir_all(&place).with_context(|| place.display().to_string())
    }

    pub fn file(&self, path: &str, text: &str) -> Result<()> {
        let place = self.place(path)?;
        fs::write(&place, text).with_context(|| place.display().to_string())
    }

    /// An executable shell script.
    pub fn script(&self, path: &str, body: &str) -> Result<()> {
        self.file(path, &format!("#!/bin/sh\n{body}"))?;
        Ok(fs::set_permissions(self.place(path)?, fs::Permissions::from_mode(0o755))?)
    }

    pub fn link(&self, to: &str, path: &str) -> Result<()> {
        let place = self.place(path)?;
        symlink(to, &place).with_context(|| place.display().to_string())
    }

    /// A unit as from a package; it starts only if something pulls it in.
    pub fn unit(&self, name: &str, text: &str) -> Result<()> {
        self.file(&format!("{VENDOR_UNITS}/{name}"), text)
    }

    /// Like `systemctl enable` with `WantedBy=target`. `job@7.service` links to its template.
    pub fn enable(&self, unit: &str, target: &str) -> Result<()> {
        let file = match (unit.split_once('@'), unit.rsplit_once('.')) {
            (Some((template, _)), Some((_, kind))) => format!("{template}@.{kind}"),
            _ => unit.to_owned(),
        };
        self.link(&format!("{VENDOR_UNITS}/{file}"), &format!("{ADMIN_UNITS}/{target}.wants/{unit}"))
    }

    /// A service that starts with the node.
    pub fn enabled_service(&self, name: &str, text: &str) -> Result<()> {
        self.unit(name, text)?;
        self.enable(name, "multi-user.target")
    }

    /// A tmpfs at `/var/lib/NAME`: a page written there keeps the memory cgroup it is charged to.
    pub fn spool(&self, name: &str) -> Result<()> {
        self.dir(&format!("/var/lib/{name}"))?;
        let unit = format!("var-lib-{name}.mount");
        self.unit(&unit, &format!("[Mount]\nWhat=tmpfs\nWhere=/var/lib/{name}\nType=tmpfs\n"))?;
        self.enable(&unit, "local-fs.target")
    }

    /// Tells dpkg that a package owns this unit.
    pub fn package(&self, name: &str, version: &str, unit: &str) -> Result<()> {
        let status = "var/lib/dpkg/status";
        let own = self.place(status)?;
        let before = match fs::read_to_string(&own) {
            Err(error) if error.kind() == ErrorKind::NotFound => fs::read_to_string(self.lower.join(status)),
            read => read,
        };
        let before = before.context(status)?;
        let entry = format!(
            "Package: {name}\nStatus: install ok installed\nMaintainer: the lab\nArchitecture: all\nVersion: {version}\n\
             Description: of the lab\n"
        );
        self.file(status, &format!("{}\n\n{entry}", before.trim_end()))?;
        self.file(&format!("/var/lib/dpkg/info/{name}.list"), &format!("/.\n{VENDOR_UNITS}/{unit}\n"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_instances_and_packages_are_where_debian_puts_them() {
        let dir = std::env::temp_dir().join(format!("coroner-lab-furniture-{}", std::process::id()));
        let (lower, scratch) = (dir.join("lower"), dir.join("scratch"));
        fs::create_dir_all(lower.join("var/lib/dpkg")).unwrap();
        fs::write(lower.join("var/lib/dpkg/status"), "Package: base\nVersion: 1\n\n").unwrap();
        let furniture = Furniture::new(&lower, &scratch, "node-1", "ab").unwrap();
        furniture.unit("job@.service", "[Service]\n").unwrap();
        furniture.enable("job@7.service", "multi-user.target").unwrap();
        furniture.package("one", "1.0-1", "job@.service").unwrap();
        furniture.package("two", "2.0-1", "job@.service").unwrap();
        let up = scratch.join("up");
        let read = |path: &str| fs::read_to_string(up.join(path)).unwrap();
        assert_eq!(read("etc/hostname"), "node-1\n");
        let link = fs::read_link(up.join("etc/systemd/system/multi-user.target.wants/job@7.service")).unwrap();
        assert_eq!(link, Path::new("/usr/lib/systemd/system/job@.service"));
        let status = read("var/lib/dpkg/status");
        let names: Vec<&str> = status.lines().filter_map(|l| l.strip_prefix("Package: ")).collect();
        assert_eq!(names, ["base", "one", "two"]);
        assert!(read("var/lib/dpkg/info/two.list").ends_with("/usr/lib/systemd/system/job@.service\n"));
        fs::remove_dir_all(&dir).unwrap();
    }
}
