//! Watches a node: every probe at its own pace, for a given time.
//!
//! Cores are read ten times a second by a thread of their own, so that a slow read elsewhere leaves no hole in what matters most.
//! Network devices, systemd and what the audit of agents reads, all of which may keep one waiting, have theirs, too. All other
//! probes take turns on the caller's thread. Each has a pace, and each pays for itself: a probe that turns out to be expensive on
//! this node (thousands of threads, 192 cores × 500 interrupts) is asked less often, so that the observer stays cheap.
//! Everything is read at the beginning and at the end, whatever it costs.

mod audit;
mod gaps;
mod homes;
mod nic_thread;
mod pace;
mod unit_looks;
pub mod zombies;

use crate::cgroups::{Cgroups, Reread};
use crate::churn::{ChurnOptions, ChurnReader};
use crate::conntrack::ConntrackReader;
use crate::cores::{CoreTimeReader, SchedstatReader};
use crate::exits::ExitReader;
use crate::identity;
use crate::interrupts::InterruptReader;
use crate::kernel_log::KernelLog;
use crate::kernel_samples::{KernelSampler, RATE_HZ};
use crate::memory::MemoryReader;
use crate::pressure::PressureReader;
use crate::root::{Root, clock, now, own_cpu};
use crate::softirqs::SoftirqReader;
use crate::softnet::SoftnetReader;
use crate::tasks::TaskReader;
use crate::zombies::{Bpf, LookOptions, look};
use audit::Audit;
use coroner_evidence::{Clocks, Cost, Evidence, FileQuestion, TextFile, Time};
use gaps::Gaps;
use homes::ProcessHomes;
use nic_thread::{Ask, NicThread};
use pace::Pace;
use rustix::time::ClockId;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;
use unit_looks::UnitLooks;

const CORES_EVERY: Duration = Duration::from_millis(100);
const TURN_EVERY: Duration = Duration::from_millis(200);
const COUNTERS_EVERY: Duration = Duration::from_secs(1);
/// A table of cores × interrupts, which grows with the square of the node.
const INTERRUPTS_EVERY: Duration = Duration::from_secs(2);
const ALL_THREADS_EVERY: Duration = Duration::from_secs(1);
/// Where queues are served changes rarely: irqbalance moves interrupts every 10 s.
const NIC_MAP_EVERY: Duration = Duration::from_secs(10);

/// A probe may use this part of one core: 1/200 = 0.5 %.
const PROBE_SHARE: u32 = 200;
/// The scan of all threads finds the owner of a starved core; where there are thousands of threads it may use 2 %.
const ALL_THREADS_SHARE: u32 = 50;

/// How long the beginning and the end wait for network devices, which may be in a reset.
const NICS_PATIENCE: Duration = Duration::from_secs(1);

/// How long the end waits for what the audit still reads.
const AUDIT_PATIENCE: Duration = Duration::from_secs(1);

/// From so many dead memory cgroups on they are named, and the kernel is sampled for what they cost.
const DEAD_WORTH_NAMING: u64 = 100;
/// How long a scan for them may take; 60,000 take a third of a second.
const ZOMBIES_LIMIT: Duration = Duration::from_secs(3);

/// When dead memory cgroups are named.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum NameZombies {
    /// At the beginning, if they are many.
    #[default]
    IfMany,
    /// However few there are, at the beginning and at the end.
    Always,
}

#[derive(Debug, Clone, Default)]
pub struct Options {
    pub zombies: NameZombies,
    /// D-Bus address of systemd; `None` is the system bus.
    pub bus: Option<String>,
    /// Take kernel log lines written by user space for the kernel's own (tests).
    pub pretend_kernel_log: bool,
    /// Read what is installed to run, too.
    pub audit: Option<AuditOptions>,
}

/// What the audit of agents wants to know beyond what is looked at anyway.
#[derive(Debug, Clone, Default)]
pub struct AuditOptions {
    /// Files that known agents need.
    pub questions: Vec<FileQuestion>,
    /// Shell patterns of the units of known agents: their logs and sockets are looked at.
    pub agent_units: Vec<String>,
    /// Handed on with the evidence.
    pub catalogues: Vec<TextFile>,
    pub baseline: Option<TextFile>,
}

