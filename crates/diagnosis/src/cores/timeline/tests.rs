use super::*;

/// Looks at one core: (milliseconds, ticks).
fn one_core(looks: &[(u64, CoreTicks)]) -> Timeline {
    let core_times = looks.iter().map(|(ms, t)| CoreTimes { at: Time::from_millis(*ms), cores: vec![*t] });
    Timeline::of(&Evidence { core_times: core_times.collect(), ..Evidence::default() })
}

fn ticks(user: u64, system: u64, idle: u64) -> CoreTicks {
    CoreTicks { core: 0, user, system, idle, ..CoreTicks::default() }
}

fn window(from_ms: u64, to_ms: u64) -> Window {
    Window { from: Time::from_millis(from_ms), to: Time::from_millis(to_ms) }
}

/// A core that spends `system` of ten ticks per step of 100 ms in the kernel.
fn steps(system: &[u64]) -> Timeline {
    let mut looks = vec![(0, ticks(0, 0, 0))];
    let (mut s, mut i) = (0, 0);
    for (n, part) in system.iter().enumerate() {
        s += part;
        i += 10 - part;
        looks.push(((n as u64 + 1) * 100, ticks(0, s, i)));
    }
    one_core(&looks)
}

#[test]
fn a_stretch_is_as_long_as_the_load() {
    let mut load = vec![0; 10];
    load.extend([10; 30]);
    load.extend([0; 10]);
    let found = steps(&load).stretches(Saturation::Kernel);
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].window, window(1000, 4000));
    assert!((found[0].shares.system - 1.0).abs() < 1e-9);
}

#[test]
fn a_stretch_lasts_a_second_or_more() {
    for (long, expected) in [(6, 0), (9, 0), (10, 1)] {
        let mut load = vec![0; 10];
        load.extend(vec![10; long]);
        load.extend([0; 10]);
        assert_eq!(steps(&load).stretches(Saturation::Kernel).len(), expected, "{long} steps");
    }
}

#[test]
fn ninety_percent_is_not_saturated_and_ninety_five_is() {
    assert_eq!(steps(&[9; 50]).stretches(Saturation::Kernel).len(), 0);
    let mut load = Vec::new();
    for _ in 0..25 {
        load.extend([10, 9]);
    }
    assert_eq!(steps(&load).stretches(Saturation::Kernel).len(), 1);
}

#[test]
fn late_looks_do_not_hide_or_invent_anything() {
    // One look after 3 s instead of thirty: the counters kept running.
    let late = one_core(&[(0, ticks(0, 0, 0)), (100, ticks(0, 0, 10)), (3100, ticks(0, 300, 10))]);
    let found = late.stretches(Saturation::Kernel);
    assert_eq!((found.len(), found[0].window), (1, window(100, 3100)));
    // A burst of 0.6 s within a late look of 1 s stays below the threshold.
    let burst = one_core(&[(0, ticks(0, 0, 0)), (1000, ticks(0, 60, 40))]);
    assert_eq!(burst.stretches(Saturation::Kernel).len(), 0);
}

#[test]
fn idle_that_goes_backwards_counts_only_once() {
    let t = one_core(&[
        (0, ticks(0, 0, 100)),
        (100, ticks(0, 0, 110)),
        (200, ticks(10, 0, 105)),
        (300, ticks(20, 0, 110)),
        (400, ticks(30, 0, 110)),
    ]);
    let shares = t.shares(0, window(0, 400)).unwrap();
    assert!((shares.user - 0.75).abs() < 1e-9 && (shares.idle - 0.25).abs() < 1e-9, "{shares:?}");
}

#[test]
fn ticks_that_a_tickless_core_did_not_count_are_not_busy() {
    // 20 ticks of work in a second while the idle counter stands still.
    let t = one_core(&[(0, ticks(0, 0, 0)), (1000, ticks(0, 20, 0))]);
    let shares = t.shares(0, window(0, 1000)).unwrap();
    assert!((shares.busy() - 0.2).abs() < 1e-9, "{shares:?}");
    assert_eq!(t.stretches(Saturation::Busy).len(), 0);
    // 93 ticks and no idle: the seven missing ones are noise.
    let t = one_core(&[(0, ticks(0, 0, 0)), (1000, ticks(0, 93, 0))]);
    assert_eq!(t.stretches(Saturation::Kernel).len(), 1);
}

#[test]
fn no_stretch_crosses_a_time_offline() {
    let present = |ms, system| CoreTimes { at: Time::from_millis(ms), cores: vec![ticks(0, system, 0)] };
    let absent = |ms| CoreTimes { at: Time::from_millis(ms), cores: vec![] };
    let evidence = Evidence {
        core_times: vec![present(0, 0), present(500, 50), absent(600), present(700, 52), present(1200, 102)],
        ..Evidence::default()
    };
    let t = Timeline::of(&evidence);
    assert_eq!(t.stretches(Saturation::Kernel).len(), 0, "no unbroken second");
    assert!((t.lines[&0].busy_ns(window(0, 1200)) - 1e9).abs() < 1.0);
}

