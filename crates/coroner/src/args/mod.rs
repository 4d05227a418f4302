//! The command line.

pub mod fix;
pub mod profile;
pub mod recorder;
pub mod view;

use fix::{FixArgs, UndoArgs};
use profile::{ExportArgs, FlameArgs, HeatmapArgs, ImportArgs, MonopoliesArgs};
use recorder::{ConditionArgs, DiagnoseRecordedArgs, FreezeArgs, HistoryArgs, IncidentsArgs, MarkArgs};
use view::ViewArgs;

use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};
use coroner_diagnosis::Code;
use coroner_diagnosis::units::paths::shell_word;
use coroner_diagnosis::waits::sums::By;
use coroner_recorder::config::parse_size;
use coroner_source::live::LiveNode;
use coroner_source::moment::{Moment, parse_moment};
use coroner_source::recorded::Query;
use std::path::PathBuf;
use std::time::Duration;

/// Tells why this Linux node starves or kills its jobs: in seconds, with evidence, naming the culprit and the safe fix.
///
/// Without a command it runs `coroner diagnose`: it watches this node for five seconds (or reads the last ten minutes of a running
/// recorder) and prints a verdict: the root cause, its effects with proof, what to do, what was ruled out, and what could not be
/// seen. It changes nothing. Best run as root.
///
/// Exit codes: 0 nothing wrong in what was seen, 1 a finding of severity warning or critical, 2 could not examine the node.
#[derive(Debug, Parser)]
#[command(name = "coroner", version, args_conflicts_with_subcommands = true, max_term_width = 110)]
pub struct Args {
    #[command(flatten)]
    pub diagnose: DiagnoseArgs,

    /// When to use colour.
    #[arg(long, global = true, value_enum, default_value_t = Color::Auto, value_name = "WHEN")]
    pub color: Color,

    #[command(subcommand)]
    pub command: Option<Command>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Color {
    /// On a terminal, unless NO_COLOR is set.
    Auto,
    Always,
    Never,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Watch this node for a few seconds, or read a recording, and say what is wrong.
    Diagnose(DiagnoseArgs),
    /// Show every core at sub-second resolution, with its owner and the NIC queues it serves.
    Cores(CoresArgs),
    /// Say who waited for a core, was throttled or blocked, and who had the core meanwhile.
    Waits(WaitsArgs),
    /// List dead memory cgroups that the kernel cannot free: what left them, what keeps them, what they cost.
    Zombies(ZombiesArgs),
    /// Audit the agents on this node, or in an image on disk: what crashloops, what nobody uses, what each costs.
    Units(UnitsArgs),
    /// Record this node into one file that can be diagnosed elsewhere; with --dir, run as a flight recorder.
    Record(RecordArgs),
    /// Show a CPU profile as a flame graph: in the terminal, as an SVG, or as a file for other tools.
    Flame(FlameArgs),
    /// Show a CPU profile over time: each core with its owner, or second by second like FlameScope.
    Heatmap(HeatmapArgs),
    /// List the times when one thread had a core to itself and could starve others.
    Monopolies(MonopoliesArgs),
    /// Convert another tool's CPU profile into a recording.
    Import(ImportArgs),
    /// Write a CPU profile, or part of it, in the format of another tool; or copy out an incident.
    Export(ExportArgs),
    /// Open a page in the browser: verdict, cores, timeline and flame graphs of a recorder, a recording or a profile.
    View(ViewArgs),
    /// List the recorder's incidents, or show one.
    Incidents(IncidentsArgs),
    /// Make the running recorder freeze an incident now.
    Mark(MarkArgs),
    /// Plan the smallest step that removes the cause; with --apply, do it, measure again, and say whether it worked.
    Fix(Box<FixArgs>),
    /// Undo what `coroner fix --apply` did.
    Undo(UndoArgs),
    /// List what was wrong with this node and when, from the recorder's regular diagnoses.
    History(HistoryArgs),
    /// Say in one line and an exit code whether something is wrong: for node-problem-detector, kured and scripts.
    Condition(ConditionArgs),
    /// Collect reports of many nodes and say what the sick ones have in common (runs the program coroner-fleet).
    Fleet(FleetArgs),
    /// Diagnose the last minutes; started by the recorder.
    #[command(hide = true)]
    DiagnoseRecorded(DiagnoseRecordedArgs),
    /// Freeze an incident; started by the recorder.
    #[command(hide = true)]
    FreezeIncident(FreezeArgs),
}

#[derive(Debug, ClapArgs)]
pub struct DiagnoseArgs {
    /// How long to watch: 5s, 500ms, 2m. [default: 5s, or the last ten minutes of a running recorder]
    #[arg(long = "for", value_name = "DURATION", value_parser = parse_duration, conflicts_with_all = ["from", "last", "since", "until"])]
    pub duration: Option<Duration>,

