//! The command line of the commands that speak of a recorder's incidents.

use super::ReportArgs;
use clap::{Args as ClapArgs, Subcommand};
use std::path::PathBuf;
use std::time::Duration;

#[derive(Debug, ClapArgs)]
#[command(
    after_help = "The recorder (coroner record --dir) freezes the minutes around each incident into a file of its own, \
    INCIDENTS/N.coroner in its directory. Such a file is a recording: every command reads it with --from, \
    and a colleague can, too (coroner export --incident N -o x.coroner)."
)]
pub struct IncidentsArgs {
    #[command(subcommand)]
    pub command: Option<IncidentsCommand>,

    #[command(flatten)]
    pub directory: DirectoryArgs,

    /// Print one JSON document (schema coroner.incidents/1; of one incident coroner.incident-report/1).
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
    /// The incident's number, as `coroner incidents` lists it.
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

/// Where the recorder keeps its files.
#[derive(Debug, Clone, Default, ClapArgs)]
pub struct DirectoryArgs {
    /// The recorder's directory. [default: that of the running recorder, otherwise /var/lib/coroner]
    #[arg(long, value_name = "DIR", global = true)]
    pub dir: Option<PathBuf>,
}

/// What the recorder asks of a process of its own.
#[derive(Debug, ClapArgs)]
pub struct FreezeArgs {
    pub directory: PathBuf,
    pub number: u64,
    /// The window is over: with findings and risers.
    #[arg(long)]
    pub whole: bool,
    /// The process that asks; without it there is nobody to freeze for.
    #[arg(long, value_name = "PID")]
    pub recorder: Option<u32>,
}

#[derive(Debug, ClapArgs)]
#[command(
    after_help = "A running recorder (coroner record --dir) diagnoses its node every few minutes and keeps what it concluded in \
    DIR/history.db, which outlives the recorded minutes. Exit codes: 0 the history was read, 2 it could not be."
)]
pub struct HistoryArgs {
    /// The recorder's directory. [default: that of the running recorder, else /var/lib/coroner]
    #[arg(long, value_name = "DIR")]
    pub from: Option<PathBuf>,

    /// Only what was seen within this time: 2h, 7d.
    #[arg(long, value_name = "DURATION", value_parser = super::parse_recorded)]
    pub last: Option<Duration>,

    /// Print one JSON document (schema coroner.history/1).
    #[arg(long)]
    pub json: bool,
}

/// What the recorder asks of a process of its own.
#[derive(Debug, ClapArgs)]
pub struct DiagnoseRecordedArgs {
    pub directory: PathBuf,
    /// Nanoseconds since 1970.
    pub from_real_ns: u64,
    pub to_real_ns: u64,
    /// The process that asks.
    #[arg(long, value_name = "PID")]
    pub recorder: Option<u32>,
}
