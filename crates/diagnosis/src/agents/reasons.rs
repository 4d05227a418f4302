//! What speaks for and against an agent, and the harm it does.

use super::catalogue::{Agent, Need, NeedKind, Role};
use super::judge::AgentCase;
use super::{Activity, Harm, Reason, ReasonKind, Running, Surroundings};
use crate::words::{self, duration_words, plural};
use coroner_evidence::{FileQuestion, FileState, UnitLogLine, Wall};
use std::collections::HashMap;
use std::time::Duration;

/// Above an administrator's restarts and rare crashes; a loop with systemd's longest usual delay, some minutes, still exceeds it.
const RESTARTS_PER_HOUR: f64 = 6.0;

/// ecs-init makes at least 240 per hour; a healthy agent makes some when it starts and then none.
const BIRTHS_PER_HOUR: f64 = 60.0;

/// A single message may belong to a start that then succeeded.
const REPEATED: usize = 2;

const HOUR: Duration = Duration::from_secs(3600);

/// Log lines are cut to this many characters.
const SHOWN: usize = 160;

/// Answers about files, by question.
pub type Answers<'a> = HashMap<&'a FileQuestion, &'a FileState>;

pub fn reason(kind: ReasonKind, text: impl Into<String>, source: impl Into<String>) -> Reason {
    Reason { kind, text: text.into(), source: source.into() }
}

/// Exists only while a node runs.
fn only_when_booted(path: &str) -> bool {
    ["/proc/", "/sys/", "/dev/", "/run/"].iter().any(|top| path.starts_with(top))
}

/// `Ok` if satisfied; `Err` if missing or unseen.
pub fn look(need: &Need, answers: &Answers<'_>, booted: bool) -> Result<Reason, Reason> {
    let (mut told, mut absent) = (Vec::new(), Vec::new());
    for question in need.questions() {
        let state = answers.get(&question);
        match state {
            Some(FileState::Present { path, keys_set }) => {
                let unset: Vec<&str> = need.keys.iter().filter(|k| !keys_set.contains(k)).map(String::as_str).collect();
                if unset.is_empty() {
                    return Ok(reason(ReasonKind::Configured, format!("{path} has {}", need.what), path));
                }
                told.push(format!("{path} does not set {}", unset.join(", ")));
            }
            Some(FileState::Empty { path }) => told.push(format!("{path} is empty")),
            _ if !booted && only_when_booted(&question.path) => {
                return Err(unseen(format!("{} can be seen only on a running node", need.what), &question.path));
            }
            Some(FileState::Missing) => absent.push(format!("{} does not exist", question.path)),
            Some(FileState::Unseen { why }) => return Err(unseen(why.clone(), &question.path)),
            None => return Err(unseen(format!("{} was not checked", question.path), &question.path)),
        }
    }
    let (kind, thing) = match need.kind {
        NeedKind::Config => (ReasonKind::ConfigMissing, "configuration is"),
        NeedKind::Credentials => (ReasonKind::CredentialsMissing, "credentials are"),
        NeedKind::Hardware => (ReasonKind::HardwareMissing, "hardware is"),
    };
    // A file that exists but lacks the setting is the best hint, else the first path, the usual one.
    let told = told.into_iter().chain(absent).next().unwrap_or_default();
    let text = format!("its {thing} missing ({}): {told}", need.what);
    Err(reason(kind, text, need.paths.first().cloned().unwrap_or_default()))
}

pub fn unseen(text: impl Into<String>, source: &str) -> Reason {
    reason(ReasonKind::Unseen, text, source)
}

pub fn other_cloud(agent: &Agent, surroundings: &Surroundings) -> Option<Reason> {
    let cloud = surroundings.cloud.as_ref()?;
    let elsewhere = !agent.clouds.is_empty() && !agent.clouds.contains(cloud);
    let text = || format!("it belongs to {}, but this is {cloud}", agent.clouds.join(" and "));
    elsewhere.then(|| reason(ReasonKind::OtherCloud, text(), "the node's cloud"))
}

pub fn virtual_machine(agent: &Agent, surroundings: &Surroundings) -> Option<Reason> {
    let host = surroundings.hypervisor.as_ref().filter(|_| agent.bare_metal)?;
    let text = format!("it is for bare metal, but this is a virtual machine ({host})");
    Some(reason(ReasonKind::HardwareMissing, text, "the node's DMI"))
}

pub fn containers(agent: &Agent, surroundings: &Surroundings) -> Option<Reason> {
    let runtime = agent.containers.as_ref()?;
    let n = surroundings.containers.get(runtime).copied().filter(|n| *n > 0)?;
    let text = format!("it has {}", plural(n, "container", "containers"));
    Some(reason(ReasonKind::AtWork, text, format!("files of {runtime}")))
}

pub fn registration_errors(agent: &Agent, unit: &str, activity: Option<&Activity>) -> Option<Reason> {
    let lines = activity?.log.as_ref()?.iter();
    let lines: Vec<&UnitLogLine> =
        lines.filter(|l| agent.log_unregistered.iter().any(|r| r.is_match(&l.text))).collect();
    let last = lines.last().filter(|_| lines.len() >= REPEATED)?;
    let shown: String = last.text.chars().take(SHOWN).collect();
    let text = format!("its log says {} times that it is not registered: {shown}", lines.len());
    Some(reason(ReasonKind::RegistrationErrors, text, format!("journal of {unit}")))
}

