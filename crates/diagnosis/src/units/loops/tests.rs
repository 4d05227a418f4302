use super::*;
use crate::rules::test_evidence::{END, start, watched};
use coroner_evidence::UnitLogLine;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

const NOW_NS: u64 = 1_750_000_000_000_000_000;
const SECOND: u64 = 1_000_000_000;

/// A look `ago` seconds before the end, at a service that started a second earlier.
fn look(ago: u64, restarts: u32, invocation: &str) -> Unit {
    let at = start(ago);
    Unit {
        at,
        name: "x.service".into(),
        load_state: "loaded".into(),
        active_state: "active".into(),
        sub_state: "running".into(),
        result: Some("success".into()),
        restarts: Some(restarts),
        invocation_id: Some(invocation.into()),
        main_started: Some(at - Duration::from_secs(1)),
        ..Unit::default()
    }
}

fn waiting(ago: u64, restarts: u32, invocation: &str) -> Unit {
    let mut unit = look(ago, restarts, invocation);
    (unit.active_state, unit.sub_state) = ("activating".into(), "auto-restart".into());
    (unit.result, unit.exit_kind, unit.exit_status) = (Some("exit-code".into()), Some("exited".into()), Some(5));
    unit
}

fn seen(looks: Vec<Unit>) -> Evidence {
    let oldest = looks.iter().map(|u| u.at).min().unwrap_or(END);
    Evidence { units: looks, ..watched(END.since(oldest).as_secs()) }
}

fn restart(ago: u64, n: u32) -> UnitLogLine {
    UnitLogLine {
        unit: "x.service".into(),
        at: Wall(NOW_NS - ago * SECOND),
        text: format!("x.service: Scheduled restart job, restart counter is at {n}."),
        restart: Some(n),
    }
}

#[track_caller]
fn only(evidence: &Evidence) -> Loop<'_> {
    let mut loops = loops(evidence);
    assert_eq!(loops.len(), 1, "{loops:#?}");
    loops.remove(0)
}

#[test]
fn a_count_that_was_reset_between_two_looks_still_counts() {
    // Each of these is a loop: 900 → 4, 5 → 5 with another start, and repeated resets.
    for (counts, restarts) in [(&[900, 4][..], 4), (&[5, 5], 5), (&[900, 904, 2, 6, 1], 4 + 2 + 4 + 1)] {
        let n = counts.len() as u64;
        let looks = counts.iter().enumerate().map(|(i, c)| look((n - 1 - i as u64) * 10, *c, &i.to_string()));
        let evidence = seen(looks.collect());
        let l = only(&evidence);
        assert_eq!((l.how, l.in_window.unwrap().0), (How::Seen, restarts), "{counts:?}");
    }
}

#[test]
fn a_loop_whose_count_is_always_reset_shows_in_the_waiting_state() {
    // Somebody keeps running reset-failed: the count is 0 at every look.
    let looks = (0..10).map(|i| waiting(90 - i * 10, 0, &i.to_string()));
    let evidence = seen(looks.collect());
    let l = only(&evidence);
    assert_eq!((l.how, l.in_window.unwrap()), (How::Seen, (9, Duration::from_secs(90))));
}

#[test]
fn a_queued_restart_was_already_counted() {
    let mut queued = waiting(10, 1, "a");
    queued.sub_state = "auto-restart-queued".into();
    assert!(loops(&seen(vec![queued, look(0, 1, "b")])).is_empty());
    // The same start, although the invocation was read a moment before.
    let mut later = look(0, 5, "b");
    later.main_started = look(10, 5, "a").main_started;
    assert!(loops(&seen(vec![look(10, 5, "a"), later])).is_empty());
    // Not more than systemd had time for.
    let mut late = look(0, 900, "b");
    late.restart_delay_us = Some(5_000_000);
    let evidence = seen(vec![look(10, 900, "a"), late]);
    assert_eq!(only(&evidence).in_window, Some((3, Duration::from_secs(10))));
}

#[test]
fn an_administrators_restarts_do_not_count() {
    assert!(loops(&seen(vec![look(20, 0, "a"), look(10, 0, "b"), look(0, 0, "c")])).is_empty());
    assert!(loops(&seen(vec![look(20, 7, "a"), look(10, 0, "b"), look(0, 0, "c")])).is_empty());
}

#[test]
fn losing_sight_of_a_unit_changes_nothing() {
    let blind = |ago| Unit { at: start(ago), name: "x.service".into(), ..Unit::default() };
    let evidence = seen(vec![look(30, 3, "a"), blind(20), look(10, 9, "b"), blind(0)]);
    let l = only(&evidence);
    assert_eq!((l.how, l.in_window.unwrap(), l.unit.restarts), (How::Seen, (6, Duration::from_secs(20)), Some(9)));
    let evidence = seen(vec![waiting(20, 40, "a"), blind(0)]);
    assert_eq!(only(&evidence).how, How::Waiting);
    assert!(loops(&seen(vec![blind(30), look(20, 2, "a"), blind(10), look(0, 2, "a")])).is_empty());
}

