//! Against the real perf: the same recording through perf.data and through `perf script`.
//!
//! Needs root and `perf` (Debian: linux-perf); without them the test says so and passes, as it cannot run.

use std::collections::HashMap;
use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};

use coroner_profile::import::{perf_data, perf_script};
use coroner_profile::model::{Place, Profile};
use coroner_profile::symbols::Symbols;

/// Runs perf quietly; `None` if it cannot.
fn perf(arguments: &[&str], out: Option<&Path>) -> Option<()> {
    let stdout = out.map_or_else(Stdio::null, |path| File::create(path).expect("a file").into());
    let status =
        Command::new("perf").args(arguments).stdin(Stdio::null()).stdout(stdout).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success()).then_some(())
}

/// What both ways must agree on for each sample: time, core and thread; then command, period, event and stack. Functions of
/// programs are compared by module: several names for one address are usual, and which one is shown is taste.
type Samples = HashMap<(u64, u32, u32), (String, u64, String, Vec<String>)>;

/// One name for all names of one kernel function.
fn aliases() -> HashMap<String, String> {
    let text = std::fs::read_to_string("/proc/kallsyms").expect("kallsyms");
    let mut first_at: HashMap<&str, &str> = HashMap::new();
    let mut canonical = HashMap::new();
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace();
        if let (Some(address), Some(_), Some(name)) = (words.next(), words.next(), words.next()) {
            let first = *first_at.entry(address).or_insert(name);
            canonical.entry(name.to_owned()).or_insert_with(|| first.to_owned());
        }
    }
    canonical
}

fn samples(profile: &Profile, aliases: &HashMap<String, String>) -> Samples {
    let describe = |frame: &coroner_profile::model::FrameId| {
        let frame = profile.names.frames.get(*frame);
        let symbol = frame.symbol(&profile.names.strings);
        match frame.place {
            Place::Kernel => aliases.get(symbol).map_or(symbol, String::as_str).to_owned(),
            _ => frame.module(&profile.names.strings).replace("[unknown]", ""),
        }
    };
    let row = |sample: coroner_profile::model::Sample| {
        let task = profile.names.task(sample.task);
        let key = (sample.time.expect("a time"), sample.core.expect("a core"), task.tid.unwrap_or(u32::MAX));
        let stack = profile.names.stacks.root_first(sample.stack).iter().map(describe).collect();
        let event = profile.names.events[usize::from(sample.event.0)].name.clone();
        (key, (profile.names.strings.get(task.comm).to_owned(), sample.period, event, stack))
    };
    profile.samples.iter().map(row).collect()
}

fn compare(record: &[&str]) {
    let dir = tempfile::tempdir().expect("a directory");
    let (data, text) = (dir.path().join("perf.data"), dir.path().join("perf.txt"));
    let path = data.to_str().expect("text");
    let busy = "i=0; while [ $i -lt 40000 ]; do i=$((i+1)); done; ls -R /usr/lib > /dev/null";
    let mut arguments = vec!["record", "-q", "-a", "-g", "-o", path];
    arguments.extend(record);
    arguments.extend(["--", "sh", "-c", busy]);
    if perf(&arguments, None).is_none() {
        eprintln!("not run: perf cannot record here");
        return;
    }
    let fields = "comm,pid,tid,cpu,time,period,event,ip,sym,symoff,dso";
    perf(&["script", "--ns", "-F", fields, "-i", path], Some(&text)).expect("perf script reads its own file");
    let (from_text, report) =
        Profile::collect(|take| perf_script::samples::read(File::open(&text).expect("a file"), take)).expect("text");
    assert_eq!(
        report.oddities.iter().filter(|oddity| oddity.count > 0 && !oddity.example.is_empty()).count(),
        0,
        "{report:?}"
    );
    let mut symbols = Symbols::of_this_machine();
    let (from_data, report) =
        Profile::collect(|take| perf_data::read(&File::open(&data).expect("a file"), &mut symbols, take))
            .expect("perf.data");
    assert!(!report.truncated, "{report:?}");
    let aliases = aliases();
    let (text, data) = (samples(&from_text, &aliases), samples(&from_data, &aliases));
    assert!(text.len() > 100, "only {} samples", text.len());
    assert_eq!(text.len(), data.len());
    let mut different = 0;
    for (key, (comm, period, event, stack)) in &text {
        let other = data.get(key).unwrap_or_else(|| panic!("{key:?} {comm} is not in perf.data"));
        assert_eq!((comm, period, event), (&other.0, &other.1, &other.2), "{key:?}");
        // perf drops a stack that went astray; we keep it up to there.
        if !stack.is_empty() && *stack != other.3 {
            different += 1;
            println!("{comm}\n  perf script {stack:?}\n  perf.data   {:?}", other.3);
        }
    }
    println!("{different} of {} stacks differ", text.len());
    // Modules that came and went (memfd, deleted files) may be named differently.
    assert!(different * 200 <= text.len(), "{different} of {} stacks differ", text.len());
}

#[test]
fn a_clock_recording_reads_alike_both_ways() {
    compare(&["-F", "999"]);
}

#[test]
fn several_events_and_compressed_records_read_alike_both_ways() {
    compare(&["-F", "999", "-e", "cpu-clock,page-faults", "-z"]);
}
