//! On the node itself, as root: real reclaim over real zombies, real reclaim of pages, and nothing of the kind.
//!
//! Others work on the machine meanwhile: tests look at shares, and at the processes they started themselves.

use super::*;
use coroner_evidence::probe;
use coroner_lab::{Cgroup, Child, HostLock, LiveScenario};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

fn shell(script: &str, args: &[&Path]) -> Child {
    let mut command = Command::new("sh");
    command.arg("-c").arg(script).args(args).stdout(Stdio::null()).stderr(Stdio::null());
    Child::spawn("sh", &mut command).unwrap()
}

/// Takes all there is from a cgroup and what is below it, again and again; the writing is the shell's own.
fn reclaimer(cgroup: &Path) -> Child {
    shell(
        "while :; do if [ -e \"$0/memory.force_empty\" ]; then echo 0 > \"$0/memory.force_empty\"; \
         else echo 1G > \"$0/memory.reclaim\"; fi; done",
        &[cgroup],
    )
}

/// Samples until `enough`, and gives what was seen with what the looks cost, as a part of one core.
fn sample_until(what: &str, mut enough: impl FnMut(&Tally) -> bool) -> (KernelSamples, f64) {
    let mut evidence = Evidence::default();
    let mut sampler = KernelSampler::start(&Root::live(), RATE_HZ, crate::root::now(), &mut evidence);
    assert!(sampler.is_sampling(), "{:?}", evidence.unseen);
    let (started, start_cost) = (Instant::now(), sampler.spent());
    while !enough(&sampler.tally) {
        assert!(started.elapsed() < Duration::from_secs(120), "{what}: {:?}", sampler.tally);
        std::thread::sleep(Duration::from_millis(500));
        sampler.look(crate::root::now(), &mut evidence);
    }
    let cost = (sampler.spent() - start_cost).as_secs_f64() / started.elapsed().as_secs_f64();
    sampler.finish(crate::root::now(), &mut evidence);
    assert!(evidence.unseen.is_empty(), "{:?}", evidence.unseen);
    (evidence.kernel_samples.remove(0), cost)
}

fn share(part: u64, samples: &KernelSamples) -> f64 {
    part as f64 / samples.kernel.max(1) as f64
}

#[test]
fn reclaim_over_five_thousand_zombies_is_seen_and_named() {
    let Some(_lock) = HostLock::take_as_root() else { return };
    if !coroner_lab::live::lab_binary().is_file() {
        return coroner_lab::skip("needs the lab: cargo build --release -p coroner-lab");
    }
    let zombies = LiveScenario::start("zombies", &["--count", "5000", "--seconds", "600"]).unwrap();
    let path = zombies.truth.facts["cgroup"].as_str().unwrap().to_owned();

    // The same work on a cgroup that has nothing below it.
    let lonely = Cgroup::with_controller("memory", "coroner-test-lonely").unwrap();
    let child = reclaimer(lonely.dir());
    let (without, _) = sample_until("the kernel works", |tally| tally.kernel >= 150);
    drop(child);

    let crowded = lonely.hierarchy().mount_point.join(path.trim_start_matches('/'));
    let child = reclaimer(&crowded);
    let (with, cost) = sample_until("the walk is seen", |tally| tally.memcg_walk >= 100);
    let pid = child.pid();
    drop(child);
    drop(zombies);

    assert!(share(with.memcg_walk, &with) > 0.3, "{with:#?}");
    assert!(share(with.reclaim, &with) > 0.3, "{with:#?}");
    assert!(share(without.memcg_walk, &without) < 0.1, "{without:#?}");
    assert!(share(without.memcg_walk, &without) * 5.0 < share(with.memcg_walk, &with));
    let worst = &with.by_task[0];
    assert_eq!((worst.pid, worst.comm.as_str()), (pid, "sh"), "{with:#?}");
    assert!(worst.memcg_walk * 2 > with.memcg_walk, "{with:#?}");
    let top: Vec<&str> = with.by_symbol.iter().take(4).map(|s| s.symbol.as_str()).collect();
    assert!(top.iter().any(|s| s.contains("mem_cgroup_iter") || s.contains("shrink")), "{with:#?}");
    assert_eq!(with.lost, 0, "{with:#?}");
    assert!(cost < 0.01, "reading took {cost} of a core");
}

/// A file that is read through a small cgroup; its drop removes it, and with it the pages that would keep the cgroup.
struct ReadFile(PathBuf);

