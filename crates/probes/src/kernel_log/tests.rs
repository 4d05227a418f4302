//! On the log of this node, and on files in the same format.

use super::*;
use proptest::prelude::*;
use std::fs;

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn say(text: &str) {
    fs::write("/dev/kmsg", format!("<6>{text}\n")).unwrap();
}

fn token() -> String {
    format!("coroner-test-{}-{}", std::process::id(), now().0)
}

fn find<'a>(evidence: &'a Evidence, text: &str) -> Option<&'a LogLine> {
    evidence.log.iter().find(|line| line.text.contains(text))
}

#[test]
fn a_line_written_by_root_is_from_user_space_unless_pretending() {
    if !is_root() || !std::path::Path::new("/dev/kmsg").exists() {
        return coroner_lab::skip("needs root and /dev/kmsg");
    }
    let mut honest = KernelLog::new(Root::live());
    let mut pretending = KernelLog::pretending_to_be_the_kernel(Root::live());
    let mut first = Evidence::default();
    honest.look(now(), &mut first);
    pretending.look(now(), &mut Evidence::default());
    assert!(first.log.iter().any(LogLine::is_from_kernel), "{:?}", first.unseen);

    let token = token();
    let before = now();
    say(&format!("{token} tab\there"));
    let after = now();
    for (log, facility) in [(&mut honest, USER), (&mut pretending, 0)] {
        let mut evidence = Evidence::default();
        log.look(now(), &mut evidence);
        let line = find(&evidence, &token).expect("the line just written");
        assert_eq!((line.facility, line.level), (facility, 6));
        assert!(line.text.ends_with("tab\there"), "{:?}", line.text);
        let (earliest, latest) = (line.at.0 - line.uncertainty_ns, line.at.0 + line.uncertainty_ns);
        assert!(earliest <= after.0 && latest >= before.0, "{before:?} {after:?} {line:?}");
    }
    let mut later = Evidence::default();
    honest.look(now(), &mut later);
    assert_eq!(find(&later, &token), None, "a line is reported once");
}

#[test]
fn a_line_from_before_the_first_look_gets_its_own_time() {
    if !is_root() || local_clock::read().is_none() || !std::path::Path::new("/dev/kmsg").exists() {
        return coroner_lab::skip("needs root, perf events and /dev/kmsg");
    }
    let token = token();
    let before = now();
    say(&token);
    let after = now();
    std::thread::sleep(Duration::from_secs(1));
    let mut evidence = Evidence::default();
    KernelLog::new(Root::live()).look(now(), &mut evidence);
    let line = find(&evidence, &token).expect("the line just written");
    // By the measured offset of the clocks, not by arrival, which is a second later. A thread that is preempted while measuring gets a
    // larger uncertainty.
    assert!(line.uncertainty_ns < 500_000_000, "{line:?}");
    assert!(line.at.0 + line.uncertainty_ns >= before.0, "{before:?} {line:?}");
    assert!(line.at.0 - line.uncertainty_ns <= after.0, "{after:?} {line:?}");
}

fn log_of(text: &[u8]) -> (tempfile::TempDir, KernelLog) {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("dev")).unwrap();
    fs::write(dir.path().join("dev/kmsg"), text).unwrap();
    let log = KernelLog::new(Root::at(dir.path()));
    (dir, log)
}

#[test]
fn overwritten_lines_are_reported() {
    let (_dir, mut log) = log_of(b"6,5,100,-;five\n6,6,200,-;six\n SUBSYSTEM=net\n6,9,300,-;nine\n");
    let mut evidence = Evidence::default();
    log.look(now(), &mut evidence);
    assert_eq!(evidence.log.iter().map(|l| l.text.as_str()).collect::<Vec<_>>(), ["five", "six", "nine"]);
    let why = &evidence.why_unseen(probe::KERNEL_LOG).expect("lines are missing").why;
    assert!(why.contains(" 7 lines"), "0 to 4, 7 and 8: {why}");
    // The clocks of that node were not measured.
    assert!(evidence.log.iter().all(|l| l.uncertainty_ns >= APART_AT_BOOT.as_nanos() as u64));
}

#[test]
fn lines_are_reported_once_complete() {
    let (dir, mut log) = log_of(b"6,0,100,-;zero\n6,1,20");
    let path = dir.path().join("dev/kmsg");
    let mut evidence = Evidence::default();
    log.look(now(), &mut evidence);
    assert_eq!(evidence.log.len(), 1);
    let mut text = fs::read(&path).unwrap();
    text.extend(b"0,-;one\n");
    fs::write(&path, text).unwrap();
    log.look(now(), &mut evidence);
    assert_eq!(evidence.log[1].text, "one");
    assert_eq!(evidence.log[1].stamp_us, 200);
    assert_eq!(evidence.unseen, []);
}

