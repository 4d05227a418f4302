//! Incidents: the minutes around an event that somebody will ask about later, each in files of its own.
//!
//! `N.json` is written at once. A child process then freezes the minutes before into `N.coroner`, and once more, with diagnosis and
//! risers, when the window is over. Files are written under another name and renamed, so that a kill never leaves half a file; the
//! next recorder completes what is open.
//!
//! Nothing here blocks, and no failure here stops the recorder: on a full disk an incident stays in memory until there is room.

mod escalation;

mod freezing;
mod hooks;

use super::config::IncidentConfig;
use super::reporter::Reports;
use super::trigger::{Over, Trigger};
use super::triggers::MARK;
use crate::warn;
use anyhow::Context;
use coroner_evidence::{Clocks, Time, Wall};
use coroner_source::incident::{Also, Incident, IncidentState, Lasting, MOST_ALSO, SCHEMA};
use coroner_source::incident_files as files;
use escalation::Escalation;
use freezing::{Freezing, Purpose};
use hooks::Hooks;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Most incidents open at once: each keeps segments from eviction and is frozen by its own process.
const MOST_OPEN: usize = 3;
/// Most incidents remembered; the limit of their files is in bytes.
const MOST_KNOWN: usize = 1000;
/// Samples wait in rings and are committed once a second: this long after its end, the window is in the segments.
const SETTLED: Duration = Duration::from_secs(2);
/// A trigger makes the store commit: this long after it, the evidence that triggered is in the segment.
const COMMITTED: Duration = Duration::from_millis(300);
/// A failed freeze is retried after this, then after twice as long, and so on, up to `MOST_TRIES`: two and a half minutes in all,
/// in which a full disk may get room again.
const AGAIN_AFTER: Duration = Duration::from_secs(10);
const MOST_TRIES: u32 = 5;
/// How often changed N.json files are written.
const SAVE_EVERY: Duration = Duration::from_secs(1);
/// How long a stopping recorder waits for each freeze.
const LAST_PATIENCE: Duration = Duration::from_secs(15);
/// Longer texts are cut.
const MOST_TEXT: usize = 1000;

pub struct Incidents {
    directory: PathBuf,
    config: IncidentConfig,
    /// The program that freezes: this one.
    program: Vec<OsString>,
    /// All with a file, and those that could not be written yet.
    known: BTreeMap<u64, Incident>,
    open: BTreeMap<u64, Open>,
    next: u64,
    /// Changed since they were written.
    dirty: BTreeSet<u64>,
    saved: Option<Time>,
    complained: bool,
    escalation: Escalation,
    hooks: Hooks,
    counts: BTreeMap<String, u64>,
    reports: Reports,
    bytes: u64,
    /// Killed or exited, but not reaped yet.
    ending: Vec<Freezing>,
}

/// Work on an incident that is not complete.
#[derive(Default)]
struct Open {
    /// End of its window; `None` if an earlier recorder opened it, until the clocks are known.
    until: Option<Time>,
    freezing: Option<Freezing>,
    is_frozen: bool,
    failures: u32,
    /// Do nothing before this.
    again: Option<Time>,
}

impl Incidents {
    /// Resumes what an earlier recorder left open.
    pub fn open(directory: &Path, config: &IncidentConfig, reports: Reports) -> anyhow::Result<Incidents> {
        let mut incidents = Incidents::freezing_with(directory, config, vec!["/proc/self/exe".into()])?;
        incidents.reports = reports;
        Ok(incidents)
    }

    fn freezing_with(directory: &Path, config: &IncidentConfig, program: Vec<OsString>) -> anyhow::Result<Incidents> {
        let listed = files::listed(directory)
            .with_context(|| format!("cannot list {}", coroner_source::directory::incidents(directory).display()))?;
        let (mut known, mut open) = (BTreeMap::new(), BTreeMap::new());
        for number in listed.keys().copied() {
            // Nobody else writes here: we hold the directory's lock, and children die with their recorder.
            files::remove_part(directory, number);
            match files::read(directory, number) {
                Ok(incident) => {
                    if incident.state == IncidentState::Open {
                        let is_frozen = files::recording(directory, number).exists();
                        open.insert(number, Open { is_frozen, ..Open::default() });
                    }
                    known.insert(number, incident);
                }
                Err(error) => warn(&format!("{error:#}; this incident is left as it is")),
            }
        }
        let mut incidents = Incidents {
            directory: directory.to_owned(),
            config: config.clone(),
            program,
            known,
            open,
            next: listed.keys().next_back().map_or(1, |last| last.saturating_add(1)),
            dirty: BTreeSet::new(),
            saved: None,
            complained: false,
            escalation: Escalation::new(config),
            hooks: Hooks::new(config),
            counts: BTreeMap::new(),
            reports: Reports::default(),
            bytes: 0,
            ending: Vec::new(),
        };
        incidents.lose_sight(None);
        incidents.evict();
        Ok(incidents)
    }