    #[command(flatten)]
    pub recorded: RecordedArgs,

    /// Print one JSON document (schema coroner.diagnosis/1).
    #[arg(long)]
    pub json: bool,

    /// Also show the findings behind the verdict with their evidence, and why everything else was ruled out (always in JSON and
    /// reports).
    #[arg(long, short)]
    pub verbose: bool,

    #[command(flatten)]
    pub report: ReportArgs,

    /// Explain a finding, e.g. core-saturated, and exit.
    #[arg(long, value_name = "CODE", value_parser = parse_code, conflicts_with_all = ["from", "json", "report", "strict", "verbose"])]
    pub explain: Option<Code>,

    /// Exit with 2 if anything could not be seen.
    #[arg(long)]
    pub strict: bool,

    /// Do not use BPF. Dead cgroups are then counted from the cgroup files, without names, who waited for a core is estimated,
    /// and failing child processes are not seen. The kernel is still sampled.
    #[arg(long, conflicts_with_all = ["from", "last", "since", "until"])]
    pub no_bpf: bool,

    /// Compare the units on disk with this baseline, stored by `coroner units --baseline FILE`. [default:
    /// /etc/coroner/baseline.json if it exists]
    #[arg(long, value_name = "FILE")]
    pub baseline: Option<PathBuf>,

    #[command(flatten)]
    pub catalogue: CatalogueArgs,

    #[command(flatten)]
    pub node: NodeArgs,
}

#[derive(Debug, ClapArgs)]
pub struct CoresArgs {
    /// How long to watch: 5s, 500ms, 2m. [default: 5s, or the last ten minutes of a running recorder]
    #[arg(long = "for", value_name = "DURATION", value_parser = parse_duration, conflicts_with_all = ["from", "last", "since", "until"])]
    pub duration: Option<Duration>,

    #[command(flatten)]
    pub recorded: RecordedArgs,

    /// Print one JSON document (schema coroner.cores/1).
    #[arg(long)]
    pub json: bool,

    /// Show every core, including quiet ones.
    #[arg(long, short)]
    pub all: bool,

    #[command(flatten)]
    pub node: NodeArgs,
}

#[derive(Debug, ClapArgs)]
pub struct WaitsArgs {
    /// How long to watch: 5s, 500ms, 2m. [default: 5s, or the last ten minutes of a running recorder]
    #[arg(long = "for", value_name = "DURATION", value_parser = parse_duration, conflicts_with_all = ["from", "last", "since", "until"])]
    pub duration: Option<Duration>,

    /// Sum up by this.
    #[arg(long, value_enum, default_value_t = WaitsBy::Process)]
    pub by: WaitsBy,

    /// Do not use BPF: estimate from what /proc tells of threads.
    #[arg(long, conflicts_with_all = ["from", "last", "since", "until"])]
    pub no_bpf: bool,

    #[command(flatten)]
    pub recorded: RecordedArgs,

    /// Print one JSON document (schema coroner.waits/1).
    #[arg(long)]
    pub json: bool,

    /// Show everybody who lost more than a millisecond, and how the books balance.
    #[arg(long, short)]
    pub verbose: bool,

