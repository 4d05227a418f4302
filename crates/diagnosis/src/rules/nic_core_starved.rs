//! Did a NIC queue go unserved because its core was taken?
//!
//! Packets are polled in softirq context: on return from an interrupt, then by ksoftirqd/N under load, or by a NAPI thread where
//! that is enabled. ksoftirqd and NAPI threads are ordinary threads: a real-time thread, or a kernel loop that does not yield,
//! keeps them off the core. Drivers give up after some seconds (ENA: 5) and reset the device.

use crate::case::Case;
use crate::code::Code;
use crate::cores::cited::{culprit_steps, how_to_move, shares_text, victim_fact, with_room};
use crate::cores::owners::Ownership;
use crate::cores::threads::{is_ksoftirqd_of, is_napi};
use crate::cores::timeline::Saturation;
use crate::cores::traffic;
use crate::cores::waits::{Harm, VICTIM_WAITED_NS, Victim};
use crate::cores::words::{listed, percent, percent_value, span};
use crate::cores::{Cores, FullCore};
use crate::finding::{Answer, Fact, FactKey, Finding, Severity, Subject, SubjectKind};
use crate::ties::{self, Queue, Task, Ties};
use coroner_evidence::{Evidence, Nic, NicQueue, Order, QueueKind, Source, Time, Window, probe};
use std::collections::{BTreeMap, BTreeSet};

/// A core that spends this share of its time in softirqs is serving its queues.
const SERVING: f64 = 0.5;
/// A thread that waits on a core less busy than this waits for something else.
const TAKEN: f64 = 0.5;
/// The longest a thread waits for its turn on a core that many share: 30 of them with 3 ms each.
const LONGEST_TURN_NS: u64 = 100_000_000;
/// A poller that waited for this share of the time leaves no trace of packets: while its poll is due, the device does not
/// interrupt again, and nobody counts what lies in the ring.
const NEARLY_ALL: f64 = 0.9;

pub fn examine(case: &Case<'_>) -> Answer {
    let evidence = case.evidence;
    let cores = case.cores();
    let WaitingPollers { mut cases, harmless } = waiting_pollers(cores);
    let found: Vec<u32> = cases.iter().map(|c| c.core).collect();
    let mut idle_while_full = Vec::new();
    for full in cores.full(Saturation::Kernel, |f| f.stretch.shares.softirq < SERVING) {
        if found.contains(&full.core) {
            continue;
        }
        let queues: Vec<_> =
            cores.queues(full.core).into_iter().filter(|(_, queue)| queue.napi_tid.is_none()).collect();
        for (nic, queue) in queues {
            match polled(evidence, full.core, queue, full.stretch.window) {
                Polled::No => cases.push(Starving::not_polled(nic, queue, &full, true)),
                Polled::Unknown => cases.push(Starving::not_polled(nic, queue, &full, false)),
                Polled::Yes | Polled::Quiet => idle_while_full.push(full.core),
            }
        }
    }
    if !cases.is_empty() {
        // Another owner at another time is a finding of its own.
        let mut stories: BTreeMap<(String, Option<u32>), Vec<Starving>> = BTreeMap::new();
        for case in cases {
            stories.entry((case.subject.clone(), case.told_apart_by)).or_default().push(case);
        }
        let mut findings: Vec<Finding> =
            stories.into_iter().map(|((subject, _), cases)| finding(cores, subject, cases)).collect();
        findings.order_by_key(|f| std::cmp::Reverse(f.severity));
        return Answer::Findings(findings);
    }
    if let Some((because, how_to_see)) = cores.waits_hidden() {
        return Answer::CannotTell {
            because: format!("it is unknown whether the threads that poll NICs had to wait: {because}"),
            how_to_see,
        };
    }
    if cores.nics.is_empty()
        && let Some(unseen) = evidence.why_unseen(probe::NICS)
    {
        return Answer::CannotTell {
            because: format!("it is unknown which core serves which NIC: {}", unseen.why),
            how_to_see: unseen.how_to_see.clone(),
        };
    }
    let longest = cores.waits.longest_ns(|core, line| is_poller(cores, core, line));
    let mut why = if !harmless.is_empty() {
        listed(&harmless, 3)
    } else if longest < 1_000_000 {
        "no thread that polls a NIC had to wait".to_owned()
    } else {
        format!("no thread that polls a NIC waited longer than {} at a time", span(longest))
    };
    if let Some(core) = idle_while_full.first() {
        why.push_str(&format!("; core {core} was full, but its NIC queues were served or idle"));
    }
    Answer::Fine(why)
}

