//! Which properties are queried for which unit, and what the answers mean.
//!
//! Properties are queried one by one, and only as needed: GetAll would send all 300 of a service, and for some of them PID 1 reads
//! cgroup files or searches the disk. Each message costs, so questions that an earlier answer makes needless are skipped.

use coroner_evidence::{Clocks, Time, Unit, Wall};

use super::wire::Value;

const UNIT: &str = "org.freedesktop.systemd1.Unit";
const SERVICE: &str = "org.freedesktop.systemd1.Service";
const TIMER: &str = "org.freedesktop.systemd1.Timer";
const SOCKET: &str = "org.freedesktop.systemd1.Socket";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Property {
    InvocationId,
    ActiveState,
    SubState,
    ActiveSince,
    UnitFileState,
    ConditionsTried,
    ConditionsHeld,
    Triggers,
    Type,
    Restart,
    RestartDelay,
    Restarts,
    Result,
    MainPid,
    MainStarted,
    MainExited,
    MainCode,
    MainStatus,
    ControlGroup,
    CpuUsed,
    LastTrigger,
    NextReal,
    NextMonotonic,
    Accept,
    Accepted,
    Connections,
}

use Property::*;

impl Property {
    /// Interface and name.
    pub fn names(self) -> (&'static str, &'static str) {
        match self {
            InvocationId => (UNIT, "InvocationID"),
            ActiveState => (UNIT, "ActiveState"),
            SubState => (UNIT, "SubState"),
            ActiveSince => (UNIT, "ActiveEnterTimestampMonotonic"),
            UnitFileState => (UNIT, "UnitFileState"),
            ConditionsTried => (UNIT, "ConditionTimestampMonotonic"),
            ConditionsHeld => (UNIT, "ConditionResult"),
            Triggers => (UNIT, "Triggers"),
            Type => (SERVICE, "Type"),
            Restart => (SERVICE, "Restart"),
            RestartDelay => (SERVICE, "RestartUSec"),
            // Since systemd 235.
            Restarts => (SERVICE, "NRestarts"),
            Result => (SERVICE, "Result"),
            MainPid => (SERVICE, "MainPID"),
            MainStarted => (SERVICE, "ExecMainStartTimestampMonotonic"),
            MainExited => (SERVICE, "ExecMainExitTimestampMonotonic"),
            MainCode => (SERVICE, "ExecMainCode"),
            MainStatus => (SERVICE, "ExecMainStatus"),
            ControlGroup => (SERVICE, "ControlGroup"),
            CpuUsed => (SERVICE, "CPUUsageNSec"),
            LastTrigger => (TIMER, "LastTriggerUSec"),
            NextReal => (TIMER, "NextElapseUSecRealtime"),
            NextMonotonic => (TIMER, "NextElapseUSecMonotonic"),
            Accept => (SOCKET, "Accept"),
            Accepted => (SOCKET, "NAccepted"),
            Connections => (SOCKET, "NConnections"),
        }
    }
}

/// Look at everything, or only at what may have changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    All,
    Changes,
}

/// A unit as an earlier look saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownUnit {
    pub unit: Unit,
    /// It was once seen restarting, waiting to restart, or starting: it is queried at every look, even after `reset-failed`.
    pub suspect: bool,
}

impl KnownUnit {
    fn same_state(&self, unit: &Unit) -> bool {
        let states = |u: &Unit| (u.load_state.clone(), u.active_state.clone(), u.sub_state.clone());
        states(&self.unit) == states(unit)
    }
}

/// Whether its counts may change at any moment.
pub fn is_suspect(unit: &Unit) -> bool {
    !matches!(unit.active_state.as_str(), "active" | "inactive" | "failed") || unit.restarts.is_some_and(|n| n > 0)
}

const OF_ACTIVE: &[Property] =
    &[InvocationId, Restarts, MainStarted, MainPid, ControlGroup, Result, ActiveSince, Type, Restart];
