//! What a recording costs: bytes, CPU time, and how long an append blocks its caller. Prints; run it by hand:
//! `cargo test --release -p coroner-evidence --test recording cost:: -- --ignored --nocapture`

use crate::scratch::scratch_file;
use coroner_evidence::counters::Source;
use coroner_evidence::recording::{Writer, read};
use coroner_evidence::tasks::{SchedTimes, ThreadKey, ThreadSample};
use coroner_evidence::{
    Born, Charged, CoreTicks, CoreTimes, Evidence, Hold, PinningFile, Time, Zombie, ZombieMethod, ZombieScan,
};
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

fn record(path: &Path, mut next: impl FnMut() -> Evidence, seconds: u32, pause: Duration) {
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
        std::thread::sleep(pause);
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
        record(&dir.path().join("a.coroner"), || node.second(), 600, Duration::ZERO);
    }
}

/// A scan that finds 60,000, named as different programs do; each is held by one of 5,000 files.
#[test]
#[ignore = "prints measurements"]
fn sixty_thousand_zombies() {
    let hex = |dice: &mut Dice, length: usize| -> String {
        (0..length).map(|_| char::from_digit(dice.roll(16) as u32, 16).unwrap()).collect()
    };
    type Name<'a> = &'a dyn Fn(&mut Dice, u64) -> String;
    let names: [(&str, Name<'_>); 4] = [
        ("numbers", &|_, i| format!("/ecs/ecs-agent-{i}")),
        ("systemd scopes", &|dice, _| format!("/system.slice/run-r{}.scope", hex(dice, 32))),
        ("containers", &|dice, _| format!("/docker/{}", hex(dice, 64))),
        ("pods and their containers", &|dice, _| {
            let pod = [8, 4, 4, 4, 12].map(|n| hex(dice, n)).join("-");
            format!("/kubepods/burstable/pod{pod}/{}", hex(dice, 64))
        }),
    ];
    for (kind, name) in names {
        let mut dice = Dice(42);
        let (mut zombies, mut holds, mut born, mut serial) = (Vec::new(), Vec::new(), 0, 5000);
        for i in 0..60_000 {
            born += dice.roll(2000) * 4_000_000;
            serial += 1 + dice.roll(5);
            let pages = 1 + dice.roll(40);
            let (file, shmem) = (dice.roll(3) * 4096, pages * 4096);
            zombies.push(Zombie {
                id: serial * 12 + dice.roll(8),
                path: name(&mut dice, i),
                references: Some(pages + dice.roll(3)),
                held: Charged { file, swap_backed: shmem, shmem: Some(shmem), kernel: Some(0), ..Charged::default() },
                born: Some(Born { at: Time(born), exact: true }),
                directory_lives: false,
                serial,
            });
            holds.push(Hold { zombie: i as u32, file: dice.roll(5000) as u32, bytes: shmem });
        }
        let files = (0..5000).map(|i| PinningFile {
            path: Some(format!("/var/lib/containers/shm/{}/{i}", hex(&mut dice, 8))),
            mounted: true,
            filesystem: "tmpfs".into(),
            device: (0, 40),
            inode: 1000 + i,
            size: 1 << 20,
            bytes: 50_000_000 - i * 4096,
            zombies: 12,
            ..PinningFile::default()
        });
        let scan = ZombieScan {
            at: Time::from_secs(800_000),
            took_ns: 56_000_000,
            method: ZombieMethod::BpfTestRun,
            version: 1,
            tracked: Some(60_041),
            live: Some(40),
            dead: Some(60_000),
            leaving: 1,
            files: files.collect(),
            zombies,
            holds,
            ..ZombieScan::default()
        };
        println!("== {kind}: {}", scan.zombies[7].path);
        let (_dir, path) = scratch_file();
        record(&path, || Evidence { zombie_scans: vec![scan.clone()], ..Evidence::default() }, 5, Duration::ZERO);
        let packed = "SELECT sum(length(data)) / 5, count(*) / 5 FROM zombie_chunks";
        let packed = Connection::open(&path).unwrap().query_row(packed, [], |r| Ok((r.get(0)?, r.get(1)?)));
        let (bytes, chunks): (i64, i64) = packed.unwrap();
        println!("a scan's zombies: {bytes} bytes, {:.1} each, {chunks} chunks", bytes as f64 / 60_000.0);
    }
}

/// Another program writes a gigabyte and syncs it: how long does an append take, and how long does a sync?
#[test]
#[ignore = "prints measurements"]
fn appends_while_the_disk_is_busy() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let mut node = MadeUp::new(96, 300);
    let mut writer = Writer::create(&dir.path().join("a.coroner")).unwrap().sync_every(Duration::from_millis(200));
    let mut other = std::process::Command::new("dd")
        .args(["if=/dev/zero", "bs=1M", "count=1024", "conv=fdatasync", "status=none"])
        .arg(format!("of={}", dir.path().join("other").display()))
        .spawn()
        .unwrap();
    let (mut append, mut sync, mut appends) = (Duration::ZERO, Duration::ZERO, 0);
    let mut synced = std::fs::File::create(dir.path().join("synced")).unwrap();
    while other.try_wait().unwrap().is_none() {
        let fragment = node.second();
        let start = Instant::now();
        writer.append(&fragment).unwrap();
        append = append.max(start.elapsed());
        appends += 1;
        let start = Instant::now();
        std::io::Write::write_all(&mut synced, &[7; 4096]).unwrap();
        synced.sync_data().unwrap();
        sync = sync.max(start.elapsed());
        std::thread::sleep(Duration::from_millis(50));
    }
    println!("{appends} appends, the longest {append:?}; the longest sync of 4 KiB {sync:?}");
    writer.finish(&[]).unwrap();
}

/// /proc/stat of this machine at 10 Hz.
#[test]
#[ignore = "prints measurements"]
fn half_a_minute_of_this_machine() {
    let look = || {
        let stat = std::fs::read_to_string("/proc/stat").unwrap();
        let uptime = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let mut cores = Vec::new();
        for line in stat.lines() {
            let Some((name, ticks)) = line.split_once(' ') else { continue };
            let Some(core) = name.strip_prefix("cpu").and_then(|n| n.parse().ok()) else { continue };
            let n: Vec<u64> = ticks.split_whitespace().map(|n| n.parse().unwrap()).collect();
            let [user, nice, system, idle, iowait, irq, softirq, steal] = n[..8].try_into().unwrap();
            cores.push(CoreTicks { core, user, nice, system, idle, iowait, irq, softirq, steal });
        }
        CoreTimes { at: Time(uptime.tv_sec as u64 * 1_000_000_000 + uptime.tv_nsec as u64), cores }
    };
    let dir = tempfile::tempdir_in(".").unwrap();
    let second = || {
        let mut seen = Evidence::default();
        for _ in 0..10 {
            std::thread::sleep(Duration::from_millis(100));
            seen.core_times.push(look());
        }
        seen
    };
    record(&dir.path().join("a.coroner"), second, 30, Duration::ZERO);
}
