//! The source shown: a file or directory, its parts on the axis, and what is cached.

use super::axis::{Axis, AxisTime, Clock};
use super::parallel;
use super::question::Range;
use anyhow::{Context, bail};
use coroner_evidence::recording::{self, Outline, segments};
use coroner_evidence::{Clocks, Evidence, Order, Time, Window};
use coroner_profile::import::Picked;
use coroner_source::moment::Moment;
use coroner_source::profile::ProfileSource;
use coroner_source::profile::kept::KeptProfile;
use coroner_source::profile::select::Selection;
use coroner_source::recorded::Query;
use coroner_source::{directory, recorded};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// The most samples of one file kept in memory: 20 to 28 bytes each.
pub const MOST_KEPT: usize = 10_000_000;
/// How many time ranges' evidence is cached: the page's next request mostly concerns the same one.
const MOST_EVIDENCE: usize = 2;
/// Maximal age of the listing of a growing directory.
const FRESH: Duration = Duration::from_secs(1);
/// Maximal age of the evidence of a recorder's newest minutes.
const FRESH_EVIDENCE: Duration = Duration::from_secs(5);
/// How much of a directory a command reads by default, in nanoseconds.
const OF_A_DIRECTORY: u64 = 600_000_000_000;
/// How many segments are read if there are too many samples to read all.
const MOST_SEGMENTS: u32 = 4;
/// Longer without a poll means that nothing was recorded.
pub const GAP: u64 = 5_000_000_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SourceKind {
    /// The directory of a running recorder.
    Recorder,
    Directory,
    Recording,
    Incident,
    Profile,
}

impl SourceKind {
    pub fn as_str(self) -> &'static str {
        match self {
            SourceKind::Recorder => "recorder",
            SourceKind::Directory => "directory",
            SourceKind::Recording => "recording",
            SourceKind::Incident => "incident",
            SourceKind::Profile => "profile",
        }
    }
}

/// Identifies a file and its version: a replacement at the same path differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Identity {
    device: u64,
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
}

impl Identity {
    fn of(path: &Path) -> std::io::Result<Identity> {
        let about = std::fs::metadata(path)?;
        let modified = (about.mtime(), about.mtime_nsec());
        Ok(Identity { device: about.dev(), inode: about.ino(), bytes: about.len(), modified })
    }

    fn is_same_file(&self, other: &Identity) -> bool {
        (self.device, self.inode) == (other.device, other.inode)
    }
}

/// One file, and where it lies on the axis.
#[derive(Debug, Clone)]
pub struct Part {
    pub path: PathBuf,
    pub outline: Arc<Outline>,
    identity: Identity,
    /// From its first poll or sample to its last.
    pub range: Range,
}

impl Part {
    fn of(path: &Path, axis: Axis) -> anyhow::Result<Option<Part>> {
        let identity = Identity::of(path).with_context(|| path.display().to_string())?;
        let outline = recording::outline(path)?;
        let Some(range) = range_of(&outline, axis) else { return Ok(None) };
        Ok(Some(Part { path: path.to_owned(), outline: Arc::new(outline), identity, range }))
    }

    pub fn bytes(&self) -> u64 {
        self.identity.bytes
    }

    /// Whether the outline is still current.
    fn is_current(&self) -> bool {
        let is_same = |now: Identity| match self.outline.about.sealed {
            true => now == self.identity,
            // Its writer continues; the outline stays valid.
            false => now.is_same_file(&self.identity),
        };
        Identity::of(&self.path).is_ok_and(is_same)
    }

    pub fn clocks(&self) -> Option<&Clocks> {
        self.outline.clocks.as_ref()
    }

    /// The part of `range` within it, on the clock of its evidence.
    pub fn window(&self, range: &Range, axis: Axis) -> Option<Window> {
        let (from, to) = (range.start.max(self.range.start), range.end.min(self.range.end));
        if from >= to {
            return None;
        }
        Some(Window { from: axis.time(from, self.clocks())?, to: axis.time(to, self.clocks())? })
    }

    /// Whether the same recorder wrote it right after `before`, without a gap between polls.
    pub fn goes_on_after(&self, before: &Part) -> bool {
        // One boot has one clock.
        let (Some(ours), Some(theirs)) = (self.outline.looks, before.outline.looks) else { return false };
        let is_same_boot = self.outline.boot_id.is_some() && self.outline.boot_id == before.outline.boot_id;
        is_same_boot && ours.from >= theirs.to && ours.from.since(theirs.to) <= recording::TOGETHER
    }

