//! One look: the list of units, then properties of those that matter, with many calls in flight.

use std::collections::{HashMap, VecDeque};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use coroner_evidence::{Order, Time, Unit};

use super::address::UnixSocket;
use super::conversation::{Answer, Conversation, End};
use super::place::{SystemdPlace, UnitCgroups};
use super::questions::{self, KnownUnit, Look, Property};
use super::wire::{Body, Value, ValueReader};
use super::{Blind, address};
use crate::Root;
use crate::root::read_clocks;

/// Calls in flight. dbus-daemon allows 128 per connection (max_replies_per_connection).
const WINDOW: usize = 96;
/// New calls are sent in batches, to wake the other side less often.
const REFILL: usize = WINDOW / 2;
/// At most this many units are asked for properties.
const MAX_ASKED: usize = 2000;

const MANAGER: &str = "org.freedesktop.systemd1.Manager";
const PROPERTIES: &str = "org.freedesktop.DBus.Properties";

/// systemd's own unit; its cgroup shows how this node names systemd's cgroups.
const OWN_UNIT: &str = "/org/freedesktop/systemd1/unit/init_2escope";

#[derive(Debug, Default)]
pub struct UnitsSeen {
    /// Units worth reporting.
    pub units: Vec<Unit>,
    /// All units, as last seen.
    pub known: HashMap<String, KnownUnit>,
    /// Why the properties of some units are missing.
    pub partly: Option<String>,
}

pub struct LookRequest<'a> {
    pub root: &'a Root,
    pub places: &'a [UnixSocket],
    pub at: Time,
    pub since: Instant,
    pub deadline: Instant,
    pub look: Look,
    pub known: &'a HashMap<String, KnownUnit>,
}

/// A unit being queried.
struct Asked<'k> {
    /// As ListUnits reported it.
    listed: Unit,
    /// With the properties that were answered.
    unit: Unit,
    object: String,
    known: Option<&'k KnownUnit>,
    questions: &'static [Property],
    /// Calls not yet answered.
    open: usize,
    /// The unit no longer exists.
    is_gone: bool,
}

pub fn look(wanted: &LookRequest) -> Result<UnitsSeen, Blind> {
    let (mut bus, socket) = log_in(wanted)?;
    let mut asked = list(&mut bus, wanted)?;
    let (own, end) = ask(&mut bus, wanted, &mut asked);
    drop(bus);

    let told = asked.iter().filter_map(|a| a.unit.cgroup.as_deref()).chain(own.as_deref());
    let place = SystemdPlace::find(wanted.root, &socket, told);
    let cgroups = UnitCgroups::find(wanted.root);
    let triggers = triggers(&asked);
    let unanswered = asked.iter().filter(|a| a.open > 0).count();
    let answered = asked.iter().filter(|a| a.open == 0 && !a.questions.is_empty()).count();
    let mut seen = UnitsSeen::default();
    for it in asked {
        conclude(it, wanted, &place, &cgroups, &triggers, &mut seen);
    }
    seen.partly = match end {
        Some(end) => Some(format!(
            "no properties from {unanswered} of {} units: {}",
            answered + unanswered,
            why(&end, wanted, "systemd listed its units, then")
        )),
        None if unanswered > 0 => Some(format!("{unanswered} units were not queried; the limit is {MAX_ASKED}")),
        None => None,
    };
    Ok(seen)
}

/// Connects to the first socket that accepts us; also returns a second handle on that socket.
fn log_in(wanted: &LookRequest) -> Result<(Conversation, UnixStream), Blind> {
    let mut blind = Blind::new("the bus address is empty");
    for place in wanted.places {
        let opened = address::connect(place).and_then(|socket| Ok((socket.try_clone()?, socket)));
        let (socket, spare) = match opened {
            Ok(pair) => pair,
            Err(e) => {
                blind = Blind::new(format_args!("{place}: {e}"));
                continue;
            }
        };
        match Conversation::open(socket, wanted.deadline) {
            Ok(bus) => return Ok((bus, spare)),
            // Another socket would not be faster.
            Err(End::Time) => return Err(Blind::hung(why(&End::Time, wanted, "the bus"))),
            Err(end) => {
                blind = Blind::new(format_args!("cannot query systemd: {}", why(&end, wanted, &place.to_string())))
            }
        }
    }
    Err(blind)
}

