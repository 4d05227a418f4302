//! Risers: the commands and kernel functions whose share of busy time rose most over a baseline. In a flame graph of a
//! loaded node an agent that went from under 1 % to 6 % is invisible; here it is the first line.
//!
//! Left out are rises within sampling noise, and functions that rose only because of one they call: every system call passes
//! through the same few.

use std::collections::{HashMap, HashSet};

use super::clocks::{Clocks, Ticking};
use super::{Kinds, SampleKind};
use crate::model::{Dictionary, EventId, FramePlace, Sample, Seeded, StackId, StrId, Strings};
use coroner_evidence::Order;

pub use coroner_evidence::recording::{Riser, RiserKind};

/// A rise below this many standard deviations is noise.
pub const SIGMAS: f64 = 3.0;
/// A function carries a caller if it makes up at least this part of the caller's rise.
const CARRIES: f64 = 0.8;
/// How many functions are checked for who carries whom.
const MOST_SYMBOLS: usize = 128;

#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    samples: u64,
    weight: u64,
    /// Sum of the squared weights.
    squares: f64,
}

impl Sum {
    fn add(&mut self, samples: u64, weight: u64) {
        let squares = (weight as f64).powi(2) / samples.max(1) as f64;
        self.join(&Sum { samples, weight, squares });
    }

    fn join(&mut self, other: &Sum) {
        self.samples = self.samples.saturating_add(other.samples);
        self.weight = self.weight.saturating_add(other.weight);
        self.squares += other.squares;
    }

    /// Effective sample size: the number of equally weighted samples with the same precision.
    fn as_equals(&self) -> f64 {
        if self.squares > 0.0 { (self.weight as f64).powi(2) / self.squares } else { 0.0 }
    }
}

/// One event.
#[derive(Clone, Debug, Default)]
struct EventShares {
    stacks: HashMap<(StrId, StackId), Sum, Seeded>,
    processes: HashMap<StrId, HashSet<u32>>,
    total: Sum,
}

/// Shares of the non-idle time. Memory follows the distinct stacks of each command, and the processes.
#[derive(Clone, Debug, Default)]
pub struct BusyShares {
    kinds: Kinds,
    clocks: Clocks,
    events: HashMap<EventId, EventShares>,
    time_ns: Option<u64>,
}

impl BusyShares {
    /// Sets the sampled time, idle or not. If both sides have it, shares are of this time: then even an all-idle baseline can be
    /// compared.
    pub fn out_of(&mut self, time_ns: u64) {
        self.time_ns = Some(time_ns);
    }

    pub fn add(&mut self, names: &Dictionary, sample: &Sample) {
        if self.clocks.of(names, sample.event) == Ticking::Not || self.kinds.kind(names, sample) == SampleKind::Idle {
            return;
        }
        let task = names.task(sample.task);
        let event = self.events.entry(sample.event).or_default();
        // A folded line counts as many samples as its weight.
        let folded = names.events.get(usize::from(sample.event.0)).is_some_and(|event| event.name == "samples");
        let samples = if folded { sample.period } else { 1 };
        event.stacks.entry((task.comm, sample.stack)).or_default().add(samples, sample.period);
        event.total.add(samples, sample.period);
        if let Some(pid) = task.pid {
            event.processes.entry(task.comm).or_default().insert(pid);
        }
    }

    /// Non-idle samples of the event that [`find`] uses.
    pub fn samples(&self) -> u64 {
        self.best().map_or(0, |event| self.events[&event].total.samples)
    }

    fn best(&self) -> Option<EventId> {
        let key = |event: &EventId| {
            (self.clocks.ticking(*event), self.events[event].total.samples, std::cmp::Reverse(*event))
        };
        self.events.keys().copied().max_by_key(key)
    }

    /// The event `name`, or else the best one.
    fn event(&self, names: &Dictionary, name: &str) -> Option<&EventShares> {
        let named = self.events.keys().find(|id| names.events.get(usize::from(id.0)).is_some_and(|e| e.name == name));
        self.events.get(&named.copied().or_else(|| self.best())?)
    }
}

/// One side, by name.
#[derive(Default)]
struct Side {
    sums: HashMap<(RiserKind, String), Sum>,
    processes: HashMap<String, u64>,
    total: Sum,
}

