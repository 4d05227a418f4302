//! The configuration file: TOML, every key optional, nothing guessed. Unknown keys and invalid values are errors that name file
//! and line: a recorder that runs for months with a misspelt limit helps nobody.

use super::{Config, ReportConfig};
use anyhow::{Context, anyhow, bail};
use serde::Deserialize;
use serde::de::{self, Deserializer, Visitor};
use std::fmt;
use std::io::Read;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

/// The service's configuration file.
pub const DEFAULT_FILE: &str = "/etc/coroner/coroner.toml";

/// Each sample costs its core about 25 µs in a VM: at this rate 2.5 % of its time, which nobody should pay for long.
const HIGHEST_RATE: u32 = 999;
/// A segment needs room for its dictionaries and for the chunk being written.
const SMALLEST: u64 = 8 << 20;
/// Below this, every compiler run would be an incident.
const SHORTEST_SATURATION: Duration = Duration::from_secs(1);
/// Not for the cost, which `max_cpu` bounds: more often than this there is nothing new to say.
const SHORTEST_PAUSE: Duration = Duration::from_secs(10);
/// Room for hours without a collector.
const SMALLEST_SPOOL: u64 = 1 << 20;
const SHORTEST_REPORT: Duration = Duration::from_secs(1);
/// Each label is an attribute by which a fleet groups its nodes.
const MOST_LABELS: usize = 32;
const LONGEST_LABEL: usize = 128;
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// Far more than any configuration needs; /dev/zero never ends.
const MOST_BYTES: u64 = 1 << 20;

fn read_bounded(path: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    let read = std::fs::File::open(path)?.take(MOST_BYTES + 1).read_to_string(&mut text)?;
    if read as u64 > MOST_BYTES {
        return Err(std::io::Error::other("larger than 1 MiB: not a configuration file"));
    }
    Ok(text)
}

impl Config {
    /// Reads the named file; without one, [`DEFAULT_FILE`] if it exists.
    pub fn read(file: Option<&Path>) -> anyhow::Result<Config> {
        let path = file.unwrap_or(Path::new(DEFAULT_FILE));
        let text = match read_bounded(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && file.is_none() => {
                return Ok(Config::default());
            }
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
        };
        Config::parse(&text, path)
    }

    /// `path` is for error messages only.
    pub fn parse(text: &str, path: &Path) -> anyhow::Result<Config> {
        let config: Config = toml::from_str(text).map_err(|error| explain(text, path, &error))?;
        config.check().with_context(|| path.display().to_string())?;
        Ok(config)
    }

    /// Rejects values out of range, whether from the file or from arguments.
    pub fn check(&self) -> anyhow::Result<()> {
        check_size("max_size", self.max_size)?;
        check_size("incidents.max_size", self.incidents.max_size)?;
        for (key, rate) in [("rate", self.rate), ("incidents.escalate_rate", self.incidents.escalate_rate)] {
            if rate > HIGHEST_RATE {
                bail!("{key} = {rate}: expected at most {HIGHEST_RATE} samples a second");
            }
        }
        let incidents = &self.incidents;
        for (key, time) in [
            ("incidents.before", incidents.before),
            ("incidents.after", incidents.after),
            ("incidents.escalate_for", incidents.escalate_for),
            ("incidents.escalate_per_hour", incidents.escalate_per_hour),
            ("incidents.hook_every", incidents.hook_every),
            ("incidents.quiet", incidents.quiet),
            ("triggers.core_saturated", self.triggers.core_saturated),
            ("triggers.starved", self.triggers.starved),
            ("diagnosis.every", self.diagnosis.every),
        ] {
            if time > LONGEST {
                bail!("{key} = {time:?}: expected at most 24h");
            }
        }
        let saturated = self.triggers.core_saturated;
        if !saturated.is_zero() && saturated < SHORTEST_SATURATION {
            bail!("triggers.core_saturated = {saturated:?}: expected \"0s\" or at least \"1s\"");
        }
        let every = self.diagnosis.every;
        if !every.is_zero() && every < SHORTEST_PAUSE {
            bail!("diagnosis.every = {every:?}: expected \"0s\" (never) or at least \"10s\"");
        }
        let max_cpu = self.diagnosis.max_cpu;
        if !(0.01..=100.0).contains(&max_cpu) {
            bail!("diagnosis.max_cpu = {max_cpu}: expected 0.01 to 100 (percent of one core)");
        }
        if let Some(command) = incidents.hook.first()
            && !command.starts_with('/')
        {
            bail!(
                "incidents.hook = [{command:?}, …]: expected the absolute path of a command; it is run without a shell"
            );
        }
        if let Some(listen) = self.metrics.listen {
            check_listen(listen).context("metrics.listen")?;
        }
        check_report(&self.report)
    }
}

