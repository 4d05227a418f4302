//! Who lost markedly: wanted to run and got far less than it asked for, because others had the core.
//!
//! A thread asks for the time that it ran and the time that it waited. What it lost is the wait, and the ledger says who had the core
//! meanwhile. How long each single wait was does not matter here: many short ones lose as much as a few long ones. What matters is the share
//! of its demand, over the intervals in which it lost, so that a loss of seconds stands out in a recording of minutes.
//!
//! Interrupts and the hypervisor take time from whoever is on the core, and the ledger cannot see that. So each core's share of such time is
//! taken off what its runners are charged with.

use super::precedence::{Precedence, Weights};
use super::sums::{TakenByCore, does_softirqs};
use crate::case::Case;
use crate::cores::ROOM;
use coroner_evidence::tasks::SchedulingClass;
use coroner_evidence::{Charge, CoreSet, Evidence, Order, Party, Runner, WaitLedger, Window};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// In an interval that counts, a thread waits at least this share of it: less is not felt.
const WAITED_OF_INTERVAL: f64 = 0.1;
/// … and loses at least this share of what it asks for.
const LOST_OF_INTERVAL: f64 = 0.2;
/// All in all it waited at least this long.
const WAITED_LEAST_NS: u64 = 300_000_000;

/// Who outranks others takes from them even if little is lost: nothing bounds how much it could take.
const LOST_TO_CLASS: f64 = 0.25;
/// Two threads pinned to one core lose half each, less what others leave them; one of them would have room elsewhere.
const LOST_TO_CROWD: f64 = 0.45;
/// Where every core is full, taking turns is fair. With two others for each turn it is a shortage (as in cpu-contention).
const LOST_TO_TURNS: f64 = 0.65;
/// Equal turns and weights matter only if the loss lasts: a node is full for a second now and then. This long, or this share of a shorter watch.
const LASTS_NS: u64 = 2_500_000_000;
const LASTS_SHARE: f64 = 0.6;
/// A thread waited on one core only if nearly all of its waiting was there: a wake-up may pass through another.
const ON_ONE_CORE: f64 = 0.95;
/// A taker with less of the wait is left to "others".
const WORTH_NAMING: f64 = 0.1;

/// A process, or the short-lived processes of one parent. The same in all ledgers.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Actor {
    /// Of the process; `None` for short-lived ones.
    pub pid: Option<u32>,
    pub parent_pid: Option<u32>,
    pub comm: String,
}

impl Actor {
    fn of(party: &Party) -> Actor {
        Actor {
            pid: party.pid,
            parent_pid: if party.pid.is_some() { None } else { party.parent_pid },
            comm: party.comm.clone(),
        }
    }
}

/// Who had the core while others waited, and why.
#[derive(Debug, Clone, PartialEq)]
pub struct Taker {
    pub actor: Actor,
    /// As last seen.
    pub party: Party,
    pub why: Precedence,
    pub ns: u64,
    /// Short-lived processes of it that ended while they took.
    pub ended: u64,
}

/// Why a victim could not go to another core, though others had room.
#[derive(Debug, Clone, PartialEq)]
pub enum Confined {
    /// It may run on these cores only: by the cpuset of this cgroup, or by its affinity.
    To { cores: CoreSet, cpuset: Option<String> },
    /// It waited on this core only; where it may run was not read.
    Seen(u32),
}

#[derive(Debug, Clone)]
pub struct Victim {
    pub actor: Actor,
    pub party: Party,
    /// Its threads that lost, if they live.
    pub tids: Vec<u32>,
    /// In the intervals in which it lost.
    pub ran_ns: u64,
    /// Waited while others had the core.
    pub waited_ns: u64,
    pub longest_wait_ns: u64,
    pub confined: Option<Confined>,
}

impl Victim {
    pub fn lost(&self) -> f64 {
        self.waited_ns as f64 / (self.ran_ns.saturating_add(self.waited_ns)).max(1) as f64
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// By scheduling class or priority.
    Class,
    /// By the weight of a cgroup or a nice value.
    Weight,
    /// By the number of short-lived processes of one parent.
    Forks,
    /// By taking turns on cores that the victim cannot leave, while others have room.
    Crowd,
    /// By taking turns on full cores.
    Turns,
}

/// Takers, and everyone who lost to them in the same way.
#[derive(Debug, Clone)]
pub struct Loss {
    pub kind: Kind,
    /// Most first.
    pub victims: Vec<Victim>,
    /// Most first.
    pub takers: Vec<Taker>,
    pub cores: BTreeSet<u32>,
    /// From the first to the last interval in which someone lost.
    pub when: Window,
    /// Of the victims' waits, how much the named takers had.
    pub named: f64,
}

/// One thread of a party over all ledgers.
#[derive(Default)]
struct Seat<'e> {
    party: Option<&'e Party>,
    ran_ns: u64,
    waited_ns: u64,
    longest_wait_ns: u64,
    intervals: Vec<Window>,
    /// By taker and reason.
    taken: Vec<Taker>,
    by_core: BTreeMap<u32, u64>,
}

