//! Makes evidence for tests: a test describes a node (core 1 is in the kernel from second 1 to 4, this thread runs, that one
//! waits), and the scene records what the kernel's files would have said, ten times a second.

use coroner_evidence::tasks::{SchedTimes, SchedulingClass};
use coroner_evidence::{
    Clocks, CoreSet, CoreTicks, CoreTimes, Evidence, MapSource, Nic, NicQueue, Process, QueueKind, Thread, ThreadKey,
    ThreadSample, Time, Wall,
};

/// Long after boot.
const START_MS: u64 = 1_000_000;

#[derive(Clone, Copy)]
pub enum Load {
    User,
    System,
    Softirq,
    Irq,
}

/// What a thread does for a while.
#[derive(Clone, Copy)]
pub enum Doing {
    Sleep,
    Run,
    /// A single wait.
    Wait,
    /// Takes turns: these shares of the time running and waiting, in this many slices a second.
    Turns {
        run: f64,
        wait: f64,
        slices: f64,
    },
}

pub struct Actor {
    thread: Thread,
    process: Process,
    core: u32,
    doing: Vec<(f64, Doing)>,
    /// Share of its run time spent in the kernel.
    pub in_kernel: f64,
    /// Sampled at the first and last look only.
    rarely: bool,
}

impl Actor {
    pub fn new(tid: u32, comm: &str, core: u32) -> Actor {
        let at = time(0.0);
        let thread = Thread {
            at,
            key: ThreadKey { tid, started: 5 },
            pid: tid,
            comm: comm.to_owned(),
            class: SchedulingClass::Other,
            ..Thread::default()
        };
        let process = Process { at, pid: tid, started: 5, ppid: 1, comm: comm.to_owned(), ..Process::default() };
        Actor { thread, process, core, doing: Vec::new(), in_kernel: 0.0, rarely: false }
    }

    /// A kernel thread pinned to its core.
    pub fn kernel(tid: u32, comm: &str, core: u32) -> Actor {
        let mut actor = Actor::new(tid, comm, core).pinned();
        actor.thread.kernel = true;
        actor.process.kernel = true;
        actor.in_kernel = 1.0;
        actor
    }

    pub fn fifo(mut self, priority: u8) -> Actor {
        self.thread.class = SchedulingClass::Fifo;
        self.thread.rt_priority = priority;
        self
    }

    pub fn nice(mut self, nice: i8) -> Actor {
        self.thread.nice = nice;
        self
    }

    pub fn pinned(mut self) -> Actor {
        self.thread.affinity = Some(CoreSet::new([self.core]));
        self
    }

    pub fn on_any_core(mut self, cores: u32) -> Actor {
        self.thread.affinity = Some(CoreSet::new(0..cores));
        self
    }

    pub fn in_kernel(mut self) -> Actor {
        self.in_kernel = 1.0;
        self
    }

    pub fn in_cgroup(mut self, path: &str) -> Actor {
        self.process.cpu_cgroup = Some(path.to_owned());
        self
    }

    pub fn of_process(mut self, pid: u32, comm: &str) -> Actor {
        self.thread.pid = pid;
        self.process.pid = pid;
        self.process.comm = comm.to_owned();
        self
    }

    pub fn about(mut self, describe: impl FnOnce(&mut Process)) -> Actor {
        describe(&mut self.process);
        self
    }

    pub fn rarely_sampled(mut self) -> Actor {
        self.rarely = true;
        self
    }

    /// What it does from the end of the previous `until` to this second.
    pub fn until(mut self, second: f64, doing: Doing) -> Actor {
        self.doing.push((second, doing));
        self
    }

    /// Sleeps before and after.
    pub fn between(self, from: f64, to: f64, doing: Doing) -> Actor {
        self.until(from, Doing::Sleep).until(to, doing).until(99.0, Doing::Sleep)
    }