    #[command(flatten)]
    pub node: NodeArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum WaitsBy {
    Thread,
    Process,
    Cgroup,
    Unit,
    Pod,
}

impl WaitsBy {
    pub fn by(self) -> By {
        match self {
            WaitsBy::Thread => By::Thread,
            WaitsBy::Process => By::Process,
            WaitsBy::Cgroup => By::Cgroup,
            WaitsBy::Unit => By::Unit,
            WaitsBy::Pod => By::Pod,
        }
    }
}

#[derive(Debug, ClapArgs)]
pub struct ZombiesArgs {
    /// Also watch, for this long, what creates and removes cgroups and what the kernel spends on them. [without a value: 10s]
    /// Ctrl-C stops early and prints what was seen.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, num_args = 0..=1, default_missing_value = "10s", conflicts_with_all = ["from", "last", "since", "until"])]
    pub watch: Option<Duration>,

    /// Same as --watch DURATION.
    #[arg(long = "for", value_name = "DURATION", value_parser = parse_duration, conflicts_with_all = ["from", "last", "since", "until"])]
    pub duration: Option<Duration>,

    #[command(flatten)]
    pub recorded: RecordedArgs,

    /// Print one JSON document (schema coroner.zombies/1).
    #[arg(long)]
    pub json: bool,

    /// List every dead cgroup, oldest first (with --json, in the field `zombies`).
    #[arg(long, short)]
    pub list: bool,

    /// Show all groups and all files that keep them.
    #[arg(long, short)]
    pub all: bool,

    /// Do not use BPF: only count what the cgroup files say, without names or files.
    #[arg(long, conflicts_with_all = ["from", "last", "since", "until"])]
    pub no_bpf: bool,

    /// How to run the BPF walk. [default: test-run, otherwise page-faults]
    #[arg(long, value_enum, value_name = "WAY", conflicts_with_all = ["no_bpf", "from", "last", "since", "until"])]
    pub method: Option<WalkMethod>,

    /// Examine the files in this directory instead of the live node. For tests.
    #[arg(long, hide = true, value_name = "DIR", conflicts_with_all = ["from", "last", "since", "until"])]
    pub root: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum WalkMethod {
    /// BPF_PROG_TEST_RUN and a ring buffer: Linux 5.10 and later.
    TestRun,
    /// Our own page faults and an array map: Linux 5.4 and later.
    PageFaults,
}

#[derive(Debug, ClapArgs)]
pub struct UnitsArgs {
    /// How long to watch for crashloops and churn: 5s, 500ms, 2m. [default: 5s, or the last ten minutes of a running recorder]
    #[arg(long = "for", value_name = "DURATION", value_parser = parse_duration, conflicts_with_all = ["from", "last", "since", "until"])]
    pub duration: Option<Duration>,

    #[command(flatten)]
    pub recorded: RecordedArgs,

    /// Audit the image whose root file system is in this directory, without booting it.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["duration", "bus", "from", "last", "since", "until"])]
    pub root: Option<PathBuf>,

    /// The D-Bus address of systemd, e.g. unix:path=/proc/PID/root/run/dbus/system_bus_socket. [default: the system bus]
    #[arg(long, value_name = "ADDRESS", conflicts_with_all = ["from", "last", "since", "until"])]
    pub bus: Option<String>,

    /// Compare with this baseline: report units that are new, gone or changed, and exit with 1 if something is new or changed. If
    /// the file does not exist, store the units in it.
    #[arg(long, value_name = "FILE")]
    pub baseline: Option<PathBuf>,

    /// Report the difference to the baseline, then replace it with the current units.
    #[arg(long, requires = "baseline")]
    pub update_baseline: bool,

    #[command(flatten)]
    pub catalogue: CatalogueArgs,

    /// Show every unit and every judgement (always in JSON).
    #[arg(long, short)]
    pub all: bool,

    /// Show the evidence under each finding.
    #[arg(long, short)]
    pub verbose: bool,

