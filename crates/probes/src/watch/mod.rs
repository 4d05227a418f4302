//! Watches a node for a given time, each probe at its own pace.
//!
//! Cores are read ten times a second by their own thread, so that a slow read elsewhere leaves no gap in what matters most.
//! Network devices, systemd and the audit of agents, which may all block, have their own threads too. All other probes take turns
//! on the caller's thread. Each has a pace and a budget: a probe that is expensive on this node (thousands of threads, 192 cores
//! × 500 interrupts) runs less often, so that watching stays cheap. Everything is read at the beginning and at the end, whatever
//! it costs.
//!
//! A watch may also run for months ([`Watch::start_endless`]): at slower paces, with bounded memory, and reporting everything
//! anew whenever a new segment of the recording begins ([`Watch::tell_anew`]).

mod audit;
mod cores_thread;
mod endless;
mod gaps;
mod homes;
mod nic_thread;
mod pace;
mod paces;
mod said;
mod unit_looks;
mod zombie_thread;
pub mod zombies;

use crate::cgroups::{Cgroups, Reread};
use crate::churn::{ChurnOptions, ChurnReader, Way};
use crate::conntrack::ConntrackReader;
use crate::cores::SchedstatReader;
use crate::exits::ExitReader;
use crate::identity;
use crate::interrupts::InterruptReader;
use crate::kernel_log::KernelLog;
use crate::kernel_work::{KernelSampler, Naming, RATE_HZ};
use crate::memory::MemoryReader;
use crate::pressure::PressureReader;
use crate::root::{Root, now, own_cpu, read_clocks};
use crate::softirqs::SoftirqReader;
use crate::softnet::SoftnetReader;
use crate::tasks::TaskReader;
use crate::waits::WaitReader;
use crate::zombies::{Bpf, LookOptions, look};
use audit::Audit;
use cores_thread::sample_cores;
use coroner_evidence::{Cost, Evidence, FileQuestion, TextFile, Time};
use endless::Endless;
use homes::ProcessHomes;
use nic_thread::{NicRequest, NicThread};
use paces::Paces;
use std::sync::mpsc::Receiver;
use std::time::Duration;
use unit_looks::UnitLooks;

/// How long the first and last look wait for network devices, which may be resetting.
const NICS_PATIENCE: Duration = Duration::from_secs(1);
/// A new NAPI thread means a new device or queue, so the map is read early, but no more often than this.
const NIC_MAP_AT_NEWS: Duration = Duration::from_secs(10);

/// How long the end waits for the audit's pending reads.
const AUDIT_PATIENCE: Duration = Duration::from_secs(1);

/// With at least this many dead memory cgroups, they and all kernel work are named.
const DEAD_WORTH_NAMING: u64 = 100;
/// They are named again at the end of the watch if this many came or went.
const OTHERS: u64 = 10;
/// Time limit of a scan for them; 60,000 take a third of a second.
const ZOMBIES_LIMIT: Duration = Duration::from_secs(3);

/// When dead memory cgroups are named.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum NameZombies {
    /// At the beginning, if there are many; at the end, if there are many that were not named yet.
    #[default]
    IfMany,
    /// However few there are, at the beginning and at the end.
    Always,
}

#[derive(Debug, Clone)]
pub struct WatchOptions {
    pub zombies: NameZombies,
    /// D-Bus address of systemd; `None` is the system bus.
    pub bus: Option<String>,
    /// Treat kernel log lines written by user space as the kernel's own (tests).
    pub pretend_kernel_log: bool,
    /// Also read what is installed to run.
    pub audit: Option<AuditOptions>,
    /// Sample what the kernel spends its time on. Not needed if all stacks are sampled anyway.
    pub kernel_work: bool,
    /// With [`Bpf::No`] no BPF program is loaded, and what only BPF can see is not seen. An endless watch ignores it for dead
    /// cgroups.
    pub bpf: Bpf,
}

