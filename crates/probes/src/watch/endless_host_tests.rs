//! An endless watch on this machine.

use super::*;
use coroner_evidence::Source;
use std::time::Instant;

/// Checks for everything that a reader of one segment needs.
fn is_whole(evidence: &Evidence) -> Result<(), &'static str> {
    let own = std::process::id();
    let has = |source| !evidence.counters.subjects(source).is_empty();
    let parts = [
        (evidence.node.is_some(), "node"),
        (!evidence.clocks.is_empty(), "clocks"),
        (!evidence.core_times.is_empty(), "cores"),
        (evidence.processes.iter().any(|p| p.pid == own), "processes"),
        (evidence.processes.iter().any(|p| p.kernel), "kernel threads"),
        (evidence.threads.iter().any(|t| t.comm.starts_with("ksoftirqd/")), "threads"),
        (evidence.threads.iter().all(|t| evidence.thread_samples.iter().any(|s| s.key == t.key)), "thread samples"),
        (has(Source::Softnet), "softnet"),
        (has(Source::Softirqs), "softirqs"),
        (evidence.counters.last(Source::Meminfo, "", "MemTotal").is_some(), "memory"),
        (!evidence.cgroup_mounts.is_empty(), "cgroup mounts"),
        (!evidence.cgroup_censuses.is_empty(), "census"),
        (!evidence.nics.is_empty() || evidence.why_unseen("nics").is_some(), "network devices"),
        (!evidence.zombie_scans.is_empty(), "dead cgroups"),
        (!evidence.units.is_empty() || evidence.why_unseen("units").is_some(), "units"),
    ];
    parts.into_iter().find(|(there, _)| !there).map_or(Ok(()), |(_, what)| Err(what))
}

/// Collects turns until all is there.
fn tell(watch: &mut Watch) -> Evidence {
    let began = Instant::now();
    let mut evidence = watch.next_turn().expect("endless");
    loop {
        evidence.append(watch.next_turn().expect("endless"));
        match is_whole(&evidence) {
            Ok(()) => return evidence,
            Err(what) => {
                assert!(began.elapsed() < Duration::from_secs(60), "{what} is not reported: {:?}", evidence.unseen)
            }
        }
    }
}

#[test]
fn each_segment_is_complete_in_itself() {
    let Some(_lock) = coroner_lab::HostLock::take_as_root() else { return };
    let options = WatchOptions { kernel_work: false, ..WatchOptions::default() };
    let mut watch = Watch::start_endless(Root::live(), options);
    let first = tell(&mut watch);
    let threads = first.threads.len();
    let quiet = watch.next_turn().unwrap();
    assert!(quiet.threads.len() < threads / 2, "{} of {threads} threads reported again", quiet.threads.len());
    for _ in 0..2 {
        watch.tell_anew();
        let next = watch.next_turn().unwrap();
        assert!(next.threads.len() * 10 > threads * 9, "only {} of {threads} threads at once", next.threads.len());
        assert!(next.counters.last(Source::Meminfo, "", "MemTotal").is_some());
        watch.tell_anew();
        let whole = tell(&mut watch);
        assert!(whole.log.len() < first.log.len().max(50), "the kernel log is reported once");
    }
    let standing = |e: &Evidence| e.unseen.iter().any(|u| u.probe == "units");
    if standing(&first) {
        let again = {
            watch.tell_anew();
            tell(&mut watch)
        };
        assert!(standing(&again), "what cannot be seen is reported in each segment");
    }
    watch.stop();
    let began = Instant::now();
    while watch.next_turn().is_some() {}
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
}
