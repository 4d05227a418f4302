//! Is there too little CPU for all the threads that want to run?

use crate::case::Case;
use crate::code::Code;
use crate::cores::Cores;
use crate::cores::words::{listed, percent, percent_value};
use crate::finding::{Answer, Fact, FactKey, Finding, Severity, Subject, SubjectKind};
use crate::ties::Ties;
use crate::words::plural;
use coroner_evidence::tasks::SchedulingClass;
use coroner_evidence::{Order, Source};
use std::collections::BTreeMap;

/// From this average on the node is full.
const FULL: f64 = 0.95;
/// For each running thread two wait: each gets a third of what it wants. A build or batch job with two processes per core stays
/// below that, and is just at work.
pub const WAITING_PER_CORE: f64 = 2.0;
const WORTH_KNOWING: f64 = 0.5;
const NAMED: usize = 4;

/// A command with fewer waiting threads than this is not named.
const WORTH_NAMING: f64 = 0.05;

pub fn examine(case: &Case<'_>) -> Answer {
    let evidence = case.evidence;
    let cores = case.cores();
    let seen = cores.window().and_then(|window| Some((window, cores.timeline.average(window)?)));
    let Some((window, average)) = seen.filter(|_| cores.timeline.lasts()) else {
        return cores.not_watched();
    };
    let busy = average.busy();
    if busy < FULL {
        return Answer::Fine(format!("the cores averaged {} busy (too few would be {})", percent(busy), percent(FULL)));
    }
    if let Some((because, how_to_see)) = cores.waits_hidden() {
        return Answer::CannotTell {
            because: format!(
                "the cores averaged {} busy, but whether threads waited is unknown: {because}",
                percent(busy)
            ),
            how_to_see,
        };
    }
    let number = cores.timeline.lines.len() as f64;
    let (waiting, by_command) = waiting(cores, window.length().as_nanos() as f64);
    let per_core = waiting / number.max(1.0);
    let full_cores = plural(number as u64, "full core", "full cores");
    if per_core < WORTH_KNOWING {
        return Answer::Fine(format!(
            "the cores averaged {} busy, but on average only {waiting:.1} threads waited for {full_cores}",
            percent(busy)
        ));
    }
    let named = by_command.iter().filter(|(_, n)| *n >= WORTH_NAMING);
    let who: Vec<String> = named.map(|(comm, n)| format!("{comm} ({n:.1})")).collect();
    let mostly = match by_command.first() {
        Some((comm, n)) if *n >= waiting / 2.0 => format!(", mostly {comm}"),
        _ => String::new(),
    };
    let mut facts = vec![
        Fact::new(FactKey::BusyOfAllCores, percent_value(busy), "/proc/stat"),
        Fact::new(FactKey::ThreadsWaiting, (waiting * 10.0).round() / 10.0, "/proc/PID/task/TID/schedstat"),
        Fact::new(FactKey::Cores, number as u64, "/proc/stat"),
    ];
    if let Some(us) = evidence.counters.moved(Source::Pressure, "cpu", "some_us") {
        // It was read a moment after the window's end.
        let share = (us as f64 / 1e3 / window.length().as_millis().max(1) as f64).min(1.0);
        facts.push(Fact::new(FactKey::CpuPressureSome, percent_value(share), "/proc/pressure/cpu"));
    }
    let short = if per_core >= WAITING_PER_CORE { "too little CPU" } else { "CPU fully used" };
    Answer::Findings(vec![Finding {
        code: Code::CpuContention,
        severity: if per_core >= WAITING_PER_CORE { Severity::Warning } else { Severity::Info },
        subject: Subject::new(SubjectKind::Node, "cpu"),
        title: format!("{short}: on average {waiting:.1} threads waited for {full_cores}{mostly}"),
        detail: format!(
            "The cores averaged {} busy, and {per_core:.1} threads per core waited. Waiting on average: {}. Not counted: threads with low priority \
             (nice, SCHED_IDLE, SCHED_BATCH) and threads throttled by a quota.",
            percent(busy),
            listed(&who, NAMED)
        ),
        evidence: facts,
        remedy: "Run fewer threads: many libraries start one per core of the machine, not per core that their container may use (set OMP_NUM_THREADS, \
                 GOMAXPROCS, torch.set_num_threads). Or run fewer jobs on this node, or use a larger one. Give important jobs a larger share \
                 (CPUWeight=, CPU requests)."
            .to_owned(),
        ties: Ties { cores: cores.timeline.lines.keys().copied().collect(), when: Some(window.into()), ..Ties::default() },
    }])
}

