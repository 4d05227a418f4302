//! Derives the kernel's work from stack samples, for evidence that has no such rows: a recorder takes the stacks anyway and does
//! not sample twice.

use coroner_diagnosis::cores::timeline::Timeline;
use coroner_evidence::{Evidence, Source, Time, Wall, Window, probe};
use coroner_profile::import::ImportError;
use coroner_profile::recording;
use coroner_profile::views::kernel_work::{Sampled, WorkSums};
use std::ops::{ControlFlow, Range};
use std::path::Path;
use std::time::Duration;

/// The recorder's default rate, if the samples do not say theirs.
const RATE_HZ: u32 = 49;

/// Most samples to read: bounds the diagnosis of a large node's directory. If there are more, the latest count.
const MOST_SAMPLES: u64 = 1_500_000;

/// What the evidence says about how the stacks were sampled.
pub fn sampled(evidence: &Evidence) -> Sampled {
    let cores = evidence.core_times.last().map_or(0, |last| last.cores.len());
    Sampled { rate_hz: RATE_HZ, cores: cores as u32, busy: busy(evidence), lost: lost(evidence) }
}

/// Missing samples, as counted by the recorder.
fn lost(evidence: &Evidence) -> u64 {
    let counters = &evidence.counters;
    counters.subjects(Source::Sampler).into_iter().fold(0, |sum: u64, core| {
        let moved = |name| counters.moved(Source::Sampler, core, name).unwrap_or(0);
        let held_back = u128::from(moved("throttled_us")) * u128::from(RATE_HZ) / 1_000_000;
        sum.saturating_add(moved("lost")).saturating_add(u64::try_from(held_back).unwrap_or(u64::MAX))
    })
}

/// Busy time of all cores together, from the first to the last look.
fn busy(evidence: &Evidence) -> Option<Duration> {
    let (first, last) = (evidence.core_times.first()?, evidence.core_times.last()?);
    let mut ends = Timeline::default();
    ends.look(first);
    ends.look(last);
    let window = Window { from: first.at, to: last.at };
    let ns = ends.lines.values().map(|line| line.busy_ns(window)).sum::<f64>();
    Some(Duration::from_nanos(ns as u64))
}

