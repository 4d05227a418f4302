//! Did the kernel report that a core or a task stood still?
//!
//! Soft and hard lockups and RCU stalls mean that a core did nothing else for seconds: whatever needs that core (a NIC's
//! interrupts, a job's thread) stood still, too. A hung task waits, usually for storage. A hogged workqueue is only a hint.

use crate::case::Case;
use crate::code::Code;
use crate::finding::{Answer, Fact, FactKey, Finding, Severity, Subject, SubjectKind};
use crate::log_events::{self, Event, Family, LogEvent, StallEvent};
use crate::ties::{Task, Ties, When};
use crate::words::{duration_words, list, plural, times};
use coroner_evidence::Order;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Up to this many cores get a finding each; more at once is one problem of the whole node (a paused virtual machine reports
/// every core).
const CORES_APART: usize = 4;

/// The lines that name the cores of an RCU stall follow within this time.
const SAME_REPORT: Duration = Duration::from_secs(1);

const SOURCE: &str = "kernel log";

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    HardLockup,
    SoftLockup,
    Rcu,
    HungTask,
    Workqueue,
}

pub fn examine(case: &Case<'_>) -> Answer {
    let evidence = case.evidence;
    let log = match log_events::recent(evidence, Family::Stall) {
        Ok(log) => log,
        Err(unseen) => return Answer::CannotTell { because: unseen.because, how_to_see: unseen.how_to_see },
    };
    let nothing = log.nothing(|reach| format!("no lockup, RCU stall or hung task in {reach}"));

    let mut by_kind: BTreeMap<Kind, Vec<(Option<u32>, LogEvent)>> = BTreeMap::new();
    let mut last_rcu: Option<LogEvent> = None;
    for event in log.events {
        let Event::Stall(stall) = &event.event else { continue };
        let (kind, core) = match stall {
            StallEvent::HardLockup { core } => (Kind::HardLockup, Some(*core)),
            StallEvent::SoftLockup { core, .. } => (Kind::SoftLockup, Some(*core)),
            StallEvent::Rcu { core, .. } => {
                last_rcu = Some(event.clone());
                (Kind::Rcu, *core)
            }
            StallEvent::RcuCore { core } => {
                // Only names the core of the stall just reported.
                let of_stall = last_rcu.as_ref().is_some_and(|r| event.line.at.since(r.line.at) <= SAME_REPORT);
                if of_stall
                    && let Some((known, _)) = by_kind.get_mut(&Kind::Rcu).and_then(|v| v.last_mut())
                    && known.is_none()
                {
                    *known = Some(*core);
                }
                continue;
            }
            // Comes with a stall; too weak on its own.
            StallEvent::RcuThreadStarved { .. } => continue,
            StallEvent::HungTask { .. } => (Kind::HungTask, None),
            StallEvent::WorkqueueHog { .. } => (Kind::Workqueue, None),
        };
        by_kind.entry(kind).or_default().push((core, event));
    }

    let mut findings = Vec::new();
    for (kind, events) in by_kind {
        match kind {
            Kind::HungTask => findings.push(hung_tasks(&events)),
            Kind::Workqueue => findings.push(workqueues(&events)),
            Kind::HardLockup | Kind::SoftLockup | Kind::Rcu => findings.extend(stalled_cores(kind, events)),
        }
    }
    if findings.is_empty() { nothing } else { Answer::Findings(findings) }
}

fn stalled_cores(kind: Kind, events: Vec<(Option<u32>, LogEvent)>) -> Vec<Finding> {
    let cores: BTreeSet<u32> = events.iter().filter_map(|(core, _)| *core).collect();
    if cores.is_empty() || cores.len() > CORES_APART {
        return vec![stall(kind, None, &cores, events.into_iter().map(|(_, e)| e).collect())];
    }
    let mut by_core: BTreeMap<u32, Vec<LogEvent>> = BTreeMap::new();
    let mut last = *cores.first().expect("checked above");
    for (core, event) in events {
        // A report without a core belongs to the one before it.
        last = core.unwrap_or(last);
        by_core.entry(last).or_default().push(event);
    }
    by_core.into_iter().map(|(core, events)| stall(kind, Some(core), &cores, events)).collect()
}