#[test]
fn a_jump_of_the_counters_is_not_counted() {
    let t = one_core(&[(0, ticks(0, 0, 0)), (1000, ticks(0, 5_000_000, 0)), (2000, ticks(0, 5_000_000, 100))]);
    assert_eq!(t.stretches(Saturation::Kernel).len(), 0);
    assert_eq!(t.worst(Shares::kernel), Some((0, 0.0)));
}

#[test]
fn the_strip_shows_parts_of_a_second_and_holes() {
    let mut load = vec![0; 5];
    load.extend([10; 5]);
    let strip = steps(&load).lines[&0].strip(window(0, 2000), 4);
    let kernel: Vec<Option<f64>> = strip.iter().map(|s| s.map(|s| s.kernel())).collect();
    assert_eq!(kernel, [Some(0.0), Some(1.0), None, None]);
}

#[test]
fn stolen_time_is_busy_but_a_core_stolen_by_half_is_not_full() {
    for (user, system, steal, in_kernel, busy) in [
        (97, 0, 0, false, true),
        (0, 88, 10, true, true),
        (10, 78, 10, false, true),
        (0, 60, 40, true, true),
        (0, 50, 50, false, false),
        (10, 0, 90, false, false),
        (0, 83, 10, false, false),
    ] {
        let idle = 100 - user - system - steal;
        let ticks = |s: u64| CoreTicks { user: user * s, steal: steal * s, ..ticks(0, system * s, idle * s) };
        let t = one_core(&[(0, ticks(0)), (1000, ticks(1)), (2000, ticks(2))]);
        let found = (t.stretches(Saturation::Kernel).len(), t.stretches(Saturation::Busy).len());
        let expected = (usize::from(in_kernel), usize::from(busy));
        assert_eq!(found, expected, "{user} % user, {system} % system, {steal} % steal");
    }
}

#[test]
fn a_long_idle_time_that_turns_into_iowait_and_back_is_counted_once() {
    let free = |idle, iowait| CoreTicks { iowait, ..ticks(0, 0, idle) };
    let t = one_core(&[(0, free(0, 0)), (20_000, free(2000, 0)), (20_100, free(0, 2010)), (20_200, free(2020, 0))]);
    let shares = t.shares(0, window(0, 20_200)).unwrap();
    assert!((shares.idle + shares.iowait - 1.0).abs() < 1e-9, "{shares:?}");
    assert!(shares.iowait < 0.01, "{shares:?}");
}

#[test]
fn counters_restart_after_a_reboot() {
    let t = one_core(&[
        (0, ticks(0, 9000, 9000)),
        (600, ticks(0, 9060, 9000)),
        (700, ticks(0, 5, 5)),
        (1200, ticks(0, 55, 5)),
    ]);
    assert_eq!(t.stretches(Saturation::Kernel), []);
    assert!((t.lines[&0].busy_ns(window(0, 1200)) - 1.1e9).abs() < 1.0);
}

#[test]
fn the_strip_leaves_pauses_blank() {
    // Full for 2 s, still full during 8 s without a look, then idle.
    let mut looks: Vec<(u64, CoreTicks)> = (0..=20).map(|i| (i * 100, ticks(0, i * 10, 0))).collect();
    looks.extend((0..=20).map(|i| (10_000 + i * 100, ticks(0, 1000, i * 10))));
    let strip = one_core(&looks).lines[&0].strip(window(0, 12_000), 4);
    let kernel: Vec<Option<f64>> = strip.iter().map(|s| s.map(|s| s.kernel())).collect();
    assert_eq!(kernel, [Some(1.0), None, None, Some(0.0)]);
}

/// The recorder's meter drops old looks, yet reports the same as one that keeps them all.
#[test]
fn a_meter_that_forgets_finds_the_same() {
    let (mut system, mut idle) = (0, 0);
    let looks = (0..3000_u64).map(|i| {
        let full = i / 70 % 3 == 1 && i % 997 != 0;
        (system, idle) = if full { (system + 10, idle) } else { (system + i % 7, idle + 10 - i % 7) };
        CoreTimes { at: Time::from_millis(i * 100), cores: vec![ticks(0, system, idle)] }
    });
    let (mut whole, mut live) = (Timeline::default(), Timeline::keeping(Duration::from_secs(3)));
    let (mut found, mut begun) = (BTreeMap::new(), Totals::default());
    for look in looks {
        whole.look(&look);
        live.look(&look);
        found.extend(live.stretches(Saturation::Kernel).into_iter().map(|s| (s.window.from, s)));
        if look.at == Time::from_secs(100) {
            begun = live.totals();
        }
        let line = &live.lines[&0];
        assert!(line.times.len() < 70 && line.in_kernel.over.len() <= MOST_STRETCHES);
        let lately = Window { from: look.at - Duration::from_secs(2), to: look.at };
        assert_eq!(live.shares(0, lately), whole.shares(0, lately));
    }
    assert!(found.len() > 10);
    assert_eq!(found.into_values().collect::<Vec<_>>(), whole.stretches(Saturation::Kernel));
    assert_eq!(live.since(&begun), [(0, whole.shares(0, window(100_000, 300_000)).unwrap())]);
}