/// A queue that was not served, or several with the same poller.
struct Starving {
    subject: String,
    nic: Queue,
    /// Without the device: `rx-0`.
    queues: Vec<String>,
    irq: Option<u32>,
    core: u32,
    /// The thread that waited; `None` if the core itself was stuck.
    poller: Option<Victim>,
    ownership: Ownership,
    window: Window,
    /// The thread that had the core, if several had it one after another.
    told_apart_by: Option<u32>,
    /// False if it is unknown whether the queue was polled.
    proven: bool,
    busy: String,
}

impl Starving {
    fn not_polled(nic: &Nic, queue: &NicQueue, full: &FullCore, proven: bool) -> Starving {
        Starving {
            subject: nic.display_name(),
            nic: ties::device(nic),
            queues: vec![queue.label()],
            irq: queue.irq,
            core: full.core,
            poller: None,
            ownership: full.ownership.clone(),
            window: full.stretch.window,
            told_apart_by: None,
            proven,
            busy: shares_text(&full.stretch.shares),
        }
    }

    fn lasted_ns(&self) -> u64 {
        self.poller.as_ref().map_or(self.window.length().as_nanos() as u64, |p| p.waited_ns)
    }
}

/// NAPI threads, and the ksoftirqd of a core that serves a NIC queue or gets its packets by steering.
fn is_poller(cores: &Cores, core: u32, line: usize) -> bool {
    let thread = &cores.threads.lines[line];
    let comm = thread.about.map_or("", |t| t.comm.as_str());
    is_napi(comm)
        || (is_ksoftirqd_of(comm, core) && !served_by_softirq(cores, core).is_empty())
        || cores.nics.iter().flat_map(|n| &n.queues).any(|q| q.napi_tid == Some(thread.key.tid))
}

/// (device, queue) pairs whose packets are handled by softirqs on this core.
fn served_by_softirq<'a>(cores: &Cores<'a>, core: u32) -> Vec<(&'a Nic, &'a NicQueue)> {
    cores
        .nics
        .iter()
        .flat_map(|nic| nic.queues.iter().map(move |queue| (*nic, queue)))
        .filter(|(_, queue)| {
            let steered = queue.kind != QueueKind::Tx && queue.steering.as_ref().is_some_and(|s| s.contains(core));
            steered || (queue.napi_tid.is_none() && queue.needs_core(core))
        })
        .collect()
}

#[derive(Default)]
struct WaitingPollers {
    cases: Vec<Starving>,
    /// ksoftirqd waited, but the device had no packets: `ksoftirqd/1[22] waited 863 ms, but eth0 had no traffic for core 1`.
    harmless: Vec<String>,
}

/// The windows in which one thread had a core; without an owner, the rest of the watched time.
struct Era {
    owner: Option<u32>,
    windows: Vec<Window>,
}

/// One era for all of it, unless several threads had the core one after another.
fn eras(owned: &[FullCore], core: u32, all: Window) -> Vec<Era> {
    let of_core = owned.iter().filter(|full| full.core == core);
    let mut eras: Vec<Era> =
        of_core.map(|full| Era { owner: full.only_thread(), windows: full.windows.clone() }).collect();
    if eras.len() < 2 {
        return vec![Era { owner: None, windows: vec![all] }];
    }
    let mut taken: Vec<Window> = eras.iter().flat_map(|era| era.windows.iter().copied()).collect();
    taken.order_by_key(|window| window.from);
    let mut rest = Vec::new();
    let mut from = all.from;
    for window in taken {
        if window.from > from {
            rest.push(Window { from, to: window.from });
        }
        from = from.max(window.to);
    }
    if from < all.to {
        rest.push(Window { from, to: all.to });
    }
    eras.push(Era { owner: None, windows: rest });
    eras
}

