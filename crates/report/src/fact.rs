//! One piece of evidence: a key for machines, a value in the key's unit, and its source.

use crate::fact_keys::FactKey;
use crate::name::{Name, named};
use crate::words::duration_words;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::time::Duration;

/// What a finding rests on. The words ([`Fact::what`]) are derived from the key; no program reads them.
#[derive(Debug, Clone, PartialEq)]
pub struct Fact {
    pub key: FactKey,
    /// Whose it is, if a key applies to many: a thread, a file, a counter.
    pub of: Option<String>,
    /// The time in which it was counted, if not the whole window.
    pub over_ms: Option<u64>,
    pub value: FactValue,
    pub unit: Unit,
    /// Where it was read: `/proc/stat`, `/proc/4711/task/4711/schedstat`.
    pub source: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum FactValue {
    Count(u64),
    Integer(i64),
    Number(f64),
    Text(String),
}

macro_rules! units {
    ($($variant:ident = $text:literal,)*) => {
        /// The unit of a value.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Unit {
            $($variant,)*
            /// Of a newer version than this one.
            Other(Name),
        }

        impl Unit {
            pub const ALL: &[Unit] = &[$(Unit::$variant,)*];

            /// As documents have it.
            pub fn as_str(&self) -> &str {
                match self {
                    $(Unit::$variant => $text,)*
                    Unit::Other(name) => name.as_str(),
                }
            }

            pub fn parse(text: &str) -> Option<Unit> {
                match text { $($text => Some(Unit::$variant),)* _ => None }
            }
        }
    };
}

units! {
    // A plain number, or text.
    Plain = "",
    Micros = "µs",
    Millis = "ms",
    Seconds = "s",
    SecondsAgo = "s ago",
    Percent = "%",
    PerHour = "/h",
    Bytes = "bytes",
    Packets = "packets",
    Times = "times",
    Cgroups = "cgroups",
    Units = "units",
    Cores = "cores",
}

named!(Unit, "a unit");

impl Fact {
    pub fn new(key: FactKey, value: impl Into<FactValue>, source: impl Into<String>) -> Fact {
        Fact { key, of: None, over_ms: None, value: value.into(), unit: key.unit(), source: source.into() }
    }

    pub fn of(self, of: impl fmt::Display) -> Fact {
        Fact { of: Some(of.to_string()), ..self }
    }

    pub fn over(self, over: Duration) -> Fact {
        Fact { over_ms: Some(u64::try_from(over.as_millis()).unwrap_or(u64::MAX)), ..self }
    }

    /// What it is, in words: `time since the poll (NAPI) last ran`. An unknown key is shown by its name.
    pub fn what(&self) -> String {
        let over = self.over_ms.map(|ms| duration_words(Duration::from_millis(ms)));
        let words = match &self.key {
            FactKey::Other(name) => return name.as_str().replace('_', " "),
            known => known.words(),
        };
        // The part in brackets is shown only with an `of`.
        let words = match (words.split_once('['), &self.of) {
            (Some((before, optional)), Some(_)) => format!("{before}{}", optional.replace(']', "")),
            (Some((before, _)), None) => before.to_owned(),
            (None, _) => words.to_owned(),
        };
        words
            .replace("{of}", self.of.as_deref().unwrap_or("it"))
            .replace("{over}", over.as_deref().unwrap_or("the window"))
    }

    /// `None` if it is text.
    pub fn number(&self) -> Option<f64> {
        match &self.value {
            FactValue::Count(n) => Some(*n as f64),
            FactValue::Integer(n) => Some(*n as f64),
            FactValue::Number(n) => Some(*n),
            FactValue::Text(_) => None,
        }
    }

    /// `None` if it is not a time.
    pub fn duration(&self) -> Option<Duration> {
        let each = match self.unit {
            Unit::Micros => 1e-6,
            Unit::Millis => 1e-3,
            Unit::Seconds | Unit::SecondsAgo => 1.0,
            _ => return None,
        };
        Duration::try_from_secs_f64(self.number()? * each).ok()
    }

