//! Do pinned threads compete for one core?

use crate::case::Case;
use crate::code::Code;
use crate::cores::cited::{how_to_move, why_no_room, with_room_for_thread};
use crate::cores::threads::ThreadLine;
use crate::cores::timeline::Saturation;
use crate::cores::words::{listed, percent, percent_value, span};
use crate::cores::{Cores, FullCore};
use crate::finding::{Answer, Fact, FactKey, Finding, Severity, Subject, SubjectKind};
use crate::ties::{Task, Ties};
use crate::words::{duration_words, plural};
use std::collections::BTreeMap;
use std::time::Duration;

const NAMED: usize = 4;
/// Of the watched time: a thread that waits this much, while another one pinned to the same core runs this much, speaks against
/// *fine*.
const COMPETES: f64 = 0.1;

pub fn examine(case: &Case<'_>) -> Answer {
    let cores = case.cores();
    if !cores.timeline.lasts() {
        return cores.not_watched();
    }
    let shared = cores.full(Saturation::Busy, FullCore::is_shared_by_pinned);
    // Threads pinned evenly to all cores make a full node, not a crowded core.
    if shared.len() < cores.timeline.lines.len() {
        let crowded: Vec<Finding> =
            shared.iter().filter(|full| full.is_crowded_by_pinning()).map(|full| finding(cores, full)).collect();
        if !crowded.is_empty() {
            return Answer::Findings(crowded);
        }
    }
    if let Some((because, how_to_see)) = cores.waits_hidden() {
        return Answer::CannotTell { because, how_to_see };
    }
    checked(cores)
}

/// What a pinned thread did while it was watched.
struct Pinned {
    name: String,
    ran: Duration,
    waited: Duration,
}

/// The outcome of the test of each core to which several threads are pinned.
fn checked(cores: &Cores) -> Answer {
    let window = cores.window().map_or(Duration::ZERO, |window| window.length());
    let read =
        cores.threads.lines.iter().filter(|line| !line.is_kernel() && line.about.is_some_and(|t| t.affinity.is_some()));
    let read: Vec<&ThreadLine> = read.collect();
    let mut by_core: BTreeMap<u32, Vec<Pinned>> = BTreeMap::new();
    for line in &read {
        if let Some(core) = line.only_core() {
            by_core.entry(core).or_default().push(pinned(line));
        }
    }
    let all: usize = by_core.values().map(Vec::len).sum();
    by_core.retain(|_, threads| threads.len() > 1);
    let much = |time: Duration| time.as_secs_f64() >= COMPETES * window.as_secs_f64();
    let longest = by_core.iter().filter_map(|(core, threads)| {
        let (worst, _) = threads.iter().enumerate().max_by_key(|(_, thread)| thread.waited)?;
        let other = threads.iter().enumerate().filter(|(i, _)| *i != worst).max_by_key(|(_, thread)| thread.ran)?.1;
        Some((*core, &threads[worst], other))
    });
    let longest = longest.max_by_key(|(_, worst, _)| worst.waited);
    if let Some((core, worst, other)) =
        longest.as_ref().filter(|(_, worst, other)| much(worst.waited) && much(other.ran))
    {
        return Answer::CannotTell {
            because: format!(
                "{} and {} are both pinned to core {core}; {} waited {} of {} while {} ran {}, so pinning may be part of it",
                worst.name,
                other.name,
                worst.name,
                duration_words(worst.waited),
                duration_words(window),
                other.name,
                duration_words(other.ran)
            ),
            how_to_see: format!("see what is said about core {core}"),
        };
    }
    let of = format!("of {} whose affinity was read", plural(read.len() as u64, "thread", "threads"));
    Answer::Fine(match (all, longest) {
        (0, _) => format!("none {of} is pinned to a single core"),
        (1, _) => format!("only 1 {of} is pinned to a single core"),
        (n, None) => format!("{n} {of} are pinned to a single core, each to another one"),
        (n, Some((core, worst, _))) => format!(
            "{n} {of} are pinned to a single core, and several share one; the longest wait of such a thread was {} of {} ({}, core {core})",
            duration_words(worst.waited),
            duration_words(window),
            worst.name
        ),
    })
}

