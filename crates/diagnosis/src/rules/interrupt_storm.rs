//! Do interrupts or softirqs take a core away from all threads?

use crate::case::Case;
use crate::code::Code;
use crate::cores::cited::{shares_text, steer_packets, victim_fact, with_room};
use crate::cores::owners::OwnerKind;
use crate::cores::threads::is_napi;
use crate::cores::timeline::Saturation;
use crate::cores::traffic;
use crate::cores::words::{listed, percent, percent_value, span};
use crate::cores::{Cores, FullCore};
use crate::finding::{Answer, Fact, FactKey, Finding, Severity, Subject, SubjectKind};
use crate::kernel_work::Work;
use crate::ties::{self, Task, Ties};
use crate::units::paths::shell_word;
use crate::words::plural;
use coroner_evidence::{Evidence, Nic, Source, Window, WorkKind, WorkRow};

/// From half of the core's time on, threads get less than the interrupts do.
const STORM: f64 = 0.5;
/// Senders must account for this share of the sampled packet processing on a core.
const BEHALF: f64 = 0.5;
/// A sender spends at least this much time in its own system calls, relative to packet processing in its context. A process that
/// is merely interrupted in user code has next to none.
const OWN_CALLS: f64 = 0.1;

/// If it takes more senders than this, none is named.
const MOST_SENDERS: usize = 4;

pub fn examine(case: &Case<'_>) -> Answer {
    let cores = case.cores();
    if !cores.timeline.lasts() {
        return cores.not_watched();
    }
    // Kernel stretches first: in a recording, programs may have kept the core busy for minutes before and after.
    let is_storm = |full: &FullCore| share(cores, full) >= STORM;
    let mut storms = cores.full(Saturation::Kernel, is_storm);
    for full in cores.full(Saturation::Busy, is_storm) {
        if storms.iter().all(|storm| storm.core != full.core) {
            storms.push(full);
        }
    }
    Answer::from_findings(storms.iter().map(|full| finding(cores, full)).collect(), || {
        match cores.timeline.worst(|shares| shares.interrupts()) {
            Some((core, share)) => {
                format!("irq and softirq peaked at {} of a core over 1 s (core {core})", percent(share))
            }
            None => "no core was sampled".to_owned(),
        }
    })
}

/// Share of the core's time in interrupts: counted as such, or in the kernel threads that do their work.
fn share(_: &Cores, full: &FullCore) -> f64 {
    let counted = full.stretch.shares.interrupts();
    let by_thread = full.ownership.owner().filter(|owner| {
        owner.who().is_some_and(|who| who.kernel && (is_napi(&who.comm) || who.is_ksoftirqd_of(full.core)))
    });
    counted.max(by_thread.map_or(0.0, |owner| owner.share * full.stretch.shares.busy()))
}

fn finding(cores: &Cores, full: &FullCore) -> Finding {
    let core = full.core;
    let window = full.stretch.window;
    let what = kind_of(cores, full);
    let behalf = on_behalf_of(cores.evidence, core, window);
    let queues = cores.queue_names(core);
    let dropped = cores.evidence.counters.moved(Source::Softnet, &format!("cpu{core}"), "dropped").unwrap_or(0);
    let hurts = !full.victims.is_empty() || dropped > 0;
    let mut detail = format!("Core {core}{}: {}.", cores.when(window.from), shares_text(&full.stretch.shares));
    let names = |tasks: &[Task]| listed(&tasks.iter().map(Task::name).collect::<Vec<_>>(), MOST_SENDERS);
    if let Some((tasks, part)) = &behalf {
        detail.push_str(&format!(
            " {} of the packet processing time was in the context of {}, which also made system calls: most likely the source of the packets.",
            percent(*part),
            names(tasks)
        ));
    }
    if !queues.is_empty() {
        detail.push_str(&format!(" No other core serves {}.", listed(&queues, 4)));
    }
    if dropped > 0 {
        detail.push_str(&format!(" The core dropped {} while watched.", plural(dropped, "packet", "packets")));
    }
    let mut evidence = vec![
        Fact::new(FactKey::Core, core, "/proc/stat"),
        Fact::new(FactKey::InterruptShare, percent_value(share(cores, full)), "/proc/stat"),
        Fact::new(FactKey::Lasted, window.length().as_millis() as u64, "/proc/stat"),
        Fact::new(FactKey::InterruptMost, what.clone(), "/proc/softirqs, /proc/interrupts"),
    ];
    evidence.extend(full.victims.iter().map(victim_fact));
    Finding {
        code: Code::InterruptStorm,
        severity: if hurts { Severity::Critical } else { Severity::Warning },
        subject: Subject::new(SubjectKind::Core, core.to_string()),
        title: format!(
            "{what} took {} of core {core} for {}",
            percent(share(cores, full)),
            span(window.length().as_nanos() as u64)
        ),
        detail,
        evidence,
        remedy: remedy(cores, full, behalf.as_ref().map(|(tasks, _)| names(tasks))),
        ties: Ties {
            cores: vec![core],
            culprits: behalf.map(|(tasks, _)| tasks).unwrap_or_default(),
            victims: full.victims.iter().map(|victim| Task::from(&victim.who)).collect(),
            queues: cores.queues(core).iter().map(|(nic, queue)| ties::queue(nic, queue)).collect(),
            when: Some(window.into()),
            until: Some(full.until()),
            ..Ties::default()
        },
    }
}