#[test]
fn two_crashes_in_a_day_are_no_loop() {
    let hours = |h: u64| h * 3600;
    let evidence =
        seen(vec![look(hours(24), 0, "a"), look(hours(20), 1, "b"), look(hours(3), 2, "c"), look(0, 2, "c")]);
    let l = only(&evidence);
    assert_eq!((l.how, l.in_window.unwrap().0), (How::Once, 2));
    // One every 20 minutes is.
    let looks = (0..12).map(|i| look(hours(4) - i * 1200, i as u32, &i.to_string()));
    let evidence = seen(looks.collect());
    assert_eq!(only(&evidence).how, How::Seen);
}

#[test]
fn a_loop_that_is_over_says_so_with_the_rate_it_had() {
    let mut looks: Vec<Unit> = (0..60).map(|i| look(36_000 - i * 10, i as u32, &i.to_string())).collect();
    looks.push(Unit { main_started: looks[59].main_started, ..look(0, 59, "59") });
    let evidence = seen(looks);
    let l = only(&evidence);
    assert_eq!((l.how, l.per_hour.unwrap().round()), (How::Seen, 360.0));
    assert_eq!(l.over_for.unwrap().as_secs(), 35_410);
    assert_eq!(l.trend, Some(Trend::Better), "{:?}", l.halves);
}

#[test]
fn since_when_and_whether_it_gets_worse() {
    // One every 20 s in the older half, one every 5 s in the newer.
    let mut looks = vec![look(1000, 0, "first")];
    let mut n = 0;
    for ago in (0..990).rev().step_by(5) {
        n += u32::from(ago < 500 || ago % 20 < 5);
        looks.push(look(ago, n, &n.to_string()));
    }
    let evidence = seen(looks);
    let l = only(&evidence);
    assert_eq!(l.trend, Some(Trend::Worse), "{:?}", l.halves);
    assert!(l.halves.unwrap().newer > 2 * l.halves.unwrap().older);
    assert!(l.since_is_exact, "its first restart was seen");
    let age = (NOW_NS - l.since.unwrap().0) / SECOND;
    assert!((950..=1000).contains(&age), "{age}");
    assert_eq!(l.rate_from, FROM_WATCHING);
}

#[test]
fn two_looks_give_no_trend() {
    let evidence = seen(vec![look(60, 0, "a"), look(0, 60, "b")]);
    assert_eq!((only(&evidence).trend, only(&evidence).halves), (None, None));
}

#[test]
fn a_journal_that_was_read_when_the_watch_began_does_not_make_a_loop_seem_to_end() {
    // Four per second: in the journal before the ten seconds of watching, by looks during them.
    let mut evidence = seen(vec![look(10, 40, "a"), look(0, 80, "b")]);
    evidence.unit_log = (1..=40)
        .map(|n| UnitLogLine { at: Wall(NOW_NS - 20 * SECOND + n * SECOND / 4), ..restart(0, n as u32) })
        .collect();
    assert_eq!(only(&evidence).trend, Some(Trend::Steady), "{:?}", only(&evidence).halves);
}

#[test]
fn the_journal_knows_earlier_restarts() {
    // Watched for 5 s, nothing happened; 12 restarts within the last three hours.
    let mut unit = look(0, 12, "a");
    unit.main_started = Some(start(300));
    let mut evidence = Evidence { units: vec![Unit { at: start(5), ..unit.clone() }, unit], ..watched(5) };
    evidence.unit_log = (1..=12).map(|n| restart(10_800 - (n - 1) * 950, n as u32)).collect();
    let l = only(&evidence);
    assert_eq!((l.how, l.in_window, l.rate_from), (How::History, None, FROM_JOURNAL));
    assert_eq!(l.per_hour.unwrap().round(), 4.0);
    assert_eq!((l.since, l.since_is_exact), (Some(Wall(NOW_NS - 10_800 * SECOND)), true));
    assert_eq!(l.trend, Some(Trend::Steady), "{:?}", l.halves);
    // Quiet since then: it has recovered.
    for line in &mut evidence.unit_log {
        line.at.0 -= 7200 * SECOND;
    }
    evidence.units.iter_mut().for_each(|u| u.main_started = Some(start(7000)));
    assert!(loops(&evidence).is_empty());
}

#[test]
fn the_journal_counts_restarts_of_the_window_that_no_look_saw() {
    let mut evidence = Evidence { units: vec![look(60, 0, "a")], ..watched(60) };
    evidence.unit_log = vec![restart(50, 1), restart(30, 2), restart(10, 3)];
    let l = only(&evidence);
    // Nothing is known after the last of them.
    assert_eq!((l.how, l.in_window), (How::Seen, Some((3, Duration::from_secs(50)))));
    // Earlier restarts are not in the window.
    evidence.unit_log = vec![restart(50_000, 1), restart(20, 2)];
    assert_eq!(only(&evidence).how, How::Once);
}

