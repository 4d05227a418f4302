//! The audit of agents runs on its own thread: unit files, packages, the journal, containers and sockets are read from disks that
//! may be slow, and by a program that may hang. The watch does not wait for them.

use crate::journal::{JournalReader, MAX_UNITS, WantedUnit};
use crate::root::{Root, now};
use crate::tree::Tree;
use crate::unit_sockets::RunningUnit;
use crate::watch::AuditOptions;
use crate::{agent_files, containers, packages, unit_files, unit_sockets};
use coroner_evidence::{Enablement, Evidence, FileAnswer, Unit, UnitFile, Unseen, glob_matches, probe};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// Files and logs change rarely.
const FILES_EVERY: Duration = Duration::from_secs(600);
const CONTAINERS_EVERY: Duration = Duration::from_secs(60);

/// Limit for requests to a thread that hangs.
const MAX_PENDING: usize = 100;

/// What to read.
#[derive(Debug)]
enum Ask {
    /// Reports only changes, except the first time.
    Files,
    /// Reports everything again.
    FilesAnew,
    Containers,
    Sockets,
    /// Units just reported by systemd; the logs and sockets of new ones are read.
    Units(Vec<Unit>),
    Journal,
    /// Only of units that restart: the looks alone miss restarts where the count was reset between them.
    Restarts,
}

impl Ask {
    /// The probe and what is unseen if there is no answer.
    fn about(&self) -> (&'static str, &'static str) {
        match self {
            Ask::Files | Ask::FilesAnew => (probe::UNIT_FILES, "what is installed to run, and the files agents need"),
            Ask::Containers => (probe::CONTAINERS, "which containers keep restarting"),
            Ask::Sockets => (probe::UNIT_SOCKETS, "network connections of agents"),
            Ask::Units(_) | Ask::Journal | Ask::Restarts => {
                (probe::JOURNAL, "unit logs, and when systemd restarted units")
            }
        }
    }
}

pub struct Audit {
    asks: Sender<Ask>,
    answers: Receiver<Evidence>,
    /// Unanswered requests, in order.
    pending: VecDeque<(&'static str, &'static str)>,
    files_asked: Instant,
    containers_asked: Instant,
}

impl Audit {
    /// Starts the thread and requests files and containers.
    pub fn start(root: Root, bus: Option<&str>, options: AuditOptions) -> Audit {
        let (asks, asked) = channel();
        let (answer, answers) = channel();
        let mut auditor = Auditor::new(root, bus, options);
        let work = move || {
            while let Ok(ask) = asked.recv() {
                let mut evidence = Evidence::default();
                auditor.look(ask, &mut evidence);
                if answer.send(evidence).is_err() {
                    return;
                }
            }
        };
        // Without a thread there is no answer, and the end of the watch reports that.
        let _ = std::thread::Builder::new().name("audit".to_owned()).spawn(work);
        let (files_asked, containers_asked) = (Instant::now(), Instant::now());
        let mut audit = Audit { asks, answers, pending: VecDeque::new(), files_asked, containers_asked };
        audit.ask(Ask::Files);
        audit.ask(Ask::Containers);
        audit
    }

    /// Reads everything again. Unit logs and sockets follow once systemd has listed the units again.
    pub fn tell_anew(&mut self) {
        (self.files_asked, self.containers_asked) = (Instant::now(), Instant::now());
        self.ask(Ask::FilesAnew);
        self.ask(Ask::Containers);
    }

    fn ask(&mut self, ask: Ask) {
        if self.pending.len() >= MAX_PENDING {
            return;
        }
        self.pending.push_back(ask.about());
        // If the thread is gone, the request stays unanswered and is reported at the end.
        let _ = self.asks.send(ask);
    }

    /// Passes on units just reported by systemd, requests what is due, and appends answers.
    pub fn turn(&mut self, evidence: &mut Evidence) {
        self.note_units(evidence);
        if self.pending.is_empty() {
            if self.files_asked.elapsed() >= FILES_EVERY {
                self.files_asked = Instant::now();
                for ask in [Ask::Files, Ask::Journal, Ask::Sockets] {
                    self.ask(ask);
                }
            }
            if self.containers_asked.elapsed() >= CONTAINERS_EVERY {
                self.containers_asked = Instant::now();
                self.ask(Ask::Containers);
            }
        }
        while let Ok(answer) = self.answers.try_recv() {
            self.pending.pop_front();
            evidence.append(answer);
        }
    }

