//! Is somebody stuck in uninterruptible sleep (state D), and on what?
//!
//! Storage makes threads sleep like this for milliseconds all the time. A single sleep of a second is felt: a device that does not answer, a
//! frozen file system, a file server that is gone, a lock whose holder is stuck.

use crate::case::Case;
use crate::code::Code;
use crate::cores::words::{listed, span};
use crate::finding::{Answer, Fact, FactKey, Finding, Severity, Subject};
use crate::ties::{Task, Ties, When};
use crate::waits::blocks::{Blocked, Needs, blocked};
use crate::waits::cited::no_ledger;
use coroner_evidence::Window;
use std::collections::BTreeMap;
use std::time::Duration;

/// A disk answers within this, unless something is wrong; the kernel itself complains after 120 s.
const LONG_NS: u64 = 1_000_000_000;
const NAMED: usize = 3;

pub fn examine(case: &Case<'_>) -> Answer {
    let ledgers = &case.evidence.waits;
    if ledgers.is_empty() {
        return no_ledger(case);
    }
    let mut all = blocked(ledgers);
    // What holds up coroner itself is no harm to the node.
    all.retain(|one| !one.party.pid.is_some_and(|pid| case.is_observer(pid)));
    let mut by_need: BTreeMap<(Needs, Option<&str>), Vec<&Blocked<'_>>> = BTreeMap::new();
    for one in
        all.iter().filter(|one| one.sleeps.longest_ns >= LONG_NS && one.needs != Needs::OnPurpose && !one.party.kernel)
    {
        by_need.entry((one.needs, one.last.on.as_deref())).or_default().push(one);
    }
    Answer::from_findings(by_need.values().filter_map(|some| finding(some)).collect(), || match all.first() {
        Some(longest) => format!(
            "the longest uninterruptible sleep was {} ({}); a second would be long",
            span(longest.sleeps.longest_ns),
            task(longest).name()
        ),
        None => "no thread was in uninterruptible sleep for a millisecond or longer".to_owned(),
    })
}

fn task(one: &Blocked<'_>) -> Task {
    let pid = one.party.pid.or(one.party.parent_pid).unwrap_or(0);
    Task { comm: one.party.comm.clone(), pid, tid: one.tid.unwrap_or(pid) }
}

