//! Makes recordings with perf. One failed recording must not end a measurement of ten minutes: it is retried, and perf's output is
//! shown.

use crate::child::{Ended, ends_with_us};
use anyhow::{Context, bail};
use rustix::process::Signal;
use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// perf 6.1 may crash while it fills its build-id cache ("buffer overflow detected"), and, while others have a dozen BPF programs loaded,
/// also on reading its own file ("assertion failed at util/build-id.c:1010"). Such programs go away soon.
const ATTEMPTS: u32 = 8;
const PAUSE: Duration = Duration::from_secs(5);
/// How many lines of perf's output are shown.
const SAID: usize = 5;

/// Records `work` into `data` and checks that perf can read it. Both end with us.
pub fn record(data: &Path, options: &[&str], work: &[&str], environment: &[(&str, &str)]) -> anyhow::Result<()> {
    let mut attempt = 1;
    loop {
        let without_copies: &[&str] = if attempt > 2 { &["--no-buildid-cache"] } else { &[] };
        let recorded = record_once(data, &[options, without_copies].concat(), work, environment);
        match recorded.and_then(|()| print(data, Path::new("/dev/null"), &["--no-inline"])) {
            Ok(()) => return Ok(()),
            Err(error) if attempt < ATTEMPTS => {
                eprintln!("{error:#}; trying again ({attempt} of {ATTEMPTS} attempts failed)");
                std::thread::sleep(PAUSE);
                attempt += 1;
            }
            Err(error) => return Err(error.context(format!("{ATTEMPTS} attempts"))),
        }
    }
}

fn record_once(data: &Path, options: &[&str], work: &[&str], environment: &[(&str, &str)]) -> anyhow::Result<()> {
    let said = data.with_extension("said");
    let mut perf = Command::new("perf");
    perf.arg("record").args(options).arg("-o").arg(data).arg("--").args(work).envs(environment.iter().copied());
    perf.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&said)?);
    let perf = ends_with_us(&mut perf).spawn().context("perf cannot be started; install linux-perf")?;
    let status = Ended::by(Signal::TERM, perf).child.wait()?;
    if !status.success() {
        bail!("perf record failed ({status}): {}", last_lines(&said));
    }
    if std::fs::metadata(data).map_or(0, |about| about.len()) == 0 {
        bail!("perf record left no file: {}", last_lines(&said));
    }
    Ok(())
}

fn last_lines(said: &Path) -> String {
    let text = std::fs::read(said).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    match lines[lines.len().saturating_sub(SAID)..].join(" / ") {
        said if said.is_empty() => "it said nothing".to_owned(),
        said => said,
    }
}

/// The recording as text.
pub fn script(data: &Path, text: &Path) -> anyhow::Result<()> {
    print(data, text, &["--header"])
}

fn print(data: &Path, text: &Path, options: &[&str]) -> anyhow::Result<()> {
    let said = data.with_extension("said");
    let mut perf = Command::new("perf");
    perf.arg("script").args(options).arg("-i").arg(data);
    perf.stdout(File::create(text)?).stderr(File::create(&said)?);
    let status = perf.status().context("perf cannot be started; install linux-perf")?;
    if !status.success() {
        bail!("perf script failed ({status}): {}", last_lines(&said));
    }
    Ok(())
}
