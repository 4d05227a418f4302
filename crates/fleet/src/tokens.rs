//! The two secrets of a collector: one for nodes, which may only report, and one for people, who may only read.

use anyhow::{Context, ensure};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Shorter ones can be guessed.
const SHORTEST: usize = 16;
const LONGEST: usize = 512;

#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    pub fn read(file: &Path) -> anyhow::Result<Token> {
        let text =
            std::fs::read_to_string(file).with_context(|| format!("cannot read the token in {}", file.display()))?;
        let text = text.trim();
        let is_plain = text.bytes().all(|byte| byte.is_ascii_graphic());
        ensure!(
            (SHORTEST..=LONGEST).contains(&text.len()) && is_plain,
            "{}: a token has {SHORTEST} to {LONGEST} printable characters without spaces",
            file.display()
        );
        Ok(Token(text.to_owned()))
    }

    /// Reads it, or makes one at random.
    pub fn read_or_make(file: &Path) -> anyhow::Result<Token> {
        // The disk was full when it was made.
        if std::fs::metadata(file).is_ok_and(|about| about.is_file() && about.len() == 0) {
            std::fs::remove_file(file).with_context(|| format!("cannot remove the empty {}", file.display()))?;
        }
        let made = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(file);
        match made {
            Ok(mut new) => {
                let random =
                    || std::fs::read_to_string("/proc/sys/kernel/random/uuid").map(|uuid| uuid.trim().replace('-', ""));
                let text = random().and_then(|one| Ok(one + &random()?)).context("no random numbers")?;
                writeln!(new, "{text}").with_context(|| format!("cannot write {}", file.display()))?;
            }
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error).with_context(|| format!("cannot write {}", file.display())),
        }
        Token::read(file)
    }

    /// Compares in constant time.
    pub fn is(&self, given: &str) -> bool {
        let (ours, theirs) = (self.0.as_bytes(), given.as_bytes());
        let differences = ours.iter().zip(theirs).fold(0, |sum, (a, b)| sum | (a ^ b));
        ours.len() == theirs.len() && differences == 0
    }

    /// The same secret in digits and letters only, as a cookie takes it.
    pub fn in_hex(&self) -> Token {
        Token(self.0.bytes().map(|byte| format!("{byte:02x}")).collect())
    }

    pub fn text(&self) -> &str {
        &self.0
    }
}
