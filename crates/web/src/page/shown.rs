//! What is shown: a file or a directory, its parts on the axis, and what is kept of it in memory.

use super::axis::{Axis, Clock};
use super::parallel;
use super::question::Range;
use anyhow::{Context, bail};
use coroner_evidence::recording::{self, Outline, segments};
use coroner_evidence::{Clocks, Evidence, Time, Window};
use coroner_profile::import::Picked;
use coroner_source::directory;
use coroner_source::moment::Moment;
use coroner_source::profile::ProfileSource;
use coroner_source::profile::kept::Kept;
use coroner_source::profile::select::Selection;
use coroner_source::recorded;
use coroner_source::recorded::Query;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Samples of one file that are kept in memory at most: 20 to 28 bytes each.
pub const MOST_KEPT: usize = 10_000_000;
/// Evidence of so many stretches is kept: what the page asks for next is mostly about the same one.
const MOST_EVIDENCE: usize = 2;
/// How old what is known of a growing directory may be.
const FRESH: Duration = Duration::from_secs(1);
/// Evidence of the newest minutes of a recorder may be so old.
const FRESH_EVIDENCE: Duration = Duration::from_secs(5);
/// What a command reads of a directory where nobody asks for more, in nanoseconds.
const OF_A_DIRECTORY: u64 = 600_000_000_000;
/// So many segments are read for a picture of more samples than can be read.
const MOST_SEGMENTS: u32 = 4;
/// Without a look for so long nobody was watching.
pub const GAP: u64 = 5_000_000_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The directory of a recorder that runs.
    Recorder,
    Directory,
    Recording,
    Incident,
    Profile,
}

impl Kind {
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Recorder => "recorder",
            Kind::Directory => "directory",
            Kind::Recording => "recording",
            Kind::Incident => "incident",
            Kind::Profile => "profile",
        }
    }
}

/// Which file it is, and of when: another one at the same path differs.
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
    /// In nanoseconds of the axis' clock: all that it has, looks and samples.
    pub range: Range,
}

impl Part {
    fn of(path: &Path, clock: Clock) -> anyhow::Result<Option<Part>> {
        let identity = Identity::of(path).with_context(|| path.display().to_string())?;
        let outline = recording::outline(path)?;
        let Some(range) = range_of(&outline, clock) else { return Ok(None) };
        Ok(Some(Part { path: path.to_owned(), outline: Arc::new(outline), identity, range }))
    }

    pub fn bytes(&self) -> u64 {
        self.identity.bytes
    }

    /// Whether what is known of it is still so.
    fn is_current(&self) -> bool {
        let is_same = |now: Identity| match self.outline.about.sealed {
            true => now == self.identity,
            // Its writer goes on; what is known of it stays right.
            false => now.is_same_file(&self.identity),
        };
        Identity::of(&self.path).is_ok_and(is_same)
    }

    pub fn clocks(&self) -> Option<&Clocks> {
        self.outline.clocks.as_ref()
    }

    /// The part of `range` that is in it, by the clock of its evidence.
    pub fn window(&self, range: &Range, axis: Axis) -> Option<Window> {
        let (from, to) = (range.start.max(self.range.start), range.end.min(self.range.end));
        if from >= to {
            return None;
        }
        Some(Window { from: axis.to_time(from, self.clocks())?, to: axis.to_time(to, self.clocks())? })
    }

    /// Whether the same recorder wrote it right after `before`: looks at the cores go on without a gap.
    pub fn goes_on_after(&self, before: &Part) -> bool {
        // One boot has one clock.
        let (Some(ours), Some(theirs)) = (self.outline.looks, before.outline.looks) else { return false };
        let is_same_boot = self.outline.boot_id.is_some() && self.outline.boot_id == before.outline.boot_id;
        is_same_boot && ours.from >= theirs.to && ours.from.since(theirs.to) <= recording::TOGETHER
    }

    /// How many samples of `range` it has, about.
    pub fn samples_in(&self, range: &Range) -> u64 {
        let Some(samples) = &self.outline.samples else { return 0 };
        let length = (self.range.end - self.range.start).max(1);
        let within = range.end.min(self.range.end).saturating_sub(range.start.max(self.range.start));
        (u128::from(samples.count) * u128::from(within) / u128::from(length)) as u64
    }
}

/// From the first to behind the last of its looks and samples.
fn range_of(outline: &Outline, clock: Clock) -> Option<Range> {
    let axis = Axis { clock, start: 0 };
    let looks = outline.looks.and_then(|looks| {
        let clocks = outline.clocks.as_ref();
        Some((axis.of_time(looks.from, clocks)?, axis.of_time(looks.to, clocks)?))
    });
    let samples = outline.samples.as_ref().and_then(|samples| {
        let (first, last) = samples.span?;
        let shift = match clock {
            Clock::Own(_) => 0,
            Clock::Wall => samples.source.clock.map(|(own, wall)| wall.wrapping_sub(own))?,
        };
        Some((first.wrapping_add(shift), last.wrapping_add(shift)))
    });
    let both = [looks, samples].into_iter().flatten();
    let (from, to) = both.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))?;
    Some(from..to.saturating_add(1))
}

