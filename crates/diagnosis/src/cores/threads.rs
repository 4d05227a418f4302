//! Threads: who they are, and what they consumed from sample to sample.

use coroner_evidence::tasks::SchedulingClass;
use coroner_evidence::{CoreSet, Evidence, Order, Process, Thread, ThreadKey, ThreadSample, Time};
use serde::Serialize;
use std::collections::HashMap;

/// A thread, with everything that tells a person whose it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Who {
    pub tid: u32,
    pub pid: Option<u32>,
    pub comm: String,
    /// Program, or interpreter and script, of its process.
    pub command: Option<String>,
    pub kernel: bool,
    pub unit: Option<String>,
    pub pod_uid: Option<String>,
    pub container_id: Option<String>,
    pub ray_job: Option<String>,
    pub ray_entry_point: Option<String>,
    #[serde(serialize_with = "class_text")]
    pub class: SchedulingClass,
    pub rt_priority: u8,
    pub nice: i8,
    /// Where it may run; `None` if that was not read.
    pub affinity: Option<CoreSet>,
    /// One of our own threads.
    #[serde(skip)]
    pub observer: bool,
}

fn class_text<S: serde::Serializer>(class: &SchedulingClass, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(class.as_str())
}

impl Who {
    /// `spin[4711]`
    pub fn name(&self) -> String {
        format!("{}[{}]", self.comm.replace('`', "'"), self.tid)
    }

    /// `SCHED_FIFO 50`, `SCHED_OTHER nice -20`, `SCHED_OTHER`.
    pub fn scheduling(&self) -> String {
        match (self.class.is_real_time(), self.nice) {
            (true, _) if self.rt_priority > 0 => format!("{} {}", self.class.as_str(), self.rt_priority),
            (false, nice) if nice != 0 => format!("{} nice {nice}", self.class.as_str()),
            _ => self.class.as_str().to_owned(),
        }
    }

    /// Everything that helps to find out who started it: ` (python3 train.py, a thread of process 4700, Ray job 02000000)`.
    /// Empty if only the name is known.
    pub fn belongs_to(&self) -> String {
        let mut parts = Vec::new();
        if self.kernel {
            parts.push("a kernel thread".to_owned());
        }
        if let Some(command) = &self.command
            && *command != self.comm
        {
            parts.push(command.clone());
        }
        if let Some(pid) = self.pid
            && pid != self.tid
        {
            parts.push(format!("a thread of process {pid}"));
        }
        if let Some(unit) = &self.unit {
            parts.push(format!("unit {unit}"));
        }
        if let Some(pod) = &self.pod_uid {
            parts.push(format!("pod {pod}"));
        }
        if let Some(container) = &self.container_id {
            // As docker ps and crictl ps shorten it.
            let short: String = container.chars().take(12).collect();
            parts.push(format!("container {short}"));
        }
        if let Some(job) = &self.ray_job {
            parts.push(format!("Ray job {job}"));
        }
        if let Some(entry) = &self.ray_entry_point {
            parts.push(format!("Ray {entry}"));
        }
        if parts.is_empty() { String::new() } else { format!(" ({})", parts.join(", ")) }
    }

    pub fn is_ksoftirqd_of(&self, core: u32) -> bool {
        is_ksoftirqd_of(&self.comm, core)
    }

    pub fn is_napi(&self) -> bool {
        is_napi(&self.comm)
    }
}

pub fn is_ksoftirqd_of(comm: &str, core: u32) -> bool {
    comm.strip_prefix("ksoftirqd/").is_some_and(|n| n.parse() == Ok(core))
}

/// A NAPI thread (net/core/dev.c, napi_kthread_create).
pub fn is_napi(comm: &str) -> bool {
    comm.starts_with("napi/")
}

/// One thread over time.
#[derive(Debug)]
pub struct ThreadLine<'a> {
    pub key: ThreadKey,
    pub about: Option<&'a Thread>,
    pub process: Option<&'a Process>,
    /// One of our own threads, or of another coroner.
    pub observer: bool,
    /// By time. A thread born while we watched begins with a sample of zeros at its birth.
    pub samples: Vec<ThreadSample>,
}

impl ThreadLine<'_> {
    pub fn who(&self) -> Who {
        let owner = self.process.map(|p| &p.owner);
        let ray = self.process.and_then(|p| p.ray.as_ref());
        Who {
            tid: self.key.tid,
            pid: self.about.map(|t| t.pid),
            comm: match (self.about, self.process) {
                (Some(thread), _) => thread.comm.clone(),
                (None, Some(process)) => process.comm.clone(),
                (None, None) => "thread".to_owned(),
            },
            command: self.process.and_then(|p| p.command.clone()),
            kernel: self.is_kernel(),
            unit: owner.and_then(|o| o.unit.clone()),
            pod_uid: owner.and_then(|o| o.pod_uid.clone()),
            container_id: owner.and_then(|o| o.container_id.clone()),
            ray_job: ray.and_then(|r| r.job_id.clone()),
            ray_entry_point: ray.and_then(|r| r.entry_point.clone()),
            class: self.about.map_or(SchedulingClass::Unknown, |t| t.class),
            rt_priority: self.about.map_or(0, |t| t.rt_priority),
            nice: self.about.map_or(0, |t| t.nice),
            affinity: self.about.and_then(|t| t.affinity.clone()),
            observer: self.observer,
        }
    }

    pub fn is_kernel(&self) -> bool {
        self.about.is_some_and(|t| t.kernel)
    }

    /// The only core it may run on, where that is known.
    pub fn only_core(&self) -> Option<u32> {
        self.about?.affinity.as_ref()?.single()
    }
}