    /// Print one JSON document (schema coroner.units/1).
    #[arg(long)]
    pub json: bool,
}

/// A recording instead of this node.
#[derive(Debug, Clone, Default, ClapArgs)]
pub struct RecordedArgs {
    /// Read a recording or a recorder's directory (even while it is being written) instead of watching this node.
    #[arg(long, value_name = "FILE|DIR")]
    pub from: Option<PathBuf>,

    /// Only the last 10m, 2h … of the recording. Without --from, of the running recorder. [default: all of a file, 10m of a
    /// directory]
    #[arg(long, value_name = "DURATION", value_parser = parse_last, conflicts_with_all = ["since", "until"])]
    pub last: Option<Duration>,

    /// Only from this time on, in UTC: 2026-11-16T05:51:42Z, or 05:51:42 for the last such time in the recording.
    #[arg(long, value_name = "TIME", value_parser = parse_wall)]
    pub since: Option<Moment>,

    /// Only until this time, same format as --since.
    #[arg(long, value_name = "TIME", value_parser = parse_wall)]
    pub until: Option<Moment>,

    /// Watch this node even if a recorder is running.
    #[arg(long, conflicts_with_all = ["from", "last", "since", "until"])]
    pub no_recorder: bool,
}

impl RecordedArgs {
    pub fn query(&self) -> Query {
        let RecordedArgs { from, last, since, until, no_recorder } = self.clone();
        Query { from, last, since, until, no_recorder }
    }

    /// The same as arguments of another command: `--from FILE --last 10m`; `None` if no recording was named.
    pub fn as_arguments(&self) -> Option<String> {
        let from = self.from.as_ref()?;
        let mut text = format!("--from {}", shell_word(&from.display().to_string()));
        if let Some(last) = self.last {
            text.push_str(&format!(" --last {}s", last.as_secs_f64()));
        }
        for (flag, moment) in [("--since", self.since), ("--until", self.until)] {
            match moment {
                Some(Moment::Wall(wall)) => text.push_str(&format!(" {flag} {wall}")),
                Some(Moment::TimeOfDay(ns)) => {
                    let (s, ms) = (ns / 1_000_000_000, ns / 1_000_000 % 1000);
                    text.push_str(&format!(" {flag} {:02}:{:02}:{:02}.{ms:03}", s / 3600, s / 60 % 60, s % 60));
                }
                // Not a wall-clock time: refused before.
                _ => {}
            }
        }
        Some(text)
    }
}

#[derive(Debug, Clone, Default, ClapArgs)]
pub struct ReportArgs {
    /// Also write a Markdown report to this file, for a ticket: the verdict with its proofs, what was ruled out, all evidence. `-`
    /// prints it instead.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
}

#[derive(Debug, Clone, Default, ClapArgs)]
pub struct CatalogueArgs {
    /// Also read agents from this TOML file, or from each *.toml in this directory (docs/catalogue.md). Repeatable.
    /// /etc/coroner/catalogue.d is always read.
    #[arg(long, value_name = "FILE|DIR")]
    pub catalogue: Vec<PathBuf>,
}

#[derive(Debug, ClapArgs)]
pub struct RecordArgs {
    /// Record continuously into this directory: ten-minute segments, the oldest of which are removed when it is full, and the
    /// minutes around each incident. SIGTERM, SIGHUP or Ctrl-C stops it cleanly.
    #[arg(long, value_name = "DIR", conflicts_with = "output")]
    pub dir: Option<PathBuf>,

    /// Read the recorder's settings, including its directory, from this TOML file. Command-line arguments take precedence.
    /// [default: with --dir, /etc/coroner/coroner.toml if it exists]
    #[arg(long, value_name = "FILE", conflicts_with = "output")]
    pub config: Option<PathBuf>,

    /// With --dir: total size limit for all segments: 2GiB, 500MB. [default: 2GiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_size, conflicts_with = "output")]
    pub max_size: Option<u64>,

