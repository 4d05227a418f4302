//! On the live node, as root: real kernel work, found with its kind, core and thread.
//!
//! The machine has other work: tests compare shares and look at their own threads, so most share it. The one that makes thousands of
//! zombies has it for itself.

use super::*;
use crate::test_tree::Busy;
use coroner_evidence::{KernelWork, WorkKind, WorkRow, probe};
use coroner_lab::{Cgroup, Child, HostLock, LiveScenario};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

fn shell(script: &str, args: &[&Path]) -> Child {
    let mut command = Command::new("sh");
    command.arg("-c").arg(script).args(args).stdout(Stdio::null()).stderr(Stdio::null());
    Child::spawn("sh", &mut command).unwrap()
}

/// Reclaims a cgroup and its descendants in a loop; the shell itself does the write.
fn reclaimer(cgroup: &Path) -> Child {
    shell(
        "while :; do if [ -e \"$0/memory.force_empty\" ]; then echo 0 > \"$0/memory.force_empty\"; \
         else echo 1G > \"$0/memory.reclaim\"; fi; done",
        &[cgroup],
    )
}

/// Samples two seconds at a time until `enough`.
fn sample_until(what: &str, naming: Naming, mut enough: impl FnMut(&[KernelWork]) -> bool) -> Vec<KernelWork> {
    let (began, mut all) = (Instant::now(), Vec::new());
    while !enough(&all) {
        assert!(began.elapsed() < Duration::from_secs(300), "{what}: {all:#?}");
        let mut evidence = Evidence::default();
        let mut sampler = KernelSampler::start(&Root::live(), RATE_HZ, naming, crate::root::now(), &mut evidence);
        assert!(sampler.is_sampling(), "{:?}", evidence.unseen);
        for _ in 0..2 {
            std::thread::sleep(Duration::from_secs(1));
            sampler.look(crate::root::now(), &mut evidence);
        }
        sampler.finish(crate::root::now(), &mut evidence);
        assert!(evidence.unseen.is_empty(), "{:?}", evidence.unseen);
        assert!(evidence.kernel_work.len() >= 2, "{:?}", evidence.kernel_work);
        all.extend(evidence.kernel_work);
    }
    all
}

fn samples(work: &[KernelWork], of: impl Fn(&WorkRow) -> bool) -> u64 {
    work.iter().flat_map(|second| &second.rows).filter(|row| of(row)).map(|row| row.samples).sum()
}

/// The function with the most of these samples.
fn top_symbol(work: &[KernelWork], of: impl Fn(&WorkRow) -> bool) -> String {
    let rows = work.iter().flat_map(|second| &second.rows).filter(|row| of(row));
    rows.max_by_key(|row| row.samples).and_then(|row| row.symbol.clone()).unwrap_or_default()
}

impl Busy {
    /// Samples until the thread is found doing this.
    fn is_found_at(&self, name: &str, kind: WorkKind) -> Vec<KernelWork> {
        let at_it = |row: &WorkRow| row.tid == self.tid && row.kind == kind;
        let work = sample_until(name, Naming::Always, |work| samples(work, at_it) >= 20);
        let own: Vec<&WorkRow> = work.iter().flat_map(|second| &second.rows).filter(|row| at_it(row)).collect();
        assert!(own.iter().all(|row| (row.core, row.pid) == (self.core, std::process::id())), "{own:#?}");
        assert!(own.iter().all(|row| row.comm == name && row.symbol.is_some()), "{own:#?}");
        work
    }
}

#[test]
fn a_thread_that_reads_page_tables_is_found() {
    let Some(_lock) = HostLock::share_as_root() else { return };
    // Many pages in few mappings, so that walking outweighs printing.
    let pages: Vec<u8> = vec![1; 256 << 20];
    let reader = Busy::start("smaps-reader", || drop(std::fs::read("/proc/self/smaps")));
    let work = reader.is_found_at("smaps-reader", WorkKind::PageTables);
    assert_eq!(pages[pages.len() - 1], 1);
    let own = |row: &WorkRow| row.tid == reader.tid;
    let share = samples(&work, |row| own(row) && row.kind == WorkKind::PageTables) as f64 / samples(&work, own) as f64;
    assert!(share > 0.5, "only {share} of its kernel time: {work:#?}");
}

#[test]
fn a_thread_that_reads_statistics_of_cgroups_is_found() {
    let Some(_lock) = HostLock::share_as_root() else { return };
    let cgroup = Cgroup::with_controller("memory", "coroner-test-read").unwrap();
    let file = cgroup.dir().join("memory.stat");
    let reader = Busy::start("stat-reader", move || drop(std::fs::read(&file)));
    reader.is_found_at("stat-reader", WorkKind::Kernfs);
}

