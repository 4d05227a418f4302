//! Numbers before and after a step, to tell whether it worked. Both are computed in the same way, with the probes that diagnosis uses.

use crate::steps::free_zombies::below;
use crate::steps::remove_cgroups::empty_children;
use coroner_diagnosis::cores::Cores;
use coroner_diagnosis::units::loops::loops;
use coroner_diagnosis::words::count;
use coroner_evidence::{Evidence, Source};
use coroner_report::named;
use serde::Serialize;
use std::path::PathBuf;
use std::time::Duration;

/// At most this share of the value before: it worked.
const GONE: f64 = 0.1;
/// At least this many times the value before counts as more.
const MORE: f64 = 1.2;
/// At most this share of the value before: it helped, but did not end it.
const LESS: f64 = 0.8;

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "what", rename_all = "kebab-case")]
pub enum Measure {
    /// Automatic restarts of a unit per hour.
    Restarts { unit: String },
    /// New dead cgroups below a cgroup per hour.
    Growth { cgroup: String },
    /// Dead cgroups below a cgroup.
    Dead { cgroup: String },
    /// Empty children of a cgroup.
    EmptyCgroups { directory: PathBuf },
    /// How long a thread waited for a core, ms per second.
    Wait { tid: u32, name: String, core: u32 },
    /// Percent.
    CoreBusy { core: u32 },
    /// Packets dropped per second, all devices.
    Drops,
    /// Packets received per second: more is better.
    Received { nic: String },
}

impl Measure {
    pub fn words(&self) -> String {
        match self {
            Measure::Restarts { unit } => format!("starts of {unit} per hour"),
            Measure::Growth { cgroup } => format!("new dead cgroups below {cgroup} per hour"),
            Measure::Dead { cgroup } => format!("dead cgroups below {cgroup}"),
            Measure::EmptyCgroups { directory } => format!("empty cgroups in {}", directory.display()),
            Measure::Wait { name, core, .. } => format!("wait of {name} for core {core}, ms per second"),
            Measure::CoreBusy { core } => format!("core {core} busy, %"),
            Measure::Drops => "packets dropped per second, all devices".to_owned(),
            Measure::Received { nic } => format!("packets received per second by {nic}"),
        }
    }

    /// Its value in this evidence, or why that is unknown.
    pub fn value(&self, evidence: &Evidence) -> Result<f64, String> {
        match self {
            Measure::Restarts { unit } => restarts(evidence, unit),
            Measure::Growth { cgroup } => growth(evidence, cgroup),
            Measure::Dead { cgroup } => {
                let scan =
                    evidence.zombie_scans.iter().max_by_key(|scan| scan.at).ok_or("dead cgroups were not scanned")?;
                let dead = below(scan, cgroup).ok_or("dead cgroups could not be listed one by one (no BPF)")?;
                Ok(dead as f64)
            }
            // Counted now: the evidence has only the sum.
            Measure::EmptyCgroups { directory } => {
                empty_children(directory).map(|(names, _)| names.len() as f64).map_err(|e| e.to_string())
            }
            Measure::Wait { tid, core, .. } => wait(evidence, *tid, *core),
            Measure::CoreBusy { core } => {
                let cores = Cores::of(evidence);
                let window = cores.window().ok_or("the cores were not watched")?;
                let shares = cores.timeline.shares(*core, window).ok_or("the core was not watched")?;
                Ok(shares.busy() * 100.0)
            }
            Measure::Drops => drops(evidence),
            Measure::Received { nic } => received(evidence, nic),
        }
    }

    /// Counts events within the watched seconds, so a rare event may just not have come yet.
    fn counts_per_hour(&self) -> bool {
        matches!(self, Measure::Restarts { .. } | Measure::Growth { .. })
    }
}

fn restarts(evidence: &Evidence, unit: &str) -> Result<f64, String> {
    if let Some(found) = loops(evidence).into_iter().find(|found| found.unit.name == unit) {
        return match (found.in_window, found.per_hour) {
            (Some((n, over)), _) if !over.is_zero() => Ok(n as f64 * 3600.0 / over.as_secs_f64()),
            (_, Some(per_hour)) if found.over_for.is_none() => Ok(per_hour),
            _ => Ok(0.0),
        };
    }
    match evidence.units.iter().any(|seen| seen.name == unit) || !evidence.units.is_empty() {
        true => Ok(0.0),
        false => Err("systemd's units could not be read".to_owned()),
    }
}

fn growth(evidence: &Evidence, cgroup: &str) -> Result<f64, String> {
    let mut scans: Vec<_> =
        evidence.zombie_scans.iter().filter_map(|scan| Some((scan.at, below(scan, cgroup)?))).collect();
    scans.sort_unstable();
    let (Some(first), Some(last)) = (scans.first(), scans.last()) else {
        return Err("dead cgroups could not be listed one by one (no BPF)".to_owned());
    };
    let over = last.0.since(first.0);
    if over < Duration::from_millis(500) {
        return Err("dead cgroups were scanned only once".to_owned());
    }
    Ok(last.1.saturating_sub(first.1) as f64 * 3600.0 / over.as_secs_f64())
}

fn wait(evidence: &Evidence, tid: u32, core: u32) -> Result<f64, String> {
    let cores = Cores::of(evidence);
    let window = cores.window().ok_or("the cores were not watched")?;
    if let Some((why, _)) = cores.waits_hidden() {
        return Err(why);
    }
    let victims = cores.victims(core, window, &cores.owner(core, window));
    let waited = victims.iter().find(|victim| victim.who.tid == tid).map_or(0, |victim| victim.waited_ns);
    Ok(waited as f64 / 1e6 / window.length().as_secs_f64().max(0.001))
}

