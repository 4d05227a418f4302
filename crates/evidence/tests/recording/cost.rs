//! What a recording costs: bytes, CPU time, and how long an append blocks its caller. Prints; run it by hand:
//! `cargo test --release -p coroner-evidence --test recording cost:: -- --ignored --nocapture`

use coroner_evidence::counters::Source;
use coroner_evidence::recording::{Writer, read};
use coroner_evidence::tasks::{SchedTimes, ThreadKey, ThreadSample};
use coroner_evidence::{CoreTicks, CoreTimes, Evidence, Time};
use rusqlite::Connection;
use std::path::Path;
use std::time::{Duration, Instant};

/// A small generator of numbers like a busy node's, the same in every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }
}

/// A node with `cores` cores, each with its own load, days after boot.
struct MadeUp {
    dice: Dice,
    cores: Vec<(CoreTicks, u64)>,
    threads: Vec<ThreadSample>,
    counters: Vec<(String, String, u64)>,
    now: u64,
}

impl MadeUp {
    fn new(cores: u32, threads: u32) -> MadeUp {
        let mut dice = Dice(42);
        let mut core = |core| {
            let ticks = CoreTicks {
                core,
                user: 40_000_000 + dice.roll(9_000_000),
                nice: dice.roll(3000),
                system: 9_000_000 + dice.roll(1_000_000),
                idle: 90_000_000 + dice.roll(9_000_000),
                iowait: dice.roll(90_000),
                irq: 0,
                softirq: dice.roll(900_000),
                steal: 0,
            };
            // A third idle, a third full, the others in between.
            let load = [0, 1000, 100 + dice.roll(800)][dice.roll(3) as usize];
            (ticks, load)
        };
        let cores = (0..cores).map(&mut core).collect();
        let threads = (0..threads)
            .map(|i| ThreadSample {
                at: Time(0),
                key: ThreadKey { tid: 1000 + i * 3, started: 5_000_000 + u64::from(i) * 17 },
                state: 'S',
                core: i % 96,
                user_ticks: dice.roll(1_000_000),
                system_ticks: dice.roll(100_000),
                minor_faults: dice.roll(100_000_000),
                major_faults: dice.roll(100),
                sched: Some(SchedTimes {
                    run_ns: dice.roll(1 << 50),
                    wait_ns: dice.roll(1 << 40),
                    slices: dice.roll(1 << 24),
                }),
            })
            .collect();
        let mut counters = Vec::new();
        for cpu in 0..96 {
            for name in ["LOC", "RES", "CAL", "TLB", "38", "39", "TIMER", "NET_RX", "SCHED", "RCU", "processed"] {
                counters.push((format!("cpu{cpu}"), name.to_owned(), dice.roll(1 << 32)));
            }
        }
        MadeUp { dice, cores, threads, counters, now: 800_000_000_000_000 }
    }

    fn second(&mut self) -> Evidence {
        let mut seen = Evidence::default();
        for _ in 0..10 {
            // Ten looks a second, each up to 2 ms late.
            self.now += 99_000_000 + self.dice.roll(2_000_000);
            for (core, load) in &mut self.cores {
                let ticks = 10 + u64::from(self.dice.roll(20) == 0);
                let busy = (0..ticks).filter(|_| self.dice.roll(1000) < *load).count() as u64;
                let system = if busy > 0 { self.dice.roll(1 + busy / 3) } else { 0 };
                core.system += system;
                core.user += busy - system;
                core.idle += ticks - busy;
                core.softirq += u64::from(self.dice.roll(50) == 0);
            }
            let cores = self.cores.iter().map(|(ticks, _)| *ticks).collect();
            seen.core_times.push(CoreTimes { at: Time(self.now), cores });
        }
        let at = Time(self.now);
        for thread in &mut self.threads {
            let ran = self.dice.roll(1_000_000_000);
            thread.at = at;
            thread.state = if ran > 900_000_000 { 'R' } else { 'S' };
            thread.core = self.dice.roll(96) as u32;
            thread.user_ticks += ran / 12_000_000;
            thread.system_ticks += ran / 90_000_000;
            thread.minor_faults += self.dice.roll(3000);
            if let Some(sched) = &mut thread.sched {
                sched.run_ns += ran;
                sched.wait_ns += self.dice.roll(5_000_000);
                sched.slices += self.dice.roll(4000);
            }
            seen.thread_samples.push(*thread);
        }
        for (subject, name, value) in &mut self.counters {
            *value += self.dice.roll(3000);
            seen.counters.push(Source::Interrupts, subject, name, at, *value);
        }
        seen
    }
}

fn cpu_time() -> Duration {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
}

fn record(path: &Path, mut next: impl FnMut() -> Evidence, seconds: u32) {
    let start = Instant::now();
    let mut writer = Writer::create(path).unwrap();
    println!("create: {:?}", start.elapsed());
    let (mut longest, mut sum, mut cpu) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
    for _ in 0..seconds {
        let fragment = next();
        let (start, before) = (Instant::now(), cpu_time());
        writer.append(&fragment).unwrap();
        cpu += cpu_time() - before;
        sum += start.elapsed();
        longest = longest.max(start.elapsed());
    }
    println!("append: mean {:?}, longest {longest:?}, CPU {:?}", sum / seconds, cpu / seconds);
    let start = Instant::now();
    writer.finish(&[]).unwrap();
    println!("finish: {:?}", start.elapsed());
    let (start, before) = (Instant::now(), cpu_time());
    read(path).unwrap();
    let bytes = std::fs::metadata(path).unwrap().len();
    println!("read: {:?}, CPU {:?}, file {bytes} bytes", start.elapsed(), cpu_time() - before);
    let db = Connection::open(path).unwrap();
    for table in ["core_time_chunks", "thread_sample_chunks", "counter_chunks"] {
        let sql = format!("SELECT count(*), coalesce(sum(rows), 0), coalesce(sum(length(data)), 0) FROM {table}");
        let (chunks, rows, bytes): (i64, i64, i64) =
            db.query_row(&sql, [], |r| Ok((r.get(0)?, r.get(1)?, r.get(2)?))).unwrap();
        if chunks > 0 {
            println!("{table}: {chunks} chunks, {rows} rows, {:.2} bytes a row", bytes as f64 / rows.max(1) as f64);
        }
    }
}

#[test]
#[ignore = "prints measurements"]
fn ten_minutes_of_a_made_up_node() {
    for (cores, threads) in [(96, 300), (192, 2000), (192, 0)] {
        println!("== {cores} cores, {threads} busy threads");
        let dir = tempfile::tempdir().unwrap();
        let mut node = MadeUp::new(cores, threads);
        record(&dir.path().join("a.coroner"), || node.second(), 600);
    }
}
