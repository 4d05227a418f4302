//! A generated day of a node with 64 cores, as the recorder would keep it: samples of each core at 49 Hz, one file per ten minutes.
//!
//! A third of the cores' time is idle; the rest belongs to 48 programs with 600 threads, which stay on a core for a few samples.
//! Each program has 250 branching stacks, 10 to 60 frames deep, a few of them frequent and most of them rare; a file contains half
//! of them. Names are as long as those of the kernel, C++ and Go.

use crate::random::Random;
use coroner_evidence::Wall;
use coroner_evidence::recording::{Writer, segments};
use coroner_profile::import::ImportReport;
use coroner_profile::model::{Clock, Dictionary, EventId, Frame, FrameId, FramePlace, Sample, StackId, Task, TaskId};
use coroner_profile::recording::{Origin, SampleWriter};
use std::path::Path;

pub const CORES: u32 = 64;
pub const RATE: u64 = 49;
pub const FILE_SECONDS: u64 = 600;
/// Start of the day, in nanoseconds since 1970 and on the node's monotonic clock.
pub const START_WALL: u64 = 1_780_000_000 * SECOND;
pub const START_CLOCK: u64 = 1_000_000 * SECOND;
pub const SECOND: u64 = 1_000_000_000;

const PROGRAMS: usize = 48;
const THREADS: usize = 600;
const STACKS: usize = 250;

struct Program {
    tasks: Vec<TaskId>,
    stacks: Vec<StackId>,
}

#[derive(Clone, Copy)]
struct Running {
    program: usize,
    task: TaskId,
    stack: StackId,
}

/// All names of the day.
pub struct Node {
    pub names: Dictionary,
    event: EventId,
    idle: (TaskId, StackId),
    programs: Vec<Program>,
}

const WORDS: [&str; 32] = [
    "get", "put", "lock", "page", "cache", "mem", "cgroup", "queue", "skb", "tcp", "recv", "send", "alloc", "free",
    "tree", "node", "reclaim", "shrink", "stat", "flush", "walk", "sched", "task", "timer", "buffer", "stream",
    "parse", "encode", "handler", "request", "commit", "index",
];

fn capital(word: &str) -> String {
    word[..1].to_uppercase() + &word[1..]
}

fn symbol(random: &mut Random, style: usize) -> String {
    let n = random.index(100_000);
    let mut word = || WORDS[random.index(WORDS.len())];
    match style {
        0 => format!("{}_{}_{}_{}", word(), word(), word(), n % 1000),
        1 => format!(
            "{}::{}{}<std::__cxx11::basic_string<char>, {}::{}>::{}_{}{n}(unsigned long, {}::{} const&)",
            word(),
            capital(word()),
            capital(word()),
            word(),
            capital(word()),
            word(),
            word(),
            word(),
            capital(word())
        ),
        _ => format!(
            "github.com/{}{}/{}/pkg/{}.(*{}{}).{}{n}",
            word(),
            word(),
            word(),
            word(),
            word(),
            capital(word()),
            capital(word())
        ),
    }
}

fn hex(random: &mut Random, digits: usize) -> String {
    (0..digits).map(|_| char::from(b"0123456789abcdef"[random.index(16)])).collect()
}

impl Node {
    pub fn new() -> Node {
        let random = &mut Random::new(1);
        let mut names = Dictionary::default();
        names.clock = Some(Clock { clock_ns: START_CLOCK, wall: Wall(START_WALL) });
        let event = names.intern_event("cpu-clock");
        let comm = names.strings.intern("swapper");
        let idle_task = names.intern_task(Task { pid: Some(0), tid: Some(0), comm, cgroup: None });
        let kernel_module = names.strings.intern("[kernel.kallsyms]");
        let mut frames =
            |names: &mut Dictionary, count: usize, style: usize, module: &str, place: FramePlace| -> Vec<FrameId> {
                let module = names.strings.intern(module);
                let one = |_| {
                    let symbol = symbol(random, style);
                    names.frames.intern(Frame { symbol: names.strings.intern(&symbol), module, place, inlined: false })
                };
                (0..count).map(one).collect()
            };
        let kernel = frames(&mut names, 3000, 0, "[kernel.kallsyms]", FramePlace::Kernel);
        let libc = frames(&mut names, 400, 0, "/usr/lib/x86_64-linux-gnu/libc.so.6", FramePlace::User);
        let mut own: Vec<Vec<FrameId>> = (0..PROGRAMS)
            .map(|p| {
                frames(
                    &mut names,
                    400,
                    1 + p % 2,
                    &format!("/opt/services/program-{p}/bin/program-{p}"),
                    FramePlace::User,
                )
            })
            .collect();
        own.iter_mut().for_each(|own| own.extend_from_slice(&libc));
        let mut idle = StackId::EMPTY;
        for name in [
            "secondary_startup_64_no_verify",
            "start_secondary",
            "cpu_startup_entry",
            "do_idle",
            "cpuidle_idle_call",
            "acpi_idle_enter",
        ] {
            let symbol = names.strings.intern(name);
            let frame =
                names.frames.intern(Frame { symbol, module: kernel_module, place: FramePlace::Kernel, inlined: false });
            idle = names.stacks.push(idle, frame);
        }
        let programs = own
            .iter()
            .enumerate()
            .map(|(p, own)| {
                let cgroup = format!("/kubepods/burstable/pod{}/{}", hex(random, 32), hex(random, 64));
                let cgroup = Some(names.strings.intern(&cgroup));
                let tasks = (0..THREADS / PROGRAMS).map(|t| {
                    let comm = names.strings.intern(&format!("program-{p}/{}", t % 4));
                    let pid = 1000 + p as u32 * 100;
                    names.intern_task(Task { pid: Some(pid), tid: Some(pid + t as u32), comm, cgroup })
                });
                let tasks = tasks.collect();
                Program { tasks, stacks: branching(random, &mut names, own, &kernel) }
            })
            .collect();
        Node { names, event, idle: (idle_task, idle), programs }
    }

