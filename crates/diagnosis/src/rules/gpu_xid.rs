//! Did the NVIDIA driver report a GPU error?
//!
//! An Xid is the driver's error number. Some mean a broken GPU, some a broken program; the number alone decides what to do.

use crate::case::Case;
use crate::code::Code;
use crate::finding::{Answer, Fact, FactKey, Finding, Severity, Subject, SubjectKind};
use crate::log_events::{self, Event, Family, LogEvent, XidEvent};
use crate::ties::{Ties, When};
use crate::words::{list, plural, times};
use coroner_evidence::Order;
use coroner_evidence::node::Gpu;
use std::collections::BTreeMap;

const SOURCE: &str = "kernel log";

/// What is at fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// The GPU, its memory or its links: jobs on it will fail again.
    Hardware,
    /// Worn hardware that recovered; needs a reset or watching.
    Wear,
    /// The driver or the GPU's firmware.
    Driver,
    /// The program that used the GPU.
    Application,
    /// Follows from another Xid or from a killed program.
    Consequence,
}

impl Fault {
    fn severity(self) -> Severity {
        match self {
            Fault::Hardware | Fault::Driver => Severity::Critical,
            Fault::Wear | Fault::Application => Severity::Warning,
            Fault::Consequence => Severity::Info,
        }
    }
}

/// The Xids that people meet, after NVIDIA's catalogue (docs.nvidia.com/deploy/xid-errors).
const XIDS: &[(u32, Fault, &str)] = &[
    (8, Fault::Application, "the GPU stopped processing a program's commands"),
    (13, Fault::Application, "a program made the compute engine fault (often an access out of bounds)"),
    (31, Fault::Application, "a program accessed GPU memory it does not own (page fault)"),
    (32, Fault::Driver, "corrupted command stream: driver bug or bad PCIe link"),
    (38, Fault::Driver, "driver firmware error"),
    (43, Fault::Application, "a program's channel was reset after it faulted or hung"),
    (44, Fault::Driver, "fault during a context switch"),
    (45, Fault::Consequence, "the driver cleaned up after a program that ended or failed"),
    (46, Fault::Hardware, "the GPU stopped processing"),
    (48, Fault::Hardware, "uncorrectable double-bit memory error (ECC)"),
    (54, Fault::Hardware, "the GPU's power cable is not connected"),
    (61, Fault::Hardware, "the GPU's internal controller failed (breakpoint)"),
    (62, Fault::Hardware, "the GPU's internal controller halted"),
    (63, Fault::Wear, "a bad memory page or row was marked for replacement, which takes effect at the next GPU reset"),
    (64, Fault::Hardware, "a bad memory page or row could not be replaced"),
    (66, Fault::Driver, "illegal access by the driver"),
    (68, Fault::Application, "fault in the video decoder"),
    (69, Fault::Application, "a program sent an illegal command"),
    (74, Fault::Hardware, "NVLink error: the link to another GPU or the switch failed"),
    (79, Fault::Hardware, "the GPU has fallen off the bus: it no longer answers over PCIe"),
    (92, Fault::Wear, "many corrected memory errors (single-bit ECC)"),
    (94, Fault::Wear, "uncorrectable memory error, contained: it hit one program only"),
    (95, Fault::Hardware, "uncorrectable memory error, not contained: it may have hit every program on the GPU"),
    (109, Fault::Driver, "a context switch timed out"),
    (119, Fault::Driver, "the GPU's system processor (GSP) did not respond to the driver"),
    (120, Fault::Driver, "the GPU's system processor (GSP) failed"),
    (121, Fault::Hardware, "error on the link between CPU and GPU (C2C)"),
    (140, Fault::Hardware, "unrecovered memory errors (ECC)"),
    (143, Fault::Hardware, "the GPU failed to initialise"),
    (144, Fault::Hardware, "NVLink error (fifth generation)"),
    (145, Fault::Hardware, "NVLink error (fifth generation)"),
    (146, Fault::Hardware, "NVLink error (fifth generation)"),
    (147, Fault::Hardware, "NVLink error (fifth generation)"),
    (148, Fault::Hardware, "NVLink error (fifth generation)"),
    (149, Fault::Hardware, "NVLink error (fifth generation)"),
    (150, Fault::Hardware, "NVLink error (fifth generation)"),
];

