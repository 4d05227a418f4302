//! On the live node, as root: real threads that wait for real cores.
//!
//! Others may run meanwhile, so tests ask who had most, not who had all.

use std::process::{Command, Stdio};

use coroner_evidence::{Account, Charge};
use coroner_lab::{Cgroup, Child, HostLock};

use super::kernel::Build;
use super::*;

#[path = "trace_host_tests.rs"]
mod trace;

const SPIN: &str = "while :; do :; done";
/// Processes become a party of their own when they are a second old.
const GROWN: Duration = Duration::from_millis(1300);
const WINDOW: Duration = Duration::from_secs(3);
const PACE: WaitPace = WaitPace { interval: Duration::from_millis(500), most_cost: 1.0 };

/// A shell on core 1, started through `prefix` (`chrt -f 10`, which becomes it).
fn on_core_1(prefix: &[&str], script: &str) -> Child {
    let mut command = Command::new("taskset");
    command.args(["-c", "1"]).args(prefix).args(["sh", "-c", script]).stdout(Stdio::null()).stderr(Stdio::null());
    Child::spawn("worker", &mut command).unwrap()
}

fn spinner() -> Child {
    on_core_1(&[], SPIN)
}

fn sleep(time: Duration) {
    std::thread::sleep(time);
}

/// What one process got and lost.
#[derive(Debug, Default)]
struct Loss {
    accounts: Vec<Account>,
    charged: Vec<(Option<Party>, u64)>,
}

impl Loss {
    fn sum(&self, of: impl Fn(&Account) -> u64) -> u64 {
        self.accounts.iter().map(of).sum()
    }

    fn waited(&self) -> u64 {
        self.sum(|a| a.waited_ns)
    }

    fn all_charged(&self) -> u64 {
        self.charged.iter().map(|(_, ns)| ns).sum()
    }

    /// Share of what was charged that went to these.
    fn share_of(&self, is: impl Fn(&Party) -> bool) -> f64 {
        let to: u64 = self.charged.iter().filter(|(to, _)| to.as_ref().is_some_and(&is)).map(|(_, ns)| ns).sum();
        to as f64 / self.all_charged().max(1) as f64
    }
}

fn loss_of(ledgers: &[WaitLedger], pid: u32) -> Loss {
    let mut loss = Loss::default();
    for ledger in ledgers {
        let party = |id: u32| ledger.parties.iter().find(|party| party.id == id);
        let is_its = |id: u32| party(id).is_some_and(|party| party.pid == Some(pid));
        loss.accounts.extend(ledger.accounts.iter().filter(|account| is_its(account.party)).cloned());
        let charged = |charge: &Charge| match charge.to {
            Runner::Party(id) => (party(id).cloned(), charge.ns),
            _ => (None, charge.ns),
        };
        loss.charged.extend(ledger.charges.iter().filter(|charge| is_its(charge.victim)).map(charged));
    }
    loss
}

fn watch(time: Duration) -> Vec<WaitLedger> {
    let mut reader = WaitReader::start(&Root::live(), PACE);
    watch_with(&mut reader, time)
}

fn watch_with(reader: &mut WaitReader, time: Duration) -> Vec<WaitLedger> {
    assert!(reader.sees(), "{reader:?}");
    let until = now() + time;
    let mut evidence = Evidence::default();
    while now() < until {
        sleep(Duration::from_millis(50));
        reader.look(now(), &mut evidence);
    }
    assert_eq!(evidence.unseen, []);
    for pair in evidence.waits.windows(2) {
        assert_eq!(pair[0].to, pair[1].from, "intervals follow each other");
    }
    evidence.waits
}

fn watched(ledgers: &[WaitLedger]) -> u64 {
    ledgers.iter().map(|ledger| ledger.watched_ns).sum()
}

