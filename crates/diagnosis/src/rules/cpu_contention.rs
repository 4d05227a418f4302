//! Is there simply too little CPU for all that wants to run?

use crate::case::Case;
use crate::code::Code;
use crate::cores::Cores;
use crate::cores::words::{listed, percent, percent_value};
use crate::finding::{Answer, Fact, FactKey, Finding, Severity, Subject, SubjectKind};
use crate::ties::Ties;
use coroner_evidence::Source;
use coroner_evidence::tasks::SchedulingClass;
use std::collections::BTreeMap;

/// The cores have nothing left.
const FULL: f64 = 0.95;
/// For each thread that runs two wait: everybody gets a third of what it wants. A build or a batch job that starts two processes for
/// each core is at work; it takes as long as it takes.
pub const WAITING_PER_CORE: f64 = 2.0;
const WORTH_KNOWING: f64 = 0.5;
const NAMED: usize = 4;

/// Fewer than this on average are nobody in particular.
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
        return Answer::Fine(format!("the cores were {} busy on average", percent(busy)));
    }
    if let Some((because, how_to_see)) = cores.waits_hidden() {
        return Answer::CannotTell {
            because: format!(
                "the cores were {} busy, and whether anybody waited cannot be told: {because}",
                percent(busy)
            ),
            how_to_see,
        };
    }
    let number = cores.timeline.lines.len() as f64;
    let (waiting, by_command) = waiting(cores, window.length().as_nanos() as f64);
    let per_core = waiting / number.max(1.0);
    if per_core < WORTH_KNOWING {
        return Answer::Fine(format!(
            "the cores were {} busy, and {waiting:.1} threads waited for one of {number} on average",
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
        // Read a moment after the window's end.
        let share = (us as f64 / 1e3 / window.length().as_millis().max(1) as f64).min(1.0);
        facts.push(Fact::new(FactKey::CpuPressureSome, percent_value(share), "/proc/pressure/cpu"));
    }
    Answer::Findings(vec![Finding {
        code: Code::CpuContention,
        severity: if per_core >= WAITING_PER_CORE { Severity::Warning } else { Severity::Info },
        subject: Subject::new(SubjectKind::Node, "cpu"),
        title: match per_core >= WAITING_PER_CORE {
            true => format!("too little CPU: {waiting:.1} threads waited for {number} full cores, on average{mostly}"),
            false => format!("all {number} cores are full, and {waiting:.1} threads waited for one, on average{mostly}"),
        },
        detail: format!(
            "All cores were full ({} on average), and for each that ran {per_core:.1} others waited. Waiting most: {}. Threads that asked to be served \
             last (nice, SCHED_IDLE, SCHED_BATCH) and those that their quota stops are not counted.",
            percent(busy),
            listed(&who, NAMED)
        ),
        evidence: facts,
        remedy: "Run fewer threads: many libraries start one for each core of the machine instead of what their container may use (OMP_NUM_THREADS, \
                 GOMAXPROCS, torch.set_num_threads). Or fewer jobs on this node, or a larger one. Give what matters a larger share (CPUWeight=, \
                 cpu requests)."
            .to_owned(),
        ties: Ties { cores: cores.timeline.lines.keys().copied().collect(), when: Some(window.into()), ..Ties::default() },
    }])
}

/// How many threads waited for a core on average, and of which commands, the most first.
fn waiting(cores: &Cores, watched_ns: f64) -> (f64, Vec<(String, f64)>) {
    let mut by_command: BTreeMap<String, f64> = BTreeMap::new();
    for (line, ns) in cores.waits.by_line(&cores.threads) {
        let who = cores.threads.lines[line].who();
        let humble = who.nice > 0 || matches!(who.class, SchedulingClass::Idle | SchedulingClass::Batch);
        if !humble && !cores.threads.lines[line].is_observer() {
            *by_command.entry(who.comm).or_default() += ns as f64 / watched_ns.max(1.0);
        }
    }
    let all = by_command.values().sum();
    let mut most: Vec<(String, f64)> = by_command.into_iter().collect();
    most.sort_by(|a, b| b.1.total_cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    (all, most)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cores::scene::{Actor, Doing, Kind, Scene};
    use crate::rules::test_evidence::{cannot_tell, fact, fine, one};
    use coroner_evidence::Evidence;

    /// Two full cores and so many threads on each, that take equal turns.
    fn crowd(threads: u32, nice: i8) -> Evidence {
        let mut scene = Scene::new(2, 5.0).all_cores(Kind::User, 1.0);
        let run = 1.0 / f64::from(threads);
        for n in 0..2 * threads {
            let turns = Doing::Turns { run, wait: 1.0 - run, slices: 100.0 };
            scene = scene.with(Actor::new(100 + n, "train", n % 2).nice(nice).until(99.0, turns));
        }
        scene.evidence()
    }

    #[test]
    fn who_gets_a_third_of_what_it_wants_lacks_cpu() {
        // On each core one of four runs, and three wait.
        let f = one(examine(&Case::of(&crowd(4, 0))));
        assert_eq!(f.severity, Severity::Warning);
        assert!(f.title.starts_with("too little CPU: 6.0 threads waited for 2 full cores"), "{}", f.title);
        assert!(f.detail.contains("train (6.0)"), "{}", f.detail);
        assert_eq!(fact(&f, FactKey::ThreadsWaiting), 6.0);
        assert!(f.remedy.contains("OMP_NUM_THREADS"), "{}", f.remedy);
    }

    #[test]
    fn a_build_with_two_processes_a_core_is_at_work() {
        assert_eq!(one(examine(&Case::of(&crowd(2, 0)))).severity, Severity::Info);
        assert!(fine(examine(&Case::of(&crowd(1, 0)))).contains("0.0 threads waited"));
    }

    #[test]
    fn those_who_asked_to_be_served_last_do_not_count() {
        assert!(fine(examine(&Case::of(&crowd(8, 10)))).contains("0.0 threads waited"));
    }

    #[test]
    fn waits_on_a_node_with_room_are_something_else() {
        let turns = Doing::Turns { run: 0.2, wait: 0.8, slices: 100.0 };
        let mut scene = Scene::new(2, 5.0).load(1, 0.0, 5.0, Kind::User, 1.0);
        for tid in 100..105 {
            scene = scene.with(Actor::new(tid, "train", 1).pinned().until(99.0, turns));
        }
        assert!(fine(examine(&Case::of(&scene.evidence()))).contains("50 % busy"));
    }

    #[test]
    fn a_full_node_whose_waits_are_hidden_is_not_called_fine() {
        let mut evidence = crowd(4, 0);
        evidence.threads.retain(|thread| !thread.kernel);
        assert!(cannot_tell(examine(&Case::of(&evidence))).0.contains("100 % busy"));
    }
}