fn stall(kind: Kind, core: Option<u32>, cores: &BTreeSet<u32>, events: Vec<LogEvent>) -> Finding {
    let incidents = log_events::incidents(&events).count() as u64;
    let name = match kind {
        Kind::HardLockup => "hard lockup",
        Kind::SoftLockup => "soft lockup",
        _ => "RCU stall",
    };
    let place = match (core, cores.len()) {
        (Some(core), _) => format!("Core {core}"),
        (None, 0) => "A core".to_owned(),
        (None, n) => format!("{n} cores"),
    };
    let mut culprits: Vec<String> = Vec::new();
    let mut longest = 0;
    for event in events.iter().rev() {
        if let Event::Stall(StallEvent::SoftLockup { comm, pid, seconds, .. }) = &event.event {
            longest = longest.max(*seconds);
            let who = format!("{comm}[{pid}]");
            if !culprits.contains(&who) {
                culprits.push(who);
            }
        }
    }
    let when = events.last().map(LogEvent::age_words).unwrap_or_default();
    let by_whom = if culprits.is_empty() { String::new() } else { format!(" in {}", list(&culprits, 3)) };
    let title = match kind {
        Kind::SoftLockup => {
            format!("{place} got stuck in the kernel for {longest} s{by_whom} ({}, last {when})", times(incidents))
        }
        Kind::HardLockup => format!("{place} took no interrupts for 10 s or more ({}, last {when})", times(incidents)),
        _ => format!("{place} stalled RCU for many seconds ({}, last {when})", times(incidents)),
    };
    let detail = match kind {
        Kind::SoftLockup => {
            "Soft lockup: the core ran kernel code without a break, so no other thread could run there: neither jobs nor \
             ksoftirqd, which polls the NIC. The kernel logged the stack below that line."
        }
        Kind::HardLockup => {
            "Hard lockup: the core did not even take interrupts. They were disabled for that long, the hardware failed, or the \
             hypervisor stopped the virtual CPU."
        }
        _ => {
            "RCU stall: a core or task passed no quiescent state for so long (21 s by default) that memory waiting to be freed \
             piled up. Usual causes: a thread that never yields, a real-time thread, or a virtual CPU that did not run."
        }
    };
    let mut facts = vec![
        Fact::new(FactKey::StallsDay, incidents, SOURCE).of(name),
        Fact::new(FactKey::Lines, events.len() as u64, SOURCE),
    ];
    if let Some(core) = core {
        facts.push(Fact::new(FactKey::Core, core, SOURCE));
    } else if !cores.is_empty() {
        let names: Vec<String> = cores.iter().map(u32::to_string).collect();
        facts.push(Fact::new(FactKey::CoreList, list(&names, 16), SOURCE));
    }
    if longest > 0 {
        facts.push(Fact::new(FactKey::Longest, longest, SOURCE));
    }
    facts.extend(first_and_last(&events));
    let remedy = "Read the stack that the kernel logged with it: `journalctl -k | grep -A 30 -E 'soft lockup|hard LOCKUP|rcu.*stall'`. \
                  Its top functions say what the core was doing; `coroner cores` shows whether it still is. If many cores of a virtual \
                  machine were hit at once, ask the provider whether it was paused or migrated."
        .to_owned();
    Finding {
        code: Code::KernelStall,
        ties: Ties {
            cores: core.map_or_else(|| cores.iter().copied().collect(), |core| vec![core]),
            culprits: culprits_of(&events),
            when: log_events::incidents(&events).last().and_then(when_stuck),
            ..Ties::default()
        },
        severity: Severity::Critical,
        subject: match core {
            Some(core) => Subject::new(SubjectKind::Core, core.to_string()),
            None => Subject::new(SubjectKind::Node, format!("{name}s")),
        },
        title,
        detail: detail.to_owned(),
        evidence: facts,
        remedy,
    }
}

/// The watchdog's first line comes when a core has been stuck for as long as it says.
fn when_stuck(incident: &[LogEvent]) -> Option<When> {
    let mut when = When::of_log(incident)?;
    if let Event::Stall(StallEvent::SoftLockup { seconds, .. }) = &incident.first()?.event {
        when.from = when.from - Duration::from_secs(*seconds);
    }
    Some(when)
}

fn culprits_of(events: &[LogEvent]) -> Vec<Task> {
    let of = |event: &LogEvent| match &event.event {
        Event::Stall(StallEvent::SoftLockup { comm, pid, .. }) => {
            Some(Task { tid: *pid, pid: *pid, comm: comm.clone() })
        }
        _ => None,
    };
    events.iter().rev().find_map(of).into_iter().collect()
}