/// Adds the kernel work that the stacks at `path`, a recording or a recorder's directory, show in the evidence's window.
pub fn add(path: &Path, evidence: &mut Evidence) {
    if !evidence.kernel_work.is_empty() {
        return;
    }
    let Some(window) = evidence.window() else { return };
    let looked_at = affordable(window, sampled(evidence).cores);
    let Some(range) = range(path, looked_at, evidence) else { return };
    let clocks = evidence.clocks.last().copied().filter(|_| path.is_dir());
    let (mut sums, mut count) = (WorkSums::default(), 0);
    let read = recording::read(path, Some(range), &mut |names, sample| {
        let at = sample.time.and_then(|time| match clocks {
            Some(clocks) => clocks.time_of(Wall(time)),
            None => Some(Time(time)),
        });
        if let Some(at) = at {
            sums.add(names, &sample, at);
        }
        count += 1;
        if count < 2 * MOST_SAMPLES { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    let names = match read {
        Ok((names, _)) if !sums.is_empty() => names,
        // No samples were taken.
        Ok(_) | Err(ImportError::NoSamples { .. } | ImportError::NoSegments { .. }) => return,
        Err(error) => {
            let how = "copy the recording again";
            return evidence.unseen(probe::KERNEL_SAMPLES, WHAT, error.to_string(), how);
        }
    };
    // An older coroner wrote no rows; they are no longer missing.
    evidence.unseen.retain(|unseen| unseen.probe != probe::KERNEL_SAMPLES);
    if sums.is_nameless() {
        let why = "the samples have no kernel function names";
        return evidence.unseen(probe::KERNEL_SAMPLES, WHAT, why, "record as root, with kernel.kptr_restrict below 2");
    }
    evidence.kernel_work = sums.finish(&names, &sampled(evidence));
    if looked_at.from > window.from {
        let seconds = looked_at.from.since(window.from).as_secs();
        let what = format!("{WHAT}, in the first {seconds} s");
        let why = format!("there are more than {MOST_SAMPLES} stack samples");
        evidence.unseen(probe::KERNEL_SAMPLES, what, why, "choose a shorter time: --last, --since, --until");
    }
}

const WHAT: &str = "what the kernel was doing";

/// The latest part of it without too many samples.
fn affordable(window: Window, cores: u32) -> Window {
    let a_second = u64::from(cores.max(1)) * u64::from(RATE_HZ);
    let length = Duration::from_secs(MOST_SAMPLES / a_second);
    Window { from: window.from.max(window.to - length), to: window.to }
}

/// In the time of [`recording::read`]: a file's own clock, which is the evidence's; for a directory, the wall clock.
fn range(path: &Path, window: Window, evidence: &Evidence) -> Option<Range<u64>> {
    if !path.is_dir() {
        return Some(window.from.0..window.to.0.saturating_add(1));
    }
    let clocks = evidence.clocks.last()?;
    Some(clocks.wall_of(window.from).0..clocks.wall_of(window.to).0.saturating_add(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use coroner_evidence::recording::{Writer, segments};
    use coroner_evidence::{Clocks, CoreTicks, CoreTimes, WorkKind};
    use coroner_profile::import::ImportReport;
    use coroner_profile::model::{Clock, Dictionary, Frame, FramePlace, Sample, StackId, Strings, Task};
    use coroner_profile::recording::{Origin, SampleWriter};

    const SECOND: u64 = 1_000_000_000;
    const CLOCKS: Clocks =
        Clocks { at: Time(1000 * SECOND), wall: Wall(1_780_000_000 * SECOND), boot_ns: 1000 * SECOND };

    /// Ten seconds of two cores, with samples of these and of the minute before.
    fn evidence() -> Evidence {
        let look = |second: u64| {
            let ticks = |core| CoreTicks { core, system: second * 50, idle: second * 50, ..CoreTicks::default() };
            CoreTimes { at: Time(second * SECOND), cores: vec![ticks(0), ticks(1)] }
        };
        let core_times = (990..=1000).map(look).collect();
        let mut evidence = Evidence { core_times, clocks: vec![CLOCKS], ..Evidence::default() };
        evidence.unseen(probe::KERNEL_SAMPLES, WHAT, "an older coroner made this recording", "record the node anew");
        evidence
    }

    fn write(path: &Path, function: &str, with_samples: bool) {
        let mut file = Writer::create(path).unwrap();
        file.append(&evidence()).unwrap();
        let mut names = Dictionary::default();
        let event = names.intern_event("cpu-clock");
        let symbol = names.strings.intern(function);
        let frame = Frame { symbol, module: Strings::EMPTY, place: FramePlace::Kernel, inlined: false };
        let frame = names.frames.intern(frame);
        let stack = names.stacks.push(StackId::EMPTY, frame);
        let comm = names.strings.intern("kubelet");
        let task = names.intern_task(Task { pid: Some(7), tid: Some(9), comm, cgroup: None });
        let mut samples = SampleWriter::default();
        for n in 0..if with_samples { 70 * 10 } else { 0 } {
            let time = Some(930 * SECOND + n * SECOND / 10);
            let sample = Sample { time, core: Some(1), task, event, period: SECOND / 10, stack };
            samples.take(&mut file, &names, sample).unwrap();
        }
        if with_samples {
            samples.commit(&mut file).unwrap();
            let clock = Clock { clock_ns: CLOCKS.at.0, wall: CLOCKS.wall };
            let origin = Origin { kind: "coroner record".into(), ..Origin::default() };
            file.set_profile_source(&origin.row(Some(clock), Some(&ImportReport::default()))).unwrap();
        }
        file.finish(&[]).unwrap();
    }

    #[test]
    fn stacks_of_a_file_and_of_a_directory_show_it_for_the_time_of_the_evidence() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join(segments::name(CLOCKS.wall - Duration::from_secs(70), 1));
        write(&file, "smaps_pte_range", true);
        for path in [file.as_path(), directory.path()] {
            let mut evidence = evidence();
            add(path, &mut evidence);
            let work = &evidence.kernel_work;
            assert_eq!((work[0].from, work[0].rate_hz, work[0].cores), (Time(990 * SECOND), 10, 2));
            assert_eq!(work.len(), 10, "nothing of the minute before: {work:?}");
            for second in work {
                let [row] = &second.rows[..] else { panic!("{second:?}") };
                assert_eq!((row.core, row.pid, row.tid, row.comm.as_str()), (1, 7, 9, "kubelet"));
                assert_eq!((row.kind, row.samples), (WorkKind::PageTables, 10));
            }
            assert!(evidence.unseen.is_empty(), "{:?}", evidence.unseen);
            // Rows that the recording has stay.
            let before = work.clone();
            add(path, &mut evidence);
            assert_eq!(evidence.kernel_work, before);
        }
    }

    #[test]
    fn without_samples_or_names_it_stays_unseen() {
        let directory = tempfile::tempdir().unwrap();
        for (name, function, with_samples) in [("a.coroner", "", true), ("b.coroner", "kfree", false)] {
            let path = directory.path().join(name);
            write(&path, function, with_samples);
            let mut evidence = evidence();
            add(&path, &mut evidence);
            assert!(evidence.kernel_work.is_empty(), "{name}: {:?}", evidence.kernel_work);
            assert_eq!(evidence.unseen.len(), 1, "{name}: {:?}", evidence.unseen);
        }
    }

    #[test]
    fn only_the_latest_part_of_a_large_node_is_read() {
        let window = Window { from: Time(0), to: Time(36_000 * SECOND) };
        assert_eq!(affordable(Window { from: Time(35_850 * SECOND), ..window }, 192).from, Time(35_850 * SECOND));
        let part = affordable(window, 192);
        assert!(part.from > window.from && part.to == window.to);
        assert!(part.length().as_secs() * 192 * 49 <= MOST_SAMPLES);
    }
}
