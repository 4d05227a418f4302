//! The files that agents need: does one exist, is it empty, which keys does it set?
//!
//! Values are never kept: they may be secrets.

use coroner_evidence::{FileAnswer, FileFormat, FileQuestion, FileState, glob_matches};

use crate::tree::{FileKind, Tree, is_absent};

const MAX_FILE: u64 = 4 << 20;

/// The most files that a pattern may match.
const MAX_MATCHES: usize = 100;

pub fn answer(tree: &Tree, questions: &[FileQuestion]) -> Vec<FileAnswer> {
    questions.iter().map(|question| FileAnswer { question: question.clone(), state: look(tree, question) }).collect()
}

fn look(tree: &Tree, question: &FileQuestion) -> FileState {
    let mut best = FileState::Missing;
    for path in expand(tree, &question.path) {
        let state = look_at(tree, &path, question);
        if rank(&state) > rank(&best) {
            best = state;
        }
    }
    best
}

/// Of several files the most informative one wins.
fn rank(state: &FileState) -> usize {
    match state {
        FileState::Missing => 0,
        FileState::Unseen { .. } => 1,
        FileState::Empty { .. } => 2,
        FileState::Present { keys_set, .. } => 3 + keys_set.len(),
    }
}

fn look_at(tree: &Tree, path: &str, question: &FileQuestion) -> FileState {
    let place = match tree.find(path) {
        Ok(place) => place,
        Err(e) if is_absent(&e) => return FileState::Missing,
        Err(e) => return FileState::Unseen { why: format!("{path}: {e}") },
    };
    let present = |keys_set| FileState::Present { path: path.to_owned(), keys_set };
    if place.kind != FileKind::File {
        // A directory, or a device or socket created by hardware or a service.
        return present(Vec::new());
    }
    if question.format == FileFormat::Any && place.bytes > MAX_FILE {
        return present(Vec::new());
    }
    let bytes = match tree.read_place(&place, MAX_FILE) {
        Ok(bytes) => bytes,
        Err(e) => return FileState::Unseen { why: format!("{path}: {e}") },
    };
    let text = String::from_utf8_lossy(&bytes);
    let has_content = match question.format {
        FileFormat::Any => !bytes.is_empty(),
        FileFormat::Json => !text.trim().is_empty(),
        FileFormat::Lines => content_lines(&text).next().is_some(),
    };
    if !has_content {
        // Kernel files have no size and may legitimately be empty.
        return match path.starts_with("/sys/") || path.starts_with("/proc/") {
            true => present(Vec::new()),
            false => FileState::Empty { path: path.to_owned() },
        };
    }
    let is_set: Box<dyn Fn(&str) -> bool> = match question.format {
        FileFormat::Any => Box::new(|_| false),
        FileFormat::Lines => Box::new(|key| content_lines(&text).any(|line| sets(line, key))),
        FileFormat::Json => {
            let Ok(json) = serde_json::from_str::<serde_json::Value>(&text) else {
                return FileState::Unseen { why: format!("{path}: not valid JSON") };
            };
            Box::new(move |key| {
                let mut value = Some(&json);
                for part in key.split('.') {
                    value = value.and_then(|v| v.get(part));
                }
                value.is_some_and(|v| !v.is_null() && v.as_str() != Some(""))
            })
        }
    };
    present(question.keys.iter().filter(|key| is_set(key)).cloned().collect())
}

fn content_lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with(['#', ';']) && !l.starts_with("//"))
}

/// Whether the line sets the key.
fn sets(line: &str, key: &str) -> bool {
    let line = line.strip_prefix("export ").unwrap_or(line).trim_start();
    let Some(rest) = line.strip_prefix(key) else { return false };
    if !rest.starts_with(['=', ':', ' ', '\t']) {
        return false;
    }
    let value = rest.trim_start().trim_start_matches(['=', ':']).trim();
    let value = value.split(" #").next().unwrap_or(value).trim();
    !value.trim_matches(['"', '\'']).trim().is_empty()
}

