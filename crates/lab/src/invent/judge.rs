//! Compares an answer with what really happened: who lost, and who had it meanwhile.

use super::cases::{Case, Process, Work};
use super::staging::{Fate, Happened};
use crate::actors::load::Class;
use crate::score::judge::{Answer, Finding, WARNING, finding_of, rank, words};
use anyhow::{Context, Result};
use serde::Serialize;

/// A loss that somebody must explain: this much in all, …
const REAL_NS: u64 = 1_000_000_000;
/// … and this share of what was asked for, taken by a higher class or a quota, or on a core that the loser cannot leave while others have room.
const REAL_SHARE: f64 = 0.5;
/// The share where nobody has room, or where somebody weighs more: for each turn two others had theirs. Less is how a full node works, and
/// what weights are for.
const REAL_SHARE_OF_TURNS: f64 = 0.7;
/// Below this nobody lost anything worth a word; between the two an answer may say so or not.
const NO_SHARE: f64 = 0.2;
const NO_NS: u64 = 300_000_000;
/// Who had less of what another lost did not take it.
const TAKER: f64 = 0.1;
/// The rest of the node may have taken a loss if it had this share of it.
const FOREIGN: f64 = 0.3;
/// A core has room if it is less busy than this.
const ROOM_PERCENT: u64 = 80;
/// With more than twice the weight, or a nice value lower by three, somebody comes first (a nice step is a factor of 1.25).
const HEAVIER: f64 = 2.0;
const NICER: i32 = 3;
/// What a thread outside of every cgroup of the case weighs.
const ORDINARY_WEIGHT: u64 = 100;

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Judged {
    /// Each who really lost.
    pub lost: Vec<Lost>,
    /// Losses that may be reported, or not.
    pub grey: usize,
    /// Nobody lost anything: no warning may name anybody of the case.
    pub quiet: bool,
    /// The rest of the node took a share of what was lost.
    pub disturbed: bool,
    /// Verdicts that name somebody of the case.
    pub given: usize,
    /// Those that are about a loss.
    pub right: usize,
    /// Proven, and blames somebody who took nothing.
    pub wrong_proven: Vec<String>,
    pub false_alarms: Vec<String>,
    /// Everything that is wrong, in words.
    pub faults: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Lost {
    pub who: String,
    /// How it lost: `real-time`, `weight`, `quota` …
    pub kind: &'static str,
    pub lost_percent: u64,
    pub lost_ms: u64,
    /// One of them must be named.
    pub takers: Vec<String>,
    /// Some finding is about it.
    pub found: bool,
    pub right_cause: bool,
    pub right_culprit: bool,
    /// A taker of the case is blamed, and not only the loser named where others took a share.
    pub taker_named: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
enum State {
    Fine,
    Grey,
    Real,
}

/// Why a taker comes before a loser.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Why {
    RealTime,
    Deadline,
    Weight,
    Nice,
    Forks,
    Turns,
}

impl Why {
    fn kind(self) -> &'static str {
        match self {
            Why::RealTime => "real-time",
            Why::Deadline => "deadline",
            Why::Weight => "weight",
            Why::Nice => "nice",
            Why::Forks => "forks",
            Why::Turns => "crowd",
        }
    }

    /// The codes that explain it.
    fn causes(self) -> &'static [&'static str] {
        match self {
            Why::RealTime | Why::Deadline => &["cpu-starved", "core-monopolised", "core-saturated"],
            Why::Weight | Why::Nice => &["unfair-weight", "cpu-starved", "cpu-contention", "core-monopolised"],
            Why::Forks => &["fork-storm", "cpu-starved", "cpu-contention", "core-saturated"],
            Why::Turns => &["cpu-starved", "affinity", "cpu-contention", "core-saturated", "core-monopolised"],
        }
    }
}

/// One process of the case, and what became of it.
struct Loser<'h> {
    process: &'h Process,
    fate: &'h Fate,
    state: State,
    throttled: bool,
    /// By number.
    takers: Vec<(usize, Why)>,
    foreign: bool,
}

