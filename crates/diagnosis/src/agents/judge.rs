//! The rule: an agent is unused if it starts, **and** its configuration or credentials are missing, or its log repeats a
//! registration error, or another owner is there, **and** it does harm: it restarts, or cgroups are born fast below it. Where the
//! last cannot be seen (an image on disk) or is not the case (it idles), the verdict says so and is less sure.

use super::catalogue::{Agent, Catalogue, Need, NeedKind, Role, recommends_removal};
use super::starting::{Start, start_of};
use super::{Activity, Certainty, Harm, Judgement, Reason, ReasonKind, Surroundings, Verdict};
use coroner_evidence::{FileQuestion, FileState, UnitFile};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// An administrator's restarts and a rare crash stay below; a loop with systemd's longest usual delay of some minutes does not.
const RESTARTS_PER_HOUR: f64 = 6.0;

/// ecs-init makes 240 in an hour at its slowest; a healthy agent makes some at its start and then none.
const BIRTHS_PER_HOUR: f64 = 60.0;

/// A message that comes once may belong to a start that then worked.
const REPEATED: usize = 2;

/// One unit of an agent, with all that speaks for or against it.
struct Case<'a> {
    unit: &'a UnitFile,
    agent: &'a Agent,
    start: Start,
    activity: Option<&'a Activity>,
    /// Why it has no work, but for other owners.
    against: Vec<Reason>,
    /// What speaks for it.
    support: Vec<Reason>,
    unseen: Vec<Reason>,
}

/// Judges every unit that the catalogue knows, by name. Unknown units are not mentioned.
pub fn judge(units: &[UnitFile], catalogue: &Catalogue, surroundings: &Surroundings) -> Vec<Judgement> {
    let by_name: HashMap<&str, &UnitFile> = units.iter().map(|u| (u.name.as_str(), u)).collect();
    let answers: HashMap<&FileQuestion, &FileState> =
        surroundings.files.iter().map(|a| (&a.question, &a.state)).collect();
    let mut cases = Vec::new();
    for unit in units {
        // Of an alias its target is judged, of a template its instances.
        if unit.alias_of.is_some() {
            continue;
        }
        let names = std::iter::once(&unit.name).chain(&unit.aliases);
        let Some(agent) = names.into_iter().find_map(|n| catalogue.agent_of(n)).filter(|a| !a.ignore) else {
            continue;
        };
        cases.push(case(unit, agent, start_of(unit, &by_name), surroundings, &answers));
    }
    let present = present(&cases, catalogue, surroundings);
    let clouds = clouds_of(&cases);
    cases.iter().map(|case| verdict(case, &present, &clouds, surroundings)).collect()
}

fn case<'a>(
    unit: &'a UnitFile,
    agent: &'a Agent,
    start: Start,
    surroundings: &'a Surroundings,
    answers: &HashMap<&FileQuestion, &FileState>,
) -> Case<'a> {
    let activity = surroundings.activity.get(&unit.name);
    let mut case = Case { unit, agent, start, activity, against: Vec::new(), support: Vec::new(), unseen: Vec::new() };
    for need in &agent.needs {
        match look(need, answers, surroundings.booted) {
            Ok(reason) => case.support.push(reason),
            Err(reason) if reason.kind == ReasonKind::Unseen => case.unseen.push(reason),
            Err(reason) => case.against.push(reason),
        }
    }
    case.against.extend(registration_errors(agent, unit, activity));
    if let Some(cloud) = &surroundings.cloud
        && !agent.clouds.is_empty()
        && !agent.clouds.contains(cloud)
    {
        case.against.push(Reason {
            kind: ReasonKind::OtherCloud,
            text: format!("it belongs to {}, this is {cloud}", agent.clouds.join(" and ")),
            source: "the node's cloud".to_owned(),
        });
    }
    case
}

/// What is only there while a node runs.
fn only_when_booted(path: &str) -> bool {
    ["/proc/", "/sys/", "/dev/", "/run/"].iter().any(|top| path.starts_with(top))
}