    /// Begins an incident, or counts the trigger as a repeat of one.
    pub fn begin(&mut self, trigger: Trigger, clocks: Clocks) {
        let wall = clocks.wall_of(trigger.at);
        let since = trigger.since.map(|since| clocks.wall_of(since));
        if let Some(number) = self.told_lately(&trigger, wall) {
            if let Some(incident) = self.known.get_mut(&number) {
                incident.repeats = incident.repeats.saturating_add(1);
                warn(&format!("incident {number} repeated: {} ({})", trigger.text, trigger.code));
                incident.last_repeat = Some(wall);
                if let (Some(lasting), Some(since)) = (&mut incident.lasting, since) {
                    let Lasting { lasted_ns, at_least, .. } = *lasting;
                    *lasting = Lasting { lasted_ns, at_least, ..Lasting::since(since) };
                }
                incident.last_repeat_text = Some(trigger.text.chars().take(MOST_TEXT).collect());
                self.dirty.insert(number);
            }
            return;
        }
        let text: String = trigger.text.chars().take(MOST_TEXT).collect();
        if self.open.len() >= MOST_OPEN {
            warn(&format!("{text} ({}): added to the newest incident, as {MOST_OPEN} are open", trigger.code));
            self.note_beside(trigger, wall, text);
            return;
        }
        let number = self.next;
        warn(&format!("incident {number}: {text} ({})", trigger.code));
        self.next = self.next.saturating_add(1);
        *self.counts.entry(trigger.code.clone()).or_default() += 1;
        if let Some(core) = trigger.core {
            self.escalation.suspect(core, clocks.at);
        }
        let incident = Incident {
            schema: SCHEMA.to_owned(),
            number,
            code: trigger.code,
            key: Some(trigger.key),
            subject: trigger.subject,
            by: trigger.by,
            core: trigger.core,
            text,
            triggered: wall,
            lasting: since.map(Lasting::since),
            from: wall - self.config.before,
            until: wall + self.config.after,
            state: IncidentState::Open,
            frozen: None,
            repeats: 0,
            last_repeat: None,
            last_repeat_text: None,
            also: Vec::new(),
            also_more: 0,
            error: None,
        };
        self.known.insert(number, incident);
        let again = Some(clocks.at + COMMITTED);
        self.open.insert(number, Open { until: Some(trigger.at + self.config.after), again, ..Open::default() });
        self.dirty.insert(number);
        self.save(clocks.at);
        self.advance(number, clocks);
    }

    /// Notes the end of what triggered an incident.
    pub fn end(&mut self, over: &Over, clocks: Clocks) {
        let is_it = |incident: &&mut Incident| {
            incident.code == over.code
                && incident.subject == over.subject
                && incident.by == over.by
                && incident.lasting.is_some_and(|lasting| lasting.goes_on())
        };
        let Some(incident) = self.known.values_mut().rev().find(is_it) else { return };
        let Some(lasting) = &mut incident.lasting else { return };
        let lasted = u64::try_from(over.lasted.as_nanos()).unwrap_or(u64::MAX);
        lasting.lasted_ns = lasting.lasted_ns.saturating_add(lasted);
        lasting.until = Some(clocks.wall_of(over.until));
        self.dirty.insert(incident.number);
    }

    /// Marks ongoing incidents as "end not seen": this recorder is stopping, or an earlier one saw them begin.
    fn lose_sight(&mut self, now: Option<Wall>) {
        for incident in self.known.values_mut() {
            if let Some(lasting) = incident.lasting.as_mut().filter(|lasting| lasting.goes_on()) {
                (lasting.end_unseen, lasting.at_least) = (true, true);
                // A killed recorder saw it at least until its last report.
                let told = incident.last_repeat.unwrap_or(incident.triggered);
                let lasted = now.unwrap_or(told).since(lasting.since);
                lasting.lasted_ns = lasting.lasted_ns.saturating_add(lasted.as_nanos() as u64);
                self.dirty.insert(incident.number);
            }
        }
    }

    /// The incident that this trigger repeats.
    fn told_lately(&self, trigger: &Trigger, wall: Wall) -> Option<u64> {
        // A mark is never a repeat: the user wants that very moment.
        if trigger.code == MARK {
            return None;
        }
        let same = |incident: &&Incident| {
            incident.code == trigger.code
                && incident.subject == trigger.subject
                && incident.by == trigger.by
                && incident.triggered.abs_diff(wall) < self.config.quiet
        };
        self.known.values().rev().find(same).map(|incident| incident.number)
    }

