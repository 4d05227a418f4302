//! `coroner condition`: what the recorder's last diagnosis says, as other programs on the node want it.

use super::incidents::directory_of;
use crate::args::recorder::ConditionArgs;
use crate::exit::Exit;
use crate::output::{json_text, print, safe};
use coroner_diagnosis::Code;
use coroner_diagnosis::words::duration_words;
use coroner_evidence::Wall;
use coroner_source::directory;
use coroner_source::history::{self, End, Episode, History};
use serde_json::json;
use std::time::SystemTime;

/// What node-problem-detector takes of a plugin's answer, unless it is told otherwise.
const MOST_BYTES: usize = 80;

/// What goes on, or why that is not known.
type Condition<'h> = Result<Vec<&'h Episode>, String>;

pub fn run(args: &ConditionArgs) -> anyhow::Result<Exit> {
    let read = || -> anyhow::Result<(bool, History)> {
        let directory = directory_of(args.directory.dir.as_deref(), "--dir")?;
        let is_live = directory::is_live(&directory);
        Ok((is_live, history::read(&directory, is_live)?))
    };
    let read = read();
    let condition = match &read {
        Ok((is_live, history)) => {
            let now = Wall::from(SystemTime::now());
            of(history, *is_live, now, args)
        }
        Err(error) => Err(format!("{error:#}")),
    };
    let line = line(&condition, args);
    match args.json {
        true => print(&json_text(&document(&condition, &line)))?,
        false => print(&format!("{line}\n"))?,
    }
    Ok(exit(&condition, args.sentinel))
}

fn of<'h>(history: &'h History, is_live: bool, now: Wall, args: &ConditionArgs) -> Condition<'h> {
    if !is_live {
        return Err("no recorder runs".to_owned());
    }
    let Some((_, until)) = history.span else { return Err("the recorder has not diagnosed the node yet".to_owned()) };
    if now.since(until) > args.max_age {
        return Err(format!("the last diagnosis was {} ago", duration_words(now.since(until))));
    }
    let is_sure = |episode: &Episode| matches!(episode.problem.certainty.as_deref(), Some("proven" | "likely"));
    let mut on: Vec<&Episode> = history
        .episodes
        .iter()
        .filter(|episode| episode.end == End::GoesOn && episode.problem.severity != "info")
        .filter(|episode| {
            args.codes.is_empty() || Code::parse(&episode.problem.code).is_some_and(|c| args.codes.contains(&c))
        })
        .filter(|episode| !args.sentinel || is_sure(episode))
        .collect();
    on.sort_by_key(|episode| (episode.problem.severity != "critical", episode.began));
    Ok(on)
}

fn line(condition: &Condition<'_>, args: &ConditionArgs) -> String {
    let line = match condition {
        Err(why) => format!("unknown: {why}"),
        Ok(on) => match on.split_first() {
            // The others were not looked at.
            None if args.sentinel => "none of these goes on with a proven or likely cause".to_owned(),
            None if !args.codes.is_empty() => "none of these goes on".to_owned(),
            None => "nothing wrong".to_owned(),
            Some((worst, more)) => {
                let more = if more.is_empty() { String::new() } else { format!(" (+{})", more.len()) };
                format!("{}{more}: {}", worst.problem.code, worst.problem.title)
            }
        },
    };
    shortened(&safe::one_line(&line))
}

fn shortened(line: &str) -> String {
    if line.len() <= MOST_BYTES {
        return line.to_owned();
    }
    let fits = (0..=MOST_BYTES - '…'.len_utf8()).rev().find(|at| line.is_char_boundary(*at));
    format!("{}…", line[..fits.unwrap_or(0)].trim_end())
}

fn document(condition: &Condition<'_>, line: &str) -> serde_json::Value {
    let problem = |episode: &&Episode| {
        let problem = &episode.problem;
        json!({
            "code": problem.code, "key": problem.key, "severity": problem.severity, "certainty": problem.certainty,
            "title": problem.title, "began": episode.began,
        })
    };
    json!({
        "schema": "coroner.condition/1",
        "state": match condition {
            Err(_) => "unknown",
            Ok(on) if on.is_empty() => "no problem",
            Ok(_) => "problem",
        },
        "message": line,
        "why_unknown": condition.as_ref().err(),
        "problems": condition.as_ref().map_or_else(|_| Vec::new(), |on| on.iter().map(problem).collect()),
    })
}

