//! Who takes the CPU time of others, by the wait ledger; and what a thread is blocked on.

use super::{Cause, Root, measured};
use crate::case::Case;
use crate::code::Code;
use crate::finding::Finding;
use crate::verdict::{Proof, Proofs};
use crate::waits::cited;

/// Of the victims' waits, the named takers had at least this share: no other can have had more.
const MOST: f64 = 0.5;

pub const STARVED: Cause = Cause { codes: &[Code::CpuStarved, Code::UnfairWeight, Code::ForkStorm], judge: starved };

pub const BLOCKED: Cause = Cause {
    codes: &[Code::Blocked],
    judge: |case, finding| {
        let proofs = measured(finding, "the ledger saw when each of these threads blocked, and where in the kernel");
        let sampled =
            || Proof::not_seen("whether it was one long sleep: an estimate from samples of the thread's state");
        Some(Root::of(
            finding,
            "threads cannot go on until what they are blocked on does",
            if cited::is_estimate(case) { Proofs { size: sampled(), ..proofs } } else { proofs },
            "What the threads hold (locks, memory, connections) stays held until then.",
        ))
    },
};

fn starved(case: &Case<'_>, finding: &Finding) -> Option<Root> {
    let loss = cited::loss_of(case, finding)?;
    let (culprit, cores) = (finding.ties.culprits.first()?, cited::cores_text(loss));
    let share = crate::words::percent(loss.named.min(1.0));
    let because = match finding.code {
        Code::ForkStorm => {
            format!("{} starts processes all the time, which take {cores} by their number", culprit.name())
        }
        Code::UnfairWeight => {
            format!("{}{} weighs far more than those who wait", culprit.name(), case.home_of(culprit.pid))
        }
        _ => format!("{}{} had {cores} while others waited", culprit.name(), case.home_of(culprit.pid)),
    };
    let proofs = Proofs {
        size: if cited::is_estimate(case) {
            Proof::not_seen(format!(
                "who had the core during each wait: by an estimate, those named had it in {share} of the waits"
            ))
        } else if loss.named >= MOST {
            Proof::shown(format!("in {share} of the time that they waited, those named had the core"))
        } else {
            Proof::not_seen(format!("who had the core most of the time: those named had it in {share} of the waits"))
        },
        ..measured(
            finding,
            format!("the ledger charges each wait to who ran on that core meanwhile: {}", culprit.name()),
        )
    };
    Some(Root::of(
        finding,
        because,
        proofs,
        "Weights, limits and affinity only redistribute CPU time: somebody else gets less.",
    ))
}
