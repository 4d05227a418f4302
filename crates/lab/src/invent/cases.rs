//! Draws cases that nobody wrote down: up to three troubles, their victims, healthy loads and bystanders.
//!
//! A trouble is only an intention. Whether somebody lost anything by it is measured when the case runs.

use crate::actors::load::{Class, Effort};
use crate::draw::Draw;
use serde::Serialize;

/// One case, drawn from its seed and the cores it may use.
#[derive(Debug, Clone, Serialize)]
pub struct Case {
    pub seed: u64,
    pub troubles: Vec<Trouble>,
    pub groups: Vec<Group>,
    pub processes: Vec<Process>,
    pub leak: Option<Leak>,
    pub freeze: Option<Frozen>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Trouble {
    /// A real-time thread on a core that others want.
    RealTime,
    Deadline,
    /// Cgroups whose weights differ by far.
    Weight,
    /// Hogs with a low nice value.
    Nice,
    Forks,
    /// More busy processes on a core than it can serve.
    Crowd,
    Quota,
    /// Cgroups made and never removed.
    Leak,
    /// A frozen file system.
    Block,
}

pub const TROUBLES: [Trouble; 9] = [
    Trouble::RealTime,
    Trouble::Deadline,
    Trouble::Weight,
    Trouble::Nice,
    Trouble::Forks,
    Trouble::Crowd,
    Trouble::Quota,
    Trouble::Leak,
    Trouble::Block,
];

impl Trouble {
    pub fn name(self) -> &'static str {
        match self {
            Trouble::RealTime => "real-time",
            Trouble::Deadline => "deadline",
            Trouble::Weight => "weight",
            Trouble::Nice => "nice",
            Trouble::Forks => "forks",
            Trouble::Crowd => "crowd",
            Trouble::Quota => "quota",
            Trouble::Leak => "leak",
            Trouble::Block => "block",
        }
    }
}

/// A cpu cgroup.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Group {
    /// Cgroups on the way to where the processes are, at least 1.
    pub depth: u64,
    /// Against the default of 100, of the topmost.
    pub weight: Option<u64>,
    /// Of a core, of the innermost.
    pub quota_percent: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Process {
    pub comm: String,
    /// Part of a trouble: started after the others, ended before them.
    pub troubles: bool,
    /// Ended before coroner looks.
    pub over: bool,
    pub work: Work,
    #[serde(serialize_with = "class_name")]
    pub class: Class,
    /// Of a real-time class: its priority; of SCHED_DEADLINE: its percentage of a core.
    pub priority: u32,
    pub nice: i32,
    /// Empty: any.
    pub cores: Vec<u32>,
    pub group: Option<usize>,
}

