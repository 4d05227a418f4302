//! The rule: an agent is unused if it starts, **and** its configuration or credentials are missing, its log repeats a registration
//! error or another owner is there, **and** it does harm: it restarts, or makes cgroups fast. If harm cannot be seen (an image on
//! disk) or is not seen (it idles), the verdict says so and is less sure.

use super::action::{self, Action};
use super::catalogue::{Agent, Catalogue, Role};
use super::present::{Present, both_own, present, rivals};
use super::reasons::{self, Answers, reason, unseen};
use super::starting::{Start, start_of};
use super::{Activity, Certainty, Harm, Judgement, Reason, ReasonKind, Running, Surroundings, Verdict};
use coroner_evidence::UnitFile;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// One unit or process of an agent, with everything for and against it.
pub struct AgentCase<'a> {
    pub of: Of<'a>,
    pub agent: &'a Agent,
    pub start: Start,
    activity: Option<&'a Activity>,
    /// One of its processes was seen.
    runs: bool,
    /// Why it has no work, except for other owners.
    pub against: Vec<Reason>,
    /// What supports that.
    weak: Vec<Reason>,
    /// What speaks for it.
    pub support: Vec<Reason>,
    unseen: Vec<Reason>,
    pub harm: Harm,
    harms: Vec<Reason>,
}

pub enum Of<'a> {
    Unit(&'a UnitFile),
    /// It runs, but no unit of the agent does: there is no systemd, or somebody started it by hand or in a container.
    Process(&'a Running),
}

impl<'a> AgentCase<'a> {
    /// The unit, or the process name that the catalogue knows.
    pub fn name(&self) -> &'a str {
        match self.of {
            Of::Unit(unit) => &unit.name,
            Of::Process(process) => process_name(process, self.agent),
        }
    }

    pub fn active(&self) -> bool {
        self.runs || self.activity.and_then(|a| a.active) == Some(true)
    }
}

fn process_name<'a>(process: &'a Running, agent: &'a Agent) -> &'a str {
    let whole = process.names.iter().find(|n| agent.processes.contains(n));
    whole.or(process.names.first()).map_or("", String::as_str)
}

/// Judges every unit that the catalogue knows, and every agent that runs without one. Unknown units are not mentioned.
pub fn judge(units: &[UnitFile], catalogue: &Catalogue, surroundings: &Surroundings) -> Vec<Judgement> {
    let by_name: HashMap<&str, &UnitFile> = units.iter().map(|u| (u.name.as_str(), u)).collect();
    let answers: Answers<'_> = surroundings.files.iter().map(|a| (&a.question, &a.state)).collect();
    let processes: &[Running] = surroundings.processes.as_deref().unwrap_or_default();
    let owned: HashSet<&str> = processes.iter().filter_map(|p| p.unit.as_deref()).collect();
    let mut cases = Vec::new();
    for unit in units {
        // An alias is judged by its target, a template by its instances.
        if unit.alias_of.is_some() {
            continue;
        }
        let names = std::iter::once(&unit.name).chain(&unit.aliases);
        let Some(agent) = names.into_iter().find_map(|n| catalogue.agent_of(n)).filter(|a| !a.ignore) else {
            continue;
        };
        let runs = owned.contains(unit.name.as_str());
        cases.push(case(Of::Unit(unit), agent, start_of(unit, &by_name), runs, surroundings, &answers));
    }
    let with_unit: HashSet<&str> = cases
        .iter()
        .filter(|c| c.active() || matches!(c.start, Start::Yes(_)))
        .map(|c| c.agent.name.as_str())
        .collect();
    let mut without: BTreeMap<&str, (&Agent, &Running)> = BTreeMap::new();
    for process in processes {
        let agents = process.names.iter().flat_map(|name| catalogue.agents_of_process(name));
        for agent in agents.filter(|a| !a.ignore && !with_unit.contains(a.name.as_str())) {
            // Of several, the one started first.
            without.entry(&agent.name).or_insert((agent, process));
        }
    }
    for (agent, process) in without.into_values() {
        let start = Start::Yes("runs".to_owned());
        cases.push(case(Of::Process(process), agent, start, true, surroundings, &answers));
    }
    let present = present(&cases);
    let clouds = clouds_of(&cases);
    cases.iter().map(|case| verdict(case, &present, &clouds, surroundings)).collect()
}

