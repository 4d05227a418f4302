//! The audit of agents is looked up by a thread of its own: unit files, packages, the journal, containers and sockets are read
//! from disks that may be slow, and by a program that may hang. The watch does not wait for them.

use crate::journal::{JournalReader, MAX_UNITS, Wanted};
use crate::root::{Root, now};
use crate::tree::Tree;
use crate::unit_sockets::Running;
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

/// A thread that hangs is not asked for ever more.
const MAX_PENDING: usize = 100;

/// What to look at.
#[derive(Debug)]
enum Ask {
    /// Only what changed, but for the first time.
    Files,
    /// All of it again.
    FilesAnew,
    Containers,
    Sockets,
    /// What systemd said of units since; their logs and sockets are looked at when they are first heard of.
    Units(Vec<Unit>),
    Journal,
}

impl Ask {
    /// Who is blind if there is no answer, and what is unknown then.
    fn about(&self) -> (&'static str, &'static str) {
        match self {
            Ask::Files | Ask::FilesAnew => (probe::UNIT_FILES, "what is installed to run, and what agents need"),
            Ask::Containers => (probe::CONTAINERS, "which containers restart again and again"),
            Ask::Sockets => (probe::UNIT_SOCKETS, "which connections agents have"),
            Ask::Units(_) | Ask::Journal => {
                (probe::JOURNAL, "what units say in their logs, and when systemd restarted them")
            }
        }
    }
}

pub struct Audit {
    asks: Sender<Ask>,
    answers: Receiver<Evidence>,
    /// What was asked and not answered yet, in order.
    pending: VecDeque<(&'static str, &'static str)>,
    files_asked: Instant,
    containers_asked: Instant,
}

impl Audit {
    /// Starts with the files and the containers.
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
        // Without a thread nobody answers, and the end of the watch says so.
        let _ = std::thread::Builder::new().name("audit".to_owned()).spawn(work);
        let (files_asked, containers_asked) = (Instant::now(), Instant::now());
        let mut audit = Audit { asks, answers, pending: VecDeque::new(), files_asked, containers_asked };
        audit.ask(Ask::Files);
        audit.ask(Ask::Containers);
        audit
    }

    /// All is read once more. What units log and which sockets they have follows when systemd has named the units again.
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
        // If the thread is gone, the question stays unanswered and is told at the end.
        let _ = self.asks.send(ask);
    }

    /// Hands on what systemd has just said of units, asks for what is due, and appends what was answered.
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

    /// The last look at what changes. What is not there within `wait` is told as unseen.
    pub fn finish(&mut self, wait: Duration, evidence: &mut Evidence) {
        self.note_units(evidence);
        self.ask(Ask::Containers);
        self.ask(Ask::Sockets);
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
            let why = format!("it was not read within {:.1} s after the watch", wait.as_secs_f64());
            evidence.unseen(probe, what, why, "watch for longer, or look again: the disk may be slow");
        }
    }
}

/// The thread's own.
struct Auditor {
    /// Where processes and cgroups are looked at.
    root: Root,
    /// Where the files of the node are whose systemd is asked.
    files: Root,
    options: AuditOptions,
    journal: JournalReader,
    /// What systemd said last, by name.
    units: BTreeMap<String, Unit>,
    /// What was looked at in the journal.
    looked_at: BTreeSet<Wanted>,
    /// Unit files as they were read last, before packages were named.
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
        // Opened anew each time: the node may have moved to another root, as from initrd.
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
            Ask::Journal => {
                let wanted = self.wanted();
                self.journal.look(&tree, &wanted, evidence);
            }
            Ask::Units(units) => {
                let first = self.units.is_empty();
                units.into_iter().for_each(|unit| self.note(unit));
                let mut wanted = self.wanted();
                wanted.retain(|w| !self.looked_at.contains(w));
                // Those beyond what one look takes come with the next.
                self.looked_at.extend(wanted.iter().take(MAX_UNITS).cloned());
                self.journal.look(&tree, &wanted, evidence);
                if first {
                    self.look_at_sockets(evidence);
                }
            }
        }
    }

    /// A look that did not ask for a unit's properties does not make us forget them.
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
        let running: Vec<Running> =
            running.filter_map(|u| Some(Running { unit: u.name.clone(), cgroup: u.cgroup.clone()? })).collect();
        unit_sockets::look(&self.root, &running, now(), evidence);
    }

    /// Units whose log is worth reading: first those that loop, known agents before others.
    fn wanted(&self) -> Vec<Wanted> {
        let enabled = |unit: &Unit| {
            let word = unit.unit_file_state.as_deref().and_then(Enablement::of_word);
            let on_disk = || self.unit_files.iter().flatten().find(|f| f.name == unit.name).map(|f| f.enablement);
            matches!(word.or_else(on_disk), Some(Enablement::Enabled | Enablement::EnabledRuntime))
        };
        // What restarts comes before agents, and what merely failed comes last.
        let mut wanted: Vec<(bool, bool, bool, &str)> = Vec::new();
        for unit in self.units.values().filter(|u| u.name.ends_with(".service")) {
            let agent = is_agent(&self.options, &unit.name);
            let runs = matches!(unit.active_state.as_str(), "active" | "activating" | "reloading" | "failed");
            if loops(unit) || (agent && (runs || enabled(unit))) {
                wanted.push((!restarts(unit), !agent, !loops(unit), &unit.name));
            }
        }
        wanted.sort_unstable();
        wanted.into_iter().map(|(_, _, still, unit)| Wanted { unit: unit.to_owned(), loops: !still }).collect()
    }
}

fn is_agent(options: &AuditOptions, unit: &str) -> bool {
    options.agent_units.iter().any(|pattern| glob_matches(pattern, unit))
}

/// Whether it was seen to fail or to be started again by systemd.
fn loops(unit: &Unit) -> bool {
    restarts(unit) || unit.active_state == "failed"
}

fn restarts(unit: &Unit) -> bool {
    unit.sub_state.starts_with("auto-restart") || unit.restarts.is_some_and(|n| n > 0)
}

/// The node whose systemd answers on this bus: `/proc/77/root` of `unix:path=/proc/77/root/run/dbus/system_bus_socket`.
/// A bus elsewhere says nothing of its node's files.
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
    // The longer one wins where both begin: /var/run is /run.
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
