//! `coroner history`, and the hidden command by which the recorder diagnoses its node.

use super::incidents::directory_of;
use crate::args::recorder::{DiagnoseRecordedArgs, HistoryArgs};
use crate::exit::Exit;
use crate::output::{history_text, json_text, print};
use anyhow::ensure;
use coroner_evidence::Wall;
use coroner_recorder::{diagnoses, guest};
use coroner_source::{directory, history};
use coroner_web::documents;
use std::time::SystemTime;

pub fn run(args: HistoryArgs) -> anyhow::Result<Exit> {
    let directory = directory_of(args.from.as_deref(), "--from")?;
    let is_live = directory::is_live(&directory);
    let mut history = history::read(&directory, is_live)?;
    ensure!(
        is_live || history.diagnoses > 0 || directory::is_recorders(&directory),
        "{}: not a recorder's directory; name the one of `coroner record --dir`",
        directory.display()
    );
    if let Some(last) = args.last {
        let since = Wall::from(SystemTime::now()) - last;
        history.episodes.retain(|episode| episode.seen_until >= since);
        history.gaps.retain(|(_, to)| *to >= since);
    }
    match args.json {
        true => print(&json_text(&documents::history::document(&directory, is_live, &history)))?,
        false => print(&history_text::render(&directory, is_live, &history))?,
    }
    Ok(Exit::NothingWrong)
}

pub fn diagnose_recorded(args: DiagnoseRecordedArgs) -> anyhow::Result<Exit> {
    guest::be_a_guest(args.recorder, false)?;
    let answer = diagnoses::conclude(&args.directory, Wall(args.from), Wall(args.to))?;
    print(&diagnoses::answer(&answer)?)?;
    Ok(Exit::NothingWrong)
}
