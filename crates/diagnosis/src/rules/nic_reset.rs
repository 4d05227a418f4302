//! Did a network device hang or reset itself?
//!
//! A reset stalls every connection for seconds: jobs see timeouts and lost peers, not the reset. The driver logs it in the kernel
//! log and counts it. Signs of a coming reset alone are a warning.

use crate::case::Case;
use crate::code::Code;
use crate::finding::{Answer, Fact, FactKey, Finding, Severity, Subject, SubjectKind};
use crate::log_events::{self, Event, Family, LogEvent, NicEvent, NicStep};
use crate::ties::{self, Queue, Ties, When};
use crate::words::{self, duration_words, plural, times};
use coroner_evidence::{Evidence, Nic, QueueKind, Source, probe};
use std::collections::BTreeMap;
use std::time::Duration;

/// Driver counters that mean an outage, in words. ENA's out-of-tree driver counts each reset by its reason (ena_ethtool.c,
/// ena_stats_global_strings); gve, ixgbe, vmxnet3 and virtio use other names.
const OUTAGE_COUNTERS: &[(&str, &str)] = &[
    ("total_resets", "resets"),
    ("reset_cnt", "resets"),
    ("reset_fail", "resets that failed"),
    ("tx_timeout", "transmit timeouts"),
    ("tx_timeouts", "transmit timeouts"),
    ("tx_timeout_count", "transmit timeouts"),
    ("tx timeout count", "transmit timeouts"),
    ("wd_expired", "keep-alives from the device that did not arrive"),
    ("suspected_poll_starvation", "resets because the driver's poll did not run: its core was taken"),
    ("missing_tx_cmpl", "resets because TX completions did not arrive"),
    ("missing_intr", "resets because an interrupt did not arrive"),
    ("missing_first_intr", "resets because the first interrupt did not arrive"),
    ("missing_admin_interrupt", "resets because the device's admin interrupt did not arrive"),
    ("os_netdev_wd", "resets because the kernel's transmit watchdog fired"),
    ("admin_to", "resets because the device did not answer an admin command"),
    ("device_request_reset", "resets requested by the device"),
];

/// Of these, the counters that include every reset, whatever its reason: if they are zero, there was none.
const ALL_RESETS: &[&str] = &["total_resets", "reset_cnt"];

/// Counts packets with a late TX completion; the driver resets the device after some of them (128 on ENA).
const PRECURSOR_SUFFIX: &str = "_missed_tx";

/// How often the transmit watchdogs of the kernel and of ENA check (dev->watchdog_timeo, 5 s unless the driver sets it).
const WATCHDOG_PERIOD: Duration = Duration::from_secs(5);

const SOURCE_LOG: &str = "kernel log";

struct CounterMove {
    name: String,
    meaning: &'static str,
    by: u64,
    outage: bool,
    source: String,
}

#[derive(Default)]
struct Trouble<'a> {
    events: Vec<LogEvent<'a>>,
    moves: Vec<CounterMove>,
}