pub fn judge(case: &Case, happened: &Happened, answer: &Answer) -> Result<Judged> {
    let losers: Vec<Loser<'_>> = (0..case.processes.len()).map(|i| loser(case, happened, i)).collect();
    let mut told: Vec<&Finding> = Vec::new();
    for finding in &answer.findings {
        if rank(&finding.severity)? >= WARNING {
            told.push(finding);
        }
    }
    let blocked = happened.blocked.as_ref().filter(|fate| fate.loss.is_some_and(|loss| loss.lost_ns() >= REAL_NS));
    let mut judged = Judged {
        grey: losers.iter().filter(|loser| loser.state == State::Grey).count(),
        quiet: losers.iter().all(|loser| loser.state == State::Fine)
            && happened.blocked.is_none()
            && happened.leak.is_none(),
        disturbed: losers.iter().any(|loser| loser.state > State::Fine && loser.foreign),
        ..Judged::default()
    };
    for loser in losers.iter().filter(|loser| loser.state == State::Real) {
        judged.lost.push(judge_loser(case, happened, loser, &told));
    }
    if let Some(fate) = blocked {
        judged.lost.push(judge_blocked(fate, &told));
    }
    if let Some(leak) = &happened.leak {
        let label = format!("{}[{}]", leak.comm, leak.pid);
        let about = |f: &&Finding| f.names(&leak.parent) || f.blames(&label);
        let found: Vec<&Finding> =
            told.iter().copied().filter(|f| matches!(f.code.as_str(), "cgroup-leak" | "zombie-memcgs")).collect();
        let named = found.iter().any(about);
        let blamed = found.iter().any(|f| f.blames(&label));
        judged.lost.push(Lost {
            kind: "leak",
            lost_percent: 0,
            lost_ms: 0,
            found: named,
            right_cause: named,
            right_culprit: blamed,
            taker_named: blamed,
            takers: vec![label.clone()],
            who: leak.parent.clone(),
        });
    }
    for lost in &judged.lost {
        let who = format!("{} ({}, lost {} %, {} ms)", lost.who, lost.kind, lost.lost_percent, lost.lost_ms);
        let takers = lost.takers.join(", ");
        match (lost.found, lost.right_cause, lost.right_culprit) {
            (false, ..) => judged.faults.push(format!("missed: {who}; taken by {takers}")),
            (_, false, _) => judged.faults.push(format!("wrong cause for {who}; taken by {takers}")),
            (.., false) => judged.faults.push(format!("no taker is named for {who}; taken by {takers}")),
            _ => {}
        }
    }
    judge_blame(case, happened, answer, &losers, &told, &mut judged)?;
    Ok(judged)
}

fn loser<'h>(case: &'h Case, happened: &'h Happened, number: usize) -> Loser<'h> {
    let (process, fate) = (&case.processes[number], &happened.fates[number]);
    let mut loser = Loser { process, fate, state: State::Fine, throttled: false, takers: Vec::new(), foreign: false };
    let Some(mut loss) = fate.loss.filter(|_| !process.is_humble()) else { return loser };
    // Who has more threads than cores waits for itself.
    let cores = if process.cores.is_empty() { happened.busy_percent.len() } else { process.cores.len() };
    if happened.window_ns > 0 && cores > 0 {
        loss.wanted_ns = loss.wanted_ns.min(happened.window_ns * cores as u64).max(loss.got_ns);
    }
    if loss.share() < NO_SHARE || loss.lost_ns() < NO_NS {
        return loser;
    }
    let lost = loss.lost_ns() as f64;
    loser.throttled = process.group.is_some_and(|group| {
        case.groups[group].quota_percent.is_some() && happened.groups[group].throttled_ns as f64 >= FOREIGN * lost
    });
    let foreign_ns = foreign_ns(case, happened, process);
    loser.foreign = foreign_ns as f64 >= FOREIGN * lost;
    for (i, (other, had)) in case.processes.iter().zip(&happened.fates).enumerate() {
        if i != number && share_a_core(process, other) && had.ran_ns as f64 >= TAKER * lost {
            loser.takers.push((i, why(case, other, process)));
        }
    }
    let first = loser.takers.iter().map(|(_, why)| *why).min();
    let has_room = |(core, busy): (&u32, &u64)| !process.cores.contains(core) && *busy < ROOM_PERCENT;
    let confined = !process.cores.is_empty() && happened.busy_percent.iter().any(has_room);
    let needed = match first {
        _ if loser.throttled => REAL_SHARE,
        Some(Why::RealTime | Why::Deadline) => REAL_SHARE,
        Some(Why::Forks | Why::Turns) if confined => REAL_SHARE,
        _ => REAL_SHARE_OF_TURNS,
    };
    let taken: u64 = loser.takers.iter().map(|(i, _)| happened.fates[*i].ran_ns).sum();
    // Where others had more than anybody of the case, it is theirs to explain.
    let explained = loser.throttled || (!loser.takers.is_empty() && taken >= foreign_ns);
    let real = explained && loss.share() >= needed && loss.lost_ns() >= REAL_NS;
    loser.state = if real { State::Real } else { State::Grey };
    loser
}

