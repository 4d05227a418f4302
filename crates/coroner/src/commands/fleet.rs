//! `coroner fleet`: runs the program coroner-fleet, which links a database and more than a node should carry.

use crate::args::FleetArgs;
use crate::exit::Exit;
use anyhow::bail;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

const PROGRAM: &str = "coroner-fleet";

/// Beside this program, otherwise in PATH. Returns only if it could not be run.
pub fn run(args: &FleetArgs) -> anyhow::Result<Exit> {
    let beside = std::env::current_exe().ok().map(|ours| ours.with_file_name(PROGRAM)).filter(|path| path.is_file());
    let program = beside.unwrap_or_else(|| PathBuf::from(PROGRAM));
    let error = Command::new(&program).args(&args.arguments).exec();
    if error.kind() == std::io::ErrorKind::NotFound {
        bail!(
            "the program {PROGRAM} is neither beside this one nor in PATH. It is built apart, as nodes do not need it: \
             cargo build --release -p {PROGRAM}"
        );
    }
    bail!("cannot run {}: {error}", program.display())
}