/// A node being watched. `next_turn` gives what was seen since the last call, until the time is over.
pub struct Watch {
    started: Time,
    until: Time,
    startup_cpu: Duration,
    first: Option<Evidence>,
    done: bool,
    cores: Receiver<Evidence>,
    tasks: TaskReader,
    homes: ProcessHomes,
    counters: CounterProbes,
    softirqs: SoftirqReader,
    interrupts: InterruptReader,
    nics: NicThread,
    cgroups: Cgroups,
    /// `None` at the end.
    churn: Option<ChurnReader>,
    /// `None` at the end.
    exits: Option<ExitReader>,
    /// `None` where there is no reason to sample, and at the end.
    sampler: Option<KernelSampler>,
    root: Root,
    zombies: NameZombies,
    log: KernelLog,
    units: UnitLooks,
    /// `None` where nobody asked for it.
    audit: Option<Audit>,
    hot_threads_pace: Pace,
    all_threads_pace: Pace,
    counters_pace: Pace,
    softirqs_pace: Pace,
    interrupts_pace: Pace,
    nic_counters_pace: Pace,
    nic_map_pace: Pace,
    cgroups_pace: Pace,
}

/// The plain counters, read together.
struct CounterProbes {
    schedstat: SchedstatReader,
    softnet: SoftnetReader,
    pressure: PressureReader,
    memory: MemoryReader,
    conntrack: ConntrackReader,
}

impl CounterProbes {
    fn new(root: &Root) -> CounterProbes {
        CounterProbes {
            schedstat: SchedstatReader::new(root),
            softnet: SoftnetReader::new(root),
            pressure: PressureReader::new(root),
            memory: MemoryReader::new(root),
            conntrack: ConntrackReader::new(root),
        }
    }

    fn look(&mut self, at: Time, evidence: &mut Evidence) {
        self.schedstat.look(at, evidence);
        self.softnet.look(at, evidence);
        self.pressure.look(at, evidence);
        self.memory.look(at, evidence);
        self.conntrack.look(at, evidence);
    }
}

impl Watch {
    /// Takes the first look at everything.
    pub fn start(root: Root, options: Options, duration: Duration) -> Watch {
        let cpu_before = own_cpu();
        let cores = sample_cores(root.clone());
        let log = if options.pretend_kernel_log {
            KernelLog::pretending_to_be_the_kernel(root.clone())
        } else {
            KernelLog::new(root.clone())
        };
        let audit = options.audit.map(|audit| Audit::start(root.clone(), options.bus.as_deref(), audit));
        let mut watch = Watch {
            started: now(),
            until: now(),
            startup_cpu: Duration::ZERO,
            first: None,
            done: false,
            cores,
            tasks: TaskReader::new(root.clone()),
            homes: ProcessHomes::new(),
            counters: CounterProbes::new(&root),
            softirqs: SoftirqReader::new(&root),
            interrupts: InterruptReader::new(&root),
            nics: NicThread::start(root.clone()),
            cgroups: Cgroups::new(root.clone()),
            churn: None,
            exits: None,
            sampler: None,
            root: root.clone(),
            zombies: options.zombies,
            log,
            units: UnitLooks::new(root.clone(), options.bus, duration),
            audit,
            hot_threads_pace: Pace::new(TURN_EVERY, PROBE_SHARE),
            all_threads_pace: Pace::new(ALL_THREADS_EVERY, ALL_THREADS_SHARE),
            counters_pace: Pace::new(COUNTERS_EVERY, PROBE_SHARE),
            softirqs_pace: Pace::new(TURN_EVERY, PROBE_SHARE),
            interrupts_pace: Pace::new(INTERRUPTS_EVERY, PROBE_SHARE),
            nic_counters_pace: Pace::new(COUNTERS_EVERY, PROBE_SHARE),
            nic_map_pace: Pace::new(NIC_MAP_EVERY, PROBE_SHARE),
            cgroups_pace: Pace::new(COUNTERS_EVERY, PROBE_SHARE),
        };
        let mut first = Evidence::default();
        watch.look_at_all(&mut first);
        watch.cgroups.start_stat_read(now(), &mut first);
        watch.churn = Some(ChurnReader::start(&root, &ChurnOptions::default()));
        watch.exits = Some(ExitReader::start(&root));
        let dead = first.cgroup_censuses.last().map(|c| c.dying);
        let many = dead.is_some_and(|dead| dead.is_none_or(|n| n >= DEAD_WORTH_NAMING));
        if many || options.zombies == NameZombies::Always {
            watch.name_zombies(&mut first);
        }
        if many {
            watch.sampler = Some(KernelSampler::start(&root, RATE_HZ, now(), &mut first));
        }
        identity::identify(&root, &mut first);
        watch.first = Some(first);
        watch.startup_cpu = own_cpu().saturating_sub(cpu_before);
        watch.started = now();
        watch.until = watch.started + duration;
        watch
    }

