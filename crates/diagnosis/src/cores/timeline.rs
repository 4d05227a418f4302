//! The core meter: turns the ticks of /proc/stat into shares of time and into stretches in which a core was full.
//!
//! It is the only one. The rules feed it a whole recording ([`Timeline::of`]); the recorder feeds it look by look and keeps the
//! last seconds ([`Timeline::keeping`]) for its triggers, /metrics and the roll-ups; `coroner cores`, the page and the progress
//! line read their shares from it. A look costs a few operations per core, however much is kept.
//!
//! What the counters do, and how the meter deals with it:
//! - **Ticks are coarse**: 1/100 s, so a step of 100 ms holds ten of them. Thresholds look at windows of a second; single steps
//!   only draw the strip. A window cuts through its first and last tick, so one tick may be missing.
//! - **Idle and iowait step backwards**: an idle period that has not ended counts as one or the other, depending on whether a
//!   thread waits for a disk at the moment of the look (kernel/time/tick-sched.c, get_cpu_sleep_time_us). Their sum is steady,
//!   so it is counted and then divided. A counter that falls anyway counts again once it passes its highest value.
//! - **Fewer ticks than time passed**, on tickless cores or while interrupts are off: up to a tenth is noise. If more is
//!   missing, that time is unknown and counts as not busy.
//! - **Counters that fall by 10 s, or rise by twice the time that passed**, belong to another boot. That step is not counted,
//!   and no stretch crosses it. The same goes for a core that was offline.
//! - **Late looks** count in full, because the counters kept running: if they say that a core was full from one look to the
//!   next, it was. The strip still leaves pauses blank, because an average would be no picture.
//! - **Guest time** is part of user time, as in the kernel: on a host a virtual machine is a program like any other.
//! - **Iowait is room**: the core could have run something else.
//! - **Stolen time** counts as busy: the core was wanted and not free. A core with 88 % system and 10 % steal is full. But a
//!   core of which the hypervisor took as much as the node's own work got is not full: `cpu-steal` reports it.

use coroner_evidence::cores::{MAX_CORES, TICKS_PER_SECOND};
use coroner_evidence::recording::TOGETHER;
use coroner_evidence::{CoreTicks, CoreTimes, Evidence, Order, Time, Window};
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;

const NS_PER_TICK: f64 = 1e9 / TICKS_PER_SECOND as f64;

/// A core is saturated at this share: the other 5 % is what real-time throttling leaves (sched_rt_runtime_us 950000), and too
/// little for ticks to measure.
pub const SATURATED: f64 = 0.95;
/// How long it must last. Shorter spikes are normal; a NIC's watchdog waits 5 s.
pub const SATURATED_FOR_NS: u64 = 1_000_000_000;
/// Looks are not exactly 100 ms apart: ten steps of 99 ms count as a second.
pub const LOOK_JITTER_NS: u64 = 25_000_000;
/// Ticks that a window may miss at its ends.
const TICK_SLACK: f64 = 1.0;
/// With at least this share of the elapsed time accounted for, the rest is noise.
const ACCOUNTED: f64 = 0.9;
/// A counter that falls by more than this (10 s) was reset; less is a step backwards.
const RESET_TICKS: u64 = 1_000;
/// A running recorder keeps this many finished stretches per core.
const MOST_STRETCHES: usize = 8;

const USER: usize = 0;
const SYSTEM: usize = 1;
const IRQ: usize = 2;
const SOFTIRQ: usize = 3;
const STEAL: usize = 4;
const IOWAIT: usize = 5;
const IDLE: usize = 6;
/// Ticks of wall time that the others were counted in.
const ELAPSED: usize = 7;
type Sums = [f64; 8];

/// Shares of a core's time, 0 to 1 each. If they add up to less than 1, the kernel did not account for the rest.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Shares {
    /// User code, niced included.
    pub user: f64,
    pub system: f64,
    pub irq: f64,
    pub softirq: f64,
    /// Taken by the hypervisor.
    pub steal: f64,
    pub iowait: f64,
    pub idle: f64,
}

