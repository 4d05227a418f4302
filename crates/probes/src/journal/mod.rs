//! The journal: messages of units, and of systemd about their restarts.
//!
//! Only units that need a closer look are queried: messages may contain secrets, and a journal may have gigabytes. Files last
//! written hours ago are not opened at all.

mod entry;
mod journalctl;
mod secrets;

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use coroner_evidence::Order as _;
use coroner_evidence::{Evidence, UnitLogLine, Wall, probe};

use crate::tree::{FileKind, Tree, is_absent};
use entry::RESTART_SCHEDULED;

/// For all journalctl calls of one look together.
const LIMIT: Duration = Duration::from_secs(2);
pub const MAX_UNITS: usize = 20;
const MAX_MESSAGES: usize = 200;
const MAX_RESTARTS: usize = 500;
/// How far the first look goes back.
const BACK: Duration = Duration::from_secs(6 * 3600);
/// A journal has a few dozen files; each has at most an eighth of the total, 128 MB.
const MAX_FILES: usize = 200;

const WHAT: &str = "unit logs, and when systemd restarted units";

/// A unit whose log is wanted.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct WantedUnit {
    pub unit: String,
    /// It was seen restarting or failed: all its restarts of the last hours are wanted.
    pub loops: bool,
}

/// Reads the journal repeatedly; entries are reported once.
#[derive(Debug)]
pub struct JournalReader {
    program: Option<PathBuf>,
    limit: Duration,
    /// The newest reported message and restart of each unit, in ns since 1970.
    told: HashMap<String, (Wall, Wall)>,
}

impl Default for JournalReader {
    fn default() -> JournalReader {
        JournalReader { program: journalctl::program(), limit: LIMIT, told: HashMap::new() }
    }
}

/// The journal files that were found.
#[derive(Debug, Default)]
struct Files {
    paths: Vec<PathBuf>,
    /// Why some could not be read.
    denied: Option<String>,
}

impl JournalReader {
    /// The latest messages and restarts of these units, the most interesting first.
    pub fn look(&mut self, tree: &Tree, units: &[WantedUnit], evidence: &mut Evidence) {
        if units.is_empty() {
            return;
        }
        let files = find_files(tree, SystemTime::now() - BACK);
        if let Some(why) = &files.denied {
            evidence.unseen(
                probe::JOURNAL,
                WHAT,
                why.clone(),
                "run as root, or as a member of the group systemd-journal",
            );
        }
        if files.paths.is_empty() {
            if files.denied.is_none() {
                let why = "neither /var/log/journal nor /run/log/journal has entries from the last hours";
                evidence.unseen(probe::JOURNAL, WHAT, why, "run systemd-journald; other loggers are not read");
            }
            return;
        }
        let Some(program) = self.program.clone() else {
            let why = "journalctl is not installed where coroner runs";
            return evidence.unseen(
                probe::JOURNAL,
                WHAT,
                why,
                "install systemd's journalctl, or run on the node itself",
            );
        };
        if units.len() > MAX_UNITS {
            evidence.unseen(
                probe::JOURNAL,
                format!("logs of {} more units", units.len() - MAX_UNITS),
                format!("only the logs of {MAX_UNITS} units are read"),
                "journalctl --unit=NAME",
            );
        }
        let units = &units[..units.len().min(MAX_UNITS)];
        self.read(&Journal { program: &program, files: &files.paths }, units, evidence);
    }

