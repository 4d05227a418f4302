//! Comparison with the real perf: the same recording through perf.data and through `perf script`.
//!
//! Needs root and `perf` (Debian: linux-perf); without them the test is skipped, and says so.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};

use coroner_profile::import::{OddityKind, perf_data, perf_script};
use coroner_profile::model::{FrameId, Profile, label};
use coroner_profile::symbols::Symbols;

/// Runs perf quietly; `None` if it cannot.
fn perf(arguments: &[&str], dir: &Path, out: Option<&Path>) -> Option<()> {
    let stdout = out.map_or_else(Stdio::null, |path| File::create(path).expect("a file").into());
    let mut command = Command::new("perf");
    command.args(arguments).current_dir(dir).stdin(Stdio::null()).stdout(stdout).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success()).then_some(())
}

/// What both must agree on for each sample: time, core and thread; then command, period, event and the labels of the stack.
type Samples = BTreeMap<(u64, u32, u32), (String, u64, String, Vec<String>)>;

fn samples(profile: &Profile) -> Samples {
    let describe = |id: &FrameId| {
        let frame = profile.names.frames.get(*id);
        let (symbol, module) = (frame.symbol(&profile.names.strings), frame.module(&profile.names.strings));
        label::label(symbol, module, frame.place, true)
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

/// Frames that are equal although their labels differ: the list in docs/profile.md, "Where we differ from perf".
fn same_frame(perf: &str, ours: &str) -> bool {
    // perf 6.1 does not know the stubs of .plt.got and .plt.sec or the header of .plt, and shows the module or the preceding function;
    // IFUNC stubs have no name there.
    let perf_names_it = perf.ends_with("@plt") && perf != "@plt";
    // For a function type as template argument libiberty writes `R (A)`, cpp_demangle `R(A)`.
    let without_spaces = |name: &str| name.replace(' ', "");
    without_spaces(perf) == without_spaces(ours) || (ours.ends_with("@plt") || ours == ".plt") && !perf_names_it
}

/// Reports that a test cannot run here. `./check` lists these at the end, and in CI they are a failure.
fn skip(why: &str) {
    use std::io::Write;
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test").to_owned();
    println!("{test}: SKIPPED ({why})");
    let list = std::env::var_os("CORONER_SKIPPED_TESTS");
    if let Some(Ok(mut list)) = list.map(|list| File::options().create(true).append(true).open(list)) {
        let _ = writeln!(list, "{test} ({why})");
    }
}

/// While a dozen BPF programs are loaded, perf 6.1.187 aborts, both recording and reading ("assertion failed at
/// util/build-id.c:1010", stack smashing). They are soon gone, so retry.
const TRIES: usize = 20;

/// Records `command` and compares. Names must match in the stacks of the commands `whose` (all if empty), except for a share of
/// `tolerated`.
fn compare(record: &[&str], command: &[&str], whose: &[&str], tolerated: f64) {
    let dir = tempfile::tempdir().expect("a directory");
    let (data, text) = (dir.path().join("perf.data"), dir.path().join("perf.txt"));
    let path = data.to_str().expect("text");
    let mut arguments = vec!["record", "-q", "-g", "--sample-cpu", "-o", path];
    arguments.extend(record);
    arguments.push("--");
    arguments.extend(command);
    let fields = "comm,pid,tid,cpu,time,period,event,ip,sym,symoff,dso";
    let script = ["script", "--ns", "--no-inline", "-F", fields, "-i", path];
    let mut recorded = false;
    let read = (0..TRIES).any(|_| {
        let one = perf(&arguments, dir.path(), None).is_some();
        recorded |= one;
        one && perf(&script, dir.path(), Some(&text)).is_some()
    });
    if !recorded {
        skip("perf cannot record here; it needs root and Debian's linux-perf");
        return;
    }
    assert!(read, "perf could not read its own file, {TRIES} times");
    let (from_text, report) =
        Profile::collect(|take| perf_script::samples::read(File::open(&text).expect("a file"), take)).expect("text");
    let odd = |kind: &OddityKind| *kind != OddityKind::EmptyStack;
    assert_eq!(report.oddities.iter().filter(|oddity| odd(&oddity.kind)).count(), 0, "{report:?}");
    let mut symbols = Symbols::of_this_machine();
    let (from_data, report) =
        Profile::collect(|take| perf_data::read(&File::open(&data).expect("a file"), &mut symbols, take))
            .expect("perf.data");
    assert!(!report.truncated, "{report:?}");
    let (text, data) = (samples(&from_text), samples(&from_data));
    assert!(text.len() > 20, "only {} samples", text.len());
    assert_eq!(text.len(), data.len());
    let (mut different, mut stray, mut stacks, mut frames) = (0, 0, 0, 0);
    let mut examples: BTreeMap<(String, String), usize> = BTreeMap::new();
    // perf looks up the first address of a file before it knows the file's layout; that one may stay unnamed.
    let mut first_of_file = BTreeSet::new();
    for (key, (comm, period, event, stack)) in &text {
        let other = data.get(key).unwrap_or_else(|| panic!("{key:?} {comm} is not in perf.data"));
        assert_eq!((comm, period, event), (&other.0, &other.1, &other.2), "{key:?}");
        // perf drops a broken stack; we keep it up to the break.
        if stack.is_empty() && !other.3.is_empty() {
            stray += 1;
            continue;
        }
        if !whose.is_empty() && !whose.contains(&comm.as_str()) {
            continue;
        }
        (stacks, frames) = (stacks + 1, frames + stack.len());
        let first = stack.iter().zip(&other.3).find(|(perf, ours)| {
            !(same_frame(perf, ours) || perf.starts_with('[') && first_of_file.insert(perf.to_string()))
        });
        if first.is_some() || stack.len() != other.3.len() {
            different += 1;
            *examples.entry(first.map(|(a, b)| (a.clone(), b.clone())).unwrap_or_default()).or_default() += 1;
        }
    }
    assert!(stacks > 5, "only {stacks} stacks to compare");
    for ((theirs, ours), count) in examples.iter().take(20) {
        println!("{count} times perf script {theirs:.200}, perf.data {ours:.200}");
    }
    println!("{different} of {stacks} stacks ({frames} frames) differ, {stray} went astray; {:?}", symbols.problems);
    // Other commands' stacks may be broken from the start.
    let led_astray = report.count(OddityKind::StrayStack);
    assert!(if whose.is_empty() { stray == led_astray } else { stray <= led_astray }, "{stray} of {led_astray}");
    assert!(f64::from(different) <= (tolerated * f64::from(stacks)).ceil(), "{different} of {stacks} stacks differ");
}

const BUSY: [&str; 3] = [
    "sh",
    "-c",
    "i=0; while [ $i -lt 40000 ]; do i=$((i+1)); done; ls -R /usr/lib > /dev/null; perl -e '$x{$_}=$_ for 1..200000'",
];

#[test]
fn a_clock_recording_reads_alike_both_ways() {
    compare(&["-F", "999"], &BUSY, &[], 0.0);
}

#[test]
fn several_events_and_compressed_records_read_alike_both_ways() {
    compare(&["-F", "999", "-e", "cpu-clock,page-faults", "-z"], &BUSY, &[], 0.0);
}

/// Everything running is read; only for what we started are the names known to agree with perf's.
#[test]
fn the_whole_machine_reads_alike_both_ways() {
    compare(&["-F", "199", "-a"], &BUSY, &["sh", "ls", "perl"], 0.0);
}

/// C++ with templates, if such a program is installed.
#[test]
fn generated_code_and_templates_read_alike_both_ways() {
    let script = "let m = {}; for (let i = 0; i < 3e5; i++) m['k' + i % 999] = JSON.stringify({i, a: [i]})";
    compare(&["-F", "999"], &["node", "--perf-basic-prof", "-e", script], &[], 0.0);
}

/// Of several names for one address perf may choose another: its Rust names sometimes differ in length, and length decides.
#[test]
fn rust_reads_alike_both_ways() {
    compare(&["-F", "9999"], &["rustc", "--explain", "E0382"], &[], 0.02);
}
