//! CPU profiles: which file, which samples of it, and reading them.

pub mod copy;
pub mod flame;
pub mod heatmap;
pub mod kept;
pub mod monopolies;
pub mod select;
pub mod span;
pub mod words;

use anyhow::bail;
use coroner_evidence::Wall;
use coroner_profile::import::{self as reader, Format, ImportError, ImportReport, Imported, Picked, Stacks};
use coroner_profile::model::{Clock, Dictionary, EventId, Sample, Task};
use coroner_profile::symbols::Symbols;
use coroner_profile::views::Clocks;
use kept::KeptProfile;
use select::{Select, Selection};
use std::cmp::Reverse;
use std::ops::{ControlFlow, Range};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What to read.
#[derive(Debug, Clone, Default)]
pub struct ProfileSource {
    /// `-` is standard input.
    pub file: PathBuf,
    pub reading: Reading,
    /// The samples of the file, if they are in memory already.
    pub kept: Option<Arc<KeptProfile>>,
    /// Which part of a recording is read.
    pub picked: Picked,
    /// Set when nobody wants the answer any more.
    pub stop: Option<Arc<AtomicBool>>,
    /// Bytes of the file read so far, for a progress display.
    pub bytes_read: Arc<AtomicU64>,
}

/// How it is read.
#[derive(Debug, Clone, Default)]
pub struct Reading {
    /// The input format; `None`: detect it.
    pub input: Option<Format>,
    /// Take function names from the files below this directory; `None`: from this machine's.
    pub symbols: Option<PathBuf>,
    pub no_symbols: bool,
}

/// What one pass over a profile found.
pub struct ReadProfile {
    pub file: PathBuf,
    pub format: Format,
    pub names: Arc<Dictionary>,
    pub report: ImportReport,
    /// Why some functions have no names.
    pub unnamed: Vec<String>,
    /// The time of the file's first sample, even if that part was not read.
    pub first: Option<u64>,
    /// The first and the last time of all samples that were read.
    pub span: Option<(u64, u64)>,
    pub selected: u64,
    /// The cores in the file, sorted.
    pub cores: Vec<u32>,
}

impl ReadProfile {
    /// Wall-clock time of a sample, if the file knows it.
    pub fn wall(&self, time: u64) -> Option<Wall> {
        self.names.clock?.wall_of(time)
    }

    /// Seconds since the first sample.
    pub fn seconds(&self, time: u64) -> f64 {
        let first = self.first.unwrap_or(0);
        (time as f64 - first as f64) / 1e9
    }

    /// Adds what another part of the same source yielded; of its names only the events.
    pub fn absorb(&mut self, other: ReadProfile) {
        self.report.append(other.report);
        self.selected += other.selected;
        self.cores.extend(other.cores);
        self.cores.sort_unstable();
        self.cores.dedup();
        for end in [other.span.map(|(first, _)| first), other.span.map(|(_, last)| last)] {
            widen(&mut self.span, end);
        }
        self.unnamed.extend(other.unnamed);
        self.unnamed.sort();
        self.unnamed.dedup();
        let names = Arc::make_mut(&mut self.names);
        for event in &other.names.events {
            let id = names.intern_event(&event.name);
            if let Some(known) = names.events.get_mut(usize::from(id.0)) {
                known.samples += event.samples;
                known.weight = known.weight.saturating_add(event.weight);
            }
        }
    }

    /// The event to show if only one can be: the most clock-like, and among those the one with most samples.
    pub fn main_event(&self, of: &[(EventId, u64)]) -> Option<EventId> {
        let mut clocks = Clocks::default();
        let best = of.iter().max_by_key(|(id, samples)| (clocks.of(&self.names, *id), *samples, Reverse(*id)));
        best.map(|(id, _)| *id)
    }

    /// Fails if no sample says which thread ran.
    pub fn must_have_tasks(&self) -> anyhow::Result<()> {
        let names = &self.names;
        let told = |task: Task| task.tid.is_some() || task.pid.is_some() || !names.strings.get(task.comm).is_empty();
        if !names.tasks().any(|(_, task)| told(task)) {
            bail!(
                "{}: its samples do not say which thread ran, so owners of cores are unknown; print the text with perf script -F \
                 +comm,tid",
                self.file.display()
            );
        }
        Ok(())
    }

