//! Does the hypervisor give the node's cores to others?

use crate::code::Code;
use crate::cores::Cores;
use crate::cores::timeline::Shares;
use crate::cores::words::{percent, percent_value};
use crate::finding::{Answer, Fact, Finding, Severity, Subject, SubjectKind};
use crate::ties::Ties;
use coroner_evidence::Evidence;

/// Of the time that was wanted. A tenth is what dashboards alarm at; a short watch needs more to be sure that it is not a moment.
const WARNING: f64 = 0.2;
const CRITICAL: f64 = 0.4;
const WORTH_KNOWING: f64 = 0.05;
/// A node that wants hardly any time loses hardly any.
const WANTED: f64 = 0.2;

pub fn examine(evidence: &Evidence) -> Answer {
    let cores = Cores::of(evidence);
    let average = cores.window().and_then(|window| Some((window, cores.timeline.average(window)?)));
    let Some((window, average)) = average.filter(|_| cores.timeline.lasts()) else {
        return Answer::CannotTell {
            because: "the cores were not watched for a second".to_owned(),
            how_to_see: "watch for at least 2 s: --for 5s".to_owned(),
        };
    };
    let stolen = part(&average);
    let fine = || Answer::Fine(format!("{} of the time that was wanted", percent(stolen)));
    if stolen < WORTH_KNOWING || average.busy() < WANTED {
        return fine();
    }
    let severity = match stolen {
        s if s >= CRITICAL => Severity::Critical,
        s if s >= WARNING => Severity::Warning,
        _ => Severity::Info,
    };
    let worst = cores.timeline.worst(|shares| shares.steal);
    let mut facts = vec![
        Fact::new("stolen, of the time that was wanted", percent_value(stolen), "%", "/proc/stat"),
        Fact::new("stolen, of all cores' time", percent_value(average.steal), "%", "/proc/stat"),
    ];
    if let Some((core, share)) = worst {
        facts.push(Fact::new(format!("core {core} over its worst second"), percent_value(share), "%", "/proc/stat"));
    }
    Answer::Findings(vec![Finding {
        code: Code::CpuSteal,
        severity,
        subject: Subject::new(SubjectKind::Node, "hypervisor"),
        title: format!("the hypervisor took {} of the CPU time that this node wanted", percent(stolen)),
        detail: format!(
            "Cores were busy {} of the time, and for {} of it somebody else ran on the machine below. Threads that held a lock or polled a network \
             device stood still with them.",
            percent(average.busy()),
            percent(stolen)
        ),
        evidence: facts,
        remedy: "Nothing on this node helps. Burstable instances: their credits are used up, take a larger or another kind. Else tell the provider, or move \
                 the job to another machine."
            .to_owned(),
        ties: Ties { cores: cores.timeline.lines.keys().copied().collect(), when: Some(window.into()), ..Ties::default() },
    }])
}

/// Of the time that somebody wanted a core.
fn part(shares: &Shares) -> f64 {
    shares.steal / shares.busy().max(1e-9)
}