    /// Approximate number of its samples in `range`.
    pub fn samples_in(&self, range: &Range) -> u64 {
        let Some(samples) = &self.outline.samples else { return 0 };
        let length = self.range.end.since(self.range.start).max(1);
        let within = range.end.min(self.range.end).since(range.start.max(self.range.start));
        (u128::from(samples.count) * u128::from(within) / u128::from(length)) as u64
    }
}

/// From the first to just after the last of its polls and samples.
fn range_of(outline: &Outline, axis: Axis) -> Option<Range> {
    let looks = outline.looks.and_then(|looks| {
        let clocks = outline.clocks.as_ref();
        Some((axis.of_time(looks.from, clocks)?, axis.of_time(looks.to, clocks)?))
    });
    let samples = outline.samples.as_ref().and_then(|samples| {
        let (first, last) = samples.span?;
        let at = |time: u64| match axis.is_of_directory() {
            true => axis.of_wall(samples.source.clock?.wall_of(time)?),
            false => Some(axis.of_sample(time)),
        };
        Some((at(first)?, at(last)?))
    });
    let both = [looks, samples].into_iter().flatten();
    let (from, to) = both.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))?;
    Some(from..to + 1)
}

/// The files as last listed.
struct Files {
    parts: Arc<Vec<Part>>,
    is_live: bool,
    looked: Instant,
}

struct KeptEvidence {
    range: Option<Range>,
    /// The files it was read from.
    parts: Arc<Vec<Part>>,
    read: Instant,
    evidence: Arc<Evidence>,
}

pub struct Shown {
    /// The source to read; may be our temporary recording instead of the user's file.
    source: ProfileSource,
    /// As the user named it.
    pub name: String,
    pub kind: SourceKind,
    pub format: &'static str,
    axis: Axis,
    files: Mutex<Files>,
    kept: OnceLock<Option<Arc<KeptProfile>>>,
    evidence: Mutex<Vec<KeptEvidence>>,
}

impl std::fmt::Debug for Shown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Shown({})", self.name)
    }
}

impl Shown {
    /// A recording or a directory of them.
    pub fn open(source: ProfileSource, name: String) -> anyhow::Result<Shown> {
        let path = source.file.clone();
        let is_directory = path.is_dir();
        let (axis, mut parts) = if is_directory {
            let axis = Axis::of(Clock::Directory);
            (axis, listed(&path, &[], axis)?)
        } else {
            let outline = recording::outline(&path)?;
            let of_evidence = outline.clocks.map(|clocks| (clocks.at.0, clocks.wall));
            let of_profile = || outline.samples.as_ref()?.source.clock.map(|clock| (clock.clock_ns, clock.wall));
            let axis = Axis::of(Clock::of_file(of_evidence.or_else(of_profile)));
            (axis, Part::of(&path, axis)?.into_iter().collect())
        };
        let Some(first) = parts.iter().map(|part| part.range.start).min() else {
            // A profile without times, such as folded stacks, still has samples.
            if !is_directory && recording::outline(&path)?.samples.is_some() {
                return Shown::timeless(source, name);
            }
            bail!("{}: nothing was recorded yet; try again in a few seconds", path.display());
        };
        let axis = axis.starting_at(first);
        for part in &mut parts {
            part.range = part.range.start.rebased(first)..part.range.end.rebased(first);
        }
        let is_live = is_directory && directory::is_live(&path);
        let kind = match parts.first() {
            _ if is_live => SourceKind::Recorder,
            _ if is_directory => SourceKind::Directory,
            Some(part) if part.outline.incident.is_some() => SourceKind::Incident,
            Some(part) if part.outline.looks.is_none() => SourceKind::Profile,
            _ => SourceKind::Recording,
        };
        let files = Files { parts: Arc::new(parts), is_live, looked: Instant::now() };
        Ok(Shown::new(source, name, (kind, "recording", axis), files))
    }