impl Default for WatchOptions {
    fn default() -> WatchOptions {
        WatchOptions {
            zombies: NameZombies::default(),
            bus: None,
            pretend_kernel_log: false,
            audit: None,
            kernel_work: true,
            bpf: Bpf::Best,
        }
    }
}

/// What the audit of agents needs beyond what is read anyway.
#[derive(Debug, Clone, Default)]
pub struct AuditOptions {
    /// Files that known agents need.
    pub questions: Vec<FileQuestion>,
    /// Shell patterns of the units of known agents, whose logs and sockets are read.
    pub agent_units: Vec<String>,
    /// Passed on with the evidence.
    pub catalogues: Vec<TextFile>,
    pub baseline: Option<TextFile>,
}

/// A node being watched. `next_turn` returns what was seen since the last call, until the time is up.
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
    /// `None` at the end.
    waits: Option<WaitReader>,
    /// `None` if others sample, and at the end.
    sampler: Option<KernelSampler>,
    root: Root,
    zombies: NameZombies,
    /// How many there were when they were named at the beginning; `None` if they were not.
    zombies_named: Option<u64>,
    bpf: Bpf,
    log: KernelLog,
    units: UnitLooks,
    /// `None` if not requested.
    audit: Option<Audit>,
    paces: Paces,
    /// `None` for a watch of limited time.
    endless: Option<Endless>,
}

