use super::*;
use crate::output::test_diagnosis::*;
use coroner_diagnosis::verdict::{Conclusion, Proof, Proofs, TimeSpan};
use coroner_diagnosis::{Code, Severity, SubjectKind};

fn text(diagnosis: &Diagnosis, verbose: bool) -> String {
    render(diagnosis, &Evidence::default(), &Told { source: "", from: None, is_incident: false, verbose })
}

/// Each of these in this order.
fn in_order(text: &str, parts: &[&str]) {
    let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut rest = flat.as_str();
    for part in parts {
        let at = rest.find(part).unwrap_or_else(|| panic!("no {part:?}, or not here, in:\n{text}"));
        rest = &rest[at + part.len()..];
    }
}

#[test]
fn the_root_cause_comes_first_and_each_effect_after_its_cause() {
    let told = text(&the_incident(), false);
    in_order(
        &told,
        &[
            "VERDICT critical, ongoing, likely: not everything could be seen",
            "Likely root cause: ecs.service crashloops: 4.0 restarts per minute (unit-crashloop)",
            "ecs.service ends and is started again and again.",
            "Also: ecs.service has no work here (agent-unused)",
            "→ 68,440 dead memory cgroups (zombie-memcgs) proven: each start leaves one · it came first",
            "→ kubelet[812] walked memory cgroups",
            "→ core 39 was 100 % busy for 6.6 s",
            "→ eth0 was reset",
            "likely: the driver waited for a poll that could not run · not shown: the log's clock may be off by 2.0 s",
            "22:13:20.000Z core 39",
            "22:13:26.000Z ± 2.0 s eth0 was reset",
            "What to do: Switch it off: `systemctl disable --now ecs.service`, then reboot.",
            "But: Disabling alone frees nothing.",
            "If nothing is done: It happens again",
            "Ruled out - huge pages: 0.1 % of the kernel's time - also (-v shows why): oom-kill",
            "Not seen - whether there is gpu-xid",
            "coroner --explain unit-crashloop",
        ],
    );
    assert!(!told.contains("Detail of"), "only -v shows the chain's findings in full:\n{told}");
    assert!(told.lines().count() < 40, "{told}");
}

#[test]
fn verbose_has_findings_evidence_and_all_reasons() {
    let told = text(&the_incident(), true);
    in_order(
        &told,
        &[
            "VERDICT",
            "Findings behind the verdict",
            "Detail of nic-reset.",
            "fact of nic-reset waited: 42 ms",
            "Detail of agent-unused.",
        ],
    );
    in_order(&told, &["huge pages (huge-pages): 0.1 %", "oom-kill: no kill since boot"]);
}

#[test]
fn a_possible_cause_says_so() {
    let mut diagnosis = the_incident();
    let hidden = || Proof::not_seen("their names are needed");
    let link = &mut diagnosis.conclusion.verdicts[0].chain[0];
    link.proofs = Proofs { identity: hidden(), order: hidden(), size: hidden() };
    link.certainty = link.proofs.certainty();
    diagnosis.conclusion.verdicts[0].certainty = link.certainty;
    in_order(
        &text(&diagnosis, false),
        &[
            "VERDICT critical, ongoing, only possible: too little could be seen to be sure",
            "Possible root cause: ecs.service",
            "possible: each start leaves one · not shown: their names are needed; their names are needed",
        ],
    );
}

#[test]
fn two_effects_of_a_cause_are_listed_once_each() {
    let mut diagnosis = the_incident();
    let drops = finding(Code::SoftnetDrop, Severity::Warning, SubjectKind::Core, "39", "core 39 dropped 9 packets");
    let core = diagnosis.findings[1].clone();
    let reset = diagnosis.findings[0].clone();
    let chain = &mut diagnosis.conclusion.verdicts[0].chain;
    chain.push(link(&core, &drops, "its backlog was full", shown()));
    chain.push(link(&drops, &reset, "for the test", shown()));
    diagnosis.findings.push(drops);
    let told = text(&diagnosis, false);
    in_order(
        &told,
        &[
            "→ eth0 was reset",
            "→ core 39 dropped 9 packets",
            "→ eth0 was reset: queue 5 was paused for 6.6 s (nic-reset, as above)",
        ],
    );
    let depth = |start: &str| told.lines().find(|line| line.trim_start().starts_with(start)).unwrap().find('→');
    assert_eq!(depth("→ eth0 was reset"), depth("→ core 39 dropped"));
}

