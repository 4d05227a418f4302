//! Kernel log lines that mean something.
//!
//! [`patterns`] is one table: what the kernel prints, and the typed event it stands for. Only lines by the kernel itself count:
//! root can write anything into /dev/kmsg. Events of the 24 hours before the end of the window count; an incident prints many
//! lines, so [`incidents`] groups what belongs together.

pub(crate) mod patterns;

pub use patterns::{Family, PATTERNS, Pattern, parse};

use crate::finding::Answer;
use crate::words::{age_words, duration_words};
use coroner_evidence::{Evidence, LogLine, Nic, Order, Time, probe};
use std::collections::BTreeMap;
use std::time::Duration;

/// Older events say nothing about today's jobs.
pub const REMEMBERED: Duration = Duration::from_secs(24 * 3600);

/// Lines about one subject that are closer than this belong to one incident: a hung NIC prints for 5 s (its watchdog) and resets
/// within two, and a stall warning repeats every 20 to 60 s.
pub const ONE_INCIDENT: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    Nic(NicEvent),
    Stall(StallEvent),
    Oom(OomEvent),
    Xid(XidEvent),
    ConntrackFull { netns: Option<String> },
}

/// The device in the prefix of a driver's line: `ena 0000:20:03.0 eth0: …`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Device {
    pub driver: Option<String>,
    pub bus: Option<String>,
    pub interface: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum NicStep {
    /// The driver's poll (NAPI) did not run although it was due.
    PollStarved,
    /// The device did not report packets as sent.
    CompletionsMissing,
    /// The driver tried to wake a silent queue.
    QueueKicked,
    /// The device or its firmware reported an error.
    HealthIssue,
    /// The device stopped sending keep-alives.
    KeepAliveLost,
    /// A queue sent nothing for so long that the kernel's or driver's watchdog fired.
    TxTimeout,
    /// A reset was started.
    Resetting,
    ResetFailed,
    ResetDone,
}

