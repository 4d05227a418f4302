//! `coroner undo`.

use super::stop_on_signals;
use crate::args::fix::UndoArgs;
use crate::exit::Exit;
use crate::output::progress::StatusLine;
use crate::output::{fix_json, json_text, print, undo_text, warn};
use anyhow::{Context, ensure};
use coroner_diagnosis::words::plural;
use coroner_evidence::Evidence;
use coroner_probes::{Root, identity};
use coroner_remedy::journal::{self, Run};
use coroner_remedy::steps::Hands;
use coroner_remedy::{Journal, guards, undo};
use std::cell::RefCell;
use std::path::Path;

pub fn run(args: UndoArgs) -> anyhow::Result<Exit> {
    if args.list {
        return list(&args);
    }
    let mut evidence = Evidence::default();
    identity::identify(&Root::live(), &mut evidence);
    let here = evidence.node.unwrap_or_default();
    ensure!(
        args.dry_run || rustix::process::geteuid().is_root(),
        "refused: changing the node needs root; run it again with sudo"
    );
    let Some(found) = find(&args)? else {
        print(&match args.json {
            true => json_text(&fix_json::nothing_to_undo()),
            false => undo_text::nothing_to_undo(&args.journal, &damaged(&args.journal)?),
        })?;
        return Ok(Exit::NothingWrong);
    };
    if args.dry_run {
        print(&match args.json {
            true => json_text(&fix_json::runs(std::slice::from_ref(&found), &args.journal)),
            false => undo_text::would_undo(&found),
        })?;
        return Ok(Exit::NothingWrong);
    }
    if let (Some(then), Some(now)) = (&found.machine_id, &here.machine_id) {
        ensure!(
            then == now,
            "refused: run {} was made on machine {then}, but this is machine {now}; undo it there. Nothing was changed",
            found.number
        );
    }
    let bus = args.bus.clone().or_else(|| found.bus.clone());
    guards::may_act(&here, bus.as_deref()).map_err(|error| anyhow::anyhow!("{error}"))?;
    // Locked from here on; read again, because another process may have changed it.
    let journal = Journal::open(&args.journal)?;
    let found = journal::read(journal.directory(), found.number)?;
    if found.damaged > 0 {
        warn(&format!(
            "{} of {} cannot be read (truncated by a crash, or edited); undoing from the others",
            plural(found.damaged as u64, "line", "lines"),
            journal::file_of(journal.directory(), found.number).display()
        ));
    }
    let stop = stop_on_signals()?;
    let line = RefCell::new(StatusLine::new());
    let say = |words: &str| line.borrow_mut().show(words);
    let root = args.root.clone().or_else(|| found.root.clone());
    let mut hands = Hands::new(bus.as_deref(), root, &stop, &say).expecting(found.systemd_of.clone());
    let report = undo::run(&found, &journal, &here, &mut hands, args.force)?;
    print(&match args.json {
        true => json_text(&fix_json::undone(&report)),
        false => undo_text::undone(&report),
    })?;
    Ok(if report.is_whole() { Exit::NothingWrong } else { Exit::Findings })
}

fn find(args: &UndoArgs) -> anyhow::Result<Option<Run>> {
    let Some(number) = args.number else { return Ok(undo::newest_open(&args.journal)?) };
    let there = journal::numbers(&args.journal)?;
    ensure!(there.contains(&number), no_such_run(number, &there, &args.journal));
    let run = journal::read(&args.journal, number).with_context(|| {
        format!(
            "run {number} cannot be undone from its journal. Nothing was changed. The journal has the previous state, one line of \
             JSON per step: restore it by hand"
        )
    })?;
    Ok(Some(run))
}

fn no_such_run(number: u64, there: &[u64], journal: &Path) -> String {
    let which = match there {
        [] => "it has no runs".to_owned(),
        [one] => format!("it only has run {one}"),
        [first, .., last] => format!("it has {} runs, {first} to {last}", there.len()),
    };
    let next = match there {
        [] => "If you ran fix with --journal DIR, use the same for undo",
        _ => "`coroner undo --list` shows what each of them did",
    };
    format!("no run {number} in {}: {which}. {next}. Nothing was changed", journal.display())
}

/// Why runs cannot be read: the one the user wants may be among them.
fn damaged(journal: &Path) -> anyhow::Result<Vec<String>> {
    let numbers = journal::numbers(journal)?.into_iter();
    Ok(numbers.filter_map(|number| journal::read(journal, number).err().map(|error| error.to_string())).collect())
}

fn list(args: &UndoArgs) -> anyhow::Result<Exit> {
    let mut runs = Vec::new();
    for number in journal::numbers(&args.journal)? {
        match journal::read(&args.journal, number) {
            Ok(run) => runs.push(run),
            Err(error) => warn(&format!("{error}")),
        }
    }
    print(&match args.json {
        true => json_text(&fix_json::runs(&runs, &args.journal)),
        false => undo_text::list(&runs, &args.journal),
    })?;
    Ok(Exit::NothingWrong)
}
