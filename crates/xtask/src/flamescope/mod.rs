//! Netflix/flamescope, which no package manager has: set `FLAMESCOPE_DIR` to a checkout.

use std::path::Path;
use std::process::Command;

/// A command that calls FlameScope's own functions, with the profile as `path`. `None` if FlameScope is not installed.
pub fn command(script: &str, profile: &Path) -> Option<Command> {
    let directory = std::env::var_os("FLAMESCOPE_DIR")?;
    let mut command = Command::new("python3");
    command.arg("-c").arg([include_str!("stubs.py"), script].concat()).arg(directory).arg(profile);
    Some(command)
}
