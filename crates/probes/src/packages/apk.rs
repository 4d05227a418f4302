//! Alpine's apk: one text file. `P:` name, `V:` version, `F:` directory, `R:` file in it; an empty line ends a package.

use std::collections::HashMap;
use std::io;

use coroner_evidence::Package;

use super::PathSet;
use crate::tree::{Tree, is_absent};

pub const INSTALLED: &str = "/lib/apk/db/installed";
/// Since merged /usr.
pub const INSTALLED_MERGED: &str = "/usr/lib/apk/db/installed";

const MAX: u64 = 256 << 20;

pub fn find(tree: &Tree, wanted: &PathSet, owners: &mut HashMap<String, Package>) -> io::Result<()> {
    let bytes = match tree.read(INSTALLED, MAX) {
        Err(e) if is_absent(&e) => tree.read(INSTALLED_MERGED, MAX)?,
        other => other?,
    };
    parse(&String::from_utf8_lossy(&bytes), wanted, owners);
    Ok(())
}

fn parse(text: &str, wanted: &PathSet, owners: &mut HashMap<String, Package>) {
    let (mut name, mut version, mut directory) = (String::new(), None, String::new());
    for line in text.lines() {
        let Some((key, value)) = line.split_once(':') else {
            (name, version, directory) = (String::new(), None, String::new());
            continue;
        };
        match key {
            "P" => value.clone_into(&mut name),
            "V" => version = Some(value.to_owned()),
            "F" => value.clone_into(&mut directory),
            "R" if !name.is_empty() => {
                if let Some(asked) = wanted.asked(&format!("/{directory}/{value}")) {
                    let package = Package { name: name.clone(), version: version.clone(), manager: "apk".to_owned() };
                    owners.entry(asked.clone()).or_insert(package);
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn finds_the_package_of_a_file() {
        let text =
            "C:Q1\nP:musl\nV:1.2\nF:lib\nR:libc.so\n\nP:agent\nV:3-r0\nF:usr/lib/systemd/system\nR:agent.service\n";
        let mut owners = HashMap::new();
        let path = "/usr/lib/systemd/system/agent.service".to_owned();
        parse(text, &PathSet::new(std::slice::from_ref(&path)), &mut owners);
        let package = Package { name: "agent".into(), version: Some("3-r0".into()), manager: "apk".into() };
        assert_eq!(owners, HashMap::from([(path, package)]));
    }

    proptest! {
        #[test]
        fn any_text(text in "([PVFR]:|\n|[a-z/]){0,60}") {
            parse(&text, &PathSet::new(&["/a".to_owned()]), &mut HashMap::new());
        }
    }
}
