//! Generated directories of a recorder on a node with 192 cores: samples as in [`day`], and evidence of cores, threads, counters
//! and minutes as often as a recorder writes it.

use crate::bench::{bytes_in, on_all_cores};
use crate::bench_profile::ranges::day::{self, Node as Samples, START_CLOCK, START_WALL};
use crate::random::Random;
use anyhow::Context;
use coroner_evidence::recording::{CoreMinute, RollupRow, Writer, segments};
use coroner_evidence::tasks::{SchedTimes, SchedulingClass};
use coroner_evidence::{
    CgroupCensus, Clocks, CoreSet, CoreTicks, CoreTimes, Evidence, LogLine, MapSource, Nic, NicQueue, Node, Process,
    QueueKind, Source, Thread, ThreadKey, ThreadSample, Time, Wall,
};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

pub const CORES: u32 = 192;
pub const RATE: u64 = 49;
pub const FILE_SECONDS: u64 = day::FILE_SECONDS;
const SECOND: u64 = 1_000_000_000;
/// Threads that run in each second.
const THREADS: u32 = 400;

#[derive(Clone, Copy)]
pub enum Until {
    Files(u64),
    Bytes(u64),
}

#[derive(Debug, Clone, Copy)]
pub struct Made {
    pub files: u64,
    pub bytes: u64,
    pub samples: u64,
}

/// Generates it, unless it exists.
pub fn make(directory: &Path, until: Until, rate: u64) -> anyhow::Result<Made> {
    if directory.is_dir() {
        let (found, _) = segments::list(directory)?;
        let files = found.len() as u64;
        return Ok(Made {
            files,
            bytes: bytes_in(directory)?,
            samples: files * FILE_SECONDS * rate * u64::from(CORES),
        });
    }
    let began = std::time::Instant::now();
    // Renamed last, so what exists is complete.
    let unfinished = directory.with_extension("part");
    let _ = std::fs::remove_dir_all(&unfinished);
    std::fs::create_dir_all(&unfinished)?;
    let names = Samples::new();
    let (next, samples, full) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    let work = || -> anyhow::Result<()> {
        while !full.load(Ordering::Relaxed) {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if matches!(until, Until::Files(files) if number >= files) {
                return Ok(());
            }
            samples.fetch_add(write(&names, &unfinished, number, rate)?, Ordering::Relaxed);
            if let Until::Bytes(most) = until {
                full.fetch_or(bytes_in(&unfinished)? >= most, Ordering::Relaxed);
            }
        }
        Ok(())
    };
    on_all_cores(work)?;
    std::fs::rename(&unfinished, directory).context("cannot rename the set")?;
    let files = segments::list(directory)?.0.len() as u64;
    let made = Made { files, bytes: bytes_in(directory)?, samples: samples.into_inner() };
    eprintln!("  {made:?}, made in {:.0} s", began.elapsed().as_secs_f64());
    Ok(made)
}

fn write(names: &Samples, directory: &Path, number: u64, rate: u64) -> anyhow::Result<u64> {
    let start_wall = START_WALL + number * FILE_SECONDS * SECOND;
    let mut file = Writer::create(&directory.join(segments::name(Wall(start_wall), 1)))?;
    let mut load = Load::new(number);
    for second in number * FILE_SECONDS..(number + 1) * FILE_SECONDS {
        let mut seen = load.second(second);
        if second == number * FILE_SECONDS {
            load.describe(second, &mut seen);
        }
        file.append(&seen)?;
        if second % 60 == 59 {
            file.append_rollup(&load.minute(second))?;
        }
    }
    let samples = names.samples(&mut file, number, CORES, rate)?;
    file.finish(&[])?;
    Ok(samples)
}

fn at(second: u64) -> Time {
    Time(START_CLOCK + second * SECOND)
}

/// Most cores are half busy; one is full in the kernel for ten seconds of every five minutes.
struct Load {
    cores: Vec<CoreTicks>,
    random: Random,
}

impl Load {
    /// Cumulative since boot: each file begins about where the previous one ended.
    fn new(number: u64) -> Load {
        let passed = number * FILE_SECONDS * 100;
        let of = |core| CoreTicks {
            core,
            user: passed / 3,
            system: passed / 15,
            idle: passed * 3 / 5,
            softirq: passed / 100,
            ..CoreTicks::default()
        };
        Load { cores: (0..CORES).map(of).collect(), random: Random::new(number + 1) }
    }

    fn is_burst(second: u64) -> bool {
        (100..110).contains(&(second % 300))
    }