/// `softirq NET_RX`, `interrupt 38`, `napi/eth0-8193[77]`.
fn kind_of(cores: &Cores, full: &FullCore) -> String {
    match full.ownership.owner() {
        Some(owner) if matches!(owner.kind, OwnerKind::Softirq(_) | OwnerKind::Interrupt(_)) => owner.name(),
        Some(owner) if owner.who().is_some_and(|who| is_napi(&who.comm)) => owner.name(),
        _ => most_raised(cores, full).unwrap_or_else(|| "softirqs".to_owned()),
    }
}

fn most_raised(cores: &Cores, full: &FullCore) -> Option<String> {
    let subject = format!("cpu{}", full.core);
    let counters = &cores.evidence.counters;
    let moved = |name: &str| counters.moved(Source::Softirqs, &subject, name).unwrap_or(0);
    let quiet = ["TIMER", "SCHED", "RCU"];
    let names = counters.names(Source::Softirqs, &subject);
    let most = names.into_iter().filter(|name| !quiet.contains(name)).max_by_key(|name| moved(name))?;
    (moved(most) > 0).then(|| format!("softirq {most}"))
}

/// The processes in whose context packets were processed on this core: on loopback or veth they are the senders. A process that
/// packets merely interrupt makes few system calls. Largest first, until together they have [`BEHALF`]; with their share.
fn on_behalf_of(evidence: &Evidence, core: u32, window: Window) -> Option<(Vec<Task>, f64)> {
    let work = Work::of(evidence)?;
    let all = work.time_within(Some(window), |row| row.core == core && row.kind == WorkKind::Network).as_secs_f64();
    let mut senders = Vec::new();
    let mut part = 0.0;
    for process in work.processes(|row| row.core == core && row.kind == WorkKind::Network && row.pid != 0) {
        let comm = &process.thread.comm;
        let calls = |row: &WorkRow| {
            let own = !matches!(row.kind, WorkKind::Network | WorkKind::Interrupt);
            row.pid == process.thread.pid && row.core == core && own
        };
        let calls_itself = work.time(calls).as_secs_f64() >= OWN_CALLS * process.time.as_secs_f64();
        if comm.starts_with("ksoftirqd/") || is_napi(comm) || !calls_itself || senders.len() == MOST_SENDERS {
            continue;
        }
        part += process.time.as_secs_f64() / all.max(1e-9);
        senders.push(process.thread);
        if part >= BEHALF {
            return Some((senders, part.min(1.0)));
        }
    }
    None
}