#[test]
fn a_thread_that_touches_new_memory_is_found() {
    let Some(_lock) = HostLock::share_as_root() else { return };
    let toucher = Busy::start("toucher", || {
        // Fresh from the kernel each time: the allocator returns such large blocks at once.
        std::hint::black_box(vec![1u8; 64 << 20]);
    });
    let kinds = [WorkKind::PageFault, WorkKind::HugePages];
    let faults = |row: &WorkRow| row.tid == toucher.tid && kinds.contains(&row.kind);
    let work = sample_until("toucher", Naming::Always, |work| samples(work, faults) >= 20);
    assert_ne!(top_symbol(&work, faults), "");
}

#[test]
fn reclaim_over_five_thousand_zombies_is_seen_and_named() {
    let Some(_lock) = HostLock::take_as_root() else { return };
    if !coroner_lab::live::lab_binary().is_file() {
        return coroner_lab::skip("needs the lab: cargo build --release -p coroner-lab");
    }
    let zombies = LiveScenario::start("zombies", &["--count", "5000", "--seconds", "600"]).unwrap();
    let path = zombies.truth.facts["cgroup"].as_str().unwrap().to_owned();
    let of = |child: &Child| {
        let pid = child.pid();
        move |row: &WorkRow| row.pid == pid
    };

    // The same work on a cgroup without children.
    let lonely = Cgroup::with_controller("memory", "coroner-test-lonely").unwrap();
    let child = reclaimer(lonely.dir());
    let own = of(&child);
    let without = sample_until("reclaim is sampled", Naming::IfMuch, |work| samples(work, own) >= 40);
    let lonely_share =
        samples(&without, |row| own(row) && row.kind.is_memcg_walk()) as f64 / samples(&without, own) as f64;
    drop(child);

    let crowded = lonely.hierarchy().mount_point.join(path.trim_start_matches('/'));
    let child = reclaimer(&crowded);
    let own = of(&child);
    let walks = |row: &WorkRow| own(row) && row.kind == WorkKind::ReclaimWalk;
    let with = sample_until("the walk is seen", Naming::IfMuch, |work| samples(work, walks) >= 100);
    drop(child);
    drop(zombies);

    let share = samples(&with, walks) as f64 / samples(&with, own) as f64;
    assert!(share > 0.5 && lonely_share * 2.0 < share, "{lonely_share} {share}: {with:#?}");
    let mut rows = with.iter().flat_map(|second| &second.rows).filter(|row| walks(row));
    assert!(rows.all(|row| row.comm == "sh" && row.symbol.is_some()), "{with:#?}");
    let symbol = top_symbol(&with, walks);
    assert!(symbol.contains("mem_cgroup_iter") || symbol.contains("shrink"), "{symbol}");
}

/// A file read through a small cgroup. Drop removes it, and with it the pages that would pin the cgroup.
struct ReadFile(PathBuf);

impl Drop for ReadFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn page_reclaim_is_not_taken_for_a_walk_over_cgroups() {
    let Some(_lock) = HostLock::share_as_root() else { return };
    let cgroup = Cgroup::with_controller("memory", "coroner-test-small").unwrap().freeing_cache();
    let limit = if cgroup.hierarchy().version == 2 { "memory.high" } else { "memory.limit_in_bytes" };
    cgroup.write(limit, &(32u64 << 20).to_string()).unwrap();
    // Written and dropped from the cache outside, so that only clean pages are charged and nothing runs out of memory.
    let dir = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let file = ReadFile(dir.join(format!("coroner-test-read-{}", std::process::id())));
    let written = Command::new("dd")
        .args(["if=/dev/zero", "bs=1M", "count=128", "conv=fsync"])
        .arg(format!("of={}", file.0.display()))
        .stderr(Stdio::null())
        .status()
        .unwrap();
    let dropped = Command::new("dd")
        .args(["iflag=nocache", "count=0"])
        .arg(format!("if={}", file.0.display()))
        .stderr(Stdio::null())
        .status()
        .unwrap();
    assert!(written.success() && dropped.success());

