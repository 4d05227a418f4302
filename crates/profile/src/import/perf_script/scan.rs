//! From lines to samples.

use super::bytes::{hex_and_spaces, line_ends};
use super::frame::{self, FrameText};
use super::header::{self, Header};
use super::memo::{Line, Memo, START};
use super::shape::{RecentTasks, Shape};
use crate::import::{ImportReport, OddityKind};
use crate::model::ByteTable;

/// Receives the samples of a text.
pub trait Sink {
    /// A new frame. Returns an id for it, which is passed to [`Sink::end`].
    fn frame(&mut self, frame: FrameText<'_>) -> u32;
    /// A new task (command, pid and tid of the header). Returns an id for it, which is passed to [`Sink::begin`].
    fn task(&mut self, header: &Header<'_>) -> u32;
    /// The event name differs from the previous one. Returns an id for it, which is passed to [`Sink::begin`].
    fn event(&mut self, name: &[u8]) -> u32;
    /// A sample begins. The header may lack task and event; their ids stand for them. Returns whether the stack is wanted: if not, its
    /// frame lines are skipped.
    fn begin(&mut self, task: u32, event: u32, header: &Header<'_>) -> bool;
    /// The stack is complete: the ids of its frames, leaf first.
    fn end(&mut self, leaf_first: &[u32]);
    /// A line that begins with `#`, before the first event.
    fn comment(&mut self, _line: &[u8]) {}
    /// The sink wants no more.
    fn stopped(&self) -> bool {
        false
    }
}

/// More frames than this are not a stack (the kernel's limit, kernel.perf_event_max_stack, is set below 10,000 in practice).
const MAX_FRAMES: usize = 1 << 16;
/// `perf script -F comm` pads to 16 and adds a space; longer lines are not a lone command.
const MAX_LONE_COMM: usize = 17;

pub struct Scanner<S> {
    pub sink: S,
    pub report: ImportReport,
    memo: Memo,
    stack: Vec<u32>,
    /// Whether the current stack is wanted.
    wanted: bool,
    /// The previous known line of the stack.
    before: u32,
    state: State,
    /// At least one sample has frames below its header.
    has_stacks: bool,
    /// A line that is a command if a frame follows.
    lone_comm: Vec<u8>,
    last_event: Vec<u8>,
    event_name: Option<u32>,
    /// `COMM TID ` of usual headers, and the sink's ids.
    tasks: ByteTable,
    task_names: Vec<u32>,
    recent_tasks: RecentTasks,
    /// The form of the last usual header.
    shape: Option<Shape>,
    /// The ends of the current lines.
    ends: Vec<u32>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Between,
    /// After a header line.
    Event,
    /// After a frame line. Only an empty line completes the stack.
    Stack,
}

impl<S: Sink> Scanner<S> {
    pub fn new(sink: S) -> Scanner<S> {
        Scanner {
            sink,
            report: ImportReport::default(),
            memo: Memo::new(),
            stack: Vec::with_capacity(128),
            wanted: true,
            before: START,
            state: State::Between,
            has_stacks: false,
            lone_comm: Vec::new(),
            last_event: Vec::new(),
            event_name: None,
            tasks: ByteTable::default(),
            task_names: Vec::new(),
            recent_tasks: RecentTasks::new(),
            shape: None,
            ends: Vec::new(),
        }
    }

    /// Takes whole lines: `text` is empty or ends with a newline.
    pub fn lines(&mut self, text: &[u8]) {
        let mut ends = std::mem::take(&mut self.ends);
        line_ends(text, &mut ends);
        let mut start = 0;
        for end in &ends {
            let end = *end as usize;
            self.report.lines += 1;
            match text[start] {
                b'\t' => self.frame_line(&text[start..], end - start),
                b'\n' => self.close(),
                _ => self.other_line(&text[start..], end - start),
            }
            start = end + 1;
        }
        self.ends = ends;
    }

    /// Ends the text. `partial` is a last line without a newline.
    pub fn finish(&mut self, partial: &[u8]) {
        if !partial.is_empty() {
            self.report.truncated = true;
            // A cut line may still look valid; only a frame marks its end.
            if partial[0] == b'\t' && partial.ends_with(b")") {
                let mut line = partial.to_vec();
                line.push(b'\n');
                self.lines(&line);
            }
        }
        // If stacks are printed, every sample ends with an empty line, even one without a stack.
        self.report.truncated |= match self.state {
            State::Stack => true,
            State::Event => self.stack.is_empty() && self.has_stacks,
            State::Between => false,
        };
        self.close();
        self.flush_lone_comm();
    }

    /// A line at the start of `text` that begins with a tab; `length` excludes its newline.
    #[inline(always)]
    fn frame_line(&mut self, text: &[u8], length: usize) {
        if self.state != State::Stack {
            self.first_frame();
        }
        if !self.wanted {
            return;
        }
        match aligned_address(text) {
            Some(Address { high, region }) if length >= ALIGNED => {
                let line = Line { text: &text[ALIGNED..], length: length + 1 - ALIGNED };
                match self.memo.guess_at(region, line, high) {
                    Some(id) => self.push(id),
                    None => self.far_frame(line, high, region),
                }
            }
            _ => self.unaligned_frame(&text[..length]),
        }
    }

    /// A frame other than the one last seen near its address.
    fn far_frame(&mut self, line: Line<'_>, high: bool, region: u64) {
        if let Some(id) = self.memo.guess(self.before, line, high) {
            self.push(id);
            return;
        }
        let whole = line.whole();
        let text = &whole[..whole.len() - 1];
        let split = frame::split(text);
        let id = match self.memo.find(whole, split, high) {
            Some(id) => id,
            None => {
                let value = self.sink.frame(frame::parts(text, split, high));
                match self.memo.add(whole, split, high, value) {
                    Some(id) => id,
                    None => {
                        self.stack.push(value);
                        return;
                    }
                }
            }
        };
        if self.before != START {
            self.memo.follows(self.before, id);
        }
        self.memo.lies_at(region, id);
        self.push(id);
    }

    #[inline(always)]
    fn push(&mut self, id: u32) {
        self.before = id;
        if self.stack.len() < MAX_FRAMES {
            self.stack.push(self.memo.value(id));
        } else {
            self.too_deep();
        }
    }

    #[cold]
    fn too_deep(&mut self) {
        self.report.odd(OddityKind::UnparsedFrame, self.report.lines, b"frame of a stack that is too deep");
    }

    #[inline(always)]
    fn first_frame(&mut self) {
        if self.state == State::Between {
            self.headless();
        }
        self.state = State::Stack;
        self.has_stacks = true;
        self.before = START;
    }

    #[cold]
    fn headless(&mut self) {
        let comm = std::mem::take(&mut self.lone_comm);
        if comm.is_empty() {
            self.report.odd(OddityKind::HeadlessStack, self.report.lines, b"");
        }
        let header = Header { comm: comm.trim_ascii(), ..Header::default() };
        let task = self.sink.task(&header);
        if !self.last_event.is_empty() {
            self.change_event(b"");
        }
        self.begin(task, &header);
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

    /// A line at the start of `text`; `length` excludes its newline.
    #[inline(always)]
    fn other_line(&mut self, text: &[u8], length: usize) {
        // Fast path for most lines: the form and the task of an earlier line.
        if let Some(shape) = &self.shape
            && let Some((task, header)) = shape.read(text, length)
            && let Some(task) = self.recent_tasks.get(text, task)
        {
            self.close();
            self.begin(task, &header);
            return;
        }
        self.new_line(&text[..length]);
    }

    fn new_line(&mut self, line: &[u8]) {
        if line[0] == b'#' && self.state == State::Between && self.report.samples == 0 {
            self.sink.comment(line);
            return;
        }
        // The usual form with a known task.
        if let Some((task, rest)) = header::task_and_rest(line)
            && let Some(id) = self.tasks.find(task)
            && let Some(header) = header::usual_rest(rest, &self.last_event)
            && !header.event.is_empty()
        {
            let name = self.task_names[id as usize];
            self.event(name, &header);
            self.recent_tasks.put(task, name);
            self.shape = Shape::of(rest, &header);
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
        let task = self.task(line, &header);
        self.event(task, &header);
    }

    #[cold]
    fn change_event(&mut self, name: &[u8]) {
        self.shape = None;
        self.last_event = name.to_vec();
        self.event_name = Some(self.sink.event(name));
    }

    /// The id of the header's task.
    #[cold]
    fn task(&mut self, line: &[u8], header: &Header<'_>) -> u32 {
        let usual = header::task_and_rest(line).map(|(task, _)| task).filter(|task| {
            header::usual_task(task).is_some_and(|usual| (usual.comm, usual.tid) == (header.comm, header.tid))
        });
        if let Some(text) = usual.filter(|text| self.tasks.find(text).is_none()) {
            let name = self.sink.task(header);
            self.tasks.add(text);
            self.task_names.push(name);
            return name;
        }
        // Other forms are rare: the sink finds a known task itself.
        self.sink.task(header)
    }

    #[inline(always)]
    fn event(&mut self, task: u32, header: &Header<'_>) {
        if header.event != self.last_event {
            self.change_event(header.event);
        }
        self.close();
        self.begin(task, header);
        if let Some(frame) = header::only_frame(header) {
            let value = self.sink.frame(frame);
            self.stack.push(value);
        }
    }

    #[inline(always)]
    fn begin(&mut self, task: u32, header: &Header<'_>) {
        if !self.lone_comm.is_empty() {
            self.flush_lone_comm();
        }
        let event = match self.event_name {
            Some(event) => event,
            None => *self.event_name.insert(self.sink.event(b"")),
        };
        self.wanted = self.sink.begin(task, event, header);
        self.state = State::Event;
        self.stack.clear();
        self.report.samples += 1;
    }

    #[inline(always)]
    fn close(&mut self) {
        if self.state != State::Between {
            let frames_seen = self.state == State::Stack && !self.wanted;
            self.state = State::Between;
            if self.stack.is_empty() && !frames_seen {
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

/// The tab, sixteen columns of address, a space.
const ALIGNED: usize = 18;

/// What a line's address predicts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Address {
    /// It is the kernel's.
    high: bool,
    /// Hash of the address without its last two digits: nearby addresses are mostly in the same function.
    region: u64,
}

/// The address, if the line begins with one printed sixteen wide, as all versions of perf do.
#[inline(always)]
fn aligned_address(text: &[u8]) -> Option<Address> {
    let bytes: &[u8; ALIGNED] = text.first_chunk()?;
    let columns: &[u8; 16] = bytes[1..17].try_into().ok()?;
    // Spaces, then at least one digit.
    let (digits, spaces) = hex_and_spaces(columns);
    let address = digits != 0 && digits | spaces == 0xffff && spaces & (spaces + 1) == 0;
    let (first, second) = columns.split_at(8);
    let word = |half: &[u8]| half.try_into().map(u64::from_le_bytes).ok();
    let near = word(first)?.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (word(second)? << 16);
    // Unknown code may be anywhere; its line is always the same.
    let unknown = text.get(28..36) == Some(b"([unknow");
    let region = if unknown { 0 } else { near.wrapping_mul(0xbf58_476d_1ce4_e5b9) };
    (address && bytes[17] == b' ').then_some(Address { high: bytes[1] >= b'8', region })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sixteen_wide_addresses_are_aligned() {
        let high = |text: &[u8]| aligned_address(text).map(|address| address.high);
        assert_eq!(high(b"\tffffffff821f04e5 x"), Some(true));
        assert_eq!(high(b"\t         8a4f756 x"), Some(false));
        assert_eq!(high(b"\t               0 x"), Some(false));
        assert_eq!(high(b"\t                 x"), None);
        assert_eq!(high(b"\tffff ffff21f04e5 x"), None);
        assert_eq!(high(b"\tffffffff821f04e5x "), None);
        assert_eq!(high(b"\tffffffff821f04eX x"), None);
        assert_eq!(high(b"\tffffffff821f04e5"), None);
        assert_eq!(high(b"\tf      f821f04e5 x"), None);
        assert_eq!(high(b"\tffffffff821f04\xe51 x"), None);
        assert_eq!(high(b"\tffffffff 21f04e5 x"), None);
    }
}