/// How many threads waited for a core on average, in total and by command, most first.
fn waiting(cores: &Cores, watched_ns: f64) -> (f64, Vec<(String, f64)>) {
    let mut by_command: BTreeMap<String, f64> = BTreeMap::new();
    for (line, ns) in cores.waits.by_line(&cores.threads) {
        let who = cores.threads.lines[line].who();
        let humble = who.nice > 0 || matches!(who.class, SchedulingClass::Idle | SchedulingClass::Batch);
        if !humble && !cores.threads.lines[line].observer {
            *by_command.entry(who.comm).or_default() += ns as f64 / watched_ns.max(1.0);
        }
    }
    let all = by_command.values().sum();
    let mut most: Vec<(String, f64)> = by_command.into_iter().collect();
    most.order_by(|a, b| b.1.total_cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    (all, most)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cores::scene::{Actor, Doing, Load, Scene};
    use crate::rules::test_evidence::{cannot_tell, fact, fine, one};
    use coroner_evidence::Evidence;

    /// Two full cores with this many threads each, which take equal turns.
    fn crowd(threads: u32, nice: i8) -> Evidence {
        let mut scene = Scene::new(2, 5.0).all_cores(Load::User, 1.0);
        let run = 1.0 / f64::from(threads);
        for n in 0..2 * threads {
            let turns = Doing::Turns { run, wait: 1.0 - run, slices: 100.0 };
            scene = scene.with(Actor::new(100 + n, "train", n % 2).nice(nice).until(99.0, turns));
        }
        scene.evidence()
    }

    #[test]
    fn three_threads_waiting_per_core_is_too_little_cpu() {
        // On each core one of four runs, and three wait.
        let f = one(examine(&Case::of(&crowd(4, 0))));
        assert_eq!(f.severity, Severity::Warning);
        assert!(f.title.starts_with("too little CPU: on average 6.0 threads waited for 2 full cores"), "{}", f.title);
        assert!(f.detail.contains("train (6.0)"), "{}", f.detail);
        assert_eq!(fact(&f, FactKey::ThreadsWaiting), 6.0);
        assert!(f.remedy.contains("OMP_NUM_THREADS"), "{}", f.remedy);
    }

    #[test]
    fn a_build_with_two_processes_per_core_is_only_worth_knowing() {
        assert_eq!(one(examine(&Case::of(&crowd(2, 0)))).severity, Severity::Info);
        assert!(fine(examine(&Case::of(&crowd(1, 0)))).contains("0.0 threads waited"));
    }

    #[test]
    fn low_priority_threads_do_not_count() {
        assert!(fine(examine(&Case::of(&crowd(8, 10)))).contains("0.0 threads waited"));
    }

    #[test]
    fn waits_on_a_node_with_room_are_no_contention() {
        let turns = Doing::Turns { run: 0.2, wait: 0.8, slices: 100.0 };
        let mut scene = Scene::new(2, 5.0).load(1, 0.0, 5.0, Load::User, 1.0);
        for tid in 100..105 {
            scene = scene.with(Actor::new(tid, "train", 1).pinned().until(99.0, turns));
        }
        assert!(fine(examine(&Case::of(&scene.evidence()))).contains("50 % busy"));
    }

    #[test]
    fn a_full_node_with_hidden_waits_is_not_called_fine() {
        let mut evidence = crowd(4, 0);
        evidence.threads.retain(|thread| !thread.kernel);
        assert!(cannot_tell(examine(&Case::of(&evidence))).0.contains("100 % busy"));
    }
}