/// Satisfied, missing, or not to be seen.
fn look(need: &Need, answers: &HashMap<&FileQuestion, &FileState>, booted: bool) -> Result<Reason, Reason> {
    let mut missing = Vec::new();
    for question in need.questions() {
        let state = answers.get(&question);
        match state {
            Some(FileState::Present { path, keys_set }) => {
                let unset: Vec<&str> = need.keys.iter().filter(|k| !keys_set.contains(k)).map(String::as_str).collect();
                if unset.is_empty() {
                    let text = format!("{path} has {}", need.what);
                    return Ok(Reason { kind: ReasonKind::Configured, text, source: path.clone() });
                }
                missing.push(format!("{path} does not set {}", unset.join(", ")));
            }
            Some(FileState::Empty { path }) => missing.push(format!("{path} is empty")),
            _ if !booted && only_when_booted(&question.path) => {
                return Err(unseen(format!("{} shows only on a running node", need.what), &question.path));
            }
            Some(FileState::Missing) => missing.push(format!("{} does not exist", question.path)),
            Some(FileState::Unseen { why }) => return Err(unseen(why.clone(), &question.path)),
            None => return Err(unseen(format!("{} was not looked at", question.path), &question.path)),
        }
    }
    let (kind, thing) = match need.kind {
        NeedKind::Config => (ReasonKind::ConfigMissing, "configuration"),
        NeedKind::Credentials => (ReasonKind::CredentialsMissing, "credentials"),
        NeedKind::Hardware => (ReasonKind::HardwareMissing, "hardware"),
    };
    // Of many places the first is where most people would put it; what exists but says nothing is the better hint.
    let told = missing.iter().find(|m| !m.ends_with("does not exist")).or(missing.first());
    let told = told.cloned().unwrap_or_default();
    let text = format!("its {thing} is missing ({}): {told}", need.what);
    Err(Reason { kind, text, source: need.paths.first().cloned().unwrap_or_default() })
}

fn unseen(text: String, source: &str) -> Reason {
    Reason { kind: ReasonKind::Unseen, text, source: source.to_owned() }
}

fn registration_errors(agent: &Agent, unit: &UnitFile, activity: Option<&Activity>) -> Option<Reason> {
    let log = activity?.log.as_ref()?;
    let lines: Vec<&String> = log.iter().filter(|l| agent.log_unregistered.iter().any(|r| r.is_match(l))).collect();
    let last = lines.last().filter(|_| lines.len() >= REPEATED)?;
    let shown: String = last.chars().take(160).collect();
    let text = format!("its log says {} times that it is not registered: {shown}", lines.len());
    Some(Reason { kind: ReasonKind::RegistrationErrors, text, source: format!("journal of {}", unit.name) })
}

/// An agent that is at work here, or would be after boot.
struct Present {
    role: Role,
    /// What shows it: a process or a unit.
    by: String,
    /// Whether anything but a rival speaks against it.
    doubtful: bool,
}

fn present<'a>(
    cases: &[Case<'a>],
    catalogue: &'a Catalogue,
    surroundings: &Surroundings,
) -> BTreeMap<&'a str, Present> {
    let mut present: BTreeMap<&str, Present> = BTreeMap::new();
    for case in cases {
        let active = case.activity.and_then(|a| a.active);
        let there = match (surroundings.booted, active) {
            (true, Some(active)) => active,
            _ => matches!(case.start, Start::Yes(_)),
        };
        if !there {
            continue;
        }
        let how = if active == Some(true) { "runs" } else { "starts too" };
        let entry = present.entry(&case.agent.name).or_insert_with(|| Present {
            role: case.agent.role,
            by: format!("{} {how}", case.unit.name),
            doubtful: false,
        });
        entry.doubtful |= !case.against.is_empty();
    }
    for process in surroundings.processes.iter().flatten() {
        let runs = |agent: &&Agent| !agent.ignore && agent.processes.iter().any(|p| is_process(process, p));
        for agent in catalogue.agents().filter(runs) {
            let seen = present.entry(&agent.name).or_insert_with(|| Present {
                role: agent.role,
                by: String::new(),
                doubtful: false,
            });
            seen.by = format!("the process {process} runs");
        }
    }
    present
}

/// The kernel keeps 15 characters of a process's name.
fn is_process(seen: &str, known: &str) -> bool {
    let short: String = known.chars().take(15).collect();
    seen == known || seen == short
}

/// Clouds of the agents that start.
fn clouds_of(cases: &[Case<'_>]) -> BTreeSet<String> {
    let starting = cases.iter().filter(|c| matches!(c.start, Start::Yes(_)));
    starting.flat_map(|c| c.agent.clouds.iter().cloned()).collect()
}

fn rivals<'a>(agent: &Agent, present: &'a BTreeMap<&str, Present>) -> Vec<(&'a str, &'a Present)> {
    let both_orchestrate = |other: &Present| agent.role == Role::Orchestrator && other.role == Role::Orchestrator;
    present
        .iter()
        .filter(|(name, other)| {
            **name != agent.name && (both_orchestrate(other) || agent.conflicts_with.iter().any(|c| c == *name))
        })
        .map(|(name, other)| (*name, other))
        .collect()
}

