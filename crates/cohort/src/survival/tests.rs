use super::*;

fn life(hours: f64, onset: bool) -> Life {
    Life { hours, onset, entered_after_hours: 0.0 }
}

#[test]
fn the_curve_of_a_textbook() {
    // 6, 6, 6, 6+, 7, 9+, 10, 10+ … (the treated patients of Freireich 1963): S(6) = 0.857, S(7) = 0.807, S(10) = 0.753, S(13) = 0.690.
    let censored = [6.0, 9.0, 10.0, 11.0, 17.0, 19.0, 20.0, 25.0, 32.0, 32.0, 34.0, 35.0];
    let onsets = [6.0, 6.0, 6.0, 7.0, 10.0, 13.0, 16.0, 22.0, 23.0];
    let lives: Vec<Life> = censored.map(|h| life(h, false)).into_iter().chain(onsets.map(|h| life(h, true))).collect();
    let curve = kaplan_meier(&lives);
    let expected = [(6.0, 0.857, 21), (7.0, 0.807, 17), (10.0, 0.753, 15), (13.0, 0.690, 12), (16.0, 0.627, 11)];
    for (point, (hours, survival, at_risk)) in curve.iter().zip(expected) {
        assert_eq!((point.hours, point.at_risk), (hours, at_risk));
        assert!((point.survival - survival).abs() < 6e-4, "{point:?}");
    }
}

#[test]
fn a_boot_counts_only_while_it_is_watched() {
    let late = |hours, onset, entered_after_hours| Life { hours, onset, entered_after_hours };
    let curve = kaplan_meier(&[life(10.0, true), life(20.0, true), late(30.0, true, 15.0), late(12.0, true, 12.0)]);
    assert_eq!(curve.iter().map(|p| p.at_risk).collect::<Vec<_>>(), [2, 2, 1], "{curve:?}");
}

#[test]
fn impossible_hours_are_left_out() {
    let odd = [f64::NAN, f64::INFINITY, -1.0, f64::NEG_INFINITY];
    let mut lives: Vec<Life> = odd.map(|h| life(h, true)).to_vec();
    lives.extend(odd.map(|entered_after_hours| Life { hours: 5.0, onset: true, entered_after_hours }));
    assert!(kaplan_meier(&lives).is_empty());
    assert_eq!(kaplan_meier(&[life(0.0, true)])[0].survival, 0.0);
}

#[test]
fn a_reboot_helps_against_a_leak() {
    let leak: Vec<Life> = (0..40).map(|i| life(140.0 + f64::from(i), true)).collect();
    let days = reboot_helps(&kaplan_meier(&leak)).unwrap();
    assert!((6.0..6.5).contains(&days), "{days}");
}

#[test]
fn a_reboot_does_not_help_against_what_strikes_at_any_hour() {
    let any: Vec<Life> = (1..=100).map(|i| life(-240.0 * (1.0 - f64::from(i) / 101.0).ln(), true)).collect();
    assert!(reboot_helps(&kaplan_meier(&any)).is_err());
}

#[test]
fn few_onsets_say_nothing() {
    let few: Vec<Life> = (0..7).map(|i| life(100.0 + f64::from(i), true)).collect();
    assert!(reboot_helps(&kaplan_meier(&few)).is_err());
    let rare: Vec<Life> =
        (0..100).map(|i| if i % 10 == 0 { life(100.0 + f64::from(i), true) } else { life(300.0, false) }).collect();
    assert!(reboot_helps(&kaplan_meier(&rare)).is_err());
}

#[test]
fn one_early_boot_does_not_decide() {
    // One node watched alone in its first hours gets sick there: the plain curve would fall to zero.
    let mut lives = vec![life(2.0, true)];
    lives.extend((0..60).map(|i| Life { hours: 150.0 + f64::from(i), onset: true, entered_after_hours: 24.0 }));
    let days = reboot_helps(&kaplan_meier(&lives)).unwrap();
    assert!((6.0..7.0).contains(&days), "{days}");
}

#[test]
fn a_single_early_boot_does_not_take_the_curve_to_zero() {
    // One boot is watched from its start and falls sick at once; the others were taken up after a day.
    let late = |hours: f64, onset: bool| Life { hours, onset, entered_after_hours: 24.0 };
    let lives: Vec<Life> =
        [life(0.5, true)].into_iter().chain((0..20).map(|n| late(30.0 + f64::from(n), n < 2))).collect();
    let curve = kaplan_meier(&lives);
    assert_eq!(curve.last().unwrap().survival, 0.0);
    let drawn = well_watched(curve);
    assert!(drawn.len() == 2 && (drawn[1].survival - 18.0 / 20.0).abs() < 1e-9, "{drawn:?}");
}

#[test]
fn long_curves_are_thinned() {
    let curve = kaplan_meier(&(0..5_000).map(|i| life(f64::from(i), true)).collect::<Vec<_>>());
    let thin = thinned(curve.clone());
    assert!(thin.len() <= MOST_POINTS + 1 && thin.last() == curve.last());
}
