//! Does one thread keep others off a core?
//!
//! core-saturated is about the core, this rule about the thread: which one, what lets it stay (scheduling class, priority,
//! affinity, or kernel code that cannot be preempted), and which threads could not run.

use crate::case::Case;
use crate::code::Code;
use crate::cores::cited::{culprit_steps, owner_facts, victim_fact, victims_text};
use crate::cores::owners::{Owner, OwnerKind};
use crate::cores::threads::Who;
use crate::cores::timeline::Saturation;
use crate::cores::traffic;
use crate::cores::waits::{Harm, VICTIM_WAITED_NS};
use crate::cores::words::{percent, percent_value, span};
use crate::cores::{Cores, FullCore, IN_KERNEL};
use crate::finding::{Answer, Fact, FactKey, Finding, Severity, Subject};
use crate::ties::{Task, Ties};
use crate::words::plural;
use coroner_evidence::Order;

/// A real-time thread is to blame from half of the busy time on; throttled, it gets 95 %.
const REAL_TIME_SHARE: f64 = 0.5;
/// An ordinary thread is to blame only if hardly any other ran: otherwise the core is crowded, not monopolised.
const ORDINARY_SHARE: f64 = 0.8;

pub fn examine(case: &Case<'_>) -> Answer {
    let cores = case.cores();
    if !cores.timeline.lasts() {
        return cores.not_watched();
    }
    let sees_waits = cores.waits_hidden().is_none();
    let told = |f: &FullCore| keeps_others_off(f) || (sees_waits && is_alone(f));
    let mut full = cores.full_by_owner(Saturation::Busy, told);
    full.order_by_key(|f| (std::cmp::Reverse(longest_wait(f)), f.core));
    let findings: Vec<Finding> =
        full.iter().filter_map(|f| monopolist(f).map(|(owner, who)| finding(cores, f, owner, who))).collect();
    if !findings.is_empty() {
        return Answer::Findings(findings);
    }
    let any_full = cores.timeline.stretches(Saturation::Busy);
    if any_full.is_empty() {
        return Answer::Fine("no core was full for a second or longer".to_owned());
    }
    match cores.waits_hidden() {
        Some((because, how_to_see)) => Answer::CannotTell {
            because: format!(
                "{} full, but which threads waited is unknown: {because}",
                plural(any_full.len() as u64, "core was", "cores were")
            ),
            how_to_see,
        },
        None => Answer::Fine(longest_of_all(cores, any_full[0].core)),
    }
}

/// The thread that owns the core, if a single one does.
fn monopolist(full: &FullCore) -> Option<(&Owner, &Who)> {
    let owner = full.ownership.owner()?;
    let OwnerKind::Thread(who) = &owner.kind else { return None };
    (!who.observer).then_some((owner, who))
}

fn keeps_others_off(full: &FullCore) -> bool {
    let Some((owner, who)) = monopolist(full) else { return false };
    let to_blame = if who.class.is_real_time() {
        owner.share >= REAL_TIME_SHARE && (full.is_outranked() || full.others_have_room())
    } else {
        owner.share >= ORDINARY_SHARE && (full.is_stuck() || full.others_have_room())
    };
    to_blame && full.victims.iter().any(|v| v.harm == Harm::Starved)
}

/// The numbers behind *fine*: who waited longest for a full core.
fn longest_of_all(cores: &Cores, full_core: u32) -> String {
    let full = cores.full(Saturation::Busy, |_| true);
    let waits = full.iter().flat_map(|f| f.victims.iter().map(move |victim| (f.core, victim)));
    match waits.max_by_key(|(_, victim)| victim.waited_ns) {
        Some((core, victim)) => format!(
            "the longest wait for a full core was {} in all ({}, core {core}), not behind one thread that kept others off",
            span(victim.waited_ns),
            victim.who.name()
        ),
        None => format!("core {full_core} was full, but no thread waited {} or longer for it", span(VICTIM_WAITED_NS)),
    }
}

/// A real-time thread that fills a core nobody else wants is still worth knowing: another thread may want it later.
fn is_alone(full: &FullCore) -> bool {
    monopolist(full).is_some_and(|(owner, who)| who.class.is_real_time() && owner.share >= REAL_TIME_SHARE)
        && full.victims.is_empty()
}

fn longest_wait(full: &FullCore) -> u64 {
    full.victims.iter().map(|v| v.waited_ns).max().unwrap_or(0)
}