/// Paths in the tree that match a pattern, component by component.
fn expand(tree: &Tree, pattern: &str) -> Vec<String> {
    let mut paths = vec![String::new()];
    for component in pattern.split('/').filter(|c| !c.is_empty()) {
        if !component.contains(['*', '?', '[']) {
            for path in &mut paths {
                path.push('/');
                path.push_str(component);
            }
            continue;
        }
        let mut next = Vec::new();
        for path in &paths {
            let directory = if path.is_empty() { "/" } else { path };
            for entry in tree.list(directory).unwrap_or_default() {
                if glob_matches(component, &entry.name) && next.len() < MAX_MATCHES {
                    next.push(format!("{path}/{}", entry.name));
                }
            }
        }
        paths = next;
    }
    paths
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Root;
    use crate::test_tree::write;
    use proptest::prelude::*;
    use std::fs;

    fn state(dir: &std::path::Path, path: &str, format: FileFormat, keys: &[&str]) -> FileState {
        let keys = keys.iter().map(|k| k.to_string()).collect();
        let question = FileQuestion { path: path.to_owned(), format, keys };
        answer(&Tree::open(&Root::at(dir)).unwrap(), &[question]).remove(0).state
    }

    #[test]
    fn keys_of_environment_files_yaml_and_json() {
        let dir = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| write(dir.path(), path, text);
        let present = |path: &str, keys: &[&str]| FileState::Present {
            path: path.to_owned(),
            keys_set: keys.iter().map(|k| k.to_string()).collect(),
        };
        put(
            "etc/ecs/ecs.config",
            "# ECS_CLUSTER=commented\nexport ECS_CLUSTER=\"mine\"\nECS_CLUSTERS=\nECS_EMPTY=''\n",
        );
        put("etc/agent/agent.yaml", "api_key: 0123 # secret\nsite:\n");
        put("etc/agent/agent.json", r#"{"agent": {"region": "x", "none": null, "empty": ""}}"#);
        put("etc/hollow.conf", "# nothing\n\n; here\n");
        put("etc/broken.json", "{");
        use FileFormat::{Json, Lines};
        let look = |path: &str, format, keys: &[&str]| state(dir.path(), path, format, keys);
        assert_eq!(
            look("/etc/ecs/ecs.config", Lines, &["ECS_CLUSTER", "ECS_CLUSTERS", "ECS_EMPTY", "ECS"]),
            present("/etc/ecs/ecs.config", &["ECS_CLUSTER"])
        );
        assert_eq!(
            look("/etc/*/agent.yaml", Lines, &["api_key", "site"]),
            present("/etc/agent/agent.yaml", &["api_key"])
        );
        assert_eq!(
            look("/etc/agent/agent.json", Json, &["agent.region", "agent.none", "agent.empty", "x"]),
            present("/etc/agent/agent.json", &["agent.region"])
        );
        assert_eq!(look("/etc/hollow.conf", Lines, &[]), FileState::Empty { path: "/etc/hollow.conf".to_owned() });
        assert_eq!(look("/etc/none", Lines, &[]), FileState::Missing);
        assert_eq!(look("/etc/none/*", Lines, &[]), FileState::Missing);
        assert!(matches!(look("/etc/broken.json", Json, &["a"]), FileState::Unseen { .. }));
        assert_eq!(look("/etc/agent", FileFormat::Any, &[]), present("/etc/agent", &[]));
    }

    proptest! {
        #[test]
        fn any_content(bytes in prop::collection::vec(any::<u8>(), 0..200), path in "[a-z*/?\\[]{0,12}") {
            let dir = tempfile::tempdir().unwrap();
            fs::write(dir.path().join("f"), &bytes).unwrap();
            for format in [FileFormat::Any, FileFormat::Lines, FileFormat::Json] {
                state(dir.path(), "/f", format, &["a", "b.c"]);
                state(dir.path(), &path, format, &["a"]);
            }
        }
    }
}
