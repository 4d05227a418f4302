use super::*;
use serde_json::json;

fn finding(code: &str, severity: &str, kind: &str, name: &str, title: &str) -> Value {
    json!({"code": code, "severity": severity, "subject": {"kind": kind, "name": name}, "title": title})
}

fn verdict(code: &str, certainty: &str, kind: &str, name: &str, then: &[&str]) -> Value {
    let named =
        |code: &str| json!({"code": code, "subject": {"kind": kind, "name": name}, "title": format!("{code} it is")});
    let chain: Vec<Value> = then.iter().map(|to| json!({"from": named(code), "to": named(to)})).collect();
    json!({"root_cause": named(code), "certainty": certainty, "severity": "warning", "chain": chain, "because": "so it was",
           "remedy": "end it", "story": "this ← that"})
}

/// Each root cause is a finding, too.
fn answer(findings: &[Value], verdicts: &[Value]) -> Value {
    let root = |verdict: &Value| {
        let mut finding = verdict["root_cause"].clone();
        finding["severity"] = json!("info");
        finding
    };
    let all: Vec<Value> = findings.iter().cloned().chain(verdicts.iter().map(root)).collect();
    json!({"findings": all, "verdicts": verdicts})
}

fn monopoly() -> Truth {
    let verdict = ExpectedVerdict::new("core-monopolised").by("spin-ab12[7]").then("core-saturated");
    Truth::new(json!({}))
        .expect(Expected::new("core-saturated").about("core", "1").by("spin-ab12[7]"))
        .verdict(verdict)
        .forbid(&["oom-kill"])
}

fn saturated() -> Value {
    by(finding("core-saturated", "warning", "core", "1", "core 1 was full"), "spin-ab12", 7)
}

/// With a culprit.
fn by(mut finding: Value, comm: &str, pid: u32) -> Value {
    finding["by"] = json!(format!("{comm}[{pid}]"));
    finding["ties"] = json!({"culprits": [{"comm": comm, "pid": pid, "tid": pid}]});
    finding
}

fn judged(truth: &Truth, answer: &Value) -> Judgement {
    judge(truth, answer, Asking::default()).unwrap()
}

#[test]
fn the_right_answer_has_no_fault() {
    let right = verdict("core-monopolised", "proven", "process", "spin-ab12[7]", &["core-saturated"]);
    let judgement = judged(&monopoly(), &answer(&[saturated()], &[right]));
    assert_eq!(judgement.faults, [""; 0]);
    assert!(judgement.right() && !judgement.control && judgement.given == 1);
    assert_eq!(judgement.asked[0].right_culprit, Some(true));
}

#[test]
fn a_missing_verdict_or_another_cause_is_wrong() {
    let none = judged(&monopoly(), &answer(&[saturated()], &[]));
    assert!(!none.right() && none.extra.is_empty());
    let other = verdict("cpu-contention", "likely", "node", "x", &[]);
    let other = judged(&monopoly(), &answer(&[saturated()], &[other]));
    assert!(!other.asked[0].right_root_cause && other.extra.len() == 1 && other.proven_wrong.is_empty());
}

#[test]
fn a_wrong_culprit_is_worst_when_proven() {
    for (certainty, hard) in [("possible", 0), ("likely", 0), ("proven", 1)] {
        // A longer name that begins like the culprit's is not the culprit.
        let wrong = verdict("core-monopolised", certainty, "process", "spin-ab12[7]-2", &["core-saturated"]);
        let judgement = judged(&monopoly(), &answer(&[saturated()], &[wrong]));
        assert!(judgement.asked[0].right_root_cause && !judgement.right(), "{certainty}");
        assert_eq!(judgement.proven_wrong.len(), hard, "{certainty}");
    }
}