fn pinned(line: &ThreadLine) -> Pinned {
    let mut scheduled = line.samples.iter().filter_map(|sample| sample.sched);
    let first = scheduled.next();
    let last = scheduled.next_back().or(first);
    let (ran, waited) = first.zip(last).map_or((0, 0), |(first, last)| {
        (last.run_ns.saturating_sub(first.run_ns), last.wait_ns.saturating_sub(first.wait_ns))
    });
    Pinned { name: line.who().name(), ran: Duration::from_nanos(ran), waited: Duration::from_nanos(waited) }
}

fn finding(cores: &Cores, full: &FullCore) -> Finding {
    let who: Vec<_> = full.pinned.iter().map(|sharer| (cores.threads.lines[sharer.line].who(), sharer.share)).collect();
    let names: Vec<String> = who.iter().map(|(who, share)| format!("{} {}", who.name(), percent(*share))).collect();
    let core = full.core;
    let longest = full.victims.iter().map(|victim| victim.waited_ns).max().unwrap_or(0);
    let others = full.others.map_or(0.0, |others| others.busy());
    let mut evidence: Vec<Fact> = who
        .iter()
        .take(NAMED)
        .map(|(who, share)| {
            Fact::new(FactKey::PinnedShare, percent_value(*share), format!("/proc/{}/status", who.tid)).of(who.name())
        })
        .collect();
    evidence.push(Fact::new(FactKey::BusyOfOtherCores, percent_value(others), "/proc/stat"));
    Finding {
        code: Code::Affinity,
        severity: Severity::Warning,
        subject: Subject::new(SubjectKind::Core, core.to_string()),
        title: format!(
            "{} threads are pinned to core {core} and wait for each other, up to {} each",
            who.len(),
            span(longest)
        ),
        detail: format!(
            "They may run on core {core} only and share its busy time: {}. The other cores averaged {} busy.",
            listed(&names, NAMED),
            percent(others)
        ),
        evidence,
        remedy: who.get(1).map(|(who, _)| remedy(cores, full, who.tid)).unwrap_or_default(),
        ties: Ties {
            cores: vec![core],
            culprits: who.iter().map(|(who, _)| Task::from(who)).collect(),
            when: Some(full.stretch.window.into()),
            since: Some(full.since()),
            until: Some(full.until()),
            ..Ties::default()
        },
    }
}