#[test]
fn a_wait_for_a_real_time_thread_is_charged_to_it() {
    let Some(_lock) = HostLock::take_as_root() else { return };
    let victim = spinner();
    // Half of the time, so that the node lives.
    let hog = on_core_1(
        &["chrt", "-f", "10"],
        "while :; do i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; sleep 0.05; done",
    );
    sleep(GROWN);
    let ledgers = watch(WINDOW);
    let loss = loss_of(&ledgers, victim.pid());
    assert!(loss.waited() > watched(&ledgers) / 5, "{loss:?}");
    let to_hog = loss.share_of(|party| {
        party.pid == Some(hog.pid()) && party.class == SchedulingClass::Fifo && party.rt_priority == 10
    });
    assert!(to_hog > 0.5, "{to_hog} {loss:?}");
    let balance = loss.all_charged() as f64 / loss.waited() as f64;
    assert!((0.9..1.1).contains(&balance), "charged {balance} of what was waited");
}

#[test]
fn a_thread_without_a_core_is_seen_without_a_switch() {
    let Some(_lock) = HostLock::take_as_root() else { return };
    let victim = on_core_1(&["chrt", "-i", "0"], SPIN);
    let hogs = [(); 2].map(|()| spinner());
    sleep(GROWN);
    let ledgers = watch(WINDOW);
    let loss = loss_of(&ledgers, victim.pid());
    assert!(loss.waited() > watched(&ledgers) / 2, "{loss:?}");
    let to_hogs = loss.share_of(|party| hogs.iter().any(|hog| party.pid == Some(hog.pid())));
    let ran: u64 = hogs.iter().map(|hog| loss_of(&ledgers, hog.pid()).sum(|a| a.ran_ns)).sum();
    let charged = to_hogs * loss.all_charged() as f64;
    assert!(charged > 0.7 * ran as f64 && ran > 0, "{charged} {ran} {loss:?}");
    assert!(
        ledgers
            .iter()
            .flat_map(|l| &l.parties)
            .any(|p| p.pid == Some(victim.pid()) && p.class == SchedulingClass::Idle)
    );
}

#[test]
fn small_shares_are_seen_as_waiting_for_the_hogs() {
    let Some(_lock) = HostLock::take_as_root() else { return };
    let small = Cgroup::with_controller("cpu", "coroner-test-small").unwrap();
    if small.write("cpu.shares", "2").is_err() {
        small.write("cpu.weight", "1").unwrap();
    }
    let large = Cgroup::with_controller("cpu", "coroner-test-large").unwrap();
    let (victim, hogs) = (spinner(), [(); 2].map(|()| spinner()));
    small.add(victim.pid()).unwrap();
    hogs.iter().for_each(|hog| large.add(hog.pid()).unwrap());
    sleep(GROWN);
    let ledgers = watch(WINDOW);
    let loss = loss_of(&ledgers, victim.pid());
    assert!(loss.waited() > watched(&ledgers) / 2, "{loss:?}");
    let to_hogs = loss.share_of(|party| {
        hogs.iter().any(|hog| party.pid == Some(hog.pid())) && party.cgroup.as_deref() == Some(large.path().as_str())
    });
    let ran: u64 = hogs.iter().map(|hog| loss_of(&ledgers, hog.pid()).sum(|a| a.ran_ns)).sum();
    let charged = to_hogs * loss.all_charged() as f64;
    assert!(charged > 0.7 * ran as f64 && ran > 0, "{charged} {ran} {loss:?}");
    drop((victim, hogs));
}

#[test]
fn a_fork_storm_is_one_party() {
    let Some(_lock) = HostLock::take_as_root() else { return };
    let victim = spinner();
    let storm = on_core_1(&[], "while :; do (i=0; while [ $i -lt 3000 ]; do i=$((i+1)); done); done");
    sleep(GROWN);
    let ledgers = watch(WINDOW);
    let loss = loss_of(&ledgers, victim.pid());
    assert!(loss.waited() > watched(&ledgers) / 5, "{loss:?}");
    let is_child = |party: &Party| {
        party.pid.is_none() && party.parent_pid == Some(storm.pid()) && party.parent_comm.as_deref() == Some("sh")
    };
    // While it runs, the victim waits.
    let is_storm = |party: &Party| is_child(party) || party.pid == Some(storm.pid());
    let ran: u64 = ledgers
        .iter()
        .flat_map(|ledger| ledger.accounts.iter().map(move |account| (ledger, account)))
        .filter(|(ledger, account)| ledger.parties.iter().any(|party| party.id == account.party && is_storm(party)))
        .map(|(_, account)| account.ran_ns)
        .sum();
    let charged = loss.share_of(is_storm) * loss.all_charged() as f64;
    assert!(charged > 0.5 * ran as f64 && ran > 0, "{charged} {ran} {loss:?}");
    let children: Vec<&Party> = ledgers.iter().flat_map(|l| &l.parties).filter(|p| is_child(p)).collect();
    assert!(children.len() <= 2 * ledgers.len(), "{children:?}");
    assert!(children.iter().map(|p| p.ended).sum::<u64>() > 50, "{children:?}");
}

