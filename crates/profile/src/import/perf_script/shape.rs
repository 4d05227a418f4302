//! The form of the usual header lines: `COMM TID [CORE] TIME: PERIOD EVENT: `.
//!
//! From one event to the next only the task and some digits change. So the part of the last header after the task is kept with the
//! positions of its numbers; a line with digits there and otherwise the same bytes reads as [`super::header`] would read it.

use super::bytes::{digits_and_spaces, equal};
use super::header::Header;
use super::memo::{block, starts_alike};

/// Longer lines are read by the grammar.
const LONGEST: usize = 64;

#[derive(Clone, Copy, Debug)]
struct Field {
    start: usize,
    width: usize,
}

impl Field {
    fn bits(self) -> u64 {
        (u64::MAX >> (64 - self.width)) << self.start
    }

    /// Its number; leading spaces count as zeros.
    #[inline(always)]
    fn number(self, text: &[u8; LONGEST]) -> Option<u64> {
        let digits = text.get(self.start..)?.first_chunk::<16>()?;
        let (first, second) = (u64::from_le_bytes(*digits.first_chunk()?), u64::from_le_bytes(*digits.last_chunk()?));
        if self.width <= 8 {
            return Some(eight_digits(first << (64 - 8 * self.width)));
        }
        let scale = POWERS[self.width - 8];
        Some(eight_digits(first) * scale + eight_digits(second << (128 - 8 * self.width)))
    }
}

const POWERS: [u64; 10] = [1, 10, 100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000, 1_000_000_000];

/// The number formed by eight digits in memory order. A space or zero byte counts as 0.
#[inline(always)]
fn eight_digits(text: u64) -> u64 {
    let digits = text & 0x0f0f_0f0f_0f0f_0f0f;
    let pairs = (digits.wrapping_mul(10) + (digits >> 8)) & 0x00ff_00ff_00ff_00ff;
    let fours = (pairs.wrapping_mul(100) + (pairs >> 16)) & 0x0000_ffff_0000_ffff;
    (fours.wrapping_mul(10_000) + (fours >> 32)) & 0xffff_ffff
}

#[derive(Clone, Debug)]
pub(super) struct Shape {
    /// `[CORE] TIME: PERIOD EVENT: `, padded.
    text: [u8; LONGEST],
    length: usize,
    core: Field,
    seconds: Field,
    fraction: Field,
    /// Includes all but one of the spaces before it.
    period: Field,
    event: Field,
    /// Bytes that may differ: digits of core and time, digits or spaces of the period, and what follows the line.
    digits: u64,
    behind: u64,
}

impl Shape {
    /// The form of a header whose part after the task is `rest`. `None` if it is not the usual one.
    pub fn of(rest: &[u8], header: &Header<'_>) -> Option<Shape> {
        if rest.len() > LONGEST || header.rest.len() >= 8 || header.period.is_none() {
            return None;
        }
        let run = |start: usize| {
            let width = rest.get(start..)?.iter().take_while(|byte| byte.is_ascii_digit()).count();
            (width > 0).then_some(Field { start, width })
        };
        let spaces = |start: usize| Some(rest.get(start..)?.iter().take_while(|byte| **byte == b' ').count());
        let core = run(1)?;
        let at = core.start + core.width + 1;
        let seconds = run(at + spaces(at)?)?;
        let fraction = run(seconds.start + seconds.width + 1)?;
        let at = fraction.start + fraction.width + 2;
        let period = run(at + spaces(at)?)?;
        let period = Field { start: at, width: period.start + period.width - at };
        let event = Field { start: rest.len() - header.rest.len() - 1 - header.event.len(), width: header.event.len() };
        // Numbers of these widths cannot overflow, and are read sixteen bytes at a time.
        let sizes = core.width <= 9 && seconds.width <= 9 && fraction.width <= 9 && period.width <= 16;
        let places = [core, seconds, fraction, period].iter().all(|field| field.start + 16 <= LONGEST);
        if !(sizes && places) || event.start != period.start + period.width + 1 {
            return None;
        }
        let mut text = [0; LONGEST];
        text[..rest.len()].copy_from_slice(rest);
        let digits = core.bits() | seconds.bits() | fraction.bits();
        let behind = if rest.len() == LONGEST { 0 } else { u64::MAX << rest.len() };
        Some(Shape { text, length: rest.len(), core, seconds, fraction, period, event, digits, behind })
    }