    /// Stack samples per second and core, up to 999; 0 turns sampling off. [default: 49]
    #[arg(long, value_name = "HZ", value_parser = clap::value_parser!(u32).range(0..=999))]
    pub rate: Option<u32>,

    /// With --dir: serve Prometheus metrics at this loopback address, or `off`. [default: 127.0.0.1:9478]
    #[arg(long, value_name = "ADDRESS", conflicts_with = "output")]
    pub metrics: Option<String>,

    #[command(flatten)]
    pub fleet: ReportToArgs,

    /// How long to record: 30s, 10m. Ctrl-C stops early and keeps what was recorded. [default: 30s; with --dir, until stopped]
    #[arg(long = "for", value_name = "DURATION", value_parser = parse_recorded)]
    pub duration: Option<Duration>,

    /// The file to write. It must not exist. [default: HOST-TIME.coroner]
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// Print a summary as JSON (schema coroner.record/1).
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub node: NodeArgs,
}

/// Reports to a fleet.
#[derive(Debug, Clone, Default, ClapArgs)]
pub struct ReportToArgs {
    /// With --dir: report minutes, diagnoses, incidents and stacks to this collector (coroner fleet serve). Without it nothing is ever sent.
    #[arg(long, value_name = "URL", conflicts_with = "output")]
    pub report_to: Option<String>,

    /// A file with the collector's token for nodes.
    #[arg(long, value_name = "FILE", conflicts_with = "output")]
    pub report_token_file: Option<PathBuf>,

    /// A file with the certificates (PEM) that vouch for the collector, instead of the public authorities.
    #[arg(long, value_name = "FILE", conflicts_with = "output")]
    pub report_ca_file: Option<PathBuf>,

    /// A label of this node in the fleet, such as pool=gpu. Repeatable.
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_label, conflicts_with = "output")]
    pub label: Vec<(String, String)>,

    /// The cluster that this node belongs to.
    #[arg(long, value_name = "NAME", conflicts_with = "output")]
    pub cluster: Option<String>,

    /// The node's name in the fleet, if its machine id is not unique. [default: the machine id]
    #[arg(long, value_name = "NAME", conflicts_with = "output")]
    pub report_as: Option<String>,

    /// Never send the recording of an incident, even if somebody asks the collector for it.
    #[arg(long, conflicts_with = "output")]
    pub report_no_files: bool,
}

impl ReportToArgs {
    pub fn is_given(&self) -> bool {
        let ReportToArgs { report_to, report_token_file, report_ca_file, label, cluster, report_as, report_no_files } =
            self;
        let files = [report_token_file, report_ca_file];
        let names = [report_to, cluster, report_as];
        files.iter().any(|file| file.is_some())
            || names.iter().any(|name| name.is_some())
            || !label.is_empty()
            || *report_no_files
    }
}

fn parse_label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() && !value.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("expected KEY=VALUE, such as pool=gpu".to_owned()),
    }
}

/// Arguments of coroner-fleet, passed on as they are.
#[derive(Debug, ClapArgs)]
#[command(disable_help_flag = true)]
pub struct FleetArgs {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
    pub arguments: Vec<std::ffi::OsString>,
}

#[derive(Debug, Clone, ClapArgs)]
pub struct NodeArgs {
    /// The D-Bus address of systemd, e.g. unix:path=/proc/PID/root/run/dbus/system_bus_socket. [default: the system bus]
    #[arg(long, value_name = "ADDRESS")]
    pub bus: Option<String>,

    /// Trust kernel log lines that user space wrote. For tests: any root process can write such lines.
    #[arg(long, hide = true)]
    pub trust_user_log: bool,

    /// Examine the files in this directory instead of the live node. For tests.
    #[arg(long, hide = true, value_name = "DIR")]
    pub root: Option<PathBuf>,
}

impl NodeArgs {
    /// Whether an option needs the live node.
    pub fn is_asked(&self) -> bool {
        self.bus.is_some() || self.root.is_some() || self.trust_user_log
    }