    // One process joins first, so that its reads are charged there, then reads the file many times.
    let script = "echo $$ > \"$0/cgroup.procs\"; f=$1; set --; while [ $# -lt 500 ]; do set -- \"$@\" \"$f\"; done; exec cat \"$@\"";
    let start = || shell(script, &[cgroup.dir(), &file.0]);
    let mut reader = start();
    let mut readers = vec![reader.pid()];
    let seen = sample_until("reclaim is seen", Naming::Always, |work| {
        if reader.ended().unwrap().is_some() {
            reader = start();
            readers.push(reader.pid());
        }
        samples(work, |row| readers.contains(&row.pid) && row.kind.is_reclaim()) >= 20
    });
    drop(reader);
    drop(file);
    let own = |row: &WorkRow| readers.contains(&row.pid);
    let (reclaim, walk) = (
        samples(&seen, |row| own(row) && row.kind.is_reclaim()),
        samples(&seen, |row| own(row) && row.kind.is_memcg_walk()),
    );
    assert!(walk * 4 < reclaim, "{walk} of {reclaim}: {seen:#?}");
    assert!(samples(&seen, |row| own(row) && row.comm == "cat") > 0, "{seen:#?}");
}

#[test]
fn short_lived_processes_are_named_after_their_exit() {
    let Some(_lock) = HostLock::share_as_root() else { return };
    let dir = tempfile::tempdir().unwrap();
    let brief = dir.path().join("coroner-brief");
    // By another process: a child of another thread could inherit our write descriptor, and execve would fail (ETXTBSY).
    assert!(Command::new("cp").args([Path::new("/bin/true"), &brief]).status().unwrap().success());
    let starter = Busy::start("starter", move || assert!(Command::new(&brief).status().unwrap().success()));
    sample_until("its name is reported", Naming::Always, |work| samples(work, |row| row.comm == "coroner-brief") > 0);
    drop(starter);
}

#[test]
fn user_time_and_sleep_are_not_kernel_work() {
    let Some(_lock) = HostLock::share_as_root() else { return };
    let (spinner, sleeper) = (shell("while :; do :; done", &[]), shell("exec sleep 600", &[]));
    let spun = || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", spinner.pid())).unwrap();
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_ascii_whitespace().collect();
        fields[11].parse::<u64>().unwrap() / rustix::param::clock_ticks_per_second()
    };
    for naming in [Naming::Always, Naming::IfMuch] {
        let before = spun();
        let seen = sample_until("the spinner spins", naming, |_| spun() >= before + 2);
        let length: f64 = seen.iter().map(|second| second.to.since(second.from).as_secs_f64()).sum();
        let all = length * f64::from(RATE_HZ);
        let at_most = |what: &str, found: u64, share: f64| {
            assert!((found as f64) < all * share, "{what}: {found} of {all} samples: {seen:#?}");
        };
        at_most("user code", samples(&seen, |row| row.pid == spinner.pid()), 0.1);
        at_most("a sleeper", samples(&seen, |row| row.pid == sleeper.pid()), 0.05);
        // The idle task serves interrupts, but idling is not work. Others' work only makes it less.
        at_most("idle cores", samples(&seen, |row| row.pid == 0), 0.5 * f64::from(seen[0].cores));
    }
}

#[test]
fn without_the_capability_the_reason_is_reported() {
    use rustix::thread::CapabilitySet;
    let Some(_lock) = HostLock::share_as_root() else { return };
    let try_with = |keep: CapabilitySet| {
        crate::test_tree::with_capabilities(keep, || {
            let mut evidence = Evidence::default();
            let now = crate::root::now;
            let sampler = KernelSampler::start(&Root::live(), RATE_HZ, Naming::Always, now(), &mut evidence);
            let sampling = sampler.is_sampling();
            sampler.finish(now(), &mut evidence);
            (sampling, evidence)
        })
    };
    let setting = |name: &str| std::fs::read_to_string(format!("/proc/sys/kernel/{name}")).unwrap_or_default();
    let (sampling, evidence) = try_with(CapabilitySet::PERFMON | CapabilitySet::SYSLOG);
    assert!(sampling && evidence.unseen.is_empty(), "these two suffice: {:?}", evidence.unseen);

    // A permissive kernel lets everybody sample.
    if setting("perf_event_paranoid").trim().parse::<i32>().unwrap_or(2) < 1 {
        return coroner_lab::skip("kernel.perf_event_paranoid is below 1");
    }
    for (keep, word) in [
        (CapabilitySet::empty(), "CAP_PERFMON"),
        (CapabilitySet::SYSLOG, "CAP_PERFMON"),
        (CapabilitySet::PERFMON, "hides the kernel's addresses"),
    ] {
        let (sampling, evidence) = try_with(keep);
        let unseen = evidence.why_unseen(probe::KERNEL_SAMPLES);
        assert!(!sampling && evidence.kernel_work.is_empty(), "{word}");
        assert!(unseen.is_some_and(|u| u.why.contains(word)), "{word}: {unseen:?}");
    }
}
