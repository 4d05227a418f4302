//! The samples of a flame graph, summed up.

use super::select::{Selection, nothing};
use super::{ProfileSource, ReadProfile};
use anyhow::bail;
use coroner_evidence::Order;
use coroner_profile::export::svg;
use coroner_profile::model::{Event, EventId, Sample};
use coroner_profile::views::flame::{self, FlameTree};
use coroner_profile::views::risers::{self, BusyShares, Riser};
use coroner_profile::views::{Kinds, SampleKind, StackSums};
use std::collections::HashMap;

/// Most risers to report.
const RISERS: usize = 12;

/// One side of a comparison, or the only one.
pub struct Side {
    pub read: ReadProfile,
    pub sums: StackSums,
    pub busy: BusyShares,
    /// Samples of idle cores that were left out.
    pub idle: u64,
    /// The weight of those with the shown event.
    pub idle_total: u64,
    /// The shown event; `None` only if nothing was selected.
    pub event: Option<EventId>,
    pub selection: String,
}

impl Side {
    fn event(&self) -> Option<&Event> {
        self.event.and_then(|event| self.read.names.events.get(usize::from(event.0)))
    }

    pub fn event_name(&self) -> &str {
        self.event().map(|event| event.name.as_str()).filter(|name| !name.is_empty()).unwrap_or("samples")
    }

    /// Whether the weights are nanoseconds.
    pub fn is_clock(&self) -> bool {
        self.event().is_some_and(Event::is_clock)
    }

    /// The unit of the weights, for documents.
    pub fn unit(&self) -> &'static str {
        if self.is_clock() { "ns" } else { "count" }
    }

    pub fn must_have_samples(self, selection: &Selection) -> anyhow::Result<Side> {
        match self.read.selected {
            0 => bail!("{}", nothing(&self.read, selection)),
            _ => Ok(self),
        }
    }

    /// Number of samples of the shown event.
    fn samples(&self) -> u64 {
        self.sums.events().iter().find(|(event, _)| Some(*event) == self.event).map_or(0, |(_, samples)| *samples)
    }

    /// Joins parts that were read in parallel into one side and its tree.
    pub fn joined(parts: Vec<(Side, FlameTree)>, invert: bool) -> Option<(Side, FlameTree)> {
        let shown =
            parts.iter().max_by_key(|(side, _)| side.samples()).map(|(side, _)| side.event_name().to_owned())?;
        let (mut sides, mut trees) = (Vec::new(), Vec::new());
        for (mut side, tree) in parts {
            // Each part shows the event it has most of.
            let is_it = side.event.is_none() || side.event_name() == shown;
            if !is_it {
                let events = &side.read.names.events;
                side.event = events.iter().position(|event| event.name == shown).map(|at| EventId(at as u16));
            }
            trees.push(if is_it { tree } else { side.tree(invert) });
            sides.push(side);
        }
        if trees.iter().any(|tree| tree.samples > 0) {
            trees.retain(|tree| tree.samples > 0);
        }
        let tree = if trees.len() == 1 { trees.pop()? } else { flame::merged(&trees) };
        // The part with most samples provides the names.
        sides.order_by_key(|side| std::cmp::Reverse(side.samples()));
        let mut sides = sides.into_iter();
        let mut whole = sides.next()?;
        for side in sides {
            whole.idle += side.idle;
            whole.idle_total = whole.idle_total.saturating_add(side.idle_total);
            whole.read.absorb(side.read);
        }
        Some((whole, tree))
    }

    /// Leaves out frames with less than the share `least` of everything.
    pub fn large(&self, invert: bool, least: f64) -> FlameTree {
        match self.event {
            Some(event) => {
                flame::tree_of_large(&self.read.names, &self.sums, event, &flame::FlameOptions { invert }, least)
            }
            None => FlameTree::default(),
        }
    }

    pub fn tree(&self, invert: bool) -> FlameTree {
        match self.event {
            Some(event) => flame::tree(&self.read.names, &self.sums, event, &flame::FlameOptions { invert }),
            None => FlameTree::default(),
        }
    }
}

pub fn find_risers(before: &Side, after: &Side) -> Vec<Riser> {
    risers::find((&before.read.names, &before.busy), (&after.read.names, &after.busy), RISERS)
}

/// `with_idle`: keep idle samples. `must_have`: fail if nothing is selected. Without it, the side is one of a comparison, and only
/// then do risers matter.
pub fn read_side(
    source: &ProfileSource,
    selection: &Selection,
    with_idle: bool,
    must_have: bool,
) -> anyhow::Result<Side> {
    let side = read_part(source, selection, with_idle, !must_have)?;
    match must_have {
        true => side.must_have_samples(selection),
        false => Ok(side),
    }
}

/// The same for what may be only a part of the selection. `compared`: risers matter.
pub fn read_part(
    source: &ProfileSource,
    selection: &Selection,
    with_idle: bool,
    compared: bool,
) -> anyhow::Result<Side> {
    let mut sums = StackSums::by_command();
    let mut busy = BusyShares::default();
    let mut kinds = Kinds::default();
    let (mut idle, mut idle_totals) = (0, HashMap::<EventId, u64>::new());
    let mut view = |names: &_, sample: &Sample| {
        if !with_idle && kinds.kind(names, sample) == SampleKind::Idle {
            idle += 1;
            let total = idle_totals.entry(sample.event).or_default();
            *total = total.saturating_add(sample.period);
            return;
        }
        sums.add(names, sample);
        if compared {
            busy.add(names, sample);
        }
    };
    let read = super::read_any(source, selection, &mut view)?;
    let event = read.main_event(&sums.events());
    let idle_total = event.and_then(|event| idle_totals.get(&event).copied()).unwrap_or(0);
    Ok(Side { read, sums, busy, idle, idle_total, event, selection: selection.words() })
}

/// The picture's title and unit.
pub fn picture(side: &Side) -> svg::SvgOptions {
    let unit = if side.is_clock() { "ns" } else { "samples" };
    svg::SvgOptions { title: describe(side), unit: unit.to_owned(), ..svg::SvgOptions::default() }
}

pub fn describe(side: &Side) -> String {
    let name = side.read.file.file_name().map_or_else(|| "-".into(), |name| name.to_string_lossy());
    let mut title = format!("{name}, {}", side.event_name());
    if !side.selection.is_empty() {
        title.push_str(&format!(", {}", side.selection));
    }
    title
}
