//! A whole recording in memory.

use std::ops::ControlFlow;

use super::{Dictionary, Samples};
use crate::import::{ImportReport, Take};
use crate::views::StackSums;

/// One recording, in time order.
#[derive(Clone, Debug, Default)]
pub struct Profile {
    pub names: Dictionary,
    pub samples: Samples,
}

impl Profile {
    /// Collects the samples that a reader passes on.
    pub fn collect<E>(
        read: impl FnOnce(&mut Take<'_>) -> Result<(Dictionary, ImportReport), E>,
    ) -> Result<(Profile, ImportReport), E> {
        let mut samples = Samples::default();
        let (names, mut report) = read(&mut |_, sample| {
            samples.push(sample);
            ControlFlow::Continue(())
        })?;
        report.out_of_order = report.out_of_order.max(samples.sort());
        Ok((Profile { names, samples }, report))
    }

    /// All samples added up.
    pub fn sums(&self) -> StackSums {
        let mut sums = StackSums::by_command();
        self.samples.iter().for_each(|sample| sums.add(&self.names, &sample));
        sums
    }
}