fn hung_tasks(events: &[(Option<u32>, LogEvent)]) -> Finding {
    let events: Vec<LogEvent> = events.iter().map(|(_, e)| e.clone()).collect();
    let mut tasks: BTreeMap<(String, u32), u64> = BTreeMap::new();
    let mut io_known = false;
    for event in &events {
        if let Event::Stall(StallEvent::HungTask { comm, pid, seconds, io }) = &event.event {
            let longest = tasks.entry((comm.clone(), *pid)).or_default();
            *longest = (*longest).max(*seconds);
            io_known |= io;
        }
    }
    let longest = tasks.values().copied().max().unwrap_or(0);
    let hung = tasks.keys().map(|(comm, pid)| Task { comm: comm.clone(), pid: *pid, tid: *pid });
    let hung: Vec<Task> = hung.collect();
    let names: Vec<String> = hung.iter().map(Task::name).collect();
    let when = events.last().map(LogEvent::age_words).unwrap_or_default();
    let io = if io_known { "The kernel reported I/O wait. " } else { "" };
    let single = if names.len() == 1 { names.first() } else { None };
    let subject = match hung.as_slice() {
        [only] => Subject::process(only.clone()),
        _ => Subject::new(SubjectKind::Node, "hung tasks"),
    };
    let mut facts = vec![
        Fact::new(FactKey::HungTasksDay, names.len() as u64, SOURCE),
        Fact::new(FactKey::HungTasks, list(&names, 8), SOURCE),
        Fact::new(FactKey::LongestHang, longest, SOURCE),
    ];
    facts.extend(first_and_last(&events));
    Finding {
        code: Code::KernelStall,
        ties: Ties { when: log_events::incidents(&events).last().and_then(When::of_log), ..Ties::default() },
        severity: Severity::Warning,
        subject,
        title: format!(
            "{} hung for {} or more, last {when}",
            single.cloned().unwrap_or_else(|| plural(names.len() as u64, "task", "tasks")),
            duration_words(Duration::from_secs(longest)),
        ),
        detail: format!(
            "{io}A hung task sleeps in the kernel and cannot be killed: it waits for a disk, a network file system, a GPU driver, or a lock \
             whose owner waits for one of these. By default the kernel stops reporting after 10 of them (hung_task_warnings), so there \
             may be more."
        ),
        evidence: facts,
        remedy: "See what it waits for: `cat /proc/PID/stack` if it still hangs, or the stack below that line in `journalctl -k`. \
                 Check the storage it uses (`dmesg | grep -iE 'nvme|nfs|I/O error|timeout'`)."
            .to_owned(),
    }
}

fn workqueues(events: &[(Option<u32>, LogEvent)]) -> Finding {
    let mut functions: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for (_, event) in events {
        if let Event::Stall(StallEvent::WorkqueueHog { function, micros, times }) = &event.event {
            let (most, longest) = functions.entry(function).or_default();
            // The kernel counts since boot and prints at 4, 8, 16 …
            *most = (*most).max(*times);
            *longest = (*longest).max(*micros);
        }
    }
    let mut ranked: Vec<(&str, (u64, u64))> = functions.into_iter().collect();
    ranked.order_by_key(|(_, (most, _))| std::cmp::Reverse(*most));
    let names: Vec<String> = ranked.iter().map(|(f, (most, _))| format!("{f} ({} times)", most)).collect();
    let longest = ranked.iter().map(|(_, (_, us))| *us).max().unwrap_or(0);
    let last = events.last().map(|(_, e)| e.age_words()).unwrap_or_default();
    let lines: Vec<LogEvent> = events.iter().map(|(_, event)| event.clone()).collect();
    Finding {
        code: Code::KernelStall,
        ties: Ties { when: log_events::incidents(&lines).last().and_then(When::of_log), ..Ties::default() },
        severity: Severity::Info,
        subject: Subject::new(SubjectKind::Node, "kernel workers"),
        title: format!(
            "Kernel workers held a core for more than {} at a stretch, last {last}",
            duration_words(Duration::from_micros(longest))
        ),
        detail: format!(
            "The kernel logged work items that held a core that long: {}. This is only a hint: other threads are delayed by that much.",
            list(&names, 5)
        ),
        evidence: vec![
            Fact::new(FactKey::Functions, list(&names, 8), SOURCE),
            Fact::new(FactKey::NotedFrom, longest, SOURCE),
            Fact::new(FactKey::Lines, events.len() as u64, SOURCE),
        ],
        remedy: "No action needed for this alone. If there is also a finding about a core, these functions may be its cause."
            .to_owned(),
    }
}

