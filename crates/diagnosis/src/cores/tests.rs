use super::scene::{Actor, Doing, Load, Scene, time};
use super::*;
use crate::case::Case;
use crate::rules;
use coroner_evidence::tasks::{SchedTimes, SchedulingClass};
use coroner_evidence::{
    Clocks, CoreSet, CoreTicks, CoreTimes, MapSource, NicQueue, Process, QueueKind, Source, Thread, ThreadKey,
    ThreadSample, Wall,
};
use proptest::prelude::*;

#[test]
fn the_summary_shows_the_one_core_that_the_average_hides() {
    let evidence = Scene::new(96, 5.0)
        .load(39, 1.0, 4.0, Load::System, 1.0)
        .load(7, 0.0, 5.0, Load::User, 1.0)
        .with(Actor::new(50, "kubelet", 39).in_kernel().between(1.0, 4.0, Doing::Run))
        .nic("eth0", 39)
        .evidence();
    let summary = Cores::of(&evidence).summary(10).unwrap();
    assert_eq!((summary.cores.len(), summary.worst), (96, Some(39)));
    assert!(summary.average.busy() < 0.02, "{:?}", summary.average);
    let bad = &summary.cores[39];
    assert_eq!(bad.queues, ["eth0 rx-0"]);
    assert_eq!(bad.ownership.name(), "kubelet[50]");
    assert_eq!(bad.full_ns, 3_000_000_000);
    let strip: Vec<i64> = bad.strip.iter().map(|s| (s.unwrap().kernel() * 10.0).round() as i64).collect();
    assert_eq!(strip, [0, 0, 10, 10, 10, 10, 10, 10, 0, 0]);
}

#[test]
fn the_reign_of_one_thread_is_found_on_a_core_that_is_always_busy() {
    for seconds in [5.0, 10.0] {
        // Five or ten seconds of compiling on both cores; for three of them a real-time thread has core 1.
        let busy = Doing::Turns { run: 0.45, wait: 0.5, slices: 100.0 };
        let mut scene = Scene::new(2, seconds).all_cores(Load::User, 1.0);
        for tid in [60, 61] {
            let cc = Actor::new(tid, "cc1plus", 1).until(1.0, busy).until(4.0, Doing::Wait).until(99.0, busy);
            scene = scene.with(cc);
        }
        let spin = Actor::new(50, "spin", 1).fifo(50).pinned();
        let throttled = Doing::Turns { run: 0.95, wait: 0.05, slices: 1.0 };
        scene = scene.with(spin.until(1.0, Doing::Sleep).until(4.0, throttled).until(99.0, Doing::Sleep));
        let evidence = scene.evidence();
        let Answer::Findings(found) = rules::core_monopolised::examine(&Case::of(&evidence)) else { panic!() };
        assert_eq!((found.len(), found[0].subject.name.as_str()), (1, "spin[50]"));
        let Answer::Findings(found) = rules::core_saturated::examine(&Case::of(&evidence)) else { panic!() };
        assert!(found[0].title.starts_with("core 1 was 100 % busy for 3.0 s, owned by spin[50]"), "{}", found[0].title);
    }
}

#[test]
fn time_stolen_by_the_hypervisor_makes_no_victims() {
    let mut evidence = Scene::new(2, 5.0)
        .load(1, 0.0, 5.0, Load::User, 0.6)
        .with(Actor::new(50, "train", 1).until(99.0, Doing::Turns { run: 0.6, wait: 0.4, slices: 5.0 }))
        .with(Actor::kernel(31, "kworker/1:1", 1).until(99.0, Doing::Turns { run: 0.0, wait: 0.3, slices: 5.0 }))
        .evidence();
    let victims = |evidence: &Evidence| {
        let cores = Cores::of(evidence);
        cores.full(Saturation::Busy, |_| true).iter().map(|f| f.victims.len()).sum::<usize>()
    };
    // The missing 40 % are first stolen, then system time.
    for look in &mut evidence.core_times {
        look.cores[1].steal = look.cores[1].idle;
        look.cores[1].idle = 0;
    }
    assert_eq!(victims(&evidence), 0);
    for look in &mut evidence.core_times {
        look.cores[1].system += look.cores[1].steal;
        look.cores[1].steal = 0;
    }
    assert_eq!(victims(&evidence), 1);
}

#[test]
fn a_thread_that_moved_is_charged_half_to_each_core() {
    let mut evidence = Scene::new(4, 2.0)
        .load(1, 0.0, 1.0, Load::User, 1.0)
        .load(2, 1.0, 2.0, Load::User, 1.0)
        .with(Actor::new(50, "mover", 1).until(99.0, Doing::Run).rarely_sampled())
        .evidence();
    evidence.thread_samples.last_mut().unwrap().core = 2;
    let cores = Cores::of(&evidence);
    for core in [1, 2] {
        let owner = cores.owner(core, cores.window().unwrap());
        let share = owner.owner().unwrap().share;
        assert!((0.9..=1.0).contains(&share), "core {core}: {share}");
    }
}