#[test]
fn the_restart_delay_gives_a_minimum_age() {
    let mut unit = waiting(0, 68_680 / 12, "a");
    unit.restart_delay_us = Some(15_000_000);
    let evidence = seen(vec![unit]);
    let l = only(&evidence);
    let hours = (NOW_NS - l.since.unwrap().0) / SECOND / 3600;
    assert_eq!((l.how, hours, l.since_is_exact), (How::Waiting, 23, false));
}

#[test]
fn a_unit_restarted_by_another_unit_after_each_failure_loops_uncounted() {
    let upheld = |ago: u64, invocation: &str| Unit {
        active_state: "failed".into(),
        sub_state: "failed".into(),
        result: Some("exit-code".into()),
        main_started: Some(start(ago) + Duration::from_millis(500)),
        ..look(ago, 0, invocation)
    };
    let looks = [(8, "a"), (6, "b"), (4, "c"), (2, "d"), (1, "e")].map(|(ago, id)| upheld(ago, id));
    let looks: Vec<Unit> = looks
        .windows(2)
        .map(|pair| Unit { main_started: Some(pair[0].at + Duration::from_millis(500)), ..pair[1].clone() })
        .collect();
    assert_eq!(only(&seen(looks)).how, How::Seen);
}

#[test]
fn a_timers_job_is_no_loop_unless_systemd_restarts_it() {
    let job = |ago, restarts, invocation: &str| Unit {
        service_type: Some("oneshot".into()),
        ..look(ago, restarts, invocation)
    };
    assert!(loops(&seen(vec![job(20, 0, "a"), job(10, 0, "b"), job(0, 1, "c")])).is_empty());
    assert!(!loops(&seen(vec![job(20, 0, "a"), job(0, 40, "c")])).is_empty(), "Restart=on-failure");
}

prop_compose! {
    /// A service that systemd never restarts: people start it, it fails at times and is left alone, and not every look sees all.
    fn healthy()(
        at in 0u64..100_000, invocation in prop::option::of(0u8..9), restarts in prop::option::of(Just(0u32)),
        state in select(&[("active", "running"), ("inactive", "dead"), ("failed", "failed"), ("activating", "start")][..]),
        started in prop::option::of(0u64..100_000), result in select(&["success", "exit-code"][..]),
    ) -> Unit {
        Unit {
            at: start(at), name: "x.service".into(), active_state: state.0.into(), sub_state: state.1.into(),
            restarts, invocation_id: invocation.map(|i| i.to_string()), main_started: started.map(start),
            result: Some(result.into()), ..Unit::default()
        }
    }
}

proptest! {
    #[test]
    fn no_order_and_no_gap_makes_a_loop_of_a_healthy_unit(looks in vec(healthy(), 0..40)) {
        // Two quick manual starts may look automatic, but they are no loop.
        prop_assert!(loops(&seen(looks)).iter().all(|l| !l.is_loop()));
    }

    /// It crashed a few times once, and has been up since.
    #[test]
    fn an_old_count_that_does_not_rise_is_no_loop(
        n in 0u32..9, ago in vec(0u64..100_000, 1..30), blind in vec(any::<bool>(), 30),
    ) {
        let looks = ago.iter().zip(&blind).map(|(ago, blind)| Unit {
            main_started: Some(start(150_000)), restarts: Some(n).filter(|_| !blind), ..look(*ago, n, "a")
        });
        prop_assert!(loops(&seen(looks.collect())).is_empty());
    }

    #[test]
    fn the_order_of_the_evidence_does_not_matter(
        looks in vec((0u64..3000, 0u32..30, 0u8..3, any::<bool>()), 1..20).prop_shuffle(), lines in vec((0u64..9000, 0u32..9), 0..20),
    ) {
        let units = looks.iter().map(|(ago, n, id, wait)| {
            if *wait { waiting(*ago, *n, &id.to_string()) } else { look(*ago, *n, &id.to_string()) }
        });
        let mut evidence = Evidence { units: units.collect(), ..watched(3000) };
        evidence.unit_log = lines.iter().map(|(ago, n)| restart(*ago, *n)).collect();
        let tell = |e: &Evidence| loops(e).iter().map(|l| (l.how, l.in_window, l.since, l.trend)).collect::<Vec<_>>();
        let before = tell(&evidence);
        evidence.units.reverse();
        evidence.unit_log.reverse();
        prop_assert_eq!(before, tell(&evidence));
        for l in loops(&evidence) {
            prop_assert!(l.per_hour.is_none_or(|rate| rate.is_finite() && rate >= 0.0));
            prop_assert_eq!(l.trend.is_some(), l.halves.is_some());
        }
    }
}