fn waiting_pollers(cores: &Cores) -> WaitingPollers {
    let times = || cores.evidence.thread_samples.iter().map(|s| s.at);
    let (Some(from), Some(to)) = (times().min(), times().max()) else { return WaitingPollers::default() };
    let owned = cores.full_by_owner(Saturation::Busy, |f| f.ownership.is_one_thread());
    let mut cases = Vec::new();
    let mut harmless = Vec::new();
    for core in cores.waits.cores() {
        let eras = eras(&owned, core, Window { from, to });
        let victims = eras.iter().flat_map(|era| {
            let victims = cores.waits.victims(&cores.threads, core, &era.windows, |_| 0.0);
            victims.into_iter().map(|victim| (victim, era.owner))
        });
        let mut behind_somebody = BTreeSet::new();
        for (victim, told_apart_by) in victims {
            if victim.harm != Harm::Starved || !is_poller(cores, core, victim.line) {
                continue;
            }
            let shares = cores.timeline.shares(core, victim.window);
            if shares.is_some_and(|s| s.busy() < TAKEN) {
                continue;
            }
            let ownership = cores.owner(core, victim.window);
            // The poller itself had the core most of the time: it was working.
            if ownership.owner().and_then(|o| o.who()).is_some_and(|who| who.tid == victim.who.tid) {
                continue;
            }
            // The same wait, left over at the edge of an era with an owner.
            if told_apart_by.is_some() {
                behind_somebody.insert(victim.line);
            } else if ownership.owner().is_none() && behind_somebody.contains(&victim.line) {
                continue;
            }
            // No single owner: among many threads of equal priority each waits a little longer.
            if ownership.owner().is_none() && victim.longest_ns < LONGEST_TURN_NS {
                continue;
            }
            let window = victim.window;
            let busy = shares.map_or_else(String::new, |s| shares_text(&s));
            let case = |subject, nic, queues, irq, victim, proven| Starving {
                subject,
                nic,
                queues,
                irq,
                core,
                poller: Some(victim),
                ownership: ownership.clone(),
                window,
                told_apart_by,
                proven,
                busy: busy.clone(),
            };
            if victim.who.is_ksoftirqd_of(core) {
                let mut by_nic: BTreeMap<String, (&Nic, Vec<&NicQueue>)> = BTreeMap::new();
                for (nic, queue) in served_by_softirq(cores, core) {
                    by_nic.entry(nic.display_name()).or_insert((nic, Vec::new())).1.push(queue);
                }
                let all_the_time = victim.longest_ns as f64 >= NEARLY_ALL * to.since(from).as_nanos() as f64;
                for (name, (nic, queues)) in by_nic {
                    let had_work = traffic::had_work(cores.evidence, nic, &queues, core);
                    if had_work == Some(false) && (!all_the_time || nic.up == Some(false)) {
                        harmless.push(format!(
                            "{} waited {}, but {name} had no traffic for core {core}",
                            victim.who.name(),
                            span(victim.waited_ns)
                        ));
                        continue;
                    }
                    let labels = queues.iter().map(|q| q.label()).collect();
                    let irq = queues.iter().find_map(|q| q.irq);
                    cases.push(case(name, ties::device(nic), labels, irq, victim.clone(), had_work == Some(true)));
                }
            } else {
                let (nic, queues) = device_of(cores, &victim);
                cases.push(case(nic.name(), nic, queues, None, victim, true));
            }
        }
    }
    WaitingPollers { cases, harmless }
}