/// The files as they were last looked at.
struct Files {
    parts: Arc<Vec<Part>>,
    is_live: bool,
    looked: Instant,
}

struct KeptEvidence {
    range: Option<Range>,
    /// The files that it was read from.
    parts: Arc<Vec<Part>>,
    read: Instant,
    evidence: Arc<Evidence>,
}

pub struct Shown {
    /// What is read; its file may be one of ours that took the place of the user's.
    source: ProfileSource,
    /// As the user named it.
    pub name: String,
    pub kind: Kind,
    pub format: &'static str,
    axis: Axis,
    files: Mutex<Files>,
    kept: OnceLock<Option<Arc<Kept>>>,
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
        let (clock, parts) = if is_directory {
            (Clock::Wall, listed(&path, &[])?)
        } else {
            let outline = recording::outline(&path)?;
            let own = outline.clocks.map(|clocks| (clocks.at.0, clocks.real_ns));
            let of_profile = || outline.samples.as_ref().and_then(|samples| samples.source.clock);
            let clock = Clock::Own(own.or_else(of_profile));
            (clock, Part::of(&path, clock)?.into_iter().collect())
        };
        let Some(first) = parts.iter().map(|part| part.range.start).min() else {
            // A profile without times, such as folded stacks, has samples all the same.
            if !is_directory && recording::outline(&path)?.samples.is_some() {
                return Shown::timeless(source, name);
            }
            bail!("{}: nothing was recorded yet; try again in a few seconds", path.display());
        };
        let is_live = is_directory && directory::is_live(&path);
        let kind = match parts.first() {
            _ if is_live => Kind::Recorder,
            _ if is_directory => Kind::Directory,
            Some(part) if part.outline.incident.is_some() => Kind::Incident,
            Some(part) if part.outline.looks.is_none() => Kind::Profile,
            _ => Kind::Recording,
        };
        let files = Files { parts: Arc::new(parts), is_live, looked: Instant::now() };
        let axis = Axis { clock, start: first };
        Ok(Shown::new(source, name, (kind, "recording", axis), files))
    }

    fn new(
        source: ProfileSource,
        name: String,
        (kind, format, axis): (Kind, &'static str, Axis),
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
        let axis = Axis { clock: Clock::Own(None), start: 0 };
        Ok(Shown::new(source, name, (Kind::Profile, "recording", axis), files))
    }

    /// A profile that is in memory.
    pub fn of_profile(source: ProfileSource, name: String, kept: Kept) -> Shown {
        let clock = Clock::Own(kept.names.clock.map(|clock| (clock.clock_ns, clock.wall_ns)));
        let axis = Axis { clock, start: kept.samples.span().map_or(0, |(first, _)| first) };
        let files = Files { parts: Arc::default(), is_live: false, looked: Instant::now() };
        let shown = Shown::new(source, name, (Kind::Profile, kept.format.id(), axis), files);
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
        matches!(self.kind, Kind::Recorder | Kind::Directory)
    }

    /// The recorder's directory that incidents are in, if it is one.
    pub fn directory(&self) -> Option<&Path> {
        self.is_directory().then(|| self.path())
    }

    fn files(&self) -> MutexGuard<'_, Files> {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_directory() && files.looked.elapsed() >= FRESH {
            let is_live = directory::is_live(self.path());
            // Also where no recorder runs: a copy may still be under way, and files may be replaced.
            if let Ok(parts) = listed(self.path(), &files.parts)
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

    /// Where the axis ends, in its clock's nanoseconds.
    pub fn end(&self) -> u64 {
        let of_kept = || self.kept.get().and_then(Option::as_ref).and_then(|kept| kept.samples.span());
        let end = self.parts().iter().map(|part| part.range.end).max();
        end.or_else(|| of_kept().map(|(_, last)| last.saturating_add(1))).unwrap_or(self.axis.start)
    }

    pub fn whole(&self) -> Range {
        self.axis.start..self.end().max(self.axis.start.saturating_add(1))
    }

    /// Changes with the files; `None` while they change by themselves.
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

    /// Why a file is not what was opened any more. What is known of it, and what would be read of it now, do not belong together.
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
            || (self.kind == Kind::Profile && self.parts().is_empty())
    }

    /// What to read samples with: out of memory if they fit there. `most` bounds how many of a directory are read; then of the
    /// chunks only some are, and the answer says which part.
    pub fn samples(&self, selection: &Selection, most: u64) -> (ProfileSource, f64) {
        let kept = self.kept.get_or_init(|| self.load());
        let source = ProfileSource { kept: kept.clone(), ..self.source.clone() };
        if kept.is_some() {
            return (source, 1.0);
        }
        let stretches = super::question::stretches(selection, self.whole());
        let parts = self.parts();
        let wanted: u64 = stretches.iter().flat_map(|s| parts.iter().map(move |part| part.samples_in(s))).sum();
        let one_in = wanted.div_ceil(most.max(1)).clamp(1, u64::from(u32::MAX)) as u32;
        let touched = |part: &&Part| stretches.iter().any(|stretch| part.samples_in(stretch) > 0);
        let segments = parts.iter().filter(touched).count() as u32;
        // Of what is thinned anyway whole segments are left out: each costs its names.
        let one_segment_in = segments.div_ceil(MOST_SEGMENTS).clamp(1, one_in);
        let one_chunk_in = one_in.div_ceil(one_segment_in);
        let picked = Picked { one_segment_in, one_chunk_in, ..Picked::default() };
        (ProfileSource { picked, ..source }, picked.part())
    }

    /// The samples of a file, if they are few enough to stay.
    fn load(&self) -> Option<Arc<Kept>> {
        let parts = self.parts();
        let count: u64 =
            parts.iter().filter_map(|part| part.outline.samples.as_ref()).map(|samples| samples.count).sum();
        if self.is_directory() || count > MOST_KEPT as u64 || (count == 0 && !parts.is_empty()) {
            return None;
        }
        // What cannot be read is told to whoever asks for samples.
        Kept::load(&self.source, MOST_KEPT, &AtomicU64::new(0)).ok().flatten().map(Arc::new)
    }

    pub fn kept(&self) -> Option<&Arc<Kept>> {
        self.kept.get_or_init(|| self.load()).as_ref()
    }

    /// The evidence of a stretch; without one all of a file, and the last ten minutes of a directory.
    pub fn evidence(&self, range: Option<Range>) -> anyhow::Result<Arc<Evidence>> {
        let (is_live, parts) = (self.is_live(), self.parts());
        // The same by another name.
        let whole = self.whole();
        let is_whole = |range: &Range| range.start <= whole.start && range.end >= whole.end;
        let all_by_itself = !self.is_directory() || whole.end - whole.start <= OF_A_DIRECTORY;
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
        // Not twice at a time: the second one waits here and finds it.
        let evidence = Arc::new(self.read_evidence(range.as_ref())?);
        kept.truncate(MOST_EVIDENCE - 1);
        kept.insert(0, KeptEvidence { range, parts, read: Instant::now(), evidence: Arc::clone(&evidence) });
        Ok(evidence)
    }

    fn read_evidence(&self, range: Option<&Range>) -> anyhow::Result<Evidence> {
        let mut args = Query::default();
        if let Some(range) = range {
            let wall = |at: u64| self.axis.real(at).map(Moment::Wall);
            args.since = wall(range.start);
            args.until = wall(range.end);
            if args.since.is_none() {
                bail!("{}: has no wall-clock times, so only all of it can be diagnosed, not a part", self.name);
            }
        }
        Ok(recorded::read_path(self.path(), &args)?.evidence)
    }

    /// A moment of evidence on the axis, as the page counts.
    pub fn relative(&self, at: Time, evidence: &Evidence) -> Option<i64> {
        Some(self.axis.relative(self.axis.of_time(at, evidence.clocks.last())?))
    }
}