impl Side {
    fn new(names: &Dictionary, event: &EventShares, all: Option<Sum>) -> Side {
        let mut commands: HashMap<StrId, Sum> = HashMap::new();
        let mut symbols: HashMap<StrId, Sum> = HashMap::new();
        let mut path = Vec::new();
        for ((comm, stack), sum) in &event.stacks {
            commands.entry(*comm).or_default().join(sum);
            kernel_symbols(names, *stack, &mut path);
            for symbol in &path {
                symbols.entry(*symbol).or_default().join(sum);
            }
        }
        let name = |id: StrId| names.strings.get(id).to_owned();
        let commands = commands.into_iter().map(|(comm, sum)| ((RiserKind::Command, name(comm)), sum));
        let symbols = symbols.into_iter().map(|(symbol, sum)| ((RiserKind::KernelSymbol, name(symbol)), sum));
        Side {
            sums: commands.chain(symbols).collect(),
            processes: event.processes.iter().map(|(comm, pids)| (name(*comm), pids.len() as u64)).collect(),
            total: all.filter(|all| all.weight > event.total.weight).unwrap_or(event.total),
        }
    }

    fn share(&self, sum: Sum) -> f64 {
        sum.weight as f64 / self.total.weight.max(1) as f64
    }
}

/// The kernel functions of a stack, leaf first. A recursive one counts once, nearest to the leaf.
fn kernel_symbols(names: &Dictionary, stack: StackId, path: &mut Vec<StrId>) {
    path.clear();
    for id in names.stacks.leaf_first(stack) {
        let frame = names.frames.get(id);
        if frame.place == FramePlace::Kernel && frame.symbol != Strings::EMPTY && !path.contains(&frame.symbol) {
            path.push(frame.symbol);
        }
    }
}

/// The difference of two shares, each of so many samples, in standard deviations. 0 if one side has no samples.
fn sigmas((before, of_before): (f64, f64), (now, of_now): (f64, f64)) -> f64 {
    if of_before <= 0.0 || of_now <= 0.0 {
        return 0.0;
    }
    let both = (before * of_before + now * of_now) / (of_before + of_now);
    let deviation = (both * (1.0 - both) * (1.0 / of_before + 1.0 / of_now)).sqrt();
    if deviation > 0.0 { (now - before) / deviation } else { 0.0 }
}

/// At most `most` risers, largest rise first. None if one side has no samples ([`BusyShares::samples`]) and an unknown sampled
/// time.
pub fn find(baseline: (&Dictionary, &BusyShares), now: (&Dictionary, &BusyShares), most: usize) -> Vec<Riser> {
    let Some(event) = now.1.best() else { return Vec::new() };
    let Some(name) = now.0.events.get(usize::from(event.0)).map(|event| event.name.as_str()) else { return Vec::new() };
    let event_now = &now.1.events[&event];
    let is_timer = now.1.clocks.ticking(event) == Ticking::Always;
    let times = baseline.1.time_ns.zip(now.1.time_ns).filter(|_| is_timer);
    let nothing = EventShares::default();
    let event_before = match (baseline.1.event(baseline.0, name), times) {
        (Some(event), _) => event,
        (None, Some(_)) => &nothing,
        (None, None) => return Vec::new(),
    };
    // The number of samples that time would have had.
    let all = |event: &EventShares, time_ns: u64| {
        let like = if event.total.samples > 0 { event.total } else { event_now.total };
        let times = time_ns as f64 / like.weight.max(1) as f64;
        Sum { samples: (times * like.samples as f64) as u64, weight: time_ns, squares: times * like.squares }
    };
    let side_before = Side::new(baseline.0, event_before, times.map(|(before, _)| all(event_before, before)));
    let side_now = Side::new(now.0, event_now, times.map(|(_, now)| all(event_now, now)));
    let mut risers: Vec<Riser> = side_now
        .sums
        .iter()
        .map(|(key, sum)| {
            let before = side_before.sums.get(key).copied().unwrap_or_default();
            let processes = |side: &Side| match key.0 {
                RiserKind::Command => side.processes.get(&key.1).copied().unwrap_or(0),
                RiserKind::KernelSymbol => 0,
            };
            Riser {
                what: key.0,
                name: key.1.clone(),
                baseline: side_before.share(before),
                now: side_now.share(*sum),
                baseline_samples: before.samples,
                now_samples: sum.samples,
                sigmas: sigmas(
                    (side_before.share(before), side_before.total.as_equals()),
                    (side_now.share(*sum), side_now.total.as_equals()),
                ),
                baseline_processes: processes(&side_before),
                now_processes: processes(&side_now),
                ..Riser::default()
            }
        })
        .filter(|riser| riser.rise() > 0.0 && riser.sigmas >= SIGMAS)
        .collect();
    risers.order_by(|a, b| b.rise().total_cmp(&a.rise()).then_with(|| (a.what, &a.name).cmp(&(b.what, &b.name))));
    collapse(now.0, event_now, &mut risers);
    risers.truncate(most);
    risers
}

