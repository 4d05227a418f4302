//! Interrupts per core (/proc/interrupts), including TLB shootdowns and rescheduling.
//!
//! With 192 cores and 600 lines the file has 1.3 MB, nearly all zeros, so most series are never recorded.

use std::collections::{HashMap, HashSet};

use coroner_evidence::{Evidence, Source, Time, probe};

use crate::counter_file::{CoreNames, CounterFile, Words, core_number, decimal};
use crate::root::{ParseError, Root};

const INTERRUPTS: &str = "/proc/interrupts";

/// Reads /proc/interrupts. Only changes are recorded; a count that changes for the first time is preceded by its previous value,
/// so that the difference is right.
#[derive(Debug)]
pub struct InterruptReader {
    file: CounterFile,
    names: CoreNames,
    now: Table,
    before: Option<(Time, Table)>,
    /// Series that were already recorded, by core.
    told: HashMap<u32, HashSet<String>>,
}

impl InterruptReader {
    pub fn new(root: &Root) -> InterruptReader {
        InterruptReader {
            file: CounterFile::new(root, INTERRUPTS),
            names: CoreNames::default(),
            now: Table::default(),
            before: None,
            told: HashMap::new(),
        }
    }

    /// The table of the last look.
    pub fn table(&self) -> Option<&Table> {
        self.before.as_ref().map(|(_, table)| table)
    }

    pub fn look(&mut self, at: Time, evidence: &mut Evidence) {
        const WHAT: &str = "interrupts and TLB shootdowns per core";
        let Some(text) = self.file.look(probe::INTERRUPTS, WHAT, evidence) else { return };
        self.now.read(text);
        if let Some(error) = &self.now.bad {
            evidence.unseen(probe::INTERRUPTS, WHAT, format!("{INTERRUPTS}: {error}"), "please report this file");
        }
        if self.now.cores.is_empty() {
            return;
        }
        if let Some((then, before)) = &self.before {
            write_moved(before, *then, &self.now, at, &mut self.names, &mut self.told, evidence);
        }
        let spare = self.before.take().map(|(_, table)| table).unwrap_or_default();
        self.before = Some((at, std::mem::replace(&mut self.now, spare)));
    }
}

/// Records what changed since the last look, with the previous value if it is the first change. With 192 cores the table has a
/// hundred thousand cells, few of which ever change; the others are not worth the memory.
fn write_moved(
    before: &Table,
    then: Time,
    now: &Table,
    at: Time,
    names: &mut CoreNames,
    told: &mut HashMap<u32, HashSet<String>>,
    evidence: &mut Evidence,
) {
    let column_before: Vec<Option<usize>> =
        now.cores.iter().map(|core| before.cores.iter().position(|c| c == core)).collect();
    let mut by_label: Option<HashMap<&str, &Line>> = None;
    let mut hint = 0;
    for line in &now.lines {
        // Lines keep their order; one that appears or disappears shifts those after it by one.
        let line_before = match before.lines.get(hint) {
            Some(candidate) if candidate.label == line.label => Some(candidate),
            _ => {
                let by_label =
                    by_label.get_or_insert_with(|| before.lines.iter().map(|l| (l.label.as_str(), l)).collect());
                by_label.get(line.label.as_str()).copied()
            }
        };
        if let Some(found) = line_before {
            hint = found.position + 1;
        }
        let counts_before = line_before.map(|l| before.counts(l));
        for ((&core, &count), column) in now.cores.iter().zip(now.counts(line)).zip(&column_before) {
            let earlier = match (counts_before, column) {
                // The core was offline, so its count was not shown.
                (_, None) => None,
                // A line that did not exist is an interrupt that was unused and had never fired (show_interrupts in
                // kernel/irq/proc.c skips those).
                (None, Some(_)) => Some(0),
                (Some(counts), Some(column)) => counts.get(*column).copied(),
            };
            if earlier == Some(count) || (earlier.is_none() && count == 0) {
                continue;
            }
            let subject = names.get(core);
            let told = told.entry(core).or_default();
            if !told.contains(line.label.as_str()) {
                told.insert(line.label.clone());
                if let Some(earlier) = earlier {
                    evidence.counters.push(Source::Interrupts, subject, &line.label, then, earlier);
                }
            }
            evidence.counters.push(Source::Interrupts, subject, &line.label, at, count);
        }
    }
}

/// A table with one column per core: /proc/interrupts, /proc/softirqs.
#[derive(Debug, Clone, Default)]
pub struct Table {
    /// The columns; core numbers may have gaps.
    pub cores: Vec<u32>,
    pub lines: Vec<Line>,
    /// The first parse error, if any.
    pub bad: Option<ParseError>,
    counts: Vec<u64>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Line {
    /// The interrupt's number or name: `38`, `TLB`, `NET_RX`.
    pub label: String,
    /// The text after the counts: `PCI-MSIX-0000:00:03.0   1-edge      virtio2-input.0`.
    pub about: String,
    position: usize,
    /// The range of its counts. Empty for lines that are not per core (`ERR`, `MIS`).
    counts: std::ops::Range<usize>,
}

impl Line {
    /// The number, if this is a device interrupt.
    pub fn irq(&self) -> Option<u32> {
        self.label.parse().ok()
    }

