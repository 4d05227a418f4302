//! `coroner mark`.

use super::incidents::running_directory;
use crate::args::recorder::MarkArgs;
use crate::exit::Exit;
use crate::output::{incidents_text, print};
use coroner_evidence::Wall;
use coroner_recorder::control;
use coroner_source::incident::{Incident, MARK};
use coroner_source::incident_report::listed;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

/// The recorder fetches marks five times a second and writes the incident at once; a loaded node is slower.
const PATIENCE: Duration = Duration::from_secs(3);
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// The recorder's clock is this one, read a moment later; a step of it must not hide the incident.
const CLOCK_STEP: Duration = Duration::from_secs(1);

pub fn run(args: MarkArgs) -> anyhow::Result<Exit> {
    let directory = running_directory(&args.directory)?;
    let since = Wall::from(SystemTime::now()) - CLOCK_STEP;
    control::mark(&directory, &args.text)?;
    print(&incidents_text::marked(&directory, outcome(&directory, since).as_ref()))?;
    Ok(Exit::NothingWrong)
}

/// What became of the mark: the incident it opened, or the one it was added to.
fn outcome(directory: &Path, since: Wall) -> Option<Incident> {
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        let own = |incident: &Incident| {
            let opened = incident.code == MARK && incident.triggered >= since;
            opened || incident.also.iter().any(|also| also.code == MARK && also.at >= since)
        };
        let found = listed(directory).ok()?.into_iter().map(|listed| listed.incident).find(own);
        if found.is_some() {
            return found;
        }
        std::thread::sleep(LOOK_EVERY);
    }
    None
}
