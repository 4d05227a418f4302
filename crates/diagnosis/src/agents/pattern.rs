//! A regular expression that is compiled on first use: a catalogue has hundreds, a node needs a handful. Case is ignored, as
//! programs change it between versions.

use regex::bytes::{Regex, RegexBuilder};
use std::sync::OnceLock;

/// Limit of one compiled pattern: a user's `a{1000}{1000}` is refused.
const SIZE_LIMIT: usize = 1 << 20;

#[derive(Debug, Clone)]
pub struct Pattern {
    text: String,
    /// `None` inside if it does not compile.
    compiled: OnceLock<Option<Regex>>,
}

impl Pattern {
    pub fn new(text: String) -> Pattern {
        Pattern { text, compiled: OnceLock::new() }
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The error says why it is not a regular expression.
    pub fn check(&self) -> Result<(), String> {
        match compile(&self.text) {
            Ok(regex) => {
                let _ = self.compiled.set(Some(regex));
                Ok(())
            }
            Err(e) => Err(e.to_string().lines().last().unwrap_or_default().trim().to_owned()),
        }
    }

    pub fn is_match(&self, line: &str) -> bool {
        self.compiled
            .get_or_init(|| compile(&self.text).ok())
            .as_ref()
            .is_some_and(|regex| regex.is_match(line.as_bytes()))
    }
}

fn compile(text: &str) -> Result<Regex, regex::Error> {
    let build =
        |unicode| RegexBuilder::new(text).case_insensitive(true).unicode(unicode).size_limit(SIZE_LIMIT).build();
    // Without Unicode case folding it compiles several times faster; few patterns need it.
    build(false).or_else(|_| build(true))
}