/// What the rest of the node had on the cores of a process. Who may use more cores is taken to have used all of them alike.
fn foreign_ns(case: &Case, happened: &Happened, process: &Process) -> u64 {
    let all: Vec<u32> = happened.busy_percent.keys().copied().collect();
    let cores = |process: &Process| if process.cores.is_empty() { all.clone() } else { process.cores.clone() };
    let here = cores(process);
    let busy: u64 = here.iter().filter_map(|core| happened.busy_percent.get(core)).sum();
    let ours: f64 = case
        .processes
        .iter()
        .zip(&happened.fates)
        .map(|(other, had)| {
            let there = cores(other);
            let common = there.iter().filter(|core| here.contains(core)).count();
            had.ran_ns as f64 * common as f64 / there.len().max(1) as f64
        })
        .sum();
    (busy * happened.window_ns / 100).saturating_sub(ours as u64)
}

fn share_a_core(one: &Process, other: &Process) -> bool {
    one.cores.is_empty() || other.cores.is_empty() || one.cores.iter().any(|core| other.cores.contains(core))
}

fn why(case: &Case, taker: &Process, loser: &Process) -> Why {
    let weight = |p: &Process| p.group.and_then(|group| case.groups[group].weight).unwrap_or(ORDINARY_WEIGHT);
    match taker.class {
        Class::Deadline => return Why::Deadline,
        Class::Fifo | Class::RoundRobin => return Why::RealTime,
        _ => {}
    }
    if taker.group != loser.group && weight(taker) as f64 > HEAVIER * weight(loser) as f64 {
        return Why::Weight;
    }
    match &taker.work {
        _ if taker.group == loser.group && loser.nice - taker.nice >= NICER => Why::Nice,
        Work::Children { .. } => Why::Forks,
        Work::Turns { .. } | Work::HandOver { .. } => Why::Turns,
    }
}

fn judge_loser(case: &Case, happened: &Happened, loser: &Loser<'_>, told: &[&Finding]) -> Lost {
    let first = loser.takers.iter().map(|(_, why)| *why).min();
    let mut causes: Vec<&str> = loser.takers.iter().flat_map(|(_, why)| why.causes()).copied().collect();
    let group = loser.process.group.filter(|_| loser.throttled).map(|group| happened.groups[group].path.as_str());
    if group.is_some() {
        causes.push("cpu-throttled");
    }
    let own = loser.fate.labels();
    let suffers = |f: &Finding| own.iter().any(|label| f.names(label));
    let blames_taker =
        |f: &Finding| loser.takers.iter().any(|(i, _)| blames(f, &case.processes[*i], &happened.fates[*i]));
    let limits = |f: &Finding| f.code == "cpu-throttled" && group.is_some_and(|path| names_cgroup(f, path));
    let about = |f: &&&Finding| suffers(f) || blames_taker(f) || limits(f);
    let right: Vec<_> = told.iter().filter(|f| causes.contains(&f.code.as_str())).filter(about).collect();
    Lost {
        who: format!("{}[{}]", loser.fate.comm, loser.fate.pid),
        kind: if loser.throttled { "quota" } else { first.map_or("others", Why::kind) },
        lost_percent: loser.fate.lost_percent.unwrap_or(0),
        lost_ms: loser.fate.lost_ms.unwrap_or(0),
        found: told.iter().any(|f| about(&f)),
        right_cause: !right.is_empty(),
        taker_named: right.iter().any(|f| blames_taker(f) || limits(f)),
        // Others on the node may have taken it as well: then it is enough that the loser is named.
        right_culprit: right.iter().any(|f| blames_taker(f) || limits(f) || (loser.foreign && suffers(f))),
        takers: group
            .map(str::to_owned)
            .into_iter()
            .chain(loser.takers.iter().map(|(i, _)| &happened.fates[*i]).map(|f| format!("{}[{}]", f.comm, f.pid)))
            .collect(),
    }
}

fn judge_blocked(fate: &Fate, told: &[&Finding]) -> Lost {
    let label = format!("{}[{}]", fate.comm, fate.pid);
    let found = told.iter().any(|f| f.code == "blocked" && f.names(&label));
    Lost {
        kind: "block",
        lost_percent: fate.lost_percent.unwrap_or(0),
        lost_ms: fate.lost_ms.unwrap_or(0),
        takers: vec!["a frozen file system".to_owned()],
        found,
        right_cause: found,
        right_culprit: found,
        taker_named: found,
        who: label,
    }
}