fn list<'k>(bus: &mut Conversation, wanted: &LookRequest<'k>) -> Result<Vec<Asked<'k>>, Blind> {
    let who = if bus.is_over_bus() { "the bus answers, but PID 1" } else { "PID 1" };
    let serial = bus.ask("/org/freedesktop/systemd1", MANAGER, "ListUnits", &[]);
    loop {
        match bus.receive() {
            Ok((to, Ok(body))) if to == serial => {
                return read_list(body, wanted).ok_or_else(|| Blind::new("cannot parse systemd's list of units"));
            }
            Ok((to, Err((name, words)))) if to == serial => {
                let words = words.unwrap_or("no reason given");
                return Err(Blind::new(format_args!("systemd did not answer: {words} ({name})")));
            }
            Ok(_) => {}
            Err(End::Time) => return Err(Blind::hung(why(&End::Time, wanted, who))),
            Err(end) => return Err(Blind::new(why(&end, wanted, who))),
        }
    }
}

/// Per unit: name, description, load, active and sub state, the unit it follows, object path, and a job.
fn read_list<'k>(body: Body, wanted: &LookRequest<'k>) -> Option<Vec<Asked<'k>>> {
    if body.signature != "a(ssssssouso)" {
        return None;
    }
    let mut array = body.read().array(8)?;
    let mut asked = Vec::new();
    while !array.is_at_end() {
        let (unit, object) = read_listed(&mut array)?;
        let unit = Unit { at: wanted.at + wanted.since.elapsed(), ..unit };
        let known = wanted.known.get(&unit.name);
        let questions = questions::first(&unit, known, wanted.look);
        asked.push(Asked {
            listed: unit.clone(),
            unit,
            object: object.to_owned(),
            known,
            questions,
            open: questions.len(),
            is_gone: false,
        });
    }
    Some(asked)
}

fn read_listed<'m>(array: &mut ValueReader<'m>) -> Option<(Unit, &'m str)> {
    array.align(8)?;
    let name = array.text()?;
    array.text()?;
    let (load, active, sub) = (array.text()?, array.text()?, array.text()?);
    array.text()?;
    let object = array.text()?;
    array.u32()?;
    array.text()?;
    array.text()?;
    let unit = Unit {
        name: name.to_owned(),
        load_state: load.to_owned(),
        active_state: active.to_owned(),
        sub_state: sub.to_owned(),
        ..Unit::default()
    };
    Some((unit, object))
}

/// Asks until everything is answered or the conversation ends. Also returns systemd's own cgroup, as systemd names it.
fn ask(bus: &mut Conversation, wanted: &LookRequest, asked: &mut [Asked]) -> (Option<String>, Option<End>) {
    let mut queue = queue(asked);
    let mut waiting: HashMap<u32, (usize, Property)> = HashMap::with_capacity(WINDOW);
    let mut own = None;
    if queue.is_empty() {
        return (own, None);
    }
    let now = read_clocks();
    let own_serial = bus.ask(OWN_UNIT, PROPERTIES, "Get", &["org.freedesktop.systemd1.Scope", "ControlGroup"]);
    loop {
        if waiting.len() <= REFILL {
            while waiting.len() < WINDOW
                && let Some((index, property)) = queue.pop_front()
            {
                let it = &asked[index];
                if it.is_gone {
                    continue;
                }
                let (interface, name) = property.names();
                waiting.insert(bus.ask(&it.object, PROPERTIES, "Get", &[interface, name]), (index, property));
            }
        }
        if waiting.is_empty() {
            return (own, None);
        }
        let (to, answer) = match bus.receive() {
            Ok(received) => received,
            Err(end) => return (own, Some(end)),
        };
        if to == own_serial {
            own = value_of(answer).and_then(|v| if let Value::Text(path) = v { Some(path.to_owned()) } else { None });
            continue;
        }
        let Some((index, property)) = waiting.remove(&to) else { continue };
        let it = &mut asked[index];
        if matches!(answer, Err((name, _)) if name.ends_with(".UnknownObject") || name.ends_with(".NoSuchUnit")) {
            it.is_gone = true;
        }
        it.open -= 1;
        // A property that this version of systemd lacks stays unknown.
        let Some(value) = value_of(answer) else { continue };
        questions::note(&mut it.unit, property, &value, now);
        it.unit.at = wanted.at + wanted.since.elapsed();
        let more = questions::next(property, it.questions, &it.unit, it.known);
        it.open += more.len();
        // At the front, so that the answers about one unit are close in time.
        for property in more.iter().rev() {
            queue.push_front((index, *property));
        }
    }
}