/// The simple counters, read together.
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
    pub fn start(root: Root, options: WatchOptions, duration: Duration) -> Watch {
        let cpu_before = own_cpu();
        let (zombies, kernel_work) = (options.zombies, options.kernel_work);
        let mut watch = Watch::new(root, options, duration, Paces::close());
        let mut first = Evidence::default();
        watch.begin(&mut first);
        let many = many_zombies(&first);
        if many || zombies == NameZombies::Always {
            watch.name_zombies(&mut first);
            watch.zombies_named = first.zombie_scans.last().and_then(|scan| scan.dead);
        }
        if kernel_work {
            watch.sample_kernel(many, &mut first);
        }
        watch.begun(first, cpu_before, duration)
    }

    fn new(root: Root, options: WatchOptions, duration: Duration, paces: Paces) -> Watch {
        let cores = sample_cores(root.clone());
        let log = if options.pretend_kernel_log {
            KernelLog::pretending_to_be_the_kernel(root.clone())
        } else {
            KernelLog::new(root.clone())
        };
        let audit = options.audit.map(|audit| Audit::start(root.clone(), options.bus.as_deref(), audit));
        Watch {
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
            waits: None,
            sampler: None,
            zombies: options.zombies,
            zombies_named: None,
            bpf: options.bpf,
            log,
            units: UnitLooks::new(root.clone(), options.bus, duration),
            audit,
            paces,
            endless: None,
            root,
        }
    }

    /// Takes the first look and starts the probes that run in the kernel.
    fn begin(&mut self, first: &mut Evidence) {
        self.look_at_all(first);
        self.cgroups.start_stat_read(now(), first);
        let only = (self.bpf == Bpf::No).then_some(Way::Perf);
        self.churn = Some(ChurnReader::start(&self.root, &ChurnOptions { only, ..ChurnOptions::default() }));
        self.exits = Some(match self.bpf {
            Bpf::No => ExitReader::without_bpf(&self.root),
            Bpf::Best | Bpf::Only(_) => ExitReader::start(&self.root),
        });
        self.waits = Some(match self.bpf {
            Bpf::No => WaitReader::without_bpf(&self.root, self.paces.waits),
            Bpf::Best | Bpf::Only(_) => WaitReader::start(&self.root, self.paces.waits),
        });
        if let Some(waits) = &mut self.waits {
            waits.look(now(), first);
        }
    }

    fn sample_kernel(&mut self, many_zombies: bool, first: &mut Evidence) {
        let naming = if many_zombies { Naming::Always } else { Naming::IfMuch };
        self.sampler = Some(KernelSampler::start(&self.root, RATE_HZ, naming, now(), first));
    }

    fn begun(mut self, mut first: Evidence, cpu_before: Duration, duration: Duration) -> Watch {
        identity::identify(&self.root, &mut first);
        self.first = Some(first);
        self.startup_cpu = own_cpu().saturating_sub(cpu_before);
        self.started = now();
        self.until = self.started + duration;
        self
    }

    /// Time since the first look.
    pub fn elapsed(&self) -> Duration {
        now().since(self.started)
    }

    /// Ends the watch early: the next turn is the last.
    pub fn stop(&mut self) {
        self.until = self.until.min(now());
    }

    /// What was seen since the last call. Sleeps until the next turn; `None` when the time is up.
    pub fn next_turn(&mut self) -> Option<Evidence> {
        if let Some(first) = self.first.take() {
            return Some(first);
        }
        if self.done {
            return None;
        }
        let wake = (now() + self.paces.turn).min(self.until);
        std::thread::sleep(wake.since(now()));
        let mut evidence = Evidence::default();
        self.done = now() >= self.until;
        match (self.done, self.endless.is_some()) {
            (false, false) => self.look_at_what_is_due(&mut evidence),
            (true, false) => self.look_for_the_last_time(&mut evidence),
            (false, true) => self.endless_turn(&mut evidence),
            (true, true) => self.end_endless(&mut evidence),
        }
        if !self.done || self.endless.is_some() {
            self.collect_cores(&mut evidence);
        }
        if let Some(endless) = &mut self.endless {
            endless.said.leave_new(&mut evidence);
        }
        evidence.cost = Some(self.cost());
        Some(evidence)
    }

    fn collect_cores(&mut self, evidence: &mut Evidence) {
        for seen in self.cores.try_iter() {
            evidence.append(seen);
        }
    }

    fn look_for_the_last_time(&mut self, evidence: &mut Evidence) {
        self.look_at_all(evidence);
        // The rest can take as long as a core stays in the kernel (detaching from tracepoints waits for every core, a reset holds a lock): nobody would
        // read the samples meanwhile, and what the cores do then is not part of the watch.
        if let Some(sampler) = self.sampler.take() {
            sampler.finish(now(), evidence);
        }
        self.collect_cores(evidence);
        self.nics.collect_last(NICS_PATIENCE, evidence);
        self.units.finish(evidence);
        self.cgroups.collect_stat_read(evidence);
        self.finish_in_kernel(evidence);
        // After the last events, so that each cgroup reported as left can be looked up.
        if self.zombies == NameZombies::Always || self.has_other_zombies(evidence) {
            self.name_zombies(evidence);
        }
        if let Some(audit) = &mut self.audit {
            audit.finish(AUDIT_PATIENCE, evidence);
        }
    }

    fn finish_in_kernel(&mut self, evidence: &mut Evidence) {
        if let Some(churn) = self.churn.take() {
            churn.finish(now(), evidence);
        }
        if let Some(exits) = self.exits.take() {
            exits.finish(now(), evidence);
        }
        if let Some(waits) = self.waits.take() {
            waits.finish(now(), evidence);
        }
        if let Some(sampler) = self.sampler.take() {
            sampler.finish(now(), evidence);
        }
    }

    fn look_at_what_is_due(&mut self, evidence: &mut Evidence) {
        if self.paces.all_threads.is_due() {
            self.look_at_all_threads(evidence);
        } else if self.paces.hot_threads.is_due() {
            self.paces.hot_threads.pay(|at| self.tasks.look_hot(at, evidence));
            self.homes.note(evidence);
        } else if let Some(pace) = self.paces.waiting_threads.as_mut().filter(|pace| pace.is_due()) {
            pace.pay(|at| self.tasks.look_waiting(at, evidence));
        }
        // Reported when it is created or its affinity changes.
        if evidence.threads.iter().any(|thread| thread.kernel && thread.comm.starts_with("napi/")) {
            self.paces.nic_map.hasten(NIC_MAP_AT_NEWS);
        }
        if self.paces.counters.is_due() {
            self.look_at_counters(evidence);
        }
        if self.paces.softirqs.is_due() {
            self.paces.softirqs.pay(|at| self.softirqs.look(at, evidence));
        }
        if self.paces.interrupts.is_due() {
            self.paces.interrupts.pay(|at| self.interrupts.look(at, evidence));
        }
        if self.paces.nic_map.is_due() {
            self.paces.nic_map.pay(|_| {
                self.nics.ask(NicRequest::MapAndCounters);
            });
        } else if self.paces.nic_counters.is_due() {
            self.paces.nic_counters.pay(|_| {
                self.nics.ask(NicRequest::Counters);
            });
        }
        self.nics.collect(Duration::ZERO, evidence);
        if self.paces.cgroups.is_due() {
            self.look_at_cgroups(Reread::Affordable, evidence);
            if let Some(churn) = &mut self.churn {
                churn.look(now(), evidence);
            }
            if let Some(exits) = &mut self.exits {
                exits.look(now(), evidence);
            }
        }
        if let Some(waits) = &mut self.waits {
            waits.look(now(), evidence);
        }
        if self.paces.kernel_work.is_due()
            && let Some(sampler) = &mut self.sampler
        {
            self.paces.kernel_work.pay(|at| sampler.look(at, evidence));
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
        // These threads work while we read the rest.
        self.units.start();
        self.nics.collect(Duration::ZERO, evidence);
        self.paces.nic_map.pay(|_| {
            self.nics.ask(NicRequest::MapAndCounters);
        });
        self.look_at_all_threads(evidence);
        self.look_at_counters(evidence);
        self.paces.softirqs.pay(|at| self.softirqs.look(at, evidence));
        self.paces.interrupts.pay(|at| self.interrupts.look(at, evidence));
        self.look_at_cgroups(Reread::Everything, evidence);
        self.log.look(now(), evidence);
        self.nics.collect(NICS_PATIENCE, evidence);
    }

    fn look_at_all_threads(&mut self, evidence: &mut Evidence) {
        self.paces.all_threads.pay(|at| self.tasks.look_all(at, evidence));
        self.homes.note(evidence);
        self.homes.forget_unless(|pid| self.tasks.has_process(pid));
    }

    fn look_at_counters(&mut self, evidence: &mut Evidence) {
        evidence.clocks.push(read_clocks());
        self.paces.counters.pay(|at| self.counters.look(at, evidence));
    }

    fn look_at_cgroups(&mut self, reread: Reread, evidence: &mut Evidence) {
        let (memory, cpu) = self.homes.paths();
        self.paces.cgroups.pay(|at| {
            self.cgroups.look(at, self.homes.all_seen.then_some(&memory), evidence);
            self.cgroups.look_control(at, &cpu, &memory, reread, evidence);
        });
    }

    /// Whether there are many dead memory cgroups now, and not those that were named at the beginning.
    fn has_other_zombies(&self, evidence: &Evidence) -> bool {
        let Some(dead) = evidence.cgroup_censuses.last().and_then(|census| census.dying) else { return false };
        dead >= DEAD_WORTH_NAMING && self.zombies_named.is_none_or(|named| dead.abs_diff(named) >= OTHERS)
    }

    fn name_zombies(&self, evidence: &mut Evidence) {
        let options = LookOptions { root: self.root.clone(), bpf: self.bpf, pins: true, time_limit: ZOMBIES_LIMIT };
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

/// True also for an unknown number.
fn many_zombies(evidence: &Evidence) -> bool {
    let dead = evidence.cgroup_censuses.last().map(|census| census.dying);
    dead.is_some_and(|dead| dead.is_none_or(|dead| dead >= DEAD_WORTH_NAMING))
}

/// Peak resident memory of this process.
fn own_peak_rss() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}
