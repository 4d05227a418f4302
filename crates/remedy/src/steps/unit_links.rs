//! The links in /etc/systemd/system that enable units: what `systemctl disable` removes, recorded so that undo can restore exactly that.

use crate::tree::{Links, Tree, entries, kind, link, make_link};
use rustix::fs::FileType;
use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

const DIRECTORY: &str = "etc/systemd/system";
/// A node has a few hundred.
const MOST: usize = 10_000;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Link {
    /// Below /etc/systemd/system: `multi-user.target.wants/ecs.service`.
    pub name: String,
    pub to: String,
}

/// The links of these units, in the directory itself and one level below: by their own name or by their target.
pub fn of_units(tree: &Tree, units: &[String]) -> io::Result<Vec<Link>> {
    let mut links = all(tree)?;
    let is_one = |path: &str| path.rsplit('/').next().is_some_and(|name| units.iter().any(|unit| unit == name));
    links.retain(|link| is_one(&link.name) || is_one(&link.to));
    Ok(links)
}

/// The units in `Also=`, which are enabled and disabled with the unit.
pub fn also(text: &str) -> Vec<String> {
    let values = text.lines().filter_map(|line| line.trim().strip_prefix("Also=")).flat_map(str::split_whitespace);
    values.map(str::to_owned).collect()
}

fn all(tree: &Tree) -> io::Result<Vec<Link>> {
    let top = tree.directory(DIRECTORY, Links::Follow)?;
    let mut links = Vec::new();
    collect(&top, "", &mut links)?;
    for (name, kind) in entries(top.as_fd())? {
        if kind == FileType::Directory {
            let below = tree.directory(&format!("{DIRECTORY}/{name}"), Links::Follow)?;
            collect(&below, &format!("{name}/"), &mut links)?;
        }
    }
    links.sort_unstable();
    Ok(links)
}

fn collect(directory: &OwnedFd, prefix: &str, links: &mut Vec<Link>) -> io::Result<()> {
    for (name, kind) in entries(directory.as_fd())? {
        if kind != FileType::Symlink {
            continue;
        }
        if links.len() >= MOST {
            return Err(io::Error::other(format!("more than {MOST} links in /{DIRECTORY}")));
        }
        let Ok(to) = link(directory, name.as_ref()) else { continue };
        // systemd's are valid UTF-8.
        let Some(to) = to.to_str() else { continue };
        links.push(Link { name: format!("{prefix}{name}"), to: to.to_owned() });
    }
    Ok(())
}

/// Recreates those that are missing. Returns how many, and what is in the way of others.
pub fn restore(tree: &Tree, before: &[Link]) -> io::Result<(usize, Vec<String>)> {
    let (mut made, mut in_the_way) = (0, Vec::new());
    for wanted in before {
        // Never leave the directory, whatever a damaged journal says.
        let parts: Vec<&str> = wanted.name.split('/').collect();
        let is_plain = |part: &&str| !part.is_empty() && *part != "." && *part != "..";
        let (below, name) = match parts.as_slice() {
            [name] if is_plain(name) => (String::new(), *name),
            [below, name] if is_plain(below) && is_plain(name) => (format!("/{below}"), *name),
            _ => {
                in_the_way.push(format!("{}: not a systemd link", wanted.name));
                continue;
            }
        };
        let directory = tree.make_directory(&format!("{DIRECTORY}{below}"))?;
        match kind(&directory, name)? {
            Some(_) if link(&directory, name.as_ref()).is_ok_and(|to| to == Path::new(&wanted.to)) => {}
            Some(_) => in_the_way.push(format!("/{DIRECTORY}/{} is something else now", wanted.name)),
            None => {
                make_link(&directory, name, &wanted.to)?;
                made += 1;
            }
        }
    }
    Ok((made, in_the_way))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn removed_links_are_restored_and_nothing_else_changes() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().join(DIRECTORY);
        fs::create_dir_all(top.join("multi-user.target.wants")).unwrap();
        let wants = top.join("multi-user.target.wants/ecs.service");
        symlink("/usr/lib/systemd/system/ecs.service", &wants).unwrap();
        symlink("/usr/lib/systemd/system/ssh.service", top.join("sshd.service")).unwrap();
        fs::write(top.join("own.service"), "[Unit]\n").unwrap();
        let tree = Tree::open(dir.path()).unwrap();
        let before = of_units(&tree, &["ecs.service".into(), "ssh.service".into()]).unwrap();
        assert_eq!(before.len(), 2, "{before:?}");
        assert_eq!(of_units(&tree, &["ecs.service".into()]).unwrap().len(), 1, "other units' links are not recorded");
        assert_eq!(also("[Install]\nWantedBy=a.target\nAlso=b.socket c.timer\n"), ["b.socket", "c.timer"]);
        fs::remove_file(&wants).unwrap();
        fs::remove_dir(top.join("multi-user.target.wants")).unwrap();
        assert_eq!(restore(&tree, &before).unwrap(), (1, vec![]));
        assert_eq!(all(&tree).unwrap(), before);
        assert_eq!(restore(&tree, &before).unwrap(), (0, vec![]), "again: nothing to do");
        let hostile = [Link { name: "../../passwd".into(), to: "/dev/null".into() }];
        assert_eq!(restore(&tree, &hostile).unwrap().0, 0);
        assert!(!dir.path().join("etc/passwd").exists());
    }

    #[test]
    fn a_planted_link_does_not_lead_out_of_the_root() {
        let dir = tempfile::tempdir().unwrap();
        let (inside, outside) = (dir.path().join("inside"), dir.path().join("outside"));
        fs::create_dir_all(inside.join(DIRECTORY)).unwrap();
        fs::create_dir_all(&outside).unwrap();
        let before = [Link { name: "multi-user.target.wants/ecs.service".into(), to: "/usr/lib/ecs.service".into() }];
        symlink(&outside, inside.join(DIRECTORY).join("multi-user.target.wants")).unwrap();
        let restored = restore(&Tree::open(&inside).unwrap(), &before);
        assert!(restored.is_err(), "{restored:?}");
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0, "a link was made outside of the root");
        // Nor does the directory itself, and nothing is read there.
        fs::remove_dir_all(inside.join("etc/systemd")).unwrap();
        symlink("../../outside", inside.join("etc/systemd")).unwrap();
        fs::create_dir(outside.join("system")).unwrap();
        symlink("/usr/lib/ecs.service", outside.join("system/ecs.service")).unwrap();
        let tree = Tree::open(&inside).unwrap();
        assert!(of_units(&tree, &["ecs.service".into()]).is_err());
        assert!(restore(&tree, &before).is_err());
        assert_eq!(fs::read_dir(outside.join("system")).unwrap().count(), 1);
    }
}
