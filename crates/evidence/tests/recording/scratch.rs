//! Evidence, files and file systems for the tests.

use coroner_evidence::counters::Source;
use coroner_evidence::tasks::{SchedTimes, SchedulingClass, ThreadKey, ThreadSample};
use coroner_evidence::waits::{Account, Block, CgroupWeight, Charge, LedgerMethod, Party, Runner, WaitLedger};
use coroner_evidence::{
    Born, CgroupChurn, CgroupFate, Charged, Clocks, CoreTicks, CoreTimes, Evidence, Hold, KernelWork, LogLine, Maker,
    MemoryHolder, Node, Observer, PinningFile, Time, Wall, WorkKind, WorkRow, Zombie, ZombieMethod, ZombieScan,
};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Second `i` of a made-up node with `cores` cores: every stream, and a plain row that says which second it is.
pub fn second(i: u64, cores: u32) -> Evidence {
    let mut seen = Evidence::default();
    let at = |tenth: u64| Time::from_millis(1_000_000 + i * 1000 + tenth * 100);
    if i == 0 {
        seen.node = Some(Node { host: Some("node-1".into()), boot_id: Some("b00t".into()), ..Node::default() });
        seen.clocks.push(Clocks { at: at(0), wall: Wall(1_780_000_000_000_000_000), boot_ns: 7 });
    }
    for tenth in 0..10 {
        let cores = (0..cores).map(|core| CoreTicks {
            core,
            user: i * 3 + tenth,
            idle: 90_000 + i * 97,
            ..CoreTicks::default()
        });
        seen.core_times.push(CoreTimes { at: at(tenth), cores: cores.collect() });
    }
    for tid in 1..20 {
        seen.thread_samples.push(ThreadSample {
            at: at(0),
            key: ThreadKey { tid, started: 5 },
            state: 'R',
            core: tid % 4,
            user_ticks: i * u64::from(tid),
            system_ticks: i,
            sched: Some(SchedTimes { run_ns: i * 1_000_003, wait_ns: i, slices: i }),
            ..ThreadSample::default()
        });
        seen.counters.push(Source::Softnet, &format!("cpu{tid}"), "processed", at(0), i * 1000);
    }
    seen.log.push(LogLine {
        at: at(0),
        stamp_us: i,
        sequence: i,
        level: 4,
        text: format!("second {i}"),
        ..LogLine::default()
    });
    if i.is_multiple_of(20) {
        seen.zombie_scans.push(scan_of(at(5), 200 + i, 30, |z| format!("/ecs/ecs-agent-{z}")));
        seen.cgroup_churn.push(churn(at(0), at(9)));
        seen.cgroup_fates.push(fate(at(0), at(9)));
        seen.observers.push(Observer { at: at(0), pid: 4_000, started: 77 });
        seen.memory_holders.push(MemoryHolder {
            at: at(0),
            pid: 812,
            started: 70,
            comm: "train".into(),
            resident_bytes: 21 << 30,
        });
        seen.kernel_work.push(kernel_work(at(0), at(9)));
    }
    seen.waits.push(waits(at(0), at(9)));
    seen
}

fn zombie(i: u64, path: String) -> Zombie {
    let held = Charged { swap_backed: 4096 + i % 3 * 4096, shmem: Some(4096), kernel: Some(0), ..Charged::default() };
    let born = Some(Born { at: Time(i * 500_000_000 + i % 250 * 4_000_000), exact: true });
    Zombie {
        id: 100 + i * 3,
        path,
        references: Some(1 + i % 3),
        held,
        born,
        directory_lives: false,
        serial: 300 + i * 2,
    }
}

fn file(i: u64) -> PinningFile {
    PinningFile {
        path: Some(format!("/dev/shm/leak-{i}")),
        seen_by: None,
        mounted: true,
        filesystem: "tmpfs".into(),
        device: (0, 25),
        inode: 7000 + i,
        size: 1 << 20,
        deleted: i.is_multiple_of(2),
        bytes: 100_000_000 - i,
        zombies: 3,
    }
}

/// `count` dead ones, each held by a file.
pub fn scan_of(at: Time, count: u64, files: u64, path: impl Fn(u64) -> String) -> ZombieScan {
    let hold = |i: u64| Hold { zombie: i as u32, file: (i * 7 % files) as u32, bytes: 4096 };
    ZombieScan {
        at,
        took_ns: 56_000_000,
        method: ZombieMethod::BpfTestRun,
        version: 1,
        tracked: Some(count + 41),
        live: Some(40),
        dead: Some(count),
        leaving: 1,
        zombies: (0..count).map(|i| zombie(i, path(i))).collect(),
        files: (0..files).map(file).collect(),
        holds: (0..count).map(hold).collect(),
        ..ZombieScan::default()
    }
}