/// Whether it says that this process took something.
fn blames(finding: &Finding, process: &Process, fate: &Fate) -> bool {
    let is_child = |comm: &str| matches!(&process.work, Work::Children { child, .. } if child == comm);
    let subject =
        (finding.subject.kind == "process" && !about_a_victim(&finding.code)).then_some(&finding.subject.name);
    let labels = fate.labels();
    finding.by.iter().chain(subject).any(|name| labels.contains(name))
        || finding.ties.culprits.iter().any(|task| task.pid == fate.pid || is_child(&task.comm))
}

/// The subject of such a finding is who lost.
fn about_a_victim(code: &str) -> bool {
    matches!(code, "cpu-starved" | "unfair-weight" | "blocked" | "affinity" | "cpu-throttled")
}

/// The quota may be reported where it is set, or for a cgroup around it.
fn names_cgroup(finding: &Finding, path: &str) -> bool {
    let is_around = |name: &String| {
        name.len() > 1 && (path == name || path.strip_prefix(name.as_str()).is_some_and(|rest| rest.starts_with('/')))
    };
    finding.names(path) || finding.ties.cgroups.iter().chain([&finding.subject.name]).any(is_around)
}

/// Whether anybody is blamed who took nothing, or a warning is given where nobody lost.
fn judge_blame(
    case: &Case,
    happened: &Happened,
    answer: &Answer,
    losers: &[Loser<'_>],
    told: &[&Finding],
    judged: &mut Judged,
) -> Result<()> {
    let lost = || losers.iter().filter(|loser| loser.state > State::Fine);
    let guilty = |number: usize| {
        lost().any(|loser| loser.takers.iter().any(|(taker, _)| *taker == number))
            || lost().any(|l| l.throttled && l.process.group == case.processes[number].group)
    };
    // What others on the node lost, nobody measured, nor what those who wait for each other lost: somebody may well have taken it.
    let others_lost = |f: &Finding| {
        let is_ours = |pid: u32| {
            happened.fates.iter().chain(&happened.blocked).any(|fate| fate.pid == pid && fate.loss.is_some())
        };
        !f.ties.victims.is_empty() && !f.ties.victims.iter().any(|task| is_ours(task.pid))
    };
    let names_somebody = |f: &Finding| {
        happened.fates.iter().chain(&happened.blocked).any(|fate| fate.labels().iter().any(|label| f.names(label)))
            || happened.groups.iter().any(|group| names_cgroup(f, &group.path))
            || happened.leak.as_ref().is_some_and(|l| f.names(&l.parent) || f.names(&format!("{}[{}]", l.comm, l.pid)))
    };
    let of_case = |f: &Finding| !others_lost(f) && names_somebody(f);
    let about_a_loss = |f: &Finding| {
        lost().any(|l| l.fate.labels().iter().any(|label| f.names(label)))
            || (0..case.processes.len()).any(|i| guilty(i) && blames(f, &case.processes[i], &happened.fates[i]))
            || lost().any(|l| l.throttled && l.process.group.is_some_and(|g| names_cgroup(f, &happened.groups[g].path)))
            || happened.blocked.as_ref().is_some_and(|fate| fate.labels().iter().any(|label| f.names(label)))
            || happened.leak.as_ref().is_some_and(|l| f.names(&l.parent) || f.names(&format!("{}[{}]", l.comm, l.pid)))
    };
    for verdict in answer.verdicts.as_ref().context("the answer has no verdicts")? {
        if rank(&verdict.severity)? < WARNING {
            continue;
        }
        let Some(root) = finding_of(&verdict.root_cause, &answer.findings).filter(|root| of_case(root)) else {
            continue;
        };
        judged.given += 1;
        judged.right += usize::from(about_a_loss(root));
        let innocent =
            (0..case.processes.len()).find(|&i| !guilty(i) && blames(root, &case.processes[i], &happened.fates[i]));
        if let Some(i) = innocent.filter(|_| verdict.certainty == "proven") {
            let fate = &happened.fates[i];
            let fault = format!("{}[{}] took nothing: {}", fate.comm, fate.pid, words(verdict));
            judged.faults.push(format!("wrong, and proven: {fault}"));
            judged.wrong_proven.push(fault);
        }
    }
    for finding in told.iter().filter(|f| judged.quiet && of_case(f)) {
        let fault = format!("{} {} ({})", finding.severity, finding.code, finding.title);
        judged.faults.push(format!("false alarm: {fault}"));
        judged.false_alarms.push(fault);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
