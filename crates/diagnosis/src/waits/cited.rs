//! Sentences and facts about a loss, shared by the rules that read the ledger.

use super::losses::{Actor, Confined, Kind, Loss, Taker, Victim};
use super::precedence::Precedence;
use crate::case::Case;
use crate::code::Code;
use crate::cores::words::{listed, percent, percent_value, span};
use crate::finding::{Answer, Fact, FactKey, Finding};
use crate::ties::{Task, Ties};
use crate::words::count;
use coroner_evidence::tasks::SchedulingClass;
use coroner_evidence::{LedgerMethod, Party, Window, probe};
use std::time::Duration;

/// Named in a sentence; the rest are counted.
const NAMED: usize = 3;
const SOURCE: &str = "wait ledger";

/// The losses that pass, or why the rule cannot tell.
pub fn losses_where<'c>(case: &'c Case<'_>, pass: impl Fn(&Loss) -> bool) -> Result<Vec<&'c Loss>, Answer> {
    let losses = case.losses().ok_or_else(|| no_ledger(case))?;
    Ok(losses.iter().filter(|loss| pass(loss)).collect())
}

pub fn no_ledger(case: &Case<'_>) -> Answer {
    let unseen = case.evidence.why_unseen(probe::WAITS);
    Answer::CannotTell {
        because: unseen.map_or("no wait ledger was kept", |u| &u.why).to_owned(),
        how_to_see: unseen.map_or("watch as root, with BPF", |u| &u.how_to_see).to_owned(),
    }
}

/// Whether BPF was not to be had. Then the ledger proves nothing.
pub fn is_estimate(case: &Case<'_>) -> bool {
    case.evidence.waits.iter().any(|ledger| ledger.method == LedgerMethod::Estimate)
}

/// What *fine* rests on: `of 214 threads none lost …; the worst, sshd[812], got 93 %`.
pub fn checked(case: &Case<'_>, what: &str) -> Answer {
    let ledgers = &case.evidence.waits;
    let watched: u64 = ledgers.iter().map(|ledger| ledger.watched_ns).fold(0, u64::saturating_add);
    let threads = ledgers.iter().map(|ledger| ledger.accounts.len()).max().unwrap_or(0);
    let how = if is_estimate(case) { " (an estimate: BPF is not available)" } else { "" };
    Answer::Fine(format!("of {} threads over {} {what}{how}", count(threads as u64), span(watched)))
}

/// `storm[99]`; short-lived processes are named by who starts them.
pub fn task(actor: &Actor, party: &Party) -> Task {
    match (actor.pid, actor.parent_pid) {
        (Some(pid), _) => Task { comm: party.comm.clone(), pid, tid: pid },
        (None, parent) => {
            let pid = parent.unwrap_or(0);
            Task { comm: party.parent_comm.clone().unwrap_or_else(|| party.comm.clone()), pid, tid: pid }
        }
    }
}

/// `hog[7] (SCHED_FIFO 50)`, `cc1, short-lived processes of make[99]`.
fn taker_name(case: &Case<'_>, taker: &Taker) -> String {
    let task = task(&taker.actor, &taker.party);
    match taker.actor.pid {
        Some(pid) => format!("{}{}", task.name(), case.home_of(pid)),
        None => format!("short-lived processes ({}) of {}", taker.party.comm.replace('`', "'"), task.name()),
    }
}

pub fn takers_text(case: &Case<'_>, loss: &Loss) -> String {
    let mut names: Vec<String> = Vec::new();
    for taker in &loss.takers {
        let name = taker_name(case, taker);
        if !names.contains(&name) {
            names.push(name);
        }
    }
    listed(&names, NAMED)
}

/// `svc[4711] of svc.service waited 2.2 s and ran 370 ms: it got 14 % of what it asked for`
pub fn victims_text(case: &Case<'_>, loss: &Loss) -> String {
    let each = |victim: &Victim| {
        format!(
            "{}{} ran {} and waited {}",
            task(&victim.actor, &victim.party).name(),
            victim.actor.pid.map_or_else(String::new, |pid| case.home_of(pid)),
            span(victim.ran_ns),
            span(victim.waited_ns),
        )
    };
    listed(&loss.victims.iter().map(each).collect::<Vec<_>>(), NAMED)
}

/// The one who lost most: `svc[4711]`, `svc[4711] (and 3 others)`.
pub fn victim_names(loss: &Loss) -> String {
    let first = loss.victims.first().map_or_else(String::new, |v| task(&v.actor, &v.party).name());
    match loss.victims.len() {
        0 | 1 => first,
        2 => format!("{first} (and 1 other)"),
        n => format!("{first} (and {} others)", n - 1),
    }
}

/// `14 %`: of what the one who lost most asked for.
pub fn got(loss: &Loss) -> String {
    percent(loss.victims.first().map_or(0.0, |victim| 1.0 - victim.lost()))
}

/// `core 1`, `cores 0 and 3`.
pub fn cores_text(loss: &Loss) -> String {
    let names: Vec<String> = loss.cores.iter().map(u32::to_string).collect();
    let noun = if names.len() == 1 { "core" } else { "cores" };
    format!("{noun} {}", listed(&names, 4))
}

