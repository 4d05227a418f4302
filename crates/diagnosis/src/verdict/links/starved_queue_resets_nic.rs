//! A queue that nobody polls makes its driver reset the device after some seconds.

use super::{LinkRule, Linked};
use crate::case::Case;
use crate::code::Code;
use crate::finding::{FactKey, Finding, Severity};
use crate::ties::When;
use crate::verdict::timeline::FIRST_LOOK;
use crate::verdict::{Proof, Proofs};
use crate::words::duration_words;
use std::time::Duration;

/// A driver's watchdog looks every 5 s at most (ENA, the kernel's own for transmit queues) and prints when it does.
const WATCHDOG: Duration = Duration::from_secs(10);

/// What holds at the first look may have begun before it. A reset that is older than this is another story.
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
        // The core starved another device: that one is no cause, though the core itself may be.
        Some(_) if cause.code == Code::NicCoreStarved && !same_nic => return None,
        Some(core) => Proof::shown(format!("{} is served by core {core}, which was taken", nic.name())),
        None if same_nic && !effect.ties.cores.is_empty() => return None,
        None if same_nic => Proof::shown(format!("{} in both", nic.nic)),
        // A device in another namespace, or one whose map is not known.
        None => return None,
    };
    let (before, reset) = (cause.ties.when?, effect.ties.when?);
    let late = When { to: before.to + WATCHDOG, ..before };
    let watched = case.evidence.window()?;
    let from_the_start = before.from <= watched.from + FIRST_LOOK;
    let earlier = from_the_start && reset.to < before.from;
    let in_time = match earlier {
        true => before.from.since(reset.to) <= RECENT,
        false => before.can_precede(&reset) && late.overlaps(&reset),
    };
    if !in_time {
        return None;
    }
    let silent = effect.duration(FactKey::SinceNapi).or_else(|| effect.duration(FactKey::Silence));
    // Only while the poll was silent, and before the driver gave up, does it count that the core was taken.
    let from = before.from.max(silent.map_or(before.from, |silent| reset.from - silent - reset.uncertainty));
    let lasted = before.to.min(reset.from).since(from);
    Some(Linked {
        because: match effect.severity {
            Severity::Critical => {
                format!("the driver of {} waited for a poll that could not run, and reset the device", nic.nic)
            }
            _ => format!("the driver of {} waits for a poll that could not run", nic.nic),
        },
        proofs: Proofs {
            identity,
            order: match before.surely_precedes(&reset) {
                true => Proof::shown("the core was taken before the driver gave up"),
                false if from_the_start => {
                    Proof::not_seen("the core was taken already when we began to look; since when is not known")
                }
                false => Proof::not_seen(format!(
                    "the log's clock may be off by {}, too much to tell which came first",
                    duration_words(reset.uncertainty)
                )),
            },
            size: match silent {
                Some(_) if earlier => {
                    Proof::not_seen("how long the core had been taken before the driver gave up was not watched")
                }
                // Of the silence, most was seen; the rest may have been before we began to look.
                Some(silent) if lasted.mul_f64(2.0) >= silent => Proof::shown(format!(
                    "the poll had not run for {}; the core was seen taken for {}",
                    duration_words(silent),
                    duration_words(lasted)
                )),
                Some(silent) => Proof::not_seen(format!(
                    "the poll had not run for {}, but the core was seen taken for {} only",
                    duration_words(silent),
                    duration_words(lasted)
                )),
                None => Proof::not_seen("the driver did not say how long the poll had not run"),
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