/// Agents that need the network to do their work.
fn speaks_over_network(role: Role) -> bool {
    use Role::*;
    matches!(role, Orchestrator | Cloud | Observer | Access | Configuration | Security)
}

/// Reasons that support others and never decide alone.
pub fn weak(agent: &Agent, unit: &str, activity: Option<&Activity>) -> Vec<Reason> {
    let mut weak = Vec::new();
    let Some(activity) = activity else { return weak };
    if speaks_over_network(agent.role)
        && let Some(sockets) = activity.sockets
        && (sockets.listening, sockets.connected) == (0, 0)
    {
        let text = "its processes have no internet socket, listening or connected";
        weak.push(reason(ReasonKind::NoSockets, text, format!("sockets of {unit}")));
    }
    if let Some(over) = activity.idle {
        let text = format!("it used no CPU in {}", duration_words(over));
        weak.push(reason(ReasonKind::Idle, text, format!("systemd: {unit}")));
    }
    weak
}

/// That it has network connections.
pub fn connected(unit: &str, activity: Option<&Activity>) -> Option<Reason> {
    let n = activity?.sockets?.connected;
    let text = format!("it has {}", plural(n, "network connection", "network connections"));
    (n > 0).then(|| reason(ReasonKind::AtWork, text, format!("sockets of {unit}")))
}

pub fn harm_of_process(process: &Running) -> (Harm, Vec<Reason>) {
    match process.cgroup_births_per_hour {
        Some(rate) if rate >= BIRTHS_PER_HOUR => {
            let text = format!("it makes cgroups, {}", words::rate(rate, HOUR));
            (Harm::Seen, vec![reason(ReasonKind::CgroupsBorn, text, format!("process {}", process.pid))])
        }
        _ => (Harm::CannotSee, Vec::new()),
    }
}

pub fn harm_of_unit(agent: &Agent, unit: &str, activity: Option<&Activity>) -> (Harm, Vec<Reason>) {
    let Some(activity) = activity else { return (Harm::CannotSee, Vec::new()) };
    let mut reasons = Vec::new();
    let mut note = |rate: Option<f64>, limit: f64, kind, words: &str, source: String| {
        if let Some(rate) = rate.filter(|r| *r >= limit) {
            reasons.push(reason(kind, format!("{words}, {}", words::rate(rate, HOUR)), source));
        }
    };
    let (restarts, births) = (activity.restarts_per_hour, activity.cgroup_births_per_hour);
    let children = activity.failed_children_per_hour;
    note(restarts, RESTARTS_PER_HOUR, ReasonKind::Restarts, "it restarts", format!("systemd: {unit}"));
    note(births, BIRTHS_PER_HOUR, ReasonKind::CgroupsBorn, "cgroups are made below it", format!("cgroups of {unit}"));
    let words = "its children fail and are restarted";
    note(children, RESTARTS_PER_HOUR, ReasonKind::Restarts, words, format!("exits of children of {unit}"));
    let words = "its log reports restarts of what it runs";
    note(
        logged_restarts(agent, activity),
        RESTARTS_PER_HOUR,
        ReasonKind::Restarts,
        words,
        format!("journal of {unit}"),
    );
    let harm = match (reasons.is_empty(), restarts, births) {
        (false, _, _) => Harm::Seen,
        (true, Some(_), Some(_)) => Harm::NotSeen,
        _ => Harm::CannotSee,
    };
    (harm, reasons)
}

/// How often its log reports restarts that systemd does not count, such as those by ecs-init.
fn logged_restarts(agent: &Agent, activity: &Activity) -> Option<f64> {
    let lines = activity.log.as_ref()?.iter().filter(|l| agent.log_restarts.iter().any(|r| r.is_match(&l.text)));
    let times: Vec<Wall> = lines.map(|l| l.at).collect();
    let (first, last) = (times.first()?, times.last()?);
    let hours = last.since(*first).as_secs_f64() / 3600.0;
    // The first one only starts the clock.
    (times.len() > REPEATED && hours > 0.0).then(|| (times.len() - 1) as f64 / hours)
}

/// What to say if no harm is seen or can be seen.
pub fn words_of_harm(case: &AgentCase<'_>, harm: Harm, booted: bool) -> Option<Reason> {
    let name = case.name();
    match harm {
        Harm::Seen => None,
        Harm::NotSeen => {
            let text = "it neither restarts nor makes cgroups: it idles and costs little";
            Some(reason(ReasonKind::Harmless, text, name))
        }
        Harm::CannotSee if booted => {
            Some(unseen("not watched for long enough to see whether it restarts or makes cgroups", name))
        }
        Harm::CannotSee => {
            let text = "an image does not show whether it restarts or makes cgroups, and what is missing may be written at first boot";
            Some(unseen(text, name))
        }
    }
}
