//! The scenarios, one file each (the healthy ones share one).

mod admin_restarts;
mod agents;
mod batch_job_ends;
mod cgroup_dir_leak;
mod cpu_throttle;
mod crashloop_leak;
mod crowded_cpuset;
mod deadline_hog;
mod failing_oneshot;
mod few_zombies;
mod fork_storm;
mod frozen_fs;
mod furniture;
mod hanging_bus;
mod healthy;
mod ksoftirqd_starved;
mod leakers;
mod many_units;
mod memory_limit_reclaim;
mod nic_starved;
mod observer_smaps;
mod rt_monopoly;
mod severed_bus;
mod short_spikes;
mod softirq_storm;
mod steered;
mod supervised_churn;
mod systemd_node;
pub mod systemd_root;
mod the_incident;
mod two_problems;
mod unfair_weight;
mod zombie_reclaim;
mod zombies;
mod zombies_pinned;

use crate::draw::Draw;
use crate::guard::Child;
use crate::stage::Stage;
use crate::{actors, node};
use anyhow::{Context, Result, bail};
use std::time::Duration;

pub struct Scenario {
    pub name: &'static str,
    /// One line for the table.
    pub summary: &'static str,
    /// The codes that a diagnosis must give.
    pub expects: &'static [&'static str],
    pub needs: &'static [Need],
    pub perform: fn(&mut Stage) -> Result<()>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    Root,
    /// One for the problem, one for everything else.
    TwoCores,
    /// To mount an ext4 image.
    LoopDevice,
    /// A small Debian with systemd: exists, or can be made.
    SystemdRoot,
    /// A program on the PATH, and the package that has it.
    Program(&'static str, &'static str),
}

impl Need {
    pub fn text(self) -> String {
        match self {
            Need::Root => "root".to_owned(),
            Need::TwoCores => "two cores".to_owned(),
            Need::LoopDevice => "a loop device".to_owned(),
            Need::SystemdRoot => "mmdebstrap".to_owned(),
            Need::Program(program, _) => program.to_owned(),
        }
    }

    /// An error says why the scenario cannot run here.
    pub fn check(self) -> Result<()> {
        match self {
            Need::Root if !rustix::process::geteuid().is_root() => bail!("needs root"),
            Need::TwoCores => {
                let cores = node::allowed_cores()?.len();
                if cores < 2 {
                    bail!("needs two cores, one for the problem and one for the rest; this process may use only one");
                }
            }
            Need::LoopDevice if !std::path::Path::new("/dev/loop-control").exists() => {
                bail!("needs a loop device, and there is no /dev/loop-control")
            }
            Need::SystemdRoot if !systemd_root::is_built(&systemd_root::location()?) => {
                return Need::Program("mmdebstrap", "mmdebstrap").check();
            }
            Need::Program(program, package) if !on_path(program) => bail!("needs {program}: install {package}"),
            _ => {}
        }
        Ok(())
    }
}

fn on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

pub const ALL: &[Scenario] = &[
    rt_monopoly::SCENARIO,
    cpu_throttle::SCENARIO,
    zombies::SCENARIO,
    zombies_pinned::SCENARIO,
    leakers::GONE,
    leakers::TWO,
    nic_starved::SCENARIO,
    ksoftirqd_starved::SCENARIO,
    softirq_storm::SCENARIO,
    observer_smaps::SCENARIO,
    cgroup_dir_leak::SCENARIO,
    zombie_reclaim::SCENARIO,
    the_incident::SCENARIO,
    memory_limit_reclaim::SCENARIO,
    two_problems::SCENARIO,
    fork_storm::SCENARIO,
    unfair_weight::SCENARIO,
    deadline_hog::SCENARIO,
    crowded_cpuset::SCENARIO,
    frozen_fs::SCENARIO,
    crashloop_leak::LEAK,
    crashloop_leak::RESET,
    supervised_churn::SCENARIO,
    failing_oneshot::SCENARIO,
    agents::UNUSED,
    agents::CONFLICT,
    agents::CONFIGURED,
    admin_restarts::SCENARIO,
    many_units::SCENARIO,
    hanging_bus::SCENARIO,
    severed_bus::SCENARIO,
    short_spikes::SCENARIO,
    few_zombies::SCENARIO,
    batch_job_ends::SCENARIO,
    healthy::BUSY,
    healthy::ONE_THREAD,
    healthy::IDLE,
];

pub fn find(name: &str) -> Option<&'static Scenario> {
    ALL.iter().find(|s| s.name == name)
}

/// The findings about units and agents.
const UNIT_FINDINGS: &[&str] = &[
    "unit-crashloop",
    "unit-churn",
    "unit-failing",
    "container-crashloop",
    "agent-unused",
    "agent-conflict",
    "unit-drift",
];

/// How long a scenario tries to make its problem. Long, because the node may be busy.
const PATIENCE: Duration = Duration::from_secs(180);

/// A problem that lasted this long is real.
const REAL_NS: u64 = 200_000_000;

/// Picks a core for the problem; the runner, and all it starts from now on, stays on the others.
fn take_core(draw: &mut Draw) -> Result<u32> {
    let cores = node::allowed_cores()?;
    let core = draw.one_of(&cores).context("this process may use no core")?;
    let others: Vec<u32> = cores.into_iter().filter(|&c| c != core).collect();
    node::pin(None, &others)?;
    Ok(core)
}

const FIFO_PRIORITY: u32 = 50;

/// A SCHED_FIFO thread that spins on a core.
fn start_fifo_spinner(stage: &Stage, comm: String, core: u32) -> Result<Child> {
    check_rt_budget(stage)?;
    let mut command = actors::command("spin");
    command.args(["--comm", &comm, "--cores", &core.to_string(), "--fifo", &FIFO_PRIORITY.to_string()]);
    Child::spawn(comm, &mut command)
}

/// An ordinary thread that wants a core for a millisecond, over and over.
fn start_victim(comm: &str, core: u32) -> Result<Child> {
    let mut command = actors::command("load");
    command.args(["--comm", comm, "--cores", &core.to_string(), "--turn-us", "1000", "--every-us", "5000"]);
    Child::spawn(comm, &mut command)
}

/// By default the kernel leaves ordinary threads a little of a core that real-time threads fill. If that is turned off, a long
/// hold would lock up the core (the watchdog reports it after 20 s).
fn check_rt_budget(stage: &Stage) -> Result<()> {
    let path = "/proc/sys/kernel/sched_rt_runtime_us";
    let unlimited = std::fs::read_to_string(path).is_ok_and(|text| text.trim() == "-1");
    if unlimited && stage.hold_for > Duration::from_secs(10) {
        bail!("{path} is -1: this would lock up a core; use --seconds 10 or less");
    }
    Ok(())
}

/// Waits until the spinner has had its core for a while, as SCHED_FIFO.
fn await_fifo_spinner(stage: &Stage, spinner: &mut Child, core: u32) -> Result<()> {
    stage
        .until("the spinner has its core", PATIENCE, || {
            spinner.expect_running()?;
            let stat = node::task_stat(spinner.pid()).context("the spinner is gone")?;
            let ran = node::thread_times(spinner.pid())?.ran_ns;
            Ok((stat.core == core && stat.policy == 1 && ran >= REAL_NS).then_some(()))
        })
        .with_context(|| format!("does another real-time thread hold core {core}?"))
}

fn ms(ns: u64) -> u64 {
    ns / 1_000_000
}
