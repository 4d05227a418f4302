use super::*;
use crate::views::made::{MS, Made};

fn find(made: &Made) -> Vec<Monopoly> {
    let mut finder = Finder::new(MonopolyOptions::default());
    made.samples.iter().for_each(|sample| finder.add(&made.names, sample));
    finder.finish(&made.names)
}

/// Two threads alternate every millisecond, except in `burst`, when `taken` has the core.
fn with_burst(made: &mut Made, until: u64, taken: TaskId, burst: std::ops::Range<u64>) {
    let turns = [made.task("a", 10), made.task("b", 11)];
    for ms in 0..until {
        let task = if burst.contains(&ms) { taken } else { turns[(ms / 2 % 2) as usize] };
        made.tick(ms * MS, task);
    }
}

#[test]
fn the_rate_may_change_within_a_run() {
    let mut made = Made::default();
    let (hog, turns) = (made.task("hog", 66), [made.task("a", 10), made.task("b", 11)]);
    let (mut time, mut n) = (0, 0);
    while time < 5000 * MS {
        let task = if (1000 * MS..3000 * MS).contains(&time) { hog } else { turns[n % 2] };
        made.tick(time, task);
        n += 1;
        time += if (1500 * MS..2000 * MS).contains(&time) { 1_001_001 } else { 20_408_163 };
    }
    let found = find(&made);
    assert_eq!(found.len(), 1);
    let hog = &found[0];
    assert_eq!((hog.gaps, hog.unseen, hog.begin, hog.end), (0, 0, Edge::Thread, Edge::Thread));
    assert!(hog.uncertainty > 15 * MS && hog.uncertainty < 25 * MS, "{}", hog.uncertainty);
    assert!(hog.length.abs_diff(2000 * MS) <= hog.uncertainty, "{}", hog.length);
}

#[test]
fn a_gap_is_reported_and_is_no_run() {
    let mut made = Made::default();
    let hog = made.task("hog", 66);
    with_burst(&mut made, 2000, hog, 1000..1400);
    let whole = made.samples.clone();
    let without = |from: u64, until: u64| {
        let samples = whole.iter().filter(|sample| !(from * MS..until * MS).contains(&sample.time.unwrap_or(0)));
        Made { names: made.names.clone(), samples: samples.copied().collect() }
    };
    let found = find(&without(1150, 1200));
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].length, found[0].gaps, found[0].longest_gap), (400 * MS, 1, 50 * MS));
    // A gap as long as the threshold may hide anything, so there are two runs.
    let found = find(&without(1130, 1260));
    assert_eq!(found.iter().map(|found| found.length / MS).collect::<Vec<_>>(), [140, 130]);
    assert_eq!((found[0].begin, found[1].end), (Edge::Silence, Edge::Silence));
    // 320 ms from first to last, of which 90 were seen.
    let holes = without(1040, 1130);
    let samples = holes.samples.iter().filter(|sample| !(1150 * MS..1240 * MS).contains(&sample.time.unwrap_or(0)));
    let samples = samples.filter(|sample| !(1270 * MS..1400 * MS).contains(&sample.time.unwrap_or(0))).copied();
    assert_eq!(find(&Made { names: holes.names.clone(), samples: samples.collect() }), []);
}

#[test]
fn a_pause_ends_a_run_if_idle_cores_are_not_sampled() {
    let mut made = Made::default();
    let (nap, hog) = (made.task("nap", 10), made.task("hog", 66));
    let stack = made.stack(&["main"]);
    // 30 ms of work, 60 ms of nothing; then 300 ms of work.
    for ms in (0..3000u64).filter(|ms| ms % 90 < 30) {
        made.sample("cycles:P", 1, ms * MS, nap, stack);
    }
    for ms in 3100..3400 {
        made.sample("cycles:P", 1, ms * MS, hog, stack);
    }
    let found = find(&made);
    assert_eq!(found.iter().map(|found| made.comm(found.task)).collect::<Vec<_>>(), ["hog"]);
    assert_eq!((found[0].length / MS, found[0].begin, found[0].end), (300, Edge::Silence, Edge::Recording));
}

