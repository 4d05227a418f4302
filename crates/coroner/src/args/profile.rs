//! The command line of the commands that read CPU profiles.

use crate::commands::profile::kept::Kept;
use clap::{Args as ClapArgs, ValueEnum};
use coroner_profile::import::Picked;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

#[derive(Debug, ClapArgs)]
pub struct ImportArgs {
    #[command(flatten)]
    pub source: SourceArgs,

    /// The recording to write, e.g. incident.coroner. It must not exist.
    #[arg(long, short, value_name = "FILE")]
    pub output: PathBuf,

    /// Print a summary as JSON (schema coroner.import/1).
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, ClapArgs)]
pub struct FlameArgs {
    #[command(flatten)]
    pub source: SourceArgs,

    #[command(flatten)]
    pub selection: SelectionArgs,

    #[command(flatten)]
    pub diff: DiffArgs,

    /// Leaves at the bottom: which functions cost most, and who calls them.
    #[arg(long)]
    pub invert: bool,

    #[command(flatten)]
    pub output: OutputArgs,

    /// Print one JSON document (schema coroner.flame/1).
    #[arg(long, conflicts_with_all = ["output", "to"])]
    pub json: bool,
}

// With --incident there is no FILE; what stands in its place is never read.
#[derive(Debug, ClapArgs)]
#[command(mut_arg("file", |file| file
    .required(false)
    .required_unless_present("incident")
    .conflicts_with("incident")
    .default_value_if("incident", clap::builder::ArgPredicate::IsPresent, "-")))]
pub struct ExportArgs {
    #[command(flatten)]
    pub source: SourceArgs,

    /// Copy the file of this incident out, for a colleague: `coroner diagnose --from`, `cores --from` and `flame` read it anywhere.
    #[arg(long, value_name = "N")]
    pub incident: Option<u64>,

    /// The recorder's directory that has the incident. [default: that of the running recorder, else /var/lib/coroner]
    #[arg(long, value_name = "DIR", requires = "incident")]
    pub dir: Option<PathBuf>,

    #[command(flatten)]
    pub selection: SelectionArgs,

    #[command(flatten)]
    pub output: OutputArgs,

    /// Print a summary as JSON (schema coroner.export/1).
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, ClapArgs)]
pub struct HeatmapArgs {
    #[command(flatten)]
    pub source: SourceArgs,

    #[command(flatten)]
    pub selection: SelectionArgs,

    /// Rows: each core with its owner, or each part of a second as FlameScope has it.
    #[arg(long, value_enum, default_value_t = By::Core, value_name = "WHAT")]
    pub by: By,

    /// Width of a column of the per-core heatmap: 100ms, 1s. [default: by the length of the profile, at least 50ms]
    #[arg(long, value_name = "DURATION", value_parser = parse_span, conflicts_with = "rows")]
    pub step: Option<Duration>,

    /// Parts of a second in the heatmap by offset: 1 to 1000.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000), default_value = "20")]
    pub rows: u16,

    /// Print one JSON document (schema coroner.heatmap/1).
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum By {
    /// Time × core: what each core did and who had it.
    Core,
    /// Second × part of the second, all selected cores together.
    Offset,
}

#[derive(Debug, ClapArgs)]
pub struct MonopoliesArgs {
    #[command(flatten)]
    pub source: SourceArgs,

    #[command(flatten)]
    pub selection: SelectionArgs,

    /// The shortest run to tell of: 100ms, 1s.
    #[arg(long, value_name = "DURATION", value_parser = parse_span, default_value = "100ms")]
    pub threshold: Duration,

    /// Show every run, not only the longest 20 (JSON always has them).
    #[arg(long, short)]
    pub all: bool,