    fn new(
        source: ProfileSource,
        name: String,
        (kind, format, axis): (SourceKind, &'static str, Axis),
        files: Files,
    ) -> Shown {
        Shown {
            source,
            name,
            kind,
            format,
            axis,
            files: Mutex::new(files),
            kept: OnceLock::new(),
            evidence: Mutex::default(),
        }
    }

    fn timeless(source: ProfileSource, name: String) -> anyhow::Result<Shown> {
        let files = Files { parts: Arc::default(), is_live: false, looked: Instant::now() };
        let axis = Axis::of(Clock::File(None));
        Ok(Shown::new(source, name, (SourceKind::Profile, "recording", axis), files))
    }

    /// A profile held in memory.
    pub fn of_profile(source: ProfileSource, name: String, kept: KeptProfile) -> Shown {
        let axis = Axis::of(Clock::of_file(kept.names.clock.map(|clock| (clock.clock_ns, clock.wall))));
        let axis = kept.samples.span().map_or(axis, |(first, _)| axis.starting_at(axis.of_sample(first)));
        let files = Files { parts: Arc::default(), is_live: false, looked: Instant::now() };
        let shown = Shown::new(source, name, (SourceKind::Profile, kept.format.id(), axis), files);
        let _ = shown.kept.set(Some(Arc::new(kept)));
        shown
    }

    pub fn axis(&self) -> Axis {
        self.axis
    }

    pub fn path(&self) -> &Path {
        &self.source.file
    }

    pub fn is_directory(&self) -> bool {
        matches!(self.kind, SourceKind::Recorder | SourceKind::Directory)
    }

    /// The recorder's directory with incidents, if it is one.
    pub fn directory(&self) -> Option<&Path> {
        self.is_directory().then(|| self.path())
    }

    fn files(&self) -> MutexGuard<'_, Files> {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_directory() && files.looked.elapsed() >= FRESH {
            let is_live = directory::is_live(self.path());
            // Even without a running recorder: a copy may be in progress, and files may be replaced.
            if let Ok(parts) = listed(self.path(), &files.parts, self.axis)
                && !is_same(&parts, &files.parts)
            {
                files.parts = Arc::new(parts);
            }
            files.is_live = is_live;
            files.looked = Instant::now();
        }
        files
    }

    /// The files, oldest first.
    pub fn parts(&self) -> Arc<Vec<Part>> {
        Arc::clone(&self.files().parts)
    }

    pub fn is_live(&self) -> bool {
        self.files().is_live
    }

    pub fn end(&self) -> AxisTime {
        let of_kept = || self.kept.get().and_then(Option::as_ref).and_then(|kept| kept.samples.span());
        let end = self.parts().iter().map(|part| part.range.end).max();
        end.or_else(|| of_kept().map(|(_, last)| self.axis.of_sample(last) + 1)).unwrap_or_default()
    }

    pub fn whole(&self) -> Range {
        AxisTime::START..self.end().max(AxisTime::START + 1)
    }

    /// Changes with the files; `None` while a recorder writes them.
    pub fn version(&self) -> Option<u64> {
        let files = self.files();
        if files.is_live {
            return None;
        }
        let mut hasher = DefaultHasher::new();
        (env!("CARGO_PKG_VERSION"), &self.name, &self.source.file).hash(&mut hasher);
        for part in files.parts.iter() {
            (&part.path, part.identity, &part.outline.about.uuid).hash(&mut hasher);
        }
        if files.parts.is_empty() {
            let about = std::fs::metadata(&self.name).ok();
            about.map(|about| (about.len(), about.modified().ok())).hash(&mut hasher);
        }
        Some(hasher.finish())
    }

    /// Why a file is no longer the one that was opened: cached and new data would not match.
    pub fn replaced(&self) -> Option<String> {
        if self.is_directory() {
            return None;
        }
        let is_current = self.files().parts.iter().all(Part::is_current);
        (!is_current).then(|| format!("{}: changed, replaced or removed since it was opened", self.name))
    }

    pub fn has_evidence(&self) -> bool {
        self.parts().iter().any(|part| part.outline.looks.is_some())
    }

    pub fn has_samples(&self) -> bool {
        self.kept.get().is_some_and(Option::is_some)
            || self.parts().iter().any(|part| part.outline.samples.is_some())
            || (self.kind == SourceKind::Profile && self.parts().is_empty())
    }

    /// The source to read samples from: memory if they fit. `most` limits how many are read of a directory: then only some chunks
    /// are, and the fraction is returned.
    pub fn samples(&self, selection: &Selection, most: u64) -> (ProfileSource, f64) {
        let kept = self.kept.get_or_init(|| self.load());
        let source = ProfileSource { kept: kept.clone(), ..self.source.clone() };
        if kept.is_some() {
            return (source, 1.0);
        }
        let stretches = super::question::stretches(selection, self.axis, self.whole());
        let parts = self.parts();
        let wanted: u64 = stretches.iter().flat_map(|s| parts.iter().map(move |part| part.samples_in(s))).sum();
        let one_in = wanted.div_ceil(most.max(1)).clamp(1, u64::from(u32::MAX)) as u32;
        let touched = |part: &&Part| stretches.iter().any(|stretch| part.samples_in(stretch) > 0);
        let segments = parts.iter().filter(touched).count() as u32;
        // If thinning anyway, skip whole segments: each costs loading its names.
        let one_segment_in = segments.div_ceil(MOST_SEGMENTS).clamp(1, one_in);
        let one_chunk_in = one_in.div_ceil(one_segment_in);
        let picked = Picked { one_segment_in, one_chunk_in, ..Picked::default() };
        (ProfileSource { picked, ..source }, picked.part())
    }

    /// The samples of a file, if few enough to keep.
    fn load(&self) -> Option<Arc<KeptProfile>> {
        let parts = self.parts();
        let count: u64 =
            parts.iter().filter_map(|part| part.outline.samples.as_ref()).map(|samples| samples.count).sum();
        if self.is_directory() || count > MOST_KEPT as u64 || (count == 0 && !parts.is_empty()) {
            return None;
        }
        // Errors are reported when samples are requested.
        KeptProfile::load(&self.source, MOST_KEPT, &AtomicU64::new(0)).ok().flatten().map(Arc::new)
    }

    pub fn kept(&self) -> Option<&Arc<KeptProfile>> {
        self.kept.get_or_init(|| self.load()).as_ref()
    }

    /// The evidence of a range; without one, of a whole file or the last ten minutes of a directory.
    pub fn evidence(&self, range: Option<Range>) -> anyhow::Result<Arc<Evidence>> {
        let (is_live, parts) = (self.is_live(), self.parts());
        // The same range, normalised.
        let whole = self.whole();
        let is_whole = |range: &Range| range.start <= whole.start && range.end >= whole.end;
        let all_by_itself = !self.is_directory() || whole.end.since(whole.start) <= OF_A_DIRECTORY;
        let range = range.filter(|range| !(all_by_itself && is_whole(range)));
        let mut kept = self.evidence.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|kept| match is_live {
            true => kept.read.elapsed() < FRESH_EVIDENCE,
            false => Arc::ptr_eq(&kept.parts, &parts),
        });
        if let Some(at) = kept.iter().position(|kept| kept.range == range) {
            let found = kept.remove(at);
            let evidence = Arc::clone(&found.evidence);
            kept.insert(0, found);
            return Ok(evidence);
        }
        // Read once: a second request waits here and finds it cached.
        let evidence = Arc::new(self.read_evidence(range.as_ref())?);
        kept.truncate(MOST_EVIDENCE - 1);
        kept.insert(0, KeptEvidence { range, parts, read: Instant::now(), evidence: Arc::clone(&evidence) });
        Ok(evidence)
    }

    fn read_evidence(&self, range: Option<&Range>) -> anyhow::Result<Evidence> {
        let mut args = Query::default();
        if let Some(range) = range {
            let wall = |at: AxisTime| self.axis.wall(at).map(Moment::Wall);
            args.since = wall(range.start);
            args.until = wall(range.end);
            if args.since.is_none() {
                bail!("{}: no wall-clock times, so it can only be diagnosed as a whole", self.name);
            }
        }
        Ok(recorded::read_path(self.path(), &args)?.evidence)
    }

    pub fn on_axis(&self, at: Time, evidence: &Evidence) -> Option<AxisTime> {
        self.axis.of_time(at, evidence.clocks.last())
    }
}

