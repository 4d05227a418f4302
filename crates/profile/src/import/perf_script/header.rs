//! The line that begins an event.
//!
//! Its fields depend on `perf script -F`: `COMM PID/TID [CORE] MISC TIME: PERIOD EVENT: ARGUMENTS`, each of them optional
//! (tools/perf/builtin-script.c, `perf_sample__fprintf_start` and `process_event`). A command may hold spaces, digits and
//! brackets, so the line is anchored at the first number that is followed by what must follow a thread id.

use super::frame::{self, FrameText};

#[cfg(test)]
mod tests;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header<'a> {
    pub comm: &'a [u8],
    pub pid: Option<u32>,
    pub tid: Option<u32>,
    pub core: Option<u32>,
    /// Nanoseconds.
    pub time: Option<u64>,
    pub period: Option<u64>,
    /// Empty if not printed.
    pub event: &'a [u8],
    /// What follows the event: arguments of a tracepoint, or the only frame.
    pub rest: &'a [u8],
}

/// Maximal length of a command with padding; no thread id is searched for beyond it.
const COMM_AREA: usize = 96;

/// Parses a header line (without its newline). `None` if it is none.
///
/// This is the full grammar; [`usual_task`] and [`usual_rest`] are a fast path.
pub fn parse(line: &[u8]) -> Option<Header<'_>> {
    let area = line.len().min(COMM_AREA);
    let starts = || (0..area).filter(|at| line[*at] != b' ' && (*at == 0 || line[*at - 1] == b' '));
    // A thread id, then a core or a time.
    for at in starts().filter(|at| line[*at].is_ascii_digit() || line[*at] == b'-') {
        if let Some(header) = with_ids(line, at, true) {
            return Some(header);
        }
    }
    // No thread id, but a core or a time.
    for at in starts() {
        let mut cursor = Cursor { line, at };
        let header = Header { comm: line[..at].trim_ascii(), ..Header::default() };
        if let Some(header) = cursor.core_and_time(header) {
            return Some(event(header, &line[cursor.at..]));
        }
    }
    // A thread id, then an event.
    for at in starts().filter(|at| line[*at].is_ascii_digit() || line[*at] == b'-') {
        if let Some(header) = with_ids(line, at, false) {
            return Some(header);
        }
    }
    None
}

/// Splits perf's default form, `COMM TID [CORE] TIME: …`, into `COMM TID ` and the rest of the line.
#[inline]
pub(super) fn task_and_rest(line: &[u8]) -> Option<(&[u8], &[u8])> {
    memchr::memchr(b'[', &line[..line.len().min(COMM_AREA)]).map(|bracket| line.split_at(bracket))
}

/// Reads `COMM TID `. `None` if it is ambiguous; then [`parse`] must decide on the whole line.
pub(super) fn usual_task(text: &[u8]) -> Option<Header<'_>> {
    let mut at = text.trim_ascii_end().len();
    let tid_end = at;
    while at > 0 && text[at - 1].is_ascii_digit() {
        at -= 1;
    }
    if at == tid_end || tid_end == text.len() || at == 0 || text[at - 1] != b' ' {
        return None;
    }
    let tid = u32::try_from(number(&text[at..tid_end])?).ok()?;
    let comm = text[..at].trim_ascii();
    // A number inside the command could be the thread id instead.
    if comm.is_empty() || text.contains(&b'\t') || number_after_space(comm) {
        return None;
    }
    Some(Header { comm, tid: Some(tid), ..Header::default() })
}

/// Reads `[CORE] TIME: …` after a [`usual_task`]. `last` is the event of the previous line: this one most likely has the same.
/// Agrees with [`parse`] on every line both accept.
#[inline(always)]
pub(super) fn usual_rest<'a>(line: &'a [u8], last: &[u8]) -> Option<Header<'a>> {
    let mut cursor = Cursor { line, at: 0 };
    let core = cursor.core()?;
    let time = cursor.time()?;
    let mut header = Header { core: Some(core), time: Some(time), ..Header::default() };
    let rest = &line[cursor.at..];
    cursor.spaces();
    let period = cursor.digits();
    let name = &line[cursor.at..];
    if let (Some((period, _)), Some(b' ')) = (period, name.first()) {
        let name = &name[1..];
        if let Some([b':', b' ', ..] | [b':']) = name.strip_prefix(last)
            && !last.is_empty()
        {
            header.period = Some(period);
            header.event = &name[..last.len()];
            header.rest = &name[last.len() + 1..];
            return Some(header);
        }
    }
    Some(event(header, rest))
}

fn number_after_space(comm: &[u8]) -> bool {
    let mut after_space = false;
    for byte in comm {
        if after_space && (byte.is_ascii_digit() || *byte == b'-') {
            return true;
        }
        after_space = *byte == b' ';
    }
    false
}

fn with_ids(line: &[u8], at: usize, core_or_time: bool) -> Option<Header<'_>> {
    let mut cursor = Cursor { line, at };
    let first = cursor.id()?;
    let second = if cursor.eat(b'/') { Some(cursor.id()?) } else { None };
    if !cursor.spaces() && cursor.at < line.len() {
        return None;
    }
    let (pid, tid) = match second {
        Some(tid) => (first, tid),
        None => (None, first),
    };
    let header = Header { comm: line[..at].trim_ascii(), pid, tid, ..Header::default() };
    if core_or_time {
        let header = cursor.core_and_time(header)?;
        return Some(event(header, &line[cursor.at..]));
    }
    let header = event(header, &line[cursor.at..]);
    (second.is_some() || !header.event.is_empty()).then_some(header)
}