fn finding(cores: &Cores, full: &FullCore, owner: &Owner, who: &Who) -> Finding {
    let starved: Vec<_> = full.victims.iter().filter(|v| v.harm == Harm::Starved).cloned().collect();
    // ksoftirqd has other work, too: it counts only if a NIC had packets waiting.
    let nic_had_work = || {
        let mut queues = cores.queues(full.core).into_iter();
        queues.any(|(nic, queue)| traffic::had_work(cores.evidence, nic, &[queue], full.core) == Some(true))
    };
    let network = starved.iter().any(|v| v.who.is_napi() || (v.who.is_ksoftirqd_of(full.core) && nic_had_work()));
    let others = match starved.len() {
        1 => starved[0].who.name(),
        n => format!("{n} threads"),
    };
    let in_kernel = owner.system_share.is_some_and(|s| s >= IN_KERNEL);
    let mut detail = format!(
        "{}{} ran as {} and took {} of core {} for {}{}.",
        who.name(),
        who.belongs_to(),
        who.scheduling(),
        percent(owner.share * full.stretch.shares.busy()),
        full.core,
        span(full.stretch.window.length().as_nanos() as u64),
        cores.when(full.stretch.window.from),
    );
    detail.push_str(&match starved.is_empty() {
        true => " No thread was seen waiting for it.".to_owned(),
        false => format!(" Kept off: {}.", victims_text(&starved)),
    });
    detail.push_str(&full.more_owners_text());
    if let Some(affinity) = &who.affinity {
        match affinity.single() {
            Some(core) => detail.push_str(&format!(" It is pinned to core {core}.")),
            None => detail.push_str(&format!(" It may run on cores {affinity}.")),
        }
    }
    if who.class.is_real_time() {
        detail.push_str(" A real-time thread preempts all ordinary ones and runs for as long as it wants; the kernel leaves the others at most 5 % of the core's time.");
    } else if in_kernel {
        detail.push_str(
            " It was in the kernel nearly all of that time: it may not be preemptible there, or its cgroup may far outweigh those of \
             the waiting threads (cpu.weight, cpu.shares).",
        );
    } else {
        detail.push_str(
            " Threads of equal weight take turns every few milliseconds; one that waits longer has less weight (nice, cpu.weight, cpu.shares).",
        );
    }

    let mut evidence = vec![Fact::new(FactKey::Core, full.core, "/proc/stat")];
    evidence.push(Fact::new(FactKey::Busy, percent_value(full.stretch.shares.busy()), "/proc/stat"));
    evidence.extend(owner_facts(full));
    if let Some(affinity) = &who.affinity {
        evidence.push(Fact::new(FactKey::OwnerAffinity, affinity.to_string(), format!("/proc/{}/status", who.tid)));
    }
    evidence.extend(starved.iter().map(victim_fact));

    Finding {
        code: Code::CoreMonopolised,
        ties: Ties {
            culprits: vec![who.into()],
            victims: starved.iter().map(|victim| Task::from(&victim.who)).collect(),
            since: Some(full.since()),
            until: Some(full.until()),
            ..Ties::of_core(full.core, full.stretch.window, &full.ownership)
        },
        severity: match (network, starved.is_empty()) {
            (true, _) => Severity::Critical,
            (false, false) => Severity::Warning,
            (false, true) => Severity::Info,
        },
        subject: Subject { name: subject(who), ..Subject::process(Task::from(who)) },
        title: match starved.is_empty() {
            true => format!(
                "{} ({}) had core {} to itself for {}; no thread was seen waiting for it",
                who.name(),
                who.scheduling(),
                full.core,
                span(full.stretch.window.length().as_nanos() as u64)
            ),
            false => format!(
                "{} ({}) kept {others} off core {} for up to {} in all",
                who.name(),
                who.scheduling(),
                full.core,
                span(longest_wait(full))
            ),
        },
        detail,
        evidence,
        remedy: match starved.is_empty() {
            true => format!(
                "No action needed if core {0} is dedicated to it. Otherwise: {1}",
                full.core,
                remedy(cores, full, who, in_kernel)
            ),
            false => remedy(cores, full, who, in_kernel),
        },
    }
}

/// `spin[4711]`, or `worker[4712] of process 4700` if it is not the main thread.
fn subject(who: &Who) -> String {
    match who.pid {
        Some(pid) if pid != who.tid => format!("{} of process {pid}", who.name()),
        _ => who.name(),
    }
}

