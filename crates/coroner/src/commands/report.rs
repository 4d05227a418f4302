//! `--report FILE`: where a report goes.

use super::profile::out;
use crate::args::ReportArgs;
use crate::output::safe;
use anyhow::{Context, bail, ensure};
use std::path::Path;

impl ReportArgs {
    /// Tells what cannot work before a node is watched for it.
    pub fn check(&self, json: bool, from: Option<&Path>) -> anyhow::Result<()> {
        let Some(path) = self.report.as_deref() else { return Ok(()) };
        if self.is_stdout() {
            ensure!(!json, "--json and --report - would both write to standard output; name a file: --report x.md");
            return Ok(());
        }
        ensure!(!path.is_dir(), "{}: this is a directory; name a file: --report x.md", path.display());
        let to = out::destination(path).with_context(|| format!("{}: cannot write it", path.display()))?;
        let directory = to.parent().filter(|parent| !parent.as_os_str().is_empty());
        if let Some(directory) = directory.filter(|directory| !directory.is_dir()) {
            bail!("{}: there is no directory {} to write it to", path.display(), directory.display());
        }
        from.map_or(Ok(()), |from| out::must_not_be(Some(path), from))
    }

    /// The report takes the place of what is printed otherwise.
    pub fn is_stdout(&self) -> bool {
        self.report.as_deref() == Some(Path::new("-"))
    }

    /// Writes what `render` makes, if a report is asked for: whole, or not at all.
    pub fn write(&self, render: impl FnOnce(&str) -> String) -> anyhow::Result<()> {
        let Some(path) = self.report.as_deref() else { return Ok(()) };
        let text = render(&command());
        out::write(Some(path), |to| to.write_all(safe::text(&text).as_bytes()))
    }

    /// What is said of it to people.
    pub fn told(&self) -> String {
        match &self.report {
            Some(path) if !self.is_stdout() => format!("Report: {}\n", path.display()),
            _ => String::new(),
        }
    }
}

/// What was called, as one would type it.
fn command() -> String {
    let arguments = std::env::args_os().skip(1).map(|argument| quoted(&argument.to_string_lossy()));
    std::iter::once("coroner".to_owned()).chain(arguments).collect::<Vec<_>>().join(" ")
}

fn quoted(argument: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "-_./:=@,+%".contains(c);
    match !argument.is_empty() && argument.chars().all(is_plain) {
        true => argument.to_owned(),
        false => format!("'{}'", argument.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_can_be_typed_again() {
        assert_eq!(quoted("--from=/a/b.coroner"), "--from=/a/b.coroner");
        assert_eq!(quoted("it's here"), r"'it'\''s here'");
        assert_eq!(quoted(""), "''");
    }
}