impl Shares {
    fn of(sums: &Sums) -> Option<Shares> {
        let whole = whole(sums);
        // Less than half a tick is no time at all.
        if sums[ELAPSED] < 0.5 || whole <= 0.0 {
            return None;
        }
        Some(Shares {
            user: sums[USER] / whole,
            system: sums[SYSTEM] / whole,
            irq: sums[IRQ] / whole,
            softirq: sums[SOFTIRQ] / whole,
            steal: sums[STEAL] / whole,
            iowait: sums[IOWAIT] / whole,
            idle: sums[IDLE] / whole,
        })
    }

    /// Not free to run anything else: the node's own work and stolen time.
    pub fn busy(&self) -> f64 {
        self.worked() + self.steal
    }

    /// The node's own work.
    pub fn worked(&self) -> f64 {
        self.user + self.kernel()
    }

    /// In the kernel: system calls, interrupts, softirqs.
    pub fn kernel(&self) -> f64 {
        self.system + self.irq + self.softirq
    }

    /// In interrupts and softirqs, where no thread is to blame.
    pub fn interrupts(&self) -> f64 {
        self.irq + self.softirq
    }

    /// Time of this kind, plus stolen time: neither was free for anything else.
    pub fn taken(&self, by: Saturation) -> f64 {
        self.own(by) + self.steal
    }

    fn own(&self, by: Saturation) -> f64 {
        match by {
            Saturation::Kernel => self.kernel(),
            Saturation::Busy => self.worked(),
        }
    }

    /// Whether the core was full over this time.
    pub fn is_full(&self, of: Saturation) -> bool {
        self.taken(of) >= SATURATED && self.own(of) > self.steal
    }

    fn add(&mut self, other: &Shares, times: f64) {
        self.user += other.user * times;
        self.system += other.system * times;
        self.irq += other.irq * times;
        self.softirq += other.softirq * times;
        self.steal += other.steal * times;
        self.iowait += other.iowait * times;
        self.idle += other.idle * times;
    }
}

/// The sum over all cores, to take averages of.
#[derive(Debug, Clone, Copy, Default)]
pub struct Averages {
    sum: Shares,
    cores: u32,
}

impl Averages {
    pub fn all(&self) -> Option<Shares> {
        average(&self.sum, self.cores)
    }

    /// Without the core that has these shares. `None` if there is no other core.
    pub fn without(&self, one: &Shares) -> Option<Shares> {
        let mut rest = self.sum;
        rest.add(one, -1.0);
        average(&rest, self.cores.saturating_sub(1))
    }
}

fn average(sum: &Shares, cores: u32) -> Option<Shares> {
    if cores == 0 {
        return None;
    }
    let mut average = Shares::default();
    average.add(sum, 1.0 / f64::from(cores));
    Some(average)
}

/// What a core is full of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Saturation {
    /// At least 95 % of the time in the kernel or stolen.
    Kernel,
    /// At least 95 % busy with anything.
    Busy,
}

/// A time of at least a second in which a core was full.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stretch {
    pub core: u32,
    pub saturation: Saturation,
    pub window: Window,
    /// Over the whole stretch.
    pub shares: Shares,
}

/// All cores.
#[derive(Debug, Clone, Default)]
pub struct Timeline {
    pub lines: BTreeMap<u32, CoreLine>,
    /// Older looks are dropped; `None` keeps all.
    keep: Option<Duration>,
    /// How many looks are expected in total.
    expected: usize,
    looks: usize,
    newest: Option<Time>,
}

/// One core over the time it was seen.
#[derive(Debug, Clone, Default)]
pub struct CoreLine {
    core: u32,
    times: Vec<Time>,
    /// Ticks counted from the very first look to this one.
    sums: Vec<Sums>,
    /// Whether the step that ends here was counted; false for the first look, after an absence and after a reset.
    counted: Vec<bool>,
    /// Highest value of each counter so far; idle is the sum of idle and iowait.
    highest: [u64; 7],
    /// The number of the last look that included this core.
    seen: usize,
    /// Start of the shortest run of counted steps that ends with the newest look and lasts a second.
    first: usize,
    /// Whether there was ever such a run.
    lasted: bool,
    in_kernel: Fullness,
    busy: Fullness,
}

