//! `coroner undo`.

use super::stop_on_signals;
use crate::args::fix::UndoArgs;
use crate::exit::Exit;
use crate::output::progress::StatusLine;
use crate::output::{fix_json, print, undo_text, warn};
use anyhow::{Context, ensure};
use coroner_evidence::Evidence;
use coroner_probes::{Root, identity};
use coroner_remedy::journal::{self, Run};
use coroner_remedy::steps::Hands;
use coroner_remedy::{Journal, guards, undo};
use std::cell::RefCell;

pub fn run(args: UndoArgs) -> anyhow::Result<Exit> {
    if args.list {
        return list(&args);
    }
    let mut evidence = Evidence::default();
    identity::identify(&Root::live(), &mut evidence);
    let here = evidence.node.unwrap_or_default();
    ensure!(
        args.dry_run || rustix::process::geteuid().is_root(),
        "refused: changing the node needs root: run it again with sudo"
    );
    let Some(found) = find(&args)? else {
        print(&match args.json {
            true => format!("{:#}\n", fix_json::nothing_to_undo()),
            false => format!("There is nothing to undo: {} holds no run that is not undone.\n", args.journal.display()),
        })?;
        return Ok(Exit::NothingWrong);
    };
    if args.dry_run {
        print(&match args.json {
            true => format!("{:#}\n", fix_json::runs(std::slice::from_ref(&found), &args.journal)),
            false => undo_text::would_undo(&found),
        })?;
        return Ok(Exit::NothingWrong);
    }
    if let (Some(then), Some(now)) = (&found.machine_id, &here.machine_id) {
        ensure!(then == now, "refused: run {} was made on another machine ({then})", found.number);
    }
    let bus = args.bus.clone().or_else(|| found.bus.clone());
    guards::may_act(&here, bus.as_deref()).map_err(|error| anyhow::anyhow!("{error}"))?;
    // Alone from here on; read again, as another may have been at it.
    let journal = Journal::open(&args.journal)?;
    let found = journal::read(journal.directory(), found.number)?;
    if found.damaged > 0 {
        warn(&format!("{} lines of run {} cannot be read; undoing what the others tell", found.damaged, found.number));
    }
    let stop = stop_on_signals()?;
    let line = RefCell::new(StatusLine::new());
    let say = |words: &str| line.borrow_mut().show(words);
    let root = args.root.clone().or_else(|| found.root.clone());
    let mut hands = Hands::new(bus.as_deref(), root, &stop, &say);
    let report = undo::run(&found, &journal, &here, &mut hands, args.force)?;
    print(&match args.json {
        true => format!("{:#}\n", fix_json::undone(&report)),
        false => undo_text::undone(&report),
    })?;
    Ok(if report.is_whole() { Exit::NothingWrong } else { Exit::Findings })
}

fn find(args: &UndoArgs) -> anyhow::Result<Option<Run>> {
    match args.number {
        Some(number) => {
            let run = journal::read(&args.journal, number)
                .with_context(|| format!("there is no run {number} to undo (`coroner undo --list` lists them)"))?;
            Ok(Some(run))
        }
        None => Ok(undo::newest_open(&args.journal)?),
    }
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
        true => format!("{:#}\n", fix_json::runs(&runs, &args.journal)),
        false => undo_text::list(&runs, &args.journal),
    })?;
    Ok(Exit::NothingWrong)
}