impl NicStep {
    /// Whether the network was down for a moment, as opposed to a sign that it soon might be. A lost keep-alive counts: the driver
    /// resets the device.
    pub fn is_outage(self) -> bool {
        !matches!(
            self,
            NicStep::PollStarved | NicStep::CompletionsMissing | NicStep::QueueKicked | NicStep::HealthIssue
        )
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NicEvent {
    pub device: Device,
    pub step: NicStep,
    pub queue: Option<u32>,
    /// The core whose NAPI poll did not run (ENA ≥ 2.17).
    pub napi_core: Option<u32>,
    /// The core on which the kernel's transmit watchdog happened to run; *not* the starved one (net/sched/sch_generic.c).
    pub watchdog_core: Option<u32>,
    /// How long NAPI had not run.
    pub since_napi: Option<Duration>,
    pub napi_scheduled: Option<bool>,
    /// How long nothing was sent, or no keep-alive came.
    pub silent_for: Option<Duration>,
    /// Lost completions, and how many the driver tolerates.
    pub lost: Option<(u64, u64)>,
    pub status: Option<i64>,
}

impl NicEvent {
    pub(crate) fn new(device: Device, step: NicStep) -> NicEvent {
        NicEvent {
            device,
            step,
            queue: None,
            napi_core: None,
            watchdog_core: None,
            since_napi: None,
            napi_scheduled: None,
            silent_for: None,
            lost: None,
            status: None,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StallEvent {
    SoftLockup {
        core: u32,
        seconds: u64,
        comm: String,
        pid: u32,
    },
    HardLockup {
        core: u32,
    },
    HungTask {
        comm: String,
        pid: u32,
        seconds: u64,
        io: bool,
    },
    Rcu {
        flavour: String,
        core: Option<u32>,
    },
    /// A line after an RCU stall that names a stalled core.
    RcuCore {
        core: u32,
    },
    RcuThreadStarved {
        jiffies: u64,
    },
    WorkqueueHog {
        function: String,
        micros: u64,
        times: u64,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OomEvent {
    /// `Killed process …`; older kernels announce it with a `Kill process …` line of its own.
    Killed { scope: Option<OomScope>, pid: u32, comm: String, anon_rss_kb: Option<u64> },
    /// `oom-kill:constraint=…`, printed just before the kill (≥ 5.0).
    Summary { scope: OomScope, pid: u32, comm: String, limit_of: Option<String>, cgroup: Option<String> },
    /// `Task in … killed as a result of limit of …` (before 5.0).
    LimitOf { cgroup: String, limit_of: String },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OomScope {
    /// A cgroup reached its own limit; the node may have had plenty.
    Cgroup,
    /// The node ran out, or the NUMA nodes that the task may use.
    Node,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct XidEvent {
    /// As the driver prints it, without the function: `0000:17:00`.
    pub bus: String,
    pub xid: u32,
    pub pid: Option<u32>,
    pub process: Option<String>,
    pub message: String,
}

/// An event with its log line.
#[derive(Debug, Clone, PartialEq)]
pub struct LogEvent<'a> {
    pub line: &'a LogLine,
    /// At the end of the window.
    pub age: Duration,
    pub event: Event,
}

impl LogEvent<'_> {
    pub fn age_words(&self) -> String {
        age_words(self.age, Duration::from_nanos(self.line.uncertainty_ns))
    }
}

/// What the kernel log says about one family of events.
#[derive(Debug, Clone)]
pub struct RecentEvents<'a> {
    /// Oldest first.
    pub events: Vec<LogEvent<'a>>,
    /// How many kernel lines were read.
    pub lines: usize,
    /// How far back the log goes, 24 h at most.
    pub reach: Duration,
    /// The log still holds the first line of this boot.
    pub whole_boot: bool,
    /// How to see lines that it no longer holds.
    how_to_see_more: String,
}

impl RecentEvents<'_> {
    /// Whether it covers the last 24 h, or everything since boot.
    pub fn is_whole(&self) -> bool {
        self.whole_boot || self.reach >= REMEMBERED
    }

    /// For *fine* answers: `the kernel log since boot (3 h)`.
    pub fn reach_words(&self) -> String {
        let reach = duration_words(self.reach);
        match (self.reach >= REMEMBERED, self.whole_boot) {
            (true, _) => "the kernel log of the last 24 h".to_owned(),
            (false, true) => format!("the kernel log since boot ({reach})"),
            (false, false) => format!("the last {reach}, all that the kernel log covers (not checked before that)"),
        }
    }

    /// The answer of a rule that nothing but the log can answer, if the log has no line about it. What older, dropped lines said is
    /// unknown, so they rule nothing out. The same words for all rules: they are listed as one.
    pub fn nothing(&self, fine: impl FnOnce(String) -> String) -> Answer {
        if self.is_whole() {
            return Answer::Fine(fine(self.reach_words()));
        }
        Answer::CannotTell {
            because: format!(
                "the kernel log covers only the last {} and has no line about it; earlier lines are missing",
                duration_words(self.reach)
            ),
            how_to_see: self.how_to_see_more.clone(),
        }
    }
}

/// The log could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogUnseen {
    pub because: String,
    pub how_to_see: String,
}

impl LogUnseen {
    /// The answer of a rule that needs 24 h of log and found nothing without it: what happened before watching began is unknown.
    pub fn only_watched(&self, evidence: &Evidence, judged: &str) -> Answer {
        let watched = evidence.window().map(|w| duration_words(w.length())).unwrap_or_else(|| "a moment".to_owned());
        Answer::CannotTell {
            because: format!("watched only {watched}: {judged}; {}", self.because),
            how_to_see: self.how_to_see.clone(),
        }
    }
}

/// The moment from which ages are counted: the end of the window.
pub fn end_of(evidence: &Evidence) -> Option<Time> {
    let watched = evidence.window().map(|w| w.to);
    let clock = || evidence.clocks.iter().map(|c| c.at).max();
    let logged = || evidence.log.iter().map(|l| l.at).max();
    watched.or_else(clock).or_else(logged)
}

/// The events of one family within the last 24 h.
pub fn recent<'a>(evidence: &'a Evidence, family: Family) -> Result<RecentEvents<'a>, LogUnseen> {
    let Some(now) = end_of(evidence).filter(|_| !evidence.log.is_empty()) else {
        return Err(match evidence.why_unseen(probe::KERNEL_LOG) {
            Some(u) => LogUnseen {
                because: format!("the kernel log was not read: {}", u.why),
                how_to_see: u.how_to_see.clone(),
            },
            None => LogUnseen {
                because: "the kernel log was not read".to_owned(),
                how_to_see: "run as root to read /dev/kmsg".to_owned(),
            },
        });
    };
    let mut events = Vec::new();
    let mut lines = 0;
    let mut oldest = now;
    for line in evidence.log.iter().filter(|l| l.is_from_kernel()) {
        lines += 1;
        oldest = oldest.min(line.at);
        let age = now.since(line.at);
        if age > REMEMBERED.saturating_add(Duration::from_nanos(line.uncertainty_ns)) {
            continue;
        }
        if let Some(event) = parse(&line.text, family) {
            events.push(LogEvent { line, age, event });
        }
    }
    events.order_by_key(|e| (e.line.at, e.line.sequence));
    let whole_boot = evidence.log.iter().any(|l| l.sequence == 0);
    let unseen = evidence.why_unseen(probe::KERNEL_LOG);
    let how_to_see_more = unseen.map_or_else(|| "try `journalctl -k`".to_owned(), |unseen| unseen.how_to_see.clone());
    Ok(RecentEvents { events, lines, reach: now.since(oldest).min(REMEMBERED), whole_boot, how_to_see_more })
}

/// Splits the events of one subject, oldest first, wherever nothing happened for [`ONE_INCIDENT`].
pub fn incidents<'e, 'a>(events: &'e [LogEvent<'a>]) -> impl Iterator<Item = &'e [LogEvent<'a>]> {
    events.chunk_by(|a, b| b.line.at.since(a.line.at) < ONE_INCIDENT)
}

