//! NICs: outages of each, and starved queues.

use super::cores::CoreMeter;
use crate::status::OTHER;
use coroner_diagnosis::log_events::{self, Event, Family, NicStep, ONE_INCIDENT};
use coroner_evidence::{Counters, LogLine, Nic, Source, Time};
use std::collections::BTreeMap;
use std::time::Duration;

/// A node has tens of devices; with a veth per container, hundreds.
const MOST_DEVICES: usize = 4_096;
const MOST_RESETTING: usize = 50;
/// A device missing from two maps in a row is gone; one map may miss a namespace.
const GONE_AFTER: Duration = Duration::from_secs(150);
/// Queues count as starved for this long after their core was full: scrapes come every 15 to 60 s and must not miss it.
const STARVED_FOR: Duration = Duration::from_secs(60);
/// Driver counters that miss no reset (as in the rule nic-reset).
const ALL_RESETS: [&str; 2] = ["total_resets", "reset_cnt"];

#[derive(Default)]
pub struct NicMeter {
    seen: bool,
    /// As last seen.
    devices: BTreeMap<(Option<String>, String), Nic>,
    outages: BTreeMap<String, Outages>,
}

#[derive(Default)]
struct Outages {
    /// Counted from the kernel log.
    logged: u64,
    /// An outage is ongoing: its further lines are not counted.
    open_since: Option<Time>,
    /// The driver's counter.
    last_count: Option<u64>,
    counted: u64,
}

impl NicMeter {
    pub fn note_devices(&mut self, nics: &[Nic]) {
        self.seen |= !nics.is_empty();
        for nic in nics {
            let key = (nic.netns.clone(), nic.name.clone());
            if self.devices.len() >= MOST_DEVICES && !self.devices.contains_key(&key) {
                let oldest = self.devices.iter().min_by_key(|(_, nic)| nic.at).map(|(key, _)| key.clone());
                oldest.map(|key| self.devices.remove(&key));
            }
            self.devices.insert(key, nic.clone());
        }
        if let Some(mapped) = nics.iter().map(|nic| nic.at).max() {
            self.devices.retain(|_, nic| mapped.since(nic.at) < GONE_AFTER);
        }
    }

    pub fn note_counters(&mut self, counters: &Counters) {
        for (series, points) in counters.iter() {
            if series.source == Source::Ethtool && ALL_RESETS.contains(&series.name.as_str()) {
                let outages = self.outages_of(&series.subject);
                let risen = super::rise(&mut outages.last_count, points);
                outages.counted = outages.counted.saturating_add(risen);
            }
        }
    }

    /// A hanging device logs many lines until its reset is done: they are one outage.
    pub fn note_line(&mut self, line: &LogLine) {
        let Some(Event::Nic(event)) =
            line.is_from_kernel().then(|| log_events::parse(&line.text, Family::Nic)).flatten()
        else {
            return;
        };
        if !event.step.is_outage() {
            return;
        }
        let devices: Vec<Nic> = self.devices.values().filter(|nic| nic.netns.is_none()).cloned().collect();
        let name = event.device.name(&devices).unwrap_or_else(|| "unknown".to_owned());
        let outages = self.outages_of(&name);
        if outages.open_since.is_none_or(|since| line.at.since(since) > ONE_INCIDENT) {
            outages.logged += 1;
        }
        let over = matches!(event.step, NicStep::ResetDone);
        outages.open_since = (!over).then_some(line.at);
    }

    fn outages_of(&mut self, name: &str) -> &mut Outages {
        let known = self.outages.contains_key(name) || self.outages.len() < MOST_RESETTING;
        self.outages.entry(if known { name } else { OTHER }.to_owned()).or_default()
    }

    /// Log and driver count the same outages, and either may miss some.
    pub fn resets(&self) -> BTreeMap<String, u64> {
        self.outages.iter().map(|(name, outages)| (name.clone(), outages.logged.max(outages.counted))).collect()
    }

    /// Queues served by one core only, which something else took within the last minute.
    pub fn starved(&self, cores: &CoreMeter) -> Option<u64> {
        if !self.seen || !cores.is_counting() {
            return None;
        }
        let queues = self.devices.values().flat_map(|nic| &nic.queues);
        let only_cores = queues.filter_map(|queue| queue.cores()?.single());
        Some(only_cores.filter(|&core| cores.was_taken(core, STARVED_FOR)).count() as u64)
    }
}