/// A core never seen idle, as some kernels deliver no idle samples. Silence that ends on the clock's beat may be sleep; off the
/// beat it is stolen time.
#[test]
fn sleep_ends_a_run_and_stolen_time_does_not() {
    const PERIOD: u64 = 1_001_001;
    let mut made = Made::default();
    let (hog, turns) = (made.task("hog", 66), [made.task("a", 10), made.task("b", 11)]);
    let ticks = |made: &mut Made, silent: std::ops::Range<u64>, late: u64| {
        for n in 0..2000u64 {
            let task = if (1000..1400).contains(&n) { hog } else { turns[(n / 2 % 2) as usize] };
            if !silent.contains(&n) {
                made.tick(n * PERIOD, task);
            } else if n + 1 == silent.end && late > 0 {
                made.tick(n * PERIOD + late, task);
            }
        }
        made.samples.iter_mut().for_each(|sample| sample.period = PERIOD);
        let found: Vec<(u64, u64)> = find(made).iter().map(|found| (found.length / PERIOD, found.gaps)).collect();
        made.samples.clear();
        found
    };
    assert_eq!(ticks(&mut made, 0..0, 0), [(400, 0)]);
    assert_eq!(ticks(&mut made, 1150..1170, 0), [(230, 0), (150, 0)]);
    assert_eq!(ticks(&mut made, 1150..1170, 400_000), [(400, 1)]);
    assert_eq!(
        ticks(&mut made, 990..1010, 400_000),
        [(390, 0)],
        "unknown what happened in the silence between two threads"
    );
}

#[test]
fn tracepoints_neither_end_nor_make_runs() {
    let mut made = Made::default();
    let (hog, other) = (made.task("hog", 66), made.task("other", 67));
    let stack = made.stack(&["schedule_[k]"]);
    with_burst(&mut made, 2000, hog, 1000..1400);
    let want = find(&made);
    for ms in 0..2000 {
        for _ in 0..20 {
            made.sample("sched:sched_switch", 1, ms * MS + 10, other, stack);
        }
    }
    made.samples.sort_by_key(|sample| sample.time);
    assert_eq!(find(&made), want);
    assert_eq!(want.len(), 1);
    let mut finder = Finder::new(MonopolyOptions::default());
    made.samples.iter().for_each(|sample| finder.add(&made.names, sample));
    assert_eq!((finder.coverage().used, finder.coverage().other_events), (2000, 40_000));
}

#[test]
fn a_thread_is_identified_by_tid_not_name() {
    let mut made = Made::default();
    let [before, after] = ["exec", "java"].map(|comm| made.task(comm, 66));
    with_burst(&mut made, 2000, before, 1000..1400);
    made.samples[1000..1100].iter_mut().for_each(|sample| sample.task = after);
    let found = find(&made);
    assert_eq!((found.len(), found[0].length / MS), (1, 400));
    assert_eq!((made.comm(found[0].task), made.comm(found[0].also[0])), ("exec", "java"));
    // The same tid in another process is another thread.
    let reused = made.task_of("other", Some(99), Some(66));
    made.samples[1000..1200].iter_mut().for_each(|sample| sample.task = reused);
    let lengths: Vec<u64> = find(&made).iter().map(|found| found.length / MS).collect();
    assert_eq!(lengths, [200, 200]);
    // Without a tid the name identifies it; the idle task never has a run.
    let named = made.task_of("named", None, None);
    made.samples[1000..1400].iter_mut().for_each(|sample| sample.task = named);
    assert_eq!(find(&made).len(), 1);
    let idle = made.task("swapper", 0);
    made.samples[1000..1400].iter_mut().for_each(|sample| sample.task = idle);
    assert_eq!(find(&made), []);
}

#[test]
fn interrupts_join_and_end_no_thread_run_and_have_their_own() {
    let mut made = Made::default();
    let hog = made.task("hog", 66);
    let softirq = made.stack(&["main", "asm_common_interrupt_[k]", "handle_softirqs_[k]", "net_rx_action_[k]"]);
    with_burst(&mut made, 3000, hog, 1000..1400);
    made.samples[1100..1150].iter_mut().for_each(|sample| sample.stack = softirq);
    let found = find(&made);
    assert_eq!((found.len(), found[0].length / MS, found[0].samples, found[0].interrupts), (1, 400, 350, 50));
    // An interrupt storm on top of the thread.
    made.samples[2000..2300].iter_mut().for_each(|sample| sample.stack = softirq);
    let found = find(&made);
    assert_eq!(
        found.iter().map(|found| (found.by, found.length / MS)).collect::<Vec<_>>(),
        [(By::Thread, 400), (By::Interrupts, 300)]
    );
    // Idle ends a run.
    let idle = made.task("swapper", 0);
    made.samples[1200].task = idle;
    assert_eq!(find(&made).iter().filter(|found| found.by == By::Thread).count(), 2);
}