    fn read(&mut self, journal: &Journal, wanted: &[WantedUnit], evidence: &mut Evidence) {
        let deadline = Instant::now() + self.limit;
        let of = |loops: bool| wanted.iter().filter(move |w| w.loops == loops).map(|w| w.unit.clone());
        let (looping, others): (Vec<String>, Vec<String>) = (of(true).collect(), of(false).collect());
        let all: Vec<String> = looping.iter().chain(&others).cloned().collect();
        let query =
            |kind, units, most| Query { kind, units, since: self.since(units), most, order: Order::NewestFirst };
        // Run from last to first. A unit that restarts ten times a second would crowd out the others, so each looping unit gets
        // its own query.
        let mut queries: Vec<Query> = Vec::new();
        if !others.is_empty() {
            queries.push(query(Of::Restarts, &others, MAX_RESTARTS));
        }
        queries.extend(looping.chunks(1).map(|unit| query(Of::Restarts, unit, MAX_RESTARTS)));
        queries.push(query(Of::Messages, &all, MAX_MESSAGES * all.len()));
        let mut lines: Vec<UnitLogLine> = Vec::new();
        let mut kept: HashMap<(String, Of), usize> = HashMap::new();
        let mut cut: Option<&str> = None;
        while let Some(query) = queries.pop() {
            if Instant::now() >= deadline {
                cut = Some("time limit reached");
                break;
            }
            let said = match query.ask(journal, deadline) {
                Ok(said) => said,
                Err(e) => {
                    let why = format!("{}: {e}", journal.program.display());
                    return evidence.unseen(probe::JOURNAL, WHAT, why, "check that journalctl works");
                }
            };
            if said.failed && said.output.is_empty() {
                let why = said.complaint.unwrap_or_else(|| "journalctl failed without an error message".to_owned());
                return evidence.unseen(probe::JOURNAL, WHAT, why, "run `journalctl --verify`");
            }
            let entries: Vec<UnitLogLine> =
                said.output.split(|b| *b == b'\n').filter(|line| !line.is_empty()).filter_map(entry::parse).collect();
            let full = entries.len() >= query.most;
            if query.order == Order::OldestFirst {
                let oldest = entries.into_iter().find(|e| e.restart.is_some() && query.units.contains(&e.unit));
                lines.extend(oldest.filter(|e| !self.is_told(&e.unit, Of::Restarts, e.at)));
                continue;
            }
            let most = match query.kind {
                Of::Messages => MAX_MESSAGES,
                Of::Restarts => MAX_RESTARTS,
            };
            // Newest first.
            for entry in entries {
                if !query.units.contains(&entry.unit) || (query.kind == Of::Restarts && entry.restart.is_none()) {
                    continue;
                }
                let count = kept.entry((entry.unit.clone(), query.kind)).or_default();
                if *count < most && !self.is_told(&entry.unit, query.kind, entry.at) {
                    *count += 1;
                    lines.push(entry);
                }
            }
            cut = cut.or(said.cut);
            if full && query.kind == Of::Restarts && query.units.len() == 1 {
                // Finds out when the loop began.
                queries.push(Query { most: 1, order: Order::OldestFirst, ..query });
            }
            if full && query.units.len() > 1 {
                // A chatty unit crowded out the others: query those one by one.
                let silent = query.units.chunks(1).filter(|u| !kept.contains_key(&(u[0].clone(), query.kind)));
                queries.extend(silent.map(|units| Query { units, most, ..query }));
            }
        }
        if let Some(cut) = cut {
            let why = format!("journalctl was stopped: {cut}");
            evidence.unseen(probe::JOURNAL, "some unit messages", why, "journalctl --unit=NAME");
        }
        self.note(&lines);
        lines.order_by_key(|line| line.at);
        evidence.unit_log.extend(lines);
    }

    /// The time from which these units' entries were not yet reported, at most some hours ago.
    fn since(&self, units: &[String]) -> Wall {
        let told =
            units.iter().map(|u| self.told.get(u).map_or(Wall(0), |(messages, restarts)| *messages.min(restarts)));
        told.min().unwrap_or_default().max(hours_ago())
    }

    fn is_told(&self, unit: &str, kind: Of, at: Wall) -> bool {
        let (messages, restarts) = self.told.get(unit).copied().unwrap_or_default();
        at <= if kind == Of::Messages { messages } else { restarts }
    }

    fn note(&mut self, lines: &[UnitLogLine]) {
        for line in lines {
            let (messages, restarts) = self.told.entry(line.unit.clone()).or_default();
            let told = if line.restart.is_some() { restarts } else { messages };
            *told = line.at.max(*told);
        }
    }
}

struct Journal<'a> {
    program: &'a Path,
    files: &'a [PathBuf],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Of {
    /// From the unit's own processes.
    Messages,
    /// From systemd, about the unit.
    Restarts,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    NewestFirst,
    OldestFirst,
}