fn remedy(cores: &Cores, full: &FullCore, second: u32) -> String {
    let window = full.stretch.window;
    let now = match with_room_for_thread(cores, full.core, window) {
        Some(others) => format!(
            "Move all but one to a core with room ({others}): {}.",
            how_to_move(cores.evidence, second, &others)
        ),
        None => format!("Run fewer threads there: {}.", why_no_room(cores, full.core, window)),
    };
    format!(
        "{now} Usual cause: two jobs that both number their cores from 0. Fix it where they are pinned (cpuset, CPUAffinity=, the launcher)."
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cores::scene::{Actor, Doing, Load, Scene};
    use crate::rules::test_evidence::{cannot_tell, fact_of, fine, one};
    use coroner_evidence::{CoreSet, Cpuset, CpusetLevel};

    const HALF: Doing = Doing::Turns { run: 0.5, wait: 0.5, slices: 100.0 };

    /// Two jobs that both number their cores from 0.
    fn both_on_core_0() -> Scene {
        Scene::new(4, 5.0)
            .load(0, 0.0, 5.0, Load::User, 1.0)
            .with(Actor::new(60, "rank-0", 0).pinned().until(99.0, HALF))
            .with(Actor::new(61, "rank-1", 0).pinned().until(99.0, HALF))
    }

    #[test]
    fn threads_pinned_to_one_core_are_named_with_their_shares() {
        let f = one(examine(&Case::of(&both_on_core_0().evidence())));
        assert_eq!((f.severity, f.subject.name.as_str()), (Severity::Warning, "0"));
        assert!(f.title.contains("2 threads are pinned to core 0"), "{}", f.title);
        for word in ["rank-0[60] 50 %", "rank-1[61] 50 %", "The other cores averaged 0 % busy"] {
            assert!(f.detail.contains(word), "{word}: {}", f.detail);
        }
        assert_eq!(fact_of(&f, FactKey::PinnedShare, "rank-0[60]"), 50.0);
        assert_eq!(f.ties.culprits.len(), 2);
    }

    #[test]
    fn threads_that_may_run_elsewhere_are_not_crowded_by_pinning() {
        let scene = Scene::new(4, 5.0)
            .load(0, 0.0, 5.0, Load::User, 1.0)
            .with(Actor::new(60, "a", 0).until(99.0, HALF))
            .with(Actor::new(61, "b", 0).until(99.0, HALF));
        let why = fine(examine(&Case::of(&scene.evidence())));
        assert!(why.starts_with("none of ") && why.ends_with("is pinned to a single core"), "{why}");
    }

    #[test]
    fn one_pinned_thread_per_core_is_fine() {
        let mut scene = Scene::new(2, 5.0).all_cores(Load::User, 1.0);
        for core in 0..2 {
            scene = scene.with(Actor::new(60 + core, "rank", core).pinned().until(99.0, Doing::Run));
        }
        let why = fine(examine(&Case::of(&scene.evidence())));
        assert!(why.starts_with("2 of ") && why.ends_with("each to another one"), "{why}");
    }

    #[test]
    fn threads_pinned_evenly_to_all_cores_make_a_full_node() {
        let mut scene = Scene::new(2, 5.0).all_cores(Load::User, 1.0);
        for n in 0..4 {
            scene = scene.with(Actor::new(60 + n, "rank", n % 2).pinned().until(99.0, HALF));
        }
        let (because, _) = cannot_tell(examine(&Case::of(&scene.evidence())));
        assert!(because.contains("are both pinned to core"), "{because}");
    }

    #[test]
    fn pinned_threads_that_share_a_core_and_hardly_wait_are_told_with_their_longest_wait() {
        let scene = Scene::new(2, 5.0)
            .load(0, 0.0, 5.0, Load::User, 0.2)
            .with(Actor::new(60, "a", 0).pinned().until(99.0, Doing::Turns { run: 0.1, wait: 0.02, slices: 10.0 }))
            .with(Actor::new(61, "b", 0).pinned().until(99.0, Doing::Turns { run: 0.1, wait: 0.01, slices: 10.0 }));
        let why = fine(examine(&Case::of(&scene.evidence())));
        assert!(why.contains("several share one") && why.ends_with("(a[60], core 0)"), "{why}");
    }

    #[test]
    fn an_unfair_share_of_one_core_is_not_called_fine() {
        let scene = Scene::new(2, 5.0)
            .load(0, 0.0, 5.0, Load::User, 1.0)
            .with(Actor::new(60, "hog", 0).pinned().until(99.0, Doing::Turns { run: 0.9, wait: 0.1, slices: 10.0 }))
            .with(Actor::new(61, "job", 0).pinned().until(99.0, Doing::Turns { run: 0.1, wait: 0.9, slices: 10.0 }));
        let (because, how) = cannot_tell(examine(&Case::of(&scene.evidence())));
        assert!(because.contains("job[61] waited") && because.contains("hog[60] ran"), "{because}");
        assert_eq!(how, "see what is said about core 0");
    }

    #[test]
    fn in_a_cpuset_the_advice_is_to_widen_it() {
        let mut evidence = both_on_core_0().evidence();
        let cores = CoreSet::parse_list("0").unwrap();
        let file = "/sys/fs/cgroup/cpuset/jobs/cpuset.cpus".to_owned();
        evidence.cpusets = vec![Cpuset {
            cgroup: "/jobs".into(),
            version: 1,
            cores: cores.clone(),
            levels: vec![CpusetLevel { file, cores }],
            threads: vec![60, 61],
        }];
        let f = one(examine(&Case::of(&evidence)));
        assert!(!f.remedy.contains("taskset"), "{}", f.remedy);
        assert!(f.remedy.contains("its cpuset /jobs allows only core 0, so widen that: `echo 0-3 > /sys/fs/cgroup/cpuset/jobs/cpuset.cpus`"), "{}", f.remedy);
    }
}