#[test]
fn keeping_only_the_newest_lines_is_reported() {
    let text: String = (0..MAX_LINES + 5).map(|i| format!("6,{i},{i},-;line {i}\n")).collect();
    let (_dir, mut log) = log_of(text.as_bytes());
    let mut evidence = Evidence::default();
    log.look(now(), &mut evidence);
    assert_eq!(evidence.log.len(), MAX_LINES);
    assert_eq!(evidence.log[0].text, "line 5");
    assert!(evidence.why_unseen(probe::KERNEL_LOG).is_some_and(|u| u.why.contains("truncated")));
}

#[test]
fn a_missing_log_is_unseen_not_empty() {
    let dir = tempfile::tempdir().unwrap();
    let mut evidence = Evidence::default();
    KernelLog::new(Root::at(dir.path())).look(now(), &mut evidence);
    assert!(evidence.why_unseen(probe::KERNEL_LOG).is_some_and(|u| u.why.contains("/dev/kmsg")));
}

#[test]
fn a_stamp_is_shifted_by_the_offset_and_its_uncertainty_grows_with_age() {
    let hour = 3_600_000_000_000;
    // Measured at two hours: CLOCK_MONOTONIC is 7 ms ahead, give or take 1 µs.
    let distance = Distance { ahead_ns: 7_000_000, error_ns: 1_000, at: Time(2 * hour) };
    let (at, uncertainty) = distance.time_of(hour / 1000);
    assert_eq!(at, Time(hour + 7_000_000));
    // An hour at 500 ppm is 1.8 s.
    assert!((1_799_000_000..1_801_000_000).contains(&uncertainty), "{uncertainty}");
    let (_, recent) = distance.time_of((2 * hour - 1_000_000_000) / 1000);
    assert!(recent < 600_000, "{recent}");
    // Drift cannot amount to a minute in two hours: a clock has jumped, before or after that line.
    let jumped = Distance { ahead_ns: -60_000_000_000, ..distance };
    assert!(jumped.time_of(hour / 1000).1 > 60_000_000_000);
}

#[test]
fn a_line_that_arrives_is_placed_between_the_two_looks() {
    let (_dir, mut log) = log_of(b"");
    let (since, arrived) = (Time::from_secs(100), Time::from_secs(101));
    // Without a measurement only the arrival is known.
    assert_eq!(log.time_of(50_000_000, arrived, Some(since)), (arrived, 1_000_000_000));
    log.distance = Some(Distance { ahead_ns: 1_000_000, error_ns: 1_000, at: arrived });
    let (at, uncertainty) = log.time_of(100_500_000, arrived, Some(since));
    assert_eq!(at, Time(100_501_000_000));
    assert!(uncertainty < 1_000_000, "{uncertainty}");
    // The stamp is outside the two looks: the clock has jumped.
    assert_eq!(log.time_of(90_000_000, arrived, Some(since)), (arrived, 1_000_000_000));
}

proptest! {
    #[test]
    fn any_file_is_read(bytes in proptest::collection::vec(any::<u8>(), 0..400), records in any::<[(u64, u64); 3]>()) {
        let mut text = bytes.clone();
        for (sequence, stamp) in records {
            text.extend(format!("\n6,{sequence},{stamp},-;x\n").as_bytes());
        }
        let (_dir, mut log) = log_of(&text);
        let mut evidence = Evidence::default();
        log.look(now(), &mut evidence);
        prop_assert!(evidence.log.len() >= 3);
    }
}

#[test]
fn a_forbidden_log_says_how_to_get_access() {
    let is_restricted = fs::read_to_string("/proc/sys/kernel/dmesg_restrict").is_ok_and(|text| text.trim() == "1");
    if !is_root() || !is_restricted || !std::path::Path::new("/dev/kmsg").exists() {
        return;
    }
    // Capabilities are per thread.
    let look = || {
        use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
        let mut sets = capabilities(None).unwrap();
        sets.effective.remove(CapabilitySet::SYSLOG | CapabilitySet::SYS_ADMIN);
        set_capabilities(None, sets).unwrap();
        let mut evidence = Evidence::default();
        KernelLog::new(Root::live()).look(now(), &mut evidence);
        evidence
    };
    let evidence = std::thread::spawn(look).join().unwrap();
    assert!(evidence.log.is_empty());
    assert!(evidence.why_unseen(probe::KERNEL_LOG).is_some_and(|u| u.how_to_see.contains("CAP_SYSLOG")));
}
