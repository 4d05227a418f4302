use super::*;
use coroner_evidence::tasks::{SchedTimes, SchedulingClass};
use coroner_evidence::{Clocks, CoreTicks, CoreTimes, Evidence, Thread, ThreadKey, ThreadSample, Wall};

/// Two cores, the second of which follows the script; each step is a tenth of a second.
struct Node {
    triggers: CoreTriggers,
    timeline: Timeline,
    at: Time,
    ticks: CoreTicks,
    idle: CoreTicks,
    real_time: RealTimeThreads,
    fired: Vec<Trigger>,
    over: Vec<Over>,
}

/// What core 1 does in one step of ten ticks: user, system, softirq, steal; the rest is idle.
type Step = [u64; 4];
const IDLE: Step = [0, 0, 0, 0];
const USER: Step = [10, 0, 0, 0];
const SYSTEM: Step = [0, 10, 0, 0];

impl Node {
    fn new() -> Node {
        let mut node = Node {
            triggers: CoreTriggers::new(Duration::from_secs(1)),
            timeline: Timeline::keeping(Duration::from_secs(3)),
            at: Time::from_secs(1000),
            ticks: CoreTicks { core: 1, user: 5000, system: 70_000, ..CoreTicks::default() },
            idle: CoreTicks { core: 0, ..CoreTicks::default() },
            real_time: RealTimeThreads::default(),
            fired: Vec::new(),
            over: Vec::new(),
        };
        node.run(30, IDLE);
        node
    }

    fn run(&mut self, steps: u64, step: Step) -> usize {
        self.run_with(steps, step, |_, _| {})
    }

    fn run_with(&mut self, steps: u64, step: Step, mut add: impl FnMut(&mut Evidence, Time)) -> usize {
        let before = self.fired.len();
        for _ in 0..steps {
            self.at = self.at + Duration::from_millis(100);
            self.ticks.user += step[0];
            self.ticks.system += step[1];
            self.ticks.softirq += step[2];
            self.ticks.steal += step[3];
            self.ticks.idle += 10 - step.iter().sum::<u64>();
            self.idle.idle += 10;
            let mut evidence = Evidence {
                clocks: vec![Clocks { at: self.at, wall: Wall(0), boot_ns: self.at.0 }],
                ..Evidence::default()
            };
            add(&mut evidence, self.at);
            self.real_time.note(&evidence);
            self.look(&CoreTimes { at: self.at, cores: vec![self.idle, self.ticks] });
        }
        self.fired.len() - before
    }

    fn look(&mut self, look: &CoreTimes) {
        self.timeline.look(look);
        self.triggers.look(&self.timeline, &self.real_time, &mut self.fired, &mut self.over);
    }
}

/// A thread that has run on core 1 since `born` and is seen at each step.
fn spinner(class: SchedulingClass, born: Time) -> impl FnMut(&mut Evidence, Time) {
    let key = ThreadKey { tid: 4711, started: born.0 / 10_000_000 };
    move |evidence, at| {
        let described = Thread {
            at,
            key,
            pid: 4711,
            comm: "spin".into(),
            class,
            rt_priority: if class.is_real_time() { 50 } else { 0 },
            ..Thread::default()
        };
        evidence.threads.push(described);
        let run_ns = at.since(born).as_nanos() as u64;
        evidence.thread_samples.push(ThreadSample {
            at,
            key,
            state: 'R',
            core: 1,
            user_ticks: run_ns / 10_000_000,
            sched: Some(SchedTimes { run_ns, wait_ns: 0, slices: 1 }),
            ..ThreadSample::default()
        });
    }
}

#[test]
fn a_second_of_kernel_work_fires_once_until_the_core_has_room() {
    let mut node = Node::new();
    assert_eq!(node.run(9, SYSTEM), 0);
    assert_eq!(node.run(2, SYSTEM), 1);
    let fired = &node.fired[0];
    assert_eq!((fired.code.as_str(), fired.subject.as_str(), fired.core), ("core-saturated", "core 1", Some(1)));
    assert_eq!(fired.text, "core 1 was full of kernel work");
    assert_eq!(node.run(600, SYSTEM), 0, "still the same");
    for _ in 0..20 {
        assert_eq!(node.run(1, [0, 9, 0, 0]) + node.run(9, SYSTEM), 0, "it hovers around the threshold");
    }
    let began = node.fired[0].since.unwrap();
    assert_eq!(node.over, [], "it is not over");
    node.run(10, IDLE);
    let [over] = &node.over[..] else { panic!("{:?}", node.over) };
    assert_eq!((over.code.as_str(), over.subject.as_str()), ("core-saturated", "core 1"));
    assert_eq!(over.until.since(began), over.lasted);
    let lasted = over.lasted.as_secs_f64();
    assert!((80.0..=81.5).contains(&lasted), "{lasted}");
    assert_eq!(node.run(11, SYSTEM), 1, "a new one");
}

