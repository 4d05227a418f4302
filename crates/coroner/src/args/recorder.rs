//! The command line of the commands about a recorder: incidents, mark, history.

use super::ReportArgs;
use clap::{Args as ClapArgs, Subcommand};
use coroner_diagnosis::Code;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Debug, ClapArgs)]
#[command(
    after_help = "The recorder (coroner record --dir) freezes the minutes around each incident into a file of its own, \
    incidents/N.coroner in its directory. That file is a recording: every command reads it with --from, \
    and you can send it to a colleague (coroner export --incident N -o x.coroner)."
)]
pub struct IncidentsArgs {
    #[command(subcommand)]
    pub command: Option<IncidentsCommand>,

    #[command(flatten)]
    pub directory: DirectoryArgs,

    /// Print one JSON document (schema coroner.incidents/1; for one incident coroner.incident-report/1).
    #[arg(long, global = true)]
    pub json: bool,
}

#[derive(Debug, Subcommand)]
pub enum IncidentsCommand {
    /// Show one incident: what triggered it, what was wrong, what rose, and where to look next.
    Show(ShowIncidentArgs),
}

#[derive(Debug, ClapArgs)]
pub struct ShowIncidentArgs {
    /// The incident's number in `coroner incidents`.
    #[arg(value_name = "N")]
    pub number: u64,

    /// Also show the findings behind the verdict with their evidence, and why everything else was ruled out (always in JSON and
    /// reports).
    #[arg(long, short)]
    pub verbose: bool,

    #[command(flatten)]
    pub report: ReportArgs,
}

#[derive(Debug, ClapArgs)]
pub struct MarkArgs {
    /// What is happening, in your words: "deploy 7 begins".
    #[arg(value_name = "TEXT")]
    pub text: String,

    #[command(flatten)]
    pub directory: DirectoryArgs,
}

#[derive(Debug, Clone, Default, ClapArgs)]
pub struct DirectoryArgs {
    /// The recorder's directory. [default: that of the running recorder, otherwise /var/lib/coroner]
    #[arg(long, value_name = "DIR", global = true)]
    pub dir: Option<PathBuf>,
}

/// Run by the recorder in a process of its own.
#[derive(Debug, ClapArgs)]
pub struct FreezeArgs {
    pub directory: PathBuf,
    pub number: u64,
    /// The window is over: include findings and risers.
    #[arg(long)]
    pub whole: bool,
    /// The recorder's PID; we end when it does.
    #[arg(long, value_name = "PID")]
    pub recorder: Option<u32>,
}

#[derive(Debug, ClapArgs)]
#[command(
    after_help = "A running recorder (coroner record --dir) diagnoses its node every few minutes and keeps the results in \
    DIR/history.db, longer than the recording itself. Exit codes: 0 the history was read, 2 it could not be."
)]
pub struct HistoryArgs {
    /// The recorder's directory. [default: that of the running recorder, otherwise /var/lib/coroner]
    #[arg(long, value_name = "DIR")]
    pub from: Option<PathBuf>,

    /// Only what was seen within this time: 2h, 7d.
    #[arg(long, value_name = "DURATION", value_parser = super::parse_recorded)]
    pub last: Option<Duration>,

    /// Print one JSON document (schema coroner.history/1).
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, ClapArgs)]
#[command(
    after_help = "One line of at most 80 bytes. Exit codes, as node-problem-detector's custom plugins have them: 0 nothing wrong, 1 a \
    problem goes on, 2 unknown: no recorder runs, or it has not diagnosed the node lately. With --sentinel, as kured's \
    --reboot-sentinel-command has them: 0 reboot, anything else do not."
)]
pub struct ConditionArgs {
    /// Only these problems, e.g. zombie-memcgs. [default: all of severity warning or worse]
    #[arg(value_name = "CODE", value_parser = super::parse_code)]
    pub codes: Vec<Code>,

    #[command(flatten)]
    pub directory: DirectoryArgs,

    /// The last diagnosis must not be older.
    #[arg(long, value_name = "DURATION", default_value = "15m", value_parser = super::parse_recorded)]
    pub max_age: Duration,

    /// Exit with 0 if one of these problems goes on and its cause is proven or likely, with 1 if not, with 2 if unknown.
    #[arg(long, requires = "codes")]
    pub sentinel: bool,

    /// Print one JSON document (schema coroner.condition/1).
    #[arg(long)]
    pub json: bool,
}

/// Run by the recorder in a process of its own.
#[derive(Debug, ClapArgs)]
pub struct DiagnoseRecordedArgs {
    pub directory: PathBuf,
    /// Nanoseconds since 1970.
    pub from: u64,
    pub to: u64,
    /// The recorder's PID; we end when it does.
    #[arg(long, value_name = "PID")]
    pub recorder: Option<u32>,
}
