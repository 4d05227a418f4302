//! Makes a case for real, asks coroner in the middle of it, and says what everybody lost and had meanwhile.

use super::cases::{Case, Group, Process, Work};
use crate::actors;
use crate::guard::{Cgroup, Child, Ext4Mount, Freeze};
use crate::interrupt;
use crate::loss::{Loss, Measured, now_ns};
use crate::node::{self, CoreTimes};
use crate::score::run::output_of;
use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// For processes to start, on a node that others keep busy.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long a trouble lasts that is over when coroner looks.
const HURT: Duration = Duration::from_secs(2);
/// From the last start until coroner is asked.
const SETTLE: Duration = Duration::from_millis(700);
/// For those who lost to say so, once the troubles are over.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// What really happened while coroner looked.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Happened {
    /// Of each process of the case, in its order.
    pub fates: Vec<Fate>,
    /// Cgroups that made the case, in its order: path as in /proc/PID/cgroup, and for how long its threads were throttled.
    pub groups: Vec<GroupFate>,
    pub leak: Option<LeakFate>,
    pub blocked: Option<Fate>,
    /// From the start of coroner to its end.
    pub window_ns: u64,
    /// CPU time of everybody else on the node, coroner excepted.
    pub foreign_ns: u64,
    /// How busy each core was, in percent.
    pub busy_percent: BTreeMap<u32, u64>,
}

#[derive(Debug, Clone, Default, Serialize)]
pub struct Fate {
    pub comm: String,
    pub pid: u32,
    /// Its threads, itself included.
    pub tids: Vec<u32>,
    /// CPU time, with that of its children.
    pub ran_ns: u64,
    /// By its own clock; `None` if it does not measure.
    #[serde(skip)]
    pub loss: Option<Loss>,
    pub lost_percent: Option<u64>,
    pub lost_ms: Option<u64>,
}

impl Fate {
    /// `train[4711]`, for each thread.
    pub fn labels(&self) -> Vec<String> {
        self.tids.iter().chain([&self.pid]).map(|tid| format!("{}[{tid}]", self.comm)).collect()
    }
}

#[derive(Debug, Clone, Default, Serialize)]
pub struct GroupFate {
    pub path: String,
    pub throttled_ns: u64,
}

#[derive(Debug, Clone, Default, Serialize)]
pub struct LeakFate {
    pub comm: String,
    pub pid: u32,
    pub parent: String,
}

/// Dropped in this order: the file system thaws before its writer ends, processes end before their cgroups.
struct Staged {
    freeze: Option<Freeze>,
    processes: Vec<Option<Started>>,
    writer: Option<Measured>,
    _file_system: Option<Ext4Mount>,
    leaker: Option<Child>,
    leak_in: Option<Cgroup>,
    groups: Vec<MadeGroup>,
}

enum Started {
    Measured(Measured),
    Plain(Child),
    /// Over before coroner looked.
    Ended(Fate),
}

impl Started {
    /// What it has had so far.
    fn fate(&mut self) -> Result<Fate> {
        let child = match self {
            Started::Ended(fate) => return Ok(fate.clone()),
            Started::Measured(measured) => &mut measured.child,
            Started::Plain(child) => child,
        };
        child.expect_running()?;
        let (pid, tids) = (child.pid(), node::threads_of(child.pid()));
        let threads: u64 = tids.iter().filter_map(|&tid| node::thread_times(tid).ok()).map(|t| t.ran_ns).sum();
        let ran_ns = threads + node::children_ns(pid).unwrap_or(0);
        Ok(Fate { comm: child.name().to_owned(), pid, tids, ran_ns, ..Fate::default() })
    }
}

struct MadeGroup {
    inner: PathBuf,
    path: String,
    outer: Cgroup,
}

/// Returns coroner's answer and what happened meanwhile.
pub fn perform(case: &Case, coroner: &Path, watch: &str) -> Result<(Value, Happened)> {
    let mut staged = stage(case)?;
    interrupt::pause(SETTLE);
    let before = Books::of(&mut staged)?;
    let mut command = Command::new(coroner);
    command.args(["diagnose", "--json", "--no-recorder", "--for", watch]);
    let text = output_of(&mut command)?;
    let after = Books::of(&mut staged)?;
    let answer: Value = serde_json::from_slice(&text).context("coroner did not answer with JSON")?;
    let window = (before.at_ns, after.at_ns);
    let mut happened = after.since(&before, &answer);
    happened.leak = match (&staged.leaker, &staged.leak_in) {
        (Some(child), Some(parent)) => {
            Some(LeakFate { comm: child.name().to_owned(), pid: child.pid(), parent: parent.path() })
        }
        _ => None,
    };
    last_words(case, &mut staged, window, &mut happened)?;
    Ok((answer, happened))
}