pub fn examine(case: &Case<'_>) -> Answer {
    let evidence = case.evidence;
    let log = log_events::recent(evidence, Family::Nic);
    let devices_counted = devices_with_counters(evidence);
    if let Err(unseen) = &log
        && devices_counted.is_empty()
    {
        let nics = evidence.why_unseen(probe::NICS);
        let counters = nics.map_or("no driver counters were read", |u| u.why.as_str());
        return Answer::CannotTell {
            because: format!("{}; and {counters}", unseen.because),
            how_to_see: nics.map_or_else(
                || unseen.how_to_see.clone(),
                |nics| format!("{}; for the counters: {}", unseen.how_to_see, nics.how_to_see),
            ),
        };
    }

    let mut by_device: BTreeMap<String, Trouble> = BTreeMap::new();
    let events = log.as_ref().map(|l| l.events.clone()).unwrap_or_default();
    let interfaces = interfaces_of(&events);
    for (event, interface) in events.into_iter().zip(interfaces) {
        let Event::Nic(nic) = &event.event else { continue };
        let name = interface.or_else(|| nic.device.name(&evidence.nics)).unwrap_or_else(|| "unknown device".to_owned());
        by_device.entry(name).or_default().events.push(event);
    }
    for device in &devices_counted {
        let moves = counter_moves(evidence, device);
        if !moves.is_empty() {
            by_device.entry((*device).to_owned()).or_default().moves = moves;
        }
    }
    let findings: Vec<Finding> =
        by_device.into_iter().filter_map(|(device, trouble)| finding(evidence, &device, &trouble)).collect();
    if !findings.is_empty() {
        return Answer::Findings(findings);
    }
    let counters = match devices_counted.len() as u64 {
        0 => "driver counters were not read".to_owned(),
        n => {
            let earlier = earlier_outages(evidence, &devices_counted);
            format!("the reset counters of {} did not rise{earlier}", plural(n, "device", "devices"))
        }
    };
    match log {
        Ok(_) if never_reset(evidence) => Answer::Fine("no driver has counted a reset since it was loaded".to_owned()),
        Ok(log) => log.nothing(|reach| format!("no reset or transmit timeout in {reach}; {counters}")),
        Err(unseen) if never_reset(evidence) => {
            Answer::Fine(format!("no driver has counted a reset since it was loaded; {}", unseen.because))
        }
        Err(unseen) => unseen.only_watched(evidence, &counters),
    }
}