fn check_report(report: &ReportConfig) -> anyhow::Result<()> {
    if let Some(to) = &report.to {
        let rest = to.strip_prefix("https://").or_else(|| to.strip_prefix("http://"));
        let is_plain = |c: char| c.is_ascii_graphic() && !matches!(c, '?' | '#' | '@' | '"' | '<' | '>' | '\\');
        if rest.is_none_or(|rest| rest.is_empty() || rest.starts_with('/') || !rest.chars().all(is_plain)) {
            bail!("report.to = {to:?}: expected the collector's URL: https://HOST[:PORT] or http://HOST[:PORT]");
        }
    }
    if report.max_size < SMALLEST_SPOOL {
        bail!("report.max_size = {}: expected at least 1MiB", report.max_size);
    }
    if report.every < SHORTEST_REPORT || report.every > LONGEST {
        bail!("report.every = {:?}: expected \"1s\" to \"24h\"", report.every);
    }
    let stacks = report.stacks_every;
    if !stacks.is_zero() && !(SHORTEST_REPORT..=LONGEST).contains(&stacks) {
        bail!("report.stacks_every = {stacks:?}: expected \"0s\" (never) or \"1s\" to \"24h\"");
    }
    if report.labels.len() > MOST_LABELS {
        bail!("report.labels: {} labels; expected at most {MOST_LABELS}", report.labels.len());
    }
    let names = report.labels.iter().flat_map(|(name, value)| [name, value]).chain(&report.cluster).chain(&report.node);
    for name in names {
        if name.is_empty() || name.len() > LONGEST_LABEL || name.chars().any(char::is_control) {
            bail!(
                "report: label, cluster or node {name:?}: expected 1 to {LONGEST_LABEL} bytes without control characters"
            );
        }
    }
    Ok(())
}

/// An empty text is none.
pub(super) fn optional<'de, D: Deserializer<'de>, T: From<String>>(deserializer: D) -> Result<Option<T>, D::Error> {
    let text = String::deserialize(deserializer)?;
    Ok((!text.is_empty()).then(|| T::from(text)))
}

fn check_size(key: &str, size: u64) -> anyhow::Result<()> {
    if size < SMALLEST {
        bail!("{key} = {size}: expected at least {}MiB", SMALLEST >> 20);
    }
    Ok(())
}

/// /metrics has no authentication and names units, cgroups and devices: it must stay on the node.
fn check_listen(listen: SocketAddr) -> anyhow::Result<()> {
    if listen.ip().is_loopback() {
        return Ok(());
    }
    bail!(
        "{listen}: /metrics has no authentication and is served on loopback only. Expected 127.0.0.1:{port} or [::1]:{port}, or \
         \"off\". To read it from elsewhere, use an authenticating proxy or forward the port: ssh -L {port}:127.0.0.1:{port} \
         NODE",
        port = listen.port()
    )
}

/// The address of /metrics: a loopback address, or `off`.
pub fn parse_listen(text: &str) -> Result<Option<SocketAddr>, String> {
    if text == "off" {
        return Ok(None);
    }
    let address: SocketAddr = text
        .parse()
        .map_err(|_| format!("{text:?} is not an address: expected e.g. \"127.0.0.1:9478\", or \"off\""))?;
    check_listen(address).map_err(|error| error.to_string())?;
    Ok(Some(address))
}

/// Bytes as people write them: `2GiB`, `512MB`, `1048576`.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let expected = || format!("{text:?} is not a size: expected e.g. 2GiB, 512MB or 1048576 (bytes)");
    let text_without_space = text.trim();
    let digits = text_without_space.find(|c: char| !c.is_ascii_digit()).unwrap_or(text_without_space.len());
    let (number, unit) = text_without_space.split_at(digits);
    let number: u64 = number.parse().map_err(|_| expected())?;
    let factor: u64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => return Err(expected()),
    };
    number.checked_mul(factor).ok_or_else(expected)
}

fn parse_time(text: &str) -> Result<Duration, String> {
    let expected = || format!("{text:?} is not a duration: expected e.g. \"120s\", \"10m\" or \"500ms\"");
    let parsed: jiff::SignedDuration = text.parse().map_err(|_| expected())?;
    Duration::try_from(parsed).map_err(|_| expected())
}

/// toml's own message, prefixed with `file:line:` as editors understand it.
fn explain(text: &str, path: &Path, error: &toml::de::Error) -> anyhow::Error {
    let message = error.message().trim();
    let Some(span) = error.span() else { return anyhow!("{}: {message}", path.display()) };
    let before = text.get(..span.start).unwrap_or(text);
    let number = before.bytes().filter(|&b| b == b'\n').count();
    let line = text.lines().nth(number).unwrap_or("").trim();
    anyhow!("{}:{}: {message}: `{line}`", path.display(), number + 1)
}

/// `deserialize_with` for sizes: text, or a number of bytes.
pub(super) fn size<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    struct Bytes;
    impl Visitor<'_> for Bytes {
        type Value = u64;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a size such as \"2GiB\", \"512MB\" or 1048576 (bytes)")
        }
        fn visit_str<E: de::Error>(self, text: &str) -> Result<u64, E> {
            parse_size(text).map_err(E::custom)
        }
        fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<u64, E> {
            u64::try_from(bytes).map_err(|_| E::invalid_value(de::Unexpected::Signed(bytes), &self))
        }
    }
    from.deserialize_any(Bytes)
}

/// The same for durations, which need a unit.
pub(super) fn time<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    struct Text;
    impl Visitor<'_> for Text {
        type Value = Duration;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a duration such as \"120s\" or \"10m\"")
        }
        fn visit_str<E: de::Error>(self, text: &str) -> Result<Duration, E> {
            parse_time(text).map_err(E::custom)
        }
    }
    from.deserialize_any(Text)
}

pub(super) fn listen<'de, D: Deserializer<'de>>(from: D) -> Result<Option<SocketAddr>, D::Error> {
    parse_listen(&String::deserialize(from)?).map_err(de::Error::custom)
}

#[cfg(test)]
#[path = "file_tests.rs"]
mod tests;
