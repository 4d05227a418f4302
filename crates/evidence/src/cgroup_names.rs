//! Folds the varying parts of cgroup names: `ecs-agent-*`, `cri-containerd-*.scope`.

/// This many hex digits in a row are an id, if a digit 0-9 is among them: `facade` stays.
const ID: usize = 8;

/// Folds numbers, hex ids and UUIDs of a name to `*`. The rest stays, so that people recognise it.
pub fn name_pattern(name: &str) -> String {
    let mut pattern = String::with_capacity(name.len());
    name_pattern_into(name, &mut pattern);
    pattern
}

/// The same, into a string that is reused: tens of thousands of names fold to few patterns.
pub fn name_pattern_into(name: &str, pattern: &mut String) {
    pattern.clear();
    let Some(at) = find_uuid(name) else { return fold_words(name, pattern) };
    // Any number in its place folds the same way.
    let (mut numbered, mut rest, mut at) = (String::with_capacity(name.len()), name, Some(at));
    while let Some(uuid) = at {
        numbered.push_str(&rest[..uuid]);
        numbered.push('0');
        rest = &rest[uuid + UUID..];
        at = find_uuid(rest);
    }
    numbered.push_str(rest);
    fold_words(&numbered, pattern);
}

fn fold_words(name: &str, pattern: &mut String) {
    let bytes = name.as_bytes();
    let mut start = 0;
    while start < bytes.len() {
        let word = Word::at(bytes, start);
        // `*-*` says no more than `*`.
        if start > 0 && word.kept == Some(0) && ends_with_star(pattern) {
            pattern.truncate(pattern.rfind('*').map_or(0, |at| at + 1));
        } else {
            match word.kept {
                Some(kept) => {
                    pattern.push_str(&name[start..start + kept]);
                    pattern.push('*');
                }
                None => pattern.push_str(&name[start..word.end]),
            }
        }
        // Its separator, if there is one. All of them are ASCII.
        let next = bytes.len().min(word.end + 1);
        pattern.push_str(&name[word.end..next]);
        start = next;
    }
}

fn ends_with_star(pattern: &str) -> bool {
    let without = pattern.trim_end_matches(|c: char| KIND.get(c as usize) == Some(&SEPARATOR));
    without.len() < pattern.len() && without.ends_with('*')
}

const SEPARATOR: u8 = 1;
const DIGIT: u8 = 2;
const NOT_HEX: u8 = 4;

/// The kind of each byte value. A table, because hex ids would make branches unpredictable.
const KIND: [u8; 256] = {
    let mut kinds = [NOT_HEX; 256];
    let mut byte = 0u8;
    while byte < 128 {
        kinds[byte as usize] = match byte {
            b'-' | b'_' | b'.' | b':' | b'@' | b'\\' => SEPARATOR,
            b'0'..=b'9' => DIGIT,
            b'a'..=b'f' | b'A'..=b'F' => 0,
            _ => NOT_HEX,
        };
        byte += 1;
    }
    kinds
};

/// The text between two separators.
struct Word {
    end: usize,
    /// How much of it stays before its `*`; `None`: all of it.
    kept: Option<usize>,
}

impl Word {
    fn at(bytes: &[u8], start: usize) -> Word {
        let (mut end, mut seen, mut not_hex) = (start, 0, 0);
        for &byte in &bytes[start..] {
            let kind = KIND[usize::from(byte)];
            if kind == SEPARATOR {
                break;
            }
            seen |= kind;
            not_hex += usize::from(kind == NOT_HEX);
            end += 1;
        }
        let kept = (seen & DIGIT != 0).then(|| {
            if not_hex == 0 && end - start >= ID {
                0
            } else if not_hex == 1 && bytes[start] == b'r' && end - start > ID {
                // systemd-run: r0123456789abcdef.
                1
            } else {
                bytes[start..end].iter().position(u8::is_ascii_digit).unwrap_or(0)
            }
        });
        Word { end, kept }
    }
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
    // Most names have no separator at the place of a UUID's first.
    let bytes = name.as_bytes();
    let dash = |at: usize| matches!(bytes[at + 8], b'-' | b'_');
    (0..=bytes.len().checked_sub(UUID)?).find(|&at| dash(at) && is_uuid(&bytes[at..at + UUID]))
}

/// Whether a pattern covers a name or another pattern; `*` stands for any characters, or none.
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
    fn varying_parts_are_folded_and_names_stay() {
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
            ("podabcdefab-abcd-abcd-abcd-abcdefabcdef-x-6f9b1c7e-1111-2222-3333-444455556666", "pod*-x-*"),
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
