//! Episodes: when each problem in a recorder's diagnoses began and ended.

use coroner_evidence::history::{self, Concluded, Problem};
use coroner_evidence::recording::RecordingError;
use coroner_evidence::{Order, Wall};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

/// A problem that was gone for no longer than this is the same one: two diagnoses see it in different windows.
const SAME: Duration = Duration::from_secs(120);

/// One problem from its beginning to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Episode {
    /// As last reported, with its worst severity.
    pub problem: Problem,
    pub began: Wall,
    /// It was there at the recorder's first look, so it may be older.
    pub is_older: bool,
    /// When it was last seen.
    pub seen_until: Wall,
    pub end: End,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The newest diagnosis saw it, and the recorder is running.
    GoesOn,
    /// A later diagnosis did not see it.
    Ended,
    /// There was no diagnosis after that.
    NotSeen,
}

impl End {
    pub fn as_str(self) -> &'static str {
        match self {
            End::GoesOn => "goes on",
            End::Ended => "ended",
            End::NotSeen => "end not seen",
        }
    }
}

/// The history of a recorder's directory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct History {
    /// Oldest first.
    pub episodes: Vec<Episode>,
    pub diagnoses: u64,
    /// From the first to the last diagnosis.
    pub span: Option<(Wall, Wall)>,
    /// Times that no diagnosis covers.
    pub gaps: Vec<(Wall, Wall)>,
}

pub fn read(directory: &Path, is_live: bool) -> Result<History, RecordingError> {
    Ok(of(&history::read(directory)?, is_live))
}

fn of(rows: &[Concluded], is_live: bool) -> History {
    let mut history = History::default();
    // The open episode of each key.
    let mut open: BTreeMap<&str, Episode> = BTreeMap::new();
    let mut looked_until: Option<Wall> = None;
    for row in rows {
        let is_gap = looked_until.is_some_and(|until| row.from > until);
        if let Some(until) = looked_until.filter(|_| is_gap) {
            history.gaps.push((until, row.from));
        }
        let is_first_look = looked_until.is_none() || is_gap;
        for problem in &row.problems {
            let seen = seen(problem, row, is_first_look);
            match open.get_mut(problem.key.as_str()) {
                Some(episode) if seen.began <= episode.seen_until + SAME => {
                    episode.goes_on(seen);
                }
                _ => history.episodes.extend(open.insert(&problem.key, seen)),
            }
        }
        history.diagnoses += row.diagnoses;
        let from = history.span.map_or(row.from, |(from, _)| from);
        looked_until = looked_until.max(Some(row.until));
        history.span = looked_until.map(|until| (from, until));
    }
    history.episodes.extend(open.into_values());
    history.episodes.order_by_key(|episode| episode.began);
    let last = looked_until.unwrap_or_default();
    for episode in &mut history.episodes {
        let is_last = episode.seen_until >= last;
        let before_a_gap = history.gaps.iter().any(|(from, _)| *from == episode.seen_until);
        episode.end = match (episode.end, is_live) {
            (End::Ended, _) => End::Ended,
            (_, true) if is_last => End::GoesOn,
            _ if is_last || before_a_gap => End::NotSeen,
            _ => End::Ended,
        };
    }
    history
}

fn seen(problem: &Problem, row: &Concluded, is_first_look: bool) -> Episode {
    let until = problem.ended.unwrap_or(row.until);
    Episode {
        problem: problem.clone(),
        began: problem.began.unwrap_or(row.from).min(until),
        is_older: is_first_look && problem.began.is_none(),
        seen_until: until,
        end: if problem.ended.is_some() { End::Ended } else { End::GoesOn },
    }
}

impl Episode {
    fn goes_on(&mut self, newer: Episode) {
        let severity = worse(&self.problem.severity, &newer.problem.severity).to_owned();
        self.problem = Problem { severity, ..newer.problem };
        // Known already: the first diagnosis knows best when it began.
        self.seen_until = self.seen_until.max(newer.seen_until);
        self.end = newer.end;
    }
}

fn worse<'a>(a: &'a str, b: &'a str) -> &'a str {
    let rank = |severity: &str| ["info", "warning", "critical"].iter().position(|known| *known == severity);
    if rank(b) > rank(a) { b } else { a }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: u64 = 60_000_000_000;

    fn row(from: u64, until: u64, problems: &[Problem]) -> Concluded {
        let (from, until) = (from * MINUTE, until * MINUTE);
        Concluded {
            from: Wall(from),
            until: Wall(until),
            diagnoses: 1,
            problems: problems.to_vec(),
            ..Concluded::default()
        }
    }

    fn problem(key: &str, severity: &str, began: Option<u64>, ended: Option<u64>) -> Problem {
        Problem {
            key: key.to_owned(),
            severity: severity.to_owned(),
            began: began.map(|at| at * MINUTE).map(Wall),
            ended: ended.map(|at| at * MINUTE).map(Wall),
            ..Problem::default()
        }
    }

    fn told(history: &History) -> Vec<(&str, &str, u64, bool, u64, End)> {
        let told = |e: &'_ Episode| (e.began.0 / MINUTE, e.is_older, e.seen_until.0 / MINUTE, e.end);
        let all = history.episodes.iter().map(|e| {
            let (began, older, until, end) = told(e);
            (e.problem.key.as_str(), e.problem.severity.as_str(), began, older, until, end)
        });
        all.collect()
    }

    #[test]
    fn a_problem_is_one_episode_from_its_beginning_to_its_end() {
        let rows = [
            row(0, 3, &[problem("loop", "warning", None, None)]),
            row(2, 6, &[problem("loop", "critical", Some(2), None), problem("oom", "critical", Some(4), Some(4))]),
            // The windows overlap: what is over is reported once more.
            row(5, 9, &[problem("oom", "critical", Some(4), Some(4))]),
            row(8, 60, &[]),
            row(59, 62, &[problem("loop", "warning", Some(60), None)]),
        ];
        let history = of(&rows, true);
        assert_eq!(
            told(&history),
            [
                ("loop", "critical", 0, true, 6, End::Ended),
                ("oom", "critical", 4, false, 4, End::Ended),
                ("loop", "warning", 60, false, 62, End::GoesOn),
            ]
        );
        assert_eq!((history.diagnoses, history.span), (5, Some((Wall(0), Wall(62 * MINUTE)))));
        assert_eq!(history.gaps, []);
        // Without a running recorder, nobody knows whether it goes on.
        assert_eq!(told(&of(&rows, false))[2].5, End::NotSeen);
    }

    #[test]
    fn time_without_a_diagnosis_is_a_gap_and_ends_nothing() {
        let rows = [
            row(0, 3, &[problem("loop", "warning", Some(1), None)]),
            row(30, 33, &[problem("loop", "warning", None, None)]),
        ];
        let history = of(&rows, true);
        assert_eq!(history.gaps, [(Wall(3 * MINUTE), Wall(30 * MINUTE))]);
        assert_eq!(
            told(&history),
            [("loop", "warning", 1, false, 3, End::NotSeen), ("loop", "warning", 30, true, 33, End::GoesOn)]
        );
    }

    #[test]
    fn no_diagnoses_are_no_history() {
        assert_eq!(of(&[], true), History::default());
    }
}