#[test]
fn a_quota_is_kept_apart_from_waiting() {
    let Some(_lock) = HostLock::take_as_root() else { return };
    let group = Cgroup::with_controller("cpu", "coroner-test-quota").unwrap();
    if group.write("cpu.cfs_quota_us", "20000").is_err() {
        group.write("cpu.max", "20000 100000").unwrap();
    }
    let victim = spinner();
    group.add(victim.pid()).unwrap();
    sleep(GROWN);
    let ledgers = watch(WINDOW);
    let loss = loss_of(&ledgers, victim.pid());
    assert!(loss.sum(|a| a.throttled_ns) > watched(&ledgers) / 5, "{loss:?}");
    assert!(loss.sum(|a| a.ran_ns) < watched(&ledgers) / 3, "{loss:?}");
    drop(victim);
}

#[test]
fn a_deadline_thread_is_named_by_its_class() {
    let Some(_lock) = HostLock::take_as_root() else { return };
    let victims = [0, 1].map(|core: u32| {
        let mut command = Command::new("taskset");
        command.args(["-c", &core.to_string(), "sh", "-c", SPIN]);
        Child::spawn("victim", &mut command).unwrap()
    });
    let mut command = Command::new("chrt");
    command.args(["-d", "--sched-runtime", "8000000", "--sched-period", "10000000", "0", "sh", "-c", SPIN]);
    let mut hog = Child::spawn("hog", &mut command).unwrap();
    sleep(GROWN);
    if hog.ended().unwrap().is_some() {
        return coroner_lab::skip("SCHED_DEADLINE is not to be had");
    }
    let ledgers = watch(WINDOW);
    let is_hog = |party: &Party| party.pid == Some(hog.pid()) && party.class == SchedulingClass::Deadline;
    let charged: u64 = victims
        .iter()
        .flat_map(|victim| loss_of(&ledgers, victim.pid()).charged)
        .filter(|(to, _)| to.as_ref().is_some_and(is_hog))
        .map(|(_, ns)| ns)
        .sum();
    assert!(charged > watched(&ledgers) / 4, "{charged}");
}

/// An ext4 file system of its own. Drop thaws and unmounts it.
struct Ext4(tempfile::TempDir);

impl Ext4 {
    fn create() -> Option<Ext4> {
        let dir = tempfile::tempdir().unwrap();
        let (image, at) = (dir.path().join("image"), dir.path().join("mounted"));
        std::fs::File::create(&image).unwrap().set_len(8 << 20).unwrap();
        std::fs::create_dir(&at).unwrap();
        assert!(Command::new("mke2fs").args(["-q", "-F", "-t", "ext4"]).arg(&image).status().unwrap().success());
        let mounted = Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&at).status().unwrap();
        mounted.success().then_some(Ext4(dir))
    }

    fn dir(&self) -> std::path::PathBuf {
        self.0.path().join("mounted")
    }

    fn freeze(&self, how: &str) -> bool {
        Command::new("fsfreeze").arg(how).arg(self.dir()).stderr(Stdio::null()).status().unwrap().success()
    }
}

impl Drop for Ext4 {
    fn drop(&mut self) {
        self.freeze("-u");
        let _ = Command::new("umount").args(["-l"]).arg(self.dir()).status();
    }
}