    fn sample(&self, second: f64) -> ThreadSample {
        let (mut run, mut waited, mut slices) = (0.0, 0.0, 10.0);
        let mut from = 0.0;
        let mut state = 'S';
        for (n, (to, doing)) in self.doing.iter().enumerate() {
            if second < from {
                break;
            }
            let time = second.min(*to) - from;
            let goes_on = second < *to;
            let more = !goes_on && n + 1 < self.doing.len();
            match *doing {
                Doing::Sleep => state = 'S',
                Doing::Run => {
                    run += time;
                    state = 'R';
                }
                // The kernel counts a wait only when the thread gets to run.
                Doing::Wait => {
                    state = 'R';
                    if more {
                        waited += time;
                        slices += 1.0;
                    }
                }
                Doing::Turns { run: r, wait: w, slices: s } => {
                    run += time * r;
                    waited += time * w;
                    slices += (time * s).floor();
                    state = if r + w > 0.5 { 'R' } else { 'S' };
                }
            }
            from = *to;
        }
        ThreadSample {
            at: time(second),
            key: self.thread.key,
            state,
            core: self.core,
            user_ticks: (run * 100.0 * (1.0 - self.in_kernel)) as u64,
            system_ticks: (run * 100.0 * self.in_kernel) as u64,
            sched: Some(SchedTimes {
                run_ns: (run * 1e9) as u64,
                wait_ns: (waited * 1e9) as u64,
                slices: slices as u64,
            }),
            ..ThreadSample::default()
        }
    }
}

pub struct Scene {
    cores: u32,
    seconds: f64,
    loads: Vec<(u32, f64, f64, Load, f64)>,
    actors: Vec<Actor>,
    pub evidence: Evidence,
}

pub fn time(second: f64) -> Time {
    Time(START_MS * 1_000_000 + (second * 1e9).round() as u64)
}

impl Scene {
    /// With a sleeping ksoftirqd, so that kernel threads are visible.
    pub fn new(cores: u32, seconds: f64) -> Scene {
        let mut evidence = Evidence::default();
        let at = time(0.0);
        evidence.clocks.push(Clocks { at, wall: Wall(1_700_000_000_000_000_000), boot_ns: at.0 });
        Scene { cores, seconds, loads: Vec::new(), actors: Vec::new(), evidence }
            .with(Actor::kernel(20, "ksoftirqd/0", 0).until(1e9, Doing::Sleep))
    }

    /// A core spends this share of its time this way.
    pub fn load(mut self, core: u32, from: f64, to: f64, kind: Load, share: f64) -> Scene {
        self.loads.push((core, from, to, kind, share));
        self
    }

    pub fn all_cores(mut self, kind: Load, share: f64) -> Scene {
        for core in 0..self.cores {
            self.loads.push((core, 0.0, self.seconds, kind, share));
        }
        self
    }

    pub fn with(mut self, actor: Actor) -> Scene {
        self.actors.push(actor);
        self
    }

    /// A device with one queue, whose interrupt one core serves.
    pub fn nic(mut self, name: &str, core: u32) -> Scene {
        self.evidence.nics.push(nic(name, core));
        self
    }

    pub fn evidence(self) -> Evidence {
        let mut evidence = self.evidence;
        let looks = (self.seconds * 10.0).round() as u64;
        for look in 0..=looks {
            let second = look as f64 / 10.0;
            let cores = (0..self.cores).map(|core| {
                let mut parts = [0.0f64; 4];
                for (c, from, to, kind, share) in &self.loads {
                    if *c == core {
                        parts[*kind as usize] += (second.min(*to) - from).max(0.0) * share;
                    }
                }
                let ticks = parts.map(|seconds| (seconds * 100.0 + 1e-6).floor() as u64);
                let all = (second * 100.0).round() as u64;
                CoreTicks {
                    core,
                    user: 1000 + ticks[Load::User as usize],
                    system: 1000 + ticks[Load::System as usize],
                    softirq: 1000 + ticks[Load::Softirq as usize],
                    irq: 1000 + ticks[Load::Irq as usize],
                    idle: 9000 + all.saturating_sub(ticks.iter().sum()),
                    ..CoreTicks::default()
                }
            });
            evidence.core_times.push(CoreTimes { at: time(second), cores: cores.collect() });
        }
        for actor in &self.actors {
            evidence.threads.push(actor.thread.clone());
            evidence.processes.push(actor.process.clone());
            for look in (0..=looks).filter(|l| l % 2 == 0 || *l == looks) {
                if !actor.rarely || look == 0 || look == looks {
                    evidence.thread_samples.push(actor.sample(look as f64 / 10.0));
                }
            }
        }
        evidence
    }
}

pub fn nic(name: &str, core: u32) -> Nic {
    Nic {
        at: time(0.0),
        name: name.to_owned(),
        driver: Some("ena".to_owned()),
        up: Some(true),
        queues: vec![NicQueue {
            kind: QueueKind::Rx,
            map: MapSource::Name,
            irq: Some(38),
            irq_cores: Some(CoreSet::new([core])),
            ..NicQueue::default()
        }],
        ..Nic::default()
    }
}
