//! The command line.

pub mod fix;
pub mod profile;
pub mod recorder;
pub mod view;

use fix::{FixArgs, UndoArgs};
use profile::{ExportArgs, FlameArgs, HeatmapArgs, ImportArgs, MonopoliesArgs};
use recorder::{FreezeArgs, IncidentsArgs, MarkArgs};
use view::ViewArgs;

use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};
use coroner_diagnosis::Code;
use coroner_recorder::config::parse_size;
use coroner_source::live::LiveNode;
use coroner_source::moment::{Moment, parse_moment};
use coroner_source::recorded::Query;
use std::path::PathBuf;
use std::time::Duration;

/// Tells why this Linux node starves or kills its jobs: in seconds, with evidence, naming the culprit and the safe fix.
///
/// Without a command it does what `coroner diagnose` does: it watches this node for five seconds, or reads the last ten minutes of
/// the recorder that runs here, and prints its verdict: the root cause, what follows from it and how that was shown, what to do, what
/// was ruled out, and what could not be seen. It changes nothing. Best run as root.
///
/// Exit codes: 0 nothing wrong in what was seen, 1 a finding of severity warning or worse, 2 could not examine.
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
    /// Watch this node for some seconds, or read a recording, and tell what is wrong.
    Diagnose(DiagnoseArgs),
    /// Show every core at sub-second resolution, who owns it and which NIC queues it serves.
    Cores(CoresArgs),
    /// Name the dead memory cgroups that this node's kernel cannot free: who left them, what keeps them, what they cost.
    Zombies(ZombiesArgs),
    /// Audit the agents of this node, or of an image on disk: what crashloops, what nobody uses, what each costs.
    Units(UnitsArgs),
    /// Write what is seen of this node into one file that can be diagnosed elsewhere; with --dir, be its flight recorder.
    Record(RecordArgs),
    /// Show a CPU profile as a flame graph: in the terminal, or as a picture or file for other tools.
    Flame(FlameArgs),
    /// Show when a CPU profile was busy: each core with its owner, or second by second as FlameScope does.
    Heatmap(HeatmapArgs),
    /// List the runs of one thread on one core that starve whoever else is bound to it.
    Monopolies(MonopoliesArgs),
    /// Turn a CPU profile of another tool into a recording.
    Import(ImportArgs),
    /// Write a CPU profile, or a part of it, in the format of another tool; or copy an incident's file out.
    Export(ExportArgs),
    /// Open a page in the browser: cores, time line, flame graphs and verdict of a recorder, a recording or a profile.
    View(ViewArgs),
    /// List what the recorder froze, or tell of one incident.
    Incidents(IncidentsArgs),
    /// Make the running recorder freeze the minutes around this moment.
    Mark(MarkArgs),
    /// Plan the smallest step that removes the cause; with --apply do it, measure again, and say whether it worked.
    Fix(Box<FixArgs>),
    /// Take back what `coroner fix --apply` did.
    Undo(UndoArgs),
    /// Freeze an incident; started by the recorder.
    #[command(hide = true)]
    FreezeIncident(FreezeArgs),
}

#[derive(Debug, ClapArgs)]
pub struct DiagnoseArgs {
    /// How long to watch: 5s, 500ms, 2m. [default: 5s, unless a recorder runs here: then its last ten minutes are read]
    #[arg(long = "for", value_name = "DURATION", value_parser = parse_duration, conflicts_with_all = ["from", "last", "since", "until"])]
    pub duration: Option<Duration>,

    #[command(flatten)]
    pub recorded: RecordedArgs,

    /// Print one JSON document (schema coroner.diagnosis/1).
    #[arg(long)]
    pub json: bool,

    /// Show the findings that the verdict rests on, with their evidence, and why everything else was ruled out (JSON and reports
    /// always have all of it).
    #[arg(long, short)]
    pub verbose: bool,

    #[command(flatten)]
    pub report: ReportArgs,

    /// Print the page about a finding, e.g. core-saturated, and exit.
    #[arg(long, value_name = "CODE", value_parser = parse_code, conflicts_with_all = ["from", "json", "report", "strict", "verbose"])]
    pub explain: Option<Code>,

    /// Exit with 2 if anything could not be seen.
    #[arg(long)]
    pub strict: bool,