fn exit(condition: &Condition<'_>, sentinel: bool) -> Exit {
    match condition {
        Err(_) => Exit::CouldNotExamine,
        Ok(on) if on.is_empty() == sentinel => Exit::Findings,
        Ok(_) => Exit::NothingWrong,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::recorder::DirectoryArgs;
    use coroner_evidence::history::Problem;
    use std::time::Duration;

    const MINUTE: u64 = 60_000_000_000;

    fn args(codes: &[Code], sentinel: bool) -> ConditionArgs {
        let max_age = Duration::from_secs(900);
        ConditionArgs { codes: codes.to_vec(), directory: DirectoryArgs::default(), max_age, sentinel, json: false }
    }

    fn episode(code: &str, severity: &str, certainty: Option<&str>, end: End) -> Episode {
        let problem = Problem {
            key: format!("{code}:x"),
            code: code.to_owned(),
            severity: severity.to_owned(),
            certainty: certainty.map(str::to_owned),
            title: format!("{code} is here, with a title that is longer than what fits into eighty bytes of a line"),
            ..Problem::default()
        };
        Episode { problem, began: Wall(MINUTE), is_older: false, seen_until: Wall(9 * MINUTE), end }
    }

    fn history(episodes: Vec<Episode>) -> History {
        History { episodes, diagnoses: 3, span: Some((Wall(0), Wall(9 * MINUTE))), ..History::default() }
    }

    /// Of a plugin, and of a sentinel for dead cgroups.
    fn exits(episodes: Vec<Episode>) -> [Exit; 2] {
        let history = history(episodes);
        [args(&[], false), args(&[Code::ZombieMemcgs], true)]
            .map(|args| exit(&of(&history, true, Wall(10 * MINUTE), &args), args.sentinel))
    }

    #[test]
    fn a_plugin_reports_what_goes_on_and_a_sentinel_only_what_is_sure() {
        use Exit::{Findings, NothingWrong};
        assert_eq!(exits(vec![]), [NothingWrong, Findings]);
        let zombies = |certainty, end| episode("zombie-memcgs", "warning", certainty, end);
        assert_eq!(exits(vec![zombies(Some("proven"), End::GoesOn)]), [Findings, NothingWrong]);
        assert_eq!(exits(vec![zombies(Some("possible"), End::GoesOn)]), [Findings, Findings]);
        assert_eq!(exits(vec![zombies(None, End::GoesOn)]), [Findings, Findings]);
        assert_eq!(exits(vec![zombies(Some("proven"), End::Ended)]), [NothingWrong, Findings]);
        assert_eq!(exits(vec![episode("nic-reset", "critical", Some("proven"), End::GoesOn)]), [Findings, Findings]);
        assert_eq!(
            exits(vec![episode("cpu-contention", "info", Some("proven"), End::GoesOn)]),
            [NothingWrong, Findings]
        );
    }

    #[test]
    fn what_is_not_known_is_neither_healthy_nor_a_reason_to_reboot() {
        let later = Wall(30 * MINUTE);
        for (history, is_live, now, why) in [
            (history(vec![]), false, Wall(10 * MINUTE), "unknown: no recorder runs"),
            (History::default(), true, later, "unknown: the recorder has not diagnosed the node yet"),
            (history(vec![]), true, later, "unknown: the last diagnosis was 21 min ago"),
        ] {
            for args in [args(&[], false), args(&[Code::ZombieMemcgs], true)] {
                let condition = of(&history, is_live, now, &args);
                assert_eq!(
                    (line(&condition, &args).as_str(), exit(&condition, args.sentinel)),
                    (why, Exit::CouldNotExamine)
                );
            }
        }
    }

    #[test]
    fn the_worst_comes_first_in_eighty_bytes() {
        let zombies = episode("zombie-memcgs", "warning", None, End::GoesOn);
        let both = history(vec![zombies, episode("nic-reset", "critical", None, End::GoesOn)]);
        let all = args(&[], false);
        let line = line(&of(&both, true, Wall(10 * MINUTE), &all), &all);
        assert!(line.starts_with("nic-reset (+1): nic-reset is here") && line.ends_with('…'), "{line}");
        assert!((78..=80).contains(&line.len()), "{}", line.len());
        assert_eq!(shortened(&"ä".repeat(41)).len(), 79);
    }
}