    /// The handlers of the interrupt: `virtio2-input.0`; a shared one has several.
    pub fn handlers(&self) -> impl Iterator<Item = &str> {
        let last = self.about.rsplit("  ").next().unwrap_or_default();
        last.split(", ").map(str::trim).filter(|name| !name.is_empty())
    }
}

/// Reads a table such as /proc/interrupts.
pub fn parse(text: &[u8]) -> Table {
    let mut table = Table::default();
    table.read(text);
    table
}

impl Table {
    /// The counts of a line, one per column of [`Table::cores`]; empty if the line is not per core.
    pub fn counts(&self, line: &Line) -> &[u64] {
        self.counts.get(line.counts.clone()).unwrap_or_default()
    }

    /// The line of a device interrupt.
    pub fn irq(&self, number: u32) -> Option<&Line> {
        self.lines.iter().find(|line| line.irq() == Some(number))
    }

    /// Replaces the content and reuses the memory.
    pub(crate) fn read(&mut self, text: &[u8]) {
        self.cores.clear();
        self.counts.clear();
        self.bad = None;
        let mut used = 0;
        let (header, mut rest) = split_line(text);
        let mut words = Words(header);
        while let Some(word) = words.word() {
            match core_number(word) {
                Some(core) => self.cores.push(core),
                None => break,
            }
        }
        if self.cores.is_empty() {
            self.bad = Some(ParseError::new(1, "CPU0, CPU1 … over the columns"));
            rest = &[];
        }
        let mut number = 1;
        while !rest.is_empty() {
            number += 1;
            match self.read_line(rest, used) {
                Ok(after) => {
                    rest = after;
                    used += 1;
                }
                Err(after) => {
                    if rest.len() > after.len() + 1 {
                        self.bad.get_or_insert_with(|| ParseError::new(number, "a label and a colon"));
                    }
                    rest = after;
                }
            }
        }
        self.lines.truncate(used);
    }

    /// Reads the first line of `text` into `lines[position]` and returns the text after it.
    fn read_line<'a>(&mut self, text: &'a [u8], position: usize) -> Result<&'a [u8], &'a [u8]> {
        /// A zero as the kernel pads it. Most counts are zero.
        const ZERO: &[u8] = b"          0";
        let indent = text.iter().take_while(|&&b| b == b' ').count();
        let length = text[indent..].iter().take_while(|b| !matches!(b, b':' | b' ' | b'\n')).count();
        if length == 0 || text.get(indent + length) != Some(&b':') {
            return Err(split_line(text).1);
        }
        let label = &text[indent..indent + length];
        let mut rest = &text[indent + length + 1..];
        let first = self.counts.len();
        while self.counts.len() - first < self.cores.len() {
            if rest.starts_with(ZERO) && matches!(rest.get(ZERO.len()), None | Some(b' ' | b'\n')) {
                self.counts.push(0);
                rest = &rest[ZERO.len()..];
                continue;
            }
            let blanks = rest.iter().take_while(|&&b| b == b' ').count();
            let length = rest[blanks..].iter().take_while(|b| !matches!(b, b' ' | b'\n')).count();
            match decimal(&rest[blanks..blanks + length]) {
                Some(count) => self.counts.push(count),
                None => break,
            }
            rest = &rest[blanks + length..];
        }
        let (about, after) = split_line(rest);
        let about = about.trim_ascii();
        // Counts do not match the columns: a machine-wide line (ERR, MIS), or a core went online or offline while the kernel
        // generated the file. Then the counts cannot be attributed.
        let one_per_core = self.counts.len() - first == self.cores.len() && Words(about).number().is_none();
        if !one_per_core {
            self.counts.truncate(first);
        }
        if self.lines.len() == position {
            self.lines.push(Line::default());
        }
        let line = &mut self.lines[position];
        set(&mut line.label, label);
        set(&mut line.about, about);
        line.position = position;
        line.counts = first..self.counts.len();
        Ok(after)
    }
}

/// Writes `bytes` into `text`, which usually has them already.
fn set(text: &mut String, bytes: &[u8]) {
    if text.as_bytes() != bytes {
        text.clear();
        text.push_str(&String::from_utf8_lossy(bytes));
    }
}

/// The first line without its newline, and the rest.
fn split_line(text: &[u8]) -> (&[u8], &[u8]) {
    match text.iter().position(|&b| b == b'\n') {
        Some(end) => (&text[..end], &text[end + 1..]),
        None => (text, &[]),
    }
}

#[cfg(test)]
mod tests;