/// The interface of each line. Drivers print some lines with its name and some with the bus address only: those belong to the interface last
/// seen at that address, else to the next one.
fn interfaces_of(events: &[LogEvent<'_>]) -> Vec<Option<String>> {
    let named = |event: &LogEvent| {
        let nic = nic_of(event)?;
        Some((nic.device.bus.clone()?, nic.device.interface.clone()?))
    };
    let mut at_bus: BTreeMap<String, String> = BTreeMap::new();
    for (bus, interface) in events.iter().filter_map(named) {
        at_bus.entry(bus).or_insert(interface);
    }
    let mut interfaces = Vec::new();
    for event in events {
        if let Some((bus, interface)) = named(event) {
            at_bus.insert(bus, interface);
        }
        let device = nic_of(event).map(|nic| &nic.device);
        let own = device.and_then(|device| device.interface.clone());
        interfaces.push(own.or_else(|| at_bus.get(device?.bus.as_ref()?).cloned()));
    }
    interfaces
}

/// Whether every hardware device counts all its resets, and none has had one.
fn never_reset(evidence: &Evidence) -> bool {
    let count_of = |nic: &Nic| {
        let counts = ALL_RESETS.iter().map(|name| evidence.counters.last(Source::Ethtool, &nic.display_name(), name));
        counts.flatten().max()
    };
    let mut hardware = evidence.nics.iter().filter(|nic| nic.bus.is_some()).peekable();
    hardware.peek().is_some() && hardware.all(|nic| count_of(nic) == Some(0)) && {
        let devices = devices_with_counters(evidence);
        earlier_outages(evidence, &devices).is_empty()
    }
}

fn devices_with_counters(evidence: &Evidence) -> Vec<&str> {
    let mut devices = evidence.counters.subjects(Source::Ethtool);
    devices.extend(evidence.counters.subjects(Source::TxTimeout));
    devices.sort_unstable();
    devices.dedup();
    devices
}

fn counter_moves(evidence: &Evidence, device: &str) -> Vec<CounterMove> {
    let counters = &evidence.counters;
    let mut moves = Vec::new();
    for name in counters.names(Source::Ethtool, device) {
        let plain = name.trim();
        let meaning = match OUTAGE_COUNTERS.iter().find(|(n, _)| *n == plain) {
            Some((_, meaning)) => Some((*meaning, true)),
            // virtio: tx0_tx_timeouts, tx_queue_0_tx_timeouts
            None if plain.ends_with("_tx_timeouts") => Some(("transmit timeouts", true)),
            None if plain.ends_with(PRECURSOR_SUFFIX) => Some(("packets with a late TX completion", false)),
            None => None,
        };
        let by = counters.moved(Source::Ethtool, device, name).unwrap_or(0);
        if let Some((meaning, outage)) = meaning
            && by > 0
        {
            let source = format!("ethtool -S {device}");
            moves.push(CounterMove { name: plain.to_owned(), meaning, by, outage, source });
        }
    }
    for name in counters.names(Source::TxTimeout, device) {
        let by = counters.moved(Source::TxTimeout, device, name).unwrap_or(0);
        if by > 0 {
            let source = format!("/sys/class/net/{device}/queues/{name}/tx_timeout");
            moves.push(CounterMove { name: name.to_owned(), meaning: "transmit timeouts", by, outage: true, source });
        }
    }
    moves
}

/// What drivers counted before we watched. They do not say when, and the log may not reach back that far.
fn earlier_outages(evidence: &Evidence, devices: &[&str]) -> String {
    let mut counts = Vec::new();
    for device in devices {
        for name in evidence.counters.names(Source::Ethtool, device) {
            let total = evidence.counters.last(Source::Ethtool, device, name).unwrap_or(0);
            if total > 0 && OUTAGE_COUNTERS.iter().any(|(n, _)| *n == name.trim()) {
                counts.push(format!("{device} {} {}", name.trim(), words::count(total)));
            }
        }
    }
    if counts.is_empty() {
        String::new()
    } else {
        format!(" (earlier, since the driver was loaded: {})", words::list(&counts, 4))
    }
}

fn finding(evidence: &Evidence, device: &str, trouble: &Trouble) -> Option<Finding> {
    let Trouble { events, moves } = trouble;
    let outages = count_outages(events);
    let counted_now = moves.iter().any(|m| m.outage);
    let outage = outages > 0 || counted_now;
    let nic_events = || events.iter().filter_map(nic_of);
    let poll_starved = nic_events().any(|e| e.step == NicStep::PollStarved)
        || moves.iter().any(|m| m.name == "suspected_poll_starvation");
    // Of the newest reset: an older one may have waited longer.
    let unpolled = nic_events().rev().find(|e| e.since_napi.is_some());
    let since_napi = unpolled.and_then(|e| e.since_napi);
    let not_polled = match unpolled.map(|e| (e.queue, e.since_napi.unwrap_or_default())) {
        Some((Some(queue), d)) => format!("TX queue {queue} had not been polled for {}", duration_words(d)),
        Some((None, d)) => format!("it had not been polled for {}", duration_words(d)),
        None => "its poll did not run".to_owned(),
    };
    let queue = nic_events().rev().find_map(|e| e.queue).or_else(|| {
        let moved = moves.iter().find_map(|m| m.name.strip_prefix("tx-"));
        moved.and_then(|n| n.parse().ok())
    });
    let core = core_of(evidence, device, queue, nic_events());

    let when = match events.last() {
        Some(last) if outages == 1 => format!(" {}", last.age_words()),
        Some(last) => format!(", last {}", last.age_words()),
        None => " while we watched".to_owned(),
    };
    let how_often = if outages > 1 { format!(" {}", times(outages)) } else { String::new() };
    let why = if poll_starved { format!(": {not_polled}") } else { String::new() };
    let title = if outage {
        format!("{device} was reset or hung{how_often}{when}{why}")
    } else {
        format!("{device} is at risk of a reset: {}{when}", precursor_words(events, moves, &not_polled))
    };

    let mut detail = String::new();
    if outage {
        detail.push_str(
            "While a network device resets, every connection over it stalls for seconds and packets are lost. ",
        );
    }
    let mut explained: Vec<NicStep> = nic_events().map(|e| e.step).collect();
    explained.sort_unstable();
    explained.dedup();
    for step in explained {
        detail.push_str(step_words(step));
    }
    if let Some((core, how)) = &core {
        detail.push_str(&format!("{} is served by core {core} ({how}). ", queue_words(device, queue)));
    }
    for m in moves {
        detail.push_str(&format!("{} rose by {} while we watched: {}. ", m.name, words::count(m.by), m.meaning));
    }

    let mut facts = Vec::new();
    if let (Some(first), Some(last)) = (events.first(), events.last()) {
        let incidents = log_events::incidents(events).count();
        facts.push(Fact::new(FactKey::IncidentsDay, incidents as u64, SOURCE_LOG));
        facts.push(Fact::new(FactKey::Lines, events.len() as u64, SOURCE_LOG));
        facts.push(Fact::new(FactKey::First, first.age_words(), SOURCE_LOG));
        facts.push(Fact::new(FactKey::Last, last.age_words(), SOURCE_LOG));
        let telling = events.iter().rev().find(|e| nic_of(e).is_some_and(|n| n.queue.is_some())).unwrap_or(last);
        facts.push(Fact::new(FactKey::Line, first_line(&telling.line.text), SOURCE_LOG));
    }
    if let Some(queue) = queue {
        facts.push(Fact::new(FactKey::Queue, queue, if events.is_empty() { "driver counters" } else { SOURCE_LOG }));
    }
    if let Some((core, how)) = &core {
        facts.push(Fact::new(FactKey::ServingCore, *core, how.clone()));
    }
    if let Some(d) = since_napi {
        facts.push(Fact::new(FactKey::SinceNapi, millis(d), SOURCE_LOG));
    }
    if let Some(d) = nic_events().rev().find_map(|e| e.silent_for) {
        facts.push(Fact::new(FactKey::Silence, millis(d), SOURCE_LOG));
    }
    for m in moves {
        facts.push(Fact::new(FactKey::CounterRose, m.by, m.source.clone()).of(&m.name));
    }

    let poll_related = poll_starved || nic_events().any(|e| e.step == NicStep::TxTimeout);
    let remedy = match (&core, poll_related) {
        (Some((core, _)), true) => format!(
            "Find what keeps core {core} from polling {device}: `coroner cores` shows its owner, and the findings core-saturated, \
             core-monopolised and nic-core-starved name it if it happens while coroner watches. Until it is gone, move the queue's interrupt to \
             a quiet core (`grep {device} /proc/interrupts`, then /proc/irq/N/smp_affinity_list)."
        ),
        (None, true) => format!(
            "Find which core serves the queue (`grep {device} /proc/interrupts`) and what kept it busy (`coroner cores`). The findings \
             core-saturated, core-monopolised and nic-core-starved name it if it happens while coroner watches."
        ),
        (_, false) => format!(
            "Nothing points to a starved core, so check the device first: driver and firmware (`ethtool -i {device}`), and the provider's health \
             events for this machine. Replace the node if it happens again."
        ),
    };
    Some(Finding {
        code: Code::NicReset,
        ties: Ties {
            cores: core.iter().map(|(core, _)| *core).collect(),
            queues: vec![Queue {
                queue: queue.map(|n| format!("tx-{n}")),
                ..ties::device_named(&evidence.nics, device)
            }],
            when: newest_reset(events)
                .and_then(When::of_log)
                .or_else(|| evidence.window().filter(|_| counted_now).map(When::from)),
            // Drivers count without saying when: it was within the window.
            until: evidence.window().filter(|_| counted_now).map(|window| window.to),
            ..Ties::default()
        },
        severity: if outage { Severity::Critical } else { Severity::Warning },
        subject: Subject::new(SubjectKind::Nic, device),
        title,
        detail: detail.trim_end().to_owned(),
        evidence: facts,
        remedy,
    })
}

/// The newest reset, from the first line about it: an earlier one has nothing to do with what runs now.
fn newest_reset<'e, 'a>(events: &'e [LogEvent<'a>]) -> Option<&'e [LogEvent<'a>]> {
    let incident = log_events::incidents(events).last()?;
    let is_end = |event: &LogEvent| {
        nic_of(event).is_some_and(|nic| matches!(nic.step, NicStep::ResetDone | NicStep::ResetFailed))
    };
    // A driver that does not say when it is done complains again at each watchdog check.
    let begins_anew = |before: &LogEvent, after: &LogEvent| {
        is_end(before) && !is_end(after) || after.line.at.since(before.line.at) >= WATCHDOG_PERIOD
    };
    incident.chunk_by(|before, after| !begins_anew(before, after)).last()
}

