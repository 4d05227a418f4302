//! The command line of `coroner fix` and `coroner undo`.

use super::{CatalogueArgs, RecordedArgs, parse_code, parse_duration};
use clap::Args as ClapArgs;
use coroner_diagnosis::Code;
use coroner_evidence::CoreSet;
use coroner_remedy::steps::isolate_unit::parse_limit;
use std::path::PathBuf;
use std::time::Duration;

/// Without --apply it only plans: it looks at the node (or reads a recording) and prints each step with its reason, the equivalent
/// shell command, its risk, how it is undone, what it does not fix and how success will be measured.
#[derive(Debug, ClapArgs)]
#[command(
    after_help = "Exit codes: 0 the plan was printed, or all that was done worked; 1 a step failed or had no effect; 2 refused, or could \
    not look.\n\nExamples:\n  sudo coroner fix                                  plan for what is wrong now\n  sudo coroner fix --apply                          do it, asking before each step\n  \
    sudo coroner fix --apply --yes --json             for automation\n  sudo coroner fix unit-crashloop ecs.service --isolate\n  coroner fix --from node.coroner                   plan \
    for a node that was recorded\n  coroner fix --image --root /mnt/image             lines for a provisioner\n  sudo coroner undo                                 take the last one back"
)]
pub struct FixArgs {
    /// Plan only for this finding, e.g. unit-crashloop. [default: for every verdict]
    #[arg(value_name = "CODE", value_parser = parse_code, conflicts_with = "image")]
    pub code: Option<Code>,

    /// And only for this subject of it: ecs.service, or a process by its name or number.
    #[arg(value_name = "SUBJECT", requires = "code")]
    pub subject: Option<String>,

    /// Do it: asks before each step on a terminal. Needs root.
    #[arg(long, conflicts_with = "image")]
    pub apply: bool,

    /// Do not ask. Dangerous steps are still refused unless --allow names them.
    #[arg(long, requires = "apply")]
    pub yes: bool,

    /// Only these steps, by their name (disable-unit:ecs.service) or kind (disable-unit); also those that the plan lists as other ways.
    #[arg(long, value_name = "STEP", conflicts_with = "image")]
    pub step: Vec<String>,

    /// Do this dangerous step, too.
    #[arg(long, value_name = "STEP", requires = "apply")]
    pub allow: Vec<String>,

    /// Put a unit within limits (a drop-in) instead of switching it off.
    #[arg(long, conflicts_with = "image")]
    pub isolate: bool,

    /// Write the limits so that they survive a reboot. [default: until the next reboot]
    #[arg(long, requires = "isolate")]
    pub persistent: bool,

    /// With --isolate: another limit, or another value: CPUQuota=20%, CPUWeight=10, AllowedCPUs=0-3, MemoryMax=512M, RestartSec=5min,
    /// StartLimitIntervalSec=1h, StartLimitBurst=5.
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_limit, requires = "isolate")]
    pub limit: Vec<(String, String)>,

    /// Delete this file, which keeps dead cgroups. Only files that the plan lists, that nobody has open, and never one that was not
    /// named. There is no way back.
    #[arg(long, value_name = "PATH", conflicts_with = "image")]
    pub delete_file: Vec<String>,

    /// The same for each line of this file; - is standard input. `coroner fix --json | jq -r '.files[].reach'` lists them.
    #[arg(long, value_name = "FILE", conflicts_with = "image")]
    pub delete_files_from: Option<PathBuf>,

    /// Where threads and interrupts shall go: 0,2-5. [default: cores with room that no NIC queue depends on, on the same NUMA node]
    #[arg(long, value_name = "LIST", value_parser = parse_cores, conflicts_with = "image")]
    pub cores: Option<CoreSet>,

    /// How long reclaim may take at most.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "10s", conflicts_with = "image")]
    pub budget: Duration,

    /// How long to watch the node: 5s, 500ms, 2m. Also where a recorder runs: its last minutes may be full of what is over; --last reads
    /// them. [default: 5s]
    #[arg(long = "for", value_name = "DURATION", value_parser = parse_duration, conflicts_with_all = ["last", "since", "until"])]
    pub duration: Option<Duration>,

    /// How long to measure again after the last step.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "5s", conflicts_with = "image")]
    pub verify_for: Duration,

    /// Print the lines that take the audit's findings out of a base image, for a shell provisioner: of this node, or of the image below
    /// --root.
    #[arg(long)]
    pub image: bool,

    #[command(flatten)]
    pub recorded: RecordedArgs,

    /// The D-Bus address of systemd, e.g. unix:path=/proc/PID/root/run/dbus/system_bus_socket. [default: the system bus]
    #[arg(long, value_name = "ADDRESS")]
    pub bus: Option<String>,

    /// The top of the file system of the systemd behind --bus, e.g. /proc/PID/root, where drop-ins and links are; with --image, of the
    /// image.
    #[arg(long, value_name = "DIR")]
    pub root: Option<PathBuf>,

    /// Keep the journal of what is done in this directory.
    #[arg(long, value_name = "DIR", default_value = coroner_remedy::journal::DIRECTORY)]
    pub journal: PathBuf,

    #[command(flatten)]
    pub catalogue: CatalogueArgs,

    /// Print one JSON document (schema coroner.fix-plan/1; with --apply coroner.fix/1).
    #[arg(long)]
    pub json: bool,
}

/// Restores what `coroner fix --apply` changed, the last step first, from its journal. It looks at how things really are: what is as
/// before already is left alone, what somebody changed since is told and left alone.
#[derive(Debug, ClapArgs)]
#[command(
    after_help = "Exit codes: 0 what can be restored is as before; 1 something could not be, or was changed since; 2 refused, or no such run."
)]
pub struct UndoArgs {
    /// The run to take back, as --list numbers them. [default: the newest that is not undone]
    #[arg(value_name = "N", conflicts_with = "list")]
    pub number: Option<u64>,

    /// List the runs there are, and change nothing.
    #[arg(long, short)]
    pub list: bool,

    /// Tell what would be restored, and change nothing.
    #[arg(long, conflicts_with = "list")]
    pub dry_run: bool,

    /// Restore also what somebody changed since.
    #[arg(long)]
    pub force: bool,

    /// The D-Bus address of systemd. [default: the one that was used then]
    #[arg(long, value_name = "ADDRESS")]
    pub bus: Option<String>,

    /// The top of the file system of that systemd. [default: the one that was used then]
    #[arg(long, value_name = "DIR")]
    pub root: Option<PathBuf>,

    /// The directory of the journal.
    #[arg(long, value_name = "DIR", default_value = coroner_remedy::journal::DIRECTORY)]
    pub journal: PathBuf,

    /// Print one JSON document (schema coroner.undo/1).
    #[arg(long)]
    pub json: bool,
}

fn parse_cores(text: &str) -> Result<CoreSet, String> {
    CoreSet::parse_list(text)
        .filter(|cores| !cores.is_empty())
        .ok_or("expected a list of cores such as 0,2-5".to_owned())
}
