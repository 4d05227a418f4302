//! The history as text: ongoing problems first, then those that ended, newest first.

use super::safe::one_line;
use super::terminal::{bold, dim, width, wrap};
use coroner_diagnosis::words::{count, duration_words};
use coroner_evidence::Wall;
use coroner_source::history::{End, Episode, History};
use jiff::Timestamp;
use std::path::Path;

pub fn render(directory: &Path, is_live: bool, history: &History) -> String {
    let place = one_line(&directory.display().to_string());
    let Some((from, to)) = history.span else {
        let why = match is_live {
            true => "the recorder diagnoses the node every few minutes; try again in a minute",
            false => "no recorder is running here",
        };
        return format!("no diagnoses in {place} yet: {why}\n");
    };
    let mut out = String::new();
    let (going_on, over): (Vec<_>, Vec<_>) = history.episodes.iter().partition(|episode| episode.end == End::GoesOn);
    section(&mut out, "Ongoing", &going_on);
    section(&mut out, "Ended", &over);
    if history.episodes.is_empty() {
        out.push_str("Nothing was wrong.\n\n");
    }
    for (from, to) in &history.gaps {
        out.push_str(&format!("not recorded: {} to {} ({})\n", time(*from), time(*to), length(*from, *to)));
    }
    let recorder = if is_live { "a recorder is running" } else { "no recorder is running" };
    let diagnoses = match history.diagnoses {
        1 => "1 diagnosis".to_owned(),
        n => format!("{} diagnoses", count(n)),
    };
    let line = format!("{diagnoses} from {} to {} in {place} ({recorder})", time(from), time(to));
    out.push_str(&wrap(&dim(&line), width(), 0));
    out
}

fn section(out: &mut String, title: &str, episodes: &[&Episode]) {
    if episodes.is_empty() {
        return;
    }
    out.push_str(&format!("{}\n", bold(title)));
    // Newest first.
    for episode in episodes.iter().rev() {
        let problem = &episode.problem;
        let sure = problem.certainty.as_deref().unwrap_or("cause not found");
        out.push_str(&format!(
            "  {}  {} {}\n",
            when(episode),
            bold(&one_line(&problem.code)),
            dim(&format!("({}, {})", one_line(&problem.severity), one_line(sure)))
        ));
        out.push_str(&wrap(&one_line(&problem.title), width(), 6));
    }
    out.push('\n');
}

/// `2026-11-17 14:02:10Z, for 12 min`
fn when(episode: &Episode) -> String {
    let Episode { began: from, seen_until: until, .. } = *episode;
    let since = if episode.is_older { "before " } else { "" };
    let lasted = match episode.end {
        End::GoesOn => format!(", {} so far", length(from, until)),
        End::Ended if until == from => String::new(),
        End::Ended => format!(", for {}", length(from, until)),
        End::NotSeen => format!(", for at least {} (not recorded after that)", length(from, until)),
    };
    format!("{since}{}{lasted}", time(from))
}

fn length(from: Wall, to: Wall) -> String {
    duration_words(to.since(from))
}

fn time(wall: Wall) -> String {
    match Timestamp::from_nanosecond(wall.0.into()) {
        Ok(time) => time.strftime("%Y-%m-%d %H:%M:%SZ").to_string(),
        Err(_) => wall.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use coroner_evidence::history::Problem;

    const MINUTE: u64 = 60_000_000_000;

    fn episode(began: u64, until: u64, end: End, title: &str) -> Episode {
        let problem = Problem {
            code: "unit-crashloop".to_owned(),
            severity: "warning".to_owned(),
            certainty: Some("proven".to_owned()),
            title: title.to_owned(),
            ..Problem::default()
        };
        let (began, seen_until) = (began * MINUTE, until * MINUTE);
        Episode { problem, began: Wall(began), is_older: began == 0, seen_until: Wall(seen_until), end }
    }

    #[test]
    fn ongoing_problems_come_first() {
        let history = History {
            episodes: vec![
                episode(0, 12, End::Ended, "a.service crashloops"),
                episode(20, 21, End::NotSeen, "b.service crashloops"),
                episode(59, 60, End::GoesOn, "c.service crashloops"),
            ],
            diagnoses: 14,
            span: Some((Wall(0), Wall(60 * MINUTE))),
            gaps: vec![(Wall(21 * MINUTE), Wall(58 * MINUTE))],
        };
        assert_eq!(
            render(Path::new("/d"), true, &history),
            "Ongoing\n  \
             1970-01-01 00:59:00Z, 60 s so far  unit-crashloop (warning, proven)\n      c.service crashloops\n\n\
             Ended\n  \
             1970-01-01 00:20:00Z, for at least 60 s (not recorded after that)  unit-crashloop (warning, proven)\n      \
             b.service crashloops\n  \
             before 1970-01-01 00:00:00Z, for 12 min  unit-crashloop (warning, proven)\n      a.service crashloops\n\n\
             not recorded: 1970-01-01 00:21:00Z to 1970-01-01 00:58:00Z (37 min)\n\
             14 diagnoses from 1970-01-01 00:00:00Z to 1970-01-01 01:00:00Z in /d (a recorder is running)\n"
        );
    }

    #[test]
    fn nothing_wrong_is_not_nothing_known() {
        let healthy = History { diagnoses: 3, span: Some((Wall(0), Wall(9 * MINUTE))), ..History::default() };
        assert!(render(Path::new("/d"), true, &healthy).starts_with("Nothing was wrong."));
        assert!(render(Path::new("/d"), false, &History::default()).starts_with("no diagnoses in /d yet"));
    }
}
