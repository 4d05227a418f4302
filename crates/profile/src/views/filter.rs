//! Which samples a view is about.

use std::ops::Range;

use crate::model::{Profile, Sample};

const SECOND: u64 = 1_000_000_000;

/// The same stretch of every second: what happens at each :00.3 is a timer's doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Band {
    /// Offsets into a second, in nanoseconds.
    pub offsets: Range<u64>,
    /// The seconds it is taken of, in nanoseconds.
    pub within: Range<u64>,
}

/// What to keep; nothing set keeps everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Any of these stretches of time, in nanoseconds; empty for all of it.
    pub ranges: Vec<Range<u64>>,
    pub band: Option<Band>,
    pub core: Option<u32>,
    pub pid: Option<u32>,
    pub tid: Option<u32>,
    /// The whole command.
    pub comm: Option<String>,
    /// The cgroup or one above it.
    pub cgroup: Option<String>,
    /// A part of the name of a function anywhere in the stack.
    pub symbol: Option<String>,
    /// The event's whole name.
    pub event: Option<String>,
}

/// A filter made ready for one profile: the questions about names are answered once for each task and stack.
pub struct Selection<'p> {
    profile: &'p Profile,
    filter: Filter,
    tasks: Vec<bool>,
    stacks: Option<Vec<bool>>,
    events: Vec<bool>,
}

impl Filter {
    /// Samples with `from <= time < until`.
    pub fn between(from: u64, until: u64) -> Filter {
        let range = from..until;
        Filter { ranges: vec![range], ..Filter::default() }
    }

    pub fn on<'p>(&self, profile: &'p Profile) -> Selection<'p> {
        let mut filter = self.clone();
        filter.ranges.sort_by_key(|range| range.start);
        let tasks = profile.tasks().map(|(_, task)| {
            let below = |above: &String| {
                task.cgroup.is_some_and(|cgroup| {
                    let path = profile.strings.get(cgroup);
                    path.strip_prefix(above.as_str())
                        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/') || above.ends_with('/'))
                })
            };
            filter.pid.is_none_or(|pid| task.pid == Some(pid))
                && filter.tid.is_none_or(|tid| task.tid == Some(tid))
                && filter.comm.as_ref().is_none_or(|comm| profile.strings.get(task.comm) == comm)
                && filter.cgroup.as_ref().is_none_or(below)
        });
        let tasks = tasks.collect();
        let stacks = filter.symbol.as_ref().map(|wanted| {
            let named: Vec<bool> = profile
                .frames
                .iter()
                .map(|(_, frame)| frame.symbol(&profile.strings).contains(wanted.as_str()))
                .collect();
            profile.stacks.inherit(|frame| named[frame.0 as usize])
        });
        let events =
            profile.events.iter().map(|event| filter.event.as_ref().is_none_or(|name| event.name == *name)).collect();
        Selection { profile, filter, tasks, stacks, events }
    }
}

impl<'p> Selection<'p> {
    pub fn profile(&self) -> &'p Profile {
        self.profile
    }

    pub fn has(&self, sample: &Sample) -> bool {
        self.in_time(sample)
            && self.filter.core.is_none_or(|core| sample.core == Some(core))
            && self.tasks.get(sample.task.0 as usize).copied().unwrap_or(false)
            && self.stacks.as_ref().is_none_or(|stacks| stacks[sample.stack.0 as usize])
            && self.events.get(usize::from(sample.event.0)).copied().unwrap_or(false)
    }

    fn in_time(&self, sample: &Sample) -> bool {
        let Some(time) = sample.time else { return self.filter.ranges.is_empty() && self.filter.band.is_none() };
        let in_range = self.filter.ranges.is_empty() || self.filter.ranges.iter().any(|range| range.contains(&time));
        let in_band = |band: &Band| band.within.contains(&time) && band.offsets.contains(&(time % SECOND));
        in_range && self.filter.band.as_ref().is_none_or(in_band)
    }

    /// The samples, in order of time. Only the stretch of time asked for is looked at.
    pub fn samples(&self) -> Box<dyn Iterator<Item = Sample> + '_> {
        let start = self.filter.ranges.first().map(|range| range.start);
        let end = self.filter.ranges.iter().map(|range| range.end).max();
        match (start, end) {
            (Some(start), Some(end)) => {
                Box::new(self.profile.samples.between(start, end).filter(|sample| self.has(sample)))
            }
            _ => Box::new(self.profile.samples.iter().filter(|sample| self.has(sample))),
        }
    }
}