#[test]
fn a_thread_born_while_we_watched_is_charged_from_its_birth() {
    let mut evidence = Scene::new(2, 5.0).load(1, 1.0, 4.0, Load::User, 1.0).evidence();
    // Boot clock and monotonic clock are 7 s apart: the node slept.
    let boot_offset = 7_000_000_000;
    evidence.clocks[0].boot_ns += boot_offset;
    let key = ThreadKey { tid: 60, started: (time(1.0).0 + boot_offset) / 10_000_000 };
    let mut sample = evidence.thread_samples[0];
    sample = ThreadSample { key, core: 1, at: time(4.0), state: 'R', ..sample };
    sample.sched = Some(SchedTimes { run_ns: 3_000_000_000, wait_ns: 0, slices: 4 });
    evidence.thread_samples.push(sample);
    let cores = Cores::of(&evidence);
    let owner = cores.owner(1, Window { from: time(1.0), to: time(4.0) });
    assert_eq!(owner.name(), "thread[60]");
    assert!(owner.owner().unwrap().share > 0.95);
}

#[test]
fn a_core_full_of_short_lived_processes_has_no_known_owner() {
    let evidence = Scene::new(2, 5.0).load(1, 0.0, 5.0, Load::System, 1.0).evidence();
    let cores = Cores::of(&evidence);
    let Ownership::Unknown(why) = cores.owner(1, cores.window().unwrap()) else { panic!() };
    assert!(why.contains("account for only 0 %"), "{why}");
}

#[test]
fn threads_of_one_process_own_a_core_together() {
    let mut scene = Scene::new(8, 5.0).load(3, 0.0, 5.0, Load::User, 1.0);
    for n in 0..4 {
        let turns = Doing::Turns { run: 0.25, wait: 0.0, slices: 50.0 };
        scene = scene.with(Actor::new(101 + n, "worker", 3).of_process(100, "train").until(99.0, turns));
    }
    let evidence = scene.evidence();
    let cores = Cores::of(&evidence);
    assert_eq!(cores.owner(3, cores.window().unwrap()).name(), "train[100]");
}

fn any_time() -> impl Strategy<Value = Time> {
    prop_oneof![4 => (0u64..8_000).prop_map(Time::from_millis), 1 => any::<u64>().prop_map(Time)]
}

fn any_count() -> impl Strategy<Value = u64> {
    prop_oneof![4 => 0u64..2_000, 1 => any::<u64>()]
}

prop_compose! {
    fn any_look()(at in any_time(), cores in prop::collection::vec((0u32..4, prop::array::uniform8(any_count())), 0..5))
        -> CoreTimes
    {
        let cores = cores.into_iter().map(|(core, v)| CoreTicks {
            core, user: v[0], nice: v[1], system: v[2], idle: v[3], iowait: v[4], irq: v[5], softirq: v[6], steal: v[7],
        });
        CoreTimes { at, cores: cores.collect() }
    }
}

prop_compose! {
    fn any_sample()(
        at in any_time(), tid in 0u32..6, started in prop_oneof![0u64..800, any::<u64>()],
        state in prop::sample::select(vec!['R', 'S', 'D', '?']), core in 0u32..5,
        ticks in prop::array::uniform4(any_count()), sched in prop::option::of(prop::array::uniform3(any_count())),
    ) -> ThreadSample {
        ThreadSample {
            at, key: ThreadKey { tid, started: if tid % 2 == 0 { 5 } else { started } }, state, core,
            user_ticks: ticks[0], system_ticks: ticks[1], minor_faults: ticks[2], major_faults: ticks[3],
            sched: sched.map(|s| SchedTimes {
                run_ns: s[0].saturating_mul(1_000_000), wait_ns: s[1].saturating_mul(1_000_000), slices: s[2],
            }),
        }
    }
}

prop_compose! {
    fn any_thread()(
        at in any_time(), tid in 0u32..6, pid in 0u32..6, kernel in any::<bool>(), policy in 0u64..9,
        nice in any::<i8>(), rt_priority in any::<u8>(),
        comm in prop::sample::select(vec!["spin", "ksoftirqd/1", "napi/eth0-8193", "napi/", "kworker/1:0", "", "coroner"]),
        affinity in prop::option::of(prop::collection::vec(0u32..4, 0..3)),
    ) -> Thread {
        Thread {
            at, key: ThreadKey { tid, started: 5 }, pid, comm: comm.to_owned(), kernel,
            class: SchedulingClass::from_policy(policy), rt_priority, nice, affinity: affinity.map(CoreSet::new),
        }
    }
}