/// States are queried again, so that they match the counts in time: a crashlooping service changes several times a second.
const OF_SUSPECT: &[Property] = &[
    ActiveState,
    SubState,
    InvocationId,
    Restarts,
    MainStarted,
    MainExited,
    MainCode,
    MainStatus,
    Result,
    MainPid,
    ControlGroup,
    ActiveSince,
    Type,
    Restart,
    UnitFileState,
    CpuUsed,
];
const OF_INACTIVE: &[Property] = &[InvocationId, ConditionsTried];
/// For an inactive service that ran.
const OF_ENDED: &[Property] =
    &[Result, Restarts, MainStarted, MainExited, MainCode, MainStatus, ActiveSince, Type, Restart, CpuUsed];
const OF_EXITED: &[Property] = &[MainExited, MainCode, MainStatus];
const OF_RESTARTED: &[Property] = &[ActiveState, SubState, UnitFileState];
const OF_TIMER: &[Property] = &[Triggers, LastTrigger, NextReal, NextMonotonic];
const OF_SOCKET: &[Property] = &[Triggers, Accept];
const OF_PATH: &[Property] = &[Triggers];
/// Whether it was started again; more only if so.
const OF_STEADY: &[Property] = &[InvocationId];

/// What to ask first about a unit, given its state in ListUnits.
pub fn first(unit: &Unit, known: Option<&KnownUnit>, look: Look) -> &'static [Property] {
    if matches!(unit.load_state.as_str(), "not-found" | "masked") {
        return &[];
    }
    let changed = known.is_none_or(|k| !k.same_state(unit));
    match unit.name.rsplit_once('.').map(|(_, kind)| kind) {
        Some("timer") if changed || look == Look::All => OF_TIMER,
        Some("socket") if changed || look == Look::All => OF_SOCKET,
        Some("path") if changed => OF_PATH,
        Some("service") => match known {
            Some(known) if !changed && !known.suspect => {
                let runs_at_times = known.unit.invocation_id.is_some() || !known.unit.triggered_by.is_empty();
                if unit.active_state == "active" || runs_at_times { OF_STEADY } else { &[] }
            }
            _ => of_service(unit, known),
        },
        _ => &[],
    }
}

fn of_service(unit: &Unit, known: Option<&KnownUnit>) -> &'static [Property] {
    match unit.active_state.as_str() {
        _ if known.is_some_and(|k| k.suspect) => OF_SUSPECT,
        "active" => OF_ACTIVE,
        "inactive" => OF_INACTIVE,
        _ => OF_SUSPECT,
    }
}

/// What to ask next, now that `unit` holds the answer to `answered`, one of `asked`.
pub fn next(answered: Property, asked: &[Property], unit: &Unit, known: Option<&KnownUnit>) -> &'static [Property] {
    let started_anew = || unit.invocation_id != known.and_then(|k| k.unit.invocation_id.clone());
    match answered {
        InvocationId if asked == OF_STEADY && started_anew() => match unit.active_state.as_str() {
            "active" => &OF_ACTIVE[1..],
            "inactive" => OF_ENDED,
            _ => OF_SUSPECT,
        },
        InvocationId if asked == OF_INACTIVE && unit.invocation_id.is_some() => OF_ENDED,
        ConditionsTried if unit.conditions_held.is_some() => &[ConditionsHeld],
        Restart if unit.restart.as_deref().is_some_and(|r| r != "no") => &[RestartDelay],
        Restarts if asked != OF_SUSPECT && unit.active_state == "active" && unit.restarts.is_some_and(|n| n > 0) => {
            OF_RESTARTED
        }
        MainStarted if asked != OF_SUSPECT && unit.active_state == "active" && unit.sub_state == "exited" => OF_EXITED,
        // systemd counts connections only if it accepts them itself.
        Accept if unit.accepted.is_some() => &[Accepted, Connections],
        _ => &[],
    }
}