/// `None` if there is no ledger.
pub fn losses(case: &Case<'_>) -> Option<Vec<Loss>> {
    let evidence = case.evidence;
    if evidence.waits.is_empty() {
        return None;
    }
    let mut seats: BTreeMap<(Actor, Option<u32>), Seat<'_>> = BTreeMap::new();
    for ledger in &evidence.waits {
        add_interval(case, ledger, &mut seats);
    }
    let affinities = affinities(evidence);
    let mut losses: Vec<Loss> = Vec::new();
    for ((actor, tid), seat) in &seats {
        if let Some(loss) = judge(case, actor, *tid, seat, &affinities) {
            merge(&mut losses, loss);
        }
    }
    for loss in &mut losses {
        finish(loss);
    }
    losses.order_by_key(|loss| (loss.kind, std::cmp::Reverse(loss.victims.iter().map(|v| v.waited_ns).sum::<u64>())));
    Some(losses)
}

/// Adds the threads that lost markedly in one interval.
fn add_interval<'e>(case: &Case<'e>, ledger: &'e WaitLedger, seats: &mut BTreeMap<(Actor, Option<u32>), Seat<'e>>) {
    let parties: HashMap<u32, &'e Party> = ledger.parties.iter().map(|party| (party.id, party)).collect();
    let window = Window { from: ledger.from, to: ledger.to };
    let weights = Weights::of(case.evidence, ledger);
    let taken_by_core = TakenByCore::of(&case.evidence.core_times, ledger);
    let mut charges: HashMap<(u32, Option<u32>), Vec<&Charge>> = HashMap::new();
    for charge in &ledger.charges {
        charges.entry((charge.victim, charge.tid)).or_default().push(charge);
    }
    for account in &ledger.accounts {
        let Some(&party) = parties.get(&account.party) else { continue };
        if (account.waited_ns as f64) < WAITED_OF_INTERVAL * ledger.watched_ns as f64 || is_exempt(case, party) {
            continue;
        }
        let shares = charges.get(&(account.party, account.tid)).or_else(|| charges.get(&(account.party, None)));
        let Some(shares) = shares else { continue };
        let all: u64 = shares.iter().map(|charge| charge.ns).fold(0, u64::saturating_add);
        // A table that was full may have put several threads into one row.
        let scale = account.waited_ns as f64 / all.max(1) as f64;
        let mut taken: Vec<(Taker, u32)> = Vec::new();
        let mut to_others = 0.0;
        for charge in shares {
            let runner = match charge.to {
                Runner::Party(id) => parties.get(&id).copied(),
                Runner::Idle => continue,
                Runner::Others | Runner::Unknown => None,
            };
            if runner.is_some_and(|runner| is_family(party, runner)) {
                continue;
            }
            let (interrupts, hypervisor) = taken_by_core.of_core(charge.core);
            let taken_off = if runner.is_some_and(does_softirqs) { hypervisor } else { interrupts + hypervisor };
            let ns = charge.ns as f64 * scale.min(1.0) * (1.0 - taken_off).max(0.0);
            to_others += ns;
            let Some(runner) = runner.filter(|runner| !is_observer(case, runner)) else { continue };
            let why = weights.precedence(runner, party);
            let taker =
                Taker { actor: Actor::of(runner), party: runner.clone(), why, ns: ns as u64, ended: runner.ended };
            taken.push((taker, charge.core));
        }
        let lost = to_others / (account.ran_ns as f64 + to_others).max(1.0);
        if to_others < WAITED_OF_INTERVAL * ledger.watched_ns as f64 || lost < LOST_OF_INTERVAL {
            continue;
        }
        let seat = seats.entry((Actor::of(party), account.tid)).or_default();
        seat.party = Some(party);
        seat.ran_ns = seat.ran_ns.saturating_add(account.ran_ns);
        seat.waited_ns = seat.waited_ns.saturating_add(to_others as u64);
        seat.longest_wait_ns = seat.longest_wait_ns.max(account.longest_wait_ns).max(account.open_wait_ns);
        seat.intervals.push(window);
        for (taker, core) in taken {
            *seat.by_core.entry(core).or_default() += taker.ns;
            add_taker(&mut seat.taken, taker);
        }
    }
}

/// Who asked to run last loses nothing by doing so; who lives for less than a second is no job; we are not the patient.
fn is_exempt(case: &Case<'_>, party: &Party) -> bool {
    party.pid.is_none() || party.class == SchedulingClass::Idle || is_observer(case, party)
}