fn finding(some: &[&Blocked<'_>]) -> Option<Finding> {
    let worst = some.first()?;
    let on = match (&worst.last.on, worst.needs) {
        (Some(on), Needs::FrozenFileSystem) => format!("the frozen file system of {on}"),
        (Some(on), _) => on.clone(),
        (None, Needs::Storage) => "storage".to_owned(),
        (None, Needs::FrozenFileSystem) => "a frozen file system".to_owned(),
        (None, Needs::Network) => "a file server".to_owned(),
        (None, Needs::Memory) => "free memory".to_owned(),
        (None, Needs::Lock) => "a lock in the kernel".to_owned(),
        (None, _) => "something in the kernel".to_owned(),
    };
    let names: Vec<String> =
        some.iter().map(|one| format!("{} {}", task(one).name(), span(one.sleeps.longest_ns))).collect();
    let function = worst.last.stack.first();
    let goes_on = some.iter().any(|one| one.goes_on);
    let mut evidence: Vec<Fact> = some
        .iter()
        .take(NAMED)
        .map(|one| {
            Fact::new(FactKey::BlockedFor, one.sleeps.longest_ns / 1_000_000, "wait ledger").of(task(one).name())
        })
        .collect();
    if let Some(function) = function {
        evidence.push(Fact::new(FactKey::BlockedIn, function.as_str(), "wait ledger").of(task(worst).name()));
    }
    if let Some(on) = &worst.last.on {
        evidence.push(Fact::new(FactKey::BlockedOn, on.as_str(), "wait ledger").of(task(worst).name()));
    }
    let verb = if some.len() == 1 { ("was", ", and still is") } else { ("were", ", and still are") };
    let others = match some.len() {
        1 => task(worst).name(),
        n => format!("{} and {} more", task(worst).name(), n - 1),
    };
    let window =
        Window { from: some.iter().map(|one| one.sleeps.from).min()?, to: some.iter().map(|one| one.sleeps.to).max()? };
    let stack = match worst.last.stack.is_empty() {
        true => " Its kernel stack could not be read.".to_owned(),
        false => format!(" Kernel stack, innermost first: {}.", worst.last.stack.join(", ")),
    };
    let waker = match &worst.last.waker_comm {
        Some(waker) if !goes_on => format!(" {waker} ended it."),
        _ => String::new(),
    };
    Some(Finding {
        code: Code::Blocked,
        severity: Severity::Warning,
        subject: Subject::process(task(worst)),
        title: format!(
            "{others} {} blocked on {on} for {}{}",
            verb.0,
            span(worst.sleeps.longest_ns),
            if goes_on { verb.1 } else { "" }
        ),
        detail: format!(
            "In uninterruptible sleep (state D), longest single sleep: {}.{stack}{waker}",
            listed(&names, NAMED)
        ),
        evidence,
        remedy: remedy(worst).to_owned(),
        ties: Ties {
            victims: some.iter().map(|one| task(one)).collect(),
            when: Some(When { from: window.from, to: window.to, uncertainty: Duration::ZERO }),
            since: Some(window.from),
            until: (!goes_on).then_some(window.to),
            ..Ties::default()
        },
    })
}

fn remedy(worst: &Blocked<'_>) -> &'static str {
    match worst.needs {
        Needs::FrozenFileSystem => {
            "Thaw the file system, if no snapshot or backup is using it: `fsfreeze --unfreeze MOUNTPOINT`. Find who froze it: backup, snapshot or storage agents."
        }
        Needs::Storage => {
            "Look at the device: `dmesg | grep -iE 'error|timeout|reset'`, `iostat -x 1` (await, %util), its throttling limits (cloud volume, io.max)."
        }
        Needs::Network => "Check that the file server answers (`mount`, `nfsstat -m`), and the network to it.",
        Needs::Memory => "Free memory: see memory-reclaim for who holds it.",
        Needs::Lock => {
            "Find the holder: `echo w > /proc/sysrq-trigger` writes the stacks of all blocked tasks into the kernel log."
        }
        Needs::OnPurpose | Needs::Unknown => {
            "See where it is stuck: `cat /proc/PID/stack`, and `echo w > /proc/sysrq-trigger` for all blocked tasks."
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::test_evidence::{cannot_tell, fact, fine, one};
    use crate::waits::test_ledger::Book;
    use coroner_evidence::{Evidence, Observer};

    fn writer(ms: u64, stack: &[&str], goes_on: bool) -> Evidence {
        let mut book = Book::new(2, 5);
        let writer = book.process(100, "writer");
        book.each_second(&writer, 1, 0).block(&writer, ms, stack, goes_on);
        book.evidence(0.1)
    }

    #[test]
    fn a_writer_on_a_frozen_file_system_is_named() {
        let f = one(examine(&Case::of(&writer(1000, &["percpu_rwsem_wait", "vfs_write"], true))));
        assert_eq!(f.title, "writer[100] was blocked on a frozen file system for 5.0 s, and still is");
        assert_eq!(fact(&f, FactKey::BlockedFor), 5000);
        assert_eq!(fact(&f, FactKey::BlockedIn), "percpu_rwsem_wait");
        assert!(f.remedy.contains("fsfreeze --unfreeze"), "{}", f.remedy);
        assert_eq!((f.ties.until, f.ties.victims[0].pid), (None, 100));
    }

    #[test]
    fn a_busy_disk_is_no_trouble() {
        // Nearly always blocked, but never for long: a healthy job that reads a lot.
        let why = fine(examine(&Case::of(&writer(950, &["io_schedule"], false))));
        assert_eq!(why, "the longest uninterruptible sleep was 950 ms (writer[100]); a second would be long");
    }

    #[test]
    fn coroner_itself_is_no_victim() {
        let mut evidence = writer(1000, &["__wait_rcu_gp"], true);
        one(examine(&Case::of(&evidence)));
        evidence.observers = vec![Observer { pid: 100, ..Observer::default() }];
        fine(examine(&Case::of(&evidence)));
    }

    #[test]
    fn a_parent_that_waits_for_exec_is_not_stuck() {
        fine(examine(&Case::of(&writer(1000, &["wait_for_vfork_done"], true))));
        cannot_tell(examine(&Case::of(&Evidence::default())));
    }
}