fn class_name<S: serde::Serializer>(class: &Class, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&format!("{class:?}"))
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Work {
    /// `turn_us` of CPU time every `every_us`; 0: without pause.
    Turns { threads: u64, turn_us: u64, every_us: u64, effort: Effort },
    /// Always `at_once` children, which live for `ms`.
    Children { child: String, at_once: u64, ms: (u64, u64) },
    /// Pairs of threads that wake each other this often before a pause.
    HandOver { pairs: u64, times: u64 },
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Leak {
    pub comm: String,
    pub count: u64,
    pub every_ms: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Frozen {
    pub comm: String,
    pub every_us: u64,
}

impl Process {
    /// Asked to run last, or has a class of its own budget: what it does not get is no loss.
    pub fn is_humble(&self) -> bool {
        self.class != Class::Other || self.nice > 0 || !matches!(self.work, Work::Turns { .. })
    }

    pub fn is_real_time(&self) -> bool {
        matches!(self.class, Class::Fifo | Class::RoundRobin | Class::Deadline)
    }
}

/// Names that say nothing, and some that mislead.
const NAMES: [&str; 14] = [
    "coroner",
    "kworker/0:1",
    "python3",
    "java",
    "kubelet",
    "systemd",
    "ksoftirqd/0",
    "sshd",
    "train",
    "worker",
    "svc",
    "agent",
    "cron",
    "db",
];

/// TASK_COMM_LEN without the final NUL.
const COMM_BYTES: usize = 15;

const CLASSES: [Class; 2] = [Class::Fifo, Class::RoundRobin];

/// Something to draw a case with.
struct Drawing<'c> {
    draw: Draw,
    cores: &'c [u32],
    case: Case,
}

impl Case {
    /// `cores` must not be empty. The same seed draws the same case from the same cores.
    pub fn draw(seed: u64, cores: &[u32]) -> Case {
        let case = Case { seed, troubles: vec![], groups: vec![], processes: vec![], leak: None, freeze: None };
        let mut drawing = Drawing { draw: Draw::new(seed), cores, case };
        // A fifth is healthy.
        let count = match drawing.draw.number(0, 9) {
            0 | 1 => 0,
            2..=6 => 1,
            7 | 8 => 2,
            _ => 3,
        };
        for _ in 0..count {
            drawing.trouble();
        }
        for _ in 0..drawing.draw.number(0, 2) {
            drawing.bystander();
        }
        if count == 0 {
            drawing.healthy_load();
        }
        drawing.efforts();
        // Some troubles are over when somebody looks.
        if drawing.draw.number(0, 9) == 0 {
            drawing.case.processes.iter_mut().for_each(|process| process.over = process.troubles);
        }
        drawing.case
    }

    pub fn has(&self, trouble: Trouble) -> bool {
        self.troubles.contains(&trouble)
    }
}

impl Drawing<'_> {
    fn trouble(&mut self) {
        let several = self.cores.len() >= 2;
        // One of a kind; a real-time thread leaves the other cores to everybody else.
        let possible: Vec<Trouble> = TROUBLES
            .into_iter()
            .filter(|t| !self.case.has(*t))
            .filter(|t| several || !matches!(t, Trouble::RealTime | Trouble::Deadline))
            .filter(|t| {
                *t != Trouble::Deadline && *t != Trouble::RealTime
                    || !(self.case.has(Trouble::RealTime) || self.case.has(Trouble::Deadline))
            })
            .collect();
        let Some(trouble) = self.draw.one_of(&possible) else { return };
        self.case.troubles.push(trouble);
        match trouble {
            Trouble::RealTime => self.real_time(),
            Trouble::Deadline => self.deadline(),
            Trouble::Weight => self.weight(),
            Trouble::Nice => self.nice(),
            Trouble::Forks => self.forks(),
            Trouble::Crowd => self.crowd(),
            Trouble::Quota => self.quota(),
            Trouble::Leak => {
                let (comm, count) = (self.name(), self.draw.number(2_300, 3_500));
                self.case.leak = Some(Leak { comm, count, every_ms: self.draw.number(30, 120) });
            }
            Trouble::Block => {
                self.case.freeze = Some(Frozen { comm: self.name(), every_us: self.draw.number(1_000, 50_000) });
            }
        }
    }

    fn real_time(&mut self) {
        let core = self.core();
        let work = self.work(60, 100, 1);
        let class = self.draw.one_of(&CLASSES).unwrap_or(Class::Fifo);
        let (comm, priority) = (self.name(), self.draw.number(1, 98) as u32);
        let hog = Process { troubles: true, class, priority, ..ordinary(comm, work, vec![core]) };
        self.victim(vec![core], None);
        self.case.processes.push(hog);
    }

    fn deadline(&mut self) {
        let (comm, priority) = (self.name(), self.draw.number(70, 90) as u32);
        // It may use every core, so there is a victim on each.
        for &core in self.cores {
            let comm = self.name();
            self.case.processes.push(ordinary(comm, without_pause(1), vec![core]));
        }
        let hog = ordinary(comm, without_pause(1), vec![]);
        self.case.processes.push(Process { troubles: true, class: Class::Deadline, priority, ..hog });
    }

    fn weight(&mut self) {
        let cores = self.some_cores();
        // On every core, heavier ones would starve coroner as well.
        let heavy: &[u64] = if cores.len() < self.cores.len() { &[100, 400, 1000] } else { &[100] };
        let (light, heavy) = (self.draw.one_of(&[1, 2, 5, 10]), self.draw.one_of(heavy));
        let (light, heavy) = (self.group(light, None), self.group(heavy, None));
        self.victim(cores.clone(), Some(light));
        let threads = cores.len() as u64 + self.draw.number(0, 1);
        let hog = ordinary(self.name(), without_pause(threads), cores);
        self.case.processes.push(Process { troubles: true, group: Some(heavy), ..hog });
    }

    fn nice(&mut self) {
        let cores = self.some_cores();
        self.victim(cores.clone(), None);
        // As for weights.
        let most = if cores.len() < self.cores.len() { 20 } else { 9 };
        let (nice, threads) = (-(self.draw.number(6, most) as i32), cores.len() as u64);
        let hog = ordinary(self.name(), without_pause(threads), cores);
        self.case.processes.push(Process { troubles: true, nice, ..hog });
    }

    fn forks(&mut self) {
        let cores = self.some_cores();
        self.victim(cores.clone(), None);
        let least = self.draw.number(3, 30);
        let work = Work::Children {
            child: self.name(),
            at_once: cores.len() as u64 * self.draw.number(4, 8),
            ms: (least, least + self.draw.number(0, 40)),
        };
        let process = Process { troubles: true, ..ordinary(self.name(), work, cores) };
        self.case.processes.push(process);
    }

    fn crowd(&mut self) {
        let core = self.core();
        for _ in 0..self.draw.number(3, 7) {
            let work = self.work(70, 100, 1);
            let process = Process { troubles: true, ..ordinary(self.name(), work, vec![core]) };
            self.case.processes.push(process);
        }
    }

    fn quota(&mut self) {
        let percent = self.draw.number(8, 35);
        let group = self.group(None, Some(percent));
        let work = without_pause(self.draw.number(1, 3));
        let process = Process { group: Some(group), ..ordinary(self.name(), work, vec![]) };
        self.case.processes.push(process);
    }

    /// An ordinary process that wants much of a core, or some of it.
    fn victim(&mut self, cores: Vec<u32>, group: Option<usize>) {
        let work = self.work(20, 100, 1);
        let process = Process { group, ..ordinary(self.name(), work, cores) };
        self.case.processes.push(process);
    }

    /// What everybody does in its turns.
    fn efforts(&mut self) {
        for process in &mut self.case.processes {
            let Work::Turns { threads, effort, .. } = &mut process.work else { continue };
            let drawn = self.draw.one_of(&[Effort::Spin, Effort::Fault, Effort::Read, Effort::Write]);
            // Threads of one process that fault wait for each other, not for a core.
            *effort = drawn.filter(|drawn| *threads == 1 || *drawn != Effort::Fault).unwrap_or(Effort::Spin);
        }
    }

    /// Somebody who takes next to nothing.
    fn bystander(&mut self) {
        let turn_us = self.draw.number(50, 500);
        let work = turns(self.draw.number(1, 4), turn_us, turn_us * self.draw.number(50, 400));
        let group = (self.draw.number(0, 2) == 0).then(|| self.group(None, None));
        let process = Process { group, ..ordinary(self.name(), work, vec![]) };
        self.case.processes.push(process);
    }

    /// A node that works, and on which nobody loses much.
    fn healthy_load(&mut self) {
        match self.draw.number(0, 6) {
            0 => {}
            6 => {
                let work = Work::HandOver { pairs: self.draw.number(1, 2), times: self.draw.number(20, 500) };
                let process = ordinary(self.name(), work, vec![]);
                self.case.processes.push(process);
            }
            1 => {
                for &core in self.cores {
                    let work = without_pause(1);
                    let process = ordinary(self.name(), work, vec![core]);
                    self.case.processes.push(process);
                }
            }
            2 => {
                let threads = self.cores.len() as u64;
                let load = ordinary(self.name(), without_pause(threads), vec![]);
                let nice = self.draw.number(5, 19) as i32;
                self.case.processes.push(Process { nice, ..load });
            }
            3 => {
                let load = ordinary(self.name(), without_pause(1), vec![]);
                self.case.processes.push(Process { class: Class::Idle, ..load });
                let work = self.work(20, 60, 1);
                let process = ordinary(self.name(), work, vec![]);
                self.case.processes.push(process);
            }
            4 => {
                let work = Work::Children { child: self.name(), at_once: 1, ms: (10, 80) };
                let process = ordinary(self.name(), work, vec![]);
                self.case.processes.push(process);
            }
            _ => {
                // A real-time thread that takes little, as audio and time services do.
                let work = turns(1, 200, 10_000);
                let load = ordinary(self.name(), work, vec![]);
                self.case.processes.push(Process { class: Class::Fifo, priority: 40, ..load });
                let work = self.work(20, 60, 1);
                let process = ordinary(self.name(), work, vec![]);
                self.case.processes.push(process);
            }
        }
    }

    /// Turns that take from `least` to `most` percent of a core.
    fn work(&mut self, least: u64, most: u64, threads: u64) -> Work {
        let duty = self.draw.number(least, most);
        let turn_us = self.draw.number(300, 20_000);
        let every_us = if duty >= 95 { 0 } else { turn_us * 100 / duty };
        turns(threads, turn_us, every_us)
    }

    fn core(&mut self) -> u32 {
        self.draw.one_of(self.cores).unwrap_or(0)
    }

    /// One core, or all.
    fn some_cores(&mut self) -> Vec<u32> {
        if self.draw.number(0, 2) == 0 { self.cores.to_vec() } else { vec![self.core()] }
    }

    fn group(&mut self, weight: Option<u64>, quota_percent: Option<u64>) -> usize {
        self.case.groups.push(Group { depth: self.draw.number(1, 4), weight, quota_percent });
        self.case.groups.len() - 1
    }

    fn name(&mut self) -> String {
        let name = self.draw.one_of(&NAMES).unwrap_or("job");
        // Half of the time somebody else may have the same.
        let mut name =
            if self.draw.number(0, 1) == 0 { name.to_owned() } else { format!("{name}-{}", self.draw.tag()) };
        // As the kernel does.
        name.truncate(COMM_BYTES);
        name
    }
}

