//! One look: the list of units, then the properties of those that are worth asking, many questions on their way at once.

use std::collections::{HashMap, VecDeque};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use coroner_evidence::{Time, Unit};
use rustix::time::ClockId;

use super::address::UnixSocket;
use super::conversation::{Answer, Conversation, End};
use super::place::{Place, UnitCgroups};
use super::questions::{self, KnownUnit, Look, Moment, Property};
use super::wire::{Body, Reader, Value};
use super::{Blind, address};
use crate::Root;
use crate::root::clock;

/// So many questions may wait for an answer. dbus-daemon refuses more than 128 of one connection (max_replies_per_connection).
const WINDOW: usize = 96;
/// New questions are sent in batches, so that nobody is woken for each.
const REFILL: usize = WINDOW / 2;
/// Of more units than this the properties are not asked.
const MAX_ASKED: usize = 2000;

const MANAGER: &str = "org.freedesktop.systemd1.Manager";
const PROPERTIES: &str = "org.freedesktop.DBus.Properties";

/// systemd's own unit; where it is tells how this node names systemd's cgroups.
const OWN_UNIT: &str = "/org/freedesktop/systemd1/unit/init_2escope";

#[derive(Debug, Default)]
pub struct Seen {
    /// What is worth telling.
    pub units: Vec<Unit>,
    /// All there are, as they were seen last.
    pub known: HashMap<String, KnownUnit>,
    /// Why some units were not asked for their properties.
    pub partly: Option<String>,
}

pub struct Wanted<'a> {
    pub root: &'a Root,
    pub places: &'a [UnixSocket],
    pub at: Time,
    pub since: Instant,
    pub deadline: Instant,
    pub look: Look,
    pub known: &'a HashMap<String, KnownUnit>,
}

/// A unit being asked.
struct Asked<'k> {
    /// As the list tells it.
    listed: Unit,
    /// With the answers.
    unit: Unit,
    object: String,
    known: Option<&'k KnownUnit>,
    questions: &'static [Property],
    /// Questions that are not answered.
    open: usize,
    /// The unit is not there any more.
    is_gone: bool,
}

pub fn look(wanted: &Wanted) -> Result<Seen, Blind> {
    let (mut bus, socket) = log_in(wanted)?;
    let mut asked = list(&mut bus, wanted)?;
    let (own, end) = ask(&mut bus, wanted, &mut asked);
    drop(bus);

    let told = asked.iter().filter_map(|a| a.unit.cgroup.as_deref()).chain(own.as_deref());
    let place = Place::find(wanted.root, &socket, told);
    let cgroups = UnitCgroups::find(wanted.root);
    let triggers = triggers(&asked);
    let unanswered = asked.iter().filter(|a| a.open > 0).count();
    let answered = asked.iter().filter(|a| a.open == 0 && !a.questions.is_empty()).count();
    let mut seen = Seen::default();
    for it in asked {
        conclude(it, wanted, &place, &cgroups, &triggers, &mut seen);
    }
    seen.partly = match end {
        Some(end) => Some(format!(
            "{unanswered} of {} units did not tell: {}",
            answered + unanswered,
            why(&end, wanted, "systemd listed its units, and then")
        )),
        None if unanswered > 0 => Some(format!("{unanswered} units were not asked: {MAX_ASKED} were")),
        None => None,
    };
    Ok(seen)
}

/// The first place that lets us in; and a second handle on its socket.
fn log_in(wanted: &Wanted) -> Result<(Conversation, UnixStream), Blind> {
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
            // Another place will not find it faster.
            Err(End::Time) => return Err(Blind::hung(why(&End::Time, wanted, "the bus"))),
            Err(end) => {
                blind = Blind::new(format_args!("the bus did not answer: {place}: {}", why(&end, wanted, "it")))
            }
        }
    }
    Err(blind)
}

