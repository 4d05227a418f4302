//! Recorded evidence: from a named file or directory, or from the recorder running on this node.

use crate::incident::Incident;
use crate::moment::Moment;
use crate::{directory, kernel_work, warn};
use anyhow::{bail, ensure};
use coroner_evidence::recording::{self, RecordingError, Span};
use coroner_evidence::{Evidence, Order, Time, Wall};
use coroner_profile::import::{Format, format_of as profile_format};
use rustix::time::ClockId;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How much of a directory to read by default: it may hold days.
const OF_A_DIRECTORY: Duration = Duration::from_secs(600);
/// A recorder looks at the cores ten times a second and stores every second. Without a look for this long, it is stuck.
const STUCK: Duration = Duration::from_secs(10);
/// Incidents of this time are listed with a diagnosis.
const RECENT: Duration = Duration::from_secs(24 * 3600);
/// Most incidents to list.
const NAMED: usize = 3;

/// Which recording, and which part of it.
#[derive(Debug, Clone, Default)]
pub struct Query {
    /// A recording or a recorder's directory; `None`: that of the recorder running here.
    pub from: Option<PathBuf>,
    pub last: Option<Duration>,
    pub since: Option<Moment>,
    pub until: Option<Moment>,
    /// Watch this node even if a recorder is running.
    pub no_recorder: bool,
}

/// What was recorded, and where it comes from.
pub struct Recorded {
    pub evidence: Evidence,
    /// The path that was read.
    pub path: PathBuf,
    /// One line for people; empty if the user named it.
    pub line: String,
    /// Set if we found the recorder's directory ourselves.
    pub recorder: Option<RecorderFound>,
}

pub struct RecorderFound {
    pub directory: PathBuf,
    /// Those of the last day, oldest first.
    pub incidents: Vec<Incident>,
}

/// Reads a recording if the user asked for one, or asked for nothing else and a recorder runs. `is_watch`: the user asked for
/// something that needs watching this node.
pub fn read(args: &Query, is_watch: bool) -> anyhow::Result<Option<Recorded>> {
    if let Some(path) = &args.from {
        return read_path(path, args).map(Some);
    }
    let asks = args.last.is_some() || args.since.is_some() || args.until.is_some();
    if !asks && (is_watch || args.no_recorder) {
        return Ok(None);
    }
    for directory in directory::running() {
        match read_running(&directory, args) {
            Ok(recorded) => return Ok(Some(recorded)),
            Err(error) if asks => return Err(error),
            Err(error) => warn(&format!("{error:#}; watching this node instead")),
        }
    }
    ensure!(
        !asks,
        "no readable recorder is running on this node; name a recording or a recorder's directory with --from"
    );
    Ok(None)
}

pub fn read_path(path: &Path, args: &Query) -> anyhow::Result<Recorded> {
    let is_directory = path.is_dir();
    let (span, is_default) = span(path, args)?;
    let mut recording = recording::read_span(path, &span).map_err(|error| or_profile(path, error))?;
    let is_written = match is_directory {
        true => directory::is_live(path),
        false => log_beside(path).exists() && path.parent().is_some_and(directory::is_live),
    };
    if !recording.about.sealed && !is_written {
        warn(&format!(
            "{}: the recorder was killed before it could close {} properly; reading what is there",
            path.display(),
            if is_directory { "the last segment" } else { "this file" }
        ));
    }
    ensure!(
        recording.evidence.window().is_some(),
        "{}: the recording has no core times; no diagnosis is possible{}",
        path.display(),
        if is_written { " yet: its recorder has just started, try again in a second" } else { "" }
    );
    let silent = monotonic_now().since(recording.evidence.window().map_or(Time(0), |window| window.to));
    if is_directory && is_written && args.until.is_none() && silent > STUCK {
        warn(&format!(
            "{}: its recorder is running but has stored nothing for {:.0} s, so the newest events are missing. Is its disk full? \
             Its log and /metrics say why",
            path.display(),
            silent.as_secs_f64()
        ));
    }
    kernel_work::add(path, &mut recording.evidence);
    let line = match is_directory && is_default {
        true => format!("from the last 10 minutes of {}; use --last, --since or --until for more", path.display()),
        false => incident_line(path),
    };
    Ok(Recorded { evidence: recording.evidence, path: path.to_owned(), line, recorder: None })
}