    fn second(&mut self, second: u64) -> Evidence {
        let mut seen = Evidence::default();
        for tenth in 0..10 {
            for core in 0..CORES as usize {
                let busy = if core == 17 && Load::is_burst(second) { 10 } else { self.random.below(9) };
                let kernel = if busy == 10 { 10 } else { busy / 4 };
                let ticks = &mut self.cores[core];
                ticks.user += busy - kernel;
                ticks.system += kernel;
                ticks.softirq += u64::from(tenth == 3);
                ticks.idle += 10 - busy;
            }
            let at = Time(START_CLOCK + second * SECOND + tenth * SECOND / 10);
            seen.core_times.push(CoreTimes { at, cores: self.cores.clone() });
        }
        let now = at(second);
        for thread in 0..THREADS {
            let ticks = second * 30 + u64::from(thread);
            seen.thread_samples.push(ThreadSample {
                at: now,
                key: ThreadKey { tid: 1000 + thread, started: 77 },
                state: if self.random.below(3) == 0 { 'R' } else { 'S' },
                core: (thread + (second / 20) as u32) % CORES,
                user_ticks: ticks,
                system_ticks: ticks / 3,
                minor_faults: second,
                major_faults: 0,
                sched: Some(SchedTimes { run_ns: ticks * 10_000_000, wait_ns: ticks * 300_000, slices: second * 50 }),
            });
        }
        for core in 0..CORES {
            let subject = format!("cpu{core}");
            for (source, name, each) in [
                (Source::Softirqs, "NET_RX", 900),
                (Source::Softirqs, "TIMER", 250),
                (Source::Softnet, "processed", 1200),
                (Source::Interrupts, "LOC", 250),
            ] {
                let value = second * each + self.random.below(100);
                seen.counters.push(source, &subject, name, now, value);
            }
        }
        for what in ["cpu", "memory", "io"] {
            seen.counters.push(Source::Pressure, what, "some_us", now, second * 10_000 + self.random.below(9000));
        }
        if second.is_multiple_of(60) {
            let wall = START_WALL + second * SECOND;
            seen.clocks.push(Clocks { at: now, wall: Wall(wall), boot_ns: now.0 });
            seen.cgroup_censuses.push(CgroupCensus {
                at: now,
                version: 2,
                mount_point: "/sys/fs/cgroup".to_owned(),
                live: 900,
                tracked: Some(900 + second / 60),
                dying: Some(second / 60),
                dying_source: "cgroup.stat nr_dying_descendants".to_owned(),
                empty: Some(40),
                took_ns: 3_000_000,
                ..CgroupCensus::default()
            });
        }
        if second % 300 == 111 {
            seen.log.push(LogLine {
                at: now,
                uncertainty_ns: 100_000,
                stamp_us: now.0 / 1000,
                sequence: second,
                level: 3,
                facility: 0,
                text: "ena 0000:20:03.0 eth0: TX q 5 is paused for too long (threshold 5000000). usecs since napi 5008222. \
                       napi scheduled: 1. napi CPU: 17. msecs since interrupt: 5008"
                    .to_owned(),
            });
        }
        seen
    }

    fn describe(&self, second: u64, seen: &mut Evidence) {
        let now = at(second);
        seen.node = Some(Node {
            host: Some("made-up".to_owned()),
            boot_id: Some("11111111-2222-3333-4444-555555555555".to_owned()),
            kernel: Some("6.12.0".to_owned()),
            cores: Some(CORES),
            memory_bytes: Some(768 << 30),
            ..Node::default()
        });
        let queue = |index: u32| NicQueue {
            kind: QueueKind::Rx,
            index,
            map: MapSource::Netlink,
            irq: Some(100 + index),
            irq_cores: Some(CoreSet::new([index * 3 + 2])),
            napi_id: Some(8000 + index),
            ..NicQueue::default()
        };
        seen.nics.push(Nic {
            at: now,
            netns: None,
            name: "eth0".to_owned(),
            driver: Some("ena".to_owned()),
            bus: Some("0000:20:03.0".to_owned()),
            up: Some(true),
            queues: (0..32).map(queue).collect(),
        });
        for thread in 0..THREADS {
            let (tid, pid) = (1000 + thread, 1000 + thread / 8 * 8);
            seen.threads.push(Thread {
                at: now,
                key: ThreadKey { tid, started: 77 },
                pid,
                comm: format!("program-{}", thread / 8),
                class: SchedulingClass::Other,
                affinity: Some(CoreSet::new(0..CORES)),
                ..Thread::default()
            });
            if tid == pid {
                seen.processes.push(Process {
                    at: now,
                    pid,
                    started: 77,
                    ppid: 1,
                    comm: format!("program-{}", thread / 8),
                    ..Process::default()
                });
            }
        }
    }

    fn minute(&self, second: u64) -> RollupRow {
        let by_core =
            |core| CoreMinute { core, busy: 0.45, system: 0.12, saturated_s: if core == 17 { 2.0 } else { 0.0 } };
        RollupRow {
            minute: Wall(START_WALL + (second - 59) * SECOND),
            cores: Some(CORES),
            busy_mean: Some(0.45),
            busy_max: Some(0.62),
            worst_core: Some(17),
            worst_core_system: Some(0.31),
            by_core: (0..CORES).map(by_core).collect(),
            zombies_tracked: Some(900 + second / 60),
            zombies_live: Some(900),
            zombies_dead: Some(second / 60),
            unit_restarts: Some(0),
            nic_resets: Some(u64::from(second % 300 == 119)),
            softnet_drops: Some(0),
            oom_kills: Some(0),
            cpu_stall_us: Some(900_000),
            memory_stall_us: Some(10_000),
            io_stall_us: Some(70_000),
            samples: Some(RATE * 60 * u64::from(CORES)),
            lost_samples: Some(0),
            ..RollupRow::default()
        }
    }
}
