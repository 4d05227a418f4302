use super::*;
use crate::output::test_diagnosis::{diagnosis, the_incident, unexplained};

fn report_of(diagnosis: &Diagnosis) -> String {
    render(&MarkdownReport {
        diagnosis,
        evidence: &Evidence::default(),
        source: "from the recorder",
        incident: None,
        command: "coroner diagnose --report x.md",
    })
}

fn in_order(text: &str, parts: &[&str]) {
    let mut rest = text;
    for part in parts {
        let at = rest.find(part).unwrap_or_else(|| panic!("no {part:?}, or not here, in:\n{text}"));
        rest = &rest[at + part.len()..];
    }
}

#[test]
fn a_report_has_everything_in_order() {
    in_order(
        &report_of(&the_incident()),
        &[
            "# gpu-17: likely cause: ecs.service crashloops: 4.0 restarts per minute\n",
            "- cores: 96\n",
            "- from the recorder\n",
            "## Verdict (critical, ongoing, likely: not everything could be seen)\n",
            "**Likely root cause:** ecs.service crashloops: 4.0 restarts per minute (unit ecs.service, `unit-crashloop`)",
            "- also: ecs.service has no work here (`agent-unused`)",
            "### What to do\n\nSwitch it off: `systemctl disable --now ecs.service`, then reboot.\n",
            "### What that does not fix",
            "### If nothing is done",
            "### Effects",
            "- **68,440 dead memory cgroups** (`zombie-memcgs`)\n  proven, because each start leaves one.\n  - same thing: the same core\n",
            "  - seen: fact of the link: 7 (/proc/cgroups)",
            "- **eth0 was reset: queue 5 was paused for 6.6 s** (`nic-reset`)\n  likely, because",
            "  - order in time, **not shown**: the log's clock may be off by 2.0 s\n",
            "### Timeline",
            "| 22:13:26.000Z ± 2.0 s | eth0 was reset: queue 5 was paused for 6.6 s |",
            "## Ruled out",
            "| huge pages (`huge-pages`) | 0.1 % of the kernel's time |\n| `oom-kill` | no kill since boot |",
            "## Not seen",
            "## Evidence",
            "| `nic-reset` eth0 | fact of nic-reset waited | 42 ms | /proc/stat |",
            "## Made by",
            "coroner diagnose --report x.md",
        ],
    );
}

#[test]
fn no_cause_and_no_problem_are_stated() {
    in_order(
        &report_of(&unexplained()),
        &[
            "# gpu-17: no cause found: eth0 was reset",
            "Problems found, but not their cause",
            "## Other problems",
            "- **eth0 was reset** (critical, nic eth0, `nic-reset`)",
            "Run `coroner record --dir DIR`, then look at its incidents.",
        ],
    );
    let well = diagnosis(Vec::new(), Default::default());
    in_order(
        &report_of(&well),
        &["# gpu-17: nothing wrong in what was seen", "Nothing wrong in what was seen.", "## Ruled out"],
    );
    assert!(!report_of(&well).contains("## Evidence"));
}

#[test]
fn hostile_names_stay_text_everywhere() {
    const NAME: &str = "x|y`z`\n# Owned\n<script>alert(1)</script>[a](http://b) **c** \u{1b}[31m";
    let mut diagnosis = the_incident();
    diagnosis.node.host = Some(NAME.to_owned());
    for finding in &mut diagnosis.findings {
        finding.subject.name = NAME.to_owned();
        finding.title = NAME.to_owned();
        finding.detail = NAME.to_owned();
        finding.evidence[0].of = Some(NAME.to_owned());
        finding.evidence[0].value = NAME.into();
        finding.evidence[0].source = NAME.to_owned();
    }
    for ruled_out in &mut diagnosis.ruled_out {
        ruled_out.why = NAME.to_owned();
    }
    diagnosis.unseen[0].why = NAME.to_owned();
    let verdict = &mut diagnosis.conclusion.verdicts[0];
    verdict.because = NAME.to_owned();
    verdict.first_aid = Some(NAME.to_owned());
    verdict.fix = NAME.to_owned();
    verdict.not_fixed = NAME.to_owned();
    verdict.risk = Some(NAME.to_owned());
    verdict.timeline[0].what = NAME.to_owned();
    for told in verdict.context.iter_mut().chain([&mut verdict.root_cause]) {
        told.title = NAME.to_owned();
        told.subject.name = NAME.to_owned();
    }
    for step in &mut verdict.chain {
        step.because = NAME.to_owned();
        step.to.title = NAME.to_owned();
        step.proofs.identity = Proof::shown(NAME);
        step.proofs.order = Proof::not_seen(NAME);
        step.evidence[0].of = Some(NAME.to_owned());
    }
    let report = report_of(&diagnosis);
    assert!(report.lines().count() > 60, "{report}");
    for line in report.lines() {
        assert!(!line.chars().any(char::is_control), "{line:?}");
        assert!(!line.trim_start().starts_with("# Owned"), "{line}");
        // The line without escaped characters.
        let bare = line.replace(r"\\", "").replace(r"\<", "").replace(r"\[", "").replace(r"\*", "").replace(r"\|", "");
        assert!(!bare.contains("<script") && !bare.contains("[a]") && !bare.contains("** c"), "{line}");
        if line.starts_with('|') && !line.starts_with("|---") {
            let cells = bare.matches('|').count() - 1;
            assert!(cells == 2 || cells == 4, "{cells} cells in {line}");
        }
    }
}