    /// How long the node has been watched since the first look.
    pub fn elapsed(&self) -> Duration {
        now().since(self.started)
    }

    /// Ends the watch early: the next turn is the last.
    pub fn stop(&mut self) {
        self.until = self.until.min(now());
    }

    /// What was seen since the last call. Sleeps until there is something; `None` when the time is over.
    pub fn next_turn(&mut self) -> Option<Evidence> {
        if let Some(first) = self.first.take() {
            return Some(first);
        }
        if self.done {
            return None;
        }
        let wake = (now() + TURN_EVERY).min(self.until);
        std::thread::sleep(wake.since(now()));
        let mut evidence = Evidence::default();
        if now() >= self.until {
            self.done = true;
            self.look_at_all(&mut evidence);
            self.nics.collect_last(NICS_PATIENCE, &mut evidence);
            self.units.finish(&mut evidence);
            self.cgroups.collect_stat_read(&mut evidence);
            if let Some(churn) = self.churn.take() {
                churn.finish(now(), &mut evidence);
            }
            if let Some(exits) = self.exits.take() {
                exits.finish(now(), &mut evidence);
            }
            if let Some(sampler) = self.sampler.take() {
                sampler.finish(now(), &mut evidence);
            }
            if self.zombies == NameZombies::Always {
                self.name_zombies(&mut evidence);
            }
            if let Some(audit) = &mut self.audit {
                audit.finish(AUDIT_PATIENCE, &mut evidence);
            }
        } else {
            self.look_at_what_is_due(&mut evidence);
        }
        for seen in self.cores.try_iter() {
            evidence.append(seen);
        }
        evidence.cost = Some(self.cost());
        Some(evidence)
    }

    fn look_at_what_is_due(&mut self, evidence: &mut Evidence) {
        if self.all_threads_pace.is_due() {
            self.look_at_all_threads(evidence);
        } else if self.hot_threads_pace.is_due() {
            let Watch { hot_threads_pace, tasks, .. } = self;
            hot_threads_pace.pay(|at| tasks.look_hot(at, evidence));
            self.homes.note(evidence);
        }
        if self.counters_pace.is_due() {
            self.look_at_counters(evidence);
        }
        // More often than the others: whether a full core still handles packets must be told within its second.
        if self.softirqs_pace.is_due() {
            self.softirqs_pace.pay(|at| self.softirqs.look(at, evidence));
        }
        if self.interrupts_pace.is_due() {
            self.interrupts_pace.pay(|at| self.interrupts.look(at, evidence));
        }
        if self.nic_map_pace.is_due() {
            self.nic_map_pace.pay(|_| self.nics.ask(Ask::MapAndCounters));
        } else if self.nic_counters_pace.is_due() {
            self.nic_counters_pace.pay(|_| self.nics.ask(Ask::Counters));
        }
        self.nics.collect(Duration::ZERO, evidence);
        if self.cgroups_pace.is_due() {
            self.look_at_cgroups(Reread::Affordable, evidence);
            if let Some(churn) = &mut self.churn {
                churn.look(now(), evidence);
            }
            if let Some(exits) = &mut self.exits {
                exits.look(now(), evidence);
            }
            if let Some(sampler) = &mut self.sampler {
                sampler.look(now(), evidence);
            }
        }
        self.log.look(now(), evidence);
        self.units.look_if_due(self.until, evidence);
        if let Some(audit) = &mut self.audit {
            audit.turn(evidence);
        }
        self.cgroups.collect_stat_read(evidence);
    }