fn remedy(cores: &Cores, full: &FullCore, who: &Who, in_kernel: bool) -> String {
    let (tid, core) = (who.tid, full.core);
    let mut steps = culprit_steps(cores, core, full.stretch.window, who);
    if who.kernel {
        return steps.join(" ");
    }
    if in_kernel && !who.class.is_real_time() {
        steps.insert(
            0,
            format!("See what it runs in the kernel: `cat /proc/{tid}/stack`, `perf record -C {core} -g -- sleep 5`."),
        );
    }
    steps.push(
        "A restart of the program resets scheduling class and affinity: change them where it is started (unit, pod spec, code).".into(),
    );
    if in_kernel && who.class.is_real_time() {
        steps.push("If it runs kernel code that cannot be preempted, changing its class won't help.".into());
    }
    steps.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cores::scene::{Actor, Doing, Load, Scene, time};
    use crate::finding::SubjectKind;
    use crate::rules::test_evidence::{self, fact_of};
    use coroner_evidence::Evidence;
    use coroner_evidence::Source;

    fn findings(evidence: &Evidence) -> Vec<Finding> {
        test_evidence::if_any(examine(&Case::of(evidence)))
    }

    fn spinner() -> Actor {
        Actor::new(4711, "spin", 1).fifo(50).pinned().until(99.0, Doing::Turns { run: 0.95, wait: 0.05, slices: 1.0 })
    }

    fn scene() -> Scene {
        Scene::new(2, 5.0).load(1, 0.0, 5.0, Load::User, 0.95).load(1, 0.0, 5.0, Load::System, 0.04)
    }

    /// Waits 950 ms of every second, then catches up in many short slices.
    fn throttled_victim(tid: u32, comm: &str) -> Actor {
        let mut actor = Actor::kernel(tid, comm, 1);
        for second in 0..5 {
            let s = f64::from(second);
            actor =
                actor.until(s + 0.95, Doing::Wait).until(s + 1.0, Doing::Turns { run: 0.5, wait: 0.0, slices: 4000.0 });
        }
        actor
    }

    #[test]
    fn the_thread_its_class_and_its_victims_are_named() {
        let found = findings(&scene().with(spinner()).with(throttled_victim(31, "kworker/1:1")).evidence());
        assert_eq!(found.len(), 1);
        let f = &found[0];
        assert_eq!((f.subject.kind, f.subject.name.as_str()), (SubjectKind::Process, "spin[4711]"));
        assert_eq!(f.severity, Severity::Warning);
        assert!(f.title.contains("SCHED_FIFO 50") && f.title.contains("core 1"), "{}", f.title);
        assert!(f.detail.contains("pinned to core 1"), "{}", f.detail);
        assert!(f.remedy.contains("`chrt -o -p 0 4711`") && f.remedy.contains("`taskset -pc 0 4711`"), "{}", f.remedy);
        let waited = fact_of(f, FactKey::Waited, "kworker/1:1[31]").as_u64().unwrap();
        assert!((4000..=4800).contains(&waited), "{waited}");
    }

    #[test]
    fn a_real_time_thread_that_nobody_waits_for_is_worth_knowing() {
        let idle = || Actor::kernel(31, "kworker/1:1", 1).until(99.0, Doing::Sleep);
        let found = findings(&scene().with(spinner()).with(idle()).evidence());
        let [f] = &found[..] else { panic!("{found:?}") };
        assert_eq!((f.severity, f.subject.name.as_str()), (Severity::Info, "spin[4711]"));
        assert!(
            f.title.starts_with("spin[4711] (SCHED_FIFO 50") && f.title.contains("had core 1 to itself"),
            "{}",
            f.title
        );
        assert!(f.title.ends_with("no thread was seen waiting for it") && !f.detail.contains("Kept off"), "{f:?}");
        assert!(f.remedy.starts_with("No action needed if core 1 is dedicated to it. Otherwise: "), "{}", f.remedy);
        // An ordinary program may use an idle core.
        let program = Actor::new(4711, "train", 1).pinned().until(99.0, Doing::Run);
        assert_eq!(findings(&scene().with(program).with(idle()).evidence()), []);
    }

    #[test]
    fn a_starved_softirq_thread_of_a_nic_is_critical() {
        let scene = scene().with(spinner()).with(throttled_victim(22, "ksoftirqd/1"));
        let mut evidence = scene.nic("eth0", 1).evidence();
        assert_eq!(findings(&evidence)[0].severity, Severity::Warning, "no packets seen");
        for (second, value) in [(0.0, 10), (5.0, 900)] {
            evidence.counters.push(Source::Interrupts, "cpu1", "38", time(second), value);
        }
        assert_eq!(findings(&evidence)[0].severity, Severity::Critical);
    }

    #[test]
    fn an_ordinary_thread_that_stays_in_the_kernel_is_a_monopolist() {
        let evidence = Scene::new(4, 5.0)
            .load(2, 1.0, 4.0, Load::System, 1.0)
            .with(Actor::new(77, "cadvisor", 2).of_process(70, "kubelet").in_kernel().between(1.0, 4.0, Doing::Run))
            .with(
                Actor::kernel(31, "kworker/2:1", 2)
                    .until(1.2, Doing::Sleep)
                    .until(3.9, Doing::Wait)
                    .until(4.0, Doing::Run)
                    .until(99.0, Doing::Sleep),
            )
            .evidence();
        let found = findings(&evidence);
        assert_eq!(found[0].subject.name, "cadvisor[77] of process 70");
        assert!(found[0].remedy.contains("/proc/77/stack"), "{}", found[0].remedy);
    }

    #[test]
    fn kernel_threads_keep_their_class() {
        let evidence = Scene::new(4, 5.0)
            .load(2, 0.0, 5.0, Load::System, 1.0)
            .with(Actor::kernel(40, "kswapd0", 2).until(99.0, Doing::Run))
            .with(Actor::kernel(31, "kworker/2:1", 2).until(99.0, Doing::Wait))
            .evidence();
        let remedy = &findings(&evidence)[0].remedy;
        assert!(remedy.contains("do not change its scheduling class") && !remedy.contains("chrt"), "{remedy}");
    }

    #[test]
    fn without_a_full_core_nobody_monopolises() {
        let idle = Scene::new(2, 5.0).evidence();
        assert!(matches!(examine(&Case::of(&idle)), Answer::Fine(why) if why.contains("no core was full")));
    }

    /// In a recording of minutes one may follow the other; each is named with its own time.
    #[test]
    fn two_monopolists_of_one_core_are_two_findings() {
        let reign = |tid: u32, comm: &str, from: f64, to: f64| {
            let actor = Actor::new(tid, comm, 1).fifo(50).pinned().until(from, Doing::Sleep);
            actor.until(to, Doing::Turns { run: 0.95, wait: 0.05, slices: 1.0 }).until(99.0, Doing::Sleep)
        };
        let victim = Actor::kernel(31, "kworker/1:1", 1).until(2.0, Doing::Sleep).until(12.0, Doing::Wait).between(
            20.0,
            26.0,
            Doing::Wait,
        );
        let evidence = Scene::new(2, 40.0)
            .load(1, 2.0, 12.0, Load::User, 0.99)
            .load(1, 20.0, 26.0, Load::User, 0.99)
            .with(reign(4711, "first", 2.0, 12.0))
            .with(reign(4712, "second", 20.0, 26.0))
            .with(victim)
            .evidence();
        let found = findings(&evidence);
        let names: Vec<&str> = found.iter().map(|f| f.subject.name.as_str()).collect();
        assert_eq!(names, ["first[4711]", "second[4712]"]);
        for (finding, from, to) in [(&found[0], 2.0, 12.0), (&found[1], 20.0, 26.0)] {
            let (since, until) = (finding.ties.since.unwrap(), finding.ties.until.unwrap());
            let near = |at: coroner_evidence::Time, second: f64| (at.0 as f64 - time(second).0 as f64).abs() < 1.1e9;
            assert!(near(since, from) && near(until, to), "{}: {since:?} {until:?}", finding.title);
        }
    }

    #[test]
    fn a_full_node_of_equals_has_no_monopolist() {
        let mut scene = Scene::new(2, 5.0).all_cores(Load::User, 1.0);
        for n in 0..6 {
            scene = scene.with(
                Actor::new(100 + n, "cc1plus", n % 2).until(99.0, Doing::Turns { run: 0.3, wait: 0.6, slices: 25.0 }),
            );
        }
        assert_eq!(findings(&scene.evidence()), []);
    }

    #[test]
    fn a_short_spike_is_fine_but_missing_evidence_is_not() {
        let spike = Scene::new(2, 5.0)
            .load(1, 1.0, 1.6, Load::User, 1.0)
            .with(Actor::new(4711, "spin", 1).fifo(50).until(1.0, Doing::Sleep).until(1.6, Doing::Run))
            .evidence();
        assert_eq!(findings(&spike), []);
        let mut blind = scene().with(spinner()).evidence();
        blind.thread_samples.clear();
        assert!(matches!(examine(&Case::of(&blind)), Answer::CannotTell { .. }));
        assert!(matches!(examine(&Case::of(&Evidence::default())), Answer::CannotTell { .. }));
    }

    #[test]
    fn a_hog_is_blamed_even_if_it_is_called_coroner() {
        let hog = || {
            Actor::new(4711, "coroner", 1)
                .fifo(50)
                .pinned()
                .until(99.0, Doing::Turns { run: 0.95, wait: 0.05, slices: 1.0 })
        };
        let mut evidence = scene().with(hog()).with(throttled_victim(222, "ksoftirqd/1")).evidence();
        let observer = |pid, started| coroner_evidence::Observer { pid, started, ..Default::default() };
        evidence.observers = vec![observer(89, 5)];
        assert_eq!(findings(&evidence)[0].ties.culprits[0].name(), "coroner[4711]");
        evidence.observers = vec![observer(4711, 4)];
        assert_eq!(findings(&evidence).len(), 1, "an earlier process with this pid was the observer");
        evidence.observers = vec![observer(4711, 5)];
        assert_eq!(findings(&evidence), []);
    }
}
