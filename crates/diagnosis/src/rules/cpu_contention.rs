//! Is there simply too little CPU for all that wants to run?

use crate::code::Code;
use crate::cores::Cores;
use crate::cores::words::{listed, percent, percent_value};
use crate::finding::{Answer, Fact, Finding, Severity, Subject, SubjectKind};
use crate::ties::Ties;
use coroner_evidence::tasks::SchedulingClass;
use coroner_evidence::{Evidence, Source};
use std::collections::BTreeMap;

/// The cores have nothing left.
const FULL: f64 = 0.95;
/// For each thread that runs two wait: everybody gets a third of what it wants. A build or a batch job that starts two processes for
/// each core is at work; it takes as long as it takes.
const WAITING_PER_CORE: f64 = 2.0;
const WORTH_KNOWING: f64 = 0.5;
const NAMED: usize = 4;

pub fn examine(evidence: &Evidence) -> Answer {
    let cores = Cores::of(evidence);
    let seen = cores.window().and_then(|window| Some((window, cores.timeline.average(window)?)));
    let Some((window, average)) = seen.filter(|_| cores.timeline.lasts()) else {
        return Answer::CannotTell {
            because: "the cores were not watched for a second".to_owned(),
            how_to_see: "watch for at least 2 s: --for 5s".to_owned(),
        };
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
    let (waiting, by_command) = waiting(&cores, window.length().as_nanos() as f64);
    let per_core = waiting / number.max(1.0);
    if per_core < WORTH_KNOWING {
        return Answer::Fine(format!(
            "the cores were {} busy, and {waiting:.1} threads waited for one of {number} on average",
            percent(busy)
        ));
    }
    let who: Vec<String> = by_command.iter().map(|(comm, n)| format!("{comm} ({n:.1})")).collect();
    let mut facts = vec![
        Fact::new("average of all cores", percent_value(busy), "%", "/proc/stat"),
        Fact::new(
            "threads that waited, on average",
            (waiting * 10.0).round() / 10.0,
            "",
            "/proc/PID/task/TID/schedstat",
        ),
        Fact::new("cores", number, "", "/proc/stat"),
    ];
    if let Some(us) = evidence.counters.moved(Source::Pressure, "cpu", "some_us") {
        let share = us as f64 / 1e3 / window.length().as_millis().max(1) as f64;
        facts.push(Fact::new(
            "time in which something waited for a core (some)",
            percent_value(share),
            "%",
            "/proc/pressure/cpu",
        ));
    }
    Answer::Findings(vec![Finding {
        code: Code::CpuContention,
        severity: if per_core >= WAITING_PER_CORE { Severity::Warning } else { Severity::Info },
        subject: Subject::new(SubjectKind::Node, "cpu"),
        title: match per_core >= WAITING_PER_CORE {
            true => format!("too little CPU: {waiting:.1} threads waited for {number} full cores, on average"),
            false => format!("all {number} cores are full, and {waiting:.1} threads waited for one, on average"),
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
