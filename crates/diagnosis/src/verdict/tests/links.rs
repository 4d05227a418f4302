//! Two findings, and whether the first caused the second.

use super::node::{quiet, unit};
use crate::case::Case;
use crate::code::Code;
use crate::cores::scene::{Actor, Doing, Load, time};
use crate::finding::{Fact, FactKey, Finding, Severity, Subject, SubjectKind};
use crate::ties::{Queue, Task, Ties, When};
use crate::verdict::Certainty;
use crate::verdict::links::{Linked, examine};
use coroner_evidence::{CoreTimes, Evidence, Process, WorkKind};
use std::time::Duration;

fn finding(code: Code, ties: Ties) -> Finding {
    Finding {
        code,
        severity: Severity::Warning,
        subject: Subject::new(SubjectKind::Node, "node"),
        title: format!("there is {code}"),
        detail: String::new(),
        evidence: Vec::new(),
        remedy: String::new(),
        ties,
    }
}

fn seconds(from: f64, to: f64) -> Option<When> {
    Some(When { from: time(from), to: time(to), uncertainty: Duration::ZERO })
}

/// On a core, by a thread, from second to second.
fn on(core: u32, by: &str, from: f64, to: f64) -> Ties {
    let culprits = match by {
        "" => Vec::new(),
        comm => vec![Task { tid: 70, pid: 70, comm: comm.to_owned() }],
    };
    Ties { cores: vec![core], culprits, when: seconds(from, to), ..Ties::default() }
}

fn link(evidence: &Evidence, cause: Finding, effect: Finding) -> Option<Linked> {
    let mut case = Case::of(evidence);
    case.findings = vec![cause, effect];
    examine(&case, &case.findings[0], &case.findings[1])
}

fn linked(cause: (Code, Ties), effect: (Code, Ties)) -> Option<Certainty> {
    let link = link(&quiet().evidence(), finding(cause.0, cause.1), finding(effect.0, effect.1))?;
    assert!(!link.because.is_empty());
    Some(link.proofs.certainty())
}

#[test]
fn drops_follow_from_a_core_occupied_at_that_time() {
    let drops = |core, from, to| (Code::SoftnetDrop, on(core, "", from, to));
    for taken in [Code::CoreSaturated, Code::CoreMonopolised, Code::InterruptStorm, Code::NicCoreStarved] {
        let cause = || (taken, on(1, "spin", 2.0, 5.0));
        assert_eq!(linked(cause(), drops(1, 3.0, 4.0)), Some(Certainty::Proven), "{taken}");
        assert_eq!(linked(cause(), drops(2, 3.0, 4.0)), None, "{taken}: another core");
        assert_eq!(linked(cause(), drops(1, 7.0, 8.0)), None, "{taken}: it was over by then");
    }
}

#[test]
fn a_kernel_watchdog_fires_because_of_the_thread_on_the_core() {
    let stall = |by, from| (Code::KernelStall, on(1, by, from, from));
    let held = || (Code::CoreMonopolised, on(1, "spin", 2.0, 9.0));
    assert_eq!(linked(held(), stall("spin", 8.0)), Some(Certainty::Proven));
    assert_eq!(linked(held(), stall("", 8.0)), Some(Certainty::Likely), "an RCU stall names nobody");
    assert_eq!(linked(held(), stall("spin", 1.0)), None, "it fired before");
}

#[test]
fn a_core_that_is_taken_again_and_again_stalls_the_kernel_each_time() {
    let spin = Actor::new(70, "spin", 1).until(1.0, Doing::Sleep).until(4.0, Doing::Run);
    let spin = spin.until(6.0, Doing::Sleep).until(8.0, Doing::Run).until(99.0, Doing::Sleep);
    let scene = quiet().load(1, 1.0, 4.0, Load::User, 1.0).load(1, 6.0, 8.0, Load::User, 1.0).with(spin);
    let evidence = scene.evidence();
    let stalled = |at| {
        let held = finding(Code::CoreMonopolised, on(1, "spin", 1.0, 4.0));
        link(&evidence, held, finding(Code::KernelStall, on(1, "spin", at, at))).map(|link| link.proofs.certainty())
    };
    assert_eq!(stalled(3.0), Some(Certainty::Proven));
    assert_eq!(stalled(7.0), Some(Certainty::Proven), "the finding tells only of the first time");
    assert_eq!(stalled(5.0), None, "it slept");
}

#[test]
fn an_interrupt_storm_fills_only_its_own_core() {
    let storm = || (Code::InterruptStorm, on(1, "", 2.0, 5.0));
    assert_eq!(linked(storm(), (Code::CoreSaturated, on(1, "", 2.0, 5.0))), Some(Certainty::Proven));
    assert_eq!(linked(storm(), (Code::CoreSaturated, on(2, "", 2.0, 5.0))), None);
}