/// When a core was full by one measure.
#[derive(Debug, Clone, Default)]
struct Fullness {
    over: Vec<Stretch>,
    open: Option<Open>,
}

/// A stretch that may still grow.
#[derive(Debug, Clone, Copy)]
struct Open {
    from: (Time, Sums),
    to: (Time, Sums),
    /// Where the last full window ended; a window that begins later belongs to another stretch.
    reach: Time,
}

impl Open {
    fn stretch(&self, core: u32, saturation: Saturation) -> Option<Stretch> {
        let window = Window { from: self.from.0, to: self.to.0 };
        Some(Stretch { core, saturation, window, shares: Shares::of(&difference(&self.to.1, &self.from.1))? })
    }
}

/// The ticks each core had counted at some moment, to compute shares since then.
#[derive(Debug, Clone, Default)]
pub struct Totals(Vec<(u32, Sums)>);

impl Timeline {
    pub fn of(evidence: &Evidence) -> Timeline {
        let mut looks: Vec<_> = evidence.core_times.iter().collect();
        looks.order_by_key(|look| look.at);
        let mut timeline = Timeline { expected: looks.len(), ..Timeline::default() };
        for look in looks {
            timeline.look(look);
        }
        timeline
    }

    /// For a recorder that runs for months: keeps the looks of the last `keep`, at least two seconds.
    pub fn keeping(keep: Duration) -> Timeline {
        Timeline { keep: Some(keep.max(Duration::from_secs(2))), ..Timeline::default() }
    }

    /// Adds the next look; ignores one that is not later than the last.
    pub fn look(&mut self, look: &CoreTimes) {
        if self.newest.is_some_and(|newest| look.at <= newest) {
            return;
        }
        self.newest = Some(look.at);
        self.looks += 1;
        // Nearly always the same cores in the same order: the fast path.
        if self.lines.keys().eq(look.cores.iter().map(|ticks| &ticks.core)) {
            for (line, ticks) in self.lines.values_mut().zip(&look.cores) {
                line.look(self.looks, look.at, ticks, self.keep);
            }
            return;
        }
        for ticks in look.cores.iter().filter(|ticks| (ticks.core as usize) < MAX_CORES) {
            let room = self.expected.saturating_sub(self.looks - 1);
            let line = self.lines.entry(ticks.core).or_insert_with(|| CoreLine::new(ticks.core, room));
            line.look(self.looks, look.at, ticks, self.keep);
        }
    }

    pub fn newest(&self) -> Option<Time> {
        self.newest
    }

    /// Whether the newest look included this core.
    pub fn is_online(&self, core: u32) -> bool {
        self.lines.get(&core).is_some_and(|line| line.seen == self.looks)
    }

    pub fn shares(&self, core: u32, window: Window) -> Option<Shares> {
        self.lines.get(&core)?.shares(window)
    }

    pub fn totals(&self) -> Totals {
        Totals(self.lines.values().filter_map(|line| Some((line.core, *line.sums.last()?))).collect())
    }

    /// The shares of each core that was seen since then, by core.
    pub fn since(&self, before: &Totals) -> Vec<(u32, Shares)> {
        let shares = |(core, sums): (u32, Sums)| {
            let known = before.0.binary_search_by_key(&core, |(core, _)| *core);
            let then = known.map_or(Sums::default(), |at| before.0[at].1);
            Some((core, Shares::of(&difference(&sums, &then))?))
        };
        self.totals().0.into_iter().filter_map(shares).collect()
    }

    /// The average of all cores. `None` if none was seen.
    pub fn average(&self, window: Window) -> Option<Shares> {
        self.averages(window).all()
    }