    /// Everything, whatever it costs: the beginning and the end of a window.
    fn look_at_all(&mut self, evidence: &mut Evidence) {
        // Other threads answer while the rest is read.
        self.units.start();
        self.nics.collect(Duration::ZERO, evidence);
        self.nic_map_pace.pay(|_| self.nics.ask(Ask::MapAndCounters));
        self.look_at_all_threads(evidence);
        self.look_at_counters(evidence);
        self.softirqs_pace.pay(|at| self.softirqs.look(at, evidence));
        self.interrupts_pace.pay(|at| self.interrupts.look(at, evidence));
        self.look_at_cgroups(Reread::Everything, evidence);
        self.log.look(now(), evidence);
        self.nics.collect(NICS_PATIENCE, evidence);
    }

    fn look_at_all_threads(&mut self, evidence: &mut Evidence) {
        self.all_threads_pace.pay(|at| self.tasks.look_all(at, evidence));
        self.homes.note(evidence);
        self.homes.forget_unless(|pid| self.tasks.has_process(pid));
    }

    fn look_at_counters(&mut self, evidence: &mut Evidence) {
        evidence.clocks.push(read_clocks());
        self.counters_pace.pay(|at| self.counters.look(at, evidence));
    }

    fn look_at_cgroups(&mut self, reread: Reread, evidence: &mut Evidence) {
        let (memory, cpu) = self.homes.paths();
        self.cgroups_pace.pay(|at| {
            self.cgroups.look(at, self.homes.all_seen.then_some(&memory), evidence);
            self.cgroups.look_control(at, &cpu, &memory, reread, evidence);
        });
    }

    fn name_zombies(&self, evidence: &mut Evidence) {
        let options = LookOptions { root: self.root.clone(), bpf: Bpf::Best, pins: true, time_limit: ZOMBIES_LIMIT };
        if let Some(scan) = look(&options, evidence) {
            evidence.zombie_scans.push(scan);
        }
    }

    fn cost(&self) -> Cost {
        Cost {
            startup_cpu_ms: self.startup_cpu.as_millis() as u64,
            cpu_ms: own_cpu().saturating_sub(self.startup_cpu).as_millis() as u64,
            peak_rss_bytes: own_peak_rss(),
        }
    }
}

/// A thread that reads the cores until nobody listens any more.
fn sample_cores(root: Root) -> Receiver<Evidence> {
    let (sender, receiver) = channel();
    let mut reader = CoreTimeReader::new(&root);
    let sample = move || {
        let mut next = now();
        let mut gaps = Gaps::default();
        loop {
            let mut evidence = Evidence::default();
            let at = now();
            gaps.note(at, clock(ClockId::Realtime), &mut evidence);
            reader.look(at, &mut evidence);
            if sender.send(evidence).is_err() {
                return;
            }
            // From the planned moment, so that the pace does not drift; if we were held up, no burst follows.
            next = (next + CORES_EVERY).max(now());
            std::thread::sleep(next.since(now()));
        }
    };
    // Without a thread nothing is sent, and the caller says that the cores could not be seen.
    let _ = std::thread::Builder::new().name("cores".to_owned()).spawn(sample);
    receiver
}

fn read_clocks() -> Clocks {
    Clocks { at: now(), real_ns: clock(ClockId::Realtime).0, boot_ns: clock(ClockId::Boottime).0 }
}

/// The most memory this process ever had resident.
fn own_peak_rss() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}