#[test]
fn steal_fills_only_the_cores_it_takes() {
    let full = |by, stolen| {
        let mut evidence = quiet().evidence();
        for CoreTimes { at, cores } in &mut evidence.core_times {
            let ticks = at.since(time(0.0)).as_millis() as u64 / 10;
            let core = cores.iter_mut().find(|core| core.core == 1).unwrap();
            (core.user, core.steal, core.idle) = (1000 + ticks * (100 - stolen) / 100, ticks * stolen / 100, 9000);
        }
        let steal = Ties { cores: vec![0, 1], when: seconds(0.0, 9.0), ..Ties::default() };
        let effect = finding(Code::CoreSaturated, on(1, by, 2.0, 5.0));
        link(&evidence, finding(Code::CpuSteal, steal), effect).map(|link| link.proofs.certainty())
    };
    assert_eq!(full("", 30), Some(Certainty::Likely));
    assert_eq!(full("", 10), None, "it took other cores");
    assert_eq!(full("train", 30), None, "train filled it");
}

#[test]
fn a_monopolist_fills_only_its_own_core() {
    let cause = |core| (Code::CoreMonopolised, on(core, "spin", 2.0, 5.0));
    let core = |share: f64| Finding {
        evidence: vec![Fact::new(FactKey::OwnerShare, share, "schedstat")],
        ..finding(Code::CoreSaturated, on(1, "spin", 2.0, 5.0))
    };
    let filled = |share| {
        let monopoly = finding(Code::CoreMonopolised, on(1, "spin", 2.0, 5.0));
        link(&quiet().evidence(), monopoly, core(share)).map(|l| l.proofs.certainty())
    };
    assert_eq!((filled(97.0), filled(40.0)), (Some(Certainty::Proven), Some(Certainty::Likely)));
    assert_eq!(linked(cause(2), (Code::CoreSaturated, on(1, "spin", 2.0, 5.0))), None);
    let other = Ties { culprits: vec![Task { tid: 71, pid: 71, comm: "x".to_owned() }], ..on(1, "", 2.0, 5.0) };
    assert_eq!(linked(cause(1), (Code::CoreSaturated, other)), None);
}

#[test]
fn a_queue_that_waits_behind_an_unknown_thread_is_likely_at_most() {
    let eth0 = Queue { device: "eth0".to_owned(), queue: Some("rx-0".to_owned()), ..Queue::default() };
    let waits = |by| (Code::NicCoreStarved, Ties { queues: vec![eth0.clone()], ..on(1, by, 2.0, 5.0) });
    let full = || (Code::CoreSaturated, on(1, "spin", 2.0, 5.0));
    assert_eq!(linked(full(), waits("spin")), Some(Certainty::Proven));
    assert_eq!(linked(full(), waits("")), Some(Certainty::Likely));
}

#[test]
fn a_kill_follows_from_reclaim_in_the_same_cgroup() {
    let of = |path: &str| Ties { cgroups: vec![path.to_owned()], when: seconds(1.0, 5.0), ..Ties::default() };
    let reclaim = |ties| (Code::MemoryReclaim, ties);
    let kill = |ties| (Code::OomKill, ties);
    assert_eq!(linked(reclaim(of("/job")), kill(of("/job/worker"))), Some(Certainty::Likely));
    assert_eq!(linked(reclaim(of("/job")), kill(of("/other"))), None);
    assert_eq!(linked(reclaim(of("/job")), kill(of("/jobs"))), None, "a path is not its prefix");
    let node = || Ties { when: seconds(1.0, 5.0), ..Ties::default() };
    assert_eq!(linked(reclaim(node()), kill(node())), Some(Certainty::Likely));
    assert_eq!(linked(reclaim(node()), kill(of("/job"))), None, "its own limit, not the node's memory");
}

#[test]
fn kills_in_a_units_cgroup_make_it_loop() {
    let mut evidence = quiet().evidence();
    unit(&mut evidence, "train.service", 5);
    let cgroup = "/system.slice/train.service";
    let looping = || Finding {
        subject: Subject::new(SubjectKind::Unit, "train.service"),
        ..finding(Code::UnitCrashloop, Ties::of_unit("train.service", Some(cgroup)))
    };
    let kill = |path: &str| finding(Code::OomKill, Ties::of_cgroup(path));
    let certainty = |evidence: &Evidence, path| link(evidence, kill(path), looping()).map(|l| l.proofs.certainty());
    assert_eq!(certainty(&evidence, cgroup), Some(Certainty::Possible), "systemd says it exited by itself");
    evidence.units.iter_mut().for_each(|unit| unit.result = Some("oom-kill".to_owned()));
    assert_eq!(certainty(&evidence, cgroup), Some(Certainty::Likely));
    assert_eq!(certainty(&evidence, "/system.slice/other.service"), None);
}