/// The device a NAPI thread polls: by its TID, else by its name (`napi/eth0-8193`, net/core/dev.c, napi_kthread_create) if only
/// one device has it. The thread's own name if the device was not seen: it may be in another network namespace.
fn device_of(cores: &Cores, victim: &Victim) -> (Queue, Vec<String>) {
    let by_number: Vec<_> = cores
        .nics
        .iter()
        .flat_map(|nic| nic.queues.iter().map(move |queue| (nic, queue)))
        .filter(|(_, queue)| queue.napi_tid == Some(victim.who.tid))
        .collect();
    if let Some((nic, _)) = by_number.first() {
        return (ties::device(nic), by_number.iter().map(|(_, queue)| queue.label()).collect());
    }
    let device = victim.who.comm.strip_prefix("napi/").and_then(|rest| rest.rsplit_once('-')).map(|(device, _)| device);
    let named: Vec<_> = cores.nics.iter().filter(|nic| Some(nic.name.as_str()) == device).collect();
    match named.as_slice() {
        [only] => (ties::device(only), Vec::new()),
        _ => (Queue { device: victim.who.comm.clone(), ..Queue::default() }, Vec::new()),
    }
}

enum Polled {
    /// The core handled packets in that time.
    Yes,
    /// It handled none, although it did before or after, or interrupts arrived.
    No,
    /// It handled none in the whole window: there is no traffic to hurt.
    Quiet,
    Unknown,
}

/// Whether a core handled packets (softirq NET_RX) during a stretch.
fn polled(evidence: &Evidence, core: u32, queue: &NicQueue, stretch: Window) -> Polled {
    let subject = format!("cpu{core}");
    // Only counters that moved are recorded, so the times of all of them together are the times of the reads.
    let mut looks: Vec<Time> = evidence
        .counters
        .iter()
        .filter(|(series, _)| series.source == Source::Softirqs)
        .flat_map(|(_, points)| points.iter().map(|p| p.at))
        .collect();
    looks.sort_unstable();
    looks.dedup();
    let within: Vec<Time> = looks.into_iter().filter(|at| stretch.contains(*at)).collect();
    let points = evidence.counters.points(Source::Softirqs, &subject, "NET_RX");
    let (Some(first), Some(last), Some(start), Some(end)) =
        (within.first(), within.last(), points.first(), points.last())
    else {
        return Polled::Unknown;
    };
    // Reads that cover less than half of the stretch prove nothing.
    if last.since(*first) * 2 < stretch.length() {
        return Polled::Unknown;
    }
    let value_at = |at: Time| points.iter().rev().find(|p| p.at <= at).unwrap_or(start).value;
    if value_at(*last) > value_at(*first) {
        return Polled::Yes;
    }
    let interrupted = queue.irq.is_some_and(|irq| {
        let points = evidence.counters.points(Source::Interrupts, &subject, &irq.to_string());
        let at = |at: Time| points.iter().rev().find(|p| p.at <= at).map(|p| p.value);
        at(*last).zip(at(*first)).is_some_and(|(last, first)| last > first)
    });
    if end.value > start.value || interrupted { Polled::No } else { Polled::Quiet }
}