    fn note_units(&mut self, evidence: &Evidence) {
        if !evidence.units.is_empty() {
            self.ask(Ask::Units(evidence.units.clone()));
        }
    }

    /// Takes the last look at what changes. What is missing after `wait` is reported as unseen.
    pub fn finish(&mut self, wait: Duration, evidence: &mut Evidence) {
        self.note_units(evidence);
        for ask in [Ask::Containers, Ask::Sockets, Ask::Restarts] {
            self.ask(ask);
        }
        let deadline = Instant::now() + wait;
        while !self.pending.is_empty() {
            match self.answers.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(answer) => {
                    self.pending.pop_front();
                    evidence.append(answer);
                }
                Err(_) => break,
            }
        }
        for (probe, what) in self.pending.drain(..) {
            let why = format!("still being read {:.1} s after the watch ended", wait.as_secs_f64());
            evidence.unseen(probe, what, why, "watch longer or run again; the disk may be slow");
        }
    }
}

/// The state of the thread.
struct Auditor {
    /// For processes and cgroups.
    root: Root,
    /// For files of the node whose systemd we query.
    files: Root,
    options: AuditOptions,
    journal: JournalReader,
    /// The units as last reported by systemd, by name.
    units: BTreeMap<String, Unit>,
    /// What was read from the journal.
    looked_at: BTreeSet<WantedUnit>,
    /// Unit files as last read, without their packages.
    unit_files: Option<Vec<UnitFile>>,
    agent_files: Vec<FileAnswer>,
}

impl Auditor {
    fn new(root: Root, bus: Option<&str>, options: AuditOptions) -> Auditor {
        Auditor {
            files: root_of_bus(&root, bus),
            root,
            options,
            journal: JournalReader::default(),
            units: BTreeMap::new(),
            looked_at: BTreeSet::new(),
            unit_files: None,
            agent_files: Vec::new(),
        }
    }

    fn look(&mut self, ask: Ask, evidence: &mut Evidence) {
        // Reopened each time: the node may have switched roots, as after the initrd.
        let tree = match Tree::open(&self.files) {
            Ok(tree) => tree,
            Err(e) => {
                let (probe, what) = ask.about();
                return evidence.unseen(probe, what, e.to_string(), "run as root on the node");
            }
        };
        match ask {
            Ask::Files => self.look_at_files(&tree, evidence),
            Ask::FilesAnew => {
                self.unit_files = None;
                self.agent_files = Vec::new();
                self.units = BTreeMap::new();
                self.looked_at = BTreeSet::new();
                self.look_at_files(&tree, evidence);
            }
            Ask::Containers => containers::look(&tree, now(), evidence),
            Ask::Sockets => self.look_at_sockets(evidence),
            Ask::Journal => self.journal.look(&tree, &self.wanted(), evidence),
            Ask::Restarts => {
                let mut wanted = self.wanted();
                wanted.retain(|unit| unit.loops);
                self.journal.look(&tree, &wanted, evidence);
            }
            Ask::Units(units) => {
                let first = self.units.is_empty();
                units.into_iter().for_each(|unit| self.note(unit));
                let mut wanted = self.wanted();
                wanted.retain(|w| !self.looked_at.contains(w));
                // The rest is read at the next look.
                self.looked_at.extend(wanted.iter().take(MAX_UNITS).cloned());
                self.journal.look(&tree, &wanted, evidence);
                if first {
                    self.look_at_sockets(evidence);
                }
            }
        }
    }

    /// Keeps known properties that this look did not read.
    fn note(&mut self, mut unit: Unit) {
        if let Some(before) = self.units.get_mut(&unit.name) {
            unit.cgroup = unit.cgroup.or_else(|| before.cgroup.take());
            unit.restarts = unit.restarts.or(before.restarts);
            unit.unit_file_state = unit.unit_file_state.or_else(|| before.unit_file_state.take());
        }
        self.units.insert(unit.name.clone(), unit);
    }