pub fn ordinary(comm: String, work: Work, cores: Vec<u32>) -> Process {
    Process { comm, troubles: false, over: false, work, class: Class::Other, priority: 0, nice: 0, cores, group: None }
}

fn turns(threads: u64, turn_us: u64, every_us: u64) -> Work {
    Work::Turns { threads, turn_us, every_us, effort: Effort::Spin }
}

pub fn without_pause(threads: u64) -> Work {
    turns(threads, 1000, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_its_case() {
        let text = |seed| serde_json::to_string(&Case::draw(seed, &[0, 1])).unwrap();
        assert_eq!(text(5), text(5));
        assert_ne!(text(5), text(6));
    }

    #[test]
    fn every_trouble_is_drawn_and_some_cases_have_none() {
        let cases: Vec<Case> = (0..500).map(|seed| Case::draw(seed, &[0, 1, 2])).collect();
        for trouble in TROUBLES {
            assert!(cases.iter().filter(|case| case.has(trouble)).count() >= 10, "{trouble:?}");
        }
        assert!(cases.iter().filter(|case| case.troubles.is_empty()).count() >= 50);
        assert!(cases.iter().all(|case| case.troubles.len() <= 3));
    }

    #[test]
    fn processes_are_where_they_may_be() {
        for seed in 0..500 {
            let case = Case::draw(seed, &[2, 5]);
            for process in &case.processes {
                assert!(process.cores.iter().all(|core| [2, 5].contains(core)), "{process:?}");
                assert!(process.group.is_none_or(|group| group < case.groups.len()));
                assert!(process.comm.len() <= COMM_BYTES, "{}", process.comm);
            }
            let real_time: Vec<_> = case.processes.iter().filter(|p| p.troubles && p.is_real_time()).collect();
            assert!(real_time.len() <= 1, "a core must be left to everybody else: {real_time:?}");
        }
    }

    #[test]
    fn one_core_alone_is_never_taken_by_a_higher_class() {
        let cases = (0..300).map(|seed| Case::draw(seed, &[0]));
        assert!(cases.flat_map(|case| case.troubles).all(|t| !matches!(t, Trouble::RealTime | Trouble::Deadline)));
    }
}
