//! A profile whose samples stay in memory, for repeated reading.

use super::select::{self, Select, Selection};
use super::{Patience, ProfileSource, ReadProfile, told, widen};
use anyhow::bail;
use coroner_profile::import::{self as reader, Format, ImportReport, Imported};
use coroner_profile::model::{Dictionary, Sample, Samples};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// A profile in memory, sorted by time.
#[derive(Debug)]
pub struct KeptProfile {
    pub names: Arc<Dictionary>,
    pub samples: Samples,
    pub format: Format,
    pub report: ImportReport,
    /// Why some functions have no names.
    pub unnamed: Vec<String>,
    /// Sorted.
    pub cores: Vec<u32>,
}

impl KeptProfile {
    /// Reads all of it; `None` if there are more than `most` samples. `count` counts the bytes read.
    pub fn load(source: &ProfileSource, most: usize, count: &AtomicU64) -> anyhow::Result<Option<KeptProfile>> {
        let mut symbols = super::symbols(source);
        let mut samples = Samples::default();
        let mut cores = Vec::new();
        let options = reader::ImportOptions {
            format: source.reading.input,
            read: Some(count),
            ..reader::ImportOptions::default()
        };
        let imported = reader::file(&source.file, &options, &mut symbols, &mut |_, sample| {
            if let Some(core) = sample.core
                && let Err(at) = cores.binary_search(&core)
            {
                cores.insert(at, core);
            }
            samples.push(sample);
            if samples.len() <= most { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        let Imported { names, mut report, format } = imported.map_err(|error| told(&source.file, error))?;
        if samples.len() > most {
            return Ok(None);
        }
        report.out_of_order = report.out_of_order.max(samples.sort());
        let unnamed = symbols.problems.clone();
        Ok(Some(KeptProfile { names: Arc::new(names), samples, format, report, unnamed, cores }))
    }

    /// Passes the selected samples to `view`, as if the file were read.
    pub fn read(
        &self,
        source: &ProfileSource,
        selection: &Selection,
        view: &mut dyn FnMut(&Dictionary, &Sample) -> ControlFlow<()>,
    ) -> anyhow::Result<ReadProfile> {
        let mut select = Select::new(selection);
        let mut patience = Patience::of(source);
        let all = self.samples.span();
        let first = all.map(|(first, _)| first);
        if let Some(first) = first {
            select.begins_at(first);
        }
        let bounds = first.and_then(|first| select::bounds(selection, first, self.names.clock));
        let (mut span, mut selected) = (None, 0);
        let mut each = |sample: Sample| {
            patience.lasts()?;
            widen(&mut span, sample.time);
            match select.has(&self.names, &sample) {
                Some(true) => {
                    selected += 1;
                    view(&self.names, &sample)
                }
                Some(false) => ControlFlow::Continue(()),
                None => ControlFlow::Break(()),
            }
        };
        // A view that has enough stops the reading; so do the two conditions checked below.
        let _ = match bounds {
            Some(range) => self.samples.between(range.start, range.end).try_for_each(&mut each),
            None => self.samples.iter().try_for_each(&mut each),
        };
        if let Some(why) = select.problem {
            bail!("{}: {why}", source.file.display());
        }
        patience.is_over()?;
        Ok(ReadProfile {
            file: source.file.clone(),
            format: self.format,
            names: Arc::clone(&self.names),
            report: self.report.clone(),
            unnamed: self.unnamed.clone(),
            first,
            span: span.or(all.filter(|_| selected == 0)),
            selected,
            cores: self.cores.clone(),
        })
    }
}