/// Groups events by key, sorted by key; events keep their order.
pub fn group_by_key<'a, K: Ord>(
    events: Vec<LogEvent<'a>>,
    key: impl Fn(&LogEvent<'a>) -> K,
) -> BTreeMap<K, Vec<LogEvent<'a>>> {
    let mut groups: BTreeMap<K, Vec<LogEvent<'a>>> = BTreeMap::new();
    for event in events {
        groups.entry(key(&event)).or_default().push(event);
    }
    groups
}

impl Device {
    /// The interface's name, looked up by bus address if the line lacks it, else that address.
    pub fn name(&self, nics: &[Nic]) -> Option<String> {
        if let Some(interface) = &self.interface {
            return Some(interface.clone());
        }
        let bus = self.bus.as_ref()?;
        let known = nics.iter().rev().find(|n| n.netns.is_none() && n.bus.as_ref() == Some(bus));
        Some(known.map_or_else(|| bus.clone(), |n| n.name.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::test_evidence::{self, END};

    const RESET: &str = "ena 0000:20:03.0 eth0: Device reset completed successfully";

    #[test]
    fn the_last_24_hours_count_and_nothing_older() {
        let mut evidence = test_evidence::watched(5);
        evidence.log = vec![
            test_evidence::kernel_line(Duration::from_secs(24 * 3600 + 1), RESET),
            test_evidence::kernel_line(Duration::from_secs(24 * 3600), RESET),
            test_evidence::kernel_line(Duration::from_secs(17 * 60), RESET),
        ];
        let recent = recent(&evidence, Family::Nic).unwrap();
        assert_eq!(recent.events.len(), 2);
        assert_eq!(recent.events[1].age_words(), "17 min ago");
        assert_eq!(recent.lines, 3);
    }

    #[test]
    fn an_uncertain_line_at_the_edge_still_counts() {
        let mut evidence = test_evidence::watched(5);
        let mut line = test_evidence::kernel_line(Duration::from_secs(24 * 3600 + 3), RESET);
        line.uncertainty_ns = 5_000_000_000;
        evidence.log = vec![line];
        assert_eq!(recent(&evidence, Family::Nic).unwrap().events.len(), 1);
    }

    #[test]
    fn lines_from_user_space_do_not_count() {
        let mut evidence = test_evidence::watched(5);
        let mut forged = test_evidence::kernel_line(Duration::from_secs(1), RESET);
        forged.facility = 1;
        evidence.log = vec![forged, test_evidence::kernel_line(Duration::from_secs(1), "usb 1-1: new device")];
        assert!(recent(&evidence, Family::Nic).unwrap().events.is_empty());
    }

    #[test]
    fn a_line_after_the_last_look_is_just_now() {
        let mut evidence = test_evidence::watched(5);
        let mut line = test_evidence::kernel_line(Duration::ZERO, RESET);
        line.at = END + Duration::from_millis(400);
        evidence.log = vec![line];
        assert_eq!(recent(&evidence, Family::Nic).unwrap().events[0].age_words(), "just now");
    }

    #[test]
    fn lines_close_in_time_are_one_incident() {
        let mut evidence = test_evidence::watched(5);
        evidence.log = [600, 595, 590, 400, 395]
            .iter()
            .map(|&s| test_evidence::kernel_line(Duration::from_secs(s), RESET))
            .collect();
        let recent = recent(&evidence, Family::Nic).unwrap();
        let sizes: Vec<usize> = incidents(&recent.events).map(<[_]>::len).collect();
        assert_eq!(sizes, [3, 2]);
    }

    #[test]
    fn an_unseen_log_says_why() {
        let mut evidence = test_evidence::watched(5);
        evidence.unseen(probe::KERNEL_LOG, "the kernel log", "/dev/kmsg: Permission denied", "run as root");
        let unseen = recent(&evidence, Family::Nic).unwrap_err();
        assert!(unseen.because.contains("Permission denied"));
        assert_eq!(unseen.how_to_see, "run as root");
    }

    #[test]
    fn an_answer_says_how_far_the_log_reaches() {
        let mut evidence = test_evidence::watched(5);
        let mut line = test_evidence::kernel_line(Duration::from_secs(3 * 3600), "hello");
        line.sequence = 77;
        evidence.log = vec![line];
        let words = recent(&evidence, Family::Nic).unwrap().reach_words();
        assert_eq!(words, "the last 3 h, all that the kernel log covers (not checked before that)");
        let nothing =
            |evidence: &Evidence| recent(evidence, Family::Nic).unwrap().nothing(|reach| format!("none in {reach}"));
        let (because, how) = test_evidence::cannot_tell(nothing(&evidence));
        assert!(because.contains("covers only the last 3 h"), "{because}");
        assert_eq!(how, "try `journalctl -k`");
        evidence.log[0].sequence = 0;
        assert_eq!(recent(&evidence, Family::Nic).unwrap().reach_words(), "the kernel log since boot (3 h)");
        assert_eq!(test_evidence::fine(nothing(&evidence)), "none in the kernel log since boot (3 h)");
    }
}
