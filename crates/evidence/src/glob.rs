//! Shell patterns, as systemd's presets and the catalogue of agents use them: `*`, `?` and `[…]` of fnmatch(3) without
//! escapes, where `/` is a character like any other.

/// Whether the pattern covers the whole text. Time is bounded by the product of their lengths.
pub fn glob_matches(pattern: &str, text: &str) -> bool {
    let pattern: Vec<char> = pattern.chars().collect();
    let text: Vec<char> = text.chars().collect();
    let (mut p, mut t) = (0, 0);
    // Position of the last star, and how much of the text it covers.
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        let step = match pattern.get(p) {
            Some('*') => {
                star = Some((p, t));
                p += 1;
                continue;
            }
            Some('?') => Some(1),
            Some('[') => match class(&pattern[p..], text[t]) {
                Some((length, true)) => Some(length),
                Some((_, false)) => None,
                None => (text[t] == '[').then_some(1),
            },
            Some(c) => (*c == text[t]).then_some(1),
            None => None,
        };
        match (step, star) {
            (Some(length), _) => {
                p += length;
                t += 1;
            }
            (None, Some((at, taken))) => {
                star = Some((at, taken + 1));
                p = at + 1;
                t = taken + 1;
            }
            (None, None) => return false,
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

/// The length of `[…]` and whether the character is in it; `None` if the bracket is never closed.
fn class(pattern: &[char], c: char) -> Option<(usize, bool)> {
    let mut i = 1;
    let negated = matches!(pattern.get(i), Some('!' | '^'));
    if negated {
        i += 1;
    }
    let first = i;
    let mut found = false;
    loop {
        let low = *pattern.get(i)?;
        if low == ']' && i > first {
            return Some((i + 1, found != negated));
        }
        match (pattern.get(i + 1), pattern.get(i + 2)) {
            (Some('-'), Some(&high)) if high != ']' => {
                found |= (low..=high).contains(&c);
                i += 3;
            }
            _ => {
                found |= low == c;
                i += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn patterns_of_presets() {
        for (pattern, text, expected) in [
            ("*", "", true),
            ("*", "a.service", true),
            ("systemd-*", "systemd-networkd.service", true),
            ("getty@.service", "getty@.service", true),
            ("getty@.service", "getty@tty1.service", false),
            ("snap.amazon-ssm-agent.*.service", "snap.amazon-ssm-agent.amazon-ssm-agent.service", true),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("[a-c]x", "bx", true),
            ("[!a-c]x", "bx", false),
            ("[]a]x", "]x", true),
            ("[a", "[a", true),
            ("*a*b", "xaxxb", true),
            ("*a*b", "xaxxbc", false),
            ("", "", true),
            ("", "a", false),
        ] {
            assert_eq!(glob_matches(pattern, text), expected, "{pattern} {text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_terminates(pattern in "[*?\\[\\]!a-c-]{0,40}", text in "[a-c\\[\\]]{0,60}") {
            glob_matches(&pattern, &text);
        }

        #[test]
        fn a_name_without_magic_matches_itself_alone(a in "[a-z.@]{0,12}", b in "[a-z.@]{0,12}") {
            prop_assert_eq!(glob_matches(&a, &b), a == b);
            let pattern = format!("{a}*");
            prop_assert_eq!(glob_matches(&pattern, &b), b.starts_with(&a));
        }
    }
}
