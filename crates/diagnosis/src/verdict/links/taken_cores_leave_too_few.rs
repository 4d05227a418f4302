//! On a small node, one occupied core is a large share of the CPU.

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

/// Less than half a core is not missed.
const SOME: f64 = 0.5;

/// Freeing the cores lets that many waiting threads run; if too many still wait, the node is short of CPU anyway.
fn examine(_: &Case<'_>, cause: &Finding, effect: &Finding) -> Option<Linked> {
    // A merely full node needs no cause, and a minor cause explains nothing.
    if effect.severity < Severity::Warning || cause.severity < Severity::Warning {
        return None;
    }
    let waiting = effect.number(FactKey::ThreadsWaiting)?;
    let cores = effect.ties.cores.len() as f64;
    let full = cause.ties.cores.iter().filter(|core| effect.ties.cores.contains(core)).count() as f64;
    let taken = match cause.code {
        // A share of every core.
        Code::CpuSteal => full * cause.share(FactKey::Stolen)?,
        // A thread takes one core at a time.
        Code::MemcgWalk | Code::ObserverCost => cause.share(FactKey::ShareOfCore)?,
        Code::CoreMonopolised => full.min(1.0),
        _ => full,
    };
    if taken < SOME || full < 1.0 || (waiting - taken) / cores.max(1.0) >= WAITING_PER_CORE {
        return None;
    }
    Some(Linked {
        because: format!(
            "it takes {taken:.1} cores out of {cores}; without it, waiting would stay below the warning threshold"
        ),
        proofs: Proofs {
            identity: Proof::shown("it takes time on the cores that threads wait for"),
            order: while_both(cause, effect)?,
            size: Proof::shown(format!(
                "{waiting:.1} threads wait; with {taken:.1} more cores, fewer than {WAITING_PER_CORE} per core would"
            )),
        },
        evidence: Vec::new(),
    })
}