/// Xid 154 states what the driver wants done: `GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)`.
const RECOVERY_ACTION: u32 = 154;

fn meaning(event: &XidEvent) -> (Option<Fault>, String) {
    if event.xid == RECOVERY_ACTION {
        let action = event.message.rsplit_once('(').map(|(_, a)| a.trim_end_matches(['.', ')', ' ']));
        return match action {
            Some("None") => (Some(Fault::Consequence), "the driver no longer asks for recovery".to_owned()),
            Some(action) => (Some(Fault::Hardware), format!("the driver asks for: {action}")),
            None => (Some(Fault::Hardware), "the driver asks for recovery".to_owned()),
        };
    }
    match XIDS.iter().find(|(xid, ..)| *xid == event.xid) {
        Some((_, fault, words)) => (Some(*fault), (*words).to_owned()),
        None => (None, "unknown to coroner, see NVIDIA's Xid catalogue".to_owned()),
    }
}

pub fn examine(case: &Case<'_>) -> Answer {
    let evidence = case.evidence;
    let log = match log_events::recent(evidence, Family::Xid) {
        Ok(log) => log,
        Err(unseen) => return Answer::CannotTell { because: unseen.because, how_to_see: unseen.how_to_see },
    };
    let gpus = evidence.node.as_ref().map(|n| n.gpus.as_slice()).unwrap_or_default();
    let nothing = match (gpus.len(), &evidence.node) {
        // What is not there cannot fail.
        (0, Some(_)) => Answer::Fine(format!("no GPU was seen, and no Xid in {}", log.reach_words())),
        (0, None) => log.nothing(|reach| format!("no Xid in {reach}")),
        (n, _) => log.nothing(|reach| format!("{}; no Xid in {reach}", plural(n as u64, "GPU", "GPUs"))),
    };
    let by_gpu = log_events::group_by_key(log.events, |e| match &e.event {
        Event::Xid(xid) => xid.bus.clone(),
        _ => String::new(),
    });
    let findings: Vec<Finding> = by_gpu.into_iter().filter_map(|(bus, events)| finding(gpus, &bus, &events)).collect();
    if findings.is_empty() { nothing } else { Answer::Findings(findings) }
}

/// All events with one Xid on one GPU.
struct Seen<'e> {
    xid: u32,
    severity: Severity,
    fault: Option<Fault>,
    words: String,
    times: u64,
    last: &'e LogEvent<'e>,
    process: Option<String>,
}

