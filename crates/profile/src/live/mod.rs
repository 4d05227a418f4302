//! Samples of the node we run on, from the records in the kernel's rings.
//!
//! What perf.data has in its header is read from the node: mappings and names of processes older than us, the kernel's symbols.
//! Kernel frames are named at once, as their addresses mean nothing after the next boot. User frames are named by their files'
//! symbols while that is cheap; otherwise they keep the file's build id and offset, and are named when the recording is read.
//!
//! **Memory** is bounded: mappings take a few megabytes, symbol tables 16 MiB, the kernel's symbols 4 to 8 MiB. The dictionary
//! grows with what is sampled until [`Live::begin_anew`]; [`Live::dictionary_bytes`] tells when it is time.

mod node;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::Path;

use coroner_evidence::perf::{Attr, HEADER, record_header};

use crate::import::ImportReport;
use crate::model::{Dictionary, EventId, Sample, Seeded};
use crate::records::Limits;
use crate::records::order::Order;
use crate::records::work::{Events, Work};
use crate::symbols::Symbols;
use node::SampledNode;

/// What the records contain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveFormat {
    /// As perf names it: `cycles` or `cpu-clock`.
    pub event: String,
    /// PERF_SAMPLE_* bits. All other records end with those fields that sample_id_all adds.
    pub sample_type: u64,
}

/// Sorts records and turns them into samples.
pub struct Live {
    work: Work,
    order: Order,
    symbols: Symbols,
    node: SampledNode,
    attrs: [Attr; 1],
    ids: HashMap<u64, usize, Seeded>,
    event: [EventId; 1],
    /// The number of symbol tables when callers were cached.
    files_read: u64,
}

impl Live {
    /// `root` is `/` on a live node. Its /proc is read when first needed.
    pub fn new(root: &Path, format: LiveFormat) -> Live {
        let attr = Attr {
            name: format.event,
            sample_type: format.sample_type,
            sample_period: 1,
            sample_id_all: true,
            ..Attr::default()
        };
        let mut work = Work::new(false, Dictionary::default(), ImportReport::default(), Limits::LIVE);
        work.namer.keeps_places = true;
        let mut live = Live {
            work,
            order: Order::new(Limits::LIVE.held_bytes),
            symbols: Symbols::sparing(root),
            node: SampledNode::new(root),
            attrs: [attr],
            ids: HashMap::default(),
            event: [EventId(0)],
            files_read: 0,
        };
        live.begin_anew();
        live
    }

    /// Takes records of all cores, one core after the other. `all_until` says that all records up to this time (of the samples' clock)
    /// have arrived: those samples are then passed on, in time order.
    pub fn take(&mut self, records: &[u8], all_until: Option<u64>, sink: &mut dyn FnMut(&Dictionary, Sample)) {
        let mut rest = records;
        while let Some(header) = rest.get(..HEADER) {
            let (kind, _, size) = record_header(header, false);
            let Some((record, after)) = rest.split_at_checked(size).filter(|(record, _)| record.len() >= HEADER) else {
                break;
            };
            rest = after;
            let events = Events { attrs: &self.attrs, ids: &self.ids, names: &self.event, alike: true };
            match events.time_of(kind, &record[HEADER..], false) {
                Some(time) => {
                    if self.order.hold(time, record, 0) {
                        self.pass(Order::relieve, sink);
                    }
                }
                None => self.work_off(record, sink),
            }
        }
        if !rest.is_empty() {
            self.work.report.truncated = true;
        }
        if let Some(time) = all_until {
            self.pass(|order, pass| order.pass_until(time, pass), sink);
        }
    }

    /// Passes on what is still held; no more records come.
    pub fn finish(&mut self, sink: &mut dyn FnMut(&Dictionary, Sample)) {
        self.pass(Order::finish, sink);
    }

    pub fn names(&self) -> &Dictionary {
        &self.work.names
    }

    /// What could not be used, and how many records were lost or throttled per core, since the start.
    pub fn report(&self) -> &ImportReport {
        &self.work.report
    }

    /// Memory used by the dictionary.
    pub fn dictionary_bytes(&self) -> usize {
        self.work.names.held_bytes()
    }

    /// Begins a new segment with an empty dictionary. Mappings and symbol tables stay. Samples held now belong to the new segment.
    pub fn begin_anew(&mut self) {
        self.work.begin_anew();
        self.event = [self.work.names.intern_event(&self.attrs[0].name)];
        self.symbols.uncache();
        if self.work.tasks.is_full() {
            // Processes still running are queried again.
            self.work.tasks.forget();
            self.symbols.forget_files();
        }
    }

    fn pass(
        &mut self,
        turn: impl FnOnce(&mut Order, &mut dyn FnMut(&[u8], u64)),
        sink: &mut dyn FnMut(&Dictionary, Sample),
    ) {
        // Tables read since may name callers that were unnamed.
        if self.symbols.files_read() != self.files_read {
            self.files_read = self.symbols.files_read();
            self.work.namer.forget_seen();
        }
        let mut order = std::mem::replace(&mut self.order, Order::new(0));
        turn(&mut order, &mut |record, _| self.work_off(record, sink));
        self.order = order;
    }

    fn work_off(&mut self, record: &[u8], sink: &mut dyn FnMut(&Dictionary, Sample)) {
        let events = Events { attrs: &self.attrs, ids: &self.ids, names: &self.event, alike: true };
        self.work.take(record, 0, &events, &mut self.node, &mut self.symbols, &mut |names, sample| {
            sink(names, sample);
            ControlFlow::Continue(())
        });
    }
}