fn nic_of<'e>(event: &'e LogEvent) -> Option<&'e NicEvent> {
    match &event.event {
        Event::Nic(nic) => Some(nic),
        _ => None,
    }
}

/// Completed or failed resets, at least one per incident with an outage: drivers print several lines for each.
fn count_outages(events: &[LogEvent]) -> u64 {
    log_events::incidents(events)
        .map(|incident| {
            let steps = || incident.iter().filter_map(nic_of).map(|n| n.step);
            let ended = steps().filter(|s| matches!(s, NicStep::ResetDone | NicStep::ResetFailed)).count() as u64;
            ended.max(u64::from(steps().any(NicStep::is_outage)))
        })
        .sum()
}

/// The core that serves the queue, and how we know.
fn core_of<'e>(
    evidence: &Evidence,
    device: &str,
    queue: Option<u32>,
    events: impl DoubleEndedIterator<Item = &'e NicEvent>,
) -> Option<(u32, String)> {
    if let Some(core) = events.rev().find_map(|e| e.napi_core) {
        return Some((core, "the driver named it in the kernel log".to_owned()));
    }
    let queue = queue?;
    let nic: &Nic = evidence.nics.iter().rev().find(|n| n.netns.is_none() && n.name == device)?;
    let tx_or_both = |k: QueueKind| k != QueueKind::Rx;
    let served = nic.queues.iter().find(|q| q.index == queue && tx_or_both(q.kind) && q.cores().is_some())?;
    Some((served.cores()?.single()?, "from the current queue-to-core map".to_owned()))
}

