//! Sentences about a core that several rules share, and the facts they cite.

use super::threads::Who;
use super::timeline::Shares;
use super::waits::{Harm, Victim};
use super::words::{listed, percent, percent_value, span};
use super::{Cores, FullCore};
use crate::finding::{Fact, FactKey};
use crate::units::paths::{operand, shell_word};
use coroner_evidence::{CgroupOwner, CoreSet, Evidence, Nic, NicQueue, QueueKind, Source, Window};

/// Victims named in a sentence; the rest are counted.
const MOST_VICTIMS: usize = 3;

/// `user 0 %, system 99 %, softirq 1 %`; zero shares other than user and system are left out.
pub fn shares_text(shares: &Shares) -> String {
    let mut parts = vec![format!("user {}", percent(shares.user)), format!("system {}", percent(shares.system))];
    for (name, share) in
        [("irq", shares.irq), ("softirq", shares.softirq), ("steal", shares.steal), ("iowait", shares.iowait)]
    {
        if share >= 0.005 {
            parts.push(format!("{name} {}", percent(share)));
        }
    }
    parts.join(", ")
}

/// `ksoftirqd/1[22] 2.9 s (still waiting), kworker/1:0[31] 1.2 s and 3 more`
pub fn victims_text(victims: &[Victim]) -> String {
    let each: Vec<String> = victims
        .iter()
        .map(|v| {
            let how = match (v.harm, v.still_waiting) {
                (_, true) => " (still waiting)",
                (Harm::Crowded, _) => " (pinned to this core, taking turns)",
                (Harm::Starved, _) => "",
            };
            format!("{}{} {}{how}", v.who.name(), v.who.belongs_to(), span(v.waited_ns))
        })
        .collect();
    listed(&each, MOST_VICTIMS)
}

pub fn owner_facts(full: &FullCore) -> Vec<Fact> {
    match full.ownership.owner() {
        Some(owner) => {
            let source = match owner.who() {
                Some(who) => format!("/proc/{}/task/{}/schedstat", who.pid.unwrap_or(who.tid), who.tid),
                None => "/proc/stat, /proc/softirqs, /proc/interrupts".to_owned(),
            };
            let mut facts = vec![
                Fact::new(FactKey::Owner, owner.name(), source.clone()),
                Fact::new(FactKey::OwnerShare, percent_value(owner.share), source.clone()),
            ];
            if let Some(who) = owner.who() {
                facts.push(Fact::new(FactKey::OwnerClass, who.scheduling(), source));
            }
            facts
        }
        None => Vec::new(),
    }
}

pub fn victim_fact(victim: &Victim) -> Fact {
    let who = &victim.who;
    let source = format!("/proc/{}/task/{}/schedstat", who.pid.unwrap_or(who.tid), who.tid);
    Fact::new(FactKey::Waited, victim.waited_ns / 1_000_000, source).of(who.name())
}

/// A core less busy than this can take another thread or interrupt.
const TAKES_MORE: f64 = 0.5;

/// Cores named in a reason; the rest are counted.
const MOST_CORES: usize = 4;

/// Why no other core can take a thread: `core 0 was 61 % busy`, `core 0 serves eth0 rx-0`. Remedies and plans both say it.
pub fn why_no_room(cores: &Cores, core: u32, window: Window) -> String {
    let others: Vec<u32> = cores.timeline.lines.keys().copied().filter(|other| *other != core).collect();
    let reason = |other: &u32| {
        let queues = cores.queue_names(*other);
        match cores.timeline.shares(*other, window).map(|shares| shares.busy()) {
            None => format!("core {other} was not seen"),
            Some(busy) if busy >= TAKES_MORE => format!("core {other} was {} busy", percent(busy)),
            Some(_) if !queues.is_empty() => format!("core {other} serves {}", listed(&queues, 1)),
            Some(busy) => format!("core {other} was {} busy", percent(busy)),
        }
    };
    let reasons: Vec<String> = others.iter().map(reason).collect();
    match reasons.is_empty() {
        true => "the node has no other core".to_owned(),
        false => listed(&reasons, MOST_CORES),
    }
}