    /// Print one JSON document (schema coroner.monopolies/1).
    #[arg(long)]
    pub json: bool,
}

/// What to read.
#[derive(Debug, Clone, ClapArgs)]
pub struct SourceArgs {
    /// A CPU profile: perf.data, the text of `perf script` or folded stacks (each also compressed by gzip), a recording of
    /// coroner or the directory of a recorder, also while it writes. `-` is the standard input.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    #[command(flatten)]
    pub reading: ReadingArgs,

    /// The samples of FILE, where they are in memory already.
    #[arg(skip)]
    pub kept: Option<Arc<Kept>>,

    /// Which part of a recording is read.
    #[arg(skip)]
    pub picked: Picked,

    /// Becomes true when nobody wants the answer any more.
    #[arg(skip)]
    pub stop: Option<Arc<AtomicBool>>,
}

/// How FILE is read.
#[derive(Debug, Clone, Default, ClapArgs)]
pub struct ReadingArgs {
    /// What FILE is, where it is not found out by itself.
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub input: Option<InputFormat>,

    /// Take the names of functions from the files below this directory: a copy of the recorded machine's root.
    /// [default: /, this machine's]
    #[arg(long, value_name = "DIR", conflicts_with = "no_symbols")]
    pub symbols: Option<PathBuf>,

    /// Look up no names of functions: addresses in perf.data stay `[module]`.
    #[arg(long)]
    pub no_symbols: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum InputFormat {
    PerfData,
    PerfScript,
    Folded,
    Recording,
}

/// Which samples.
#[derive(Debug, Clone, Default, ClapArgs)]
pub struct SelectionArgs {
    /// Only the last 2m, 500ms …, counted from the newest sample. [default: everything; of a recorder's directory 10m]
    #[arg(long, value_name = "DURATION", value_parser = parse_span, conflicts_with_all = ["since", "until", "range"], help_heading = "Which samples")]
    pub last: Option<Duration>,

    /// From here on: seconds from the first sample (12.5, 300ms, 2m), a time as perf script prints it (24915.802750), or wall-clock
    /// time in UTC (2026-11-16T05:51:42Z, 05:51:42) where the file knows it (perf record -k CLOCK_MONOTONIC).
    #[arg(long, value_name = "TIME", value_parser = parse_moment, help_heading = "Which samples")]
    pub since: Option<Moment>,

    /// Up to here, written as for --since.
    #[arg(long, value_name = "TIME", value_parser = parse_moment, help_heading = "Which samples")]
    pub until: Option<Moment>,

    /// One of several stretches of time, e.g. 10..12.5; may be given several times. Ends as for --since.
    #[arg(long, value_name = "FROM..TO", value_parser = parse_moments, conflicts_with_all = ["since", "until"], help_heading = "Which samples")]
    pub range: Vec<(Moment, Moment)>,

    /// The same part of every second, e.g. 300ms..400ms.
    #[arg(long, value_name = "FROM..TO", value_parser = parse_band, help_heading = "Which samples")]
    pub band: Option<(u64, u64)>,

    /// These cores: 1, or 0-3,7. May be given several times.
    #[arg(long, value_name = "CORES", value_parser = parse_cores, help_heading = "Which samples")]
    pub core: Vec<Cores>,

    /// The process with this id; may be given several times.
    #[arg(long, value_name = "PID", help_heading = "Which samples")]
    pub pid: Vec<u32>,

    /// The thread with this id; may be given several times.
    #[arg(long, value_name = "TID", help_heading = "Which samples")]
    pub tid: Vec<u32>,

    /// Threads with this whole name; may be given several times.
    #[arg(long, value_name = "NAME", help_heading = "Which samples")]
    pub comm: Vec<String>,

    /// The cgroup with this path, or those below it (perf record --all-cgroups).
    #[arg(long, value_name = "PATH", help_heading = "Which samples")]
    pub cgroup: Option<String>,

    /// Stacks with a function whose name contains this.
    #[arg(long, value_name = "TEXT", help_heading = "Which samples")]
    pub symbol: Option<String>,

