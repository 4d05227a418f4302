use super::super::cases::{Group, Trouble, ordinary, without_pause};
use super::super::staging::GroupFate;
use super::*;
use crate::loss::Loss;
use crate::score::judge::read;
use serde_json::{Value, json};

const SECOND: u64 = 1_000_000_000;

fn process(comm: &str, cores: &[u32]) -> Process {
    ordinary(comm.to_owned(), without_pause(1), cores.to_vec())
}

/// `ran_ms` of 5 s, all of which it wanted.
fn fate(comm: &str, pid: u32, ran_ms: u64) -> Fate {
    let loss = Loss { wanted_ns: 5 * SECOND, got_ns: ran_ms * 1_000_000 };
    let (share, lost) = ((loss.share() * 100.0) as u64, loss.lost_ns() / 1_000_000);
    Fate {
        comm: comm.to_owned(),
        pid,
        tids: vec![pid],
        ran_ns: loss.got_ns,
        loss: Some(loss),
        lost_percent: Some(share),
        lost_ms: Some(lost),
    }
}

fn case(processes: Vec<Process>) -> Case {
    Case { seed: 1, troubles: vec![Trouble::RealTime], groups: vec![], processes, leak: None, freeze: None }
}

/// A real-time hog on core 1, its victim, and somebody on core 0.
fn monopoly() -> (Case, Happened) {
    let hog = Process { class: Class::Fifo, priority: 50, troubles: true, ..process("hog", &[1]) };
    let happened = Happened {
        fates: vec![fate("job", 7, 300), fate("hog", 8, 4700), fate("calm", 9, 4900)],
        window_ns: 5 * SECOND,
        busy_percent: [(0, 100), (1, 100)].into(),
        ..Happened::default()
    };
    (case(vec![process("job", &[1]), hog, process("calm", &[0])]), happened)
}

fn answer(code: &str, certainty: &str, culprit: (&str, u32), victim: Option<(&str, u32)>) -> Value {
    let task = |(comm, pid): (&str, u32)| json!({"comm": comm, "pid": pid, "tid": pid});
    let subject = json!({"kind": "core", "name": "1"});
    json!({
        "findings": [{"code": code, "severity": "warning", "subject": subject, "title": "so it is",
                      "ties": {"culprits": [task(culprit)], "victims": victim.into_iter().map(task).collect::<Vec<_>>()}}],
        "verdicts": [{"root_cause": {"code": code, "subject": subject, "title": "so it is"}, "certainty": certainty,
                      "severity": "warning", "chain": [], "story": "this ← that"}],
    })
}

fn silence() -> Value {
    json!({"findings": [], "verdicts": []})
}

fn judged((case, happened): &(Case, Happened), answer: &Value) -> Judged {
    judge(case, happened, &read(answer).unwrap()).unwrap()
}

#[test]
fn who_names_the_taker_is_right() {
    let judged = judged(&monopoly(), &answer("cpu-starved", "proven", ("hog", 8), Some(("job", 7))));
    assert_eq!(judged.faults, [""; 0]);
    assert_eq!((judged.lost.len(), judged.given, judged.right), (1, 1, 1));
    assert_eq!((judged.lost[0].kind, judged.lost[0].right_culprit), ("real-time", true));
    assert_eq!(judged.lost[0].takers, ["hog[8]"]);
}

#[test]
fn silence_misses_a_loss() {
    let judged = judged(&monopoly(), &silence());
    assert!(!judged.lost[0].found && !judged.lost[0].right_cause && !judged.lost[0].right_culprit);
    assert!(judged.faults[0].starts_with("missed: job[7]"), "{:?}", judged.faults);
}

#[test]
fn the_wrong_culprit_is_wrong_and_worse_if_proven() {
    for certainty in ["likely", "proven"] {
        let judged = judged(&monopoly(), &answer("cpu-starved", certainty, ("calm", 9), Some(("job", 7))));
        assert!(judged.lost[0].found && judged.lost[0].right_cause && !judged.lost[0].right_culprit);
        assert_eq!(judged.wrong_proven.len(), usize::from(certainty == "proven"));
    }
}

#[test]
fn the_right_taker_for_another_cause_is_half_right() {
    let judged = judged(&monopoly(), &answer("unfair-weight", "likely", ("hog", 8), None));
    assert!(judged.lost[0].found && !judged.lost[0].right_cause);
}

#[test]
fn a_warning_where_nobody_lost_is_a_false_alarm() {
    let calm = (
        case(vec![process("calm", &[0]), process("busy", &[1])]),
        Happened { fates: vec![fate("calm", 7, 4900), fate("busy", 8, 4950)], ..Happened::default() },
    );
    assert!(judged(&calm, &silence()).quiet);
    let judged_calm = judged(&calm, &answer("core-monopolised", "proven", ("busy", 8), None));
    assert_eq!((judged_calm.false_alarms.len(), judged_calm.wrong_proven.len(), judged_calm.right), (1, 1, 0));
    let of_others = answer("cpu-starved", "proven", ("busy", 8), Some(("rustc", 4711)));
    assert_eq!(judged(&calm, &of_others).faults, [""; 0], "nobody measured what others lost");
    let mut unmeasured = calm.clone();
    unmeasured.1.fates[0].loss = None;
    let of_it = answer("cpu-starved", "proven", ("rustc", 4711), Some(("calm", 7)));
    assert_eq!(judged(&calm, &of_it).false_alarms.len(), 1);
    assert_eq!(judged(&unmeasured, &of_it).faults, [""; 0], "it could not measure what it lost");
    let others = answer("core-monopolised", "proven", ("rustc", 4711), None);
    assert_eq!(judged(&calm, &others), Judged { quiet: true, ..Judged::default() }, "not of the case");
}

