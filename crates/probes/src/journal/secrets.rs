//! Keeps secrets out of what is stored and shown.
//!
//! Messages of agents may contain tokens. Obvious ones are masked; others cannot be recognised, so messages of only a few units
//! are kept.

/// Replaces a secret.
const MASK: &str = "***";

/// Words before `=` or `:` whose value is secret, in lower case without `-` and `_`.
const SECRET_WORDS: [&str; 17] = [
    "authorization",
    "auth",
    "cookie",
    "credential",
    "pwd",
    "sessionid",
    "password",
    "passwd",
    "passphrase",
    "secret",
    "token",
    "apikey",
    "accesskey",
    "accesskeyid",
    "secretkey",
    "privatekey",
    "signature",
];

/// Prefixes of well-known tokens.
const TOKEN_STARTS: [&str; 21] = [
    "AKIA",
    "ASIA",
    "ghp_",
    "gho_",
    "ghs_",
    "ghu_",
    "ghr_",
    "github_pat_",
    "glpat-",
    "xoxa-",
    "xoxb-",
    "xoxp-",
    "xoxs-",
    "ya29.",
    "eyJ",
    "hvs.",
    "sk-",
    "AIza",
    "npm_",
    "SG.",
    "dop_v1_",
];

/// The start of a PEM private key; the rest of the message is the key.
const PEM: &str = "-----BEGIN ";

/// The text with obvious secrets masked.
pub fn mask(text: &str) -> String {
    if let Some(at) = text.find(PEM).filter(|&at| text[at..].contains("PRIVATE KEY")) {
        return mask(&text[..at]) + MASK;
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    loop {
        let Some(at) = rest.find(is_word_char) else {
            out.push_str(rest);
            return out;
        };
        let (before, from) = rest.split_at(at);
        out.push_str(before);
        let end = from.find(|c| !is_word_char(c)).unwrap_or(from.len());
        let (word, after) = from.split_at(end);
        if looks_like_token(word) {
            out.push_str(MASK);
            rest = after;
            continue;
        }
        out.push_str(word);
        rest = after;
        if let Some((separator, value)) = value_after(after)
            && is_secret_word(word)
        {
            out.push_str(separator);
            let (kept, length) = secret_length(value);
            out.push_str(kept);
            if length > kept.len() {
                out.push_str(MASK);
            }
            rest = &value[length..];
        } else if is_secret_word(word)
            && let Some((between, value)) = value_after_space(word, after)
        {
            // `--password X`, `AWS_SECRET_ACCESS_KEY X`, `password is X`
            let length = value.find(char::is_whitespace).unwrap_or(value.len());
            out.push_str(between);
            out.push_str(MASK);
            rest = &value[length..];
        } else if word.eq_ignore_ascii_case("bearer") || word.eq_ignore_ascii_case("basic") {
            // `Bearer TOKEN`, anywhere.
            if let Some(value) = after.strip_prefix(' ') {
                let length = value.find(|c: char| c.is_whitespace() || ends_value(c)).unwrap_or(value.len());
                if length >= 8 {
                    out.push(' ');
                    out.push_str(MASK);
                    rest = &value[length..];
                }
            }
        } else if after.starts_with("://")
            && let Some((user, host)) = user_info(&after[3..])
        {
            // `https://user:password@host`, `https://TOKEN@host`
            out.push_str("://");
            out.push_str(user);
            out.push_str(if user.is_empty() { "" } else { ":" });
            out.push_str(MASK);
            rest = host;
        }
    }
}

fn is_word_char(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '-' | '.')
}

fn ends_value(c: char) -> bool {
    matches!(c, '"' | '\'' | ',' | ';' | '&' | ')' | '}' | ']' | '>')
}

fn is_secret_word(word: &str) -> bool {
    let plain: String = word.chars().filter(|c| !matches!(c, '_' | '-' | '.')).flat_map(char::to_lowercase).collect();
    SECRET_WORDS.iter().any(|secret| plain.ends_with(secret) || plain.ends_with(&format!("{secret}s")))
}

fn looks_like_token(word: &str) -> bool {
    let start = TOKEN_STARTS.iter().find(|start| word.starts_with(**start));
    start.is_some_and(|start| word.len() >= start.len() + 12)
}

/// `=`, `: `, `":"` and the like, and what follows.
fn value_after(text: &str) -> Option<(&str, &str)> {
    let quote = text.strip_prefix('\\').unwrap_or(text);
    let unquoted = quote.strip_prefix(['"', '\'']).unwrap_or(text);
    let value = unquoted.trim_start_matches(' ').strip_prefix(['=', ':'])?.trim_start_matches(' ');
    let separator = &text[..text.len() - value.len()];
    (!value.is_empty()).then_some((separator, value))
}