    /// The sum over all cores in a window, to take averages with and without one of them.
    pub fn averages(&self, window: Window) -> Averages {
        let mut averages = Averages::default();
        for shares in self.lines.values().filter_map(|line| line.shares(window)) {
            averages.sum.add(&shares, 1.0);
            averages.cores += 1;
        }
        averages
    }

    /// The kept stretches of a kind, by core and time; the last of a core may still grow.
    pub fn stretches(&self, saturation: Saturation) -> Vec<Stretch> {
        self.lines.values().flat_map(|line| line.stretches(saturation)).collect()
    }

    /// The core with the highest share over any kept second.
    pub fn worst(&self, of: impl Fn(&Shares) -> f64) -> Option<(u32, f64)> {
        worst_of(self.lines.iter().filter_map(|(core, line)| {
            let (mut highest, mut full) = (None, 0);
            line.windows(|sums| {
                if let Some(share) = Shares::of(sums).map(|s| of(&s)) {
                    highest = Some(share.max(highest.unwrap_or(0.0)));
                    full += u64::from(share >= SATURATED);
                }
            });
            Some((*core, highest?, full))
        }))
    }

    /// Whether any core was watched for a second.
    pub fn lasts(&self) -> bool {
        self.lines.values().any(|line| line.lasted)
    }
}

/// The worst of several cores, each with its share and how long it was full, in any unit: the highest percentage, then the
/// longest full, then the lowest number.
pub fn worst_of(cores: impl Iterator<Item = (u32, f64, u64)>) -> Option<(u32, f64)> {
    let percent = |share: f64| (share * 100.0).round() as u64;
    let rank = |(core, share, full): &(u32, f64, u64)| (percent(*share), *full, std::cmp::Reverse(*core));
    cores.max_by_key(rank).map(|(core, share, _)| (core, share))
}

impl CoreLine {
    fn new(core: u32, room: usize) -> CoreLine {
        CoreLine {
            core,
            times: Vec::with_capacity(room),
            sums: Vec::with_capacity(room),
            counted: Vec::with_capacity(room),
            ..CoreLine::default()
        }
    }

    fn look(&mut self, number: usize, at: Time, ticks: &CoreTicks, keep: Option<Duration>) {
        if self.seen == number {
            return; // The same core twice in one look.
        }
        let was_there = self.seen > 0 && self.seen + 1 == number;
        self.seen = number;
        let values = [
            ticks.user.saturating_add(ticks.nice),
            ticks.system,
            ticks.irq,
            ticks.softirq,
            ticks.steal,
            ticks.iowait,
            ticks.idle.saturating_add(ticks.iowait),
        ];
        let step = if was_there { self.step(at, values) } else { None };
        let mut sums = self.sums.last().copied().unwrap_or_default();
        match &step {
            Some(step) => sums.iter_mut().zip(step).for_each(|(sum, part)| *sum += part),
            None => self.highest = values,
        }
        self.times.push(at);
        self.sums.push(sums);
        self.counted.push(step.is_some());
        self.note_full();
        if let Some(keep) = keep {
            self.forget(at - keep);
        }
    }

    /// Ticks since the previous look. `None` if the counters were reset.
    fn step(&mut self, at: Time, values: [u64; 7]) -> Option<Sums> {
        let elapsed = at.since(*self.times.last()?).as_nanos() as f64 / NS_PER_TICK;
        let mut step = [0.0; 8];
        for (kind, (highest, value)) in self.highest.iter_mut().zip(values).enumerate() {
            // Minutes that count as iowait now may count as idle in the next look.
            if kind != IOWAIT && highest.saturating_sub(value) > RESET_TICKS {
                return None;
            }
            step[kind] = value.saturating_sub(*highest) as f64;
            *highest = value.max(*highest);
        }
        step[IOWAIT] = step[IOWAIT].min(step[IDLE]);
        step[IDLE] -= step[IOWAIT];
        let total: f64 = step.iter().sum();
        step[ELAPSED] = elapsed;
        (total <= 2.0 * elapsed + 20.0).then_some(step)
    }

