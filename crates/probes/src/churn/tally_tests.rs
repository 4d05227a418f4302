//! Sums without a kernel: a fake /proc says who is alive.

use std::collections::BTreeSet;
use std::path::Path;

use coroner_evidence::{CgroupChurn, CgroupFate, Maker, Time};
use proptest::prelude::*;

use super::event::{Event, EventKind, Process};
use super::makers::Makers;
use super::tally::{MAX_ROWS, Tally};
use crate::Root;

const OWN: u32 = 4_000_000;
const NOW: Time = Time(1_000_000_000_000);

fn process(pid: u32, comm: &str) -> Process {
    Process { pid, began: Some(Time(5)), comm: comm.to_owned() }
}

fn event(kind: EventKind, path: &str, chain: &[(u32, &str)]) -> Event {
    Event {
        at: Time(6),
        kind,
        id: 7,
        path: path.to_owned(),
        chain: chain.iter().map(|(pid, comm)| process(*pid, comm)).collect(),
    }
}

fn alive(dir: &Path, pid: u32, comm: &str) {
    let dir = dir.join(format!("proc/{pid}"));
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("comm"), format!("{comm}\n")).unwrap();
    std::fs::write(dir.join("cmdline"), format!("/usr/bin/{comm}\0--serve\0")).unwrap();
    std::fs::write(dir.join("cgroup"), format!("0::/system.slice/{comm}.service\n")).unwrap();
}

fn tell(events: impl IntoIterator<Item = Event>, dir: &Path) -> Vec<CgroupChurn> {
    let (mut tally, mut makers) = (Tally::new(OWN), Makers::new(&Root::at(dir), true));
    for event in events {
        tally.add(event, &mut makers, NOW);
    }
    tally.tell(Time(1), NOW, &makers)
}

fn only(rows: &[CgroupChurn]) -> (&CgroupChurn, &Maker) {
    assert_eq!(rows.len(), 1, "{rows:#?}");
    (&rows[0], rows[0].maker.as_ref().expect("a maker"))
}

#[test]
fn a_shells_commands_count_as_the_shell() {
    let dir = tempfile::tempdir().unwrap();
    alive(dir.path(), 40, "bash");
    let events = (0..300).flat_map(|i| {
        let path = format!("/jobs/agent-{i}");
        [
            event(EventKind::Made, &path, &[(1000 + 2 * i, "mkdir"), (40, "bash"), (1, "systemd")]),
            event(EventKind::Removed, &path, &[(1001 + 2 * i, "rmdir"), (40, "bash"), (1, "systemd")]),
        ]
    });
    let rows = tell(events, dir.path());
    let (row, maker) = only(&rows);
    assert_eq!((row.parent.as_str(), row.pattern.as_str(), row.born, row.removed), ("/jobs", "agent-*", 300, 300));
    assert_eq!((maker.pid, maker.comm.as_str(), maker.processes), (40, "bash", 600));
    assert_eq!(maker.via.as_deref(), Some("mkdir, rmdir"));
    assert_eq!(maker.command.as_deref(), Some("bash"), "no arguments: they may hold secrets");
    assert_eq!(maker.cgroup.as_deref(), Some("/system.slice/bash.service"));
    assert_eq!((maker.parent_pid, maker.parent_comm.as_deref()), (Some(1), Some("systemd")));
}

#[test]
fn a_process_that_makes_many_is_its_own_maker() {
    let dir = tempfile::tempdir().unwrap();
    alive(dir.path(), 40, "kubelet");
    let made = |pid, comm: &'static str| {
        (0..20).map(move |i| event(EventKind::Made, &format!("/pods/pod{i}"), &[(pid, comm), (30, "sh"), (1, "init")]))
    };
    // One is alive; the other has ended, but made too many for a short-lived command.
    let rows = tell(made(40, "kubelet").chain(made(50, "script")), dir.path());
    let makers: BTreeSet<_> =
        rows.iter().map(|r| r.maker.as_ref().map(|m| (m.pid, m.via.clone(), m.processes))).collect();
    assert_eq!(makers, BTreeSet::from([Some((40, None, 1)), Some((50, None, 1))]));
}

#[test]
fn a_service_that_restarts_repeatedly_is_one_row() {
    let dir = tempfile::tempdir().unwrap();
    alive(dir.path(), 1004, "ecs-agent");
    let events =
        (0..5).map(|i| event(EventKind::Made, &format!("/ecs/task-{i}"), &[(1000 + i, "ecs-agent"), (1, "systemd")]));
    let mut rows = tell(events, dir.path());
    // The one still alive is its own maker.
    rows.retain(|r| r.maker.as_ref().is_some_and(|m| m.pid != 1004));
    let (row, maker) = only(&rows);
    assert_eq!((row.born, maker.comm.as_str(), maker.processes), (4, "ecs-agent", 4));
    assert_eq!((maker.via.as_deref(), maker.parent_comm.as_deref()), (None, Some("systemd")));
}