#[test]
fn a_frozen_file_system_blocks_at_a_place_with_a_file() {
    let Some(_lock) = HostLock::take_as_root() else { return };
    let Some(mount) = Ext4::create() else { return coroner_lab::skip("no loop device") };
    let file = mount.dir().join("there");
    std::fs::write(&file, "x").unwrap();
    // It opens the file before it is frozen, and writes after.
    let writer = |after: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("exec >>{}; {after}; while :; do echo x; done", file.display())]);
        Child::spawn("writer", &mut command).unwrap()
    };
    // One that hangs before we look, one that begins to while we do.
    let (before, after) = (writer("sleep 0.3"), writer("sleep 3"));
    assert!(mount.freeze("-f"));
    sleep(GROWN);
    let mut reader = WaitReader::start(&Root::live(), PACE);
    let mut ledgers = watch_with(&mut reader, 2 * WINDOW);
    assert!(mount.freeze("-u"));
    ledgers.extend(watch_with(&mut reader, Duration::from_secs(1)));
    for child in [&before, &after] {
        let of_child = |ledger: &WaitLedger| -> Vec<Block> {
            ledger.blocks.iter().filter(|block| block.tid == Some(child.pid())).cloned().collect()
        };
        let blocks: Vec<Block> = ledgers.iter().flat_map(of_child).collect();
        let ns: u64 = blocks.iter().map(|block| block.ns).sum();
        assert!(ns > WINDOW.as_nanos() as u64 / 2, "{blocks:?}");
        assert!(blocks.iter().any(|b| b.since.is_some() && !b.stack.is_empty()), "{blocks:?}");
        assert!(blocks.iter().any(|b| b.on.as_deref().is_some_and(|on| on.ends_with("/there"))), "{blocks:?}");
    }
    drop((before, after));
}

fn schedstat(pid: u32) -> (u64, u64) {
    let text = std::fs::read_to_string(format!("/proc/{pid}/schedstat")).unwrap();
    let mut numbers = text.split_whitespace().map(|n| n.parse().unwrap());
    (numbers.next().unwrap(), numbers.next().unwrap())
}

#[test]
fn the_books_balance_and_agree_with_schedstat() {
    let Some(_lock) = HostLock::take_as_root() else { return };
    let spinners = [(); 3].map(|()| spinner());
    sleep(GROWN);
    let mut reader = WaitReader::start(&Root::live(), PACE);
    let before = spinners.each_ref().map(|child| schedstat(child.pid()));
    let mut ledgers = watch_with(&mut reader, WINDOW);
    // Both end now.
    ledgers.extend(reader.close(true));
    let after = spinners.each_ref().map(|child| schedstat(child.pid()));
    // In a last one of a moment, a spinner may have done too little to have an account of its own.
    ledgers.retain(|ledger| ledger.watched_ns >= 20 * WaitLedger::TRIFLE_NS);
    for ((child, before), after) in spinners.iter().zip(before).zip(after) {
        let loss = loss_of(&ledgers, child.pid());
        for (account, ledger) in loss.accounts.iter().zip(&ledgers) {
            assert_eq!(account.total_ns(), ledger.watched_ns, "{account:?}");
        }
        assert_eq!(loss.accounts.len(), ledgers.len());
        let close = |ours: u64, kernels: u64| (ours as f64 - kernels as f64).abs() < 0.15 * watched(&ledgers) as f64;
        assert!(close(loss.sum(|a| a.ran_ns), after.0 - before.0), "{loss:?} {before:?} {after:?}");
        assert!(close(loss.waited(), after.1 - before.1), "{loss:?} {before:?} {after:?}");
    }
    let programs = reader.programs.as_ref().unwrap();
    assert_eq!(programs.build(), Build::Traced);
    let [no_slot, _, no_party, unbooked, running_at_switch_in, not_running_at_switch_out, _] = programs.rare();
    assert_eq!([no_slot, no_party, unbooked], [0; 3]);
    println!("running at switch-in {running_at_switch_in}, not running at switch-out {not_running_at_switch_out}");
}