fn case<'a>(
    of: Of<'a>,
    agent: &'a Agent,
    start: Start,
    runs: bool,
    surroundings: &'a Surroundings,
    answers: &Answers<'_>,
) -> AgentCase<'a> {
    let (against, weak, support) = (Vec::new(), Vec::new(), Vec::new());
    let (unseen, harms) = (Vec::new(), Vec::new());
    let harm = Harm::CannotSee;
    let mut case = AgentCase { of, agent, start, activity: None, runs, against, weak, support, unseen, harm, harms };
    let name = case.name();
    match case.of {
        Of::Unit(_) => {
            case.activity = surroundings.activity.get(name).filter(|_| surroundings.booted);
            (case.harm, case.harms) = reasons::harm_of_unit(agent, name, case.activity);
        }
        Of::Process(process) => (case.harm, case.harms) = reasons::harm_of_process(process),
    }
    look_at_files(&mut case, surroundings.booted, answers);
    case.support.extend(reasons::containers(agent, surroundings));
    case.against.extend(reasons::registration_errors(agent, name, case.activity));
    case.against.extend(reasons::other_cloud(agent, surroundings));
    case.against.extend(reasons::virtual_machine(agent, surroundings));
    case.weak = reasons::weak(agent, name, case.activity);
    case
}

fn look_at_files(case: &mut AgentCase<'_>, booted: bool, answers: &Answers<'_>) {
    for need in &case.agent.needs {
        let found = reasons::look(need, answers, booted);
        match (found, &case.of) {
            (Ok(reason), _) => case.support.push(reason),
            (Err(reason), _) if reason.kind == ReasonKind::Unseen => case.unseen.push(reason),
            (Err(missing), Of::Process(process)) if process.contained => {
                let text = format!("it runs in a container, whose files were not checked ({})", need.what);
                case.unseen.push(unseen(text, &missing.source));
            }
            // A program started by hand may be configured elsewhere; that does not excuse one that does harm.
            (Err(missing), Of::Process(_))
                if case.harm != Harm::Seen && missing.kind != ReasonKind::HardwareMissing =>
            {
                let text = format!("{}; its command line may set it instead", missing.text);
                case.unseen.push(unseen(text, &missing.source));
            }
            (Err(missing), _) => case.against.push(missing),
        }
    }
}

