//! Short names from a set that newer versions may extend.

use std::fmt;

const LONGEST: usize = 47;

/// Up to 47 lowercase letters, digits, `-` and `_`, stored inline: unknown names in others' reports need no allocation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name {
    bytes: [u8; LONGEST],
    length: u8,
}

impl Name {
    /// `None` if the text is not such a name.
    pub fn new(text: &str) -> Option<Name> {
        let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'_';
        if text.is_empty() || text.len() > LONGEST || !text.bytes().all(fits) {
            return None;
        }
        let mut bytes = [0; LONGEST];
        bytes[..text.len()].copy_from_slice(text.as_bytes());
        Some(Name { bytes, length: text.len() as u8 })
    }

    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..usize::from(self.length)]).unwrap_or_default()
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

/// Serialises an enum with `as_str`, `parse` and `Other(Name)` as a string.
macro_rules! named {
    ($type:ty, $expecting:literal) => {
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<$type, D::Error> {
                let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
                let other = || $crate::Name::new(&text).map(Self::Other);
                Self::parse(&text)
                    .or_else(other)
                    .ok_or_else(|| serde::de::Error::invalid_value(serde::de::Unexpected::Str(&text), &$expecting))
            }
        }
    };
}
pub(crate) use named;
