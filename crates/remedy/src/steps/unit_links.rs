//! The links in /etc/systemd/system that enable units: what `systemctl disable` takes away, told exactly, so that it can be put back
//! exactly.

use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;

const DIRECTORY: &str = "etc/systemd/system";
/// A node has some hundreds.
const MOST: usize = 10_000;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Link {
    /// Below /etc/systemd/system: `multi-user.target.wants/ecs.service`.
    pub name: String,
    pub to: String,
}

/// The links that are of one of these units, in the directory itself and one below: by their own name, or by what they lead to.
pub fn of_units(root: &Path, units: &[String]) -> io::Result<Vec<Link>> {
    let mut links = all(root)?;
    let is_one = |path: &str| path.rsplit('/').next().is_some_and(|name| units.iter().any(|unit| unit == name));
    links.retain(|link| is_one(&link.name) || is_one(&link.to));
    Ok(links)
}

/// What `Also=` in a unit's file names: it is enabled and disabled with the unit.
pub fn also(text: &str) -> Vec<String> {
    let values = text.lines().filter_map(|line| line.trim().strip_prefix("Also=")).flat_map(str::split_whitespace);
    values.map(str::to_owned).collect()
}

fn all(root: &Path) -> io::Result<Vec<Link>> {
    let top = root.join(DIRECTORY);
    let mut links = Vec::new();
    collect(&top, "", &mut links)?;
    for entry in fs::read_dir(&top)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            let name = entry.file_name().to_string_lossy().into_owned();
            collect(&entry.path(), &format!("{name}/"), &mut links)?;
        }
    }
    links.sort_unstable();
    Ok(links)
}

fn collect(directory: &Path, prefix: &str, links: &mut Vec<Link>) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_symlink() {
            if links.len() >= MOST {
                return Err(io::Error::other(format!("more than {MOST} links in /{DIRECTORY}")));
            }
            // A name that is no text is not systemd's.
            let (Ok(name), Ok(to)) = (entry.file_name().into_string(), fs::read_link(entry.path())) else { continue };
            let Some(to) = to.to_str() else { continue };
            links.push(Link { name: format!("{prefix}{name}"), to: to.to_owned() });
        }
    }
    Ok(())
}

/// Those of `before` that are missing now are made again. Gives how many, and what stands in the way of others.
pub fn restore(root: &Path, before: &[Link]) -> io::Result<(usize, Vec<String>)> {
    let top = root.join(DIRECTORY);
    let (mut made, mut in_the_way) = (0, Vec::new());
    for link in before {
        // Never out of the directory, whatever a damaged journal says.
        if link.name.split('/').any(|part| part == ".." || part.is_empty()) || link.name.split('/').count() > 2 {
            in_the_way.push(format!("{}: not a link of systemd's", link.name));
            continue;
        }
        let place = top.join(&link.name);
        match fs::symlink_metadata(&place) {
            Ok(_) if fs::read_link(&place).is_ok_and(|to| to == Path::new(&link.to)) => {}
            Ok(_) => in_the_way.push(format!("/{DIRECTORY}/{} is something else now", link.name)),
            Err(_) => {
                if let Some(directory) = place.parent() {
                    fs::create_dir_all(directory)?;
                }
                symlink(&link.to, &place)?;
                made += 1;
            }
        }
    }
    Ok((made, in_the_way))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_taken_away_comes_back_and_nothing_else_changes() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().join(DIRECTORY);
        fs::create_dir_all(top.join("multi-user.target.wants")).unwrap();
        let wants = top.join("multi-user.target.wants/ecs.service");
        symlink("/usr/lib/systemd/system/ecs.service", &wants).unwrap();
        symlink("/usr/lib/systemd/system/ssh.service", top.join("sshd.service")).unwrap();
        fs::write(top.join("own.service"), "[Unit]\n").unwrap();
        let before = of_units(dir.path(), &["ecs.service".into(), "ssh.service".into()]).unwrap();
        assert_eq!(before.len(), 2, "{before:?}");
        assert_eq!(
            of_units(dir.path(), &["ecs.service".into()]).unwrap().len(),
            1,
            "others' links are not ours to restore"
        );
        assert_eq!(also("[Install]\nWantedBy=a.target\nAlso=b.socket c.timer\n"), ["b.socket", "c.timer"]);
        fs::remove_file(&wants).unwrap();
        fs::remove_dir(top.join("multi-user.target.wants")).unwrap();
        assert_eq!(restore(dir.path(), &before).unwrap(), (1, vec![]));
        assert_eq!(all(dir.path()).unwrap(), before);
        assert_eq!(restore(dir.path(), &before).unwrap(), (0, vec![]), "again: nothing to do");
        let hostile = [Link { name: "../../passwd".into(), to: "/dev/null".into() }];
        assert_eq!(restore(dir.path(), &hostile).unwrap().0, 0);
        assert!(!dir.path().join("etc/passwd").exists());
    }
}
