//! Who owned a core over a stretch of time.
//!
//! A thread's run time between two samples is charged to the core it was seen on at both; if it moved, half to each. Between
//! the samples the time is placed where the core was busy: a thread that ran 3 s between samples 5 s apart, on a core that
//! was idle for 2 s and then busy for 3 s, ran in those 3 s.

use super::threads::{Threads, Who};
use super::timeline::{LOOK_JITTER_NS, SATURATED_FOR_NS, Shares, Timeline};
use super::words::percent;
use coroner_evidence::{Evidence, Order, Source, Window};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};

/// The owner has at least half of a core's busy time: no other can have more.
pub const OWNER_SHARE: f64 = 0.5;
/// A thread reigns on a core if it has this share of it for a second or more …
const REIGN: f64 = 0.8;
/// … and this share of each step: real-time throttling takes 50 ms out of some steps.
const REIGN_STEP: f64 = 0.4;
/// A pinned thread with less than this share of a core's busy time hardly counts.
const SHARER: f64 = 0.1;
/// Softirqs that do work of their own. The others (TIMER, SCHED, RCU) fire on every tick and cost next to nothing.
const WORKING_SOFTIRQS: [&str; 7] = ["NET_RX", "NET_TX", "BLOCK", "IRQ_POLL", "TASKLET", "HI", "HRTIMER"];

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum OwnerKind {
    Thread(Box<Who>),
    /// No single thread, but the threads of one process together.
    Process {
        who: Box<Who>,
        threads: usize,
    },
    /// `NET_RX`
    Softirq(Option<String>),
    /// Its name in /proc/interrupts.
    Interrupt(Option<String>),
    Hypervisor,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Owner {
    pub kind: OwnerKind,
    /// Share of the core's busy time.
    pub share: f64,
    /// Share of the owner's run time spent in the kernel. `None` if it has too few ticks.
    pub system_share: Option<f64>,
}

impl Owner {
    /// `spin[4711]`, `softirq NET_RX`, `interrupt 38`.
    pub fn name(&self) -> String {
        match &self.kind {
            OwnerKind::Thread(who) => who.name(),
            OwnerKind::Process { who, .. } => format!("{}[{}]", who.comm, who.pid.unwrap_or(who.tid)),
            OwnerKind::Softirq(Some(name)) => format!("softirq {name}"),
            OwnerKind::Softirq(None) => "softirqs".to_owned(),
            OwnerKind::Interrupt(Some(name)) => format!("interrupt {name}"),
            OwnerKind::Interrupt(None) => "interrupts".to_owned(),
            OwnerKind::Hypervisor => "the hypervisor".to_owned(),
        }
    }

    pub fn who(&self) -> Option<&Who> {
        match &self.kind {
            OwnerKind::Thread(who) | OwnerKind::Process { who, .. } => Some(who),
            _ => None,
        }
    }

    /// The name, with process, unit and job.
    pub fn described(&self) -> String {
        match &self.kind {
            OwnerKind::Thread(who) => format!("{}{}", who.name(), who.belongs_to()),
            OwnerKind::Process { who, threads } => {
                format!("{} with {threads} threads{}", self.name(), who.belongs_to())
            }
            _ => self.name(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Ownership {
    Owned(Owner),
    /// Known threads shared it and none owned it; says which.
    Shared(String),
    /// Why no owner can be named.
    Unknown(String),
}

impl Ownership {
    pub fn owner(&self) -> Option<&Owner> {
        match self {
            Ownership::Owned(owner) => Some(owner),
            Ownership::Shared(_) | Ownership::Unknown(_) => None,
        }
    }

    pub fn is_one_thread(&self) -> bool {
        self.owner().is_some_and(|o| matches!(o.kind, OwnerKind::Thread(_)))
    }

    pub fn name(&self) -> String {
        self.owner().map_or_else(|| "no single owner".to_owned(), Owner::name)
    }
}

/// A thread pinned to a core, and its share of the core's busy time.
#[derive(Debug, Clone, Copy)]
pub struct Sharer {
    /// Index into [`Threads::lines`].
    pub line: usize,
    pub share: f64,
}

/// Run time of one thread on one core between two samples.
#[derive(Debug, Clone, Copy)]
struct Charge {
    line: usize,
    window: Window,
    run_ns: f64,
    user_ticks: f64,
    system_ticks: f64,
}

/// All run time, by core.
#[derive(Debug, Default)]
pub struct Charges {
    by_core: BTreeMap<u32, Vec<Charge>>,
}

impl Charges {
    pub fn of(threads: &Threads) -> Charges {
        let mut charges = Charges::default();
        for (line, thread) in threads.lines.iter().enumerate() {
            for pair in thread.samples.windows(2) {
                let [before, after] = pair else { continue };
                let user_ticks = after.user_ticks.saturating_sub(before.user_ticks) as f64;
                let system_ticks = after.system_ticks.saturating_sub(before.system_ticks) as f64;
                let run_ns = match (before.sched, after.sched) {
                    (Some(b), Some(a)) => a.run_ns.saturating_sub(b.run_ns) as f64,
                    _ => (user_ticks + system_ticks) * 1e7,
                };
                if run_ns <= 0.0 {
                    continue;
                }
                let window = Window { from: before.at, to: after.at };
                let run_ns = run_ns.min(window.length().as_nanos() as f64);
                let charge = Charge { line, window, run_ns, user_ticks, system_ticks };
                match thread.only_core() {
                    Some(core) => charges.add(core, charge, 1.0),
                    None if before.core == after.core => charges.add(after.core, charge, 1.0),
                    None => {
                        charges.add(before.core, charge, 0.5);
                        charges.add(after.core, charge, 0.5);
                    }
                }
            }
        }
        charges
    }

    fn add(&mut self, core: u32, charge: Charge, part: f64) {
        self.by_core.entry(core).or_default().push(Charge {
            run_ns: charge.run_ns * part,
            user_ticks: charge.user_ticks * part,
            system_ticks: charge.system_ticks * part,
            ..charge
        });
    }

    /// All run time on a core: the thread (index into [`Threads::lines`]), between which two samples, nanoseconds.
    pub fn on_core(&self, core: u32) -> impl Iterator<Item = (usize, Window, f64)> + '_ {
        let charges = self.by_core.get(&core).map_or(&[][..], Vec::as_slice);
        charges.iter().map(|charge| (charge.line, charge.window, charge.run_ns))
    }

    /// Run time of a thread on a core within a window.
    pub fn run_ns(&self, timeline: &Timeline, core: u32, line: usize, window: Window) -> f64 {
        self.within(timeline, core, window).filter(|c| c.line == line).map(|c| c.run_ns).sum()
    }

    /// The user threads that may run on this core only, with their shares of its busy time, largest first; those that hardly
    /// ran are left out.
    pub fn pinned(&self, threads: &Threads, timeline: &Timeline, core: u32, window: Window) -> Vec<Sharer> {
        let mut by_thread: BTreeMap<usize, f64> = BTreeMap::new();
        for charge in self.within(timeline, core, window) {
            let thread = &threads.lines[charge.line];
            if !thread.is_kernel() && thread.only_core() == Some(core) {
                *by_thread.entry(charge.line).or_default() += charge.run_ns;
            }
        }
        let busy_ns = timeline.lines.get(&core).map_or(0.0, |l| l.busy_ns(window)).max(1.0);
        let mut sharers: Vec<Sharer> = by_thread
            .into_iter()
            .map(|(line, run_ns)| Sharer { line, share: (run_ns / busy_ns).min(1.0) })
            .filter(|s| s.share >= SHARER)
            .collect();
        sharers.order_by(|a, b| b.share.total_cmp(&a.share).then(a.line.cmp(&b.line)));
        sharers
    }

    /// When one thread had a core nearly to itself for a second or more. On a core that is always busy, averages hide such a
    /// reign.
    pub fn reigns(&self, core: u32, window: Window) -> Vec<Window> {
        let ratio = |c: &Charge| c.run_ns / (c.window.length().as_nanos() as f64).max(1.0);
        let charges = self.by_core.get(&core).map_or(&[][..], Vec::as_slice);
        let follows = |a: &Charge, b: &Charge| {
            a.line == b.line && a.window.to == b.window.from && ratio(a) >= REIGN_STEP && ratio(b) >= REIGN_STEP
        };
        let mut reigns = Vec::new();
        for mut run in charges.chunk_by(follows) {
            // The reign may begin or end in the middle of a step: drop such steps.
            while let [first, rest @ ..] = run
                && ratio(first) < REIGN
            {
                run = rest;
            }
            while let [rest @ .., last] = run
                && ratio(last) < REIGN
            {
                run = rest;
            }
            let (Some(first), Some(last)) = (run.first(), run.last()) else { continue };
            let whole = Window { from: first.window.from, to: last.window.to };
            let ran = run.iter().fold(0.0, |sum, c| sum + c.run_ns);
            let reign = Window { from: whole.from.max(window.from), to: whole.to.min(window.to) };
            if ran >= REIGN * whole.length().as_nanos() as f64
                && reign.length().as_nanos() as u64 >= SATURATED_FOR_NS - LOOK_JITTER_NS
            {
                reigns.push(reign);
            }
        }
        reigns
    }

    /// The charges of a core, cut to a window.
    fn within<'c>(
        &'c self,
        timeline: &'c Timeline,
        core: u32,
        window: Window,
    ) -> impl Iterator<Item = Charge> + use<'c> {
        let line = timeline.lines.get(&core);
        self.by_core.get(&core).into_iter().flatten().filter_map(move |charge| {
            let overlap = Window { from: charge.window.from.max(window.from), to: charge.window.to.min(window.to) };
            if overlap.from >= overlap.to {
                return None;
            }
            if overlap == charge.window {
                return Some(*charge);
            }
            let by_time = overlap.length().as_nanos() as f64 / charge.window.length().as_nanos().max(1) as f64;
            let part = match line.map(|l| (l.busy_ns(overlap), l.busy_ns(charge.window))) {
                Some((here, all)) if all > 0.0 => here / all,
                _ => by_time,
            };
            Some(Charge {
                run_ns: (charge.run_ns * part).min(overlap.length().as_nanos() as f64),
                user_ticks: charge.user_ticks * part,
                system_ticks: charge.system_ticks * part,
                ..*charge
            })
        })
    }

    /// Who owned a core within a window.
    pub fn owner(
        &self,
        evidence: &Evidence,
        threads: &Threads,
        timeline: &Timeline,
        core: u32,
        window: Window,
    ) -> Ownership {
        let Some(shares) = timeline.shares(core, window) else {
            return Ownership::Unknown(format!("core {core} was not sampled"));
        };
        let owned = |kind, share| Ownership::Owned(Owner { kind, share, system_share: None });
        let busy = shares.busy();
        if busy <= 0.0 {
            return Ownership::Unknown("the core was idle".to_owned());
        }
        if shares.steal / busy >= OWNER_SHARE {
            return owned(OwnerKind::Hypervisor, shares.steal / busy);
        }
        // Interrupts come first: the run time of the interrupted thread includes theirs.
        if shares.interrupts() / busy >= OWNER_SHARE {
            return owned(interrupt_owner(evidence, core, window, &shares), shares.interrupts() / busy);
        }

        #[derive(Default, Clone, Copy)]
        struct Total {
            run_ns: f64,
            user_ticks: f64,
            system_ticks: f64,
        }
        let mut by_thread: HashMap<usize, Total> = HashMap::new();
        for charge in self.within(timeline, core, window) {
            let total = by_thread.entry(charge.line).or_default();
            total.run_ns += charge.run_ns;
            total.user_ticks += charge.user_ticks;
            total.system_ticks += charge.system_ticks;
        }
        let busy_ns = timeline.lines.get(&core).map_or(0.0, |l| l.busy_ns(window)).max(1.0);
        let owner = |kind, total: Total| {
            let ticks = total.user_ticks + total.system_ticks;
            Ownership::Owned(Owner {
                kind,
                share: (total.run_ns / busy_ns).min(1.0),
                // Too few ticks make no ratio.
                system_share: (ticks >= 5.0).then(|| total.system_ticks / ticks),
            })
        };
        // Ties go by index, so that the same evidence gives the same answer.
        let longest = |a: &(usize, Total), b: &(usize, Total)| a.1.run_ns.total_cmp(&b.1.run_ns).then(b.0.cmp(&a.0));
        if let Some((line, total)) = by_thread.iter().map(|(l, t)| (*l, *t)).max_by(longest)
            && total.run_ns >= OWNER_SHARE * busy_ns
        {
            return owner(OwnerKind::Thread(Box::new(threads.lines[line].who())), total);
        }

        let mut by_process: BTreeMap<u32, (usize, usize, Total)> = BTreeMap::new();
        for (line, thread_total) in &by_thread {
            let about = &threads.lines[*line];
            let pid = about.about.map_or(about.key.tid, |t| t.pid);
            let (main, count, total) = by_process.entry(pid).or_insert((*line, 0, Total::default()));
            *main = (*main).min(*line);
            *count += 1;
            total.run_ns += thread_total.run_ns;
            total.user_ticks += thread_total.user_ticks;
            total.system_ticks += thread_total.system_ticks;
        }
        if let Some((main, count, total)) = by_process.values().max_by(|a, b| a.2.run_ns.total_cmp(&b.2.run_ns))
            && total.run_ns >= OWNER_SHARE * busy_ns
        {
            let line = &threads.lines[*main];
            let mut who = line.who();
            if let Some(process) = line.process {
                who.comm = process.comm.clone();
            }
            return owner(OwnerKind::Process { who: Box::new(who), threads: *count }, *total);
        }

        let explained = by_thread.values().fold(0.0, |sum, t| sum + t.run_ns);
        if threads.lines.is_empty() {
            Ownership::Unknown("no threads were sampled".to_owned())
        } else if explained >= OWNER_SHARE * busy_ns {
            let mut names: Vec<(usize, Total)> = by_thread.iter().map(|(l, t)| (*l, *t)).collect();
            names.order_by(|a, b| longest(b, a));
            let (line, total) = names[0];
            Ownership::Shared(format!(
                "it was shared by {} threads; {} had the most, {} of its busy time",
                by_thread.len(),
                threads.lines[line].who().name(),
                percent(total.run_ns / busy_ns)
            ))
        } else {
            Ownership::Unknown(format!(
                "the sampled threads account for only {} of its busy time; the rest may be short-lived processes or hidden threads",
                percent(explained / busy_ns)
            ))
        }
    }
}

/// The interrupt or softirq that came most often on that core.
fn interrupt_owner(evidence: &Evidence, core: u32, window: Window, shares: &Shares) -> OwnerKind {
    let subject = format!("cpu{core}");
    let most = |source: Source, of: &dyn Fn(&str) -> bool| {
        evidence
            .counters
            .names(source, &subject)
            .into_iter()
            .filter(|name| of(name))
            .map(|name| (moved_around(evidence, source, &subject, name, window), name))
            .max_by_key(|(moved, _)| *moved)
            .filter(|(moved, _)| *moved > 0)
            .map(|(_, name)| name.to_owned())
    };
    if shares.softirq >= shares.irq {
        OwnerKind::Softirq(
            most(Source::Softirqs, &|name| WORKING_SOFTIRQS.contains(&name))
                .or_else(|| most(Source::Softirqs, &|_| true)),
        )
    } else {
        // Numbers are devices; letters are the kernel's own, and the timer (LOC) always ticks.
        OwnerKind::Interrupt(
            most(Source::Interrupts, &|name| name != "LOC").or_else(|| most(Source::Interrupts, &|_| true)),
        )
    }
}

/// How much a counter rose from the last point before a window to the first after it.
fn moved_around(evidence: &Evidence, source: Source, subject: &str, name: &str, window: Window) -> u64 {
    let points = evidence.counters.points(source, subject, name);
    let before = points.iter().rev().find(|p| p.at <= window.from).or(points.first());
    let after = points.iter().find(|p| p.at >= window.to).or(points.last());
    before.zip(after).map_or(0, |(b, a)| a.value.saturating_sub(b.value))
}