fn is_observer(case: &Case<'_>, party: &Party) -> bool {
    party.pid.or(party.parent_pid).is_some_and(|pid| case.is_observer(pid))
}

/// A process that waits for its own threads or children is its own affair.
fn is_family(victim: &Party, runner: &Party) -> bool {
    match (victim.pid, runner.pid) {
        (Some(victim), Some(runner)) => victim == runner,
        (Some(victim), None) => runner.parent_pid == Some(victim),
        (None, _) => victim.parent_pid == runner.pid.or(runner.parent_pid),
    }
}

fn add_taker(takers: &mut Vec<Taker>, taker: Taker) {
    match takers.iter_mut().find(|known| known.actor == taker.actor && known.why == taker.why) {
        Some(known) => {
            known.ns = known.ns.saturating_add(taker.ns);
            known.ended = known.ended.saturating_add(taker.ended);
            known.party = taker.party;
        }
        None => takers.push(taker),
    }
}

/// Whether one thread lost enough, and to what.
fn judge(
    case: &Case<'_>,
    actor: &Actor,
    tid: Option<u32>,
    seat: &Seat<'_>,
    affinities: &HashMap<u32, &CoreSet>,
) -> Option<Loss> {
    let party = seat.party?;
    let (first, last) = (seat.intervals.first()?, seat.intervals.last()?);
    let when = Window { from: first.from, to: last.to };
    if seat.waited_ns < WAITED_LEAST_NS {
        return None;
    }
    let affinity = tid.and_then(|tid| Some((tid, *affinities.get(&tid)?)));
    let confined = confined(case, affinity, seat, when);
    let stays = confined.is_some();
    let kind_of = |taker: &Taker| match taker.why {
        Precedence::Class => Kind::Class,
        Precedence::CgroupWeight { .. } | Precedence::Nice => Kind::Weight,
        Precedence::Turns if taker.actor.pid.is_none() => Kind::Forks,
        Precedence::Turns if stays => Kind::Crowd,
        Precedence::Turns => Kind::Turns,
    };
    let mut by_kind: BTreeMap<Kind, u64> = BTreeMap::new();
    for taker in &seat.taken {
        let sum = by_kind.entry(kind_of(taker)).or_default();
        *sum = sum.saturating_add(taker.ns);
    }
    let kind =
        &main_kind(&by_kind, seat.taken.iter().filter(|taker| is_turns(kind_of(taker))).map(|taker| taker.ns).max())?;
    let victim = Victim {
        actor: actor.clone(),
        party: party.clone(),
        tids: tid.into_iter().collect(),
        ran_ns: seat.ran_ns,
        waited_ns: seat.waited_ns,
        longest_wait_ns: seat.longest_wait_ns,
        confined,
    };
    let (needed, humble_too) = match kind {
        Kind::Class => (LOST_TO_CLASS, true),
        Kind::Forks | Kind::Crowd if stays => (LOST_TO_CROWD, false),
        _ => (LOST_TO_TURNS, false),
    };
    // A niced thread asked to run after ordinary ones; kernel threads take their turns and want little.
    let humble = party.nice > 0 || party.class == SchedulingClass::Batch || party.kernel;
    let length = |window: &Window| window.length().as_nanos() as u64;
    let lasted: u64 = seat.intervals.iter().map(length).fold(0, u64::saturating_add);
    let watched = case.evidence.waits.iter().map(|ledger| ledger.to.since(ledger.from).as_nanos() as f64).sum::<f64>();
    let brief = lasted < LASTS_NS && (lasted as f64) < LASTS_SHARE * watched;
    if victim.lost() < needed || (humble && !humble_too) || (brief && needed == LOST_TO_TURNS) {
        return None;
    }
    // Short-lived processes take turns, too: a smaller storm is one of those who do.
    let belongs = |of: Kind| of == *kind || (is_turns(*kind) && of == Kind::Forks);
    let takers: Vec<Taker> = seat.taken.iter().filter(|taker| belongs(kind_of(taker))).cloned().collect();
    let cores = seat.by_core.iter().filter(|(_, ns)| **ns * 20 >= seat.waited_ns).map(|(core, _)| *core).collect();
    Some(Loss { kind: *kind, victims: vec![victim], takers, cores, when, named: 0.0 })
}

fn is_turns(kind: Kind) -> bool {
    matches!(kind, Kind::Crowd | Kind::Turns)
}

/// What took most. Many who take turns may together have more than a fork storm or a real-time thread, and yet each of them little: what
/// acts as one, has a third of the wait, and twice as much as the largest of those, is what can be mended.
fn main_kind(by_kind: &BTreeMap<Kind, u64>, largest_turn: Option<u64>) -> Option<Kind> {
    let (most, _) = by_kind.iter().max_by_key(|(_, ns)| **ns)?;
    let all = by_kind.values().fold(0, |sum: u64, ns| sum.saturating_add(*ns));
    let acts_as_one = |(kind, ns): &(&Kind, &u64)| {
        matches!(kind, Kind::Class | Kind::Forks)
            && ns.saturating_mul(3) >= all
            && **ns >= largest_turn.unwrap_or(0).saturating_mul(2)
    };
    let one = by_kind.iter().filter(|_| is_turns(*most)).filter(acts_as_one).max_by_key(|(_, ns)| **ns);
    Some(one.map_or(*most, |(kind, _)| *kind))
}