/// Reads `PERIOD EVENT: REST`.
#[inline]
fn event<'a>(mut header: Header<'a>, text: &'a [u8]) -> Header<'a> {
    let text = skip_spaces(text);
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let mut name = text;
    if digits > 0 && text.get(digits) == Some(&b' ') && text.len() > digits + 1 {
        header.period = number(&text[..digits]);
        name = skip_spaces(&text[digits..]);
    }
    // A name ends at the first colon before a space or the end: `cycles:u:`, `sched:sched_switch: prev_comm=…`.
    let end = (0..name.len()).find(|at| name[*at] == b':' && matches!(name.get(at + 1), None | Some(b' ' | b'\t')));
    match end {
        Some(end) if header.period.is_some() || frame::address(name).is_none() => {
            header.event = &name[..end];
            header.rest = &name[end + 1..];
        }
        _ => {
            // No event: what looked like a period may be the address of the only frame.
            if header.period.take().is_some() {
                name = text;
            }
            header.rest = name;
        }
    }
    header
}

/// The only frame of a sample without a call chain, at the end of the header line.
#[inline]
pub fn only_frame<'a>(header: &Header<'a>) -> Option<FrameText<'a>> {
    // Shorter than any address with a symbol.
    if header.rest.len() < 8 { None } else { frame_behind(header) }
}

fn frame_behind<'a>(header: &Header<'a>) -> Option<FrameText<'a>> {
    let rest = header.rest.trim_ascii();
    // After the event it is printed sixteen wide; after the arguments of a tracepoint, look for sixteen digits.
    let first = rest.iter().take_while(|byte| frame::is_hex(**byte)).count();
    let padded = header.rest.len() - header.rest.trim_ascii_start().len() + first >= 17;
    if first > 0 && (padded || header.event.is_empty()) {
        return frame::parse(rest);
    }
    if rest.last() != Some(&b')') {
        return None;
    }
    let starts = memchr::memrchr_iter(b' ', rest);
    let mut tried = 0;
    for space in starts {
        let token = &rest[space + 1..];
        if token.len() > 17 && token[16] == b' ' && token[..16].iter().all(|byte| frame::is_hex(*byte)) {
            return frame::parse(token);
        }
        tried += 1;
        if tried == 64 {
            return None;
        }
    }
    None
}

fn skip_spaces(text: &[u8]) -> &[u8] {
    &text[text.iter().take_while(|byte| **byte == b' ').count()..]
}

#[inline]
fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || digits.len() > 20 {
        return None;
    }
    digits.iter().try_fold(0u64, |n, digit| n.checked_mul(10)?.checked_add(u64::from(digit - b'0')))
}

struct Cursor<'a> {
    line: &'a [u8],
    at: usize,
}

impl Cursor<'_> {
    #[inline(always)]
    fn peek(&self) -> u8 {
        self.line.get(self.at).copied().unwrap_or(0)
    }

    #[inline(always)]
    fn eat(&mut self, byte: u8) -> bool {
        let there = self.peek() == byte;
        self.at += usize::from(there);
        there
    }

    #[inline(always)]
    fn spaces(&mut self) -> bool {
        let start = self.at;
        while self.peek() == b' ' {
            self.at += 1;
        }
        self.at > start
    }

    #[inline(always)]
    fn digits(&mut self) -> Option<(u64, usize)> {
        let mut n = 0u64;
        let mut width = 0;
        for byte in &self.line[self.at..] {
            let digit = byte.wrapping_sub(b'0');
            if digit > 9 {
                break;
            }
            n = n.wrapping_mul(10).wrapping_add(u64::from(digit));
            width += 1;
        }
        self.at += width;
        // Nineteen digits cannot overflow.
        (1..=19).contains(&width).then_some((n, width))
    }

    /// A process or thread id. perf prints -1 for one it does not know.
    fn id(&mut self) -> Option<Option<u32>> {
        if self.eat(b'-') {
            self.digits()?;
            return Some(None);
        }
        Some(Some(u32::try_from(self.digits()?.0).ok()?))
    }

    /// `[003] `
    #[inline(always)]
    fn core(&mut self) -> Option<u32> {
        if !self.eat(b'[') {
            return None;
        }
        let core = u32::try_from(self.digits()?.0).ok()?;
        (self.eat(b']') && self.spaces()).then_some(core)
    }

    /// `24915.802750:`
    #[inline(always)]
    fn time(&mut self) -> Option<u64> {
        let (seconds, _) = self.digits()?;
        if !self.eat(b'.') {
            return None;
        }
        let (fraction, width) = self.digits()?;
        if width > 9 || !self.eat(b':') || !matches!(self.peek(), b' ' | 0) {
            return None;
        }
        let scale = [1_000_000_000, 100_000_000, 10_000_000, 1_000_000, 100_000, 10_000, 1_000, 100, 10, 1][width];
        seconds.checked_mul(1_000_000_000)?.checked_add(fraction * scale)
    }

    /// `[CORE] MISC TIME:`, at least a core or a time.
    fn core_and_time<'h>(&mut self, mut header: Header<'h>) -> Option<Header<'h>> {
        header.core = self.optional(Cursor::core);
        let before_misc = self.at;
        // `-F misc`: letters for the mode the sample was taken in.
        while self.peek().is_ascii_uppercase() && self.at - before_misc < 8 {
            self.at += 1;
        }
        self.spaces();
        header.time = self.optional(Cursor::time);
        if header.time.is_none() {
            self.at = before_misc;
        }
        (header.core.is_some() || header.time.is_some()).then_some(header)
    }

    fn optional<T>(&mut self, read: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        let start = self.at;
        let value = read(self);
        if value.is_none() {
            self.at = start;
        }
        value
    }
}
