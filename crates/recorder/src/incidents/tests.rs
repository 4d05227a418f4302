use super::*;

const SECOND: u64 = 1_000_000_000;
/// Wall-clock time when the monotonic clock is 0.
const BOOT: u64 = 1_780_000_000 * SECOND;

fn clocks(second: f64) -> Clocks {
    let at = Time((second * SECOND as f64) as u64);
    Clocks { at, wall: Wall(BOOT + at.0), boot_ns: at.0 }
}

fn trigger(second: f64, subject: &str) -> Trigger {
    Trigger {
        code: "core-saturated".into(),
        key: "core-saturated".into(),
        subject: subject.into(),
        by: None,
        core: Some(3),
        at: clocks(second).at,
        since: Some(clocks(second - 1.0).at),
        text: format!("{subject} was full"),
    }
}

/// A directory, and a script for children: `$2` is the directory, `$3` the number, `$4` `--whole` or something else.
struct Scratch {
    directory: tempfile::TempDir,
    program: Vec<OsString>,
    config: IncidentConfig,
}

const FREEZES: &str = r#"case "$4" in --whole) w=whole;; *) w=first;; esac; echo $w >> "$2/incidents/$3.coroner""#;

impl Scratch {
    fn new(script: &str) -> Scratch {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("incidents")).unwrap();
        let program = ["/bin/sh", "-c", script, "sh"].map(OsString::from).to_vec();
        Scratch { directory, program, config: IncidentConfig::default() }
    }

    fn open(&self) -> Incidents {
        Incidents::freezing_with(self.directory.path(), &self.config, self.program.clone()).unwrap()
    }

    fn read(&self, number: u64) -> Incident {
        files::read(self.directory.path(), number).unwrap()
    }

    fn frozen(&self, number: u64) -> String {
        std::fs::read_to_string(files::recording(self.directory.path(), number)).unwrap_or_default()
    }
}

/// Turns at this moment until no child is running.
fn settle(incidents: &mut Incidents, second: f64) {
    settle_at(incidents, clocks(second));
}