/// If the file is an incident: why it was frozen.
fn incident_line(path: &Path) -> String {
    let Ok(Some((row, _))) = recording::incident(path) else { return String::new() };
    let of = if row.subject.is_empty() { String::new() } else { format!(" {}", row.subject) };
    format!("incident {}, {}{of}, triggered {}: {}", row.number, row.code, row.triggered, row.text)
}

fn log_beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push("-wal");
    name.into()
}

/// A CPU profile has no evidence of a node, but other commands read it.
fn or_profile(path: &Path, error: RecordingError) -> anyhow::Error {
    let is_foreign = matches!(error, RecordingError::NotSqlite { .. })
        && matches!(profile_format(path), Ok(Format::PerfData | Format::PerfScript));
    let what = match error {
        RecordingError::OnlyProfile { .. } => "this recording holds a CPU profile only",
        _ if is_foreign => "this is a CPU profile, not a coroner recording",
        error => return error.into(),
    };
    anyhow::anyhow!(
        "{0}: {what}; it has nothing about units, memory and network. `coroner monopolies {0}` shows which threads had a core to \
         themselves, `coroner flame {0}` where the time went, `coroner view {0}` everything",
        path.display()
    )
}

fn read_running(directory: &Path, args: &Query) -> anyhow::Result<Recorded> {
    let mut recorded = read_path(directory, args)?;
    let (_, is_default) = span(directory, args)?;
    if is_default {
        let last = recorded.evidence.window().map_or(Time(0), |window| window.to);
        let silent = monotonic_now().since(last);
        if silent > STUCK {
            bail!("the recorder in {} has stored nothing for {:.0} s", directory.display(), silent.as_secs_f64());
        }
    }
    recorded.line = format!(
        "from the recorder in {}{}; use `coroner --for 5s` to watch the node now",
        directory.display(),
        if is_default { ", its last 10 minutes" } else { "" }
    );
    let now = recorded.evidence.clocks.last().map_or(Wall::MAX, |clocks| clocks.wall);
    let incidents = recent_incidents(directory, now - RECENT);
    recorded.recorder = Some(RecorderFound { directory: directory.to_owned(), incidents });
    Ok(recorded)
}

fn monotonic_now() -> Time {
    let now = rustix::time::clock_gettime(ClockId::Monotonic);
    Time(now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64)
}

/// The part to read, and whether it is the default.
fn span(path: &Path, args: &Query) -> anyhow::Result<(Span, bool)> {
    if let Some(last) = args.last {
        return Ok((Span::Last(last), false));
    }
    if args.since.is_none() && args.until.is_none() {
        let is_directory = path.is_dir();
        return Ok((if is_directory { Span::Last(OF_A_DIRECTORY) } else { Span::All }, is_directory));
    }
    // A time of day means the last one in the recording.
    let newest = match (args.since, args.until) {
        (Some(Moment::TimeOfDay(_)), _) | (_, Some(Moment::TimeOfDay(_))) => recording::newest_wall(path)?,
        _ => None,
    };
    let until = args.until.map(|until| wall(until, newest)).transpose()?;
    let since = args.since.map(|since| wall(since, until.or(newest))).transpose()?;
    let (from, to) = (since.unwrap_or_default(), until.unwrap_or(Wall::MAX));
    ensure!(from < to, "--since must be before --until");
    Ok((Span::Between { from, to }, false))
}

/// A time of day means the last one that is not after `newest`.
fn wall(moment: Moment, newest: Option<Wall>) -> anyhow::Result<Wall> {
    const DAY: Duration = Duration::from_secs(24 * 3600);
    match (moment, newest) {
        (Moment::Wall(wall), _) => Ok(wall),
        (Moment::TimeOfDay(ns), Some(newest)) => {
            let today = newest.midnight() + Duration::from_nanos(ns);
            if today <= newest {
                return Ok(today);
            }
            // Shortly after midnight, the evening before is meant; otherwise the time is still to come.
            let yesterday = today - DAY;
            ensure!(
                newest.since(yesterday) < DAY / 2,
                "nothing was recorded after {today}; the newest data is from {newest}"
            );
            Ok(yesterday)
        }
        (Moment::TimeOfDay(_), None) => bail!("the recording has no wall-clock times; use --last"),
        (Moment::Number(_) | Moment::FromStart(_) | Moment::Clock(_), _) => bail!("expected a wall-clock time"),
    }
}

