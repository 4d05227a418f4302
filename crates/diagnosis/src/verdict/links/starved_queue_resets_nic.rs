//! A driver resets its device if a queue is not polled for some seconds.

use super::{LinkRule, Linked, times_on_core};
use crate::case::Case;
use crate::code::Code;
use crate::finding::{FactKey, Finding, Severity};
use crate::ties::When;
use crate::times::FIRST_LOOK;
use crate::verdict::{Proof, Proofs};
use crate::words::duration_words;
use std::time::Duration;

/// Watchdogs check, and log, at least every 5 s (ENA's, and the kernel's for transmit queues).
const WATCHDOG: Duration = Duration::from_secs(10);

/// What held when watching began may have begun earlier, but not so long ago that it explains an older reset.
const RECENT: Duration = Duration::from_secs(60);

pub const LINK: LinkRule = LinkRule {
    from: &[Code::NicCoreStarved, Code::CoreSaturated, Code::CoreMonopolised],
    to: &[Code::NicReset],
    examine,
};

fn examine(case: &Case<'_>, cause: &Finding, effect: &Finding) -> Option<Linked> {
    let core = cause.ties.common_core(&effect.ties);
    let nic = effect.ties.queues.first()?;
    let same_nic = cause.ties.common_nic(&effect.ties).is_some();
    let identity = match core {
        // It starved another device: that is no cause of this reset, though the core itself may be.
        Some(_) if cause.code == Code::NicCoreStarved && !same_nic => return None,
        Some(core) => Proof::shown(format!("core {core} serves {} and was occupied", nic.queue_name())),
        None if same_nic && !effect.ties.cores.is_empty() => return None,
        None if same_nic => Proof::shown(format!("both are about {}", nic.name())),
        // A device in another namespace, or with an unknown queue map.
        None => return None,
    };
    let (clearest, reset) = (cause.ties.when?, effect.ties.when?);
    let in_time = |before: &When| {
        let late = When { to: before.to + WATCHDOG, ..*before };
        before.can_precede(&reset) && late.overlaps(&reset)
    };
    let times = core.map_or_else(Vec::new, |core| times_on_core(case, cause, core));
    let before = times.into_iter().find(in_time).unwrap_or(clearest);
    let watched = case.evidence.window()?;
    let from_the_start = before.from <= watched.from + FIRST_LOOK;
    let earlier = from_the_start && reset.to < before.from;
    let in_time = match earlier {
        true => before.from.since(reset.to) <= RECENT,
        false => in_time(&before),
    };
    if !in_time {
        return None;
    }
    let silent = effect.duration(FactKey::SinceNapi).or_else(|| effect.duration(FactKey::Silence));
    // Only the time counts in which the queue went unpolled and the driver had not reported it yet.
    let from = before.from.max(silent.map_or(before.from, |silent| reset.from - silent - reset.uncertainty));
    let lasted = before.to.min(reset.from).since(from);
    Some(Linked {
        because: match effect.severity {
            Severity::Critical => {
                format!("the driver of {} reset the device after waiting for a poll that could not run", nic.name())
            }
            _ => format!("the driver of {} was waiting for a poll that could not run", nic.name()),
        },
        proofs: Proofs {
            identity,
            order: match before.surely_precedes(&reset) {
                true => Proof::shown("the core was occupied before the driver reported it"),
                false if from_the_start => Proof::not_seen("when the core became occupied (before watching began)"),
                false => Proof::not_seen(format!(
                    "which came first: the kernel log's clock may be off by {}",
                    duration_words(reset.uncertainty)
                )),
            },
            size: match silent {
                Some(_) if earlier => {
                    Proof::not_seen("how long the core had been occupied before the driver reported it")
                }
                // At least half of the unpolled time was seen; the rest may predate watching.
                Some(silent) if lasted.mul_f64(2.0) >= silent => Proof::shown(format!(
                    "no poll for {}; the core was seen occupied for {}",
                    duration_words(silent),
                    duration_words(lasted)
                )),
                Some(silent) => Proof::not_seen(format!(
                    "no poll for {}, but the core was seen occupied for only {}",
                    duration_words(silent),
                    duration_words(lasted)
                )),
                None => Proof::not_seen("how long the queue went unpolled: the driver did not report it"),
            },
        },
        evidence: effect.facts(&[
            FactKey::Lines,
            FactKey::Line,
            FactKey::Queue,
            FactKey::ServingCore,
            FactKey::SinceNapi,
        ]),
    })
}
