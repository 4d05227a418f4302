//! Which units the distribution enables by default (systemd.preset(5)).

use coroner_evidence::{Preset, Unseen, glob_matches};

use super::search::{config_files, unseen_file};
use crate::tree::{Tree, is_absent};

/// Highest first. A file hides those of the same name in later directories.
const DIRECTORIES: [&str; 5] = [
    "/etc/systemd/system-preset",
    "/run/systemd/system-preset",
    "/usr/local/lib/systemd/system-preset",
    "/usr/lib/systemd/system-preset",
    "/lib/systemd/system-preset",
];

const MAX_FILE: u64 = 1 << 20;

#[derive(Debug, Default)]
pub struct Presets {
    rules: Vec<(String, Preset)>,
}

impl Presets {
    pub fn read(tree: &Tree, unseen: &mut Vec<Unseen>) -> Presets {
        let mut presets = Presets::default();
        for path in config_files(tree, &DIRECTORIES.map(str::to_owned), ".preset", unseen) {
            match tree.read(&path, MAX_FILE) {
                Ok(bytes) => presets.parse(&String::from_utf8_lossy(&bytes)),
                Err(e) if is_absent(&e) => {}
                Err(e) => unseen.push(unseen_file("the preset file", &path, &e)),
            }
        }
        presets
    }

    fn parse(&mut self, text: &str) {
        for line in text.lines() {
            let line = line.trim();
            if line.starts_with(['#', ';']) {
                continue;
            }
            let Some((word, rest)) = line.split_once([' ', '\t']) else { continue };
            let preset = match word {
                "enable" => Preset::Enabled,
                "disable" => Preset::Disabled,
                "ignore" => Preset::Ignored,
                _ => continue,
            };
            // `enable a@.service x y` lists instances after the template.
            let mut names = rest.split_ascii_whitespace();
            let (Some(pattern), more) = (names.next(), names.next()) else { continue };
            let is_template = || pattern.contains("@.");
            if preset != Preset::Enabled && more.is_some() {
                self.rules.push((rest.trim().to_owned(), preset));
            } else if more.is_none() || is_template() {
                self.rules.push((pattern.to_owned(), preset));
            }
        }
    }

    /// The first matching rule decides; the default is to enable.
    pub fn of(&self, name: &str) -> Preset {
        self.rules.iter().find(|(pattern, _)| glob_matches(pattern, name)).map_or(Preset::Enabled, |(_, p)| *p)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Root;
    use crate::test_tree::write;
    use proptest::prelude::*;

    #[test]
    fn the_first_rule_of_the_highest_directory_decides() {
        let dir = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| write(dir.path(), path, text);
        put("usr/lib/systemd/system-preset/90-distro.preset", "enable ssh*\n# disable ssh*\ndisable *\n");
        put("usr/lib/systemd/system-preset/50-cloud.preset", "enable ecs.service\nenable getty@.service tty1 tty2\n");
        put("etc/systemd/system-preset/10-site.preset", "disable ecs.service\nignore mine.service\n");
        put("etc/systemd/system-preset/not-a-preset.conf", "disable ssh.service\n");
        let read = || {
            let mut unseen = Vec::new();
            let presets = Presets::read(&Tree::open(&Root::at(dir.path())).unwrap(), &mut unseen);
            assert_eq!(unseen, []);
            presets
        };
        let presets = read();
        let of = |name: &str| presets.of(name);
        assert_eq!(of("ecs.service"), Preset::Disabled);
        assert_eq!(of("mine.service"), Preset::Ignored);
        assert_eq!(of("ssh.socket"), Preset::Enabled);
        assert_eq!(of("getty@.service"), Preset::Enabled);
        assert_eq!(of("other.service"), Preset::Disabled);
        // An empty file of the same name masks the distribution's.
        put("etc/systemd/system-preset/90-distro.preset", "");
        assert_eq!(read().of("other.service"), Preset::Enabled);
    }

    proptest! {
        #[test]
        fn any_text(text in "((enable|disable|ignore|#)?[ \n\ta-z@.*\\[\\]]){0,80}") {
            let mut presets = Presets::default();
            presets.parse(&text);
            presets.of("a@b.service");
        }
    }
}
