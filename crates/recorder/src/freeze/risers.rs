//! Risers: commands and kernel functions on the suspected core whose share rose from the hour before to the incident.

use coroner_diagnosis::Code;
use coroner_evidence::Wall;
use coroner_profile::import::ImportError;
use coroner_profile::model::Dictionary;
use coroner_profile::recording;
use coroner_profile::views::risers::{self, BusyShares, Riser};
use coroner_source::incident::Incident;
use std::ops::{ControlFlow, Range};
use std::path::Path;
use std::time::{Duration, Instant};

/// The seconds of the incident: its cause is at work some seconds before the trigger (a NIC's watchdog waits five), and the
/// escalated samples come after it.
const BEFORE: Duration = Duration::from_secs(6);
const AFTER: Duration = Duration::from_secs(6);
/// For a full core, which triggers after a second: what fills it is running then.
const NEAR: Duration = Duration::from_secs(2);
const BASELINE: Duration = Duration::from_secs(3600);
/// Time limit for reading the hour before: bounds the work on a large node. The comparison uses what was read by then.
const PATIENCE: Duration = Duration::from_secs(20);
const MOST: usize = 20;
/// If no core has a sample for this long, nothing was recorded.
const GAP: Duration = Duration::from_secs(2);

pub struct Risers {
    /// Largest first.
    pub risers: Vec<Riser>,
    /// Samples that were not idle, on the suspected core or, without one, on all.
    #[cfg(test)]
    pub baseline_samples: u64,
    #[cfg(test)]
    pub burst_samples: u64,
}

/// On the suspected core; on all cores if none is suspected.
pub fn find(directory: &Path, incident: &Incident) -> Result<Risers, ImportError> {
    let trigger = incident.triggered;
    let (before, after) = match Code::parse(&incident.code) {
        Some(Code::CoreSaturated | Code::CoreMonopolised) => (NEAR, NEAR),
        _ => (BEFORE, AFTER),
    };
    let begin = trigger - before;
    let burst = begin..(trigger + after).min(incident.until);
    let baseline = begin - BASELINE..begin;
    let (names_before, shares_before) = shares(directory, baseline, incident.core)?;
    let (names_now, shares_now) = shares(directory, burst, incident.core)?;
    Ok(Risers {
        risers: risers::find((&names_before, &shares_before), (&names_now, &shares_now), MOST),
        #[cfg(test)]
        baseline_samples: shares_before.samples(),
        #[cfg(test)]
        burst_samples: shares_now.samples(),
    })
}

fn shares(directory: &Path, range: Range<Wall>, core: Option<u32>) -> Result<(Dictionary, BusyShares), ImportError> {
    let until = Instant::now() + PATIENCE;
    let (mut shares, mut count) = (BusyShares::default(), 0u64);
    let (mut recorded_ns, mut last_ns) = (0u64, None);
    let read = recording::read(directory, Some(range.start.0..range.end.0), &mut |names, sample| {
        if let Some(time) = sample.time {
            let since = time.saturating_sub(*last_ns.get_or_insert(time));
            recorded_ns += if since <= GAP.as_nanos() as u64 { since } else { 0 };
            last_ns = last_ns.max(Some(time));
        }
        if core.is_none() || sample.core == core {
            shares.add(names, &sample);
        }
        count += 1;
        // Reading the clock costs as much as a sample.
        if count.is_multiple_of(4096) && Instant::now() >= until {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    });
    match read {
        Ok((names, _)) => {
            // On one core, shares are of its time: an idle core may have hardly any samples, and a share of those would look large.
            if core.is_some() {
                shares.out_of(recorded_ns);
            }
            Ok((names, shares))
        }
        Err(ImportError::NoSamples { .. } | ImportError::NoSegments { .. }) => {
            Ok((Dictionary::default(), BusyShares::default()))
        }
        Err(error) => Err(error),
    }
}