#[test]
fn two_causes_are_two_verdicts() {
    let mut diagnosis = the_incident();
    let quota =
        finding(Code::CpuThrottled, Severity::Warning, SubjectKind::Cgroup, "/job", "/job is throttled by its quota");
    let mut second = verdict(&quota, Vec::new());
    second.severity = Severity::Warning;
    diagnosis.conclusion.verdicts.push(second);
    diagnosis.findings.push(quota);
    in_order(
        &text(&diagnosis, false),
        &[
            "VERDICT 1 of 2 critical",
            "VERDICT 2 of 2 warning, ongoing, proven",
            "Root cause: /job is throttled by its quota (cpu-throttled)",
        ],
    );
}

#[test]
fn without_a_cause_it_says_what_is_needed_to_find_it() {
    in_order(
        &text(&unexplained(), false),
        &[
            "Problems found, but not their cause:",
            "CRITICAL nic-reset nic eth0",
            "What to do: Remedy of nic-reset.",
            "To find its cause: what ran on the core that serves the queue. Run `coroner record --dir DIR`, then look at its incidents.",
            "huge pages: 0.1 %",
        ],
    );
}

#[test]
fn other_problems_are_below_the_verdict() {
    let mut both = the_incident();
    let other = finding(Code::GpuXid, Severity::Warning, SubjectKind::Gpu, "0", "GPU 0 reported Xid 79");
    both.conclusion.unexplained.push(coroner_diagnosis::verdict::Unexplained {
        finding: other.reference(),
        needs: "what ran on it".to_owned(),
        command: "coroner record".to_owned(),
        then: String::new(),
    });
    both.findings.push(other);
    in_order(
        &text(&both, false),
        &["VERDICT", "Other problems, cause not found", "WARNING gpu-xid gpu 0", "Ruled out"],
    );
}

#[test]
fn a_healthy_node_gets_a_short_report() {
    let mild = finding(Code::SoftnetDrop, Severity::Info, SubjectKind::Core, "1", "core 1 dropped 3 packets");
    let told = text(&diagnosis(vec![mild], Conclusion::default()), false);
    in_order(
        &told,
        &[
            "Nothing wrong in what was seen.",
            "Worth knowing - core 1 dropped 3 packets (softnet-drop)",
            "Ruled out (-v shows why): oom-kill, huge-pages.",
        ],
    );
    assert!(!told.contains("Problems found") && !told.contains("Detail of"), "{told}");
}

#[test]
fn the_nodes_names_cannot_drive_the_terminal() {
    let mut diagnosis = the_incident();
    let verdict = &mut diagnosis.conclusion.verdicts[0];
    verdict.because = "a\u{1b}[2J\nCRITICAL".to_owned();
    verdict.root_cause.title = "b\u{1b}]0;x\u{7}".to_owned();
    verdict.chain[0].because = "c\u{1b}[31m".to_owned();
    verdict.timeline[0].what = "d\u{1b}[31m".to_owned();
    let told = text(&diagnosis, true);
    assert!(!told.contains('\u{1b}') && !told.contains("\nCRITICAL\n"), "{told}");
}

#[test]
fn what_is_over_comes_last_and_short() {
    let mut diagnosis = the_incident();
    let mut over = diagnosis.conclusion.verdicts[0].clone();
    let until = diagnosis.window.map(|(_, to)| to - Duration::from_secs(30));
    over.time = TimeSpan { until, ongoing: false, ..TimeSpan::default() };
    over.over = until;
    over.root_cause.title = "another trouble".to_owned();
    diagnosis.conclusion.verdicts.push(over);
    let told = text(&diagnosis, false);
    in_order(
        &told,
        &[
            "VERDICT critical, ongoing, likely",
            "Over - another trouble (unit-crashloop; critical, likely): ended 22:12:55Z. If it comes back: Switch it off",
            "Ruled out",
            "Next steps in detail: coroner fix",
        ],
    );
    assert!(!told.contains("VERDICT 2"), "{told}");
    let from = Told { source: "", from: Some("--from x.coroner"), is_incident: false, verbose: false };
    let told = render(&diagnosis, &Evidence::default(), &from);
    in_order(&told, &["Next steps in detail: coroner fix --from x.coroner"]);
}
