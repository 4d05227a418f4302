//! The text that `perf script` prints.
//!
//! An event is a line with task and time, its stack below, leaf first, and an empty line:
//!
//! ```text
//! kubelet  1234 [003] 24915.802750:    1001001 cpu-clock:ppp:
//!         ffffffff821f04e5 irqentry_exit_to_user_mode+0x105 ([kernel.kallsyms])
//!                  8a4f756 runtime.mallocgc+0x1bc (/usr/bin/kubelet)
//! ```
//!
//! The fields of a line depend on `-F`; [`header`] knows the forms. The text is long and repetitive, so [`scan`] remembers each
//! frame line without its address and offset, and guesses that the next line is the one that followed last time: most lines cost
//! one comparison. Only a new line is parsed ([`frame`]). Two modules use it: [`fold`] keeps stacks and weights, [`samples`]
//! passes every sample on.

mod bytes;
pub mod fold;
pub mod frame;
pub mod header;
mod memo;
mod read;
pub mod samples;
pub mod scan;
mod shape;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::Outline;

/// How much of either end of a file is searched for its first and last time.
const END: u64 = 256 << 10;

/// The outline of an uncompressed file, from its two ends: correct if its events are sorted.
pub fn outline(file: &File) -> io::Result<Option<Outline>> {
    let length = file.metadata()?.len();
    let mut cores = BTreeSet::new();
    let mut times = |from: u64| -> io::Result<Option<(u64, u64)>> {
        let mut text = vec![0; END.min(length - from) as usize];
        let n = file.read_at(&mut text, from)?;
        let lines = text[..n].split(|byte| *byte == b'\n').filter(|line| !line.starts_with(b"\t"));
        let mut span: Option<(u64, u64)> = None;
        for header in lines.filter_map(header::parse) {
            cores.extend(header.core);
            if let Some(time) = header.time {
                span = Some(span.map_or((time, time), |(low, high)| (time.min(low), time.max(high))));
            }
        }
        Ok(span)
    };
    let (start, end) = (times(0)?, times(length.saturating_sub(END))?);
    Ok(start.zip(end).filter(|(start, end)| start.0 <= end.1).map(|(start, end)| Outline {
        first: start.0,
        last: end.1,
        cores: Some(cores.len()).filter(|cores| *cores > 0),
    }))
}