/// Notes an answer; one of an unexpected type is ignored, because versions of systemd differ.
pub fn note(unit: &mut Unit, property: Property, value: &Value, now: Clocks) {
    match property {
        InvocationId => unit.invocation_id = bytes(value).and_then(hex),
        ActiveState => replace(&mut unit.active_state, value),
        SubState => replace(&mut unit.sub_state, value),
        ActiveSince => unit.active_since = monotonic(value),
        UnitFileState => unit.unit_file_state = text(value),
        // Provisional: some conditions were checked; the result follows.
        ConditionsTried => unit.conditions_held = number(value).filter(|&us| us > 0).map(|_| true),
        ConditionsHeld => unit.conditions_held = flag(value),
        Triggers => unit.triggers = texts(value),
        Type => unit.service_type = text(value),
        Restart => unit.restart = text(value),
        RestartDelay => unit.restart_delay_us = number(value).filter(|&us| us != u64::MAX),
        Restarts => unit.restarts = number(value).and_then(|n| u32::try_from(n).ok()),
        Result => unit.result = text(value),
        MainPid => unit.main_pid = number(value).and_then(|n| u32::try_from(n).ok()).filter(|&pid| pid > 0),
        MainStarted => unit.main_started = monotonic(value),
        MainExited => unit.main_exited = monotonic(value),
        MainCode => unit.exit_kind = signed(value).and_then(exit_kind),
        MainStatus => unit.exit_status = signed(value).and_then(|n| i32::try_from(n).ok()),
        ControlGroup => unit.cgroup = text(value),
        CpuUsed => unit.cpu_ns = number(value).filter(|&ns| ns != u64::MAX),
        LastTrigger => unit.last_trigger = moment(value).map(Wall),
        NextReal => unit.next_trigger = sooner(unit.next_trigger, moment(value).map(Wall)),
        NextMonotonic => {
            let at = monotonic(value).map(|at| now.wall_of(at.max(now.at)));
            unit.next_trigger = sooner(unit.next_trigger, at);
        }
        // Provisional: the count follows.
        Accept => unit.accepted = flag(value).filter(|&accepts| accepts).map(|_| 0),
        Accepted => unit.accepted = number(value),
        Connections => unit.connections = number(value),
    }
}

/// Fixes values that depend on several answers.
pub fn settle(unit: &mut Unit) {
    if unit.exit_kind.is_none() {
        unit.exit_status = None;
    }
    // Otherwise it would not be active.
    if unit.active_state == "active" && unit.invocation_id.is_some() {
        unit.conditions_held = Some(true);
    }
}

fn replace(state: &mut String, value: &Value) {
    if let Some(now) = text(value) {
        *state = now;
    }
}

fn text(value: &Value) -> Option<String> {
    let Value::Text(text) = value else { return None };
    (!text.is_empty()).then(|| (*text).to_owned())
}

fn texts(value: &Value) -> Vec<String> {
    let Value::Texts(texts) = value else { return Vec::new() };
    texts.iter().map(|t| (*t).to_owned()).collect()
}

fn bytes<'m>(value: &Value<'m>) -> Option<&'m [u8]> {
    if let Value::Bytes(bytes) = value { Some(bytes) } else { None }
}

fn flag(value: &Value) -> Option<bool> {
    if let Value::Flag(flag) = value { Some(*flag) } else { None }
}

fn number(value: &Value) -> Option<u64> {
    if let Value::Unsigned(number) = value { Some(*number) } else { None }
}

fn signed(value: &Value) -> Option<i64> {
    if let Value::Signed(number) = value { Some(*number) } else { None }
}

/// systemd counts µs; 0 and the maximum mean "never".
fn moment(value: &Value) -> Option<u64> {
    number(value).filter(|&us| us > 0 && us != u64::MAX).map(|us| us.saturating_mul(1000))
}

fn monotonic(value: &Value) -> Option<Time> {
    moment(value).map(Time)
}

fn sooner(a: Option<Wall>, b: Option<Wall>) -> Option<Wall> {
    [a, b].into_iter().flatten().min()
}

/// si_code of SIGCHLD (bits/siginfo-consts.h); 0 while it is running.
fn exit_kind(code: i64) -> Option<String> {
    let kind = match code {
        1 => "exited",
        2 => "killed",
        3 => "dumped",
        _ => return None,
    };
    Some(kind.to_owned())
}

fn hex(id: &[u8]) -> Option<String> {
    let some = id.iter().any(|&b| b != 0);
    some.then(|| id.iter().map(|b| format!("{b:02x}")).collect())
}

#[cfg(test)]
mod tests;
