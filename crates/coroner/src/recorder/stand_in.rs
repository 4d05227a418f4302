//! Until the recording has them.
use coroner_evidence::Evidence;
use coroner_evidence::recording::{self, Recording, RecordingError, segments};
use std::path::Path;

pub enum Span {
    Between { from_real_ns: u64, to_real_ns: u64 },
}

pub fn read_span(path: &Path, span: &Span) -> Result<Recording, RecordingError> {
    let Span::Between { from_real_ns, to_real_ns } = span;
    let (all, _) = segments::list(path).map_err(|source| RecordingError::Unreadable { path: path.to_owned(), source })?;
    let mut evidence = Evidence::default();
    let mut about = None;
    for segment in segments::within(&all, &(*from_real_ns..*to_real_ns)) {
        let read = recording::read(&segment.path)?;
        evidence.append(read.evidence);
        about = Some(read.about);
    }
    let about = about.ok_or(RecordingError::Missing { path: path.to_owned() })?;
    Ok(Recording { evidence, about })
}