#[test]
fn turns_on_a_full_node_are_no_loss() {
    let share = |ran_ms| {
        let fates = (0..3).map(|i| fate("job", 7 + i, ran_ms)).collect();
        let happened = Happened { fates, busy_percent: [(0, 100), (1, 100)].into(), ..Happened::default() };
        judged(&(case(vec![process("job", &[]); 3]), happened), &silence())
    };
    assert_eq!((share(2400).lost.len(), share(2400).grey), (0, 3));
    assert_eq!(share(800).lost.len(), 3);
    assert!(share(4500).quiet);
}

#[test]
fn a_crowded_core_counts_while_another_has_room() {
    let lost = |busy| {
        let happened = Happened {
            fates: vec![fate("a", 7, 2000), fate("b", 8, 2000)],
            busy_percent: [(0, busy), (1, 100)].into(),
            ..Happened::default()
        };
        judged(&(case(vec![process("a", &[1]), process("b", &[1])]), happened), &silence()).lost.len()
    };
    assert_eq!((lost(10), lost(100)), (2, 0));
}

#[test]
fn who_asked_to_run_last_loses_nothing() {
    let (mut case, happened) = monopoly();
    case.processes[0].nice = 10;
    assert!(judged(&(case, happened), &silence()).quiet);
}

#[test]
fn a_quota_is_named_by_its_cgroup() {
    let limited = Process { group: Some(0), ..process("job", &[]) };
    let case = Case { groups: vec![Group { depth: 2, weight: None, quota_percent: Some(20) }], ..case(vec![limited]) };
    let happened = Happened {
        fates: vec![fate("job", 7, 1000)],
        groups: vec![GroupFate { path: "/a/b".to_owned(), throttled_ns: 4 * SECOND }],
        ..Happened::default()
    };
    let quota = |path: &str| {
        let subject = json!({"kind": "cgroup", "name": path});
        json!({"findings": [{"code": "cpu-throttled", "severity": "warning", "subject": subject, "title": "t"}], "verdicts": []})
    };
    let both = (case, happened);
    for (path, right) in [("/a/b", true), ("/a", true), ("/ab", false)] {
        let lost = &judged(&both, &quota(path)).lost[0];
        assert_eq!((lost.kind, lost.right_culprit), ("quota", right), "{path}");
    }
}

#[test]
fn weights_are_compared_where_cgroups_differ() {
    let groups = [1, 400].map(|weight| Group { depth: 1, weight: Some(weight), quota_percent: None });
    let [light, heavy] = [0, 1].map(|group| Process { group: Some(group), ..process("p", &[1]) });
    let case = Case { groups: groups.into(), ..case(vec![]) };
    assert_eq!(why(&case, &heavy, &light), Why::Weight);
    assert_eq!(why(&case, &light, &heavy), Why::Turns);
    assert_eq!(why(&case, &process("root", &[]), &light), Why::Weight, "it weighs what an ordinary cgroup does");
    let nicer = Process { nice: -10, ..process("n", &[]) };
    assert_eq!(why(&case, &nicer, &process("root", &[])), Why::Nice);
    assert_eq!(why(&case, &nicer, &heavy), Why::Turns, "nice counts within a cgroup");
}

#[test]
fn the_rest_of_the_node_may_have_taken_it() {
    let (case, mut happened) = monopoly();
    happened.fates[1].ran_ns = 26 * SECOND / 10;
    let judged = judged(&(case, happened), &answer("cpu-starved", "likely", ("rustc", 99), Some(("job", 7))));
    assert!(judged.disturbed && judged.lost[0].right_culprit && !judged.lost[0].taker_named);

    let (case, mut happened) = monopoly();
    happened.fates[1].ran_ns = SECOND;
    let judged = judge(&case, &happened, &read(&silence()).unwrap()).unwrap();
    assert_eq!((judged.lost.len(), judged.grey), (0, 1), "others had most of the core");
}

#[test]
fn who_has_more_threads_than_cores_waits_for_itself() {
    let mut many = fate("job", 7, 4900);
    many.loss = Some(Loss { wanted_ns: 20 * SECOND, got_ns: 4900 * 1_000_000 });
    let happened = Happened {
        fates: vec![many, fate("other", 8, 100)],
        window_ns: 5 * SECOND,
        busy_percent: [(0, 100)].into(),
        ..Happened::default()
    };
    let case = case(vec![process("job", &[0]), Process { nice: 10, ..process("other", &[0]) }]);
    assert!(judged(&(case, happened), &silence()).quiet);
}