/// Units in trouble first, then those that start others, in case time runs out.
fn queue(asked: &mut [Asked]) -> VecDeque<(usize, Property)> {
    let rank = |it: &Asked| match it.listed.name.ends_with(".service") {
        true if it.known.is_some_and(|k| k.suspect) || questions::is_suspect(&it.listed) => 0,
        false => 1,
        true => 2,
    };
    let mut order: Vec<usize> = (0..asked.len()).filter(|&i| asked[i].open > 0).collect();
    order.order_by_key(|&i| rank(&asked[i]));
    order.truncate(MAX_ASKED);
    order.iter().flat_map(|&i| asked[i].questions.iter().map(move |q| (i, *q))).collect()
}

fn value_of(answer: Answer<'_>) -> Option<Value<'_>> {
    let body = answer.ok().filter(|body| body.signature == "v")?;
    body.read().variant()
}

/// Which units start which, from these answers and earlier ones.
fn triggers(asked: &[Asked]) -> HashMap<String, Vec<String>> {
    let mut by: HashMap<String, Vec<String>> = HashMap::new();
    for it in asked {
        let told_now = it.open == 0 && it.questions.contains(&Property::Triggers);
        let triggers = match it.known {
            Some(known) if !told_now => &known.unit.triggers,
            _ => &it.unit.triggers,
        };
        for other in triggers {
            by.entry(other.clone()).or_default().push(it.listed.name.clone());
        }
    }
    by.values_mut().for_each(|names| names.sort_unstable());
    by
}

/// Whether and how a unit is reported: with all its answers or none, since half of them next to an older look would look like a
/// change.
fn conclude(
    it: Asked,
    wanted: &LookRequest,
    place: &SystemdPlace,
    cgroups: &UnitCgroups,
    triggers: &HashMap<String, Vec<String>>,
    seen: &mut UnitsSeen,
) {
    let is_whole = it.open == 0 && !it.is_gone;
    let name = it.listed.name.clone();
    let triggered_by = || triggers.get(&name).cloned().unwrap_or_default();
    let is_steady = it.questions == [Property::InvocationId];
    let mut unit = match it.known {
        Some(known) if !is_whole => {
            seen.known.insert(name, known.clone());
            return;
        }
        // First look: the list alone is better than nothing, and the unit is queried again next time.
        None if !is_whole => {
            seen.units.push(it.listed);
            return;
        }
        // Unchanged except for its resource usage.
        Some(known) if is_steady && it.unit.invocation_id == known.unit.invocation_id => {
            let at = it.unit.at;
            Unit { at, ..known.unit.clone() }
        }
        Some(known) if it.questions.is_empty() && states(&known.unit) == states(&it.listed) => {
            seen.known.insert(name, known.clone());
            return;
        }
        _ => {
            let mut unit = it.unit;
            questions::settle(&mut unit);
            unit.triggered_by = triggered_by();
            place.translate(wanted.root, cgroups, &mut unit);
            unit
        }
    };
    let suspect = questions::is_suspect(&unit) || it.known.is_some_and(|k| k.suspect);
    let is_service = unit.name.ends_with(".service");
    let worth_telling = match it.known {
        None => true,
        Some(known) if changed(&known.unit, &unit) => true,
        Some(_) => is_service && wanted.look == Look::All && (suspect || unit.active_state == "active"),
    };
    if worth_telling {
        cgroups.note_use(&mut unit);
        seen.units.push(unit.clone());
    }
    seen.known.insert(name, KnownUnit { unit, suspect: suspect && is_service });
}

/// Ignores resource usage, which changes all the time.
fn changed(before: &Unit, now: &Unit) -> bool {
    let Unit { at, cpu_ns, memory_bytes, tasks, .. } = before.clone();
    Unit { at, cpu_ns, memory_bytes, tasks, ..now.clone() } != *before
}

fn states(unit: &Unit) -> (&str, &str, &str) {
    (&unit.load_state, &unit.active_state, &unit.sub_state)
}

fn why(end: &End, wanted: &LookRequest, who: &str) -> String {
    match end {
        End::Time => format!("{who} did not answer within {}", seconds(wanted.deadline.duration_since(wanted.since))),
        End::Closed => format!("{who} closed the connection"),
        End::Socket(e) => format!("{who} could not be reached: {e}"),
        End::Garbled => format!("{who} sent an invalid D-Bus message"),
        End::Rejected(said) => format!("{who} rejected authentication: {said:?}"),
        End::Refused(said) => format!("{who} refused: {said}"),
    }
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}
