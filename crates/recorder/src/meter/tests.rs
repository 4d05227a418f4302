use super::*;
use coroner_evidence::tasks::{SchedTimes, SchedulingClass};
use coroner_evidence::{
    Clocks, CoreSet, CoreTicks, CoreTimes, DeadBelow, MapSource, Nic, NicQueue, QueueKind, Thread, ThreadKey,
    ThreadSample, Wall, Zombie, ZombieMethod,
};

/// On a node without real-time threads.
fn note(meter: &mut Meter, fragment: &Evidence) {
    meter.note(fragment, &Timeline::default(), &RealTimeThreads::default());
}

fn core_meter() -> Timeline {
    Timeline::keeping(std::time::Duration::from_secs(3))
}

/// Two cores, looked at ten times a second; core 1 is in the kernel while `full`.
struct Cores {
    timeline: Timeline,
    at_ms: u64,
    kernel: u64,
    idle: u64,
}

impl Cores {
    fn new() -> Cores {
        Cores { timeline: core_meter(), at_ms: 1_000, kernel: 0, idle: 0 }
    }

    fn pass(&mut self, meter: &mut Meter, tenths: u64, full: bool) {
        for _ in 0..tenths {
            self.at_ms += 100;
            if full {
                self.kernel += 10
            } else {
                self.idle += 10
            }
            let calm =
                CoreTicks { core: 0, user: self.at_ms / 100, idle: self.at_ms / 100 * 9, ..CoreTicks::default() };
            let core = CoreTicks { core: 1, system: self.kernel, idle: self.idle, ..CoreTicks::default() };
            self.timeline.look(&CoreTimes { at: Time::from_millis(self.at_ms), cores: vec![calm, core] });
            meter.note(&Evidence::default(), &self.timeline, &RealTimeThreads::default());
        }
    }
}

#[test]
fn seconds_of_a_full_core_are_counted_once() {
    let (mut meter, mut cores) = (Meter::new(), Cores::new());
    assert_eq!(meter.node().worst_core, None, "nothing was seen yet");
    cores.pass(&mut meter, 30, false);
    assert_eq!(meter.node().saturated_seconds, BTreeMap::from([(0, 0.0), (1, 0.0)]));
    cores.pass(&mut meter, 45, true);
    cores.pass(&mut meter, 30, false);
    let seconds = meter.node().saturated_seconds[&1];
    assert!((4.3..=4.7).contains(&seconds), "{seconds}");
    // Spikes of half a second are normal.
    for _ in 0..10 {
        cores.pass(&mut meter, 5, true);
        cores.pass(&mut meter, 5, false);
    }
    assert_eq!(meter.node().saturated_seconds[&1], seconds);
    cores.pass(&mut meter, 3_000, true);
    let long = meter.node().saturated_seconds[&1] - seconds;
    assert!((298.0..=300.5).contains(&long), "{long}");
    let (worst, busy) = meter.node().worst_core.unwrap();
    assert_eq!(worst, 1);
    assert!(busy > 0.99, "{busy}");
    cores.pass(&mut meter, 120, false);
    let (worst, busy) = meter.node().worst_core.unwrap();
    assert_eq!(worst, 0);
    assert!((0.05..0.15).contains(&busy), "{busy}");
}

#[test]
fn of_equally_busy_cores_the_one_that_was_full_for_longest_is_the_worst() {
    let (mut meter, mut timeline) = (Meter::new(), core_meter());
    let mut ticks = [0, 1, 2].map(|core| CoreTicks { core, ..CoreTicks::default() });
    for tenth in 0..=200_u64 {
        for core in &mut ticks {
            // All are 96 % busy, but core 0 in bits that leave no second full.
            let rests = if core.core == 0 { (tenth % 10 == 9) as u64 * 8 } else { (tenth % 10 % 3 == 2) as u64 };
            (core.user, core.idle) = (core.user + 10 - rests, core.idle + rests);
        }
        ticks[1].user = if tenth < 150 { tenth * 7 } else { ticks[1].user };
        ticks[1].idle = tenth * 10 - ticks[1].user.min(tenth * 10);
        timeline.look(&CoreTimes { at: Time::from_millis(tenth * 100), cores: ticks.to_vec() });
        meter.note(&Evidence::default(), &timeline, &RealTimeThreads::default());
    }
    assert_eq!(meter.node().worst_core.unwrap().0, 2);
}

fn nic(core: u32) -> Nic {
    let queue = |kind, cores: CoreSet| NicQueue {
        kind,
        map: MapSource::Name,
        irq: Some(38),
        irq_cores: Some(cores),
        ..NicQueue::default()
    };
    Nic {
        at: Time::from_secs(1),
        netns: None,
        name: "eth0".to_owned(),
        driver: Some("ena".to_owned()),
        bus: Some("0000:20:03.0".to_owned()),
        up: Some(true),
        queues: vec![queue(QueueKind::Rx, CoreSet::new([core])), queue(QueueKind::Tx, CoreSet::new([0, 1]))],
    }
}

