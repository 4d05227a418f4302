//! Stack samples of a recording in one file.
//!
//! What the threads "rings" and "store" do for a directory is done here between two turns of the watch: one file is recorded for
//! minutes, and rings hold ten seconds. While the file cannot be written, the rings are left to fill: the kernel counts what is
//! lost, and nothing waits in memory.

use crate::appender::Appender;
use crate::rings::{SETTLED, tell};
use crate::run::{host, live_format};
use coroner_evidence::recording::RecordingError;
use coroner_evidence::{Clocks, Evidence};
use coroner_probes::root::{now, read_clocks};
use coroner_probes::sampler::{Sampler, SamplerOptions};
use coroner_profile::import::ImportReport;
use coroner_profile::live::Live;
use coroner_profile::model::{Clock, Dictionary, Sample};
use coroner_profile::recording::{Origin, SampleWriter};
use coroner_source::live::LiveNode;
use std::collections::BTreeMap;

/// Most bytes of stack and function names in memory; beyond this, names are forgotten and stored again when they are next used.
const MOST_DICTIONARY_BYTES: usize = 12 << 20;

pub struct Stacks {
    sampler: Sampler,
    live: Live,
    samples: SampleWriter,
    began: Clocks,
    source_told: bool,
    /// Losses as last told.
    told: BTreeMap<u32, (u64, u64)>,
    pub taken: u64,
}

impl Stacks {
    /// `None` if nothing can be sampled: `unseen` then says why, unless the rate is 0.
    pub fn start(node: &LiveNode, rate_hz: u32, unseen: &mut Evidence) -> Option<Stacks> {
        let sampler = (rate_hz > 0).then(|| Sampler::start(&node.root(), &SamplerOptions { rate_hz }, unseen))?;
        sampler.is_sampling().then(|| Stacks {
            live: Live::new(&node.root().path("/"), live_format(&sampler)),
            sampler,
            samples: SampleWriter::default(),
            began: read_clocks(),
            source_told: false,
            told: BTreeMap::new(),
            taken: 0,
        })
    }

    /// Reads the rings and, once a second, writes the samples with the evidence that waits.
    pub fn turn(&mut self, file: &mut Appender) {
        if file.is_stuck() {
            if file.is_due() {
                let _ = file.try_commit_with(&mut self.samples);
            }
            return;
        }
        // A failure to store shows in the commit.
        let _ = self.read(file, false);
        if file.is_due() {
            let _ = self.commit(file);
        }
    }

    /// Stores what is left.
    pub fn finish(&mut self, file: &mut Appender) -> Result<(), RecordingError> {
        self.read(file, true)?;
        // Once more, with what was lost.
        self.source_told = false;
        self.commit(file)
    }

    fn read(&mut self, file: &mut Appender, is_last: bool) -> Result<(), RecordingError> {
        let all_until = now() - SETTLED;
        let mut records = Vec::new();
        self.sampler.drain(&mut |_, record| records.extend_from_slice(record));
        let Stacks { live, samples, taken, .. } = self;
        let mut stored = Ok(());
        let mut take = |names: &Dictionary, sample: Sample| {
            *taken += 1;
            // What could not be stored is held for the next try.
            if let Err(error) = samples.take(file.writer(), names, sample) {
                stored = Err(error);
            }
        };
        live.take(&records, Some(all_until.0), &mut take);
        if is_last {
            live.finish(&mut take);
        }
        stored
    }

    fn commit(&mut self, file: &mut Appender) -> Result<(), RecordingError> {
        let mut evidence = Evidence::default();
        self.sampler.follow_cores(&mut evidence);
        let (losses, at) = (self.sampler.losses(), now());
        let lost = losses.iter().map(|core| core.lost).sum();
        losses.into_iter().for_each(|core| tell(&mut self.told, &mut evidence.counters, at, core));
        file.hold(evidence);
        file.try_commit_with(&mut self.samples)?;
        if !self.source_told {
            let clock = Clock { clock_ns: self.began.at.0, wall: self.began.wall };
            let origin = Origin { kind: "coroner record".to_owned(), file: None, host: host() };
            let report = ImportReport { lost, ..ImportReport::default() };
            file.writer().set_profile_source(&origin.row(Some(clock), Some(&report)))?;
            self.source_told = true;
        }
        if self.live.dictionary_bytes() > MOST_DICTIONARY_BYTES {
            self.live.begin_anew();
            self.samples.begin_anew();
        }
        Ok(())
    }
}