fn queue_words(device: &str, queue: Option<u32>) -> String {
    match queue {
        Some(queue) => format!("TX queue {queue} of {device}"),
        None => device.to_owned(),
    }
}

fn precursor_words(events: &[LogEvent], moves: &[CounterMove], not_polled: &str) -> String {
    let steps: Vec<NicStep> = events.iter().filter_map(nic_of).map(|e| e.step).collect();
    if steps.contains(&NicStep::PollStarved) {
        not_polled.to_owned()
    } else if steps.contains(&NicStep::CompletionsMissing) || !moves.is_empty() {
        "TX completions were late".to_owned()
    } else if steps.contains(&NicStep::QueueKicked) {
        "the driver had to wake a stalled queue".to_owned()
    } else {
        "the device reported an error".to_owned()
    }
}

fn step_words(step: NicStep) -> &'static str {
    match step {
        NicStep::PollStarved => "The driver's poll (NAPI) was due but did not run: something else had its core. ",
        NicStep::CompletionsMissing => "The device did not report packets as sent in time (late TX completions). ",
        NicStep::QueueKicked => "The driver woke a stalled queue. ",
        NicStep::HealthIssue => "The device or its firmware reported an error. ",
        NicStep::KeepAliveLost => {
            "The keep-alive that the device sends every second did not arrive, or nobody got to read it. "
        }
        NicStep::TxTimeout => "A transmit queue sent nothing for so long (5 s by default) that the watchdog fired. ",
        NicStep::Resetting => "",
        NicStep::ResetFailed => "A reset failed: the device may stay down until the node reboots. ",
        NicStep::ResetDone => "",
    }
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().chars().take(300).collect()
}

fn millis(d: Duration) -> u64 {
    u64::try_from(d.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