fn finding(cores: &Cores, subject: String, mut cases: Vec<Starving>) -> Finding {
    cases.order_by_key(|c| std::cmp::Reverse((c.proven, c.lasted_ns())));
    let worst = &cases[0];
    let queues_of = |case: &Starving| match case.queues.as_slice() {
        [] => String::new(),
        queues => format!(" {}", listed(queues, 4)),
    };
    let served = match (worst.proven, worst.queues.len()) {
        (false, _) => "may not have been served",
        (true, 0 | 1) => "was not served",
        (true, _) => "were not served",
    };
    let owner = worst.ownership.owner().map(|owner| owner.name());
    let title = match &worst.poller {
        Some(poller) => format!(
            "{subject}{} {served}: {} waited {} for core {}{}",
            queues_of(worst),
            poller.who.name(),
            span(poller.waited_ns),
            worst.core,
            owner.map(|owner| format!(" behind {owner}")).unwrap_or_default()
        ),
        None => format!(
            "{subject}{} {served} for {}: core {} was stuck in the kernel{}",
            queues_of(worst),
            span(worst.lasted_ns()),
            worst.core,
            owner.map(|owner| format!(" ({owner})")).unwrap_or_default()
        ),
    };

    let mut detail = String::new();
    let mut evidence = Vec::new();
    for case in &cases {
        match &case.poller {
            Some(poller) => {
                let still = if poller.still_waiting { " and is still waiting" } else { "" };
                detail.push_str(&format!(
                    "{}, which handles packets of {subject}{}, waited {} for core {}{still}; its longest single wait was at least {}. ",
                    poller.who.name(),
                    queues_of(case),
                    span(poller.waited_ns),
                    case.core,
                    span(poller.longest_ns)
                ));
                if !case.proven {
                    detail.push_str("Whether it had packets to handle is unknown. ");
                }
                evidence.push(victim_fact(poller));
            }
            None => {
                let what = if case.proven {
                    "it handled no packets then, although there was traffic before or after, or the queue raised interrupts"
                } else {
                    "whether it handled packets then is unknown"
                };
                detail.push_str(&format!(
                    "Core {} serves {subject}{} and was full for {}; {what}. ",
                    case.core,
                    queues_of(case),
                    span(case.lasted_ns())
                ));
            }
        }
        match &case.ownership {
            Ownership::Owned(owner) => {
                detail.push_str(&format!(
                    "Meanwhile {} took {} of core {}'s busy time{} ({}). ",
                    owner.described(),
                    percent(owner.share),
                    case.core,
                    owner.who().map_or_else(String::new, |who| format!(" as {}", who.scheduling())),
                    case.busy
                ));
                evidence.push(Fact::new(FactKey::Owner, owner.name(), "/proc/PID/task/TID/schedstat"));
                evidence.push(Fact::new(
                    FactKey::OwnerShare,
                    percent_value(owner.share),
                    "/proc/PID/task/TID/schedstat",
                ));
            }
            Ownership::Shared(why) | Ownership::Unknown(why) => {
                detail.push_str(&format!("No owner of core {} can be named: {why} ({}). ", case.core, case.busy));
            }
        }
        evidence.push(Fact::new(FactKey::Core, case.core, "/proc/stat"));
        if !case.queues.is_empty() {
            evidence.push(Fact::new(FactKey::Queues, case.queues.join(", "), "NIC queue map"));
        }
    }
    detail.push_str("Unserved packets wait in the ring and are dropped once it is full; after some seconds (ENA: 5) the driver resets the device.");

    Finding {
        code: Code::NicCoreStarved,
        ties: Ties {
            queues: match worst.queues.as_slice() {
                [] => vec![worst.nic.clone()],
                queues => queues.iter().map(|q| Queue { queue: Some(q.clone()), ..worst.nic.clone() }).collect(),
            },
            victims: worst.poller.iter().map(|poller| Task::from(&poller.who)).collect(),
            since: worst.poller.as_ref().map(|poller| poller.since),
            until: Some(worst.poller.as_ref().map_or(worst.window.to, |poller| poller.until)),
            ..Ties::of_core(worst.core, worst.window, &worst.ownership)
        },
        // Without proof it is only info; core-saturated warns about the core itself.
        severity: if worst.proven { Severity::Critical } else { Severity::Info },
        remedy: remedy(cores, worst, &subject),
        subject: Subject::new(SubjectKind::Nic, subject),
        title,
        detail,
        evidence,
    }
}

fn remedy(cores: &Cores, case: &Starving, subject: &str) -> String {
    let core = case.core;
    let mut steps = match case.ownership.owner().and_then(|o| o.who()) {
        Some(who) => culprit_steps(cores, core, case.window, who),
        None => vec![format!("See what runs on core {core}: `perf record -C {core} -g -- sleep 5`.")],
    };
    match (&case.poller, case.irq, with_room(cores, core, case.window)) {
        (_, _, None) => steps.push(format!("No other core had room to serve {subject} at that time.")),
        (Some(poller), _, Some(others)) if !poller.who.is_ksoftirqd_of(core) => steps.push(format!(
            "Or move the NAPI thread to another core: {} (the culprit stays).",
            how_to_move(cores.evidence, poller.who.tid, &others)
        )),
        (_, Some(irq), Some(others)) => steps.push(format!(
            "Or move the interrupt of {subject} to another core: `echo {others} > /proc/irq/{irq}/smp_affinity_list` (irqbalance may move it back, and the culprit stays)."
        )),
        _ => {}
    }
    debug_assert!(case.lasted_ns() >= VICTIM_WAITED_NS || case.poller.is_none());
    steps.join(" ")
}

#[cfg(test)]
mod tests;