/// Drops functions whose rise is that of a function they call.
fn collapse(names: &Dictionary, event: &EventShares, risers: &mut Vec<Riser>) {
    let symbols: Vec<usize> =
        (0..risers.len()).filter(|at| risers[*at].what == RiserKind::KernelSymbol).take(MOST_SYMBOLS).collect();
    let n = symbols.len();
    let known: HashMap<&str, usize> =
        symbols.iter().enumerate().map(|(at, riser)| (risers[*riser].name.as_str(), at)).collect();
    let mut by_id: HashMap<StrId, Option<usize>> = HashMap::new();
    // Weight of each function, and of each pair of caller and callee.
    let mut weight = vec![0u64; n];
    let mut below = vec![0u64; n * n];
    let mut commands: Vec<HashMap<StrId, u64>> = vec![HashMap::new(); n];
    let mut path = Vec::new();
    for ((comm, stack), sum) in &event.stacks {
        kernel_symbols(names, *stack, &mut path);
        let on_path: Vec<usize> = path
            .iter()
            .filter_map(|id| *by_id.entry(*id).or_insert_with(|| known.get(names.strings.get(*id)).copied()))
            .collect();
        for (position, above) in on_path.iter().enumerate() {
            weight[*above] = weight[*above].saturating_add(sum.weight);
            let of_command = commands[*above].entry(*comm).or_default();
            *of_command = of_command.saturating_add(sum.weight);
            for under in &on_path[position + 1..] {
                below[under * n + above] = below[under * n + above].saturating_add(sum.weight);
            }
        }
    }
    for (at, commands) in commands.iter().enumerate() {
        let most = commands.iter().max_by_key(|(comm, weight)| (**weight, std::cmp::Reverse(comm.0)));
        let share = |part: u64| part as f64 / weight[at].max(1) as f64;
        risers[symbols[at]].mostly_in = most.map(|(comm, part)| (names.strings.get(*comm).to_owned(), share(*part)));
    }
    let rise = |at: usize| risers[symbols[at]].rise();
    // Mutual recursion: the one that is the caller more often counts as the caller.
    let is_below = |under: usize, above: usize| below[under * n + above] > below[above * n + under];
    let carries = |above: usize, under: usize| {
        let part = below[under * n + above] as f64 / weight[above].max(1) as f64;
        is_below(under, above) && rise(above) * part >= CARRIES * rise(under)
    };
    // Largest first; the function nearest to the leaf stays and represents all it carries.
    let mut carrier: Vec<Option<usize>> = vec![None; n];
    let mut stays = vec![false; n];
    for under in 0..n {
        if stays[under] || carrier[under].is_some() {
            continue;
        }
        let above: Vec<usize> = (0..n).filter(|above| carrier[*above].is_none() && carries(*above, under)).collect();
        let higher = |one: &usize| above.iter().filter(|other| is_below(*one, **other)).count();
        let Some(top) = above.iter().copied().min_by_key(|one| (higher(one), *one)) else {
            stays[under] = true;
            continue;
        };
        stays[top] = true;
        carrier[under] = Some(top);
    }
    for (at, stays) in stays.iter().enumerate() {
        if *stays {
            let mut under: Vec<usize> = (0..n).filter(|under| carrier[*under] == Some(at)).collect();
            let between = |one: &usize| (0..n).filter(|other| is_below(*one, *other)).count();
            under.order_by_key(between);
            let named: Vec<String> = under.iter().map(|one| risers[symbols[*one]].name.clone()).collect();
            risers[symbols[at]].carries = named;
        }
    }
    let gone: HashSet<usize> = (0..n).filter(|at| carrier[*at].is_some()).map(|at| symbols[at]).collect();
    let mut position = 0;
    risers.retain(|_| {
        position += 1;
        !gone.contains(&(position - 1))
    });
}