fn first_and_last(events: &[LogEvent]) -> Vec<Fact> {
    let (Some(first), Some(last)) = (events.first(), events.last()) else { return Vec::new() };
    vec![
        Fact::new(FactKey::First, first.age_words(), SOURCE),
        Fact::new(FactKey::Last, last.age_words(), SOURCE),
        Fact::new(
            FactKey::Line,
            last.line.text.lines().next().unwrap_or_default().chars().take(300).collect::<String>(),
            SOURCE,
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::test_evidence::{cannot_tell, fact, findings, fine, log, one, watched};
    use coroner_evidence::Evidence;

    fn with(lines: &[(u64, &str)]) -> Evidence {
        Evidence { log: log(lines), ..watched(5) }
    }

    #[test]
    fn a_soft_lockup_names_core_task_and_age() {
        let line = "watchdog: BUG: soft lockup - CPU#39 stuck for 22s! [kubelet:4711]";
        let longer = "watchdog: BUG: soft lockup - CPU#39 stuck for 45s! [kubelet:4711]";
        let f = one(examine(&Case::of(&with(&[(3600, line), (3577, longer)]))));
        assert_eq!(f.severity, Severity::Critical);
        assert_eq!(f.subject, Subject::new(SubjectKind::Core, "39"));
        assert_eq!(f.title, "Core 39 got stuck in the kernel for 45 s in kubelet[4711] (once, last 60 min ago)");
        assert_eq!(fact(&f, FactKey::Lines), 2);
        // It was already stuck for 22 s when the first line came, 23 s before the second.
        let when = f.ties.when.unwrap();
        assert_eq!(when.to.since(when.from), Duration::from_secs(22 + 23));
    }

    #[test]
    fn a_node_whose_cores_all_stood_still_gets_one_finding() {
        let lines: Vec<String> =
            (0..37).map(|c| format!("watchdog: BUG: soft lockup - CPU#{c} stuck for 22s! [swapper/{c}:0]")).collect();
        let pairs: Vec<(u64, &str)> = lines.iter().map(|l| (600, l.as_str())).collect();
        let f = one(examine(&Case::of(&with(&pairs))));
        assert_eq!(f.subject.kind, SubjectKind::Node);
        assert!(f.title.starts_with("37 cores"), "{}", f.title);
    }

    #[test]
    fn up_to_four_cores_get_a_finding_each() {
        let lines: Vec<String> =
            (0..4).map(|c| format!("NMI watchdog: Watchdog detected hard LOCKUP on cpu {c}")).collect();
        let pairs: Vec<(u64, &str)> = lines.iter().map(|l| (600, l.as_str())).collect();
        assert_eq!(findings(examine(&Case::of(&with(&pairs)))).len(), 4);
    }

    #[test]
    fn an_rcu_stall_gets_its_core_from_the_next_line() {
        let f = one(examine(&Case::of(&with(&[
            (50, "rcu: INFO: rcu_sched self-detected stall on CPU"),
            (50, "rcu: \t3-....: (20998 ticks this GP) idle=d5e/1/0x4000000000000000 softirq=1/1 fqs=5249"),
        ]))));
        assert_eq!(f.subject, Subject::new(SubjectKind::Core, "3"));
        assert_eq!(f.severity, Severity::Critical);
    }

    #[test]
    fn a_core_line_far_from_a_stall_says_nothing() {
        let text = fine(examine(&Case::of(&with(&[(50, "rcu: \t3-....: (20998 ticks this GP) idle=d5e")]))));
        assert!(text.contains("no lockup"));
    }

    #[test]
    fn hung_tasks_are_one_warning() {
        let f = one(examine(&Case::of(&with(&[
            (500, "INFO: task jbd2/vda1-8:321 blocked for more than 120 seconds."),
            (380, "INFO: task jbd2/vda1-8:321 blocked for more than 241 seconds."),
            (380, "INFO: task dd:456 blocked in I/O wait for more than 122 seconds."),
        ]))));
        assert_eq!(f.severity, Severity::Warning);
        assert_eq!(f.title, "2 tasks hung for 4 min or more, last 6 min ago");
        assert!(f.detail.contains("reported I/O wait"));
        let single = one(examine(&Case::of(&with(&[(500, "INFO: task dd:456 blocked for more than 120 seconds.")]))));
        assert_eq!(single.subject, Subject::process(Task { comm: "dd".into(), pid: 456, tid: 456 }));
    }

    #[test]
    fn a_hogged_workqueue_is_only_worth_knowing() {
        let line = "workqueue: drain_vmap_area_work hogged CPU for >10000us 8 times, consider switching to WQ_UNBOUND";
        let f = one(examine(&Case::of(&with(&[(500, line)]))));
        assert_eq!(f.severity, Severity::Info);
        assert!(f.detail.contains("drain_vmap_area_work (8 times)"));
    }

    #[test]
    fn yesterdays_lockup_does_not_count_and_an_unread_log_is_unknown() {
        let line = "watchdog: BUG: soft lockup - CPU#39 stuck for 22s! [kubelet:4711]";
        assert!(fine(examine(&Case::of(&with(&[(86_500, line)])))).contains("last 24 h"));
        assert!(cannot_tell(examine(&Case::of(&watched(5)))).0.contains("kernel log"));
    }
}
