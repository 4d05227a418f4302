//! `coroner heatmap`.

use crate::args::profile::{By, HeatmapArgs};
use crate::exit::Exit;
use crate::output::profile::heatmap_text;
use crate::output::progress::reading;
use crate::output::{print, terminal};
use coroner_source::profile::heatmap::{by_core, by_offset};
use coroner_source::profile::span;
use coroner_web::documents;

pub fn run(args: HeatmapArgs) -> anyhow::Result<Exit> {
    let source = args.source.source();
    let selection = args.selection.selection().resolved(&source)?;
    let words = selection.words();
    let width = terminal::width();
    let text = match args.by {
        By::Core => {
            let step = match args.step {
                Some(step) => step.as_nanos() as u64,
                None => {
                    let (length, cores) = span::of(&source, &selection)?;
                    heatmap_text::step(length, cores, width)
                }
            };
            let (read, map, asked) = reading(&source, || by_core(&source, &selection, step))?;
            if args.json {
                documents::heatmap::by_core(&read, &map, asked.as_ref(), None)
            } else {
                heatmap_text::by_core(&read, &map, asked, &words, width)
            }
        }
        By::Offset => {
            let (read, map, idle) = reading(&source, || by_offset(&source, &selection, usize::from(args.rows)))?;
            if args.json {
                documents::heatmap::by_offset(&read, &map, idle, None)
            } else {
                heatmap_text::by_offset(&read, &map, idle, &words, width)
            }
        }
    };
    print(&text)?;
    Ok(Exit::NothingWrong)
}