/// The other cores that had room within a window, as a list for smp_affinity_list.
pub fn with_room(cores: &Cores, core: u32, window: Window) -> Option<String> {
    roomy(cores, core, window, |_| true)
}

/// The other cores that had room and on which no NIC queue depends, as a list for taskset.
pub fn with_room_for_thread(cores: &Cores, core: u32, window: Window) -> Option<String> {
    roomy(cores, core, window, |other| cores.queues(other).is_empty())
}

fn roomy(cores: &Cores, core: u32, window: Window, fit: impl Fn(u32) -> bool) -> Option<String> {
    let others = cores.timeline.lines.keys().copied().filter(|other| {
        *other != core && cores.timeline.shares(*other, window).is_some_and(|s| s.busy() < TAKES_MORE) && fit(*other)
    });
    let others = CoreSet::new(others);
    (!others.is_empty()).then(|| others.to_string())
}

/// The command that lets a thread run on other cores: ``taskset`` if its cpuset allows them; else what widens the cpuset, because
/// there `taskset` fails with EINVAL. `to` is a list of cores.
pub fn how_to_move(evidence: &Evidence, tid: u32, to: &str) -> String {
    let cpuset = evidence.cpuset_of(tid);
    let wanted = CoreSet::parse_list(to).unwrap_or_default();
    let Some(cpuset) = cpuset else { return format!("`taskset -pc {to} {tid}`") };
    let allowed = CoreSet::new(wanted.iter().filter(|core| cpuset.cores.contains(*core)));
    if !allowed.is_empty() {
        return format!("`taskset -pc {allowed} {tid}`");
    }
    let is = cores_list(&cpuset.cores.to_string());
    let why = format!("its cpuset {} allows only {is}, so widen that: ", cpuset.cgroup);
    let owner = CgroupOwner::of_path(&cpuset.cgroup);
    if owner.pod_uid.is_some() {
        return format!(
            "{why}the kubelet's CPU manager sets it, so request more CPUs for the container, or none exclusively (a CPU request \
             that is no whole number)"
        );
    }
    let wider = |cores: &CoreSet| CoreSet::new(cores.iter().chain(wanted.iter())).to_string();
    // systemd has AllowedCPUs= on the unified hierarchy only, and would overwrite what is written there.
    if let (2, Some(unit)) = (cpuset.version, &owner.unit) {
        return format!("{why}`systemctl set-property {} AllowedCPUs={}`", operand(unit), wider(&cpuset.cores));
    }
    let writes: Vec<String> = cpuset
        .levels
        .iter()
        .filter(|level| !wanted.iter().all(|core| level.cores.contains(core)))
        .map(|level| format!("echo {} > {}", wider(&level.cores), shell_word(&level.file)))
        .collect();
    format!("{why}`{}`", writes.join(" && "))
}

/// How other cores can process some of a core's packets (RPS), with the mask and the device: the one that received most while
/// watched. `None` if no other core has room; without counters of devices it says how to find the device.
pub fn steer_packets(cores: &Cores, core: u32, window: Window) -> Option<String> {
    let room = with_room(cores, core, window)?;
    let mask = CoreSet::parse_list(&room)?.to_mask();
    let received = |nic: &Nic| cores.evidence.counters.moved(Source::NicStatistics, &nic.display_name(), "rx_packets");
    let busiest = cores.nics.iter().filter(|nic| received(nic).is_some_and(|n| n > 0)).max_by_key(|nic| received(nic));
    let Some(nic) = busiest else {
        return Some(format!(
            "Let {} process some of the packets (RPS): `echo {mask} > /sys/class/net/DEV/queues/rx-0/rps_cpus`, where DEV is the device whose \
             RX packets grow in `ip -s link`.",
            cores_list(&room)
        ));
    };
    let is_here = |queue: &&NicQueue| {
        let steered = queue.steering.as_ref().is_some_and(|cores| cores.contains(core));
        queue.kind == QueueKind::Rx && (queue.needs_core(core) || steered)
    };
    let queue = nic.queues.iter().find(is_here).map_or(0, |queue| queue.index);
    let file = format!("/sys/class/net/{}/queues/rx-{queue}/rps_cpus", nic.name);
    let write = format!("echo {mask} > {}", shell_word(&file));
    // Each network namespace has its own /sys/class/net.
    let command = match &nic.netns {
        Some(netns) => format!("ip netns exec {} sh -c {}", shell_word(netns), shell_word(&write)),
        None => write,
    };
    Some(format!("Let {} process some of the packets of {} (RPS): `{command}`.", cores_list(&room), nic.display_name()))
}