#[test]
fn a_second_verdict_with_the_right_culprit_is_only_superfluous() {
    let right = verdict("core-monopolised", "proven", "process", "spin-ab12[7]", &["core-saturated"]);
    let torn_off = verdict("nic-core-starved", "proven", "process", "spin-ab12[7]", &[]);
    let slander = verdict("observer-cost", "proven", "process", "agent[9]", &[]);
    let judgement = judged(&monopoly(), &answer(&[saturated()], &[torn_off, slander, right]));
    assert!(judgement.right());
    assert_eq!((judgement.given, judgement.extra.len(), judgement.proven_wrong.len()), (3, 2, 1));
    assert!(judgement.proven_wrong[0].contains("agent[9]"), "{:?}", judgement.proven_wrong);
}

#[test]
fn a_missing_link_is_a_fault_but_the_cause_is_right() {
    let short = verdict("core-monopolised", "likely", "process", "spin-ab12[7]", &[]);
    let judgement = judged(&monopoly(), &answer(&[saturated()], &[short]));
    assert!(judgement.right());
    assert_eq!(judgement.faults, ["not in its chain: core-saturated"]);
}

#[test]
fn the_better_of_two_matching_verdicts_counts() {
    let truth = Truth::new(json!({})).verdict(ExpectedVerdict::new("unit-crashloop").or("unit-churn").by("a.service"));
    let given = |name: &str| verdict("unit-churn", "likely", "unit", name, &[]);
    let judgement = judged(&truth, &answer(&[], &[given("b.service"), given("a.service")]));
    assert!(judgement.right());
    assert_eq!(judgement.extra.len(), 1);
    assert!(judgement.extra[0].contains("b.service"));
}

#[test]
fn a_verdict_matches_only_one_expectation() {
    let about = |core: &str| ExpectedVerdict::new("core-monopolised").about("core", core);
    let truth = Truth::new(json!({})).verdict(about("0")).verdict(about("1"));
    let one = verdict("core-monopolised", "likely", "core", "1", &[]);
    let judgement = judged(&truth, &answer(&[], &[one]));
    let right: Vec<bool> = judgement.asked.iter().map(Asked::right).collect();
    assert_eq!(right, [false, true]);
}

#[test]
fn a_control_must_get_no_warning() {
    let truth = Truth::new(json!({})).at_most("info");
    let quiet = judged(&truth, &answer(&[finding("core-saturated", "info", "core", "1", "full")], &[]));
    assert!(quiet.control && quiet.false_alarms.is_empty() && quiet.faults.is_empty());
    let loud = answer(&[saturated()], &[verdict("core-saturated", "proven", "core", "1", &[])]);
    let loud = judged(&truth, &loud);
    assert_eq!((loud.false_alarms.len(), loud.proven_wrong.len()), (2, 1));
    // With an expected info finding it is not a control: an extra verdict is only superfluous.
    let info = Truth::new(json!({})).expect(Expected::new("agent-unused").severity("info"));
    assert!(!judged(&info, &answer(&[], &[])).control);
}

#[test]
fn findings_are_judged_by_code_subject_severity_and_culprit() {
    let truth = Truth { verdicts: None, ..monopoly() };
    let faults = |finding: Value| judged(&truth, &json!({"findings": [finding]})).faults;
    assert!(faults(saturated()).is_empty(), "older truths do not expect verdicts");
    for (finding, word) in [
        (by(finding("core-saturated", "warning", "core", "0", "∎"), "spin-ab12", 7), "not found"),
        (by(finding("core-saturated", "info", "core", "1", "∎"), "spin-ab12", 7), "only info"),
        (
            by(finding("core-saturated", "warning", "core", "1", "spin-ab12[7]"), "spin-ab12", 71),
            "does not name spin-ab12[7]",
        ),
    ] {
        assert!(faults(finding).iter().any(|f| f.contains(word)), "{word}");
    }
    let killed = answer(&[saturated(), finding("oom-kill", "info", "node", "x", "killed")], &[]);
    assert_eq!(judged(&truth, &killed).faults, ["found, but must not be: oom-kill (killed)"]);
}

