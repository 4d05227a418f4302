//! `--report FILE`.

use super::profile::out;
use crate::args::ReportArgs;
use crate::output::safe;
use anyhow::{Context, bail, ensure};
use std::path::Path;

impl ReportArgs {
    /// Fails early, before a node is watched in vain.
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
            bail!("{}: there is no directory {}", path.display(), directory.display());
        }
        from.map_or(Ok(()), |from| out::must_not_be(Some(path), from))
    }

    /// The report replaces the usual output.
    pub fn is_stdout(&self) -> bool {
        self.report.as_deref() == Some(Path::new("-"))
    }

    /// Writes the report, if one was asked for: completely or not at all.
    pub fn write(&self, render: impl FnOnce(&str) -> String) -> anyhow::Result<()> {
        let Some(path) = self.report.as_deref() else { return Ok(()) };
        let text = render(&command());
        out::write(Some(path), |to| to.write_all(safe::text(&text).as_bytes()))
    }

    pub fn told(&self) -> String {
        match &self.report {
            Some(path) if !self.is_stdout() => format!("Report: {}\n", path.display()),
            _ => String::new(),
        }
    }
}

/// The command line, quoted for a shell.
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
    fn arguments_are_quoted_for_a_shell() {
        assert_eq!(quoted("--from=/a/b.coroner"), "--from=/a/b.coroner");
        assert_eq!(quoted("it's here"), r"'it'\''s here'");
        assert_eq!(quoted(""), "''");
    }
}