    /// Fails if no sample says on which core it was taken.
    pub fn must_have_cores(&self) -> anyhow::Result<()> {
        if self.cores.is_empty() {
            let how = match self.format {
                Format::PerfScript => "print the text with perf script -F +cpu",
                _ => "record with perf record -a, or --sample-cpu",
            };
            bail!("{}: its samples do not say on which core they were taken; {how}", self.file.display());
        }
        Ok(())
    }

    /// The process, if the file has only one: others on its cores were not recorded.
    pub fn only_process(&self) -> Option<u32> {
        let mut pids = self.names.tasks().map(|(_, task)| task.pid.or(task.tid));
        let first = pids.next()??;
        pids.all(|pid| pid == Some(first)).then_some(first)
    }
}

pub fn symbols(source: &ProfileSource) -> Symbols {
    match &source.reading.symbols {
        _ if source.reading.no_symbols => Symbols::none(),
        Some(root) => Symbols::below(root),
        None => Symbols::of_this_machine(),
    }
}

/// Reads a profile and passes the selected samples to `view`. It is an error if none is selected: an empty answer would look
/// like good news.
pub fn read(
    source: &ProfileSource,
    selection: &Selection,
    view: &mut dyn FnMut(&Dictionary, &Sample),
) -> anyhow::Result<ReadProfile> {
    read_with(source, selection, Stacks::All, view)
}

/// The same, with only the part of stacks that the view needs. A selection by function needs all.
pub fn read_with(
    source: &ProfileSource,
    selection: &Selection,
    stacks: Stacks,
    view: &mut dyn FnMut(&Dictionary, &Sample),
) -> anyhow::Result<ReadProfile> {
    let stacks = if selection.symbol.is_some() { Stacks::All } else { stacks };
    let read = read_until(source, selection, stacks, &mut |names, sample| {
        view(names, sample);
        ControlFlow::Continue(())
    })?;
    if read.selected == 0 {
        bail!("{}", select::nothing(&read, selection));
    }
    Ok(read)
}

/// The same, but it is no error if nothing is selected.
pub fn read_any(
    source: &ProfileSource,
    selection: &Selection,
    view: &mut dyn FnMut(&Dictionary, &Sample),
) -> anyhow::Result<ReadProfile> {
    read_until(source, selection, Stacks::All, &mut |names, sample| {
        view(names, sample);
        ControlFlow::Continue(())
    })
}

/// The same, until `view` has enough.
fn read_until(
    source: &ProfileSource,
    selection: &Selection,
    stacks: Stacks,
    view: &mut dyn FnMut(&Dictionary, &Sample) -> ControlFlow<()>,
) -> anyhow::Result<ReadProfile> {
    if let Some(root) = source.reading.symbols.as_deref().filter(|root| !root.is_dir()) {
        bail!("--symbols {}: no such directory", root.display());
    }
    if let Some(kept) = &source.kept {
        return kept.read(source, selection, view);
    }
    let mut symbols = symbols(source);
    let mut select = Select::new(selection);
    let mut patience = Patience::of(source);
    let (mut span, mut selected) = (None, 0u64);
    let mut cores = SeenCores::default();
    let range = stored_range(source, selection)?;
    // Times count from the file's first sample, even if reading begins after it.
    if let Some((first, _)) = range {
        select.begins_at(first);
    }
    let stored_first = range.as_ref().map(|(first, _)| *first);
    let range = range.and_then(|(_, range)| range);
    let picked = source.picked;
    let options =
        reader::ImportOptions { format: source.reading.input, read: Some(&source.bytes_read), range, stacks, picked };
    let imported = reader::file(&source.file, &options, &mut symbols, &mut |names, sample| {
        patience.lasts()?;
        widen(&mut span, sample.time);
        cores.see(sample.core);
        match select.has(names, &sample) {
            Some(true) => {
                selected += 1;
                view(names, &sample)
            }
            Some(false) => ControlFlow::Continue(()),
            None => ControlFlow::Break(()),
        }
    });
    let Imported { names, report, format } = imported.map_err(|error| told(&source.file, error))?;
    if let Some(why) = select.problem {
        bail!("{}: {why}", source.file.display());
    }
    patience.is_over()?;
    let unnamed = symbols.problems.clone();
    let first = stored_first.or(span.map(|(first, _)| first));
    let names = Arc::new(names);
    Ok(ReadProfile {
        file: source.file.clone(),
        format,
        names,
        report,
        unnamed,
        first,
        span,
        selected,
        cores: cores.list,
    })
}