/// Why the victims did not go elsewhere; empty if other cores had no room.
pub fn confined_text(loss: &Loss) -> String {
    match loss.victims.iter().find_map(|victim| Some((victim, victim.confined.as_ref()?))) {
        Some((victim, Confined::To { cores, cpuset })) => {
            let name = task(&victim.actor, &victim.party).name();
            let noun = if cores.len() == 1 { "core" } else { "cores" };
            let by = cpuset.as_ref().map_or_else(String::new, |cgroup| format!(" (its cpuset {cgroup})"));
            format!(" {name} may run on {noun} {cores} only{by}; the others had room.")
        }
        Some((victim, Confined::Seen(core))) => {
            let name = task(&victim.actor, &victim.party).name();
            format!(" {name} stayed on core {core} though the others had room.")
        }
        None => " No other core had room for it.".to_owned(),
    }
}

/// `SCHED_FIFO 50`, `SCHED_OTHER nice -5`
pub fn scheduling(party: &Party) -> String {
    match (party.class, party.nice) {
        (SchedulingClass::Fifo | SchedulingClass::RoundRobin, _) => {
            format!("{} {}", party.class.as_str(), party.rt_priority)
        }
        (class, nice) if nice != 0 && !class.is_real_time() => format!("{} nice {nice}", class.as_str()),
        (class, _) => class.as_str().to_owned(),
    }
}

fn why_text(taker: &Taker) -> String {
    match &taker.why {
        Precedence::Class => scheduling(&taker.party),
        Precedence::CgroupWeight { runner, victim } => format!("weight {} against {}", runner.weight, victim.weight),
        Precedence::Nice => format!("nice {}", taker.party.nice),
        Precedence::Turns => "equal turns".to_owned(),
    }
}

pub fn facts(loss: &Loss) -> Vec<Fact> {
    let mut facts = Vec::new();
    for victim in loss.victims.iter().take(NAMED) {
        let name = task(&victim.actor, &victim.party).name();
        facts.push(Fact::new(FactKey::GotOfAsked, percent_value(1.0 - victim.lost()), SOURCE).of(&name));
        facts.push(Fact::new(FactKey::Waited, victim.waited_ns / 1_000_000, SOURCE).of(name));
    }
    let all = loss.victims.iter().map(|v| v.waited_ns).fold(0, u64::saturating_add).max(1) as f64;
    for taker in loss.takers.iter().take(NAMED) {
        let name = task(&taker.actor, &taker.party).name();
        facts.push(Fact::new(FactKey::TakenBy, percent_value(taker.ns as f64 / all), SOURCE).of(&name));
        facts.push(Fact::new(FactKey::CameFirst, why_text(taker), SOURCE).of(name));
    }
    facts.push(Fact::new(FactKey::CoreList, listed_cores(loss), SOURCE));
    facts
}

fn listed_cores(loss: &Loss) -> String {
    coroner_evidence::CoreSet::new(loss.cores.iter().copied()).to_string()
}

/// Time between the last interval with a loss and the end of the watch after which it counts as over.
const GOES_ON: Duration = Duration::from_millis(2500);

pub fn ties(case: &Case<'_>, loss: &Loss) -> Ties {
    let mut culprits: Vec<Task> = Vec::new();
    for taker in &loss.takers {
        let task = task(&taker.actor, &taker.party);
        if !culprits.contains(&task) {
            culprits.push(task);
        }
    }
    let owner = |pid: Option<u32>| {
        let process = case.evidence.processes.iter().rev().find(|process| Some(process.pid) == pid)?;
        process.owner.unit.clone()
    };
    let units = loss.takers.first().and_then(|taker| owner(taker.actor.pid.or(taker.actor.parent_pid)));
    let end = case.evidence.waits.last().map(|ledger| ledger.to);
    Ties {
        cores: loss.cores.iter().copied().collect(),
        victims: loss.victims.iter().map(|victim| task(&victim.actor, &victim.party)).collect(),
        culprits,
        units: units.into_iter().collect(),
        when: Some(Window { from: loss.when.from, to: loss.when.to }.into()),
        since: Some(loss.when.from),
        until: end.filter(|end| end.since(loss.when.to) >= GOES_ON).map(|_| loss.when.to),
        ..Ties::default()
    }
}

/// The loss that a finding was made from.
pub fn loss_of<'c>(case: &'c Case<'_>, finding: &Finding) -> Option<&'c Loss> {
    case.losses()?.iter().find(|loss| is_about(loss, finding))
}

fn is_about(loss: &Loss, finding: &Finding) -> bool {
    let made = match finding.code {
        Code::UnfairWeight => loss.kind == Kind::Weight,
        Code::ForkStorm => loss.kind == Kind::Forks,
        _ => matches!(loss.kind, Kind::Class | Kind::Crowd | Kind::Turns),
    };
    let tasks = |loss: &Loss| loss.victims.iter().map(|victim| task(&victim.actor, &victim.party)).collect::<Vec<_>>();
    made && tasks(loss) == finding.ties.victims
}