#[test]
fn without_bpf_names_of_dead_cgroups_are_not_expected() {
    let leak = ExpectedVerdict::new("unit-crashloop").by("ecs.service").then("zombie-memcgs").needs_bpf();
    let truth = Truth::new(json!({})).verdict(leak);
    let torn = answer(&[], &[verdict("zombie-memcgs", "likely", "cgroup", "/", &[])]);
    let judged = |no_bpf| judge(&truth, &torn, Asking { no_bpf, ..Asking::default() }).unwrap();
    assert!(!judged(false).right());
    let without = judged(true);
    assert!(without.asked.is_empty() && without.faults.is_empty() && without.given == 0);
}

#[test]
fn older_kernel_log_findings_are_not_faults() {
    let reset = |nic: &str| finding("nic-reset", "critical", "nic", nic, "reset");
    let earlier = answer(&[reset("eth0")], &[]);
    let told = answer(&[reset("eth0"), reset("eth1")], &[verdict("nic-reset", "possible", "nic", "eth0", &[])]);
    let asking = Asking { earlier: Some(&earlier), ..Asking::default() };
    let quiet = judge(&Truth::new(json!({})).at_most("info"), &told, asking).unwrap();
    assert_eq!(quiet.false_alarms, ["critical nic-reset (reset)"], "eth1 is new");
    let about_it = Truth::new(json!({})).expect(Expected::new("nic-reset").about("nic", "eth0").severity("critical"));
    assert!(judge(&about_it, &told, asking).unwrap().faults.iter().all(|f| !f.contains("not found")));
}

#[test]
fn an_invalid_answer_is_an_error() {
    for no_answer in [json!({}), json!(null), json!({"findings": [{"code": "x"}], "verdicts": []})] {
        assert!(judge(&monopoly(), &no_answer, Asking::default()).is_err(), "{no_answer}");
    }
    assert!(judge(&monopoly(), &json!({"findings": []}), Asking::default()).is_err(), "verdicts are expected");
}

#[test]
fn findings_about_others_are_ignored_only_on_a_shared_machine() {
    let control =
        Truth::new(json!({"comm": "train-ab", "napi": {"device": "v0"}})).forbid(&["observer-cost"]).at_most("info");
    let alarms = |code: &str, name: &str, on_any_machine| {
        let told = finding(code, "warning", "process", name, "it is told");
        let told = if name == "v0" { told } else { by(told, name, 7) };
        let told = answer(&[told], &[verdict(code, "proven", "process", name, &[])]);
        let asking = Asking { on_any_machine, ..Asking::default() };
        judge(&control, &told, asking).unwrap().faults.len()
    };
    for (code, name) in [("cpu-contention", "train-ab"), ("observer-cost", "top")] {
        assert_eq!((alarms(code, name, true), alarms(code, name, false) > 0), (0, true), "{code} {name}");
    }
    assert_eq!(alarms("cpu-steal", "train-ab", false), 0, "the hypervisor's, on any machine");
    assert!(alarms("observer-cost", "train-ab", true) > 0, "this is the scenario's own");
    assert!(alarms("core-saturated", "v0", true) > 0);
}

#[test]
fn who_did_no_harm_must_not_be_blamed() {
    let truth = Truth::new(json!({})).expect(Expected::new("zombie-memcgs")).innocent("tidy-ab12[7]");
    let answer = |culprit: Value| {
        json!({"findings": [{"code": "zombie-memcgs", "severity": "warning", "subject": {"kind": "cgroup", "name": "/jobs"},
            "title": "dead", "evidence": [], "ties": {"culprits": [culprit]}}], "verdicts": []})
    };
    let task = |comm: &str| json!({"comm": comm, "pid": 7, "tid": 7});
    let judged = |comm| judge(&truth, &answer(task(comm)), Asking::default()).unwrap();
    assert_eq!((judged("gone").faults.len(), judged("gone").proven_wrong.len()), (0, 0));
    assert_eq!((judged("tidy-ab12").faults.len(), judged("tidy-ab12").proven_wrong.len()), (1, 1));
}
