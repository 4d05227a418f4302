//! How each core spent its time, from cumulative ticks.
//!
//! /proc/stat counts in ticks of 1/100 s: one step of 100 ms holds ten of them, so a single step says little. Thresholds look
//! at windows of a second; single steps only draw the strip that people look at.
//!
//! What the counters do in real life, and what is made of it:
//! - idle and iowait step backwards by some ticks (kernel/time/tick-sched.c, get_cpu_iowait_time_us warns of it): a counter
//!   counts again when it passes its highest value so far;
//! - fewer ticks than time passed, on tickless cores or when interrupts were off: up to a tenth is the noise of counting,
//!   more than that is time of which nothing is known, and it counts as not busy;
//! - cores come and go, looks are late: a share is taken over the time that was really covered.

use coroner_evidence::cores::TICKS_PER_SECOND;
use coroner_evidence::{CoreTicks, Evidence, Time, Window};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};
use std::sync::OnceLock;
use std::time::Duration;

/// Cores are looked at ten times a second, on a starved node now and then seconds later; nobody looked if it takes longer.
const PAUSE: Duration = Duration::from_secs(5);
const NS_PER_TICK: f64 = 1e9 / TICKS_PER_SECOND as f64;

/// A core is saturated at this share: 5 % is what real-time throttling leaves to others (sched_rt_runtime_us 950000), and
/// what the counting of ticks cannot tell from nothing.
pub const SATURATED: f64 = 0.95;
/// How long it must last. Shorter spikes are everyday work; a NIC's watchdog waits for 5 s.
pub const SATURATED_FOR_NS: u64 = 1_000_000_000;
/// Looks come every 100 ms but not exactly: ten steps of 99 ms are a second, too.
pub(super) const LOOK_JITTER_NS: u64 = 25_000_000;
/// A window cuts through the first and the last tick; one of a hundred may be missing at its ends.
const TICK_SLACK: f64 = 1.0;
/// With at least this share of the elapsed time accounted, the rest is noise.
const ACCOUNTED: f64 = 0.9;
/// A counter that falls by more than this (10 s) was reset; less is a step backwards.
const RESET_TICKS: u64 = 1_000;

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