impl Drop for ReadFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn reclaim_of_pages_is_not_taken_for_a_walk_over_cgroups() {
    let Some(_lock) = HostLock::take_as_root() else { return };
    let cgroup = Cgroup::with_controller("memory", "coroner-test-small").unwrap().freeing_cache();
    let limit = if cgroup.hierarchy().version == 2 { "memory.high" } else { "memory.limit_in_bytes" };
    cgroup.write(limit, &(32u64 << 20).to_string()).unwrap();
    // Written and dropped from the cache outside, so that only clean pages are charged: nothing is ever short of memory.
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

    // One process that joins first, so that what it reads is charged there, and then reads the file many times.
    let script = "echo $$ > \"$0/cgroup.procs\"; f=$1; set --; while [ $# -lt 500 ]; do set -- \"$@\" \"$f\"; done; exec cat \"$@\"";
    let start = || shell(script, &[cgroup.dir(), &file.0]);
    let mut reader = start();
    let mut readers = vec![reader.pid()];
    let (seen, _) = sample_until("reclaim is seen", |tally| {
        if reader.ended().unwrap().is_some() {
            reader = start();
            readers.push(reader.pid());
        }
        readers.iter().filter_map(|pid| tally.tasks.get(pid)).map(|task| task.reclaim).sum::<u64>() >= 40
    });
    drop(reader);
    drop(file);
    let own = seen.by_task.iter().filter(|task| readers.contains(&task.pid));
    let (reclaim, walk) = own.fold((0, 0), |(reclaim, walk), t| (reclaim + t.reclaim, walk + t.memcg_walk));
    assert!(reclaim >= 10 && walk * 4 < reclaim, "{walk} of {reclaim}: {seen:#?}");
    assert!(seen.by_task.iter().any(|task| task.comm == "cat"), "{seen:#?}");
}

#[test]
fn processes_that_begin_are_known_by_name_after_their_end() {
    let Some(_lock) = HostLock::take_as_root() else { return };
    let dir = tempfile::tempdir().unwrap();
    let brief = dir.path().join("coroner-brief");
    std::fs::copy("/bin/true", &brief).unwrap();
    sample_until("its name is told", |tally| {
        assert!(Command::new(&brief).status().unwrap().success());
        tally.names.values().any(|name| name == "coroner-brief")
    });
}

#[test]
fn user_time_is_neither() {
    let Some(_lock) = HostLock::take_as_root() else { return };
    let child = shell("while :; do :; done", &[]);
    let spun = || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.pid())).unwrap();
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_ascii_whitespace().collect();
        fields[11].parse::<u64>().unwrap() / rustix::param::clock_ticks_per_second()
    };
    let (seen, _) = sample_until("the spinner spins", |_| spun() >= 2);
    assert!(seen.by_task.iter().all(|task| task.pid != child.pid()), "{seen:#?}");
    let all = seen.to.since(seen.from).as_secs_f64() * f64::from(seen.rate_hz * seen.cores);
    assert!((seen.kernel as f64) < all * 0.9, "an idle or spinning core is not in the kernel: {seen:#?}");
    assert!((seen.memcg_walk as f64) < all * 0.02, "{seen:#?}");
}

#[test]
fn without_the_capability_the_reason_is_told() {
    use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};
    let Some(_lock) = HostLock::take_as_root() else { return };
    let try_with = |keep: CapabilitySet| {
        let thread = std::thread::spawn(move || {
            set_capabilities(None, CapabilitySets { effective: keep, permitted: keep, inheritable: keep }).unwrap();
            let mut evidence = Evidence::default();
            let sampler = KernelSampler::start(&Root::live(), RATE_HZ, crate::root::now(), &mut evidence);
            let sampling = sampler.is_sampling();
            sampler.finish(crate::root::now(), &mut evidence);
            (sampling, evidence)
        });
        thread.join().unwrap()
    };
    let setting = |name: &str| std::fs::read_to_string(format!("/proc/sys/kernel/{name}")).unwrap_or_default();
    let (sampling, evidence) = try_with(CapabilitySet::PERFMON | CapabilitySet::SYSLOG);
    assert!(sampling && evidence.unseen.is_empty(), "these two suffice: {:?}", evidence.unseen);

    // A lax kernel lets everybody look.
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
        assert!(!sampling && evidence.kernel_samples.is_empty(), "{word}");
        assert!(unseen.is_some_and(|u| u.why.contains(word)), "{word}: {unseen:?}");
    }
}