/// The prefix of the value that may stay (a quote, the authorization scheme), and the length of the whole value.
fn secret_length(value: &str) -> (&str, usize) {
    let escape = usize::from(value.starts_with('\\'));
    let quoted = value[escape..].starts_with(['"', '\'']);
    let open = if quoted { escape + 1 } else { 0 };
    let inside = &value[open..];
    let end = |text: &str| {
        text.find(|c: char| if quoted { matches!(c, '"' | '\'' | '\\') } else { c.is_whitespace() || ends_value(c) })
            .unwrap_or(text.len())
    };
    let scheme = ["Bearer ", "Basic ", "Token ", "AWS4-HMAC-SHA256 ", "Digest "]
        .iter()
        .find(|scheme| inside.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme)));
    match scheme {
        // All parts of a signature, not only the first.
        Some(scheme) => {
            let rest = &inside[scheme.len()..];
            let length = match scheme.starts_with("AWS4") || scheme.starts_with("Digest") {
                true => rest.find(['"', '\n']).unwrap_or(rest.len()),
                false => end(rest),
            };
            (&value[..open + scheme.len()], open + scheme.len() + length)
        }
        None => (&value[..open], open + end(inside)),
    }
}

/// `user:password@host…` → (`user`, `@host…`).
fn user_info(text: &str) -> Option<(&str, &str)> {
    let authority = &text[..text.find(|c: char| c == '/' || c.is_whitespace() || c == '"').unwrap_or(text.len())];
    let (user_and_password, _) = authority.rsplit_once('@')?;
    let user = match user_and_password.split_once(':') {
        Some((user, _)) => user,
        // User names are shorter than tokens.
        None if user_and_password.len() >= 16 => "",
        None => return None,
    };
    Some((user, &text[user_and_password.len()..]))
}

/// The value after a space, if the word before it introduces one.
fn value_after_space<'t>(word: &str, after: &'t str) -> Option<(&'t str, &'t str)> {
    let is_flag = word.starts_with("--");
    let is_variable = word.contains('_') && !word.chars().any(char::is_lowercase);
    let between = match after.get(..4) {
        Some(" is ") => 4,
        _ if (is_flag || is_variable) && after.starts_with(' ') => 1,
        _ => return None,
    };
    let (between, value) = after.split_at(between);
    (!value.is_empty() && !value.starts_with([' ', '-'])).then_some((between, value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn masks_secrets_after_a_space_in_urls_and_in_pem() {
        for text in [
            "run --password hunter2 now",
            "AWS_SECRET_ACCESS_KEY hunter2",
            "the password is hunter2",
            "pwd=hunter2",
            "cookie: sid=hunter2",
            r#"{"credential":"hunter2"}"#,
            "fetch https://hunter2hunter2hunter2@example.org/x",
            "-----BEGIN RSA PRIVATE KEY----- hunter2",
            "key sk-proj-hunter2hunter2",
            "key AIzahunter2hunter2hunter2",
        ] {
            assert!(!mask(text).contains("hunter2"), "{text} -> {}", mask(text));
        }
        for text in ["token expired for node", "author: me", "https://me@example.org/", "its authentication is off"] {
            assert_eq!(mask(text), text);
        }
    }

    #[test]
    fn masks_secrets() {
        for (said, kept) in [
            ("Authorization: Bearer abc.def-1 next", "Authorization: Bearer *** next"),
            ("authorization: AWS4-HMAC-SHA256 Credential=A/b, Signature=c", "authorization: AWS4-HMAC-SHA256 ***"),
            ("retry with token=s3cr3t&x=1", "retry with token=***&x=1"),
            ("DD_API_KEY=0123456789abcdef0123", "DD_API_KEY=***"),
            (r#"{"password": "hunter 2", "user": "me"}"#, r#"{"password": "***", "user": "me"}"#),
            (r#"msg="{\"token\":\"abc\"}""#, r#"msg="{\"token\":\"***\"}""#),
            ("key AKIAIOSFODNN7EXAMPLE is invalid", "key *** is invalid"),
            ("got eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln", "got ***"),
            ("connect to https://me:hunter2@host/x failed", "connect to https://me:***@host/x failed"),
            ("header was Bearer 0123456789", "header was Bearer ***"),
            ("aws_secret_access_key = wJalrXUtnFEMI/K7MDENG", "aws_secret_access_key = ***"),
            ("X-Amz-Security-Token=FwoGZXIvYXdz%2B", "X-Amz-Security-Token=***"),
        ] {
            assert_eq!(mask(said), kept);
        }
    }

    #[test]
    fn keeps_what_a_diagnosis_needs() {
        for text in [
            "NoCredentialProviders: no valid providers in chain",
            "level=error msg=\"Agent exited with code 1\"",
            "Unable to register as a container instance with ECS: AccessDeniedException",
            "no EC2 instance role found",
            "HTTP 403 Forbidden: https://host/token/refresh",
            "token expired",
            "Scheduled restart job, restart counter is at 5.",
            "EOF https://[::1]:443/ @home a:b@c",
        ] {
            assert_eq!(mask(text), text);
        }
    }

    proptest! {
        #[test]
        fn any_text(text in any::<String>(), more in "(token|password|Bearer|://|[=:\"'\\\\ @a/]){0,20}") {
            let _ = mask(&text);
            let _ = mask(&more);
        }

        #[test]
        fn a_password_is_always_masked(secret in "[A-Za-z0-9/+]{6,40}", before in "[a-z ]{0,10}",
                separator in "(=|: |:|=\"|\": \")") {
            let out = mask(&format!("{before} password{separator}{secret}"));
            prop_assert!(!out.contains(&secret), "{out}");
        }
    }
}
