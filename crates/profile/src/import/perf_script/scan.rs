//! From lines to samples.

use super::frame::{self, FrameText};
use super::header::{self, Header};
use super::memo::{Memo, START};
use crate::import::{OddityKind, Report};

/// Who takes the samples of a text.
pub trait Sink {
    /// A frame not seen before. Returns a name for it, which [`Sink::end`] will be given.
    fn frame(&mut self, frame: FrameText<'_>) -> u32;
    /// An event begins.
    fn begin(&mut self, header: &Header<'_>);
    /// Its stack is complete: the names of its frames, leaf first.
    fn end(&mut self, leaf_first: &[u32]);
    /// A line that begins with `#`, before the first event.
    fn comment(&mut self, _line: &[u8]) {}
}

/// More frames than this are no stack (the kernel's own limit, kernel.perf_event_max_stack, is set by people below 10,000).
const MAX_FRAMES: usize = 1 << 16;
/// `perf script -F comm` pads to 16 and adds a space; longer lines are no lone command.
const MAX_LONE_COMM: usize = 17;

pub struct Scanner<S> {
    pub sink: S,
    pub report: Report,
    memo: Memo,
    stack: Vec<u32>,
    /// The known line before this one in the stack.
    before: u32,
    state: State,
    /// A line that is a command if a frame follows.
    lone_comm: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Between,
    /// After an event's line.
    Event,
    /// After a frame's line. Only an empty line says that the stack is complete.
    Stack,
}

impl<S: Sink> Scanner<S> {
    pub fn new(sink: S) -> Scanner<S> {
        Scanner {
            sink,
            report: Report::default(),
            memo: Memo::new(),
            stack: Vec::with_capacity(128),
            before: START,
            state: State::Between,
            lone_comm: Vec::new(),
        }
    }

    /// Takes whole lines: `text` is empty or ends with a newline.
    pub fn lines(&mut self, text: &[u8]) {
        let mut at = 0;
        while at < text.len() {
            self.report.lines += 1;
            at += match text[at] {
                b'\t' => self.frame_line(&text[at..]),
                b'\n' => {
                    self.close();
                    1
                }
                _ => {
                    let length = line_length(&text[at..]);
                    self.other_line(&text[at..at + length]);
                    length + 1
                }
            };
        }
    }

    /// Says that there is no more text. `partial` is a last line without a newline.
    pub fn finish(&mut self, partial: &[u8]) {
        if !partial.is_empty() {
            self.report.truncated = true;
            // A line that was cut may still look like one; only a frame says where it ends.
            if partial[0] == b'\t' && partial.ends_with(b")") {
                let mut line = partial.to_vec();
                line.push(b'\n');
                self.lines(&line);
            }
        }
        self.report.truncated |= self.state == State::Stack;
        self.close();
        self.flush_lone_comm();
    }

    /// A line at the start of `text` that begins with a tab. Returns its length with the newline.
    #[inline(always)]
    fn frame_line(&mut self, text: &[u8]) -> usize {
        if self.state != State::Stack {
            self.first_frame();
        }
        if let Some(high) = aligned_address(text) {
            let rest = &text[ALIGNED..];
            // Nothing foretells the leaf.
            if self.before != START
                && let Some((id, length)) = self.memo.guess(self.before, rest, high)
            {
                self.push(id);
                return ALIGNED + length;
            }
            let length = line_length(rest);
            let line = &rest[..length];
            let split = frame::split(line);
            let with_newline = &rest[..(length + 1).min(rest.len())];
            let id = match self.memo.find(with_newline, split, high) {
                Ok(id) => id,
                Err(hash) => {
                    let value = self.sink.frame(frame::parts(line, split, high));
                    match self.memo.add(with_newline, split, high, hash, value) {
                        Some(id) => id,
                        None => {
                            self.stack.push(value);
                            return ALIGNED + length + 1;
                        }
                    }
                }
            };
            if self.before != START {
                self.memo.follows(self.before, id);
            }
            self.push(id);
            return ALIGNED + length + 1;
        }
        let length = line_length(text);
        self.unaligned_frame(&text[..length]);
        length + 1
    }

    #[inline(always)]
    fn push(&mut self, id: u32) {
        self.before = id;
        if self.stack.len() < MAX_FRAMES {
            self.stack.push(self.memo.value(id));
        }
    }

    #[inline(always)]
    fn first_frame(&mut self) {
        if self.state == State::Between {
            self.headless();
        }
        self.state = State::Stack;
        self.before = START;
    }

    #[cold]
    fn headless(&mut self) {
        let comm = std::mem::take(&mut self.lone_comm);
        if comm.is_empty() {
            self.report.odd(OddityKind::HeadlessStack, self.report.lines, b"");
        }
        self.begin(&Header { comm: comm.trim_ascii(), ..Header::default() });
    }

    #[cold]
    fn unaligned_frame(&mut self, line: &[u8]) {
        match frame::parse(line) {
            Some(frame) if self.stack.len() < MAX_FRAMES => {
                let value = self.sink.frame(frame);
                self.stack.push(value);
            }
            _ => self.report.odd(OddityKind::UnparsedFrame, self.report.lines, line),
        }
    }

    fn other_line(&mut self, line: &[u8]) {
        if line[0] == b'#' && self.state == State::Between && self.report.samples == 0 {
            self.sink.comment(line);
            return;
        }
        let Some(header) = header::parse(line) else {
            self.odd_line(line);
            return;
        };
        let record = if header.event.is_empty() { header.rest.trim_ascii_start() } else { header.event };
        if record.starts_with(b"PERF_RECORD_") {
            self.perf_record(line, record);
            return;
        }
        self.close();
        self.begin(&header);
        if let Some(frame) = header::only_frame(&header).filter(|_| !header.rest.is_empty()) {
            let value = self.sink.frame(frame);
            self.stack.push(value);
        }
    }

    #[inline(always)]
    fn begin(&mut self, header: &Header<'_>) {
        if !self.lone_comm.is_empty() {
            self.flush_lone_comm();
        }
        self.sink.begin(header);
        self.state = State::Event;
        self.stack.clear();
        self.report.samples += 1;
    }

    #[inline(always)]
    fn close(&mut self) {
        if self.state != State::Between {
            self.state = State::Between;
            if self.stack.is_empty() {
                self.report.odd(OddityKind::EmptyStack, self.report.lines, b"");
            }
            self.sink.end(&self.stack);
            self.stack.clear();
        }
    }

    fn perf_record(&mut self, line: &[u8], record: &[u8]) {
        self.report.odd(OddityKind::PerfRecord, self.report.lines, line);
        if let Some(lost) = record.strip_prefix(b"PERF_RECORD_LOST lost ") {
            let lost = std::str::from_utf8(lost.trim_ascii()).ok().and_then(|lost| lost.parse::<u64>().ok());
            self.report.lost = self.report.lost.saturating_add(lost.unwrap_or(0));
        }
    }

    #[cold]
    fn odd_line(&mut self, line: &[u8]) {
        self.flush_lone_comm();
        if self.state == State::Stack && line.starts_with(b"  ") {
            self.report.odd(OddityKind::SourceLine, self.report.lines, line);
            return;
        }
        if line[0] != b' ' && line.len() <= MAX_LONE_COMM && line.ends_with(b" ") {
            self.close();
            self.lone_comm = line.to_vec();
            return;
        }
        self.report.odd(OddityKind::UnparsedLine, self.report.lines, line);
    }

    fn flush_lone_comm(&mut self) {
        if !self.lone_comm.is_empty() {
            let line = std::mem::take(&mut self.lone_comm);
            self.report.odd(OddityKind::UnparsedLine, self.report.lines.saturating_sub(1), &line);
        }
    }
}

#[inline(always)]
fn line_length(text: &[u8]) -> usize {
    memchr::memchr(b'\n', text).unwrap_or(text.len())
}

/// The tab, sixteen columns of address, a space.
const ALIGNED: usize = 18;

/// Whether the line begins with an address printed sixteen wide (as all of perf's versions do), and whether it is the kernel's.
/// Eight bytes at a time in one register: spaces, then digits.
#[inline(always)]
fn aligned_address(text: &[u8]) -> Option<bool> {
    let bytes: &[u8; ALIGNED] = text.get(..ALIGNED)?.try_into().ok()?;
    let low = digits_after_spaces(u64::from_le_bytes(bytes[1..9].try_into().ok()?))?;
    let high = digits_after_spaces(u64::from_le_bytes(bytes[9..17].try_into().ok()?))?;
    // A digit in the first half leaves no space in the second, and the last column is always a digit.
    let complete = high != 0 && (low == 0 || high == TOP) && bytes[17] == b' ';
    complete.then_some(bytes[1] >= b'8')
}

/// The top bit of each byte.
const TOP: u64 = 0x8080_8080_8080_8080;

/// For eight bytes that are spaces followed by hexadecimal digits: the top bit of each digit. Bytes are in memory order, the
/// first the lowest.
#[inline(always)]
fn digits_after_spaces(word: u64) -> Option<u64> {
    const EACH: u64 = 0x0101_0101_0101_0101;
    // For bytes below 0x80 adding 0x80 - x sets the top bit where the byte is at least x, and nothing carries over.
    let at_least = |byte: u64| word.wrapping_add((0x80 - byte) * EACH);
    let digit = at_least(0x30) & !at_least(0x3a) | at_least(0x61) & !at_least(0x67);
    let not_space = (word ^ 0x20 * EACH).wrapping_add(0x7f * EACH) & TOP;
    let valid = word & TOP == 0 && digit & TOP == not_space;
    let contiguous = not_space == 0 || not_space == TOP << (not_space.trailing_zeros() & !7);
    (valid && contiguous).then_some(not_space)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sixteen_wide_addresses_are_aligned() {
        assert_eq!(aligned_address(b"\tffffffff821f04e5 x"), Some(true));
        assert_eq!(aligned_address(b"\t         8a4f756 x"), Some(false));
        assert_eq!(aligned_address(b"\t               0 x"), Some(false));
        assert_eq!(aligned_address(b"\t                 x"), None);
        assert_eq!(aligned_address(b"\tffff ffff21f04e5 x"), None);
        assert_eq!(aligned_address(b"\tffffffff821f04e5x "), None);
        assert_eq!(aligned_address(b"\tffffffff821f04eX x"), None);
        assert_eq!(aligned_address(b"\tffffffff821f04e5"), None);
        assert_eq!(aligned_address(b"\tf      f821f04e5 x"), None);
        assert_eq!(aligned_address(b"\tffffffff821f04\xe51 x"), None);
        assert_eq!(aligned_address(b"\tffffffff 21f04e5 x"), None);
    }
}