#[test]
fn a_slow_read_is_not_blamed_on_the_dead_if_the_kernel_skips_them() {
    let mut evidence = quiet().evidence();
    super::node::dead_without_names(&mut evidence, 5_000, 5_000);
    let slow = |evidence: &Evidence| {
        link(evidence, finding(Code::ZombieMemcgs, Ties::default()), finding(Code::SlowMemcgStat, Ties::default()))
    };
    assert_eq!(slow(&evidence).map(|l| l.proofs.certainty()), Some(Certainty::Proven), "5.4 with cgroup v1");
    evidence.node.as_mut().unwrap().kernel = Some("6.1.0-40-cloud-amd64".to_owned());
    assert!(slow(&evidence).is_none());
    evidence.node = None;
    assert_eq!(slow(&evidence).map(|l| l.proofs.certainty()), Some(Certainty::Possible), "unknown kernel");
}

#[test]
fn a_starved_queue_resets_only_its_own_device() {
    let queue = |(device, netns): (&str, Option<&str>)| {
        vec![Queue { device: device.to_owned(), netns: netns.map(str::to_owned), ..Queue::default() }]
    };
    let starved = |nic| (Code::NicCoreStarved, Ties { queues: queue(nic), ..on(1, "spin", 2.0, 8.0) });
    let reset = |nic| (Code::NicReset, Ties { queues: queue(nic), ..on(1, "", 8.0, 8.0) });
    assert_eq!(
        linked(starved(("eth0", None)), reset(("eth0", None))),
        Some(Certainty::Likely),
        "how long it waited is unknown"
    );
    assert_eq!(
        linked(starved(("eth0", Some("pod"))), reset(("eth0", None))),
        Some(Certainty::Likely),
        "the log has no namespace"
    );
    assert_eq!(linked(starved(("eth1", None)), reset(("eth0", None))), None);
    assert_eq!(linked(starved(("eth0", Some("a"))), reset(("eth0", Some("b")))), None);
    let full = (Code::CoreSaturated, on(1, "spin", 2.0, 8.0));
    assert_eq!(linked(full, reset(("eth0", None))), Some(Certainty::Likely), "the core serves it");
}

#[test]
fn a_core_is_filled_by_reclaim_of_the_cgroup_that_reclaims() {
    let mut evidence = quiet().evidence();
    super::node::work(&mut evidence, 2, 8, 1, 70, "job", WorkKind::Reclaim);
    let process = |cgroup: &str| Process {
        at: time(0.0),
        pid: 70,
        started: 1,
        ppid: 1,
        comm: "job".to_owned(),
        memory_cgroup: Some(cgroup.to_owned()),
        ..Process::default()
    };
    let certainty = |evidence: &Evidence, reclaims: &str| {
        let reclaim = finding(Code::MemoryReclaim, Ties::of_cgroup(reclaims));
        link(evidence, reclaim, finding(Code::CoreSaturated, on(1, "", 2.0, 8.0))).map(|l| l.proofs.certainty())
    };
    assert_eq!(certainty(&evidence, "/jobs"), None, "the process's cgroup is unknown");
    evidence.processes.push(process("/jobs/a"));
    assert_eq!(certainty(&evidence, "/jobs"), Some(Certainty::Proven));
    assert_eq!(certainty(&evidence, "/other"), None);
}

#[test]
fn only_time_occupied_while_unpolled_counts() {
    let reset = |at: f64| {
        let queues = vec![Queue { device: "eth0".to_owned(), ..Queue::default() }];
        let silent = Fact::new(FactKey::SinceNapi, 5000u64, "kernel log");
        let ties = Ties { queues, ..on(1, "", at, at) };
        let effect = Finding { evidence: vec![silent], ..finding(Code::NicReset, ties) };
        let taken = finding(Code::CoreSaturated, on(1, "spin", 0.0, 6.0));
        link(&quiet().evidence(), taken, effect).map(|l| l.proofs.certainty())
    };
    assert_eq!(reset(6.5), Some(Certainty::Proven));
    assert_eq!(reset(10.0), Some(Certainty::Likely), "the core was free for 4 of the 5 s without a poll");
}

#[test]
fn contention_is_blamed_on_what_takes_enough_cpu() {
    let contention = || Finding {
        evidence: vec![Fact::new(FactKey::ThreadsWaiting, 4.5, "schedstat")],
        ..finding(Code::CpuContention, Ties { cores: vec![0, 1], when: seconds(0.0, 9.0), ..Ties::default() })
    };
    let stolen = |percent: f64, severity| {
        let ties = Ties { cores: vec![0, 1], when: seconds(0.0, 9.0), ..Ties::default() };
        let steal = Finding {
            severity,
            evidence: vec![Fact::new(FactKey::Stolen, percent, "/proc/stat")],
            ..finding(Code::CpuSteal, ties)
        };
        link(&quiet().evidence(), steal, contention()).map(|l| l.proofs.certainty())
    };
    assert_eq!(stolen(45.0, Severity::Critical), Some(Certainty::Proven));
    assert_eq!(stolen(20.0, Severity::Warning), None, "0.4 cores are too few for 4.5 threads");
    assert_eq!(stolen(45.0, Severity::Info), None);
}
