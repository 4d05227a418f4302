//! The command line of the commands that read CPU profiles.

use clap::{Args as ClapArgs, ValueEnum};
use coroner_profile::import::Format;
use coroner_source::moment::{Moment, parse_band, parse_cores, parse_moment, parse_moments, parse_span};
use coroner_source::profile::select::Selection;
use coroner_source::profile::{ProfileSource, Reading};
use std::path::PathBuf;
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
}

impl SourceArgs {
    pub fn source(&self) -> ProfileSource {
        ProfileSource { file: self.file.clone(), reading: self.reading.reading(), ..ProfileSource::default() }
    }
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

impl ReadingArgs {
    pub fn reading(&self) -> Reading {
        let input = self.input.map(|input| match input {
            InputFormat::PerfData => Format::PerfData,
            InputFormat::PerfScript => Format::PerfScript,
            InputFormat::Folded => Format::Folded,
            InputFormat::Recording => Format::Recording,
        });
        Reading { input, symbols: self.symbols.clone(), no_symbols: self.no_symbols }
    }
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

/// What one --core names.
type Cores = Vec<u32>;

impl SelectionArgs {
    pub fn selection(&self) -> Selection {
        let SelectionArgs { last, since, until, range, band, core, pid, tid, comm, cgroup, symbol, event } =
            self.clone();
        let core = core.concat();
        Selection { last, since, until, range, band, core, pid, tid, comm, cgroup, symbol, event }
    }
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