    /// 0 to 1, or more if there can be more than one whole; `None` if it is not a share.
    pub fn share(&self) -> Option<f64> {
        self.number().filter(|_| self.unit == Unit::Percent).map(|percent| percent / 100.0)
    }

    /// `97.2 %`
    pub fn value_text(&self) -> String {
        let value = match &self.value {
            FactValue::Text(text) => text.clone(),
            FactValue::Count(n) => n.to_string(),
            FactValue::Integer(n) => n.to_string(),
            FactValue::Number(n) => format!("{n:.1}"),
        };
        match self.unit {
            Unit::Plain => value,
            unit => format!("{value} {}", unit.as_str()),
        }
    }
}

impl From<u64> for FactValue {
    fn from(n: u64) -> FactValue {
        FactValue::Count(n)
    }
}

impl From<u32> for FactValue {
    fn from(n: u32) -> FactValue {
        FactValue::Count(n.into())
    }
}

impl From<usize> for FactValue {
    fn from(n: usize) -> FactValue {
        FactValue::Count(n as u64)
    }
}

impl From<i64> for FactValue {
    fn from(n: i64) -> FactValue {
        u64::try_from(n).map_or(FactValue::Integer(n), FactValue::Count)
    }
}

impl From<i32> for FactValue {
    fn from(n: i32) -> FactValue {
        i64::from(n).into()
    }
}

/// JSON has no NaN or infinity.
impl From<f64> for FactValue {
    fn from(n: f64) -> FactValue {
        if n.is_finite() { FactValue::Number(n) } else { FactValue::Text("unknown".to_owned()) }
    }
}

impl From<String> for FactValue {
    fn from(text: String) -> FactValue {
        FactValue::Text(text)
    }
}

impl From<&str> for FactValue {
    fn from(text: &str) -> FactValue {
        FactValue::Text(text.to_owned())
    }
}

/// A fact as in documents, with its words.
#[derive(Serialize, Deserialize)]
struct Document {
    key: FactKey,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    of: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    over_ms: Option<u64>,
    #[serde(skip_deserializing)]
    what: String,
    value: FactValue,
    unit: Unit,
    source: String,
}

impl Serialize for Fact {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Fact { key, of, over_ms, value, unit, source } = self.clone();
        Document { key, of, over_ms, what: self.what(), value, unit, source }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Fact {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Fact, D::Error> {
        let Document { key, of, over_ms, what: _, value, unit, source } = Document::deserialize(deserializer)?;
        Ok(Fact { key, of, over_ms, value, unit, source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_follow_from_the_key() {
        let silent = Fact::new(FactKey::SinceNapi, 6600u64, "kernel log");
        assert_eq!(
            (silent.what().as_str(), silent.value_text().as_str()),
            ("time since the poll (NAPI) last ran", "6600 ms")
        );
        assert_eq!(silent.duration(), Some(Duration::from_millis(6600)));
        assert_eq!(silent.share(), None);
        let waited = Fact::new(FactKey::Waited, 12u64, "").of("spin[7]");
        assert_eq!(waited.what(), "spin[7] waited");
        let restarts = Fact::new(FactKey::RestartsPerHour, 3.5, "");
        assert_eq!(restarts.what(), "restarts per hour");
        assert_eq!(restarts.of("watched").what(), "restarts per hour, watched");
        let more = Fact::new(FactKey::DeadMemcgsMore, 10u64, "").over(Duration::from_secs(600));
        assert_eq!(more.what(), "growth within 10 min");
    }

    #[test]
    fn keys_and_units_of_newer_versions_survive() {
        let told = r#"{"key":"new_thing","what":"a new thing","value":-3,"unit":"parsecs","source":"x","more":[1]}"#;
        let fact: Fact = serde_json::from_str(told).unwrap();
        assert_eq!((fact.key.as_str(), fact.unit.as_str(), fact.number()), ("new_thing", "parsecs", Some(-3.0)));
        assert_eq!(fact.what(), "new thing");
        let again: Fact = serde_json::from_str(&serde_json::to_string(&fact).unwrap()).unwrap();
        assert_eq!(again, fact);
    }
}