#[test]
fn a_queue_is_starved_if_its_only_core_is_full_of_something_else() {
    let (mut meter, mut cores) = (Meter::new(), Cores::new());
    cores.pass(&mut meter, 30, false);
    assert_eq!(meter.node().starved_queues, None, "no device was seen");
    note(&mut meter, &Evidence { nics: vec![nic(1)], ..Evidence::default() });
    assert_eq!(meter.node().starved_queues, Some(0));
    cores.pass(&mut meter, 30, true);
    assert_eq!(meter.node().starved_queues, Some(1));
    cores.pass(&mut meter, 700, false);
    assert_eq!(meter.node().starved_queues, Some(0), "a minute later it is over");
}

/// A real-time thread in user mode keeps others off the core, too; it is reported a second later than the core.
#[test]
fn a_core_taken_by_a_real_time_thread_is_counted_and_starves_its_queues() {
    let seconds_of = |class: SchedulingClass| {
        let (mut meter, mut real_time, mut timeline) = (Meter::new(), RealTimeThreads::default(), core_meter());
        meter.note(&Evidence { nics: vec![nic(1)], ..Evidence::default() }, &timeline, &real_time);
        let (mut user, mut idle) = (0, 0);
        for tenth in 1..=200_u64 {
            let at = Time::from_millis(tenth * 100);
            let spins = (30..=150).contains(&tenth);
            // 19 of 20 ticks, as the kernel throttles it.
            let ticks = if tenth.is_multiple_of(2) { 9 } else { 10 };
            (user, idle) = if spins { (user + ticks, idle + 10 - ticks) } else { (user, idle + 10) };
            let cores = vec![CoreTicks { core: 1, user, idle, ..CoreTicks::default() }];
            timeline.look(&CoreTimes { at, cores });
            let mut seen = Evidence::default();
            if tenth.is_multiple_of(10) {
                let key = ThreadKey { tid: 4711, started: 1 };
                let thread = Thread { at, key, pid: 4711, comm: "spin".to_owned(), class, ..Thread::default() };
                seen.threads.push(Thread { rt_priority: 50, ..thread });
                let sched = Some(SchedTimes { run_ns: user * 10_000_000, wait_ns: 0, slices: 1 });
                let (state, core, user_ticks) = ('R', 1, user);
                let sample = ThreadSample { at, key, state, core, user_ticks, sched, ..ThreadSample::default() };
                seen.thread_samples.push(sample);
            }
            real_time.note(&seen);
            meter.note(&seen, &timeline, &real_time);
        }
        (meter.node().saturated_seconds[&1], meter.node().starved_queues)
    };
    let (seconds, queues) = seconds_of(SchedulingClass::Fifo);
    assert!((10.5..=12.5).contains(&seconds), "{seconds}");
    assert_eq!(queues, Some(1));
    assert_eq!(seconds_of(SchedulingClass::Other), (0.0, Some(0)), "ordinary work");
}

fn line(sequence: u64, seconds: u64, text: &str) -> LogLine {
    LogLine {
        at: Time::from_secs(seconds),
        stamp_us: seconds * 1_000_000,
        sequence,
        level: 3,
        text: text.to_owned(),
        ..LogLine::default()
    }
}

#[test]
fn an_outage_is_counted_once_however_many_lines_it_logs() {
    let mut meter = Meter::new();
    let clocks = vec![Clocks { at: Time::from_secs(100), wall: Wall(0), boot_ns: 0 }];
    let hang = "ena 0000:20:03.0: Keep alive watchdog timeout.";
    let done = "ena 0000:20:03.0 eth0: Device reset completed successfully, Driver info: ENA v2.11.0g";
    let log = vec![line(1, 50, done), line(7, 101, hang), line(8, 101, hang), line(9, 102, done)];
    note(&mut meter, &Evidence { clocks, nics: vec![nic(1)], log: log.clone(), ..Evidence::default() });
    assert_eq!(meter.node().nic_resets, BTreeMap::from([("eth0".to_owned(), 1)]), "earlier outages do not count");
    // A new segment repeats old lines.
    note(&mut meter, &Evidence { log, ..Evidence::default() });
    let mut forged = line(10, 110, hang);
    forged.facility = 1;
    note(&mut meter, &Evidence { log: vec![forged], ..Evidence::default() });
    assert_eq!(meter.node().nic_resets["eth0"], 1);
    note(&mut meter, &Evidence { log: vec![line(11, 111, hang), line(12, 112, done)], ..Evidence::default() });
    assert_eq!(meter.node().nic_resets["eth0"], 2, "another one, soon after the first");

    let mut counted = Evidence::default();
    for (second, value) in [(120, 40), (121, 43)] {
        counted.counters.push(Source::Ethtool, "eth0", "total_resets", Time::from_secs(second), value);
    }
    note(&mut meter, &counted);
    assert_eq!(meter.node().nic_resets["eth0"], 3, "the driver saw one that the log lost");
}

fn unit(name: &str, restarts: u32) -> Unit {
    Unit { name: name.to_owned(), restarts: Some(restarts), ..Unit::default() }
}