fn remedy(cores: &Cores, full: &FullCore, sender: Option<String>) -> String {
    let mut steps = Vec::new();
    if let Some(sender) = &sender {
        steps.push(format!("Check whether {sender} needs to send that much."));
    }
    if with_room(cores, full.core, full.stretch.window).is_none() {
        steps.push("No other core has room: send fewer or larger packets (GRO, jumbo frames).".to_owned());
        return steps.join(" ");
    }
    // Packets sent by a process of this node come through no device with queues of its own.
    let mut devices = cores.queues(full.core).into_iter().filter(|(nic, _)| sender.is_none() && nic.bus.is_some());
    let at_work = |nic: &Nic, queue| traffic::had_work(cores.evidence, nic, &[queue], full.core) == Some(true);
    let device = devices.find(|(nic, queue)| at_work(nic, queue));
    if let Some((nic, _)) = device {
        steps.push(format!(
            "Spread {0} over more cores: `ethtool -L {1} combined N`, or move its interrupts (irqbalance, /proc/irq/N/smp_affinity_list).",
            nic.display_name(),
            shell_word(&nic.name)
        ));
    }
    steps.extend(steer_packets(cores, full.core, full.stretch.window));
    steps.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cores::scene::{Actor, Doing, Load, Scene, time};
    use crate::kernel_work::test_work::{row, second};
    use crate::rules::test_evidence::{fact, fine, one};

    /// Softirqs, mostly NET_RX, have core 1 from second 1 to 4.
    fn storm(share: f64) -> Evidence {
        let mut evidence = Scene::new(4, 5.0).load(1, 1.0, 4.0, Load::Softirq, share).evidence();
        for (name, n) in [("NET_RX", 90_000), ("TIMER", 200_000)] {
            evidence.counters.push(Source::Softirqs, "cpu1", name, time(0.0), 10);
            evidence.counters.push(Source::Softirqs, "cpu1", name, time(5.0), n);
        }
        evidence
    }

    #[test]
    fn a_storm_is_named_by_its_softirq() {
        let f = one(examine(&Case::of(&storm(0.97))));
        assert_eq!((f.severity, f.subject.name.as_str()), (Severity::Warning, "1"));
        assert!(f.title.contains("NET_RX took 9") && f.title.contains("of core 1 for 3.0 s"), "{}", f.title);
        assert!(f.remedy.contains("`echo d > /sys/class/net/DEV/queues/rx-0/rps_cpus`"), "{}", f.remedy);
        // The device that receives them, if its packets were counted.
        let mut evidence = storm(0.97);
        evidence.nics = vec![Nic { name: "veth1".into(), netns: Some("blue".into()), ..Nic::default() }];
        let name = evidence.nics[0].display_name();
        evidence.counters.push(Source::NicStatistics, &name, "rx_packets", time(0.0), 5);
        evidence.counters.push(Source::NicStatistics, &name, "rx_packets", time(5.0), 50_000);
        let f = one(examine(&Case::of(&evidence)));
        let command = "`ip netns exec blue sh -c 'echo d > /sys/class/net/veth1/queues/rx-0/rps_cpus'`";
        assert!(f.remedy.contains(command), "{}", f.remedy);
    }

    #[test]
    fn it_is_critical_if_packets_are_dropped() {
        let mut evidence = storm(0.97);
        evidence.counters.push(Source::Softnet, "cpu1", "dropped", time(0.0), 0);
        evidence.counters.push(Source::Softnet, "cpu1", "dropped", time(5.0), 7_000);
        let f = one(examine(&Case::of(&evidence)));
        assert_eq!(f.severity, Severity::Critical);
        assert!(f.detail.contains("dropped 7,000 packets"), "{}", f.detail);
    }

    #[test]
    fn the_process_in_whose_context_packets_are_processed_sends_them() {
        let mut evidence = storm(0.97);
        for s in 1..4u32 {
            let rows = vec![
                row(1, 77, "flood", WorkKind::Network, 70),
                row(1, 77, "flood", WorkKind::Other, 10),
                row(1, 22, "ksoftirqd/1", WorkKind::Network, 15),
            ];
            evidence.kernel_work.push(second(time(f64::from(s)), rows));
        }
        let f = one(examine(&Case::of(&evidence)));
        assert_eq!(f.ties.culprits[0].name(), "flood[77]");
        assert!(f.detail.contains("flood[77]") && f.remedy.contains("flood[77]"), "{} {}", f.detail, f.remedy);
    }

    #[test]
    fn a_process_that_packets_merely_interrupt_does_not_send_them() {
        let mut evidence = storm(0.97);
        for s in 1..4u32 {
            let rows = vec![row(1, 77, "train", WorkKind::Network, 90), row(1, 77, "train", WorkKind::Interrupt, 5)];
            evidence.kernel_work.push(second(time(f64::from(s)), rows));
        }
        let f = one(examine(&Case::of(&evidence)));
        assert_eq!(f.ties.culprits, []);
        assert!(!f.detail.contains("train") && !f.remedy.contains("train"), "{} {}", f.detail, f.remedy);
    }

    #[test]
    fn interrupts_that_leave_room_are_fine() {
        assert!(fine(examine(&Case::of(&storm(0.45)))).contains("peaked at 45 % of a core over 1 s (core 1)"));
    }

    #[test]
    fn a_core_filled_by_a_thread_is_no_storm() {
        let scene = Scene::new(4, 5.0)
            .load(1, 1.0, 4.0, Load::System, 0.9)
            .load(1, 1.0, 4.0, Load::Softirq, 0.08)
            .with(Actor::new(60, "kubelet", 1).in_kernel().until(1.0, Doing::Sleep).until(4.0, Doing::Run));
        fine(examine(&Case::of(&scene.evidence())));
    }

    #[test]
    fn a_napi_thread_that_fills_its_core_is_a_storm() {
        let napi = Actor::kernel(300, "napi/eth0-8193", 1).until(1.0, Doing::Sleep).until(4.0, Doing::Run);
        let scene = Scene::new(4, 5.0).load(1, 1.0, 4.0, Load::System, 0.98).with(napi.until(99.0, Doing::Sleep));
        let f = one(examine(&Case::of(&scene.evidence())));
        assert!(f.title.contains("napi/eth0-8193"), "{}", f.title);
        assert_eq!(fact(&f, FactKey::Core), 1);
    }
}