prop_compose! {
    fn any_nic()(
        at in any_time(), core in prop::option::of(0u32..4), napi_tid in prop::option::of(0u32..6),
        irq in prop::option::of(any::<u32>()), name in prop::sample::select(vec!["eth0", "", "lo"]),
    ) -> Nic {
        let set = core.map(|c| CoreSet::new([c]));
        let queue = NicQueue {
            kind: QueueKind::Rx, index: 0, map: MapSource::Name, irq, irq_cores: set.clone(), napi_id: None, napi_tid,
            napi_cores: set.clone(), steering: set,
        };
        Nic { at, netns: None, name: name.to_owned(), driver: Some("ena".into()), bus: None, up: None, queues: vec![queue] }
    }
}

prop_compose! {
    fn any_evidence()(
        core_times in prop::collection::vec(any_look(), 0..40),
        thread_samples in prop::collection::vec(any_sample(), 0..60),
        threads in prop::collection::vec(any_thread(), 0..8),
        nics in prop::collection::vec(any_nic(), 0..3),
        clocks in prop::option::of((any_time(), any::<u64>(), any::<u64>())),
        points in prop::collection::vec((
            prop::sample::select(vec![Source::Softirqs, Source::Softnet, Source::Interrupts, Source::Ethtool, Source::CgroupCpu]),
            prop::sample::select(vec!["cpu0", "cpu1", "cpu", "eth0", "/a/b", ""]),
            prop::sample::select(vec!["NET_RX", "dropped", "time_squeeze", "38", "bw_in_allowance_exceeded", "throttled_us"]),
            any_time(), any_count(),
        ), 0..40),
        cgroup in prop::option::of(prop::sample::select(vec!["/a/b/c", "/", "", "a", "//"])),
    ) -> Evidence {
        let mut evidence = Evidence { core_times, thread_samples, threads, nics, ..Evidence::default() };
        evidence.clocks.extend(clocks.map(|(at, wall, boot_ns)| Clocks { at, wall: Wall(wall), boot_ns }));
        for (source, subject, name, at, value) in points {
            evidence.counters.push(source, subject, name, at, value);
        }
        for pid in 0..4 {
            evidence.processes.push(Process {
                at: Time(0), pid, started: 5, ppid: 0, comm: "p".into(), command: None, kernel: false,
                memory_cgroup: None, cpu_cgroup: cgroup.map(str::to_owned), owner: Default::default(), ray: None,
            });
        }
        evidence
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]
    #[test]
    fn any_evidence_is_examined_without_panic(evidence in any_evidence(), parts in 0usize..50) {
        let _ = rules::core_saturated::examine(&Case::of(&evidence));
        let _ = rules::core_monopolised::examine(&Case::of(&evidence));
        let _ = rules::nic_core_starved::examine(&Case::of(&evidence));
        let _ = rules::softnet_drop::examine(&Case::of(&evidence));
        let _ = rules::nic_allowance::examine(&Case::of(&evidence));
        let cores = Cores::of(&evidence);
        if let Some(summary) = cores.summary(parts) {
            for core in &summary.cores {
                let s = core.shares;
                let sum = s.busy() + s.iowait + s.idle;
                prop_assert!((0.0..=1.0001).contains(&sum), "{s:?}");
                prop_assert_eq!(core.strip.len(), parts);
            }
        }
    }

    /// Fragments may arrive in any order: the answer is the same.
    #[test]
    fn the_order_of_samples_does_not_matter(seed in prop::collection::vec(any::<u32>(), 60)) {
        let evidence = Scene::new(2, 5.0)
            .load(1, 1.0, 4.0, Load::User, 1.0)
            .with(Actor::new(50, "spin", 1).fifo(50).pinned().until(1.0, Doing::Sleep).until(4.0, Doing::Run))
            .with(Actor::kernel(31, "kworker/1:1", 1).until(1.0, Doing::Sleep).until(4.0, Doing::Wait).until(9.0, Doing::Run))
            .evidence();
        let mut shuffled = evidence.clone();
        for (i, random) in seed.iter().enumerate() {
            let (a, b) = (shuffled.thread_samples.len(), shuffled.core_times.len());
            shuffled.thread_samples.swap(i % a, *random as usize % a);
            shuffled.core_times.swap(i % b, *random as usize % b);
        }
        prop_assert_eq!(rules::core_saturated::examine(&Case::of(&evidence)), rules::core_saturated::examine(&Case::of(&shuffled)));
    }
}