    /// What runs on a core at its next sample.
    fn run_on(&self, random: &mut Random, file: u64, now: &mut Running) {
        if random.index(10) < 3 {
            now.program = random.skewed(PROGRAMS);
            let tasks = &self.programs[now.program].tasks;
            now.task = tasks[random.skewed(tasks.len())];
            if random.index(3) == 0 {
                (now.task, now.stack) = self.idle;
            }
        }
        if now.task != self.idle.0 && random.index(4) > 0 {
            let stacks = &self.programs[now.program].stacks;
            // Each file contains a different half.
            now.stack = stacks[(random.skewed(STACKS / 2) + file as usize * 7) % STACKS];
        }
    }

    /// Writes the file `number` of the day.
    pub fn write(&self, directory: &Path, number: u64) -> anyhow::Result<()> {
        let start_wall = START_WALL + number * FILE_SECONDS * SECOND;
        let mut file = Writer::create(&directory.join(segments::name(Wall(start_wall), 1)))?;
        self.samples(&mut file, number, CORES, RATE)?;
        Ok(file.finish(&[])?)
    }

    /// Writes the samples of the file `number` at `rate` per second and core. Returns how many.
    pub fn samples(&self, file: &mut Writer, number: u64, cores: u32, rate: u64) -> anyhow::Result<u64> {
        let random = &mut Random::new(1000 + number);
        let origin = Origin { kind: "made up".to_owned(), ..Origin::default() };
        file.set_profile_source(&origin.row(self.names.clock, Some(&ImportReport::default())))?;
        let mut writer = SampleWriter::default();
        let period = SECOND / rate;
        let mut running = vec![Running { program: 0, task: self.idle.0, stack: self.idle.1 }; cores as usize];
        let first = number * FILE_SECONDS * rate;
        // Warm up before the file begins, so that its first second is like the others.
        for _ in 0..rate {
            running.iter_mut().for_each(|running| self.run_on(random, number, running));
        }
        for turn in first..first + FILE_SECONDS * rate {
            for (core, running) in (0..cores).zip(&mut running) {
                self.run_on(random, number, running);
                let lateness = 1_500.0 - 3_000.0 * random.unit().max(1e-9).ln();
                let at = START_CLOCK + turn * period + u64::from(core) * 7_001 + lateness as u64;
                let Running { task, stack, .. } = *running;
                let sample = Sample { time: Some(at), core: Some(core), task, event: self.event, period, stack };
                writer.take(file, &self.names, sample)?;
            }
        }
        writer.commit(file)?;
        Ok(FILE_SECONDS * rate * u64::from(cores))
    }
}

/// Branching stacks, 10 to 60 frames deep; 4 of 10 end in the kernel.
fn branching(random: &mut Random, names: &mut Dictionary, own: &[FrameId], kernel: &[FrameId]) -> Vec<StackId> {
    let mut known: Vec<Vec<FrameId>> = vec![own[..8].to_vec()];
    let mut stacks = Vec::new();
    while stacks.len() < STACKS {
        let from = &known[random.index(known.len())];
        let mut frames = from[..5 + random.index(from.len() - 4).min(from.len() - 5)].to_vec();
        frames.extend((0..1 + random.index(12)).map(|_| own[random.skewed(own.len())]));
        frames.truncate(50);
        known.push(frames.clone());
        if random.index(10) < 4 {
            frames.extend((0..2 + random.index(14)).map(|_| kernel[random.skewed(kernel.len())]));
        }
        if (10..=60).contains(&frames.len()) {
            stacks.push(frames.into_iter().fold(StackId::EMPTY, |stack, frame| names.stacks.push(stack, frame)));
        }
    }
    stacks
}