    /// Use no BPF: dead cgroups are counted and added up from the cgroup files, without names; whose children fail is not seen.
    /// The kernel is sampled all the same.
    #[arg(long, conflicts_with_all = ["from", "last", "since", "until"])]
    pub no_bpf: bool,

    /// Compare the units on disk with those that `coroner units --baseline FILE` stored.
    /// [default: /etc/coroner/baseline.json if it exists]
    #[arg(long, value_name = "FILE")]
    pub baseline: Option<PathBuf>,

    #[command(flatten)]
    pub catalogue: CatalogueArgs,

    #[command(flatten)]
    pub node: NodeArgs,
}

#[derive(Debug, ClapArgs)]
pub struct CoresArgs {
    /// How long to watch: 5s, 500ms, 2m. [default: 5s, unless a recorder runs here: then its last ten minutes are read]
    #[arg(long = "for", value_name = "DURATION", value_parser = parse_duration, conflicts_with_all = ["from", "last", "since", "until"])]
    pub duration: Option<Duration>,

    #[command(flatten)]
    pub recorded: RecordedArgs,

    /// Print one JSON document (schema coroner.cores/1).
    #[arg(long)]
    pub json: bool,

    /// Show every core, quiet ones too.
    #[arg(long, short)]
    pub all: bool,

    #[command(flatten)]
    pub node: NodeArgs,
}

#[derive(Debug, ClapArgs)]
pub struct ZombiesArgs {
    /// Also watch who makes and removes cgroups, and what the kernel spends on them, for this long (10s unless said otherwise;
    /// Ctrl-C ends it early and tells what was seen).
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, num_args = 0..=1, default_missing_value = "10s", conflicts_with_all = ["from", "last", "since", "until"])]
    pub watch: Option<Duration>,

    /// The same as --watch DURATION.
    #[arg(long = "for", value_name = "DURATION", value_parser = parse_duration, conflicts_with_all = ["from", "last", "since", "until"])]
    pub duration: Option<Duration>,

    #[command(flatten)]
    pub recorded: RecordedArgs,

    /// Print one JSON document (schema coroner.zombies/1).
    #[arg(long)]
    pub json: bool,

    /// List every dead cgroup, oldest first (with --json in the field `zombies`).
    #[arg(long, short)]
    pub list: bool,

    /// Show all groups and all files that keep them.
    #[arg(long, short)]
    pub all: bool,

    /// Use no BPF: count and add up what the cgroup files say. Names and files are then unknown.
    #[arg(long, conflicts_with_all = ["from", "last", "since", "until"])]
    pub no_bpf: bool,

    /// Run the BPF walk in this way only. [default: test-run, else page-faults]
    #[arg(long, value_enum, value_name = "WAY", conflicts_with_all = ["no_bpf", "from", "last", "since", "until"])]
    pub method: Option<WalkMethod>,

    /// Examine the files below this directory instead of the live node. For tests.
    #[arg(long, hide = true, value_name = "DIR", conflicts_with_all = ["from", "last", "since", "until"])]
    pub root: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum WalkMethod {
    /// BPF_PROG_TEST_RUN and a ring buffer: from Linux 5.10.
    TestRun,
    /// Page faults of our own and an array map: from Linux 5.4.
    PageFaults,
}

#[derive(Debug, ClapArgs)]
pub struct UnitsArgs {
    /// How long to watch: 5s, 500ms, 2m. Loops and churn show only while somebody looks. [default: 5s, unless a recorder runs
    /// here: then its last ten minutes are read]
    #[arg(long = "for", value_name = "DURATION", value_parser = parse_duration, conflicts_with_all = ["from", "last", "since", "until"])]
    pub duration: Option<Duration>,

    #[command(flatten)]
    pub recorded: RecordedArgs,

    /// Audit the image whose file system lies below this directory, without booting it.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["duration", "bus", "from", "last", "since", "until"])]
    pub root: Option<PathBuf>,

    /// The D-Bus address of systemd, e.g. unix:path=/proc/PID/root/run/dbus/system_bus_socket. [default: the system bus]
    #[arg(long, value_name = "ADDRESS", conflicts_with_all = ["from", "last", "since", "until"])]
    pub bus: Option<String>,