/// At 49 Hz one of two alternating threads has five samples in a row about every second; a rare thread does not.
#[test]
fn what_chance_explains_is_left_out() {
    let mut made = Made::default();
    let turns = [made.task("a", 10), made.task("b", 11)];
    let rare = made.task("rare", 66);
    let mut draw = 12345u64;
    for n in 0..49 * 600u64 {
        draw = draw.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let task = if (20_000..20_006).contains(&n) { rare } else { turns[(draw >> 33) as usize % 2] };
        made.tick(n * 20_408_163, task);
    }
    let found = find(&made);
    let names: Vec<&str> = found.iter().map(|found| made.comm(found.task)).collect();
    assert!(names.iter().filter(|name| **name == "rare").count() == 1, "{names:?}");
    // Ten minutes of fair turns: a thousand candidates; one in a thousand of all runs may stay.
    assert!(names.len() <= 25, "{}", names.len());
    let mut finder = Finder::new(MonopolyOptions::default());
    made.samples.iter().for_each(|sample| finder.add(&made.names, sample));
    assert!(finder.coverage().by_chance > 300, "{:?}", finder.coverage());
}

/// A thread has a core for 700 ms of each of two seconds. In the first the core is sampled at 49 Hz, in the second at 999.
#[test]
fn a_faster_rate_afterwards_does_not_turn_a_run_into_chance() {
    let mut made = Made::default();
    let others = [made.task("a", 10), made.task("b", 11)];
    let hog = made.task("hog", 66);
    let (mut time, mut n) = (0, 0);
    while time < 60_000 * MS {
        let (second, ms) = (time / (1000 * MS), time / MS % 1000);
        let held = (30..32).contains(&second) && ms < 700;
        made.tick(time, if held { hog } else { others[n % 2] });
        n += 1;
        time += if (31..41).contains(&second) { MS } else { 20_408_163 };
    }
    let lengths: Vec<u64> = find(&made).iter().map(|found| found.length / MS).collect();
    assert!(matches!(lengths[..], [680..=725, 680..=705]), "{lengths:?}");
}

/// Samples at this rate; `who` has the core at a given time.
fn sampled(made: &mut Made, hz: u64, seconds: u64, mut who: impl FnMut(u64) -> TaskId) {
    for n in 0..hz * seconds {
        let time = n * 1_000_000_000 / hz;
        let stack = made.stack(&["main", "work"]);
        made.sample_for(1_000_000_000 / hz, 1, time, who(time / MS), stack);
    }
}

/// A real-time thread from second 20 on that the kernel takes off the core for the last 50 ms of each second, and for 300 ms
/// once in a while. Others have these pauses, or the core idles, as before Linux 6.12.
#[test]
fn a_throttled_real_time_thread_has_one_run_with_its_share() {
    for hz in [49, 99, 999] {
        for pauses_are in ["ksoftirqd/1", "swapper"] {
            let mut made = Made::default();
            let turns = [made.task("a", 10), made.task("b", 11)];
            let spinner = made.task("spinner", 66);
            let other = if pauses_are == "swapper" { made.task("swapper", 0) } else { made.task(pauses_are, 30) };
            let long = |ms: u64| pauses_are != "swapper" && ms / 1000 % 40 == 39 && ms % 1000 >= 700;
            sampled(&mut made, hz, 400, |ms| match ms {
                20_000..380_000 if ms % 1000 >= 950 || long(ms) => other,
                20_000..380_000 => spinner,
                _ => turns[(ms / 3 % 2) as usize],
            });
            let found = find(&made);
            let told: Vec<(&str, u64)> = found.iter().map(|f| (made.comm(f.task), f.length / MS)).collect();
            let [("spinner", 359_900..=360_000), shorter @ ..] = &told[..] else {
                panic!("{hz} {pauses_are}: {told:?}")
            };
            // The long pauses are runs of their own, given enough samples.
            assert!(shorter.iter().all(|(who, length)| *who == pauses_are && *length < 350), "{hz}: {told:?}");
            let spinner = &found[0];
            assert_eq!(spinner.pauses, 359, "{hz} {pauses_are}");
            let share = if pauses_are == "swapper" { 0.95 } else { 0.944 };
            assert!((spinner.share() - share).abs() < 0.012, "{hz} {pauses_are}: {}", spinner.share());
            assert_eq!(spinner.foreign > 0, pauses_are != "swapper", "an idle core is nobody's");
            assert_eq!(
                (spinner.begin, spinner.before.map(|task| made.comm(task) != "spinner")),
                (Edge::Thread, Some(true))
            );
        }
    }
}

/// At the recorder's rate two seconds are enough: 46 samples in a row alone could be chance for a thread with nine tenths of the
/// core.
#[test]
fn a_throttled_thread_is_found_after_two_seconds_at_49_hz() {
    let mut made = Made::default();
    let turns = [made.task("a", 10), made.task("b", 11)];
    let spinner = made.task("spinner", 66);
    sampled(&mut made, 49, 40, |ms| match ms {
        20_000..22_000 if ms % 1000 < 950 => spinner,
        _ => turns[(ms / 7 % 2) as usize],
    });
    let found = find(&made);
    let told: Vec<(u64, u64)> = found.iter().map(|found| (found.length / MS, found.pauses)).collect();
    assert!(matches!(told[..], [(1900..=1990, 1)]), "{told:?}");
}