    fn note_beside(&mut self, trigger: Trigger, at: Wall, text: String) {
        let Some(number) = self.open.keys().next_back().copied() else { return };
        let Some(incident) = self.known.get_mut(&number) else { return };
        if incident.also.len() < MOST_ALSO {
            incident.also.push(Also { at, code: trigger.code, subject: trigger.subject, text });
        } else {
            incident.also_more += 1;
        }
        self.dirty.insert(number);
    }

    /// Called about five times a second: starts and reaps the freezing children, runs hooks, evicts incident files. Never waits.
    pub fn turn(&mut self, clocks: Clocks) {
        let open: Vec<u64> = self.open.keys().copied().collect();
        for number in open {
            self.advance(number, clocks);
        }
        self.ending.retain_mut(|child| !child.is_gone());
        self.hooks.turn(clocks.at);
        if self.saved.is_none_or(|saved| clocks.at.since(saved) >= SAVE_EVERY) {
            self.save(clocks.at);
        }
    }

    /// Takes the next step for an open incident.
    fn advance(&mut self, number: u64, clocks: Clocks) {
        let Some(open) = self.open.get_mut(&number) else { return };
        if let Some(freezing) = &mut open.freezing {
            let Some(outcome) = freezing.outcome(clocks.at) else { return };
            let purpose = freezing.purpose;
            self.ending.extend(open.freezing.take());
            self.ended(number, purpose, outcome, clocks);
            return;
        }
        let until = match open.until {
            Some(until) => until,
            None => {
                // Resumed. A wall clock that was set back must not keep it open for days.
                let real = self.known.get(&number).map_or(Wall(0), |incident| incident.until);
                let until = clocks.time_of(real).unwrap_or_default().min(clocks.at + self.config.after);
                open.until = Some(until);
                until
            }
        };
        if open.again.is_some_and(|again| clocks.at < again) {
            return;
        }
        let is_over = clocks.at >= until + SETTLED;
        if is_over {
            // One at a time: there is no hurry, and each takes memory.
            let busy = |other: &Open| other.freezing.as_ref().is_some_and(|f| f.purpose == Purpose::Whole);
            if !self.open.values().any(busy) {
                self.start(number, Purpose::Whole, clocks);
            }
        } else if !open.is_frozen {
            self.start(number, Purpose::First, clocks);
        }
    }

    fn start(&mut self, number: u64, purpose: Purpose, clocks: Clocks) {
        // The child reads from there what to freeze.
        if self.dirty.contains(&number) {
            self.save(clocks.at);
        }
        let started = if self.dirty.contains(&number) {
            Err(anyhow::anyhow!("cannot write {}", files::json(&self.directory, number).display()))
        } else {
            Freezing::start(&self.program, &self.directory, number, purpose, clocks.at)
        };
        match started {
            Ok(freezing) => {
                if let Some(open) = self.open.get_mut(&number) {
                    open.freezing = Some(freezing);
                }
            }
            Err(error) => self.ended(number, purpose, Err(format!("{error:#}")), clocks),
        }
    }

    fn ended(&mut self, number: u64, purpose: Purpose, outcome: Result<(), String>, clocks: Clocks) {
        let (Some(open), Some(incident)) = (self.open.get_mut(&number), self.known.get_mut(&number)) else { return };
        self.dirty.insert(number);
        let is_over = match (purpose, outcome) {
            (Purpose::First, Ok(())) => {
                open.is_frozen = true;
                incident.frozen = Some(clocks.wall);
                incident.error = None;
                false
            }
            (Purpose::Whole, Ok(())) => {
                incident.frozen.get_or_insert(clocks.wall);
                incident.error = None;
                incident.state = IncidentState::Complete;
                true
            }
            (_, Err(why)) => {
                files::remove_part(&self.directory, number);
                open.again = Some(clocks.at + AGAIN_AFTER * (1 << open.failures.min(MOST_TRIES)));
                open.failures += u32::from(purpose == Purpose::Whole);
                warn(&format!("incident {number}: {why}"));
                incident.error = Some(why);
                if open.failures >= MOST_TRIES {
                    incident.state = IncidentState::Failed;
                }
                incident.state == IncidentState::Failed
            }
        };
        if is_over {
            self.open.remove(&number);
        }
        self.evict();
        self.save(clocks.at);
        if let Some(incident) = self.known.get(&number).filter(|_| is_over) {
            self.hooks.tell(incident, &files::recording(&self.directory, number), clocks.at);
        }
    }

    /// Segments with anything after this must not be evicted.
    pub fn needed_from(&self) -> Option<Wall> {
        self.open.keys().filter_map(|number| self.known.get(number)).map(|incident| incident.from).min()
    }