pub fn churn(from: Time, to: Time) -> CgroupChurn {
    let maker = Maker {
        processes: 7,
        pid: 812,
        comm: "ecs-init".into(),
        via: Some("mkdir".into()),
        command: None,
        parent_pid: Some(1),
        parent_comm: Some("systemd".into()),
        cgroup: Some("/system.slice/ecs.service".into()),
    };
    CgroupChurn {
        from,
        to,
        parent: "/ecs".into(),
        pattern: "ecs-agent-*".into(),
        example: "ecs-agent-7".into(),
        born: 12,
        removed: 11,
        freed: 0,
        maker: Some(maker),
    }
}

pub fn fate(from: Time, to: Time) -> CgroupFate {
    let CgroupChurn { parent, pattern, maker, .. } = churn(from, to);
    let maker = maker.expect("a maker");
    let (left, left_freed) = ((100..111).collect(), vec![7, u64::from(u32::MAX) + 7]);
    CgroupFate { from, to, parent, pattern, born: 12, removed: 11, freed: 2, left, left_freed, maker }
}

pub fn waits(from: Time, to: Time) -> WaitLedger {
    let party =
        |id, pid, comm: &str| Party { id, pid, comm: comm.into(), cgroup: Some("/a".into()), ..Party::default() };
    let fifo = Party { class: SchedulingClass::Fifo, rt_priority: 10, nice: -5, ended: 3, ..party(5, None, "hog") };
    let account = Account {
        party: 4,
        tid: Some(70),
        ran_ns: 1,
        waited_ns: 2,
        throttled_ns: 3,
        blocked_ns: 4,
        slept_ns: 5,
        longest_wait_ns: 6,
        runs: 7,
        waits: 8,
        open_wait_ns: u64::MAX,
    };
    let charge = |to| Charge { victim: 4, tid: Some(70), to, core: 3, ns: 9 };
    let block = Block {
        party: 4,
        ns: 10,
        since: Some(from),
        stack: vec!["percpu_rwsem_wait".into()],
        on: Some("/data/x".into()),
        ..Block::default()
    };
    WaitLedger {
        from,
        to,
        method: LedgerMethod::Bpf,
        watched_ns: 11,
        parties: vec![party(4, Some(70), "job"), fifo],
        accounts: vec![account, Account { party: 5, ..Account::default() }],
        charges: [Runner::Party(5), Runner::Idle, Runner::Others, Runner::Unknown].map(charge).to_vec(),
        blocks: vec![block],
        weights: vec![CgroupWeight { path: "/a".into(), weight: 2 }],
        unbooked_ns: 12,
    }
}

pub fn kernel_work(from: Time, to: Time) -> KernelWork {
    let row = WorkRow {
        core: 1,
        pid: 900,
        tid: 901,
        comm: "kubelet".into(),
        kind: WorkKind::StatsWalk,
        samples: 120,
        symbol: Some("mem_cgroup_iter".into()),
    };
    KernelWork { from, to, rate_hz: 99, cores: 2, lost: 0, rows: vec![row] }
}

/// A path for a recording; its directory goes with the first of these.
pub fn scratch_file() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.coroner");
    (dir, path)
}

/// The first `n` seconds, appended.
pub fn seconds(n: u64, cores: u32) -> Evidence {
    let mut all = Evidence::default();
    for i in 0..n {
        all.append(second(i, cores));
    }
    all
}

/// Every file of a directory with its content, to see whether anything changed.
pub fn snapshot(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let files = std::fs::read_dir(directory).unwrap().map(|e| e.unwrap().path());
    files.map(|path| (path.clone(), std::fs::read(path).unwrap())).collect()
}

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A small file system, unmounted on drop, also if the test fails.
pub struct Tmpfs {
    directory: tempfile::TempDir,
}

impl Tmpfs {
    /// `None`, and a message, if the test may not mount.
    pub fn mount(size: &str) -> Option<Tmpfs> {
        if !is_root() {
            coroner_lab::skip(&format!("needs root to mount a tmpfs of {size}"));
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size},mode=755"), "tmpfs"])
            .arg(directory.path())
            .output()
            .unwrap();
        if !mounted.status.success() {
            coroner_lab::skip(&format!("needs root to mount: {}", String::from_utf8_lossy(&mounted.stderr)));
            return None;
        }
        Some(Tmpfs { directory })
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    pub fn make_read_only(&self) {
        let done = Command::new("mount").args(["-o", "remount,ro"]).arg(self.path()).status().unwrap();
        assert!(done.success());
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.path()).status();
    }
}