    fn look_at_files(&mut self, tree: &Tree, evidence: &mut Evidence) {
        let first = self.unit_files.is_none();
        let read = unit_files::read_tree(tree);
        let mut unseen: Vec<Unseen> = read.unseen;
        if self.unit_files.as_ref() != Some(&read.units) {
            let mut named = read.units.clone();
            unseen.extend(packages::name_packages(tree, &mut named));
            evidence.unit_files = named;
            self.unit_files = Some(read.units);
        }
        let answers = agent_files::answer(tree, &self.options.questions);
        if answers != self.agent_files {
            self.agent_files.clone_from(&answers);
            evidence.agent_files = answers;
        }
        for Unseen { probe, what, why, how_to_see, .. } in unseen {
            evidence.unseen(&probe, what, why, how_to_see);
        }
        if first {
            evidence.catalogues.clone_from(&self.options.catalogues);
            evidence.baseline.clone_from(&self.options.baseline);
        }
    }

    fn look_at_sockets(&self, evidence: &mut Evidence) {
        let running = self.units.values().filter(|u| is_agent(&self.options, &u.name) && u.active_state == "active");
        let running: Vec<RunningUnit> =
            running.filter_map(|u| Some(RunningUnit { unit: u.name.clone(), cgroup: u.cgroup.clone()? })).collect();
        unit_sockets::look(&self.root, &running, now(), evidence);
    }

    /// Units whose logs are worth reading: those that restart first, and known agents before others.
    fn wanted(&self) -> Vec<WantedUnit> {
        let enabled = |unit: &Unit| {
            let word = unit.unit_file_state.as_deref().and_then(Enablement::of_word);
            let on_disk = || self.unit_files.iter().flatten().find(|f| f.name == unit.name).map(|f| f.enablement);
            matches!(word.or_else(on_disk), Some(Enablement::Enabled | Enablement::EnabledRuntime))
        };
        // Restarting units come before agents; those that merely failed come last.
        let mut wanted: Vec<(bool, bool, bool, &str)> = Vec::new();
        for unit in self.units.values().filter(|u| u.name.ends_with(".service")) {
            let agent = is_agent(&self.options, &unit.name);
            let runs = matches!(unit.active_state.as_str(), "active" | "activating" | "reloading" | "failed");
            if loops(unit) || (agent && (runs || enabled(unit))) {
                wanted.push((!restarts(unit), !agent, !loops(unit), &unit.name));
            }
        }
        wanted.sort_unstable();
        wanted.into_iter().map(|(_, _, still, unit)| WantedUnit { unit: unit.to_owned(), loops: !still }).collect()
    }
}

fn is_agent(options: &AuditOptions, unit: &str) -> bool {
    options.agent_units.iter().any(|pattern| glob_matches(pattern, unit))
}

/// Whether it failed or was restarted by systemd.
fn loops(unit: &Unit) -> bool {
    restarts(unit) || unit.active_state == "failed"
}

fn restarts(unit: &Unit) -> bool {
    unit.sub_state.starts_with("auto-restart") || unit.restarts.is_some_and(|n| n > 0)
}

/// The root of the node behind this bus: `/proc/77/root` for `unix:path=/proc/77/root/run/dbus/system_bus_socket`. Other
/// addresses do not reveal it.
fn root_of_bus(root: &Root, bus: Option<&str>) -> Root {
    let from_environment = || std::env::var("DBUS_SYSTEM_BUS_ADDRESS").ok().filter(|_| root.is_live());
    let address = bus.map(str::to_owned).or_else(from_environment);
    match address.as_deref().and_then(prefix_of_address) {
        Some(prefix) => Root::at(prefix),
        None => root.clone(),
    }
}

fn prefix_of_address(address: &str) -> Option<PathBuf> {
    let first = address.split(';').map(str::trim).find(|a| !a.is_empty())?;
    let path = first.strip_prefix("unix:")?.split(',').find_map(|pair| pair.strip_prefix("path="))?;
    let path = percent_decoded(path)?;
    let starts = ["/var/run/dbus/", "/run/dbus/", "/var/run/systemd/", "/run/systemd/"];
    // /var/run first, as it contains /run.
    let prefix = starts.iter().find_map(|start| path.find(start).map(|at| &path[..at]))?;
    (prefix.starts_with('/') && prefix.len() > 1).then(|| PathBuf::from(prefix))
}

/// D-Bus addresses escape bytes as `%41` (D-Bus specification, "Server Addresses").
fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        if *first == b'%' {
            let digits = std::str::from_utf8(after.get(..2)?).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = &after[2..];
        } else {
            bytes.push(*first);
            rest = after;
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
#[path = "audit_host_tests.rs"]
mod host_tests;
#[cfg(test)]
#[path = "audit_tests.rs"]
mod tests;