fn stage(case: &Case) -> Result<Staged> {
    let groups = case.groups.iter().enumerate().map(|(i, group)| make_group(i, group)).collect::<Result<Vec<_>>>()?;
    let mut staged = Staged {
        freeze: None,
        processes: case.processes.iter().map(|_| None).collect(),
        writer: None,
        _file_system: None,
        leaker: None,
        leak_in: None,
        groups,
    };
    if let Some(leak) = &case.leak {
        let parent = Cgroup::with_controller("memory", "invent-leak")?;
        let mut command = actors::command("leak-cgroups");
        command.args(["--comm", &leak.comm, "--prefix", "c", "--count", &leak.count.to_string()]);
        command.args(["--every-ms", &leak.every_ms.to_string()]).arg("--parent").arg(parent.dir());
        staged.leaker = Some(Child::spawn(&leak.comm, &mut command)?);
        let last = parent.dir().join(format!("c{}", leak.count));
        staged.leak_in = Some(parent);
        until("the cgroups are made", || Ok(last.exists()))?;
    }
    // Those who may lose first: once there is trouble they might not even start.
    for troubles in [false, true] {
        for (i, process) in case.processes.iter().enumerate().filter(|(_, p)| p.troubles == troubles) {
            let dir = process.group.and_then(|group| staged.groups.get(group)).map(|group| group.inner.clone());
            staged.processes[i] = Some(start(process, dir.as_deref())?);
        }
        for started in staged.processes.iter_mut().flatten() {
            match started {
                Started::Measured(measured) if !troubles => measured.await_first_words(PATIENCE)?,
                started => started.fate().map(drop)?,
            }
        }
    }
    end_what_is_over(case, &mut staged)?;
    if let Some(frozen) = &case.freeze {
        let file_system = Ext4Mount::writable("invent-data", "data", &[0; 65536])?;
        let mut command = actors::command("write-file");
        command.args(["--comm", &frozen.comm, "--every-us", &frozen.every_us.to_string()]);
        let mut writer = Measured::spawn(&frozen.comm, command.arg("--file").arg(file_system.file()))?;
        writer.await_first_words(PATIENCE)?;
        staged.freeze = Some(Freeze::of(file_system.dir())?);
        (staged.writer, staged._file_system) = (Some(writer), Some(file_system));
    }
    Ok(staged)
}

fn end_what_is_over(case: &Case, staged: &mut Staged) -> Result<()> {
    if case.processes.iter().any(|process| process.over) {
        interrupt::pause(HURT);
    }
    for (process, started) in case.processes.iter().zip(&mut staged.processes).filter(|(process, _)| process.over) {
        let fate = started.as_mut().with_context(|| format!("{} was not started", process.comm))?.fate()?;
        *started = Some(Started::Ended(fate));
    }
    Ok(())
}

fn make_group(number: usize, group: &Group) -> Result<MadeGroup> {
    let outer = Cgroup::with_controller("cpu", &format!("invent-{number}"))?;
    let v1 = outer.hierarchy().version == 1;
    if let Some(weight) = group.weight {
        match v1 {
            true => outer.write("cpu.shares", &(weight * 1024 / 100).max(2).to_string())?,
            false => outer.write("cpu.weight", &weight.to_string())?,
        }
    }
    let mut inner = outer.dir().to_owned();
    for level in 1..group.depth {
        outer.hierarchy().enable(&inner, "cpu")?;
        inner = inner.join(format!("level-{level}"));
        std::fs::create_dir(&inner).with_context(|| inner.display().to_string())?;
    }
    if let Some(percent) = group.quota_percent {
        let quota = percent * 1000;
        let (file, text) =
            if v1 { ("cpu.cfs_quota_us", quota.to_string()) } else { ("cpu.max", format!("{quota} 100000")) };
        std::fs::write(inner.join(file), text).with_context(|| inner.join(file).display().to_string())?;
    }
    let path = outer.hierarchy().path_of(&inner);
    Ok(MadeGroup { inner, path, outer })
}

fn start(process: &Process, join: Option<&Path>) -> Result<Started> {
    let actor = match process.work {
        Work::Turns { .. } => "load",
        Work::Children { .. } => "storm",
        Work::HandOver { .. } => "hand-over",
    };
    let mut command = actors::command(actor);
    command.args(["--comm", &process.comm, "--priority", &process.priority.to_string()]);
    command.args(["--nice", &process.nice.to_string()]);
    if let Some(class) = process.class.to_possible_value() {
        command.args(["--class", class.get_name()]);
    }
    if !process.cores.is_empty() {
        let cores: Vec<String> = process.cores.iter().map(u32::to_string).collect();
        command.args(["--cores", &cores.join(",")]);
    }
    if let Some(dir) = join {
        command.arg("--join").arg(dir);
    }
    match &process.work {
        Work::Turns { threads, turn_us, every_us, effort } => {
            if let Some(effort) = effort.to_possible_value() {
                command.args(["--effort", effort.get_name()]);
            }
            command.args(["--threads", &threads.to_string(), "--turn-us", &turn_us.to_string()]);
            command.args(["--every-us", &every_us.to_string()]);
            Ok(Started::Measured(Measured::spawn(&process.comm, &mut command)?))
        }
        Work::HandOver { pairs, times } => {
            command.args(["--pairs", &pairs.to_string(), "--times", &times.to_string()]);
            Ok(Started::Plain(Child::spawn(&process.comm, &mut command)?))
        }
        Work::Children { child, at_once, ms } => {
            command.args(["--child", child, "--at-once", &at_once.to_string()]);
            command.args(["--ms", &ms.0.to_string(), &ms.1.to_string()]);
            Ok(Started::Plain(Child::spawn(&process.comm, &mut command)?))
        }
    }
}