/// Whether the victim had to stay where it waited while other cores had room.
fn confined(case: &Case<'_>, affinity: Option<(u32, &CoreSet)>, seat: &Seat<'_>, when: Window) -> Option<Confined> {
    let timeline = &case.cores().timeline;
    let room_beyond = |within: &dyn Fn(u32) -> bool| {
        let beyond = timeline.lines.keys().filter(|core| !within(**core));
        let busy: Vec<f64> = beyond.filter_map(|core| Some(timeline.shares(*core, when)?.busy())).collect();
        !busy.is_empty() && busy.iter().sum::<f64>() / (busy.len() as f64) < ROOM
    };
    match affinity {
        Some((tid, cores)) => room_beyond(&|core| cores.contains(core)).then(|| Confined::To {
            cores: cores.clone(),
            cpuset: case.evidence.kept_by_cpuset(tid, cores).map(str::to_owned),
        }),
        None => {
            let all: u64 = seat.by_core.values().sum();
            let (core, ns) = seat.by_core.iter().max_by_key(|(_, ns)| **ns)?;
            let alone = *ns as f64 >= ON_ONE_CORE * all as f64;
            (alone && room_beyond(&|other| other == *core)).then_some(Confined::Seen(*core))
        }
    }
}

/// The cores that each thread may use, as last read, by its id.
fn affinities(evidence: &Evidence) -> HashMap<u32, &CoreSet> {
    let mut known = HashMap::new();
    for thread in &evidence.threads {
        if let Some(cores) = &thread.affinity {
            known.insert(thread.key.tid, cores);
        }
    }
    known
}

/// Losses of one kind that share a taker are one trouble.
fn merge(losses: &mut Vec<Loss>, mut new: Loss) {
    let mut at = 0;
    while at < losses.len() {
        if !are_one(&losses[at], &new) {
            at += 1;
            continue;
        }
        let known = losses.swap_remove(at);
        known.takers.into_iter().for_each(|taker| add_taker(&mut new.takers, taker));
        known.victims.into_iter().for_each(|victim| add_victim(&mut new.victims, victim));
        new.cores.extend(known.cores);
        new.when = Window { from: new.when.from.min(known.when.from), to: new.when.to.max(known.when.to) };
        // Its takers may join it to others.
        at = 0;
    }
    losses.push(new);
}

fn are_one(one: &Loss, other: &Loss) -> bool {
    // Children of one parent may have several names.
    let same = |a: &Actor, b: &Actor| a == b || (a.pid.is_none() && b.pid.is_none() && a.parent_pid == b.parent_pid);
    // Each light cgroup is a trouble of its own: that is what can be mended.
    let cgroup = |loss: &Loss| loss.victims.first().and_then(|victim| victim.party.cgroup.clone());
    one.kind == other.kind
        && one.takers.iter().any(|t| other.takers.iter().any(|o| same(&t.actor, &o.actor)))
        && (one.kind != Kind::Weight || cgroup(one) == cgroup(other))
}

/// Threads of one process are one victim.
fn add_victim(victims: &mut Vec<Victim>, victim: Victim) {
    match victims.iter_mut().find(|known| known.actor == victim.actor) {
        Some(known) => {
            known.tids.extend(victim.tids);
            known.ran_ns = known.ran_ns.saturating_add(victim.ran_ns);
            known.waited_ns = known.waited_ns.saturating_add(victim.waited_ns);
            known.longest_wait_ns = known.longest_wait_ns.max(victim.longest_wait_ns);
            known.confined = known.confined.take().or(victim.confined);
        }
        None => victims.push(victim),
    }
}

/// Orders what was merged, and leaves only takers worth naming.
fn finish(loss: &mut Loss) {
    loss.victims.order_by_key(|victim| (std::cmp::Reverse(victim.waited_ns), victim.actor.pid));
    loss.takers.order_by_key(|taker| (std::cmp::Reverse(taker.ns), taker.actor.pid));
    let all = loss.victims.iter().map(|victim| victim.waited_ns).fold(0, u64::saturating_add).max(1) as f64;
    let mut place = 0;
    loss.takers.retain(|taker| {
        place += 1;
        place == 1 || taker.ns as f64 >= WORTH_NAMING * all
    });
    loss.named = loss.takers.iter().map(|taker| taker.ns as f64).sum::<f64>() / all;
}