    /// Judges the second that ends with the newest look.
    fn note_full(&mut self) {
        let last = self.times.len() - 1;
        if !self.counted[last] {
            self.first = last;
        }
        while self.first + 1 < last && self.is_second(self.first + 1, last) {
            self.first += 1;
        }
        let first = self.first;
        let is_second = self.is_second(first, last);
        self.lasted |= is_second;
        let sums = difference(&self.sums[last], &self.sums[first]);
        // Kernel time is busy time: on most cores one check is enough.
        let busy = is_second && is_full(&sums, Saturation::Busy);
        let in_kernel = busy && is_full(&sums, Saturation::Kernel);
        for (saturation, full) in [(Saturation::Kernel, in_kernel), (Saturation::Busy, busy)] {
            let begins = self.times[first];
            if let Some(ended) = self.fullness_mut(saturation).open.take_if(|open| begins > open.reach) {
                let stretch = ended.stretch(self.core, saturation);
                self.fullness_mut(saturation).over.extend(stretch);
            }
            if full {
                self.extend(first, last, saturation);
            }
        }
    }

    /// Extends the open stretch to a full window, or opens one. Steps at either end in which the core worked less than half of
    /// the time are left out.
    fn extend(&mut self, mut first: usize, mut last: usize, saturation: Saturation) {
        let is_beyond = |a: usize, b: usize| {
            Shares::of(&difference(&self.sums[b], &self.sums[a])).is_none_or(|s| s.own(saturation) < 0.5)
        };
        let moment = |at: usize| (self.times[at], self.sums[at]);
        let reach = self.times[last];
        while first + 1 < last && is_beyond(last - 1, last) {
            last -= 1;
        }
        let to = moment(last);
        let from = match &self.fullness(saturation).open {
            Some(open) => open.from,
            None => {
                while first + 1 < last && is_beyond(first, first + 1) {
                    first += 1;
                }
                moment(first)
            }
        };
        self.fullness_mut(saturation).open = Some(Open { from, to, reach });
    }

    fn is_second(&self, first: usize, last: usize) -> bool {
        self.times[last].since(self.times[first]).as_nanos() as u64 >= SATURATED_FOR_NS - LOOK_JITTER_NS
    }

    fn fullness(&self, saturation: Saturation) -> &Fullness {
        match saturation {
            Saturation::Kernel => &self.in_kernel,
            Saturation::Busy => &self.busy,
        }
    }

    fn fullness_mut(&mut self, saturation: Saturation) -> &mut Fullness {
        match saturation {
            Saturation::Kernel => &mut self.in_kernel,
            Saturation::Busy => &mut self.busy,
        }
    }

    /// Drops the looks before `old` except the last of them, but only when they are more than half: moving the rest costs, too.
    fn forget(&mut self, old: Time) {
        let gone = self.times.partition_point(|at| *at < old).saturating_sub(1).min(self.first);
        if gone > self.times.len() / 2 {
            self.times.drain(..gone);
            self.sums.drain(..gone);
            self.counted.drain(..gone);
            self.first -= gone;
        }
        for full in [&mut self.in_kernel, &mut self.busy] {
            full.over.drain(..full.over.len().saturating_sub(MOST_STRETCHES));
        }
    }