    /// The core to sample at a higher rate now, and that rate.
    pub fn escalation(&mut self, now: Time) -> Option<(u32, u32)> {
        self.escalation.now(now)
    }

    /// Incidents since the recorder started, by code.
    pub fn counts(&self) -> &BTreeMap<String, u64> {
        &self.counts
    }

    /// Size of all incident files.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The recorder is stopping: freezes what is open as it is.
    pub fn finish(&mut self, clocks: Clocks) {
        self.lose_sight(Some(clocks.wall));
        let open: Vec<u64> = self.open.keys().copied().collect();
        for number in open {
            let Some(state) = self.open.get_mut(&number) else { continue };
            if let Some(mut freezing) = state.freezing.take() {
                freezing.kill();
                let _ = wait_for(&mut freezing, clocks.at);
                files::remove_part(&self.directory, number);
            }
            if let Some(incident) = self.known.get_mut(&number) {
                incident.until = incident.until.min(clocks.wall.max(incident.triggered));
                self.dirty.insert(number);
            }
            self.save(clocks.at);
            if self.dirty.contains(&number) {
                continue;
            }
            let Ok(mut freezing) = Freezing::start(&self.program, &self.directory, number, Purpose::Whole, clocks.at)
            else {
                continue;
            };
            match wait_for(&mut freezing, clocks.at) {
                Some(Ok(())) => self.ended(number, Purpose::Whole, Ok(()), clocks),
                // It stays open: the next recorder retries.
                Some(Err(why)) => warn(&format!("incident {number}: {why}; the next recorder will complete it")),
                None => {
                    freezing.kill();
                    warn(&format!("incident {number}: freezing took too long; the next recorder will complete it"));
                }
            }
        }
        self.save(clocks.at);
    }

    /// Writes what changed. What cannot be written stays in memory and is retried.
    fn save(&mut self, now: Time) {
        self.saved = Some(now);
        let Incidents { directory, known, dirty, complained, reports, .. } = self;
        dirty.retain(|number| {
            let Some(incident) = known.get(number) else { return false };
            match files::write(directory, incident) {
                Ok(()) => {
                    reports.incident(incident);
                    *complained = false;
                    false
                }
                Err(error) => {
                    if !std::mem::replace(complained, true) {
                        warn(&format!("{error:#}; the incident is kept in memory"));
                    }
                    true
                }
            }
        });
    }

    /// Enforces the limit: removes the oldest first, never open ones. The newest N.json stays, so that no number is reused.
    fn evict(&mut self) {
        let Ok(sizes) = files::listed(&self.directory) else { return };
        let newest = self.next.saturating_sub(1);
        self.bytes = sizes.values().fold(0u64, |sum, bytes| sum.saturating_add(*bytes));
        let mut count = self.known.len();
        for (number, bytes) in sizes {
            if self.bytes <= self.config.max_size && count <= MOST_KNOWN {
                return;
            }
            if self.open.contains_key(&number) {
                continue;
            }
            if number == newest {
                self.evict_newest(number);
                continue;
            }
            match files::remove(&self.directory, number) {
                Ok(()) => {
                    self.bytes = self.bytes.saturating_sub(bytes);
                    count -= usize::from(self.known.remove(&number).is_some());
                    self.dirty.remove(&number);
                }
                Err(error) => warn(&format!("cannot remove incident {number}: {error}")),
            }
        }
    }

    fn evict_newest(&mut self, number: u64) {
        let path = files::recording(&self.directory, number);
        let bytes = std::fs::metadata(&path).map_or(0, |about| about.len());
        if bytes == 0 || self.bytes <= self.config.max_size || std::fs::remove_file(&path).is_err() {
            return;
        }
        self.bytes = self.bytes.saturating_sub(bytes);
        if let Some(incident) = self.known.get_mut(&number) {
            incident.state = IncidentState::Failed;
            incident.error = Some(format!(
                "its file was removed: {bytes} bytes exceed the limit for all incidents (incidents.max_size)"
            ));
            self.dirty.insert(number);
        }
    }
}

impl Drop for Incidents {
    fn drop(&mut self) {
        for open in self.open.values_mut() {
            if let Some(freezing) = &mut open.freezing {
                freezing.kill();
            }
        }
    }
}

/// Waits for a child. `None` if that takes too long.
fn wait_for(freezing: &mut Freezing, now: Time) -> Option<Result<(), String>> {
    let began = std::time::Instant::now();
    while began.elapsed() < LAST_PATIENCE {
        if let Some(outcome) = freezing.outcome(now + began.elapsed()) {
            return Some(outcome);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    None
}

#[cfg(test)]
mod tests;