/// The segments of a directory. Sealed ones are not read again.
fn listed(directory: &Path, known: &[Part], axis: Axis) -> anyhow::Result<Vec<Part>> {
    let (found, _) = segments::list(directory).with_context(|| directory.display().to_string())?;
    if found.is_empty() && known.is_empty() {
        bail!("{}: this directory has no recorder segments", directory.display());
    }
    let part = |segment: &segments::Segment| {
        let is_known = |part: &&Part| part.path == segment.path && part.outline.about.sealed && part.is_current();
        if let Some(part) = known.iter().find(is_known) {
            return Some(part.clone());
        }
        // Skips a segment being created, evicted or damaged; requests for its time report it.
        Part::of(&segment.path, axis).ok().flatten()
    };
    let mut parts: Vec<Part> = match known.is_empty() {
        true => parallel::each(&found, part).into_iter().flatten().collect(),
        false => found.iter().filter_map(part).collect(),
    };
    parts.order_by_key(|part| part.range.start);
    Ok(parts)
}

/// Whether two lists are of the same files in the same state.
fn is_same(parts: &[Part], others: &[Part]) -> bool {
    parts.len() == others.len()
        && parts.iter().zip(others).all(|(a, b)| (&a.path, a.identity, &a.range) == (&b.path, b.identity, &b.range))
}