#[test]
fn runs_of_alternating_threads_are_not_merged() {
    for hz in [49, 99, 999] {
        // The length of their turns, in ms.
        for (own, others) in [(2, 2), (7, 3), (60, 60), (90, 30), (500, 500), (400, 100), (800, 200)] {
            let mut made = Made::default();
            let turns = [made.task("a", 10), made.task("b", 11)];
            sampled(&mut made, hz, 120, |ms| turns[usize::from(ms % (own + others) >= own)]);
            let told: Vec<(u64, u64)> = find(&made).iter().map(|found| (found.length / MS, found.pauses)).collect();
            assert!(told.iter().all(|(_, pauses)| *pauses == 0), "{hz} Hz, turns of {own} and {others} ms: {told:?}");
            let longest = told.iter().map(|(length, _)| *length).max().unwrap_or(0);
            assert!(own < 20 || longest <= own + 1000 / hz, "{hz} Hz, turns of {own} and {others} ms: {told:?}");
        }
    }
}

/// A run continues after a pause only if what follows is longer than the pause.
#[test]
fn a_moment_after_a_run_is_not_part_of_it() {
    let mut made = Made::default();
    let turns = [made.task("a", 10), made.task("b", 11)];
    let hog = made.task("hog", 66);
    sampled(&mut made, 999, 10, |ms| match ms {
        2000..3000 | 3040..3060 => hog,
        _ => turns[(ms / 3 % 2) as usize],
    });
    let found = find(&made);
    assert_eq!(found.iter().map(|found| (found.length / MS, found.pauses)).collect::<Vec<_>>(), [(999, 0)]);
    assert_eq!(found[0].after.map(|after| made.comm(after)), Some("a"), "the first to run after it");
}

#[test]
fn concatenated_files_are_kept_apart() {
    let mut made = Made::default();
    let hog = made.task("hog", 66);
    with_burst(&mut made, 1400, hog, 1000..1400);
    // Begins with the thread that the first ended with.
    for ms in 0..90 {
        made.tick(ms * MS, hog);
    }
    let found = find(&made);
    assert_eq!((found.len(), found[0].length / MS, found[0].end), (1, 400, Edge::Recording));
    // A late sample is ignored.
    let late = made.task("late", 77);
    made.tick(89 * MS, late);
    made.tick(5 * MS, late);
    let mut finder = Finder::new(MonopolyOptions::default());
    made.samples.iter().for_each(|sample| finder.add(&made.names, sample));
    assert_eq!((finder.coverage().restarts, finder.coverage().late), (1, 3));
}

#[test]
fn neighbours_of_a_run_are_reported() {
    let mut made = Made::default();
    let hog = made.task("hog", 66);
    with_burst(&mut made, 2000, hog, 1000..1400);
    let [one, two] = ["kworker/1:0-events", "kworker/1:2-mm"].map(|comm| made.task(comm, 5));
    for at in (0..2000).step_by(50).filter(|at| !(1000..1600).contains(at)) {
        made.samples[at].task = if at % 100 == 0 { one } else { two };
    }
    let found = find(&made);
    assert_eq!((made.comm(found[0].before.expect("before")), made.comm(found[0].after.expect("after"))), ("b", "a"));
    assert_eq!(found[0].absent.len(), 1);
    let absent = &found[0].absent[0];
    assert_eq!((absent.length / MS, absent.usual / MS, absent.came_back), (650, 50, true));
    assert_eq!(found[0].kernel, 0.0);
}

/// A short-lived thread that takes turns with others has no share before, but it has one around each of its runs.
#[test]
fn a_short_lived_thread_that_takes_turns_has_no_monopoly() {
    let mut made = Made::default();
    let (a, rare) = (made.task("a", 10), made.task("rare", 66));
    let mut draw = 4321u64;
    for n in 0..49 * 600u64 {
        draw = draw.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        // A new one each second.
        let guest = made.task("guest", 1000 + (n / 49) as u32);
        let task = match n {
            20_000..20_008 => rare,
            _ if (draw >> 33).is_multiple_of(2) => guest,
            _ => a,
        };
        made.tick(n * 20_408_163, task);
    }
    let found = find(&made);
    assert_eq!(found.iter().filter(|found| found.task == rare).count(), 1);
    assert!(found.len() <= 30, "{}", found.len());
}