/// `core 3`, `cores 0,4-7`
pub fn cores_list(cores: &str) -> String {
    format!("core{} {cores}", if cores.contains([',', '-']) { "s" } else { "" })
}

/// What to do about a thread that fills a core: lower its priority, move it, stop it.
pub fn culprit_steps(cores: &Cores, core: u32, window: Window, who: &Who) -> Vec<String> {
    let (name, tid) = (who.name(), who.tid);
    if who.kernel {
        return vec![format!(
            "{name} is a kernel thread: do not change its scheduling class. See what it is doing: `cat /proc/{tid}/stack`, `perf record -C {core} -g -- sleep 5`."
        )];
    }
    let mut steps = Vec::new();
    if who.class.is_real_time() {
        steps.push(format!("Drop {name} to SCHED_OTHER: `chrt -o -p 0 {tid}`. It then takes turns with the others."));
    } else if who.nice < 0 {
        steps.push(format!("Reset its nice value: `renice -n 0 -p {tid}`."));
    }
    let or = if steps.is_empty() { "Move" } else { "Or move" };
    match with_room_for_thread(cores, core, window) {
        Some(others) => steps.push(format!(
            "{or} {name} to a core with room ({others}): {}.",
            how_to_move(cores.evidence, tid, &others)
        )),
        None => steps.push(format!("Moving it won't help: {}.", why_no_room(cores, core, window))),
    }
    steps.push("If it is not needed, stop it.".to_owned());
    steps
}

#[cfg(test)]
mod tests {
    use super::*;
    use coroner_evidence::{Cpuset, CpusetLevel};

    fn within(cgroup: &str, version: u8) -> Evidence {
        let cores = |text| CoreSet::parse_list(text).unwrap();
        let level = |file: &str, text| CpusetLevel { file: file.to_owned(), cores: cores(text) };
        let cpuset = Cpuset {
            cgroup: cgroup.to_owned(),
            version,
            cores: cores("1"),
            levels: vec![level("/cg/jobs/cpuset.cpus", "0-1"), level("/cg/jobs/a b/cpuset.cpus", "1")],
            threads: vec![7],
        };
        Evidence { cpusets: vec![cpuset], ..Evidence::default() }
    }

    #[test]
    fn a_thread_in_a_cpuset_is_moved_by_widening_it() {
        let evidence = within("/jobs/a b", 1);
        assert_eq!(how_to_move(&evidence, 8, "2-3"), "`taskset -pc 2-3 8`", "another thread");
        assert_eq!(how_to_move(&evidence, 7, "0-1"), "`taskset -pc 1 7`");
        assert_eq!(
            how_to_move(&evidence, 7, "2-3"),
            "its cpuset /jobs/a b allows only core 1, so widen that: \
             `echo 0-3 > /cg/jobs/cpuset.cpus && echo 1-3 > '/cg/jobs/a b/cpuset.cpus'`"
        );
        // A level that already allows them is left alone.
        assert!(how_to_move(&evidence, 7, "0").ends_with("so widen that: `echo 0-1 > '/cg/jobs/a b/cpuset.cpus'`"));
    }

    #[test]
    fn who_sets_a_cpuset_must_widen_it() {
        let unit = how_to_move(&within("/system.slice/train.service", 2), 7, "0");
        assert!(unit.ends_with("`systemctl set-property train.service AllowedCPUs=0-1`"), "{unit}");
        let on_v1 = how_to_move(&within("/system.slice/train.service", 1), 7, "0");
        assert!(on_v1.contains("`echo 0-1 > "), "systemd has no cpusets there: {on_v1}");
        let pod = how_to_move(&within("/kubepods/pod6f9b1c7e-1111-2222-3333-444455556666/c", 2), 7, "0");
        assert!(pod.contains("CPU manager") && !pod.contains('`'), "{pod}");
    }
}
