//! Names of cgroups with what changes from one to the next folded: `ecs-agent-*`, `cri-containerd-*.scope`.

/// Hex digits in a row that are an id and not a word: `deadbeef`, but only with a digit among them; `facade` stays.
const ID: usize = 8;

const SEPARATORS: [char; 6] = ['-', '_', '.', ':', '@', '\\'];

/// Folds numbers, hex ids and UUIDs of a name to `*`. What a name has besides stays, so that people recognise it.
pub fn name_pattern(name: &str) -> String {
    let mut pattern = String::with_capacity(name.len());
    name_pattern_into(name, &mut pattern);
    pattern
}

/// The same into a string that is there already and is overwritten: of tens of thousands of names few patterns remain.
pub fn name_pattern_into(name: &str, pattern: &mut String) {
    pattern.clear();
    if let Some(at) = find_uuid(name) {
        // Any number in its place folds to the same.
        return name_pattern_into(&format!("{}0{}", &name[..at], &name[at + UUID..]), pattern);
    }
    for (i, token) in name.split_inclusive(SEPARATORS).enumerate() {
        let word = token.trim_end_matches(SEPARATORS);
        let separator = &token[word.len()..];
        let folded = fold(word);
        // `*-*` says no more than `*`.
        if i > 0 && folded == Some(0) && ends_with_star(pattern) {
            pattern.truncate(pattern.rfind('*').map_or(0, |at| at + 1));
        } else {
            match folded {
                Some(kept) => {
                    pattern.push_str(&word[..kept]);
                    pattern.push('*');
                }
                None => pattern.push_str(word),
            }
        }
        pattern.push_str(separator);
    }
}

fn ends_with_star(pattern: &str) -> bool {
    pattern.trim_end_matches(SEPARATORS).ends_with('*') && !pattern.ends_with('*')
}

/// How much of a word stays before its `*`; `None` if all of it.
fn fold(word: &str) -> Option<usize> {
    let first_digit = word.find(|c: char| c.is_ascii_digit())?;
    let is_hex = |text: &str| text.len() >= ID && text.bytes().all(|b| b.is_ascii_hexdigit());
    if is_hex(word) {
        return Some(0);
    }
    // r0123456789abcdef of systemd-run.
    if word.strip_prefix('r').is_some_and(is_hex) {
        return Some(1);
    }
    Some(first_digit)
}

/// 8-4-4-4-12 hex digits, with dashes or, in systemd's slices, underscores between them.
const UUID: usize = 36;

fn find_uuid(name: &str) -> Option<usize> {
    let is_uuid = |text: &[u8]| {
        text.iter().enumerate().all(|(i, &b)| match i {
            8 | 13 | 18 | 23 => b == b'-' || b == b'_',
            _ => b.is_ascii_hexdigit(),
        })
    };
    name.as_bytes().windows(UUID).position(is_uuid)
}

/// Whether a pattern covers a name or another pattern; `*` stands for any run of characters, also none.
pub fn pattern_covers(pattern: &str, name: &str) -> bool {
    let Some((head, mut rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(mut name) = name.strip_prefix(head) else { return false };
    while let Some((part, after)) = rest.split_once('*') {
        let Some(at) = name.find(part) else { return false };
        (name, rest) = (&name[at + part.len()..], after);
    }
    name.ends_with(rest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_changes_is_folded_and_what_names_stays() {
        let id = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
        for (name, pattern) in [
            ("ecs-agent-17", "ecs-agent-*"),
            ("ecs-agent-1f3a9c2b", "ecs-agent-*"),
            ("ecs.service", "ecs.service"),
            ("user@1000.service", "user@*.service"),
            ("session-12.scope", "session-*.scope"),
            ("run-r0a1b2c3d4e5f60718293a4b5c6d7e8f9.scope", "run-r*.scope"),
            ("run-u1234.scope", "run-u*.scope"),
            (&format!("cri-containerd-{id}.scope"), "cri-containerd-*.scope"),
            (id, "*"),
            ("kubepods-burstable-pod6f9b1c7e_1111_2222_3333_444455556666.slice", "kubepods-burstable-pod*.slice"),
            ("pod6f9b1c7e-1111-2222-3333-444455556666", "pod*"),
            ("podabcdefab-abcd-abcd-abcd-abcdefabcdef", "pod*"),
            ("z000123", "z*"),
            ("job_17_4", "job_*"),
            ("facade", "facade"),
            ("", ""),
            ("*", "*"),
            ("kubepods", "kubepods"),
        ] {
            assert_eq!(name_pattern(name), pattern, "{name}");
        }
    }

    #[test]
    fn a_pattern_covers_its_names_and_no_others() {
        assert!(pattern_covers("ecs-agent-*", "ecs-agent-17"));
        assert!(pattern_covers("a*b*c", "a1b2bc"));
        assert!(pattern_covers("*", ""));
        assert!(!pattern_covers("a*b", "acd"));
        assert!(!pattern_covers("ecs", "ecs2"));
        assert!(!pattern_covers("ab*ba", "aba"));
    }

    proptest! {
        #[test]
        fn every_name_is_covered_by_its_pattern(name in "([a-z]{0,6}|[0-9a-f]{0,12}|[-_.:@*]|\\PC){0,8}") {
            let pattern = name_pattern(&name);
            prop_assert!(pattern_covers(&pattern, &name), "{pattern}");
            prop_assert_eq!(name_pattern(&pattern), pattern.clone(), "folding again changes nothing");
        }
    }
}