#[test]
fn shims_adopted_by_init_are_one_row() {
    let dir = tempfile::tempdir().unwrap();
    let events = (0..5).map(|i| {
        alive(dir.path(), 500 + i, "containerd-shim");
        event(
            EventKind::Made,
            &format!("/docker/{i:064x}"),
            &[(1000 + i, "runc"), (500 + i, "containerd-shim"), (1, "systemd")],
        )
    });
    let rows = tell(events.collect::<Vec<_>>(), dir.path());
    let (row, maker) = only(&rows);
    assert_eq!((row.born, row.pattern.as_str()), (5, "*"));
    assert_eq!((maker.comm.as_str(), maker.via.as_deref(), maker.processes), ("containerd-shim", Some("runc"), 5));
    assert!(maker.command.is_some() && maker.cgroup.is_some());
}

#[test]
fn freed_cgroups_have_no_maker_and_our_own_are_not_counted() {
    let dir = tempfile::tempdir().unwrap();
    let mut own_freed = event(EventKind::Freed, "/own", &[]);
    own_freed.id = 9;
    let mut own_removed = event(EventKind::Removed, "/own", &[(OWN, "coroner")]);
    own_removed.id = 9;
    let rows = tell(
        [
            event(EventKind::Made, "/own", &[(OWN, "coroner")]),
            own_removed,
            own_freed,
            event(EventKind::Freed, "/a/x1", &[]),
            event(EventKind::Freed, "/a/x2", &[]),
        ],
        dir.path(),
    );
    assert_eq!(rows.len(), 1);
    assert_eq!((rows[0].pattern.as_str(), rows[0].freed, rows[0].maker.as_ref()), ("x*", 2, None));
}

#[test]
fn events_known_only_by_number_get_their_own_row() {
    let dir = tempfile::tempdir().unwrap();
    let makers = Makers::new(&Root::at(dir.path()), true);
    let mut tally = Tally::new(OWN);
    tally.add_unnamed(EventKind::Made, 3);
    tally.add_unnamed(EventKind::Freed, 0);
    let rows = tally.tell(Time(1), NOW, &makers);
    assert_eq!((rows[0].parent.as_str(), rows[0].pattern.as_str(), rows[0].born), ("*", "*", 3));
    assert!(tally.tell(NOW, NOW, &makers).is_empty(), "each is reported once");
}

#[test]
fn rows_are_bounded_and_no_event_is_dropped() {
    let dir = tempfile::tempdir().unwrap();
    // Names without a pattern in many parents, by many makers: 20,000 rows if none were merged.
    let letters = |i: u32| -> String { i.to_string().bytes().map(|b| char::from(b - b'0' + b'a')).collect() };
    let events = (0..20_000).map(|i| {
        let path = format!("/{}/{}", letters(i % 700), letters(i));
        event(EventKind::Made, &path, &[(10 + i, "x"), (1, "systemd")])
    });
    let rows = tell(events, dir.path());
    assert!(rows.len() <= MAX_ROWS, "{}", rows.len());
    assert_eq!(rows.iter().map(|r| r.born).sum::<u64>(), 20_000);
    assert!(rows.iter().any(|r| r.parent == "*"));
}

const SECOND: u64 = 1_000_000_000;

fn numbered(kind: EventKind, id: u64, at: u64, path: &str, chain: &[(u32, &str)]) -> Event {
    Event { id, at: Time(at * SECOND), ..event(kind, path, chain) }
}

/// What a maker made, what was removed and freed of it, what is left, and what of that was freed later.
fn fate<'r>(rows: &'r [CgroupFate], comm: &str) -> (u64, u64, u64, &'r [u64], &'r [u64]) {
    let row = rows.iter().find(|row| row.maker.comm == comm).unwrap_or_else(|| panic!("{comm}: {rows:#?}"));
    (row.born, row.removed, row.freed, &row.left, &row.left_freed)
}

