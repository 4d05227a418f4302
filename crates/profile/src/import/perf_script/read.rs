//! Feeds a scanner from a reader, whole lines at a time, with a fixed-size buffer.

use std::io::{self, Read};

use super::scan::{Scanner, Sink};
use crate::import::OddityKind;

/// Small enough for the second-level cache, large enough that system calls do not matter.
const BUFFER: usize = 128 << 10;
/// C++ names reach tens of kilobytes. Longer lines are skipped.
const MAX_LINE: usize = 1 << 20;

/// Removes every carriage return. Returns the new length.
fn without_returns(text: &mut [u8]) -> usize {
    let mut kept = 0;
    for at in 0..text.len() {
        if text[at] != b'\r' {
            text[kept] = text[at];
            kept += 1;
        }
    }
    kept
}

pub fn feed<S: Sink>(mut from: impl Read, scanner: &mut Scanner<S>) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER];
    let mut filled = 0;
    let mut skipping = false;
    let mut crlf = false;
    loop {
        if filled == buffer.len() {
            if buffer.len() < MAX_LINE {
                buffer.resize(buffer.len() * 2, 0);
            } else {
                if !skipping {
                    scanner.report.odd(OddityKind::OverlongLine, scanner.report.lines + 1, &buffer[..filled]);
                }
                skipping = true;
                filled = 0;
            }
        }
        let n = match from.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(n) => n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => {
                // Keeps what came before the error; the caller decides whether to use it.
                scanner.report.truncated = true;
                scanner.finish(&[]);
                return Err(error);
            }
        };
        scanner.report.bytes += n as u64;
        // CRLF text: the first line tells, and then names do not contain carriage returns.
        if scanner.report.bytes == n as u64 {
            let line = memchr::memchr(b'\n', &buffer[..n]);
            crlf = line.is_some_and(|end| end > 0 && buffer[end - 1] == b'\r');
        }
        let n = if crlf { without_returns(&mut buffer[filled..filled + n]) } else { n };
        let Some(newline) = memchr::memrchr(b'\n', &buffer[filled..filled + n]) else {
            filled += n;
            continue;
        };
        let end = filled + newline + 1;
        let total = filled + n;
        let mut start = 0;
        if skipping {
            skipping = false;
            start = memchr::memchr(b'\n', &buffer[..end]).map_or(end, |at| at + 1);
            scanner.report.lines += 1;
        }
        scanner.lines(&buffer[start..end]);
        if scanner.sink.stopped() {
            return Ok(());
        }
        buffer.copy_within(end..total, 0);
        filled = total - end;
    }
    scanner.report.truncated |= skipping;
    scanner.finish(if skipping { &[] } else { &buffer[..filled] });
    Ok(())
}
