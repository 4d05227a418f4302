//! What a printed step would do.

/// Programs that can remove a unit or package, and their verbs for it.
const REMOVERS: &[(&str, &[&str])] = &[
    ("systemctl", &["disable", "mask", "stop", "kill", "revert"]),
    ("snap", &["remove", "disable", "stop"]),
    ("apt", &["remove", "purge", "autoremove"]),
    ("apt-get", &["remove", "purge", "autoremove"]),
    ("dpkg", &["-r", "-P", "--remove", "--purge"]),
    ("dnf", &["remove", "erase", "autoremove"]),
    ("yum", &["remove", "erase", "autoremove"]),
    ("rpm", &["-e", "--erase"]),
    ("zypper", &["remove", "rm"]),
    ("apk", &["del"]),
    ("service", &["stop"]),
    ("pkill", &[]),
    ("killall", &[]),
];

/// Whether a step would remove an agent.
pub fn recommends_removal(step: &str) -> bool {
    commands(step).any(|words| {
        words.iter().enumerate().any(|(i, word)| {
            let remover = REMOVERS.iter().find(|(program, _)| program == word);
            remover.is_some_and(|(_, verbs)| verbs.is_empty() || words[i + 1..].iter().any(|w| verbs.contains(w)))
        })
    })
}

/// What a step removes by systemctl: all words after the verb that look like a unit.
pub fn units_removed(step: &str) -> Vec<&str> {
    let mut units = Vec::new();
    for words in commands(step) {
        let Some(at) = words.iter().position(|w| *w == "systemctl") else { continue };
        let Some(verb) = words[at..].iter().position(|w| REMOVERS[0].1.contains(w)) else { continue };
        units.extend(words[at + verb + 1..].iter().filter(|w| w.contains('.') && !w.starts_with('-')));
    }
    units
}

/// The words of each command; prose counts as part of the command before it.
fn commands(step: &str) -> impl Iterator<Item = Vec<&str>> {
    let parts = step.split(['&', ';', '|', '(', ')', '`']);
    parts.map(|part| part.split_whitespace().map(|w| w.trim_end_matches([',', ':'])).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_that_remove_are_recognised() {
        for step in [
            "systemctl disable --now x.service",
            "look first; then systemctl --root=/mnt mask x.service",
            "(snap remove x)",
            "apt-get -y purge x",
            "pkill x",
        ] {
            assert!(recommends_removal(step), "{step}");
        }
        for step in
            ["report only: do not disable it", "systemctl restart x.service", "snap list", "journalctl -u x.service"]
        {
            assert!(!recommends_removal(step), "{step}");
        }
        assert_eq!(
            units_removed("systemctl disable --now a.service b.socket && systemctl --root=DIR mask c.timer; d.service"),
            ["a.service", "b.socket", "c.timer"]
        );
    }
}