/// Those triggered after `since`, oldest first. Files that are being written or cannot be parsed are skipped.
fn recent_incidents(directory: &Path, since: Wall) -> Vec<Incident> {
    let Ok(entries) = std::fs::read_dir(directory::incidents(directory)) else { return Vec::new() };
    let is_json = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "json");
    let mut incidents: Vec<Incident> = entries
        .filter_map(|entry| Some(entry.ok()?.path()).filter(is_json))
        .filter_map(|path| serde_json::from_slice(&std::fs::read(path).ok()?).ok())
        .filter(|incident: &Incident| incident.triggered >= since)
        .collect();
    incidents.order_by_key(|incident| (incident.triggered, incident.number));
    incidents
}

impl Recorded {
    /// Lines on where it comes from, and on the recorder's incidents.
    pub fn lines(&self) -> String {
        let incidents = self.recorder.as_ref().map(RecorderFound::incidents_line);
        let lines: Vec<&str> = [self.line.as_str()].into_iter().chain(incidents.as_deref()).collect();
        // A name may contain a newline; each line must stay one line.
        let lines = lines.into_iter().filter(|line| !line.is_empty()).map(|line| line.replace('\n', "\u{fffd}"));
        lines.collect::<Vec<_>>().join("\n")
    }
}

impl RecorderFound {
    /// The incidents of the last day in a line.
    pub fn incidents_line(&self) -> String {
        let all = self.incidents.len();
        let Some(last) = self.incidents.last() else { return "no incident in the last 24 hours".to_owned() };
        let named = self.incidents.iter().rev().take(NAMED).map(|incident| {
            let Incident { number, code, subject, triggered, .. } = incident;
            let of = if subject.is_empty() { String::new() } else { format!(" {subject}") };
            format!("#{number} {code}{of} at {triggered}")
        });
        let named: Vec<String> = named.collect();
        let rest = if all > NAMED { format!(" and {} more", all - NAMED) } else { String::new() };
        format!(
            "{all} {} in the last 24 hours: {}{rest}; show one with `coroner incidents show {}`",
            if all == 1 { "incident" } else { "incidents" },
            named.join(", "),
            last.number
        )
    }

    pub fn document(&self) -> Value {
        json!({ "directory": self.directory, "incidents": self.incidents })
    }
}

/// Adds the recorder that the document comes from.
pub fn with_recorder(mut document: Value, recorded: Option<&Recorded>) -> Value {
    if let (Some(fields), Some(recorder)) = (document.as_object_mut(), recorded.and_then(|r| r.recorder.as_ref())) {
        fields.insert("recorder".to_owned(), recorder.document());
    }
    document
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_of_day_is_the_last_one_in_the_recording() {
        const S: u64 = 1_000_000_000;
        // 22:13:20
        let newest = Wall(1_700_000_000 * S);
        let of = |h: u64, m: u64| wall(Moment::TimeOfDay((h * 3600 + m * 60) * S), Some(newest)).unwrap().0 / S;
        assert_eq!(of(22, 13), 1_699_999_980);
        assert!(wall(Moment::TimeOfDay((22 * 3600 + 14 * 60) * S), Some(newest)).is_err(), "still to come");
        let after_midnight = Some(newest + Duration::from_secs(2 * 3600));
        let evening = wall(Moment::TimeOfDay((22 * 3600 + 14 * 60) * S), after_midnight).unwrap().0 / S;
        assert_eq!(evening, 1_699_999_980 + 60);
        assert!(wall(Moment::TimeOfDay(0), None).is_err());
        assert_eq!(wall(Moment::Wall(Wall(7)), None).unwrap(), Wall(7));
    }
}