fn finding(gpus: &[Gpu], bus: &str, events: &[LogEvent]) -> Option<Finding> {
    let last = events.last()?;
    // The driver prints 0000:17:00, sysfs has 0000:17:00.0.
    let gpu = gpus.iter().find(|g| g.bus.to_ascii_lowercase().starts_with(bus));
    let mut by_xid: BTreeMap<u32, Seen> = BTreeMap::new();
    for event in events {
        let Event::Xid(xid) = &event.event else { continue };
        let (fault, words) = meaning(xid);
        let severity = fault.map_or(Severity::Warning, Fault::severity);
        let times = by_xid.get(&xid.xid).map_or(0, |seen| seen.times) + 1;
        let process = process_words(xid);
        by_xid.insert(xid.xid, Seen { xid: xid.xid, severity, fault, words, times, last: event, process });
    }
    // Worst first, by meaning and not by count.
    let mut ranked: Vec<Seen> = by_xid.into_values().collect();
    ranked.order_by_key(|seen| (std::cmp::Reverse(seen.severity), seen.xid));
    let worst = ranked.first()?;

    let mut facts = Vec::new();
    for Seen { xid, times, last, process, .. } in &ranked {
        facts.push(Fact::new(FactKey::XidDay, *times, SOURCE).of(xid));
        facts.push(Fact::new(FactKey::XidLast, last.age_words(), SOURCE).of(xid));
        if let Some(process) = process {
            facts.push(Fact::new(FactKey::XidProcess, process.clone(), SOURCE).of(xid));
        }
    }
    facts.push(Fact::new(FactKey::LastLine, last.line.text.chars().take(300).collect::<String>(), SOURCE));

    let all: Vec<String> = ranked.iter().map(|s| format!("Xid {} ({}): {}", s.xid, times(s.times), s.words)).collect();
    let model = gpu.and_then(|g| g.model.as_deref()).map(|m| format!(" ({m})")).unwrap_or_default();
    let name = gpu.map_or_else(|| bus.to_owned(), |g| g.bus.clone());
    Some(Finding {
        code: Code::GpuXid,
        ties: Ties { when: log_events::incidents(events).last().and_then(When::of_log), ..Ties::default() },
        severity: worst.severity,
        subject: Subject::new(SubjectKind::Gpu, name.clone()),
        title: format!("GPU {name}{model}: Xid {}, {}, last {}", worst.xid, worst.words, worst.last.age_words()),
        detail: format!("{}. {}", list(&all, 6), place_words(worst.fault)),
        evidence: facts,
        remedy: remedy(worst.fault, worst.xid, &name),
    })
}

fn process_words(xid: &XidEvent) -> Option<String> {
    match (&xid.process, xid.pid) {
        (Some(name), Some(pid)) => Some(format!("{name}[{pid}]")),
        (Some(name), None) => Some(name.clone()),
        (None, Some(pid)) => Some(format!("pid {pid}")),
        (None, None) => None,
    }
}

fn place_words(fault: Option<Fault>) -> &'static str {
    match fault {
        Some(Fault::Hardware) => {
            "The GPU or one of its links is faulty: jobs on it will fail until it is reset or replaced."
        }
        Some(Fault::Wear) => "The hardware recovered this time. Reset the GPU when it is free, and watch it.",
        Some(Fault::Driver) => "The driver or the GPU's firmware failed; the GPU may not respond until it is reset.",
        Some(Fault::Application) => "Almost always a bug in the program, which was ended; the GPU is usable again.",
        Some(Fault::Consequence) => "A consequence, not a cause: look for what ended the program.",
        None => "coroner cannot say what is at fault.",
    }
}

