//! One entry as `journalctl --output=json` writes it (systemd.journal-fields(7), "Journal JSON Format").
//!
//! A value is a string; an array of numbers if it contains unprintable bytes; null if it is very long; or an array of these if the
//! field occurs more than once.

use coroner_evidence::{UnitLogLine, Wall};
use serde_json::Value;

use super::secrets::mask;

/// Characters of a message that are kept.
const MAX_TEXT: usize = 400;

/// Characters of a message that are examined.
const MAX_LOOKED_AT: usize = 4000;

/// systemd's message for an automatic restart: SD_MESSAGE_UNIT_RESTART_SCHEDULED in sd-messages.h.
pub const RESTART_SCHEDULED: &str = "5eb03494b6584870a536b337290809b3";

/// `None` if the entry belongs to no unit.
pub fn parse(line: &[u8]) -> Option<UnitLogLine> {
    let value: Value = serde_json::from_slice(line).ok()?;
    let field = |name: &str| value.get(name).and_then(text_of);
    let us: u64 = field("__REALTIME_TIMESTAMP")?.parse().ok()?;
    let message = match value.get("MESSAGE") {
        Some(Value::Null) => "(message too long)".to_owned(),
        Some(message) => text_of(message)?,
        None => return None,
    };
    // Anybody may write these fields into the journal, except those that begin with `_`: only PID 1 is trusted.
    let by_systemd = field("_PID").as_deref() == Some("1");
    let restart = match field("MESSAGE_ID").as_deref() {
        Some(RESTART_SCHEDULED) if by_systemd => {
            field("N_RESTARTS").and_then(|n| n.parse().ok()).or_else(|| counter_in(&message))
        }
        _ => None,
    };
    let unit = match by_systemd.then(|| field("UNIT")).flatten() {
        Some(unit) => unit,
        None => field("_SYSTEMD_UNIT")?,
    };
    let message = match message.char_indices().nth(MAX_LOOKED_AT) {
        Some((end, _)) => &message[..end],
        None => &message,
    };
    Some(UnitLogLine { unit, at: Wall(us.saturating_mul(1000)), text: printable(&mask(message)), restart })
}

/// The last value of a field, as text.
fn text_of(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Array(items) => match items.first() {
            Some(Value::Number(_)) => {
                let bytes: Option<Vec<u8>> =
                    items.iter().map(|n| n.as_u64().and_then(|n| u8::try_from(n).ok())).collect();
                Some(String::from_utf8_lossy(&bytes?).into_owned())
            }
            // Not nested any deeper: an array of strings or of bytes.
            Some(_) => items.iter().rev().find_map(|item| match item {
                Value::Array(inner) if inner.first().is_some_and(Value::is_array) => None,
                item => text_of(item),
            }),
            None => Some(String::new()),
        },
        _ => None,
    }
}

/// "Scheduled restart job, restart counter is at 5."
fn counter_in(message: &str) -> Option<u32> {
    let rest = message.split_once("restart counter is at ")?.1;
    let digits = rest.split(|c: char| !c.is_ascii_digit()).next()?;
    digits.parse().ok()
}

/// At most 400 characters, with everything escaped that a terminal would interpret.
fn printable(text: &str) -> String {
    let mut out = String::new();
    let mut chars = text.trim_end().chars();
    for c in chars.by_ref().take(MAX_TEXT) {
        match c {
            '\t' => out.push(' '),
            // Includes bidirectional text marks, which are not `is_control`.
            c if c.is_control()
                || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}') =>
            {
                out.extend(c.escape_default());
            }
            c => out.push(c),
        }
    }
    if chars.next().is_some() {
        out.push('…');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entry(json: &str) -> Option<UnitLogLine> {
        parse(json.as_bytes())
    }

    #[test]
    fn parses_a_message_of_a_service() {
        let told = entry(
            r#"{"__REALTIME_TIMESTAMP":"1700000000123456","_PID":"77","_SYSTEMD_UNIT":"ecs.service","UNIT":"other.service",
                "N_RESTARTS":"9","MESSAGE":"level=error msg=\"no credentials\"\t\u001b[31m"}"#,
        );
        let told = told.unwrap();
        assert_eq!((told.unit.as_str(), told.at, told.restart), ("ecs.service", Wall(1_700_000_000_123_456_000), None));
        assert_eq!(told.text, "level=error msg=\"no credentials\" \\u{1b}[31m");
    }

    #[test]
    fn parses_systemds_restart_message() {
        let with_field = r#"{"__REALTIME_TIMESTAMP":"5","_PID":"1","_SYSTEMD_UNIT":"init.scope","UNIT":"ecs.service",
            "MESSAGE_ID":"5eb03494b6584870a536b337290809b3","N_RESTARTS":"12","MESSAGE":"Scheduled restart job"}"#;
        let told = entry(with_field).unwrap();
        assert_eq!((told.unit.as_str(), told.restart), ("ecs.service", Some(12)));
        let with_text = with_field.replace(r#""N_RESTARTS":"12","#, "").replace("job", "job, restart counter is at 7.");
        assert_eq!(entry(&with_text).unwrap().restart, Some(7));
        let forged = with_field.replace(r#""_PID":"1""#, r#""_PID":"4711""#);
        let told = entry(&forged).unwrap();
        assert_eq!((told.unit.as_str(), told.restart), ("init.scope", None), "only PID 1 may log for other units");
    }

    #[test]
    fn all_forms_of_a_message() {
        let told = |message: &str| {
            entry(&format!(r#"{{"__REALTIME_TIMESTAMP":"1","_SYSTEMD_UNIT":"a.service","MESSAGE":{message}}}"#))
                .map(|e| e.text)
        };
        assert_eq!(told("[104,105,255]").as_deref(), Some("hi\u{fffd}"));
        assert_eq!(told("null").as_deref(), Some("(message too long)"));
        assert_eq!(told(r#"["one","two"]"#).as_deref(), Some("two"));
        assert_eq!(told(r#"["one",[104,105]]"#).as_deref(), Some("hi"));
        assert_eq!(told("[[[[1]]]]"), None);
        assert_eq!(told("[1000]"), None);
        assert_eq!(told("{}"), None);
        let long = told(&format!("{:?}", "ö".repeat(1000))).unwrap();
        assert_eq!(long.chars().count(), MAX_TEXT + 1);
        assert!(long.ends_with('…'));
    }

    proptest! {
        #[test]
        fn any_line_is_survived_and_nothing_unprintable_comes_out(bytes in prop::collection::vec(any::<u8>(), 0..200),
                message in any::<String>()) {
            let _ = parse(&bytes);
            let line = serde_json::json!({"__REALTIME_TIMESTAMP": "1", "_SYSTEMD_UNIT": "a.service", "MESSAGE": message});
            let told = parse(line.to_string().as_bytes()).unwrap();
            prop_assert!(!told.text.chars().any(char::is_control), "{:?}", told.text);
            prop_assert!(told.text.chars().count() <= MAX_TEXT * 10 + 1);
        }
    }
}