/// The segments of a directory. What is known of a sealed one stays as it is.
fn listed(directory: &Path, known: &[Part]) -> anyhow::Result<Vec<Part>> {
    let (found, _) = segments::list(directory).with_context(|| directory.display().to_string())?;
    if found.is_empty() && known.is_empty() {
        bail!("{}: this directory has no recorder segments", directory.display());
    }
    let part = |segment: &segments::Segment| {
        let is_known = |part: &&Part| part.path == segment.path && part.outline.about.sealed && part.is_current();
        if let Some(part) = known.iter().find(is_known) {
            return Some(part.clone());
        }
        // One that is just being made, evicted or damaged is passed over; what is asked of its time says so.
        Part::of(&segment.path, Clock::Wall).ok().flatten()
    };
    let mut parts: Vec<Part> = match known.is_empty() {
        true => parallel::each(&found, part).into_iter().flatten().collect(),
        false => found.iter().filter_map(part).collect(),
    };
    parts.sort_by_key(|part| part.range.start);
    Ok(parts)
}

/// Whether two lists are of the same files in the same state.
fn is_same(parts: &[Part], others: &[Part]) -> bool {
    parts.len() == others.len()
        && parts.iter().zip(others).all(|(a, b)| (&a.path, a.identity, &a.range) == (&b.path, b.identity, &b.range))
}