    pub fn must_not_be_asked(&self) -> anyhow::Result<()> {
        anyhow::ensure!(self.bus.is_none(), "--bus is only for watching a node; a recording has its own units");
        Ok(())
    }

    pub fn node(&self) -> LiveNode {
        LiveNode { bus: self.bus.clone(), trust_user_log: self.trust_user_log, root: self.root.clone() }
    }
}

/// A shorter window has too few samples of the cores; for a longer one, use the recorder.
const SHORTEST: Duration = Duration::from_millis(200);
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// `7d`, `90m`, `500ms`, or plain seconds.
fn duration(text: &str) -> Option<Duration> {
    if let Ok(seconds) = text.parse::<u32>() {
        return Some(Duration::from_secs(seconds.into()));
    }
    if let Some(days) = text.strip_suffix('d').and_then(|days| days.parse::<u32>().ok()) {
        return Some(Duration::from_secs(u64::from(days) * 24 * 3600));
    }
    Duration::try_from(text.parse::<jiff::SignedDuration>().ok()?).ok()
}

fn parse_duration(text: &str) -> Result<Duration, String> {
    let duration = duration(text).ok_or("expected a duration such as 5s, 500ms or 2m")?;
    if duration < SHORTEST || duration > LONGEST {
        return Err("must be between 200ms and 24h".to_owned());
    }
    Ok(duration)
}

const YEAR: Duration = Duration::from_secs(366 * 24 * 3600);

fn parse_recorded(text: &str) -> Result<Duration, String> {
    let duration = duration(text).ok_or("expected a duration such as 30s, 10m, 2h or 7d")?;
    if duration < SHORTEST || duration > YEAR {
        return Err("must be between 200ms and a year".to_owned());
    }
    Ok(duration)
}

fn parse_last(text: &str) -> Result<Duration, String> {
    let duration = duration(text).ok_or("expected a duration such as 30s, 10m, 2h or 7d")?;
    if duration < Duration::from_secs(1) || duration > YEAR {
        return Err("must be between 1s and a year".to_owned());
    }
    Ok(duration)
}

/// Not relative to the first sample.
fn parse_wall(text: &str) -> Result<Moment, String> {
    match parse_moment(text) {
        Ok(moment @ (Moment::Wall(_) | Moment::TimeOfDay(_))) => Ok(moment),
        _ => Err("expected a wall-clock time in UTC: 2026-11-16T05:51:42Z, or 05:51:42".to_owned()),
    }
}

fn parse_code(text: &str) -> Result<Code, String> {
    Code::parse(text).ok_or_else(|| {
        let all: Vec<&str> = Code::ALL.iter().map(|c| c.as_str()).collect();
        format!("no such finding; expected one of: {}", all.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;
    use coroner_evidence::Wall;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn times_are_parsed() {
        assert_eq!(parse_last("10m"), Ok(Duration::from_secs(600)));
        assert_eq!(parse_last("3h"), Ok(Duration::from_secs(10_800)));
        assert_eq!(parse_wall("1970-01-01T00:00:01Z"), Ok(Moment::Wall(Wall(1_000_000_000))));
        assert_eq!(parse_wall("00:00:01"), Ok(Moment::TimeOfDay(1_000_000_000)));
        for wrong in ["12", "5m", "soon"] {
            assert!(parse_wall(wrong).is_err(), "{wrong:?} was accepted");
        }
        for wrong in ["0", "10ms", "-5m", "ever"] {
            assert!(parse_last(wrong).is_err(), "{wrong:?} was accepted");
        }
    }

    #[test]
    fn durations_are_parsed() {
        assert_eq!(parse_duration("5s"), Ok(Duration::from_secs(5)));
        assert_eq!(parse_duration("5"), Ok(Duration::from_secs(5)));
        assert_eq!(parse_duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_duration("2m"), Ok(Duration::from_secs(120)));
        for wrong in ["", "0", "0s", "-5s", "five", "5 parsecs", "1ns", "99999999999h"] {
            assert!(parse_duration(wrong).is_err(), "{wrong:?} was accepted");
        }
    }
}
