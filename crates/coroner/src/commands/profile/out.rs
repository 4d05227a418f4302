//! Output files.

#![allow(clippy::disallowed_methods, reason = "profiles of other tools' formats are written byte for byte")]

use crate::args::profile::{OutputArgs, OutputFormat};
use crate::output::print;
use anyhow::{Context, bail};
use std::io::{self, BufWriter, IsTerminal, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

pub const NAMES: &str = ".svg, .folded, .pb.gz, .speedscope.json or .coroner";

pub fn format(output: &OutputArgs) -> anyhow::Result<OutputFormat> {
    if let Some(format) = output.to {
        return Ok(format);
    }
    let path = output.output.as_deref().context("name the output file: -o FILE")?;
    let name = path.to_string_lossy().to_lowercase();
    let ends = |with: &[&str]| with.iter().any(|end| name.ends_with(end));
    Ok(match () {
        () if ends(&[".svg"]) => OutputFormat::Svg,
        () if ends(&[".folded", ".collapsed"]) => OutputFormat::Folded,
        () if ends(&[".pb.gz", ".pprof", ".pb"]) => OutputFormat::Pprof,
        () if ends(&[".speedscope.json", ".speedscope"]) => OutputFormat::Speedscope,
        () if ends(&[".coroner"]) => OutputFormat::Coroner,
        () => bail!("{}: cannot tell the format from the name; end it in {NAMES}, or use --to FORMAT", path.display()),
    })
}

/// The output must not overwrite the input.
pub fn must_not_be(output: Option<&Path>, input: &Path) -> anyhow::Result<()> {
    let id = |path: &Path| std::fs::metadata(path).ok().map(|about| (about.dev(), about.ino()));
    if let Some(output) = output
        && output != Path::new("-")
        && id(output).is_some()
        && id(output) == id(input)
    {
        bail!("{}: this is the input file; write to another one", output.display());
    }
    Ok(())
}

/// The kernel's MAXSYMLINKS: more are a loop.
const MOST_LINKS: usize = 40;

/// The target of a link, whether it exists or not: the target is written, and the link stays.
pub fn destination(path: &Path) -> io::Result<PathBuf> {
    let mut path = path.to_owned();
    for _ in 0..MOST_LINKS {
        // The kernel resolves what exists; a link in /proc/self/fd may lead to a file without a name.
        if path.exists() {
            return Ok(std::fs::canonicalize(&path).unwrap_or(path));
        }
        match std::fs::read_link(&path) {
            Ok(to) => path = path.parent().map_or_else(|| to.clone(), |parent| parent.join(&to)),
            Err(_) => return Ok(path),
        }
    }
    Err(rustix::io::Errno::LOOP.into())
}

/// Writes a file completely or not at all, so that a failure does not destroy an older one. `-` or nothing is standard
/// output: raw into a pipe, made safe on a terminal.
pub fn write(path: Option<&Path>, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> anyhow::Result<()> {
    let path = match path {
        Some(path) if path != Path::new("-") => path,
        _ => {
            if io::stdout().is_terminal() {
                let mut shown = Vec::new();
                write(&mut shown).context("cannot write to standard output")?;
                return print(&String::from_utf8_lossy(&shown)).context("cannot write to standard output");
            }
            let mut stdout = BufWriter::new(io::stdout().lock());
            return match write(&mut stdout).and_then(|()| stdout.flush()) {
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
                written => written.context("cannot write to standard output"),
            };
        }
    };
    let cannot = || format!("{}: cannot write it", path.display());
    let path = &destination(path).with_context(cannot)?;
    // A device or a pipe is written to, not replaced.
    if std::fs::metadata(path).is_ok_and(|about| !about.is_file()) {
        if path.is_dir() {
            bail!("{}: this is a directory; name a file", path.display());
        }
        let mut to = BufWriter::new(std::fs::File::options().write(true).open(path).with_context(cannot)?);
        return write(&mut to).and_then(|()| to.flush()).with_context(cannot);
    }
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let file = tempfile::Builder::new().prefix(".coroner-").tempfile_in(directory);
    // Its own message names the temporary file.
    let file = file.map_err(|error| io::Error::from(error.kind())).with_context(cannot)?;
    let mut to = BufWriter::new(file);
    write(&mut to).and_then(|()| to.flush()).with_context(cannot)?;
    let file = to.into_inner().map_err(|error| error.into_error()).with_context(cannot)?;
    // The old file's mode, or that of a new one; temporary files are private.
    let mode = std::fs::metadata(path).map_or(0o666 & !umask(), |about| about.mode() & 0o777);
    let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
    file.as_file().set_permissions(mode).with_context(cannot)?;
    file.persist(path).map_err(|error| error.error).with_context(cannot)?;
    Ok(())
}

fn umask() -> u32 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    mask.and_then(|mask| u32::from_str_radix(mask.trim(), 8).ok()).unwrap_or(0o077)
}