fn list<'k>(bus: &mut Conversation, wanted: &Wanted<'k>) -> Result<Vec<Asked<'k>>, Blind> {
    let who = if bus.is_over_bus() { "the bus answers, but PID 1" } else { "PID 1" };
    let serial = bus.ask("/org/freedesktop/systemd1", MANAGER, "ListUnits", &[]);
    loop {
        match bus.receive() {
            Ok((to, Ok(body))) if to == serial => {
                return read_list(body, wanted)
                    .ok_or_else(|| Blind::new("systemd lists its units in a way we cannot read"));
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

/// Of each: name, description, load, active and sub state, what it follows, its object, and a job.
fn read_list<'k>(body: Body, wanted: &Wanted<'k>) -> Option<Vec<Asked<'k>>> {
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

fn read_listed<'m>(array: &mut Reader<'m>) -> Option<(Unit, &'m str)> {
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

/// Asks until all is answered, or the conversation ends. Also gives systemd's own cgroup, as systemd tells it.
fn ask(bus: &mut Conversation, wanted: &Wanted, asked: &mut [Asked]) -> (Option<String>, Option<End>) {
    let mut queue = queue(asked);
    let mut waiting: HashMap<u32, (usize, Property)> = HashMap::with_capacity(WINDOW);
    let mut own = None;
    if queue.is_empty() {
        return (own, None);
    }
    let now = Moment { monotonic: clock(ClockId::Monotonic), real_ns: clock(ClockId::Realtime).0 };
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
        // One that this version of systemd does not have stays unknown.
        let Some(value) = value_of(answer) else { continue };
        questions::note(&mut it.unit, property, &value, now);
        it.unit.at = wanted.at + wanted.since.elapsed();
        let more = questions::next(property, it.questions, &it.unit, it.known);
        it.open += more.len();
        // At once, so that what is told of one unit is of one moment.
        for property in more.iter().rev() {
            queue.push_front((index, *property));
        }
    }
}

/// What is in trouble first, and then what starts others, should time run out.
fn queue(asked: &mut [Asked]) -> VecDeque<(usize, Property)> {
    let rank = |it: &Asked| match it.listed.name.ends_with(".service") {
        true if it.known.is_some_and(|k| k.suspect) || questions::is_suspect(&it.listed) => 0,
        false => 1,
        true => 2,
    };
    let mut order: Vec<usize> = (0..asked.len()).filter(|&i| asked[i].open > 0).collect();
    order.sort_by_key(|&i| rank(&asked[i]));
    order.truncate(MAX_ASKED);
    order.iter().flat_map(|&i| asked[i].questions.iter().map(move |q| (i, *q))).collect()
}

fn value_of(answer: Answer<'_>) -> Option<Value<'_>> {
    let body = answer.ok().filter(|body| body.signature == "v")?;
    body.read().variant()
}

/// Who starts whom, from what was told now and before.
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

/// Whether and how a unit is told. It is told by all its answers, or by none: half of them next to an older look would look
/// like a change.
fn conclude(
    it: Asked,
    wanted: &Wanted,
    place: &Place,
    cgroups: &UnitCgroups,
    triggers: &HashMap<String, Vec<String>>,
    seen: &mut Seen,
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
        // A first look: what the list says is better than nothing, and it is asked again.
        None if !is_whole => {
            seen.units.push(it.listed);
            return;
        }
        // As before, but for what it uses.
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

/// Other than in what it uses, which moves all the time.
fn changed(before: &Unit, now: &Unit) -> bool {
    let Unit { at, cpu_ns, memory_bytes, tasks, .. } = before.clone();
    Unit { at, cpu_ns, memory_bytes, tasks, ..now.clone() } != *before
}

fn states(unit: &Unit) -> (&str, &str, &str) {
    (&unit.load_state, &unit.active_state, &unit.sub_state)
}

fn why(end: &End, wanted: &Wanted, who: &str) -> String {
    match end {
        End::Time => format!("{who} did not answer within {}", seconds(wanted.deadline.duration_since(wanted.since))),
        End::Closed => format!("{who} hung up"),
        End::Socket(e) => format!("{who} was lost: {e}"),
        End::Garbled => format!("{who} sent what is no D-Bus message"),
        End::Rejected(said) => format!("{who} did not let us in: {said:?}"),
        End::Refused(said) => format!("{who} refused: {said}"),
    }
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}