    /// Store the units of a good node or image in this file if it does not exist yet; else tell what is new, gone or changed
    /// since then, and exit with 1 if something is not in it.
    #[arg(long, value_name = "FILE")]
    pub baseline: Option<PathBuf>,

    /// Tell the difference to the baseline, then store the units as they are now in its place.
    #[arg(long, requires = "baseline")]
    pub update_baseline: bool,

    #[command(flatten)]
    pub catalogue: CatalogueArgs,

    /// Show every unit and every judgement (JSON always has them).
    #[arg(long, short)]
    pub all: bool,

    /// Show the evidence under each finding.
    #[arg(long, short)]
    pub verbose: bool,

    /// Print one JSON document (schema coroner.units/1).
    #[arg(long)]
    pub json: bool,
}

/// What was recorded, instead of watching this node.
#[derive(Debug, Clone, Default, ClapArgs)]
pub struct RecordedArgs {
    /// Read a recording, or the directory of a recorder (also while it writes), instead of watching this node.
    #[arg(long, value_name = "FILE|DIR")]
    pub from: Option<PathBuf>,

    /// Of the recording only the last 10m, 2h …, counted from its newest look at the cores. Without --from it is of the recorder
    /// that runs here. [default: all of a file, 10m of a directory]
    #[arg(long, value_name = "DURATION", value_parser = parse_last, conflicts_with_all = ["since", "until"])]
    pub last: Option<Duration>,

    /// Of the recording only what is from this wall-clock time on, in UTC: 2026-11-16T05:51:42Z, or 05:51:42 for the last such time
    /// in it.
    #[arg(long, value_name = "TIME", value_parser = parse_wall)]
    pub since: Option<Moment>,

    /// Of the recording only what is until this time, written as for --since.
    #[arg(long, value_name = "TIME", value_parser = parse_wall)]
    pub until: Option<Moment>,

    /// Watch this node also if a recorder runs here.
    #[arg(long, conflicts_with_all = ["from", "last", "since", "until"])]
    pub no_recorder: bool,
}

impl RecordedArgs {
    pub fn query(&self) -> Query {
        let RecordedArgs { from, last, since, until, no_recorder } = self.clone();
        Query { from, last, since, until, no_recorder }
    }
}

/// A copy for others.
#[derive(Debug, Clone, Default, ClapArgs)]
pub struct ReportArgs {
    /// Also write a report in Markdown to this file, to paste into a ticket: the verdict with its proofs, what was ruled out, all
    /// evidence. `-` prints it instead.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
}

/// Which agents are known.
#[derive(Debug, Clone, Default, ClapArgs)]
pub struct CatalogueArgs {
    /// Know also the agents of this TOML file, or of each *.toml in this directory (docs/catalogue.md). May be given several
    /// times. /etc/coroner/catalogue.d is read anyway.
    #[arg(long, value_name = "FILE|DIR")]
    pub catalogue: Vec<PathBuf>,
}

#[derive(Debug, ClapArgs)]
pub struct RecordArgs {
    /// Record all the time into this directory: segments of ten minutes, the oldest let go when it is full, and the minutes
    /// around each incident kept. SIGTERM, SIGHUP or Ctrl-C seals the last one and ends it.
    #[arg(long, value_name = "DIR", conflicts_with = "output")]
    pub dir: Option<PathBuf>,

    /// Take the recorder's settings from this TOML file; arguments take precedence. Implies --dir as it says there.
    /// [default: with --dir, /etc/coroner/coroner.toml if it exists]
    #[arg(long, value_name = "FILE", conflicts_with = "output")]
    pub config: Option<PathBuf>,

    /// With --dir: how large all segments together may become: 2GiB, 500MB. [default: 2GiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_size, conflicts_with = "output")]
    pub max_size: Option<u64>,

    /// With --dir: stack samples a second of each core, up to 999; 0 takes none. [default: 49]
    #[arg(long, value_name = "HZ", value_parser = clap::value_parser!(u32).range(0..=999), conflicts_with = "output")]
    pub rate: Option<u32>,

    /// With --dir: serve Prometheus metrics at this loopback address, or `off`. [default: 127.0.0.1:9478]
    #[arg(long, value_name = "ADDRESS", conflicts_with = "output")]
    pub metrics: Option<String>,