fn drops(evidence: &Evidence) -> Result<f64, String> {
    let window = evidence.window().ok_or("the node was not watched")?;
    let mut seen = false;
    let mut dropped = 0u64;
    for subject in evidence.counters.subjects(Source::NicStatistics) {
        for name in ["rx_dropped", "tx_dropped", "rx_missed_errors", "rx_fifo_errors"] {
            if let Some(moved) = evidence.counters.moved(Source::NicStatistics, subject, name) {
                (seen, dropped) = (true, dropped.saturating_add(moved));
            }
        }
    }
    match seen || !evidence.nics.is_empty() {
        true => Ok(dropped as f64 / window.length().as_secs_f64().max(0.001)),
        false => Err("no network device was seen".to_owned()),
    }
}

fn received(evidence: &Evidence, nic: &str) -> Result<f64, String> {
    let window = evidence.window().ok_or("the node was not watched")?;
    let moved = evidence.counters.moved(Source::NicStatistics, nic, "rx_packets");
    let seen = moved.is_some() || evidence.nics.iter().any(|seen| seen.display_name() == nic);
    match seen {
        true => Ok(moved.unwrap_or(0) as f64 / window.length().as_secs_f64().max(0.001)),
        false => Err("its packets were not counted".to_owned()),
    }
}

named! {
    pub enum Effect {
        Worked = "worked",
        /// It helped, but did not end it.
        Partly = "partly",
        None = "none",
        CannotTell = "cannot-tell",
    }
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Measured {
    #[serde(flatten)]
    pub measure: Measure,
    pub words: String,
    pub before: Option<f64>,
    pub after: Option<f64>,
    pub effect: Effect,
    /// Why the effect is unknown.
    pub why: Option<String>,
}

pub fn compare(measure: &Measure, before: Result<f64, String>, after: &Evidence) -> Measured {
    let now = measure.value(after);
    let why_unknown = before.as_ref().err().or(now.as_ref().err()).cloned();
    let (effect, why) = match (&before, &now) {
        (Ok(before), Ok(now)) => judge(measure, *before, *now, after),
        _ => (Effect::CannotTell, why_unknown),
    };
    Measured { words: measure.words(), before: before.ok(), after: now.ok(), measure: measure.clone(), effect, why }
}

fn judge(measure: &Measure, before: f64, now: f64, after: &Evidence) -> (Effect, Option<String>) {
    if let Measure::Received { .. } = measure {
        // We do not know how many are sent, so that no more arrive proves nothing.
        return match now > before * MORE && now >= 1.0 {
            true => (Effect::Worked, None),
            false => (Effect::CannotTell, Some("not more than before, but perhaps no more are sent".to_owned())),
        };
    }
    if before <= 0.0 {
        return match now <= 0.0 {
            true => (Effect::CannotTell, Some("it was 0 before, too".to_owned())),
            false => (Effect::None, None),
        };
    }
    let watched = after.window().map_or(0.0, |window| window.length().as_secs_f64());
    // What happens once in ten minutes is not to be expected within five seconds.
    if measure.counts_per_hour() && now <= 0.0 && before * watched / 3600.0 < 1.0 {
        let why = format!("at {} per hour, none within {watched:.0} s proves nothing", count(before.round() as u64));
        return (Effect::CannotTell, Some(why));
    }
    match now / before {
        share if share <= GONE => (Effect::Worked, None),
        share if share <= LESS => (Effect::Partly, None),
        _ => (Effect::None, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use coroner_evidence::{CoreTimes, Time};

    fn watched(seconds: u64) -> Evidence {
        let at = |s| CoreTimes { at: Time::from_secs(100 + s), cores: Default::default() };
        Evidence { core_times: vec![at(0), at(seconds)], ..Evidence::default() }
    }

    #[test]
    fn an_effect_is_claimed_only_if_one_could_be_seen() {
        let evidence = watched(5);
        let restarts = Measure::Restarts { unit: "a.service".into() };
        assert_eq!(judge(&restarts, 14_400.0, 0.0, &evidence).0, Effect::Worked);
        assert_eq!(judge(&restarts, 9.0, 0.0, &evidence).0, Effect::CannotTell, "one in 400 s");
        assert_eq!(judge(&restarts, 14_400.0, 14_000.0, &evidence).0, Effect::None);
        let dead = Measure::Dead { cgroup: "/a".into() };
        assert_eq!(judge(&dead, 30.0, 20.0, &evidence).0, Effect::Partly);
        assert_eq!(judge(&dead, 30.0, 30.0, &evidence).0, Effect::None);
        assert_eq!(judge(&dead, 0.0, 0.0, &evidence).0, Effect::CannotTell);
        let received = Measure::Received { nic: "eth0".into() };
        assert_eq!(judge(&received, 900.0, 20_000.0, &evidence).0, Effect::Worked);
        assert_eq!(judge(&received, 900.0, 800.0, &evidence).0, Effect::CannotTell, "perhaps nobody sends more");
    }

    #[test]
    fn unseen_is_not_zero() {
        let measured = compare(&Measure::Dead { cgroup: "/a".into() }, Ok(3.0), &Evidence::default());
        assert_eq!((measured.after, measured.effect), (None, Effect::CannotTell));
        assert!(measured.why.unwrap().contains("not scanned"));
    }
}