fn settle_at(incidents: &mut Incidents, clocks: Clocks) {
    let limit = std::time::Instant::now() + Duration::from_secs(180);
    loop {
        incidents.turn(clocks);
        if incidents.open.values().all(|open| open.freezing.is_none()) {
            return;
        }
        assert!(std::time::Instant::now() < limit, "a child does not exit");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn an_incident_knows_how_long_it_lasted_when_it_is_over() {
    let scratch = Scratch::new(FREEZES);
    let mut incidents = scratch.open();
    incidents.begin(trigger(1000.0, "core 3"), clocks(1000.1));
    assert!(scratch.read(1).lasting.unwrap().goes_on());
    let over = |from: f64, to: f64| Over {
        code: "core-saturated".into(),
        subject: "core 3".into(),
        by: None,
        lasted: clocks(to).at.since(clocks(from).at),
        until: clocks(to).at,
    };
    incidents.end(&Over { subject: "core 4".into(), ..over(999.0, 1001.0) }, clocks(1001.0));
    incidents.end(&over(999.0, 1420.0), clocks(1421.0));
    incidents.turn(clocks(1423.0));
    let lasting = scratch.read(1).lasting.unwrap();
    assert_eq!((lasting.lasted_ns, lasting.until), (421 * SECOND, Some(Wall(BOOT + 1420 * SECOND))));
    // Repeats add up.
    incidents.begin(trigger(1450.0, "core 3"), clocks(1450.1));
    incidents.end(&over(1449.0, 1460.0), clocks(1461.0));
    incidents.begin(trigger(1500.0, "core 3"), clocks(1500.1));
    incidents.turn(clocks(1503.0));
    let told = scratch.read(1);
    assert_eq!((told.repeats, told.lasting.unwrap().lasted_ns), (2, 432 * SECOND));
    assert!(told.lasting.unwrap().goes_on());
    // The recorder is killed: the next one does not know when it ended.
    drop(incidents);
    let mut next = scratch.open();
    next.turn(clocks(1510.0));
    let told = scratch.read(1).lasting.unwrap();
    assert!(told.end_unseen && told.at_least && !told.goes_on());
    // A repeat is still ongoing when the recorder stops: what it saw counts, plus the second that the killed recorder reported.
    next.begin(trigger(1520.0, "core 3"), clocks(1520.1));
    next.finish(clocks(1529.0));
    let told = scratch.read(1).lasting.unwrap();
    assert_eq!((told.lasted_ns, told.at_least), (443 * SECOND, true));
}

#[test]
fn an_incident_is_frozen_at_once_and_whole_when_its_window_is_over() {
    let scratch = Scratch::new(FREEZES);
    let mut incidents = scratch.open();
    incidents.begin(trigger(1000.0, "core 3"), clocks(1000.1));
    let begun = scratch.read(1);
    assert_eq!((begun.state, begun.number, begun.core), (IncidentState::Open, 1, Some(3)));
    assert_eq!(begun.from, Wall(BOOT + 880 * SECOND));
    assert_eq!(begun.until, Wall(BOOT + 1030 * SECOND));
    assert_eq!(incidents.needed_from(), Some(begun.from));
    assert_eq!(incidents.escalation(clocks(1001.0).at), Some((3, 999)));
    settle(&mut incidents, 1000.5);
    assert_eq!(scratch.frozen(1), "first\n");
    assert_eq!(scratch.read(1).frozen, Some(Wall(BOOT + 1000 * SECOND + SECOND / 2)));
    settle(&mut incidents, 1031.0);
    assert_eq!(scratch.read(1).state, IncidentState::Open, "the last second is not in the segments yet");
    settle(&mut incidents, 1032.0);
    settle(&mut incidents, 1032.1);
    assert_eq!(scratch.frozen(1), "first\nwhole\n");
    assert_eq!(scratch.read(1).state, IncidentState::Complete);
    assert_eq!(incidents.needed_from(), None);
    assert_eq!(incidents.counts().get("core-saturated"), Some(&1));
    assert!(incidents.bytes() > 100);
}

#[test]
fn repeats_are_counted_but_marks_are_not() {
    let scratch = Scratch::new(FREEZES);
    let mut incidents = scratch.open();
    for second in [1000.0, 1001.0, 1500.0] {
        incidents.begin(trigger(second, "core 3"), clocks(second));
        settle(&mut incidents, second + 0.5);
        settle(&mut incidents, second + 2.0);
    }
    assert_eq!(scratch.read(1).repeats, 2);
    assert_eq!(scratch.read(1).last_repeat, Some(Wall(BOOT + 1500 * SECOND)));
    settle(&mut incidents, 1600.0);
    incidents.begin(trigger(1601.0, "core 3"), clocks(1601.0));
    incidents.begin(super::super::triggers::mark("a", clocks(1602.0).at), clocks(1602.0));
    incidents.begin(super::super::triggers::mark("a", clocks(1602.0).at), clocks(1602.0));
    assert_eq!(files::numbers(scratch.directory.path()).unwrap(), [1, 2, 3, 4]);
    // The next recorder counts them, too.
    drop(incidents);
    let mut incidents = scratch.open();
    incidents.begin(trigger(1700.0, "core 3"), clocks(1700.0));
    incidents.turn(clocks(1702.0));
    assert_eq!(scratch.read(2).repeats, 1);
}

#[test]
fn a_fourth_at_once_is_added_to_the_third() {
    let scratch = Scratch::new(FREEZES);
    let mut incidents = scratch.open();
    for core in 0..30 {
        incidents.begin(trigger(1000.0, &format!("core {core}")), clocks(1000.0));
    }
    settle(&mut incidents, 1001.0);
    settle(&mut incidents, 1003.0);
    assert_eq!(files::numbers(scratch.directory.path()).unwrap(), [1, 2, 3]);
    let third = scratch.read(3);
    assert_eq!((third.also.len(), third.also_more), (MOST_ALSO, 7));
    assert_eq!(third.also[0].subject, "core 3");
}

#[test]
fn the_next_recorder_completes_what_is_open_and_reuses_no_number() {
    let scratch = Scratch::new("sleep 100");
    let mut incidents = scratch.open();
    incidents.begin(trigger(1000.0, "core 3"), clocks(1000.0));
    std::fs::write(files::part(scratch.directory.path(), 1), "half").unwrap();
    // kill -9: nothing is finished, and the child dies with its recorder.
    drop(incidents);
    let next = Scratch { program: Scratch::new(FREEZES).program, ..scratch };
    let mut incidents = next.open();
    assert!(!files::part(next.directory.path(), 1).exists());
    assert_eq!(incidents.needed_from(), Some(Wall(BOOT + 880 * SECOND)));
    settle(&mut incidents, 2000.0);
    settle(&mut incidents, 2000.2);
    assert_eq!((next.read(1).state, next.frozen(1).as_str()), (IncidentState::Complete, "whole\n"));
    incidents.begin(trigger(2001.0, "core 4"), clocks(2001.0));
    assert_eq!(next.read(2).subject, "core 4");
    // A wall clock that jumped back by a year keeps nothing open for a year.
    let mut past = next.open();
    let mut late = clocks(50.0);
    late.wall.0 -= 365 * 86_400 * SECOND;
    settle_at(&mut past, late);
    late.at = late.at + Duration::from_secs(33);
    settle_at(&mut past, late);
    assert_eq!(next.read(2).state, IncidentState::Complete);
}

#[test]
fn a_freeze_that_keeps_failing_is_given_up_with_the_reason() {
    let scratch = Scratch::new("echo 'coroner: x.coroner: the disk is full' >&2; exit 2");
    let mut incidents = scratch.open();
    incidents.begin(trigger(1000.0, "core 3"), clocks(1000.0));
    let mut second = 1000.0;
    while scratch.read(1).state == IncidentState::Open && second < 2000.0 {
        second += 5.0;
        settle(&mut incidents, second);
    }
    let failed = scratch.read(1);
    assert_eq!(failed.state, IncidentState::Failed);
    assert_eq!(failed.error.as_deref(), Some("x.coroner: the disk is full"));
    assert!((1100.0..1400.0).contains(&second), "{second}");
    assert_eq!(incidents.needed_from(), None);
}

#[test]
fn a_hanging_child_is_killed() {
    let scratch = Scratch::new("exec sleep 1000");
    let mut incidents = scratch.open();
    incidents.begin(trigger(999.0, "core 3"), clocks(999.0));
    incidents.turn(clocks(1000.0));
    incidents.turn(clocks(1029.0));
    assert!(scratch.read(1).error.is_none());
    incidents.turn(clocks(1031.0));
    assert!(scratch.read(1).error.unwrap().contains("longer than 30 s"));
    let limit = std::time::Instant::now() + Duration::from_secs(180);
    while !incidents.ending.is_empty() && std::time::Instant::now() < limit {
        incidents.turn(clocks(1031.1));
    }
    assert!(incidents.ending.is_empty(), "it is still running");
}

#[test]
fn the_oldest_are_evicted_first_and_the_last_number_stays() {
    let mut scratch = Scratch::new(r#"head -c 5000 /dev/zero > "$2/incidents/$3.coroner""#);
    scratch.config.max_size = 20_000;
    scratch.config.quiet = Duration::ZERO;
    let mut incidents = scratch.open();
    for n in 1..=6 {
        let second = n as f64 * 1000.0;
        incidents.begin(trigger(second, "core 3"), clocks(second));
        settle(&mut incidents, second + 1.0);
        settle(&mut incidents, second + 40.0);
        settle(&mut incidents, second + 40.1);
    }
    assert_eq!(files::numbers(scratch.directory.path()).unwrap(), [4, 5, 6]);
    assert!(incidents.bytes() <= 20_000);
    drop(incidents);
    scratch.config.max_size = 1000;
    drop(scratch.open());
    let incidents = scratch.open();
    assert_eq!(files::numbers(scratch.directory.path()).unwrap(), [6]);
    assert!(incidents.bytes() <= 1000);
    assert_eq!(incidents.next, 7);
}

#[test]
fn a_disk_that_cannot_be_written_stops_nothing() {
    let scratch = Scratch::new(FREEZES);
    let mut incidents = scratch.open();
    let (here, away) = (scratch.directory.path().join("incidents"), scratch.directory.path().join("away"));
    std::fs::rename(&here, &away).unwrap();
    incidents.begin(trigger(1000.0, "core 3"), clocks(1000.0));
    settle(&mut incidents, 1005.0);
    assert_eq!(incidents.counts().get("core-saturated"), Some(&1));
    std::fs::rename(&away, &here).unwrap();
    settle(&mut incidents, 1020.0);
    settle(&mut incidents, 1020.1);
    assert_eq!((scratch.read(1).state, scratch.frozen(1).as_str()), (IncidentState::Open, "first\n"));
}

#[test]
fn a_stopping_recorder_freezes_what_is_open() {
    let scratch = Scratch::new(FREEZES);
    let mut incidents = scratch.open();
    incidents.begin(trigger(1000.0, "core 3"), clocks(1000.0));
    settle(&mut incidents, 1001.0);
    incidents.finish(clocks(1005.0));
    assert_eq!((scratch.read(1).state, scratch.frozen(1).as_str()), (IncidentState::Complete, "first\nwhole\n"));
    assert_eq!(scratch.read(1).until, Wall(BOOT + 1005 * SECOND));
}

#[test]
fn the_hook_gets_the_facts_and_runs_not_too_often() {
    let mut scratch = Scratch::new(FREEZES);
    let said = scratch.directory.path().join("said");
    let script = format!(
        r#"echo "$CORONER_INCIDENT_NUMBER $CORONER_INCIDENT_CODE $CORONER_INCIDENT_SUBJECT $CORONER_INCIDENT_STATE skipped $CORONER_INCIDENTS_SKIPPED $1" >> {}"#,
        said.display()
    );
    scratch.config.hook = ["/bin/sh", "-c", &script, "sh", "argument"].map(String::from).to_vec();
    scratch.config.hook_every = Duration::from_secs(600);
    let mut incidents = scratch.open();
    let mut complete = |core: u64, second: f64| {
        incidents.begin(trigger(second, &format!("core {core}")), clocks(second));
        settle(&mut incidents, second + 1.0);
        settle(&mut incidents, second + 33.0);
        settle(&mut incidents, second + 33.1);
        let limit = std::time::Instant::now() + Duration::from_secs(180);
        while incidents.hooks.is_running() && std::time::Instant::now() < limit {
            incidents.turn(clocks(second + 33.2));
        }
    };
    complete(1, 1000.0);
    complete(2, 1100.0);
    complete(3, 1200.0);
    complete(4, 1700.0);
    let said = std::fs::read_to_string(said).unwrap();
    assert_eq!(
        said,
        "1 core-saturated core 1 complete skipped 0 argument\n4 core-saturated core 4 complete skipped 2 argument\n"
    );
}