/// All threads that were sampled.
#[derive(Debug)]
pub struct Threads<'a> {
    pub lines: Vec<ThreadLine<'a>>,
}

/// The samples of each thread, by thread and time.
fn samples_by_thread(evidence: &Evidence) -> Vec<(ThreadKey, Vec<ThreadSample>)> {
    let mut places: HashMap<ThreadKey, usize> = HashMap::new();
    let mut by_thread: Vec<(ThreadKey, Vec<ThreadSample>)> = Vec::new();
    for sample in &evidence.thread_samples {
        let place = *places.entry(sample.key).or_insert_with(|| {
            by_thread.push((sample.key, Vec::new()));
            by_thread.len() - 1
        });
        by_thread[place].1.push(*sample);
    }
    by_thread.order_by_key(|(key, _)| *key);
    let first_look = evidence.thread_samples.iter().map(|s| s.at).min();
    let in_order = |(key, mut samples): (ThreadKey, Vec<ThreadSample>)| {
        samples.order_by_key(|s| s.at);
        samples.dedup_by_key(|s| s.at);
        if let Some(birth) = birth(evidence, first_look, &samples) {
            samples.insert(0, birth);
        }
        (key, samples)
    };
    by_thread.into_iter().map(in_order).collect()
}

impl<'a> Threads<'a> {
    pub fn of(evidence: &'a Evidence) -> Threads<'a> {
        // The latest counts: class and affinity may have changed while we watched.
        let mut about: HashMap<ThreadKey, &Thread> = HashMap::new();
        for thread in &evidence.threads {
            let latest = about.entry(thread.key).or_insert(thread);
            if thread.at >= latest.at {
                *latest = thread;
            }
        }
        let mut processes: HashMap<u32, &Process> = HashMap::new();
        for process in &evidence.processes {
            let latest = processes.entry(process.pid).or_insert(process);
            if process.at >= latest.at {
                *latest = process;
            }
        }
        let line = |(key, samples): (ThreadKey, Vec<ThreadSample>)| {
            let about = about.get(&key).copied();
            let pid = about.map_or(key.tid, |t| t.pid);
            let process = processes.get(&pid).copied();
            // Most processes are looked up only here, so that a recording with thousands of threads is not searched for each.
            let observer = match evidence.observers.is_empty() {
                true => process.is_some_and(|p| evidence.is_observer(p.pid, Some(p.started))),
                false => evidence.is_observer(pid, process.map(|p| p.started)),
            };
            ThreadLine { key, about, process, observer, samples }
        };
        Threads { lines: samples_by_thread(evidence).into_iter().map(line).collect() }
    }

    /// Whether run-queue waits could be read at all.
    pub fn show_waits(&self) -> bool {
        let told = self.lines.iter().filter(|l| l.samples.iter().any(|s| s.sched.is_some())).count();
        told > 0 && told * 2 >= self.lines.len()
    }

    /// hidepid and containers hide kernel threads.
    pub fn show_kernel_threads(&self) -> bool {
        self.lines.iter().any(|l| l.is_kernel())
    }
}

/// A sample of zeros at a thread's birth, if it was born while we watched.
fn birth(evidence: &Evidence, first_look: Option<Time>, samples: &[ThreadSample]) -> Option<ThreadSample> {
    let (first, first_look) = (samples.first()?, first_look?);
    let since_boot_ns = first.key.started.checked_mul(10_000_000)?;
    let at = match evidence.clocks.last() {
        // Start times include time in suspend, evidence does not.
        Some(clocks) => {
            let offset = i128::from(clocks.boot_ns) - i128::from(clocks.at.0);
            Time(u64::try_from(i128::from(since_boot_ns) - offset).ok()?)
        }
        None => Time(since_boot_ns),
    };
    if at < first_look || at >= first.at {
        return None;
    }
    let nothing = coroner_evidence::tasks::SchedTimes { run_ns: 0, wait_ns: 0, slices: 0 };
    Some(ThreadSample {
        at,
        state: 'R',
        user_ticks: 0,
        system_ticks: 0,
        minor_faults: 0,
        major_faults: 0,
        sched: first.sched.map(|_| nothing),
        ..*first
    })
}