fn verdict(
    case: &Case<'_>,
    present: &BTreeMap<&str, Present>,
    clouds: &BTreeSet<String>,
    surroundings: &Surroundings,
) -> Judgement {
    let agent = case.agent;
    let (harm, harms) = harm(case, surroundings);
    let active = case.activity.and_then(|a| a.active) == Some(true);
    let done = |verdict, certainty, why: Vec<Reason>| Judgement {
        unit: case.unit.name.clone(),
        agent: agent.name.clone(),
        what: agent.what.clone(),
        verdict,
        certainty,
        why,
        harm,
        report_only: agent.only_way_in,
        safe_step: safe_step(case, surroundings),
        does_not_fix: agent.does_not_fix.clone(),
    };
    if let Start::No(why) = &case.start
        && !active
        && harms.is_empty()
    {
        let text = format!("{} {why}", case.unit.name);
        let source = case.unit.path.clone().unwrap_or_default();
        return done(Verdict::Fine, Certainty::Sure, vec![Reason { kind: ReasonKind::NotStarted, text, source }]);
    }
    let rivals = rivals(agent, present);
    let mut why = case.against.clone();
    let competing = rivals.iter().map(|(name, rival)| Reason {
        kind: ReasonKind::CompetingOwner,
        text: format!("{name} is here as well: {}", rival.by),
        source: rival.by.clone(),
    });
    if case.against.is_empty() {
        // A rival against which more speaks is the one to go.
        let equal: Vec<Reason> =
            competing.zip(&rivals).filter(|(_, (_, rival))| !rival.doubtful).map(|(reason, _)| reason).collect();
        if !equal.is_empty() {
            why.extend(equal);
            why.extend(harms);
            why.extend(case.support.clone());
            let certainty = match (surroundings.booted, harm) {
                (true, Harm::Seen) => Certainty::Sure,
                (true, _) => Certainty::Likely,
                (false, _) => Certainty::Possible,
            };
            return done(Verdict::Conflict, certainty, why);
        }
        let foreign = surroundings.cloud.is_none() && !agent.clouds.is_empty() && clouds.len() > 1;
        if foreign {
            let all: Vec<&str> = clouds.iter().map(String::as_str).collect();
            why.push(Reason {
                kind: ReasonKind::OtherCloud,
                text: format!("agents of {} start: in each cloud all but its own are idle", all.join(" and ")),
                source: "the units that start".to_owned(),
            });
            why.extend(case.unseen.clone());
            return done(Verdict::CannotTell, Certainty::Possible, why);
        }
        if !case.unseen.is_empty() {
            why.extend(case.unseen.clone());
            return done(Verdict::CannotTell, Certainty::Possible, why);
        }
        why.extend(case.support.clone());
        let certainty = if why.is_empty() { Certainty::Likely } else { Certainty::Sure };
        why.extend(harms);
        return done(Verdict::Fine, certainty, why);
    }
    why.extend(competing);
    let kinds: BTreeSet<ReasonKind> = why.iter().map(|r| r.kind).collect();
    let certainty = match (harm, kinds.len()) {
        (Harm::Seen, 2..) => Certainty::Sure,
        (Harm::Seen, _) | (Harm::CannotSee, 2..) => Certainty::Likely,
        _ => Certainty::Possible,
    };
    why.extend(harms);
    match harm {
        Harm::Seen => {}
        Harm::NotSeen => why.push(Reason {
            kind: ReasonKind::Unseen,
            text: "it neither restarts nor makes cgroups: it idles and costs little".to_owned(),
            source: case.unit.name.clone(),
        }),
        Harm::CannotSee => {
            let text = match surroundings.booted {
                true => "whether it restarts or makes cgroups was not seen",
                false => {
                    "an image does not show whether it restarts or makes cgroups, and what is missing may be written at first boot"
                }
            };
            why.push(unseen(text.to_owned(), &case.unit.name));
        }
    }
    done(Verdict::Unused, certainty, why)
}

fn harm(case: &Case<'_>, surroundings: &Surroundings) -> (Harm, Vec<Reason>) {
    let Some(activity) = case.activity.filter(|_| surroundings.booted) else { return (Harm::CannotSee, Vec::new()) };
    let mut reasons = Vec::new();
    let mut note = |rate: Option<f64>, limit: f64, kind, words: &str| {
        if let Some(rate) = rate.filter(|r| *r >= limit) {
            let text = format!("{words} about {} times an hour", rate.round());
            reasons.push(Reason { kind, text, source: case.unit.name.clone() });
        }
    };
    note(activity.restarts_per_hour, RESTARTS_PER_HOUR, ReasonKind::Restarts, "it restarts");
    note(activity.cgroup_births_per_hour, BIRTHS_PER_HOUR, ReasonKind::CgroupsBorn, "a cgroup is born below it");
    let harm = match (reasons.is_empty(), activity.restarts_per_hour, activity.cgroup_births_per_hour) {
        (false, _, _) => Harm::Seen,
        (true, Some(_), Some(_)) => Harm::NotSeen,
        _ => Harm::CannotSee,
    };
    (harm, reasons)
}

fn safe_step(case: &Case<'_>, surroundings: &Surroundings) -> String {
    let unit = &case.unit.name;
    let step = case.agent.safe_step.replace("{unit}", unit);
    if surroundings.booted || case.agent.only_way_in || !recommends_removal(&step) {
        return step;
    }
    format!("in the image's build: systemctl --root=DIR disable {unit} && systemctl --root=DIR mask {unit}")
}