/// The cores of samples, sorted. Most samples are on a core seen before, which is checked fast.
#[derive(Default)]
struct SeenCores {
    list: Vec<u32>,
    is_seen: Vec<bool>,
}

impl SeenCores {
    /// Larger core numbers are looked up in the list: a file could claim any number.
    const DIRECT: usize = 1 << 14;

    fn see(&mut self, core: Option<u32>) {
        let Some(core) = core else { return };
        if self.is_seen.get(core as usize) == Some(&true) {
            return;
        }
        if let Err(at) = self.list.binary_search(&core) {
            self.list.insert(at, core);
        }
        if (core as usize) < Self::DIRECT {
            self.is_seen.resize(self.is_seen.len().max(core as usize + 1), false);
            self.is_seen[core as usize] = true;
        }
    }
}

/// Checks now and then whether somebody still wants the answer.
struct Patience<'a> {
    stop: Option<&'a AtomicBool>,
    samples: u32,
}

impl<'a> Patience<'a> {
    fn of(source: &'a ProfileSource) -> Patience<'a> {
        Patience { stop: source.stop.as_deref(), samples: 0 }
    }

    fn lasts(&mut self) -> ControlFlow<()> {
        self.samples = self.samples.wrapping_add(1);
        let asks = self.samples.is_multiple_of(4096);
        if asks && self.stop.is_some_and(|stop| stop.load(Ordering::Relaxed)) {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }

    fn is_over(&self) -> anyhow::Result<()> {
        match self.stop.is_some_and(|stop| stop.load(Ordering::Relaxed)) {
            true => bail!("cancelled: the client disconnected"),
            false => Ok(()),
        }
    }
}

/// From a recording's index: the time of its first sample, and the part that must be read.
type Stored = (u64, Option<Range<u64>>);

fn stored_range(source: &ProfileSource, selection: &Selection) -> anyhow::Result<Option<Stored>> {
    if !selection.has_times() || format_of(source)? != Some(Format::Recording) {
        return Ok(None);
    }
    let Some(outline) = reader::outline(&source.file)? else { return Ok(None) };
    let clock = source.file.is_dir().then_some(Clock::WALL);
    Ok(Some((outline.first, select::bounds(selection, outline.first, clock))))
}

fn widen(span: &mut Option<(u64, u64)>, time: Option<u64>) {
    if let Some(time) = time {
        let (first, last) = span.get_or_insert((time, time));
        *first = time.min(*first);
        *last = time.max(*last);
    }
}

/// An import error that names the file, and what to do.
fn told(file: &Path, error: ImportError) -> anyhow::Error {
    match error {
        ImportError::Read(source) => anyhow::anyhow!("cannot read {}: {source}", file.display()),
        ImportError::NotThisFormat { expected } => {
            anyhow::anyhow!("{}: not a {expected} file; leave out --input to detect the format", file.display())
        }
        other => other.into(),
    }
}

/// Standard input, a pipe or a device: can be read only once, front to back.
pub fn is_stream(path: &Path) -> bool {
    path == Path::new("-") || std::fs::metadata(path).is_ok_and(|about| !about.is_file() && !about.is_dir())
}

/// The file's format: as the user says, or detected; `None` if the file can be read only once.
pub fn format_of(source: &ProfileSource) -> anyhow::Result<Option<Format>> {
    if let Some(format) = source.reading.input {
        return Ok(Some(format));
    }
    // Detecting it would consume what can be read only once.
    if is_stream(&source.file) {
        return Ok(None);
    }
    Ok(Some(reader::format_of(&source.file)?))
}