    /// The length of the task's text, and the rest of the header at the start of `text`, whose line has this `length`. `None` if it
    /// has another form, or if the text ends too soon after it.
    #[inline(always)]
    pub fn read<'a>(&self, text: &'a [u8], length: usize) -> Option<(usize, Header<'a>)> {
        let task = length.checked_sub(self.length)?;
        let rest = text.get(task..)?.first_chunk::<LONGEST>()?;
        let (mut same, mut digits, mut spaces) = (0, 0, 0);
        for (n, (half, known)) in rest.as_chunks::<32>().0.iter().zip(self.text.as_chunks::<32>().0).enumerate() {
            same |= u64::from(equal(half, known)) << (32 * n);
        }
        for (n, quarter) in rest.as_chunks::<16>().0.iter().enumerate() {
            let (digit, space) = digits_and_spaces(quarter);
            digits |= u64::from(digit) << (16 * n);
            spaces |= u64::from(space) << (16 * n);
        }
        // The period's columns are spaces, then digits: adding to the first column carries through all spaces and no digit.
        let columns = self.period.bits();
        let padding = spaces & columns;
        let first = 1 << self.period.start;
        let last = first << (self.period.width - 1);
        let period_fits =
            (digits | spaces) & columns == columns && (padding + first) & padding == 0 && padding & last == 0;
        let fits = same | (digits & self.digits) | columns | self.behind == u64::MAX;
        if !(fits && period_fits) {
            return None;
        }
        let scale = POWERS[9 - self.fraction.width];
        let time = self.seconds.number(rest)? * 1_000_000_000 + self.fraction.number(rest)? * scale;
        let header = Header {
            core: Some(self.core.number(rest)? as u32),
            time: Some(time),
            period: Some(self.period.number(rest)?),
            event: &rest[self.event.start..self.event.start + self.event.width],
            rest: &rest[self.event.start + self.event.width + 1..self.length],
            ..Header::default()
        };
        Some((task, header))
    }
}

/// Recent tasks: `COMM TID ` and the sink's id.
pub(super) struct RecentTasks {
    entries: Vec<Recent>,
}

#[derive(Clone, Copy)]
struct Recent {
    text: [u8; 32],
    length: u32,
    name: u32,
}

const RECENT: usize = 1 << 10;

impl RecentTasks {
    pub fn new() -> RecentTasks {
        RecentTasks { entries: vec![Recent { text: [0; 32], length: 0, name: 0 }; RECENT] }
    }

    /// The slot, from the thread id and the spaces around it.
    #[inline(always)]
    fn place(task: &[u8]) -> Option<usize> {
        let word = u64::from_le_bytes(*task.last_chunk()?);
        Some((word.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - RECENT.trailing_zeros())) as usize)
    }

    #[inline(always)]
    pub fn get(&self, text: &[u8], length: usize) -> Option<u32> {
        let recent = &self.entries[RecentTasks::place(text.get(..length)?)?];
        (recent.length as usize == length && starts_alike(text, &recent.text, length)).then_some(recent.name)
    }

    pub fn put(&mut self, task: &[u8], name: u32) {
        if let Some(place) = RecentTasks::place(task)
            && task.len() <= 32
        {
            self.entries[place] = Recent { text: block(task), length: task.len() as u32, name };
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::header;
    use super::*;

    proptest! {
        #[test]
        fn eight_digits_are_a_number(n in 0u64..100_000_000) {
            prop_assert_eq!(eight_digits(u64::from_le_bytes(*format!("{n:8}").as_bytes().first_chunk().expect("8"))), n);
        }

        /// A form learned from one header reads another as the grammar does, or not at all.
        #[test]
        fn a_form_agrees_with_the_grammar(
            core in 0u32..300, seconds in 0u64..1_000_000, fraction in 0u32..1_000_000, period in 0u64..20_000_000_000,
            other_core in 0u32..300, other_seconds in 0u64..1_000_000, other_fraction in 0u32..1_000_000,
            other_period in 0u64..20_000_000_000, event in "[a-z0-9-]{1,9}(:[a-z]{1,3})?", damage in any::<Option<(u8, u8)>>(),
        ) {
            let first = format!("[{core:03}] {seconds}.{fraction:06}: {period:10} {event}: ");
            let learnt = header::usual_rest(first.as_bytes(), b"").and_then(|header| Shape::of(first.as_bytes(), &header));
            let shape = learnt.expect("the usual form");
            let rest = format!("[{other_core:03}] {other_seconds}.{other_fraction:06}: {other_period:10} {event}: ");
            let mut line = format!("task 12 {rest}").into_bytes();
            if let Some((at, byte)) = damage {
                let at = 8 + usize::from(at) % rest.len();
                line[at] = byte;
            }
            let mut text = line.clone();
            text.extend_from_slice(&[b' '; LONGEST]);
            if let Some((task, header)) = shape.read(&text, line.len()) {
                let parsed = header::parse(&line).expect("a header");
                prop_assert_eq!(&line[..task], b"task 12 ");
                prop_assert_eq!(Header { comm: b"task", tid: Some(12), ..header }, parsed);
            } else if damage.is_none() {
                let widths = |seconds: u64, period: u64| (seconds.to_string().len(), period.to_string().len().max(10));
                prop_assert_ne!(widths(seconds, period), widths(other_seconds, other_period));
            }
        }
    }
}
