//! Sums over all runs, compared with the bars.

use super::Run;
use super::judge::{Asked, Judgement};
use crate::scenarios::Scenario;
use serde::Serialize;

/// The share of runs with a problem that must name the right root cause and culprit.
const RIGHT: f64 = 0.95;
/// From `coroner diagnose` to the verdict.
const SECONDS: f64 = 10.0;

#[derive(Debug, Serialize)]
pub struct Sums {
    pub scenarios: Vec<ScenarioSums>,
    /// Share of the given verdicts with a real root cause. `None`: none was given.
    pub precision: Option<f64>,
    /// Share of the real root causes that were named. `None`: there are none.
    pub recall: Option<f64>,
    /// Share of the culprits that were named.
    pub culprit_accuracy: Option<f64>,
    pub time_to_verdict: Option<Times>,
    pub bars: Vec<Bar>,
}

#[derive(Debug, Serialize)]
pub struct ScenarioSums {
    pub scenario: &'static str,
    pub runs: usize,
    /// Nothing is wrong in it.
    pub control: bool,
    /// Runs that expect a verdict.
    pub asking: usize,
    pub right_root_cause: usize,
    pub right_culprit: usize,
    pub right_chain: usize,
    /// Unexpected verdicts; in a control, a warning without a verdict counts as one.
    pub extra: usize,
    pub seconds: Option<Times>,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Times {
    pub median: f64,
    pub worst: f64,
}

#[derive(Debug, Serialize)]
pub struct Bar {
    pub what: &'static str,
    pub needed: String,
    /// `None`: no run could show it.
    pub reached: Option<String>,
    /// `None` if no run measured it.
    pub pass: Option<bool>,
}

impl Sums {
    pub fn of(scenarios: &[&'static Scenario], runs: &[Run]) -> Sums {
        let asked: Vec<&Asked> = runs.iter().flat_map(|run| &run.judgement.asked).collect();
        let named = asked.iter().filter(|a| a.right_root_cause).count();
        let blamed: Vec<bool> = asked.iter().filter_map(|a| a.right_culprit).collect();
        let given: usize = runs.iter().map(|run| run.judgement.given).sum();
        let each = scenarios.iter().map(|s| ScenarioSums::of(s.name, runs.iter().filter(|r| r.scenario == s.name)));
        Sums {
            scenarios: each.collect(),
            precision: part(named, given),
            recall: part(named, asked.len()),
            culprit_accuracy: part(blamed.iter().filter(|right| **right).count(), blamed.len()),
            time_to_verdict: Times::of(runs.iter().map(|run| run.seconds).collect()),
            bars: bars(runs),
        }
    }

    pub fn pass(&self) -> bool {
        self.bars.iter().all(|bar| bar.pass != Some(false))
    }
}

impl ScenarioSums {
    fn of<'r>(scenario: &'static str, runs: impl Iterator<Item = &'r Run>) -> ScenarioSums {
        let runs: Vec<&Run> = runs.collect();
        let asking: Vec<&[Asked]> = runs.iter().map(|r| &*r.judgement.asked).filter(|a| !a.is_empty()).collect();
        let all = |right: fn(&Asked) -> bool| asking.iter().filter(|asked| asked.iter().all(right)).count();
        ScenarioSums {
            scenario,
            runs: runs.len(),
            control: runs.iter().any(|run| run.judgement.control),
            asking: asking.len(),
            right_root_cause: all(|asked| asked.right_root_cause),
            right_culprit: all(|asked| asked.right_culprit != Some(false)),
            right_chain: all(|asked| asked.right_root_cause && asked.missing_in_chain.is_empty()),
            extra: runs.iter().map(|run| extra(&run.judgement)).sum(),
            seconds: Times::of(runs.iter().map(|run| run.seconds).collect()),
        }
    }
}

impl Times {
    fn of(mut seconds: Vec<f64>) -> Option<Times> {
        seconds.sort_by(f64::total_cmp);
        let worst = *seconds.last()?;
        // An even number has two in the middle.
        let (low, high) = (seconds[(seconds.len() - 1) / 2], seconds[seconds.len() / 2]);
        Some(Times { median: (low + high) / 2.0, worst })
    }
}

fn extra(judgement: &Judgement) -> usize {
    judgement.extra.len().max(usize::from(!judgement.false_alarms.is_empty()))
}

fn part(of: usize, all: usize) -> Option<f64> {
    (all > 0).then(|| of as f64 / all as f64)
}

fn bars(runs: &[Run]) -> Vec<Bar> {
    let asking: Vec<bool> =
        runs.iter().filter(|r| !r.judgement.asked.is_empty()).map(|run| run.judgement.right()).collect();
    let right = asking.iter().filter(|right| **right).count();
    let controls: Vec<&Run> = runs.iter().filter(|run| run.judgement.control).collect();
    let alarmed = controls.iter().filter(|run| !run.judgement.false_alarms.is_empty()).count();
    let slandered = runs.iter().filter(|run| !run.judgement.proven_wrong.is_empty()).count();
    let worst = Times::of(runs.iter().map(|run| run.seconds).collect()).map(|times| times.worst);
    vec![
        Bar {
            what: "right root cause and culprit",
            needed: format!(">= {:.0} %", RIGHT * 100.0),
            reached: part(right, asking.len()).map(|p| format!("{:.1} % ({right} of {})", p * 100.0, asking.len())),
            pass: part(right, asking.len()).map(|p| p >= RIGHT),
        },
        Bar {
            what: "controls with a warning",
            needed: "0".to_owned(),
            reached: (!controls.is_empty()).then(|| format!("{alarmed} of {}", controls.len())),
            pass: (!controls.is_empty()).then_some(alarmed == 0),
        },
        Bar {
            what: "wrong culprit called proven",
            needed: "0".to_owned(),
            reached: (!runs.is_empty()).then(|| format!("{slandered} of {}", runs.len())),
            pass: (!runs.is_empty()).then_some(slandered == 0),
        },
        Bar {
            what: "seconds to the verdict, worst",
            needed: format!("<= {SECONDS:.0}"),
            reached: worst.map(|worst| format!("{worst:.1}")),
            pass: worst.map(|worst| worst <= SECONDS),
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenarios;

    fn run(scenario: &'static str, seconds: f64, judgement: Judgement) -> Run {
        Run { scenario, run: 1, seed: 1, seconds, busy_before: 0, judgement }
    }

    fn asked(right_root_cause: bool, right_culprit: bool) -> Judgement {
        let asked = Asked {
            root_cause: "core-monopolised".to_owned(),
            right_root_cause,
            right_culprit: Some(right_culprit),
            missing_in_chain: Vec::new(),
        };
        Judgement { asked: vec![asked], given: 1, ..Judgement::default() }
    }

    fn control(alarms: &[&str]) -> Judgement {
        let false_alarms = alarms.iter().map(|&a| a.to_owned()).collect();
        Judgement { control: true, given: alarms.len(), false_alarms, ..Judgement::default() }
    }

    fn sums(runs: &[Run]) -> Sums {
        let scenarios: Vec<_> = scenarios::ALL.iter().filter(|s| runs.iter().any(|r| r.scenario == s.name)).collect();
        Sums::of(&scenarios, runs)
    }

    /// Which bars are reached.
    fn held(runs: &[Run]) -> [bool; 4] {
        sums(runs).bars.iter().map(|bar| bar.pass != Some(false)).collect::<Vec<_>>().try_into().unwrap()
    }

    #[test]
    fn nineteen_of_twenty_suffice() {
        let mut runs: Vec<Run> = (0..19).map(|_| run("rt-monopoly", 6.0, asked(true, true))).collect();
        runs.push(run("rt-monopoly", 7.0, asked(true, false)));
        assert_eq!(held(&runs), [true; 4]);
        runs.push(run("rt-monopoly", 7.0, asked(false, false)));
        assert_eq!(held(&runs), [false, true, true, true]);
        let sums = sums(&runs);
        assert!(!sums.pass());
        let one = &sums.scenarios[0];
        assert_eq!((one.runs, one.right_root_cause, one.right_culprit), (21, 20, 19));
        assert_eq!(sums.recall, Some(20.0 / 21.0));
        assert_eq!(sums.culprit_accuracy, Some(19.0 / 21.0));
        assert_eq!(one.seconds, Some(Times { median: 6.0, worst: 7.0 }));
    }

    #[test]
    fn the_median_of_an_even_number_is_the_mean_of_two() {
        let of = |seconds: &[f64]| Times::of(seconds.to_vec());
        assert_eq!(of(&[9.0, 1.0, 2.0]), Some(Times { median: 2.0, worst: 9.0 }));
        assert_eq!(of(&[4.0, 1.0]), Some(Times { median: 2.5, worst: 4.0 }));
        assert_eq!(of(&[]), None);
    }

    #[test]
    fn one_false_alarm_one_wrong_culprit_or_one_slow_answer_fails() {
        assert_eq!(held(&[run("idle", 1.0, control(&["core-saturated"]))]), [true, false, true, true]);
        let slander = Judgement { proven_wrong: vec!["agent[9]".to_owned()], ..asked(true, true) };
        assert_eq!(held(&[run("rt-monopoly", 1.0, slander)]), [true, true, false, true]);
        assert_eq!(held(&[run("idle", 10.1, control(&[]))]), [true, true, true, false]);
    }

    #[test]
    fn an_unmeasured_bar_is_not_reached() {
        let only_control = sums(&[run("idle", 1.0, control(&[]))]);
        assert!(only_control.pass() && only_control.bars[0].reached.is_none());
        assert_eq!((only_control.precision, only_control.recall), (None, None));
    }

    #[test]
    fn an_extra_verdict_lowers_precision() {
        let extra = Judgement { given: 2, extra: vec!["x".to_owned()], ..asked(true, true) };
        let sums = sums(&[run("rt-monopoly", 1.0, extra)]);
        assert_eq!((sums.precision, sums.recall), (Some(0.5), Some(1.0)));
        assert_eq!(sums.scenarios[0].extra, 1);
    }
}
