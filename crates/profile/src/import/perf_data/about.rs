//! What a file says about itself, without reading its records.

use std::io;

use coroner_evidence::perf::{Fields, HEADER, kind, record_header};

use super::layout::{Source, layout, section};
use crate::import::{ImportError, ImportReport};
use crate::model::Clock;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct About {
    pub host: Option<String>,
    /// `uname -r` of the recorded machine.
    pub kernel: Option<String>,
    /// How perf was called.
    pub command_line: Vec<String>,
    /// Time of the first and the last sample, on the recording's clock.
    pub samples: Option<(u64, u64)>,
    /// How the recording's clock relates to wall time (`perf record -k`).
    pub clock: Option<Clock>,
    pub events: Vec<String>,
}

/// How much of a file written through a pipe is examined: descriptions are its first records.
const PIPE_HEAD: u64 = 1 << 20;

/// Reads the header of a file.
pub fn about<S: Source + ?Sized>(file: &S) -> Result<About, ImportError> {
    let mut layout = layout(file, &mut ImportReport::default())?;
    if layout.pipe {
        pipe_features(file, &mut layout)?;
    }
    layout.about.events = layout.attrs.iter().map(|attr| attr.name.clone()).collect();
    layout.about.clock = layout.clock;
    Ok(layout.about)
}

fn pipe_features<S: Source + ?Sized>(file: &S, layout: &mut super::layout::Layout) -> io::Result<()> {
    let bytes = section(file, layout.data.start, PIPE_HEAD)?;
    let mut rest = bytes.as_slice();
    while let Some(header) = rest.get(..HEADER) {
        let (kind, _, size) = record_header(header, layout.swap);
        let Some(record) = rest.get(..size).filter(|record| record.len() >= HEADER) else { break };
        let mut fields = Fields::new(&record[HEADER..], layout.swap);
        match kind {
            kind::HEADER_ATTR => {
                layout.attribute_record(fields);
            }
            kind::HEADER_FEATURE => {
                if let Some(number) = fields.u64() {
                    layout.feature(u32::try_from(number).unwrap_or(u32::MAX), &record[HEADER + 8..]);
                }
            }
            kind::TRACING_DATA => break, // Its data follows outside the record.
            _ => {}
        }
        rest = &rest[size..];
    }
    Ok(())
}
