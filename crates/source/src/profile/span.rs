//! How long a profile is, before it is read.

use super::ProfileSource;
use super::select::Selection;
use crate::moment::Moment;
use coroner_evidence::Wall;
use coroner_profile::import::{self, Format};

/// The length of the selection in nanoseconds, and the number of cores, if known without reading everything.
pub fn of(source: &ProfileSource, selection: &Selection) -> anyhow::Result<(Option<u64>, Option<usize>)> {
    let asked = selection.core.len();
    let mut cores = (asked > 0).then_some(asked);
    let mut length = selected_length(selection);
    let known = !matches!(super::format_of(source)?, None | Some(Format::Folded));
    if known
        && !super::is_stream(&source.file)
        && let Some(outline) = import::outline(&source.file)?
    {
        length = length.or(Some(outline.last.saturating_sub(outline.first)));
        cores = cores.or(outline.cores);
    }
    Ok((length, cores))
}

fn selected_length(selection: &Selection) -> Option<u64> {
    if let (Some(last), Some(_)) = (selection.last, selection.since) {
        return u64::try_from(last.as_nanos()).ok();
    }
    match (selection.since?, selection.until?) {
        (Moment::Number(from) | Moment::FromStart(from), Moment::Number(to) | Moment::FromStart(to))
        | (Moment::Wall(Wall(from)), Moment::Wall(Wall(to)))
        | (Moment::TimeOfDay(from), Moment::TimeOfDay(to)) => to.checked_sub(from),
        _ => None,
    }
}