#[test]
fn what_costs_too_much_is_watched_in_slices() {
    let Some(_lock) = HostLock::take_as_root() else { return };
    // Only some runs of the programs are timed, so there must be many: two threads that wake each other.
    let (to_other, from_us) = std::sync::mpsc::sync_channel(0);
    let (to_us, from_other) = std::sync::mpsc::sync_channel(0);
    let other = std::thread::spawn(move || from_us.iter().all(|()| to_us.send(()).is_ok()));
    let us = std::thread::spawn(move || {
        let until = now() + 3 * WINDOW;
        while now() < until && to_other.send(()).is_ok() && from_other.recv().is_ok() {}
    });
    let pace = WaitPace { most_cost: 1e-6, ..PACE };
    let mut reader = WaitReader::start(&Root::live(), pace);
    let ledgers = watch_with(&mut reader, 2 * WINDOW);
    assert!(!ledgers.is_empty());
    for ledger in &ledgers {
        assert!(
            ledger.watched_ns < ledger.to.since(ledger.from).as_nanos() as u64 / 2,
            "{} {:?}",
            ledger.watched_ns,
            ledger.from
        );
        assert!(ledger.accounts.iter().all(|account| account.ran_ns <= ledger.watched_ns || account.tid.is_none()));
    }
    us.join().unwrap();
    assert!(other.join().unwrap());
}

#[test]
fn without_bpf_the_reason_is_reported() {
    let mut evidence = Evidence::default();
    let mut reader = WaitReader::without_bpf(&Root::live(), PACE);
    reader.look(now(), &mut evidence);
    reader.finish(now(), &mut evidence);
    assert_eq!(evidence.unseen.len(), 1);
    assert!(evidence.why_unseen(probe::WAITS).unwrap().why.contains("--no-bpf"));
}

#[test]
fn older_builds_load_too() {
    let Some(_lock) = HostLock::take_as_root() else { return };
    for build in Build::ALL {
        let started = std::time::Instant::now();
        kernel::load_build(build, possible_cores(&Root::live())).unwrap();
        println!("{build:?} loaded in {:?}", started.elapsed());
    }
}

/// What the estimate says of the same seconds, from what the task and cgroup probes read.
#[test]
fn the_estimate_agrees_with_bpf() {
    let Some(_lock) = HostLock::take_as_root() else { return };
    let root = Root::live();
    let victim = spinner();
    let hog = on_core_1(
        &["chrt", "-f", "10"],
        "while :; do i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; sleep 0.05; done",
    );
    sleep(GROWN);
    let mut tasks = crate::tasks::TaskReader::new(root.clone());
    let mut seen = Evidence::default();
    tasks.look_all(now(), &mut seen);
    let mut exact = WaitReader::start(&root, PACE);
    let mut estimate = WaitReader::without_bpf(&root, PACE);
    estimate.look(now(), &mut seen);
    let (mut by_bpf, mut estimated) = (Evidence::default(), Evidence::default());
    let until = now() + WINDOW;
    while now() < until {
        sleep(Duration::from_millis(100));
        let mut seen = Evidence::default();
        tasks.look_hot(now(), &mut seen);
        exact.look(now(), &mut by_bpf);
        estimate.look(now(), &mut seen);
        estimated.append(seen);
    }
    let lost = |evidence: &Evidence| loss_of(&evidence.waits, victim.pid());
    let (exact, estimate) = (lost(&by_bpf), lost(&estimated));
    let share = |loss: &Loss| loss.waited() as f64 / (loss.waited() + loss.sum(|a| a.ran_ns)) as f64;
    assert!((share(&exact) - share(&estimate)).abs() < 0.2, "{exact:?} {estimate:?}");
    assert!(estimated.waits.iter().all(|ledger| ledger.method == LedgerMethod::Estimate));
    for ledger in &estimated.waits {
        for account in ledger.accounts.iter().filter(|account| account.tid.is_some()) {
            assert_eq!(account.total_ns(), ledger.watched_ns, "{account:?}");
        }
    }
    let is_hog = |party: &Party| party.pid == Some(hog.pid()) && party.class == SchedulingClass::Fifo;
    let to_hog = [&exact, &estimate].map(|loss| loss.share_of(is_hog));
    println!("to the hog: {to_hog:?}");
    assert!((to_hog[0] - to_hog[1]).abs() < 0.3, "{exact:?} {estimate:?}");
}
