//! `coroner monopolies`.

use crate::args::profile::MonopoliesArgs;
use crate::exit::Exit;
use crate::output::print;
use crate::output::profile::monopolies_text;
use crate::output::progress::reading;
use coroner_source::profile::monopolies::find;
use coroner_web::documents;

pub fn run(args: MonopoliesArgs) -> anyhow::Result<Exit> {
    let source = args.source.source();
    let selection = args.selection.selection().resolved(&source)?;
    let (read, found, coverage) = reading(&source, || find(&source, &selection, args.threshold))?;
    let text = if args.json {
        documents::monopolies::document(&read, &found, &coverage, args.threshold, None)
    } else {
        let shown = monopolies_text::Shown {
            selection: selection.of_anybody().words(),
            threshold: args.threshold,
            all: args.all,
        };
        monopolies_text::text(&read, &found, &coverage, &shown)
    };
    print(&text)?;
    Ok(Exit::NothingWrong)
}