    /// Oldest first; the last may still grow.
    pub fn stretches(&self, saturation: Saturation) -> impl Iterator<Item = Stretch> + '_ {
        let Fullness { over, open } = self.fullness(saturation);
        over.iter().copied().chain(open.and_then(|open| open.stretch(self.core, saturation)))
    }

    /// The last stretch, which may still grow.
    pub fn latest(&self, saturation: Saturation) -> Option<Stretch> {
        let Fullness { over, open } = self.fullness(saturation);
        open.and_then(|open| open.stretch(self.core, saturation)).or_else(|| over.last().copied())
    }

    /// The second or so that ends with the newest look; `None` if there is no unbroken second.
    pub fn last_second(&self) -> Option<Shares> {
        let last = self.times.len().checked_sub(1).filter(|last| self.is_second(self.first, *last))?;
        Shares::of(&difference(&self.sums[last], &self.sums[self.first]))
    }

    /// Ticks counted up to a moment, interpolated within a step.
    fn sums_at(&self, at: Time) -> Sums {
        let after = self.times.partition_point(|t| *t <= at);
        let Some(before) = after.checked_sub(1) else { return self.sums.first().copied().unwrap_or_default() };
        let (t0, before) = (self.times[before], self.sums[before]);
        let Some(next) = self.sums.get(after) else { return before };
        let part = at.since(t0).as_nanos() as f64 / self.times[after].since(t0).as_nanos().max(1) as f64;
        std::array::from_fn(|kind| before[kind] + (next[kind] - before[kind]) * part)
    }

    fn between(&self, window: Window) -> Sums {
        difference(&self.sums_at(window.to), &self.sums_at(window.from))
    }

    pub fn shares(&self, window: Window) -> Option<Shares> {
        Shares::of(&self.between(window))
    }

    /// Nanoseconds of work within a window, stolen time excluded.
    pub fn busy_ns(&self, window: Window) -> f64 {
        let sums = self.between(window);
        (sums[USER] + sums[SYSTEM] + sums[IRQ] + sums[SOFTIRQ]) * NS_PER_TICK
    }

    /// Shares in equal parts of the window, for a strip. `None` where the core was not seen, and in pauses.
    pub fn strip(&self, window: Window, parts: usize) -> Vec<Option<Shares>> {
        cut(window, parts).map(|part| self.shares(self.watched(part)?)).collect()
    }

    /// A window without the pauses at its ends, if half of it is left: over a long pause the counters only give an average.
    fn watched(&self, window: Window) -> Option<Window> {
        let pause = |at: Time| {
            let after = self.times.partition_point(|look| *look <= at);
            let (before, next) = (*self.times.get(after.checked_sub(1)?)?, *self.times.get(after)?);
            (next.since(before) > TOGETHER).then_some((before, next))
        };
        let from = pause(window.from).map_or(window.from, |(_, next)| next);
        let to = pause(window.to).map_or(window.to, |(before, _)| before);
        (to.since(from) >= window.length() / 2).then_some(Window { from, to })
    }

    /// Calls `each` with the ticks of every shortest run of counted steps that lasts a second.
    fn windows(&self, mut each: impl FnMut(&Sums)) {
        let mut first = 0;
        for last in 0..self.times.len() {
            if !self.counted[last] {
                first = last;
            }
            while first + 1 < last && self.is_second(first + 1, last) {
                first += 1;
            }
            if self.is_second(first, last) {
                each(&difference(&self.sums[last], &self.sums[first]));
            }
        }
    }
}

/// Cuts a window into equal parts.
pub fn cut(window: Window, parts: usize) -> impl Iterator<Item = Window> {
    let length = window.length().as_nanos();
    let edge = move |i: usize| {
        let offset = length.saturating_mul(i as u128) / parts.max(1) as u128;
        Time(window.from.0.saturating_add(u64::try_from(offset).unwrap_or(u64::MAX)))
    };
    (0..parts).map(move |i| Window { from: edge(i), to: edge(i + 1) })
}

/// The ticks that shares are a part of.
fn whole(sums: &Sums) -> f64 {
    let (total, elapsed) = (sums[..ELAPSED].iter().sum::<f64>(), sums[ELAPSED]);
    if total >= ACCOUNTED * elapsed { total } else { elapsed }
}

/// [`Shares::is_full`] in ticks, one of which may be missing.
fn is_full(sums: &Sums, of: Saturation) -> bool {
    let kernel = sums[SYSTEM] + sums[IRQ] + sums[SOFTIRQ];
    let own = match of {
        Saturation::Kernel => kernel,
        Saturation::Busy => kernel + sums[USER],
    };
    own + sums[STEAL] + TICK_SLACK >= SATURATED * whole(sums) && own > sums[STEAL]
}

fn difference(later: &Sums, earlier: &Sums) -> Sums {
    std::array::from_fn(|kind| (later[kind] - earlier[kind]).max(0.0))
}

#[cfg(test)]
mod tests;
