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

    /// Put leaf functions at the bottom: which functions cost most, and what calls them.
    #[arg(long)]
    pub invert: bool,

    #[command(flatten)]
    pub output: OutputArgs,

    /// Print one JSON document (schema coroner.flame/1).
    #[arg(long, conflicts_with_all = ["output", "to"])]
    pub json: bool,
}

// With --incident there is no FILE; the placeholder is never read.
#[derive(Debug, ClapArgs)]
#[command(mut_arg("file", |file| file
    .required(false)
    .required_unless_present("incident")
    .conflicts_with("incident")
    .default_value_if("incident", clap::builder::ArgPredicate::IsPresent, "-")))]
pub struct ExportArgs {
    #[command(flatten)]
    pub source: SourceArgs,

    /// Copy out the file of this incident, for a colleague: `coroner diagnose --from`, `cores --from` and `flame` read it anywhere.
    #[arg(long, value_name = "N")]
    pub incident: Option<u64>,

    /// The recorder's directory. [default: that of the running recorder, otherwise /var/lib/coroner]
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

    /// Rows: each core with its owner, or parts of a second like FlameScope.
    #[arg(long, value_enum, default_value_t = By::Core, value_name = "WHAT")]
    pub by: By,

    /// Width of a column of the per-core heatmap: 100ms, 1s. [default: depends on the length of the profile, at least 50ms]
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
    /// Time × core: what each core did, and its owner.
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

    /// Shortest run to list: 100ms, 1s.
    #[arg(long, value_name = "DURATION", value_parser = parse_span, default_value = "100ms")]
    pub threshold: Duration,

    /// Show every run, not only the longest 20 (always in JSON).
    #[arg(long, short)]
    pub all: bool,

    /// Print one JSON document (schema coroner.monopolies/1).
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Clone, ClapArgs)]
pub struct SourceArgs {
    /// A CPU profile: perf.data, `perf script` text or folded stacks (also gzipped), a recording, or a recorder's directory (even
    /// while it is being written). `-` is standard input.
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

#[derive(Debug, Clone, Default, ClapArgs)]
pub struct ReadingArgs {
    /// Input format. [default: detect]
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub input: Option<InputFormat>,

    /// Take function names from the files in this directory, a copy of the recorded machine's root. [default: /]
    #[arg(long, value_name = "DIR", conflicts_with = "no_symbols")]
    pub symbols: Option<PathBuf>,

    /// Do not look up function names: addresses in perf.data stay `[module]`.
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

#[derive(Debug, Clone, Default, ClapArgs)]
pub struct SelectionArgs {
    /// Only the last 2m, 500ms …, up to the newest sample. [default: everything; for a recorder's directory, 10m]
    #[arg(long, value_name = "DURATION", value_parser = parse_span, conflicts_with_all = ["since", "until", "range"], help_heading = "Which samples")]
    pub last: Option<Duration>,

    /// Start here: seconds from the first sample (12.5, 300ms, 2m), a time as printed by perf script (24915.802750), or a UTC
    /// wall-clock time (2026-11-16T05:51:42Z, 05:51:42) if the file has one (perf record -k CLOCK_MONOTONIC).
    #[arg(long, value_name = "TIME", value_parser = parse_moment, help_heading = "Which samples")]
    pub since: Option<Moment>,

    /// End here, same format as --since.
    #[arg(long, value_name = "TIME", value_parser = parse_moment, help_heading = "Which samples")]
    pub until: Option<Moment>,

    /// A time range, e.g. 10..12.5. Repeatable. Both ends have the same format as --since.
    #[arg(long, value_name = "FROM..TO", value_parser = parse_moments, conflicts_with_all = ["since", "until"], help_heading = "Which samples")]
    pub range: Vec<(Moment, Moment)>,

    /// The same part of every second, e.g. 300ms..400ms.
    #[arg(long, value_name = "FROM..TO", value_parser = parse_band, help_heading = "Which samples")]
    pub band: Option<(u64, u64)>,

    /// These cores: 1, or 0-3,7. Repeatable.
    #[arg(long, value_name = "CORES", value_parser = parse_cores, help_heading = "Which samples")]
    pub core: Vec<Cores>,

    /// The process with this id. Repeatable.
    #[arg(long, value_name = "PID", help_heading = "Which samples")]
    pub pid: Vec<u32>,

    /// The thread with this id. Repeatable.
    #[arg(long, value_name = "TID", help_heading = "Which samples")]
    pub tid: Vec<u32>,

    /// Threads with exactly this name. Repeatable.
    #[arg(long, value_name = "NAME", help_heading = "Which samples")]
    pub comm: Vec<String>,

    /// The cgroup with this path, and those below it (needs perf record --all-cgroups).
    #[arg(long, value_name = "PATH", help_heading = "Which samples")]
    pub cgroup: Option<String>,

    /// Stacks with a function whose name contains this.
    #[arg(long, value_name = "TEXT", help_heading = "Which samples")]
    pub symbol: Option<String>,

    /// The event with this name, if the file has several. [default: for flame the clock or cycles, otherwise all]
    #[arg(long, value_name = "NAME", help_heading = "Which samples")]
    pub event: Option<String>,
}

type Cores = Vec<u32>;

impl SelectionArgs {
    pub fn selection(&self) -> Selection {
        let SelectionArgs { last, since, until, range, band, core, pid, tid, comm, cgroup, symbol, event } =
            self.clone();
        let core = core.concat();
        Selection { last, since, until, range, band, core, pid, tid, comm, cgroup, symbol, event }
    }
}

#[derive(Debug, Clone, Default, ClapArgs)]
pub struct DiffArgs {
    /// Show the difference to this baseline profile: red grew, blue shrank. Shares are of each side's total.
    #[arg(long, value_name = "FILE2", help_heading = "Difference")]
    pub diff: Option<PathBuf>,

    /// Start of the baseline (same format as --since). Without --diff, the baseline is a part of FILE itself.
    #[arg(long, value_name = "TIME", value_parser = parse_moment, help_heading = "Difference")]
    pub diff_since: Option<Moment>,

    /// End of the baseline.
    #[arg(long, value_name = "TIME", value_parser = parse_moment, help_heading = "Difference")]
    pub diff_until: Option<Moment>,
}

#[derive(Debug, Clone, ClapArgs)]
pub struct OutputArgs {
    /// The file to write: .svg, .folded, .pb.gz (pprof), .speedscope.json, or .coroner (export only). `-` is standard output.
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// Output format. [default: from the file name]
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub to: Option<OutputFormat>,

    /// Number of threads that read perf script text when a whole file is folded.
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