#[test]
fn restarts_count_from_the_first_look_and_survive_a_reset() {
    let mut meter = Meter::new();
    for restarts in [40, 42, 42, 0, 1, 5] {
        note(
            &mut meter,
            &Evidence { units: vec![unit("ecs.service", restarts), unit("calm.service", 3)], ..Evidence::default() },
        );
    }
    assert_eq!(meter.node().unit_restarts, BTreeMap::from([("ecs.service".to_owned(), 7)]));
}

#[test]
fn tables_are_bounded_and_counters_never_fall() {
    let mut meter = Meter::new();
    let mut before = BTreeMap::new();
    for round in 0..4 {
        let units = (0..30_000).map(|i| unit(&format!("u{i}.service"), round)).collect();
        note(&mut meter, &Evidence { units, ..Evidence::default() });
        let now = meter.node().unit_restarts;
        assert!(now.len() <= MOST_UNITS + 1, "{}", now.len());
        assert!(before.iter().all(|(unit, count)| now[unit] >= *count), "round {round}");
        before = now;
    }
    let all: u64 = before.values().sum();
    assert_eq!(all, 3 * MOST_TRACKED_UNITS as u64);
}

fn scan(zombies: Vec<&str>, below: Vec<DeadBelow>) -> ZombieScan {
    let zombies = zombies.into_iter().zip(1..).map(|(path, id)| Zombie {
        id,
        path: path.to_owned(),
        references: Some(1),
        serial: id,
        ..Zombie::default()
    });
    let zombies: Vec<Zombie> = zombies.collect();
    ZombieScan {
        at: Time::from_secs(60),
        method: ZombieMethod::BpfTestRun,
        version: 1,
        tracked: Some(10),
        live: Some(7),
        dead: Some(3),
        zombies,
        below,
        ..ZombieScan::default()
    }
}

#[test]
fn zombies_are_counted_by_parent() {
    let mut meter = Meter::new();
    assert_eq!(meter.node().zombies, None);
    let paths = vec!["/system.slice/ecs.service", "/ecs/agent-1", "/ecs/agent-2"];
    note(&mut meter, &Evidence { zombie_scans: vec![scan(paths, Vec::new())], ..Evidence::default() });
    let zombies = meter.node().zombies.unwrap();
    assert_eq!((zombies.tracked, zombies.live, zombies.dead), (Some(10), Some(7), Some(3)));
    assert_eq!(zombies.by_parent, [("/ecs".to_owned(), 2), ("/system.slice".to_owned(), 1)]);

    let below = |parent: &str, dead| DeadBelow { parent: parent.to_owned(), dead, held: None };
    let by_parent = by_parent(&scan(Vec::new(), vec![below("/a", Some(5)), below("/b", None), below("/c", Some(0))]));
    assert_eq!(by_parent, [("/a".to_owned(), 5)], "not counted by parent is not 0");
}

#[test]
fn a_partial_census_does_not_spoil_a_full_scan() {
    let mut census = CgroupCensus {
        at: Time::from_secs(61),
        version: 1,
        mount_point: "/sys/fs/cgroup/memory".to_owned(),
        live: 2,
        tracked: Some(12),
        ..CgroupCensus::default()
    };
    let mut meter = Meter::new();
    note(&mut meter, &Evidence { zombie_scans: vec![scan(vec!["/ecs/agent-1"], Vec::new())], ..Evidence::default() });
    let by_scan = meter.node().zombies;
    note(&mut meter, &Evidence { cgroup_censuses: vec![census.clone()], ..Evidence::default() });
    assert_eq!(meter.node().zombies, by_scan);
    census.dying = Some(10);
    note(&mut meter, &Evidence { cgroup_censuses: vec![census], ..Evidence::default() });
    let zombies = meter.node().zombies.unwrap();
    assert_eq!((zombies.tracked, zombies.live, zombies.dead), (Some(12), Some(2), Some(10)));
    assert_eq!(zombies.by_parent.len(), 1, "their names are still known");
}

#[test]
fn many_parents_are_folded_and_none_is_lost() {
    let paths: Vec<String> = (0..5_000).map(|i| format!("/p{}x/q{}y/leaf", i % 70, i)).collect();
    let parents = by_parent(&scan(paths.iter().map(String::as_str).collect(), Vec::new()));
    assert!(parents.len() <= MOST_PARENTS + 1, "{}", parents.len());
    assert_eq!(parents.iter().map(|(_, dead)| dead).sum::<u64>(), 5_000);
}

#[test]
fn what_was_not_seen_is_not_0() {
    let mut meter = Meter::new();
    note(&mut meter, &Evidence::default());
    assert_eq!(meter.node(), NodeStatus::default());
    let mut evidence = Evidence::default();
    for (second, value) in [(1, 100), (2, 103)] {
        evidence.counters.push(Source::Softnet, "cpu0", "dropped", Time::from_secs(second), value);
    }
    evidence.counters.push(Source::Vmstat, "", "oom_kill", Time::from_secs(1), 9);
    note(&mut meter, &evidence);
    assert_eq!((meter.node().softnet_drops, meter.node().oom_kills), (Some(3), Some(0)));
}