fn remedy(fault: Option<Fault>, xid: u32, gpu: &str) -> String {
    match fault {
        Some(Fault::Hardware) => format!(
            "Take the node out of service (`kubectl cordon`, drain). Then `nvidia-smi -i {gpu} --gpu-reset`, or reboot if the GPU no longer \
             responds. Run `dcgmi diag -r 3`; if Xid {xid} recurs, have the GPU replaced."
        ),
        Some(Fault::Wear) => format!(
            "When the job has ended: `nvidia-smi -i {gpu} --gpu-reset`. Watch `nvidia-smi -q -d ECC,ROW_REMAPPER -i {gpu}`: if a remapping \
             fails or the counts grow, have the GPU replaced."
        ),
        Some(Fault::Driver) => format!(
            "Drain the node and reset the GPU (`nvidia-smi -i {gpu} --gpu-reset`), or reboot if that hangs. Check the driver's release notes \
             for Xid {xid} and update the driver."
        ),
        Some(Fault::Application) => {
            "Check the log and code of that process; run it under `compute-sanitizer`. Suspect the GPU only if several different programs \
             fail on it and on no other: `dcgmi diag -r 3`."
                .to_owned()
        }
        Some(Fault::Consequence) => "Nothing to fix by itself. Look for an earlier Xid, an oom-kill, or who stopped the job.".to_owned(),
        None => format!("Look up Xid {xid} at https://docs.nvidia.com/deploy/xid-errors/ and run `dcgmi diag -r 3`."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::test_evidence::{cannot_tell, fact_of, findings, fine, log, one, watched};
    use coroner_evidence::Evidence;
    use coroner_evidence::Node;

    fn with(lines: &[(u64, &str)]) -> Evidence {
        let gpu = Gpu { bus: "0000:17:00.0".into(), model: Some("NVIDIA H100 80GB HBM3".into()), driver: None };
        Evidence { log: log(lines), node: Some(Node { gpus: vec![gpu], ..Node::default() }), ..watched(5) }
    }

    #[test]
    fn a_lost_gpu_is_critical_and_named() {
        let f = one(examine(&Case::of(&with(&[
            (3000, "NVRM: Xid (PCI:0000:17:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."),
            (2999, "NVRM: Xid (PCI:0000:17:00): 45, pid=4711, name=python3, Ch 00000008"),
        ]))));
        assert_eq!(f.severity, Severity::Critical);
        assert_eq!(f.subject, Subject::new(SubjectKind::Gpu, "0000:17:00.0"));
        assert!(f.title.contains("H100") && f.title.contains("fallen off the bus"), "{}", f.title);
        assert_eq!(fact_of(&f, FactKey::XidProcess, "45"), "python3[4711]");
        assert!(f.remedy.contains("drain"));
    }

    #[test]
    fn a_programs_fault_is_not_blamed_on_the_gpu() {
        let line = "NVRM: Xid (PCI:0000:17:00): 31, pid=4711, name=python3, Ch 00000008, intr 0. MMU Fault";
        let f = one(examine(&Case::of(&with(&[(60, line), (59, line), (58, line)]))));
        assert_eq!(f.severity, Severity::Warning);
        assert!(f.remedy.contains("compute-sanitizer"));
        assert_eq!(fact_of(&f, FactKey::XidDay, "31"), 3);
    }

    #[test]
    fn a_clean_up_alone_is_only_worth_knowing() {
        let line = "NVRM: Xid (PCI:0000:17:00): 45, pid=4711, name=python3, Ch 00000008";
        assert_eq!(one(examine(&Case::of(&with(&[(60, line)])))).severity, Severity::Info);
    }

    #[test]
    fn the_recovery_action_of_the_driver_is_reported() {
        let want = |to: &str| {
            let line = format!("NVRM: Xid (PCI:0000:17:00): 154, GPU recovery action changed from 0x0 (None) to {to}");
            one(examine(&Case::of(&with(&[(60, &line)]))))
        };
        let reboot = want("0x2 (Node Reboot Required)");
        assert_eq!(reboot.severity, Severity::Critical);
        assert!(reboot.title.contains("Node Reboot Required"), "{}", reboot.title);
        assert_eq!(want("0x0 (None)").severity, Severity::Info);
    }

    #[test]
    fn an_unknown_xid_is_reported_as_unknown() {
        let f = one(examine(&Case::of(&with(&[(60, "NVRM: Xid (PCI:0000:99:00): 4242, whatever")]))));
        assert_eq!(f.severity, Severity::Warning);
        assert!(f.detail.contains("cannot say"));
        assert_eq!(f.subject.name, "0000:99:00");
    }

    #[test]
    fn two_gpus_are_two_findings_and_a_quiet_log_is_fine() {
        let a = "NVRM: Xid (PCI:0000:17:00): 48, pid=1, name=a, DBE";
        let b = "NVRM: Xid (PCI:0000:3b:00): 48, pid=1, name=a, DBE";
        assert_eq!(findings(examine(&Case::of(&with(&[(60, a), (59, b)])))).len(), 2);
        assert!(fine(examine(&Case::of(&with(&[(90_000, a)])))).contains("1 GPU; no Xid"));
        cannot_tell(examine(&Case::of(&watched(5))));
    }

    #[test]
    fn no_xid_is_in_the_table_twice() {
        for (i, (xid, ..)) in XIDS.iter().enumerate() {
            assert!(XIDS[i + 1..].iter().all(|(other, ..)| other != xid), "{xid}");
        }
    }
}
