//! Folded stacks: one line `frame;frame;… weight` per distinct stack, root first.

use std::io::{self, BufRead, BufReader, Read};

use super::gz::Unpacked;
use super::{ImportError, ImportReport, OddityKind, Take};
use crate::model::{Dictionary, EventId, Frame, FramePlace, Sample, Strings, Task};

/// Longer lines are skipped.
const MAX_LINE: u64 = 4 << 20;

/// Reads a stream, compressed or not. Each line becomes one sample with the line's weight; the first frame is taken as the command,
/// as `perf script` collapsers write it. Fractional weights (some tools write milliseconds) are rounded.
pub fn read(from: impl Read, take: &mut Take<'_>) -> Result<(Dictionary, ImportReport), ImportError> {
    let mut from = BufReader::new(Unpacked::new(from)?);
    let mut names = Dictionary::default();
    let mut report = ImportReport::default();
    let event = names.intern_event("samples");
    let mut line = Vec::new();
    let mut frames = Vec::new();
    loop {
        line.clear();
        let n = from.by_ref().take(MAX_LINE).read_until(b'\n', &mut line)?;
        if n == 0 {
            break;
        }
        report.bytes += n as u64;
        report.lines += 1;
        if line.last() != Some(&b'\n') {
            if n as u64 == MAX_LINE {
                report.odd(OddityKind::OverlongLine, report.lines, &line);
                let (skipped, ended) = skip_line(&mut from)?;
                report.bytes += skipped;
                report.truncated |= !ended;
                continue;
            }
            // A cut weight is wrong: if the file is known to be truncated, the last line does not count.
            if from.get_ref().cut() {
                report.odd(OddityKind::UnparsedLine, report.lines, &line);
                continue;
            }
            // The last line of a complete file may lack its newline, but not its weight.
            let text = line.trim_ascii();
            report.truncated |= !text.is_empty() && !text.starts_with(b"#") && parse(text).is_none();
        }
        let text = line.trim_ascii();
        if text.is_empty() || text.starts_with(b"#") {
            continue;
        }
        match parse(text) {
            Some((stack, weight)) => {
                report.samples += 1;
                let sample = sample(&mut names, &mut frames, stack, weight, event);
                names.count(event, weight);
                if take(&names, sample).is_break() {
                    return Ok((names, report));
                }
            }
            None => report.odd(OddityKind::UnparsedLine, report.lines, text),
        }
    }
    report.truncated |= from.get_ref().cut();
    Ok((names, report))
}

/// The length of the rest of the line, and whether it ends with a newline.
fn skip_line(from: &mut impl BufRead) -> io::Result<(u64, bool)> {
    let mut skipped = 0;
    loop {
        let buffer = from.fill_buf()?;
        let (n, done) = match memchr::memchr(b'\n', buffer) {
            Some(at) => (at + 1, Some(true)),
            None => (buffer.len(), buffer.is_empty().then_some(false)),
        };
        from.consume(n);
        skipped += n as u64;
        if let Some(ended) = done {
            return Ok((skipped, ended));
        }
    }
}

/// Whether a line looks like a stack with its weight.
pub fn is_line(line: &[u8]) -> bool {
    parse(line.trim_ascii()).is_some()
}

/// Splits a line into its stack and its weight.
fn parse(line: &[u8]) -> Option<(&[u8], u64)> {
    let space = memchr::memrchr(b' ', line)?;
    let weight = std::str::from_utf8(&line[space + 1..]).ok()?;
    let weight = match weight.parse::<u64>() {
        Ok(weight) => weight,
        Err(_) => {
            let weight = weight.parse::<f64>().ok().filter(|weight| weight.is_finite() && *weight >= 0.0)?;
            weight.round() as u64
        }
    };
    let stack = line[..space].trim_ascii_end();
    (!stack.is_empty()).then_some((stack, weight))
}

fn sample(names: &mut Dictionary, frames: &mut Vec<u32>, stack: &[u8], weight: u64, event: EventId) -> Sample {
    let mut labels = stack.split(|byte| *byte == b';');
    let comm = names.strings.intern_bytes(labels.next().unwrap_or_default());
    frames.clear();
    for label in labels {
        frames.push(intern_label(names, label));
    }
    frames.reverse();
    let task = names.intern_task(Task { pid: None, tid: None, comm, cgroup: None });
    let stack = names.stacks.intern(frames);
    Sample { time: None, core: None, task, event, period: weight, stack }
}

/// Reverses [`crate::model::label::label`] as far as possible.
fn intern_label(names: &mut Dictionary, label: &[u8]) -> u32 {
    let (name, place, inlined) = match label {
        _ if label.ends_with(b"_[k]") => (&label[..label.len() - 4], FramePlace::Kernel, false),
        _ if label.ends_with(b"_[j]") => (&label[..label.len() - 4], FramePlace::Jit, false),
        _ if label.ends_with(b"_[i]") => (&label[..label.len() - 4], FramePlace::User, true),
        _ => (label, FramePlace::User, false),
    };
    let is_module = name.len() > 2 && name.starts_with(b"[") && name.ends_with(b"]");
    let (symbol, module) = if is_module && name != b"[unknown]" {
        (Strings::EMPTY, names.strings.intern_bytes(&name[1..name.len() - 1]))
    } else if name == b"[unknown]" {
        (Strings::EMPTY, Strings::EMPTY)
    } else {
        (names.strings.intern_bytes(name), Strings::EMPTY)
    };
    names.frames.intern(Frame { symbol, module, place, inlined }).0
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::export::folded::write;
    use crate::model::Profile;

    #[test]
    fn unparsable_lines_are_counted_with_their_numbers() {
        let text = "a;b 3\n\n# comment\nno weight here\na;b;c 1.6\nx 18446744073709551615\na;b -1\n";
        let (profile, report) = Profile::collect(|take| read(text.as_bytes(), take)).expect("text");
        assert_eq!(profile.samples.len(), 3);
        assert_eq!(report.oddities[0].first, [4, 7]);
        assert_eq!(profile.samples.get(1).period, 2);
        assert!(!report.truncated);
    }

    proptest! {
        #[test]
        fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
            let (profile, report) = Profile::collect(|take| read(&bytes[..], take)).expect("memory can be read");
            prop_assert_eq!(profile.samples.len() as u64, report.samples);
        }

        #[test]
        fn written_stacks_are_read_back(lines in proptest::collection::btree_map(
            "[a-z]{1,3}(;[a-z\\[\\]]{1,4}(_\\[k\\]|_\\[j\\])?){0,4}", 1u64..1_000_000, 0..20)) {
            let text: String = lines.iter().map(|(stack, weight)| format!("{stack} {weight}\n")).collect();
            let (profile, report) = Profile::collect(|take| read(text.as_bytes(), take)).expect("text");
            prop_assert_eq!(report.oddities, []);
            let mut again = Vec::new();
            write(&profile.names, &profile.sums(), &mut again).expect("memory");
            let mut got: Vec<&str> = std::str::from_utf8(&again).expect("text").lines().collect();
            let mut want: Vec<&str> = text.lines().collect();
            got.sort_unstable();
            want.sort_unstable();
            prop_assert_eq!(got, want);
        }
    }
}