#[test]
fn who_leaves_dead_cgroups_is_told_from_who_does_not() {
    let dir = tempfile::tempdir().unwrap();
    for (pid, comm) in [(40, "tidy"), (50, "leaker")] {
        alive(dir.path(), pid, comm);
    }
    let (mut tally, mut makers) = (Tally::new(OWN), Makers::new(&Root::at(dir.path()), true));
    let (tidy, leaker) = ([(40, "tidy"), (1, "systemd")], [(50, "leaker"), (1, "systemd")]);
    let mut add = |tally: &mut Tally, event| tally.add(event, &mut makers, Time(9 * SECOND));
    // The same parent and the same names. The tidy one makes more, and removes what the other made, too.
    for i in 0..60 {
        let path = format!("/jobs/job-{i}");
        let maker = if i < 20 { &leaker } else { &tidy };
        add(&mut tally, numbered(EventKind::Made, 100 + i, 1, &path, maker));
        add(&mut tally, numbered(EventKind::Removed, 100 + i, 2, &path, &tidy));
        if i >= 20 {
            add(&mut tally, numbered(EventKind::Freed, 100 + i, 3, &path, &[]));
        }
    }
    // Still alive, and just removed.
    add(&mut tally, numbered(EventKind::Made, 200, 4, "/jobs/job-70", &leaker));
    add(&mut tally, numbered(EventKind::Made, 201, 4, "/jobs/job-71", &leaker));
    add(&mut tally, numbered(EventKind::Removed, 201, 5, "/jobs/job-71", &leaker));
    // Made before we looked.
    add(&mut tally, numbered(EventKind::Removed, 7, 5, "/jobs/job-80", &leaker));
    let makers = Makers::new(&Root::at(dir.path()), true);
    let to = Time(5 * SECOND + SECOND / 10);
    tally.tell(Time(1), to, &makers);
    let rows = tally.tell_fates(Time(1), to, false);
    assert_eq!(fate(&rows, "tidy"), (40, 40, 40, &[][..], &[][..]));
    assert_eq!(fate(&rows, "leaker"), (22, 21, 0, &(100..120).collect::<Vec<_>>()[..], &[][..]));

    // Those of one are freed after all; the one removed a moment ago is left, too. Each is told once.
    tally.add(
        numbered(EventKind::Freed, 105, 6, "/jobs/job-5", &[]),
        &mut Makers::new(&Root::at(dir.path()), true),
        to,
    );
    tally.tell(to, Time(7 * SECOND), &makers);
    let rows = tally.tell_fates(to, Time(7 * SECOND), false);
    assert_eq!((rows.len(), fate(&rows, "leaker")), (1, (0, 0, 1, &[201][..], &[105][..])));
    assert!(tally.tell_fates(to, Time(8 * SECOND), true).is_empty());
}

#[test]
fn the_last_row_has_also_what_was_removed_a_moment_ago() {
    let dir = tempfile::tempdir().unwrap();
    alive(dir.path(), 50, "leaker");
    let (mut tally, mut makers) = (Tally::new(OWN), Makers::new(&Root::at(dir.path()), true));
    let chain = [(50, "leaker"), (1, "systemd")];
    tally.add(numbered(EventKind::Made, 3, 1, "/jobs/a", &chain), &mut makers, Time(9));
    tally.add(numbered(EventKind::Removed, 3, 2, "/jobs/a", &chain), &mut makers, Time(9));
    tally.tell(Time(1), Time(2 * SECOND), &makers);
    assert_eq!(fate(&tally.tell_fates(Time(1), Time(2 * SECOND), false), "leaker"), (1, 1, 0, &[][..], &[][..]));
    assert_eq!(fate(&tally.tell_fates(Time(1), Time(2 * SECOND), true), "leaker"), (0, 0, 0, &[3][..], &[][..]));
}

#[test]
fn what_is_followed_is_bounded() {
    let dir = tempfile::tempdir().unwrap();
    alive(dir.path(), 50, "leaker");
    let (mut tally, mut makers) = (Tally::new(OWN), Makers::new(&Root::at(dir.path()), true));
    let chain = [(50, "leaker"), (1, "systemd")];
    let (mut born, mut left) = (0, BTreeSet::new());
    for second in 1..=50 {
        for i in 0..1_500 {
            let id = second * 10_000 + i;
            tally.add(numbered(EventKind::Made, id, second, "/jobs/job-1", &chain), &mut makers, Time(9));
            tally.add(numbered(EventKind::Removed, id, second, "/jobs/job-1", &chain), &mut makers, Time(9));
        }
        let to = Time((second + 1) * SECOND);
        tally.tell(Time(1), to, &makers);
        for row in tally.tell_fates(Time(1), to, false) {
            assert!(row.left.len() <= 2_000);
            born += row.born;
            left.extend(row.left);
        }
    }
    // Those that were told make room for new ones.
    assert_eq!((born, left.len()), (75_000, 75_000));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn no_event_is_lost(
        events in proptest::collection::vec((0u8..3, "(/[a-z0-9]{0,3}){0,3}", 0u32..12, 0u32..6, 0usize..4), 0..300),
    ) {
        let dir = tempfile::tempdir().unwrap();
        alive(dir.path(), 3, "sh");
        let mut sums = [0u64; 3];
        let events = events.into_iter().map(|(kind, path, pid, parent, ancestors)| {
            sums[usize::from(kind)] += 1;
            let chain = [(pid, "sh"), (parent, "containerd-shim"), (2, "x"), (1, "init")];
            event(EventKind::ALL[usize::from(kind)], &path, &chain[..ancestors])
        }).collect::<Vec<_>>();
        let rows = tell(events, dir.path());
        prop_assert!(rows.len() <= MAX_ROWS);
        let told = rows.iter().fold([0; 3], |s, r| [s[0] + r.born, s[1] + r.removed, s[2] + r.freed]);
        prop_assert_eq!(told, sums);
    }
}