fn until(what: &str, mut done: impl FnMut() -> Result<bool>) -> Result<()> {
    let end = Instant::now() + PATIENCE;
    while !done()? {
        if interrupt::requested() {
            bail!("interrupted");
        }
        if Instant::now() > end {
            bail!("gave up waiting until {what}");
        }
        interrupt::pause(Duration::from_millis(10));
    }
    Ok(())
}

/// Ends the troubles, so that those who lost can say how much.
fn last_words(case: &Case, staged: &mut Staged, (from, to): (u64, u64), happened: &mut Happened) -> Result<()> {
    staged.freeze = None;
    for (i, process) in case.processes.iter().enumerate() {
        let Some(Started::Measured(measured)) = &mut staged.processes[i] else { continue };
        if process.troubles {
            // A runner tells every few milliseconds.
            measured.await_account(to, Duration::from_millis(100))?;
            happened.fates[i].set(measured.between(from, to));
        }
    }
    for (i, process) in case.processes.iter().enumerate() {
        if process.troubles {
            staged.processes[i] = None;
        }
    }
    for (i, started) in staged.processes.iter_mut().enumerate() {
        let Some(Started::Measured(measured)) = started else { continue };
        measured.await_account(to, LAST_WORDS)?;
        happened.fates[i].set(measured.between(from, to));
    }
    if let Some(writer) = &mut staged.writer {
        writer.await_account(to, LAST_WORDS)?;
        let mut fate = Fate { comm: writer.child.name().to_owned(), pid: writer.child.pid(), ..Fate::default() };
        fate.set(writer.between(from, to));
        happened.blocked = Some(fate);
    }
    Ok(())
}

impl Fate {
    fn set(&mut self, loss: Loss) {
        self.loss = Some(loss);
        self.lost_percent = Some((loss.share() * 100.0).round() as u64);
        self.lost_ms = Some(loss.lost_ns() / 1_000_000);
    }
}

/// What everybody has had so far.
struct Books {
    at_ns: u64,
    cores: CoreTimes,
    busy_ns: u64,
    own_ns: u64,
    fates: Vec<Fate>,
    groups: Vec<GroupFate>,
}

impl Books {
    fn of(staged: &mut Staged) -> Result<Books> {
        let mut fates = Vec::new();
        for started in &mut staged.processes {
            fates.push(started.as_mut().context("not every process was started")?.fate()?);
        }
        let own: u64 = node::threads_of(std::process::id())
            .iter()
            .filter_map(|&t| node::thread_times(t).ok())
            .map(|t| t.ran_ns)
            .sum();
        let groups = staged
            .groups
            .iter()
            .map(|group| Ok(GroupFate { path: group.path.clone(), throttled_ns: throttled_ns(group)? }));
        Ok(Books {
            at_ns: now_ns(),
            cores: CoreTimes::now()?,
            busy_ns: node::busy_ns()?,
            own_ns: own,
            groups: groups.collect::<Result<_>>()?,
            fates,
        })
    }

    fn since(self, before: &Books, answer: &Value) -> Happened {
        let mut fates = self.fates;
        for (fate, then) in fates.iter_mut().zip(&before.fates) {
            fate.ran_ns = fate.ran_ns.saturating_sub(then.ran_ns);
        }
        let mut groups = self.groups;
        for (group, then) in groups.iter_mut().zip(&before.groups) {
            group.throttled_ns = group.throttled_ns.saturating_sub(then.throttled_ns);
        }
        let coroner_ms =
            answer["cost"]["cpu_ms"].as_u64().unwrap_or(0) + answer["cost"]["startup_cpu_ms"].as_u64().unwrap_or(0);
        let ours = fates.iter().map(|fate| fate.ran_ns).sum::<u64>()
            + self.own_ns.saturating_sub(before.own_ns)
            + coroner_ms * 1_000_000;
        Happened {
            window_ns: self.at_ns - before.at_ns,
            foreign_ns: self.busy_ns.saturating_sub(before.busy_ns).saturating_sub(ours),
            busy_percent: self.cores.busy_percent_since(&before.cores),
            fates,
            groups,
            ..Happened::default()
        }
    }
}

fn throttled_ns(group: &MadeGroup) -> Result<u64> {
    let path = group.inner.join("cpu.stat");
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    // Absent on v2 without the controller: then there is no quota either.
    let number = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok());
    Ok(match group.outer.hierarchy().version {
        1 => number("throttled_time "),
        _ => number("throttled_usec ").map(|us| us * 1000),
    }
    .unwrap_or(0))
}
