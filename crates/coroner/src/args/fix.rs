//! The command line of `coroner fix` and `coroner undo`.

use super::{CatalogueArgs, RecordedArgs, parse_code, parse_duration};
use clap::Args as ClapArgs;
use coroner_diagnosis::Code;
use coroner_evidence::CoreSet;
use coroner_remedy::steps::isolate_unit::parse_limit;
use std::path::PathBuf;
use std::time::Duration;

/// Without --apply it only prints a plan for this node (or for a recording): each step with its reason, the equivalent shell
/// command, its risk, how to undo it, what it does not fix, and how success will be measured.
#[derive(Debug, ClapArgs)]
#[command(
    after_help = "Exit codes: 0 the plan was printed, or everything worked; 1 a step failed or had no effect; 2 refused, or could \
    not examine the node.\n\nExamples:\n  sudo coroner fix                                  plan for what is wrong now\n  sudo coroner fix --apply                          do it, asking before each step\n  \
    sudo coroner fix --apply --yes --json             for automation\n  sudo coroner fix unit-crashloop ecs.service --isolate\n  coroner fix --from node.coroner                   plan \
    for a recorded node\n  coroner fix --image --root /mnt/image             commands for a provisioner\n  sudo coroner undo                                 undo the last run"
)]
pub struct FixArgs {
    /// Plan only for this finding, e.g. unit-crashloop. [default: for every verdict]
    #[arg(value_name = "CODE", value_parser = parse_code, conflicts_with = "image")]
    pub code: Option<Code>,

    /// And only for this subject: ecs.service, or a process by name or PID.
    #[arg(value_name = "SUBJECT", requires = "code")]
    pub subject: Option<String>,

    /// Apply the plan. Asks before each step on a terminal. Needs root.
    #[arg(long, conflicts_with = "image")]
    pub apply: bool,

    /// Do not ask. Dangerous steps still need --allow.
    #[arg(long, requires = "apply")]
    pub yes: bool,

    /// Only these steps, by name (disable-unit:ecs.service) or kind (disable-unit), including those that the plan lists as
    /// alternatives.
    #[arg(long, value_name = "STEP", conflicts_with = "image")]
    pub step: Vec<String>,

    /// Also allow this dangerous step.
    #[arg(long, value_name = "STEP", requires = "apply")]
    pub allow: Vec<String>,

    /// Limit the unit (with a drop-in) instead of disabling it.
    #[arg(long, conflicts_with = "image")]
    pub isolate: bool,

    /// Make the limits survive a reboot. [default: until the next reboot]
    #[arg(long, requires = "isolate")]
    pub persistent: bool,

    /// With --isolate: add or change a limit: CPUQuota=20%, CPUWeight=10, AllowedCPUs=0-3, MemoryMax=512M, RestartSec=5min,
    /// StartLimitIntervalSec=1h, StartLimitBurst=5.
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_limit, requires = "isolate")]
    pub limit: Vec<(String, String)>,

    /// Delete this file, which keeps dead cgroups. The plan must list it, and nobody may have it open. This cannot be undone.
    #[arg(long, value_name = "PATH", conflicts_with = "image")]
    pub delete_file: Vec<String>,

    /// The same for each line of this file; - is standard input. `coroner fix --json | jq -r '.files[].reach'` lists them.
    #[arg(long, value_name = "FILE", conflicts_with = "image")]
    pub delete_files_from: Option<PathBuf>,

    /// Cores that threads and interrupts may be moved to: 0,2-5. [default: cores with room that no NIC queue depends on, on the
    /// same NUMA node]
    #[arg(long, value_name = "LIST", value_parser = parse_cores, conflicts_with = "image")]
    pub cores: Option<CoreSet>,

    /// Time limit for reclaim.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "10s", conflicts_with = "image")]
    pub budget: Duration,

    /// How long to watch the node: 5s, 500ms, 2m. A running recorder is only used with --last, because its last minutes may show
    /// problems that are over. [default: 5s]
    #[arg(long = "for", value_name = "DURATION", value_parser = parse_duration, conflicts_with_all = ["last", "since", "until"])]
    pub duration: Option<Duration>,

    /// How long to watch after the last step to measure the effect.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "5s", conflicts_with = "image")]
    pub verify_for: Duration,

    /// Print shell commands that remove unused agents from a base image, for a provisioner: those found on this node, or in the
    /// image at --root.
    #[arg(long)]
    pub image: bool,

    #[command(flatten)]
    pub recorded: RecordedArgs,

    /// The D-Bus address of systemd, e.g. unix:path=/proc/PID/root/run/dbus/system_bus_socket. [default: the system bus]
    #[arg(long, value_name = "ADDRESS")]
    pub bus: Option<String>,

    /// Root directory of the systemd behind --bus, e.g. /proc/PID/root (where its drop-ins and links are). With --image, root
    /// directory of the image.
    #[arg(long, value_name = "DIR")]
    pub root: Option<PathBuf>,

    /// Directory for the journal of applied steps.
    #[arg(long, value_name = "DIR", default_value = coroner_remedy::journal::DIRECTORY)]
    pub journal: PathBuf,

    #[command(flatten)]
    pub catalogue: CatalogueArgs,

    /// Print one JSON document (schema coroner.fix-plan/1; with --apply coroner.fix/1).
    #[arg(long)]
    pub json: bool,
}

/// Restores what `coroner fix --apply` changed, from its journal, last step first. It checks the current state: what is already
/// restored is left alone; what somebody has changed since is reported and left alone.
#[derive(Debug, ClapArgs)]
#[command(
    after_help = "Exit codes: 0 everything that can be restored is restored; 1 something could not be restored or was changed \
        since; 2 refused, or no such run."
)]
pub struct UndoArgs {
    /// The run to undo, by its number in --list. [default: the newest that is not undone]
    #[arg(value_name = "N", conflicts_with = "list")]
    pub number: Option<u64>,

    /// List the runs and change nothing.
    #[arg(long, short)]
    pub list: bool,

    /// Print what would be restored and change nothing.
    #[arg(long, conflicts_with = "list")]
    pub dry_run: bool,

    /// Also restore what somebody has changed since.
    #[arg(long)]
    pub force: bool,

    /// D-Bus address of systemd. [default: the one used by the run]
    #[arg(long, value_name = "ADDRESS")]
    pub bus: Option<String>,

    /// Root directory of that systemd. [default: the one used by the run]
    #[arg(long, value_name = "DIR")]
    pub root: Option<PathBuf>,

    /// Directory of the journal.
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