    /// The event with this name, where the file has several. [default: for flame the clock or cycles, else all]
    #[arg(long, value_name = "NAME", help_heading = "Which samples")]
    pub event: Option<String>,
}

/// What to compare with.
#[derive(Debug, Clone, Default, ClapArgs)]
pub struct DiffArgs {
    /// Show the difference to this profile, the baseline: red grew since then, blue shrank. Shares are of each side's total.
    #[arg(long, value_name = "FILE2", help_heading = "Difference")]
    pub diff: Option<PathBuf>,

    /// The baseline begins here (written as for --since). Without --diff the baseline is this stretch of FILE itself.
    #[arg(long, value_name = "TIME", value_parser = parse_moment, help_heading = "Difference")]
    pub diff_since: Option<Moment>,

    /// The baseline ends here.
    #[arg(long, value_name = "TIME", value_parser = parse_moment, help_heading = "Difference")]
    pub diff_until: Option<Moment>,
}

/// Where to.
#[derive(Debug, Clone, ClapArgs)]
pub struct OutputArgs {
    /// The file to write: .svg, .folded, .pb.gz (pprof), .speedscope.json, or .coroner (export only). `-` is the standard output.
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// What to write, where the name of the file does not say it.
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub to: Option<OutputFormat>,

    /// How many threads read the text of perf script where whole files are folded.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64), default_value = "1")]
    pub threads: u16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OutputFormat {
    Svg,
    Folded,
    Pprof,
    Speedscope,
    Coroner,
}

/// A moment as people write it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// A plain number, in nanoseconds: from the first sample on; or of the recording's clock if it is not before that sample.
    Number(u64),
    /// With a unit: from the first sample on.
    FromStart(u64),
    /// Nanoseconds since 1970.
    Wall(u64),
    /// A time of the day on which the first sample was taken (UTC), in nanoseconds.
    TimeOfDay(u64),
    /// A reading of the recording's clock, whatever it says.
    Clock(u64),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cores(pub Vec<u32>);

pub fn parse_moment(text: &str) -> Result<Moment, String> {
    let wrong = || {
        "expected seconds from the first sample (12.5, 300ms, 2m), a time as perf script prints it (24915.802750) \
         or a wall-clock time in UTC (2026-11-16T05:51:42Z, 05:51:42)"
            .to_owned()
    };
    if let Some(ns) = seconds(text) {
        return Ok(Moment::Number(ns));
    }
    // Before durations, which may be written so, too: people paste times of the day.
    if text.contains(':')
        && !text.contains('-')
        && let Ok(time) = text.parse::<jiff::civil::Time>()
    {
        let ns = time.duration_since(jiff::civil::Time::midnight()).as_nanos();
        return u64::try_from(ns).map(Moment::TimeOfDay).map_err(|_| wrong());
    }
    if let Ok(duration) = text.trim_start_matches('+').parse::<jiff::SignedDuration>() {
        return u64::try_from(duration.as_nanos()).map(Moment::FromStart).map_err(|_| wrong());
    }
    let wall: jiff::Timestamp = match text.parse() {
        Ok(wall) => wall,
        // Without a zone it is UTC, as everything here.
        Err(_) => {
            let civil: jiff::civil::DateTime = text.parse().map_err(|_| wrong())?;
            civil.to_zoned(jiff::tz::TimeZone::UTC).map_err(|_| wrong())?.timestamp()
        }
    };
    u64::try_from(wall.as_nanosecond()).map(Moment::Wall).map_err(|_| wrong())
}

/// `12`, `12.5` in nanoseconds, exactly.
fn seconds(text: &str) -> Option<u64> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(part) || part.len() > 9 {
        return None;
    }
    let nanoseconds: u64 = format!("{part:0<9}").parse().ok()?;
    whole.parse::<u64>().ok()?.checked_mul(1_000_000_000)?.checked_add(nanoseconds)
}

fn parse_moments(text: &str) -> Result<(Moment, Moment), String> {
    let (from, to) = text.split_once("..").ok_or("expected FROM..TO, e.g. 10..12.5")?;
    Ok((parse_moment(from)?, parse_moment(to)?))
}

pub fn parse_band(text: &str) -> Result<(u64, u64), String> {
    let expected = "expected a part of a second, e.g. 300ms..400ms or 0.3..0.4";
    let (from, to) = text.split_once("..").ok_or(expected)?;
    let offset = |text: &str| match parse_moment(text) {
        Ok(Moment::Number(ns) | Moment::FromStart(ns)) if ns <= 1_000_000_000 => Ok(ns),
        _ => Err(expected.to_owned()),
    };
    let (from, to) = (offset(from)?, offset(to)?);
    // From 900 to 100 ms goes over the turn of the second.
    if from != to { Ok((from, to)) } else { Err(format!("{expected}: it must not be empty")) }
}

pub fn parse_cores(text: &str) -> Result<Cores, String> {
    let expected = || "expected cores such as 1 or 0-3,7".to_owned();
    let mut cores = Vec::new();
    for part in text.split(',') {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        let (from, to): (u32, u32) = (from.parse().map_err(|_| expected())?, to.parse().map_err(|_| expected())?);
        if from > to || to > 65_535 {
            return Err(expected());
        }
        cores.extend(from..=to);
    }
    Ok(Cores(cores))
}

/// A stretch of time, from a microsecond to a day.
pub fn parse_span(text: &str) -> Result<Duration, String> {
    let ns = match parse_moment(text) {
        Ok(Moment::Number(ns) | Moment::FromStart(ns)) => ns,
        _ => return Err("expected a duration such as 100ms or 1s".to_owned()),
    };
    let duration = Duration::from_nanos(ns);
    if duration < Duration::from_micros(1) || duration > Duration::from_secs(24 * 3600) {
        return Err("must be between 1us and 24h".to_owned());
    }
    Ok(duration)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_what_people_write() {
        assert_eq!(parse_moment("12.5"), Ok(Moment::Number(12_500_000_000)));
        assert_eq!(parse_moment("24915.802750"), Ok(Moment::Number(24_915_802_750_000)));
        assert_eq!(parse_moment("300ms"), Ok(Moment::FromStart(300_000_000)));
        assert_eq!(parse_moment("2m"), Ok(Moment::FromStart(120_000_000_000)));
        assert_eq!(parse_moment("1970-01-01T00:00:01Z"), Ok(Moment::Wall(1_000_000_000)));
        assert_eq!(parse_moment("1970-01-01 00:00:01"), Ok(Moment::Wall(1_000_000_000)));
        assert_eq!(parse_moment("00:01:00.5"), Ok(Moment::TimeOfDay(60_500_000_000)));
        for wrong in ["", "-1", "-5s", "soon", "1.2.3", "99999999999999999999", "12.0000000001"] {
            assert!(parse_moment(wrong).is_err(), "{wrong:?} was accepted");
        }
        assert_eq!(parse_moments("1..2.5"), Ok((Moment::Number(1_000_000_000), Moment::Number(2_500_000_000))));
    }

    #[test]
    fn bands_and_cores() {
        assert_eq!(parse_band("0.3..0.4"), Ok((300_000_000, 400_000_000)));
        assert_eq!(parse_band("900ms..1s"), Ok((900_000_000, 1_000_000_000)));
        assert_eq!(parse_band("0.9..0.1"), Ok((900_000_000, 100_000_000)));
        assert!(parse_band("0.4..0.4").is_err() && parse_band("0..2").is_err());
        assert_eq!(parse_cores("0-2,7"), Ok(Cores(vec![0, 1, 2, 7])));
        assert!(parse_cores("3-1").is_err() && parse_cores("0-99999999").is_err() && parse_cores("a").is_err());
    }
}
