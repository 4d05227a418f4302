//! On a small node one core that somebody has for itself is a large part of all there is.

use super::{LinkRule, Linked, while_both};
use crate::case::Case;
use crate::code::Code;
use crate::finding::{FactKey, Finding, Severity};
use crate::rules::cpu_contention::WAITING_PER_CORE;
use crate::verdict::{Proof, Proofs};

pub const LINK: LinkRule = LinkRule {
    from: &[Code::CoreMonopolised, Code::InterruptStorm, Code::CpuSteal, Code::MemcgWalk, Code::ObserverCost],
    to: &[Code::CpuContention],
    examine,
};

/// Half of a core, at least: less is not missed.
const SOME: f64 = 0.5;

/// With the core back, as many of those that wait could run; if still too many wait, there is too little CPU anyway.
fn examine(_: &Case<'_>, cause: &Finding, effect: &Finding) -> Option<Linked> {
    // A node that is merely full is no effect that anybody asks about, and what takes little explains nothing.
    if effect.severity < Severity::Warning || cause.severity < Severity::Warning {
        return None;
    }
    let waiting = effect.number(FactKey::ThreadsWaiting)?;
    let cores = effect.ties.cores.len() as f64;
    let full = cause.ties.cores.iter().filter(|core| effect.ties.cores.contains(core)).count() as f64;
    let taken = match cause.code {
        // Of every core a part.
        Code::CpuSteal => full * cause.share(FactKey::Stolen)?,
        // A thread takes one core at a time, whichever it is.
        Code::MemcgWalk | Code::ObserverCost => cause.share(FactKey::ShareOfCore)?,
        Code::CoreMonopolised => full.min(1.0),
        _ => full,
    };
    if taken < SOME || full < 1.0 || (waiting - taken) / cores.max(1.0) >= WAITING_PER_CORE {
        return None;
    }
    Some(Linked {
        because: format!(
            "it takes {taken:.1} of {cores} cores, and without it fewer would wait than is worth a warning"
        ),
        proofs: Proofs {
            identity: Proof::shown("it runs on cores that are all full"),
            order: while_both(cause, effect)?,
            size: Proof::shown(format!(
                "{waiting:.1} threads wait; with {taken:.1} cores more fewer than {WAITING_PER_CORE} for each core would"
            )),
        },
        evidence: Vec::new(),
    })
}