/// Parts of a core's time, 0 to 1 each. What is missing to 1 was not accounted for by the kernel.
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
        let total: f64 = sums[..ELAPSED].iter().sum();
        let elapsed = sums[ELAPSED];
        let whole = if total >= ACCOUNTED * elapsed { total } else { elapsed };
        // Less than half a tick is no time at all.
        if elapsed < 0.5 || whole <= 0.0 {
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

    /// Not free to run somebody else. Stolen time is part of it: the core was wanted.
    pub fn busy(&self) -> f64 {
        self.user + self.system + self.irq + self.softirq + self.steal
    }

    /// In the kernel: system calls, interrupts, softirqs.
    pub fn kernel(&self) -> f64 {
        self.system + self.irq + self.softirq
    }

    /// In interrupts and softirqs, where no thread is to blame.
    pub fn interrupts(&self) -> f64 {
        self.irq + self.softirq
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

    /// Without a core that spent its time so. `None` if there is no other.
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
    /// At least 95 % of the time in the kernel.
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

/// One core over the time it was seen.
#[derive(Debug, Clone, Default)]
pub struct CoreLine {
    times: Vec<Time>,
    /// What was counted from the first look to this one.
    sums: Vec<Sums>,
    /// Whether the step that ends here was counted; false for the first look, after an absence and after a wild jump.
    counted: Vec<bool>,
}

/// All cores.
#[derive(Debug, Clone, Default)]
pub struct Timeline {
    pub lines: BTreeMap<u32, CoreLine>,
    /// Found once: several rules ask for them.
    in_kernel: OnceLock<Vec<Stretch>>,
    busy: OnceLock<Vec<Stretch>>,
}

impl Timeline {
    pub fn of(evidence: &Evidence) -> Timeline {
        let mut looks: Vec<_> = evidence.core_times.iter().collect();
        looks.sort_by_key(|look| look.at);
        looks.dedup_by_key(|look| look.at);
        let mut building: Vec<(u32, CoreLine, Counting)> = Vec::new();
        let mut places: HashMap<u32, usize> = HashMap::new();
        for (index, look) in looks.iter().enumerate() {
            for (at, ticks) in look.cores.iter().enumerate() {
                // Nearly always the same cores in the same order.
                let place = match building.get(at) {
                    Some((core, ..)) if *core == ticks.core => at,
                    _ => *places.entry(ticks.core).or_insert_with(|| {
                        building.push((ticks.core, CoreLine::with_room(looks.len() - index), Counting::default()));
                        building.len() - 1
                    }),
                };
                let (_, line, counting) = &mut building[place];
                counting.look(line, index, look.at, ticks);
            }
        }
        let lines = building.into_iter().map(|(core, line, _)| (core, line)).collect();
        Timeline { lines, ..Timeline::default() }
    }

    pub fn shares(&self, core: u32, window: Window) -> Option<Shares> {
        self.lines.get(&core)?.shares(window)
    }

    /// The average of all cores. `None` if none was seen.
    pub fn average(&self, window: Window) -> Option<Shares> {
        self.averages(window).all()
    }

    /// All cores together over a window, to take averages with and without one of them.
    pub fn averages(&self, window: Window) -> Averages {
        let mut averages = Averages::default();
        for shares in self.lines.values().filter_map(|line| line.shares(window)) {
            averages.sum.add(&shares, 1.0);
            averages.cores += 1;
        }
        averages
    }

    /// All stretches of a kind, by core and time.
    pub fn stretches(&self, saturation: Saturation) -> Vec<Stretch> {
        let found = match saturation {
            Saturation::Kernel => &self.in_kernel,
            Saturation::Busy => &self.busy,
        };
        let find = || self.lines.iter().flat_map(|(core, line)| line.stretches(*core, saturation)).collect();
        found.get_or_init(find).clone()
    }

    /// The core with the highest share over any second, for the words "worst core 3 at 34 % system".
    pub fn worst(&self, of: impl Fn(&Shares) -> f64) -> Option<(u32, f64)> {
        let of_core = |(core, line): (&u32, &CoreLine)| {
            let (mut highest, mut full) = (None, 0u32);
            line.windows(|_, _, sums| {
                if let Some(share) = Shares::of(sums).map(|s| of(&s)) {
                    highest = Some(share.max(highest.unwrap_or(0.0)));
                    full += u32::from(share >= SATURATED);
                }
            });
            Some((*core, highest?, full))
        };
        // Of several that were full for a second, the one that was so for longest.
        let percent = |share: f64| (share * 100.0).round() as u64;
        let all: Vec<(u32, f64, u32)> = self.lines.iter().filter_map(of_core).collect();
        let worst = all.into_iter().rev().max_by_key(|(_, share, full)| (percent(*share), *full))?;
        Some((worst.0, worst.1))
    }

    /// Whether there was a second to look at.
    pub fn lasts(&self) -> bool {
        self.lines.values().any(|line| {
            let mut found = false;
            line.windows(|_, _, _| found = true);
            found
        })
    }
}

/// What is remembered of a core from look to look.
#[derive(Default)]
struct Counting {
    last_look: Option<usize>,
    /// Highest value of each counter so far.
    highest: [u64; 7],
}

impl Counting {
    fn look(&mut self, line: &mut CoreLine, index: usize, at: Time, ticks: &CoreTicks) {
        if self.last_look == Some(index) {
            return; // The same core twice in one look.
        }
        let values = [
            ticks.user.saturating_add(ticks.nice),
            ticks.system,
            ticks.irq,
            ticks.softirq,
            ticks.steal,
            ticks.iowait,
            ticks.idle,
        ];
        let mut sums = line.sums.last().copied().unwrap_or_default();
        let present_before = index.checked_sub(1).is_some_and(|before| self.last_look == Some(before));
        let mut counted = false;
        let elapsed = match line.times.last() {
            Some(before) => at.since(*before).as_nanos() as f64 / NS_PER_TICK,
            None => 0.0,
        };
        let mut step = [0.0; 8];
        for (kind, value) in values.into_iter().enumerate() {
            let highest = &mut self.highest[kind];
            if value >= *highest {
                step[kind] = (value - *highest) as f64;
                *highest = value;
            } else if *highest - value > RESET_TICKS {
                *highest = value;
            }
        }
        if present_before && elapsed > 0.0 {
            let total: f64 = step.iter().sum();
            // More than twice the time that passed is no time: the core was away, or the counters are of another boot.
            if total <= 2.0 * elapsed + 20.0 {
                step[ELAPSED] = elapsed;
                for (sum, part) in sums.iter_mut().zip(step) {
                    *sum += part;
                }
                counted = true;
            }
        }
        line.times.push(at);
        line.sums.push(sums);
        line.counted.push(counted);
        self.last_look = Some(index);
    }
}

impl CoreLine {
    fn with_room(looks: usize) -> CoreLine {
        CoreLine {
            times: Vec::with_capacity(looks),
            sums: Vec::with_capacity(looks),
            counted: Vec::with_capacity(looks),
        }
    }

    /// What had been counted at a moment, evenly spread within a step.
    fn sums_at(&self, at: Time) -> Sums {
        let after = self.times.partition_point(|t| *t <= at);
        if after == 0 {
            return Sums::default();
        }
        let before = self.sums[after - 1];
        let Some(next) = self.sums.get(after) else { return before };
        let (t0, t1) = (self.times[after - 1], self.times[after]);
        let part = at.since(t0).as_nanos() as f64 / t1.since(t0).as_nanos().max(1) as f64;
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

    /// The window cut into equal parts, for a strip. `None` where the core was not seen: what the counters say of a long pause is the average
    /// of it, and no picture.
    pub fn strip(&self, window: Window, parts: usize) -> Vec<Option<Shares>> {
        let length = window.length().as_nanos();
        let edge = |i: usize| {
            let offset = length.saturating_mul(i as u128) / parts.max(1) as u128;
            Time(window.from.0.saturating_add(u64::try_from(offset).unwrap_or(u64::MAX)))
        };
        let part = |i: usize| Window { from: edge(i), to: edge(i + 1) };
        (0..parts).map(|i| self.shares(part(i)).filter(|_| !self.is_in_pause(part(i)))).collect()
    }

    /// Whether all of a window lies between two looks that are far apart.
    fn is_in_pause(&self, window: Window) -> bool {
        let after = self.times.partition_point(|at| *at <= window.from);
        let looks = after.checked_sub(1).and_then(|before| Some((self.times[before], *self.times.get(after)?)));
        looks.is_some_and(|(before, next)| next >= window.to && next.since(before) > PAUSE)
    }

    /// Every shortest run of counted steps that lasts a second: (first look, last look, what was counted).
    fn windows(&self, mut each: impl FnMut(usize, usize, &Sums)) {
        let mut first = 0;
        for last in 0..self.times.len() {
            if !self.counted[last] {
                first = last;
                continue;
            }
            let lasts = |first: usize| {
                self.times[last].since(self.times[first]).as_nanos() as u64 >= SATURATED_FOR_NS - LOOK_JITTER_NS
            };
            if !lasts(first) {
                continue;
            }
            while first + 1 < last && lasts(first + 1) {
                first += 1;
            }
            each(first, last, &difference(&self.sums[last], &self.sums[first]));
        }
    }

    fn stretches(&self, core: u32, saturation: Saturation) -> Vec<Stretch> {
        let mut full: Vec<(usize, usize)> = Vec::new();
        self.windows(|first, last, sums| {
            if is_full(sums, saturation) {
                match full.last_mut() {
                    Some((_, end)) if first <= *end => *end = last,
                    _ => full.push((first, last)),
                }
            }
        });
        full.into_iter()
            .filter_map(|(mut first, mut last)| {
                // The windows at both ends may reach a little beyond; a step that was mostly free is not part of it.
                let mostly_free = |a: usize, b: usize| {
                    Shares::of(&difference(&self.sums[b], &self.sums[a])).is_none_or(|s| part(&s, saturation) < 0.5)
                };
                while first + 1 < last && mostly_free(first, first + 1) {
                    first += 1;
                }
                while first + 1 < last && mostly_free(last - 1, last) {
                    last -= 1;
                }
                let window = Window { from: self.times[first], to: self.times[last] };
                Some(Stretch { core, saturation, window, shares: self.shares(window)? })
            })
            .collect()
    }
}

fn part(shares: &Shares, saturation: Saturation) -> f64 {
    match saturation {
        Saturation::Kernel => shares.kernel(),
        Saturation::Busy => shares.busy(),
    }
}

fn is_full(sums: &Sums, saturation: Saturation) -> bool {
    let Some(shares) = Shares::of(sums) else { return false };
    let slack = TICK_SLACK / sums[ELAPSED].max(1.0);
    match saturation {
        // What the hypervisor took away was not free either, but most of it must have been the kernel's own.
        Saturation::Kernel => shares.kernel() + shares.steal + slack >= SATURATED && shares.kernel() >= 0.5,
        Saturation::Busy => shares.busy() + slack >= SATURATED,
    }
}

fn difference(later: &Sums, earlier: &Sums) -> Sums {
    std::array::from_fn(|kind| (later[kind] - earlier[kind]).max(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use coroner_evidence::CoreTimes;

    /// Looks at one core: (milliseconds, ticks).
    fn one_core(looks: &[(u64, CoreTicks)]) -> Timeline {
        let core_times = looks.iter().map(|(ms, t)| CoreTimes { at: Time::from_millis(*ms), cores: vec![*t] });
        Timeline::of(&Evidence { core_times: core_times.collect(), ..Evidence::default() })
    }

    fn ticks(user: u64, system: u64, idle: u64) -> CoreTicks {
        CoreTicks { core: 0, user, system, idle, ..CoreTicks::default() }
    }

    fn window(from_ms: u64, to_ms: u64) -> Window {
        Window { from: Time::from_millis(from_ms), to: Time::from_millis(to_ms) }
    }

    /// A core that spends `system` of ten ticks per step of 100 ms in the kernel.
    fn steps(system: &[u64]) -> Timeline {
        let mut looks = vec![(0, ticks(0, 0, 0))];
        let (mut s, mut i) = (0, 0);
        for (n, part) in system.iter().enumerate() {
            s += part;
            i += 10 - part;
            looks.push(((n as u64 + 1) * 100, ticks(0, s, i)));
        }
        one_core(&looks)
    }

    #[test]
    fn a_stretch_has_the_length_of_the_trouble() {
        let mut load = vec![0; 10];
        load.extend([10; 30]);
        load.extend([0; 10]);
        let found = steps(&load).stretches(Saturation::Kernel);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].window, window(1000, 4000));
        assert!((found[0].shares.system - 1.0).abs() < 1e-9);
    }

    #[test]
    fn six_tenths_of_a_second_are_no_stretch_and_ten_are() {
        for (long, expected) in [(6, 0), (9, 0), (10, 1)] {
            let mut load = vec![0; 10];
            load.extend(vec![10; long]);
            load.extend([0; 10]);
            assert_eq!(steps(&load).stretches(Saturation::Kernel).len(), expected, "{long} steps");
        }
    }

    #[test]
    fn ninety_percent_is_not_saturated_and_ninety_five_is() {
        assert_eq!(steps(&[9; 50]).stretches(Saturation::Kernel).len(), 0);
        let mut load = Vec::new();
        for _ in 0..25 {
            load.extend([10, 9]);
        }
        assert_eq!(steps(&load).stretches(Saturation::Kernel).len(), 1);
    }

    #[test]
    fn late_looks_do_not_hide_or_invent_anything() {
        // One look after 3 s instead of thirty: the counters still know.
        let late = one_core(&[(0, ticks(0, 0, 0)), (100, ticks(0, 0, 10)), (3100, ticks(0, 300, 10))]);
        let found = late.stretches(Saturation::Kernel);
        assert_eq!((found.len(), found[0].window), (1, window(100, 3100)));
        // A burst of 0.6 s within a late look of 1 s stays below.
        let burst = one_core(&[(0, ticks(0, 0, 0)), (1000, ticks(0, 60, 40))]);
        assert_eq!(burst.stretches(Saturation::Kernel).len(), 0);
    }

    #[test]
    fn idle_that_goes_backwards_counts_only_once() {
        let t = one_core(&[
            (0, ticks(0, 0, 100)),
            (100, ticks(0, 0, 110)),
            (200, ticks(10, 0, 105)),
            (300, ticks(20, 0, 110)),
            (400, ticks(30, 0, 110)),
        ]);
        let shares = t.shares(0, window(0, 400)).unwrap();
        assert!((shares.user - 0.75).abs() < 1e-9 && (shares.idle - 0.25).abs() < 1e-9, "{shares:?}");
    }

    #[test]
    fn ticks_that_a_tickless_core_did_not_count_are_not_busy() {
        // 20 ticks of work in a second, and the idle counter stands still.
        let t = one_core(&[(0, ticks(0, 0, 0)), (1000, ticks(0, 20, 0))]);
        let shares = t.shares(0, window(0, 1000)).unwrap();
        assert!((shares.busy() - 0.2).abs() < 1e-9, "{shares:?}");
        assert_eq!(t.stretches(Saturation::Busy).len(), 0);
        // 93 ticks and no idle: the seven that are missing are noise.
        let t = one_core(&[(0, ticks(0, 0, 0)), (1000, ticks(0, 93, 0))]);
        assert_eq!(t.stretches(Saturation::Kernel).len(), 1);
    }

    #[test]
    fn a_core_that_comes_back_starts_anew() {
        let present = |ms, system| CoreTimes { at: Time::from_millis(ms), cores: vec![ticks(0, system, 0)] };
        let absent = |ms| CoreTimes { at: Time::from_millis(ms), cores: vec![] };
        let evidence = Evidence {
            core_times: vec![present(0, 0), present(500, 50), absent(600), present(700, 52), present(1200, 102)],
            ..Evidence::default()
        };
        let t = Timeline::of(&evidence);
        assert_eq!(t.stretches(Saturation::Kernel).len(), 0, "never a whole second in one piece");
        assert!((t.lines[&0].busy_ns(window(0, 1200)) - 1e9).abs() < 1.0);
    }

    #[test]
    fn a_wild_jump_is_no_time() {
        let t = one_core(&[(0, ticks(0, 0, 0)), (1000, ticks(0, 5_000_000, 0)), (2000, ticks(0, 5_000_000, 100))]);
        assert_eq!(t.stretches(Saturation::Kernel).len(), 0);
        assert_eq!(t.worst(Shares::kernel), Some((0, 0.0)));
    }

    #[test]
    fn the_strip_shows_parts_of_a_second_and_holes() {
        let mut load = vec![0; 5];
        load.extend([10; 5]);
        let strip = steps(&load).lines[&0].strip(window(0, 2000), 4);
        let kernel: Vec<Option<f64>> = strip.iter().map(|s| s.map(|s| s.kernel())).collect();
        assert_eq!(kernel, [Some(0.0), Some(1.0), None, None]);
    }

    #[test]
    fn stolen_time_is_not_free_but_not_the_kernels_fault() {
        let stolen = |s, st| CoreTicks { core: 0, system: s, steal: st, ..CoreTicks::default() };
        let t = one_core(&[(0, stolen(0, 0)), (1000, stolen(10, 90))]);
        assert_eq!(t.stretches(Saturation::Kernel).len(), 0);
        assert_eq!(t.stretches(Saturation::Busy).len(), 1);
    }
}