    /// How long to record: 30s, 10m. Ctrl-C ends it early and keeps what was seen. [default: 30s; with --dir without end]
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

/// How to look at the node.
#[derive(Debug, Clone, ClapArgs)]
pub struct NodeArgs {
    /// The D-Bus address of systemd, e.g. unix:path=/proc/PID/root/run/dbus/system_bus_socket. [default: the system bus]
    #[arg(long, value_name = "ADDRESS")]
    pub bus: Option<String>,

    /// Take kernel log lines written by user space for the kernel's own. For tests: anyone who is root can write such lines.
    #[arg(long, hide = true)]
    pub trust_user_log: bool,

    /// Examine the files below this directory instead of the live node. For tests.
    #[arg(long, hide = true, value_name = "DIR")]
    pub root: Option<PathBuf>,
}

impl NodeArgs {
    /// Something is asked for that is of this node only, and of now.
    pub fn is_asked(&self) -> bool {
        self.bus.is_some() || self.root.is_some() || self.trust_user_log
    }

    pub fn must_not_be_asked(&self) -> anyhow::Result<()> {
        anyhow::ensure!(self.bus.is_none(), "--bus is for watching this node; a recording has its own units");
        Ok(())
    }

    pub fn node(&self) -> LiveNode {
        LiveNode { bus: self.bus.clone(), trust_user_log: self.trust_user_log, root: self.root.clone() }
    }
}

/// Below this a window holds too few looks at the cores; above, the always-on recorder is the right tool.
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

/// How long to record: the flight recorder has no end of its own.
fn parse_recorded(text: &str) -> Result<Duration, String> {
    let duration = duration(text).ok_or("expected a duration such as 30s, 10m, 2h or 7d")?;
    if duration < SHORTEST || duration > YEAR {
        return Err("must be between 200ms and a year".to_owned());
    }
    Ok(duration)
}

/// How much of a recording: recorders keep days.
fn parse_last(text: &str) -> Result<Duration, String> {
    let duration = duration(text).ok_or("expected a duration such as 30s, 10m, 2h or 7d")?;
    if duration < Duration::from_secs(1) || duration > YEAR {
        return Err("must be between 1s and a year".to_owned());
    }
    Ok(duration)
}

/// A time that says by itself when it is.
fn parse_wall(text: &str) -> Result<Moment, String> {
    match parse_moment(text) {
        Ok(moment @ (Moment::Wall(_) | Moment::TimeOfDay(_))) => Ok(moment),
        _ => Err("expected a wall-clock time in UTC: 2026-11-16T05:51:42Z, or 05:51:42".to_owned()),
    }
}

fn parse_code(text: &str) -> Result<Code, String> {
    Code::parse(text).ok_or_else(|| {
        let all: Vec<&str> = Code::ALL.iter().map(|c| c.as_str()).collect();
        format!("no such finding; there are: {}", all.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn what_to_read_is_what_people_write() {
        assert_eq!(parse_last("10m"), Ok(Duration::from_secs(600)));
        assert_eq!(parse_last("3h"), Ok(Duration::from_secs(10_800)));
        assert_eq!(parse_wall("1970-01-01T00:00:01Z"), Ok(Moment::Wall(1_000_000_000)));
        assert_eq!(parse_wall("00:00:01"), Ok(Moment::TimeOfDay(1_000_000_000)));
        for wrong in ["12", "5m", "soon"] {
            assert!(parse_wall(wrong).is_err(), "{wrong:?} was accepted");
        }
        for wrong in ["0", "10ms", "-5m", "ever"] {
            assert!(parse_last(wrong).is_err(), "{wrong:?} was accepted");
        }
    }

    #[test]
    fn durations_are_what_people_write() {
        assert_eq!(parse_duration("5s"), Ok(Duration::from_secs(5)));
        assert_eq!(parse_duration("5"), Ok(Duration::from_secs(5)));
        assert_eq!(parse_duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_duration("2m"), Ok(Duration::from_secs(120)));
        for wrong in ["", "0", "0s", "-5s", "five", "5 parsecs", "1ns", "99999999999h"] {
            assert!(parse_duration(wrong).is_err(), "{wrong:?} was accepted");
        }
    }
}