#[test]
fn system_and_softirq_add_up_and_stolen_time_is_not_idle() {
    assert_eq!(Node::new().run(12, [0, 4, 6, 0]), 1);
    assert_eq!(Node::new().run(12, [0, 8, 0, 2]), 1);
    assert_eq!(Node::new().run(50, [0, 5, 0, 5]), 0);
    assert_eq!(Node::new().run(50, [2, 8, 0, 0]), 0);
}

#[test]
fn an_ordinary_busy_core_is_no_incident() {
    assert_eq!(Node::new().run(100, USER), 0);
    let mut node = Node::new();
    let born = node.at;
    assert_eq!(node.run_with(100, USER, spinner(SchedulingClass::Other, born)), 0);
}

#[test]
fn a_real_time_spinner_is_named_though_it_runs_in_user_mode() {
    let mut node = Node::new();
    let born = node.at;
    assert_eq!(node.run_with(20, USER, spinner(SchedulingClass::Fifo, born)), 1);
    let fired = &node.fired[0];
    assert_eq!((fired.code.as_str(), fired.core), ("core-monopolised", Some(1)));
    assert_eq!(fired.text, "spin[4711] (SCHED_FIFO 50) had core 1 to itself");
    assert!(fired.at.since(born) < Duration::from_millis(1300), "{:?}", fired.at);
    // It exits and ordinary programs fill the core: no incident until the next spinner comes.
    assert_eq!(node.run(100, USER), 0);
    let lasted = node.over[0].lasted.as_secs_f64();
    assert!((1.9..=2.1).contains(&lasted), "{lasted}");
    assert_eq!((node.over.len(), node.over[0].by.as_deref()), (1, Some("spin")));
    let born = node.at;
    assert_eq!(node.run_with(20, USER, spinner(SchedulingClass::Fifo, born)), 1);
}

#[test]
fn a_spinner_had_the_core_until_it_slept_though_others_filled_it_afterwards() {
    let mut node = Node::new();
    let born = node.at;
    let mut spin = spinner(SchedulingClass::Fifo, born);
    // It is looked at once a second and sleeps after 3.4 s.
    node.run_with(100, USER, |evidence, at| {
        if (at.since(born).as_millis() / 100).is_multiple_of(10) {
            spin(evidence, at);
            for sched in evidence.thread_samples.iter_mut().filter_map(|sample| sample.sched.as_mut()) {
                sched.run_ns = sched.run_ns.min(3_400_000_000);
            }
        }
    });
    let [over] = &node.over[..] else { panic!("{:?}", node.over) };
    let lasted = over.lasted.as_secs_f64();
    assert!((3.2..=3.5).contains(&lasted), "{over:?}");
}

#[test]
fn a_throttled_spinner_leaves_five_percent() {
    let mut node = Node::new();
    let born = node.at;
    // There is no half tick: nine and ten in turn.
    let mut fired = 0;
    let mut add = spinner(SchedulingClass::Fifo, born);
    for _ in 0..10 {
        fired += node.run_with(1, [9, 0, 0, 0], &mut add) + node.run_with(1, USER, &mut add);
    }
    assert_eq!(fired, 1);
}

#[test]
fn one_late_look_at_a_young_spinner_is_enough() {
    let mut node = Node::new();
    let born = node.at;
    assert_eq!(node.run(20, USER), 0);
    let mut see = spinner(SchedulingClass::Fifo, born);
    let last = node.at;
    assert_eq!(node.run_with(1, IDLE, |evidence, _| see(evidence, last)), 1);
}

#[test]
fn a_core_that_was_offline_and_counters_of_another_boot_start_over() {
    let mut node = Node::new();
    node.run(5, SYSTEM);
    node.ticks.system += 1_000_000;
    assert_eq!(node.run(9, SYSTEM), 0);
    assert_eq!(node.run(3, SYSTEM), 1);
    let mut node = Node::new();
    node.run(8, SYSTEM);
    let present = node.ticks;
    let away = CoreTimes { at: node.at + Duration::from_millis(50), cores: vec![node.idle] };
    node.look(&away);
    node.ticks = present;
    assert_eq!(node.run(9, SYSTEM), 0);
}

#[test]
fn late_looks_cover_the_time_between_them() {
    let mut node = Node::new();
    node.at = node.at + Duration::from_millis(2900);
    node.idle.idle += 290;
    node.ticks.system += 290;
    assert_eq!(node.run(1, SYSTEM), 1);
}

#[test]
fn zero_switches_it_off() {
    let mut node = Node::new();
    node.triggers = CoreTriggers::new(Duration::ZERO);
    assert_eq!(node.run(100, SYSTEM), 0);
}
