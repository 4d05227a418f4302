//! What the cores ran in the last minutes, in few stacks, for a fleet.
//!
//! The thread "store" adds up the samples that it stores anyway, at most about a hundred a second however large the node is. Every ten
//! minutes the heaviest stacks are told, without numbers of processes and threads. Nothing of this runs if nobody is to be told.

mod tree;

use crate::reporter::Reports;
use coroner_diagnosis::key::command_pattern;
use coroner_evidence::Wall;
use coroner_evidence::kernel_work::{StackMeaning, meaning_of};
use coroner_profile::export::folded;
use coroner_profile::model::{Dictionary, FramePlace, Sample, Seeded, StackId};
use coroner_profile::views::StackSums;
use coroner_report::stacks::MOST_STACKS;
use coroner_report::{HeaviestStacks, StackSamples};
use std::collections::HashMap;
use std::time::{Duration, Instant, SystemTime};
use tree::Tree;

/// Samples looked at per second, about: more would not change the shares.
const ENOUGH_A_SECOND: u32 = 100;
/// Distinct stacks kept by number; beyond it, they are folded into texts, which takes about two kilobytes for each.
const MOST_SUMS: usize = 1024;
/// Texts kept until the row is told.
const MOST_TEXTS: usize = 3 * MOST_STACKS;
/// A new node should not be without stacks for long: its first row comes after this part of the interval.
const FIRST_AFTER: u32 = 10;

pub struct Heaviest {
    reports: Reports,
    every: Duration,
    due: Instant,
    from: Wall,
    /// One of so many samples is looked at.
    one_in: u32,
    /// By numbers of the dictionary in use; which stacks of idle tasks are idle.
    idle: HashMap<StackId, bool, Seeded>,
    sums: StackSums,
    /// Weights of stacks of earlier dictionaries.
    texts: HashMap<String, u64>,
    samples: u64,
    weight: u64,
}

impl Heaviest {
    /// `a_second`: how many samples all cores take together.
    pub fn new(reports: Reports, every: Duration, a_second: u32) -> Heaviest {
        Heaviest {
            reports,
            every,
            due: Instant::now() + every / FIRST_AFTER,
            from: Wall::from(SystemTime::now()),
            one_in: a_second.div_ceil(ENOUGH_A_SECOND).max(1),
            idle: HashMap::default(),
            sums: StackSums::by_command(),
            texts: HashMap::new(),
            samples: 0,
            weight: 0,
        }
    }

    pub fn take(&mut self, names: &Dictionary, sample: &Sample) {
        if !is_picked(sample, self.one_in) || self.is_idle(names, sample) {
            return;
        }
        self.samples += 1;
        self.weight = self.weight.saturating_add(sample.period);
        self.sums.add(names, sample);
        if self.sums.len() >= MOST_SUMS {
            self.fold(names);
        }
    }

    /// Interrupts of an idle core are work. (`views::Kinds` tells as much, but remembers every stack that there is.)
    fn is_idle(&mut self, names: &Dictionary, sample: &Sample) -> bool {
        if !names.task(sample.task).is_idle_task(&names.strings) {
            return false;
        }
        if self.idle.len() > MOST_SUMS {
            self.idle.clear();
        }
        *self.idle.entry(sample.stack).or_insert_with(|| {
            let mut stack = StackMeaning::default();
            for id in names.stacks.root_first(sample.stack) {
                let frame = names.frames.get(id);
                if frame.place == FramePlace::Kernel {
                    stack = stack.calls(meaning_of(frame.symbol(&names.strings)));
                }
            }
            stack.is_idle(true) && !stack.is_interrupt()
        })
    }

    /// The dictionary is about to be forgotten.
    pub fn begin_anew(&mut self, names: &Dictionary) {
        self.fold(names);
        self.idle = HashMap::default();
    }

    pub fn tell_if_due(&mut self, names: &Dictionary) {
        if Instant::now() >= self.due {
            self.tell(names);
        }
    }

    pub fn tell(&mut self, names: &Dictionary) {
        let until = Wall::from(SystemTime::now());
        self.due = Instant::now() + self.every;
        self.fold(names);
        // A wall clock that was set back.
        let from = std::mem::replace(&mut self.from, until).min(until);
        let (samples, weight) = (std::mem::take(&mut self.samples), std::mem::take(&mut self.weight));
        let mut tree = Tree::default();
        self.texts.drain().for_each(|(text, weight)| tree.add(text.split(';'), weight));
        if samples > 0 {
            let samples = samples.saturating_mul(u64::from(self.one_in));
            self.reports.stacks(row(tree.heaviest(MOST_STACKS), from, until, samples, weight));
        }
    }

    fn fold(&mut self, names: &Dictionary) {
        if self.sums.is_empty() {
            return;
        }
        let sums = std::mem::replace(&mut self.sums, StackSums::by_command());
        let mut tree = Tree::default();
        self.texts.drain().for_each(|(text, weight)| tree.add(text.split(';'), weight));
        for (_, labels, weight) in folded::fold(names, &sums).iter() {
            let mut labels: Vec<String> = labels.map(str::to_owned).collect();
            if let Some(command) = labels.first_mut() {
                *command = command_pattern(command);
            }
            tree.add(tree::bounded(&labels).iter().map(String::as_str), weight);
        }
        self.texts = tree.heaviest(MOST_TEXTS).into_iter().collect();
    }
}

/// By its time, at random: one of so many by count could always be the same core.
fn is_picked(sample: &Sample, one_in: u32) -> bool {
    let mixed = sample.time.unwrap_or(0).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
    one_in <= 1 || (mixed * u64::from(one_in)) >> 32 == 0
}

/// Weights are shares of the time (or of the cycles): cores that were sampled more often for a while count no more than others.
fn row(stacks: Vec<(String, u64)>, from: Wall, until: Wall, samples: u64, weight: u64) -> HeaviestStacks {
    let part = |of: u64| (u128::from(samples) * u128::from(of) / u128::from(weight.max(1))) as u64;
    let stacks = stacks.into_iter().map(|(stack, weight)| StackSamples { stack, samples: part(weight) });
    HeaviestStacks { from, until, samples, stacks: stacks.filter(|stack| stack.samples > 0).collect() }
}

#[cfg(test)]
mod tests;