/// Clouds of the agents that start.
fn clouds_of(cases: &[AgentCase<'_>]) -> BTreeSet<String> {
    let starting = cases.iter().filter(|c| matches!(c.start, Start::Yes(_)));
    starting.flat_map(|c| c.agent.clouds.iter().cloned()).collect()
}

fn verdict(
    case: &AgentCase<'_>,
    present: &BTreeMap<&str, Present>,
    clouds: &BTreeSet<String>,
    surroundings: &Surroundings,
) -> Judgement {
    let (agent, name, harm) = (case.agent, case.name(), case.harm);
    let (action, command, advice, safe_step) = safe_step(case, surroundings);
    let mut judgement = Judgement {
        unit: name.to_owned(),
        pid: None,
        agent: agent.name.clone(),
        what: agent.what.clone(),
        verdict: Verdict::Fine,
        certainty: Certainty::Sure,
        why: Vec::new(),
        harm,
        rivals: Vec::new(),
        in_use: in_use(case),
        owns_node: agent.role == Role::Orchestrator,
        in_image: !surroundings.booted,
        report_only: action == Action::Report,
        action,
        command,
        advice,
        safe_step,
        does_not_fix: match surroundings.booted {
            true => agent.does_not_fix.clone(),
            false => "nodes already made from this image".to_owned(),
        },
    };
    let mut done = |verdict, certainty, mut why: Vec<Reason>| {
        let mut certainty = certainty;
        if let Of::Process(process) = case.of {
            let text =
                "it runs, but no unit starts it: there is no systemd, or somebody started it by hand or in a container";
            why.push(reason(ReasonKind::NoUnit, text, format!("process {}", process.pid)));
            judgement.pid = Some(process.pid);
            certainty = less_sure(certainty);
        }
        (judgement.verdict, judgement.certainty, judgement.why) = (verdict, certainty, why);
        judgement.clone()
    };
    if let Start::No(why) = &case.start
        && !case.active()
        && case.harms.is_empty()
    {
        let Of::Unit(unit) = case.of else { return done(Verdict::Fine, Certainty::Sure, Vec::new()) };
        let source = unit.path.clone().unwrap_or_default();
        let why = vec![reason(ReasonKind::NotStarted, format!("{name} {why}"), source)];
        return done(Verdict::Fine, Certainty::Sure, why);
    }
    let rivals = rivals(agent, present);
    let competing = |rival: &(&str, &Present)| {
        let (other, here) = rival;
        let known = if here.counts() { ReasonKind::CompetingOwner } else { ReasonKind::Unseen };
        let doubt = if here.counts() { "" } else { ", though it may be unused itself" };
        reason(known, format!("{other} is also here: {}{doubt}", here.by), here.by.clone())
    };
    if case.against.is_empty() {
        let at_stake = |(_, rival): &&(&str, &Present)| contested(case, rival);
        let equal: Vec<&(&str, &Present)> = rivals.iter().filter(at_stake).collect();
        if !equal.is_empty() {
            let mut why: Vec<Reason> = equal.iter().map(|r| competing(r)).collect();
            why.extend(case.harms.iter().chain(&case.support).cloned());
            let certainty = match (surroundings.booted, harm) {
                (true, Harm::Seen) => Certainty::Sure,
                (true, _) => Certainty::Likely,
                (false, _) => Certainty::Possible,
            };
            let mut conflict = done(Verdict::Conflict, certainty, why);
            conflict.rivals = equal.iter().map(|(other, _)| (*other).to_owned()).collect();
            return conflict;
        }
        return done_without_reasons(case, clouds, surroundings, done);
    }
    let mut why = case.against.clone();
    why.extend(rivals.iter().map(competing));
    let only_files = |r: &Reason| matches!(r.kind, ReasonKind::ConfigMissing | ReasonKind::CredentialsMissing);
    let speaks = reasons::connected(name, case.activity);
    if let Some(speaks) = &speaks
        && harm != Harm::Seen
        && why.iter().all(only_files)
    {
        why.push(speaks.clone());
        why.push(unseen("it has network connections, so its configuration may be elsewhere", name));
        return done(Verdict::CannotTell, Certainty::Possible, why);
    }
    let mut kinds: BTreeSet<ReasonKind> = why.iter().map(|r| r.kind).filter(|k| k.is_against()).collect();
    kinds.extend(case.weak.iter().map(|r| r.kind).filter(|k| *k == ReasonKind::NoSockets));
    let certainty = match (harm, kinds.len()) {
        (Harm::Seen, 2..) => Certainty::Sure,
        (Harm::Seen, _) | (Harm::CannotSee, 2..) => Certainty::Likely,
        _ => Certainty::Possible,
    };
    why.extend(case.weak.iter().chain(&case.harms).cloned());
    why.extend(speaks);
    why.extend(reasons::words_of_harm(case, harm, surroundings.booted));
    let rivals = rivals.iter().filter(|(_, rival)| rival.counts()).map(|(other, _)| (*other).to_owned()).collect();
    Judgement { rivals, ..done(Verdict::Unused, certainty, why) }
}

/// Whether the two have an equal claim, so that neither must go. Otherwise the one with more against it goes.
fn contested(case: &AgentCase<'_>, rival: &Present) -> bool {
    // A process name alone does not make an owner of the node.
    let firm = matches!(case.of, Of::Unit(_)) || !case.support.is_empty();
    let owners = both_own(case.agent, rival);
    let busy = case.support.iter().any(|r| r.kind == ReasonKind::AtWork);
    !rival.doubtful && if owners { firm && rival.firm } else { !busy }
}

/// Nothing speaks against it: fine, unless too little was seen.
fn done_without_reasons(
    case: &AgentCase<'_>,
    clouds: &BTreeSet<String>,
    surroundings: &Surroundings,
    mut done: impl FnMut(Verdict, Certainty, Vec<Reason>) -> Judgement,
) -> Judgement {
    let foreign = surroundings.cloud.is_none() && !case.agent.clouds.is_empty() && clouds.len() > 1;
    let mut why = Vec::new();
    if foreign {
        let all: Vec<&str> = clouds.iter().map(String::as_str).collect();
        let text = format!("agents of {} start: each cloud needs only its own", all.join(" and "));
        why.push(reason(ReasonKind::OtherCloud, text, "the units that start"));
    }
    why.extend(case.unseen.iter().cloned());
    if !why.is_empty() {
        return done(Verdict::CannotTell, Certainty::Possible, why);
    }
    why.extend(case.support.iter().cloned());
    let certainty = if why.is_empty() { Certainty::Likely } else { Certainty::Sure };
    why.extend(case.harms.iter().cloned());
    done(Verdict::Fine, certainty, why)
}

fn less_sure(certainty: Certainty) -> Certainty {
    match certainty {
        Certainty::Sure => Certainty::Likely,
        Certainty::Likely | Certainty::Possible => Certainty::Possible,
    }
}

fn in_use(case: &AgentCase<'_>) -> Vec<Reason> {
    let mut reasons = case.support.clone();
    reasons.extend(reasons::connected(case.name(), case.activity));
    reasons
}

/// What to do, its command, its condition, and all of it in words.
fn safe_step(case: &AgentCase<'_>, surroundings: &Surroundings) -> (Action, Option<String>, Option<String>, String) {
    let (agent, action) = (case.agent, case.agent.action);
    if matches!(case.of, Of::Process(_)) && action != Action::Report {
        let advice = "find what starts it (its parent process, a cron job, a container) and stop it there";
        return (Action::Manual, None, Some(advice.to_owned()), advice.to_owned());
    }
    let command = match surroundings.booted {
        true => action.command(case.name()),
        false => action.command_in_image(case.name(), surroundings.image.as_deref().unwrap_or("DIR")),
    };
    let words = action::words(agent, command.as_deref(), !surroundings.booted);
    (action, command, agent.advice.clone(), words)
}