#[derive(Clone, Copy)]
struct Query<'a> {
    kind: Of,
    units: &'a [String],
    since: Wall,
    most: usize,
    order: Order,
}

impl Query<'_> {
    fn ask(&self, journal: &Journal, deadline: Instant) -> std::io::Result<journalctl::JournalctlOutput> {
        let mut arguments: Vec<String> =
            ["--output=json", "--no-pager", "--quiet", "--all"].into_iter().map(str::to_owned).collect();
        // `--lines` selects the newest in either order; for the oldest we stop reading early.
        if self.order == Order::NewestFirst {
            arguments.extend(["--reverse".to_owned(), format!("--lines={}", self.most)]);
        }
        arguments.push("--output-fields=MESSAGE,MESSAGE_ID,UNIT,N_RESTARTS,_PID,_SYSTEMD_UNIT".to_owned());
        arguments.push(format!("--since=@{}", self.since.0 / 1_000_000_000));
        arguments.extend(journal.files.iter().map(|file| format!("--file={}", file.display())));
        arguments.push("--".to_owned());
        // Matches on the same field are alternatives; matches on different fields must all hold.
        let field = match self.kind {
            Of::Messages => "_SYSTEMD_UNIT",
            Of::Restarts => {
                arguments.extend([format!("MESSAGE_ID={RESTART_SCHEDULED}"), "_PID=1".to_owned()]);
                "UNIT"
            }
        };
        arguments.extend(self.units.iter().map(|unit| format!("{field}={unit}")));
        journalctl::run(journal.program, &arguments, self.most, deadline)
    }
}

fn hours_ago() -> Wall {
    Wall::from(SystemTime::now()) - BACK
}

/// System journal files (user journals have no system services) that were written to since then.
/// journald keeps them in /var/log/journal/MACHINE-ID if that directory exists, else in /run/log/journal/MACHINE-ID.
fn find_files(tree: &Tree, since: SystemTime) -> Files {
    let mut found = Files::default();
    // A set, so that a link from one to the other is not read twice.
    let mut paths: BTreeSet<PathBuf> = BTreeSet::new();
    for top in ["/var/log/journal", "/run/log/journal"] {
        let machines = match tree.list(top) {
            Ok(machines) => machines,
            Err(e) if is_absent(&e) => continue,
            Err(e) => {
                found.denied = Some(format!("{top}: {e}"));
                continue;
            }
        };
        for machine in machines.iter().filter(|m| m.kind == FileKind::Directory && is_machine_id(&m.name)) {
            let directory = format!("{top}/{}", machine.name);
            let entries = tree.list(&directory).unwrap_or_else(|e| {
                found.denied = Some(format!("{directory}: {e}"));
                Vec::new()
            });
            // `system.journal`, `system@ID-SEQ-TIME.journal`, and with `~` those that were not closed cleanly.
            for entry in entries.iter().filter(|e| e.kind == FileKind::File && is_system_journal(&e.name)) {
                let path = format!("{directory}/{}", entry.name);
                match tree.find(&path).and_then(|place| Ok((tree.open_place(&place)?.metadata()?, place))) {
                    // journald writes through a mapping, but still updates the file's mtime.
                    Ok((metadata, place))
                        if entry.name == "system.journal" || metadata.modified().is_ok_and(|at| at >= since) =>
                    {
                        paths.insert(tree.root().path(&place.path));
                    }
                    Ok(_) => {}
                    Err(e) => found.denied = Some(format!("{path}: {e}")),
                }
            }
        }
    }
    found.paths = paths.into_iter().take(MAX_FILES).collect();
    found
}

fn is_machine_id(name: &str) -> bool {
    name.len() == 32 && name.bytes().all(|b| b.is_ascii_hexdigit())
}

fn is_system_journal(name: &str) -> bool {
    let stem = name.strip_suffix(".journal").or_else(|| name.strip_suffix(".journal~"));
    stem.is_some_and(|stem| stem == "system" || stem.starts_with("system@"))
}

#[cfg(test)]
mod tests;
