//! The one axis of time that everything on the page is laid on.
//!
//! Of a file it is the recording's own clock (CLOCK_MONOTONIC of the node, or whatever a profile counts by). Segments of a
//! directory may be of several boots, so there it is the wall clock. On the wire times are relative to the axis' beginning: then
//! they fit into the numbers of JavaScript exactly.

use coroner_evidence::{Clocks, Time};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clock {
    /// With a reading of it and of the wall clock at the same moment, where that is known.
    Own(Option<(u64, u64)>),
    Wall,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Axis {
    pub clock: Clock,
    /// Where it begins, in nanoseconds of its clock.
    pub start: u64,
}

impl Axis {
    /// As the page counts.
    pub fn relative(&self, absolute: u64) -> i64 {
        absolute.wrapping_sub(self.start) as i64
    }

    pub fn absolute(&self, relative: u64) -> u64 {
        self.start.saturating_add(relative)
    }

    /// A moment of the wall clock, in nanoseconds since 1970, on this axis.
    pub fn of_real(&self, real_ns: u64) -> Option<u64> {
        match self.clock {
            Clock::Wall => Some(real_ns),
            Clock::Own(clock) => {
                let (own, wall) = clock?;
                u64::try_from(i128::from(real_ns) - i128::from(wall) + i128::from(own)).ok()
            }
        }
    }

    /// The wall clock's time of a moment on this axis.
    pub fn real(&self, absolute: u64) -> Option<u64> {
        match self.clock {
            Clock::Wall => Some(absolute),
            Clock::Own(clock) => {
                let (own, wall) = clock?;
                u64::try_from(i128::from(absolute) - i128::from(own) + i128::from(wall)).ok()
            }
        }
    }

    /// A moment of evidence, whose clocks were read so, on this axis.
    pub fn of_time(&self, at: Time, clocks: Option<&Clocks>) -> Option<u64> {
        match self.clock {
            Clock::Own(_) => Some(at.0),
            Clock::Wall => clocks.map(|clocks| clocks.real_ns_of(at)),
        }
    }

    /// The other way round; 0 for what was before the boot.
    pub fn to_time(self, absolute: u64, clocks: Option<&Clocks>) -> Option<Time> {
        match self.clock {
            Clock::Own(_) => Some(Time(absolute)),
            Clock::Wall => clocks.map(|clocks| clocks.time_of_real_ns(absolute).unwrap_or_default()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_go_there_and_back() {
        let own = Axis { clock: Clock::Own(Some((1000, 5000))), start: 900 };
        assert_eq!((own.of_real(5100), own.real(1100), own.relative(1100)), (Some(1100), Some(5100), 200));
        assert_eq!((own.of_real(100), own.relative(800)), (None, -100));
        let clocks = Clocks { at: Time(1000), real_ns: 5000, boot_ns: 0 };
        let wall = Axis { clock: Clock::Wall, start: 4000 };
        assert_eq!(wall.of_time(Time(1100), Some(&clocks)), Some(5100));
        assert_eq!(wall.to_time(5100, Some(&clocks)), Some(Time(1100)));
        assert_eq!(wall.to_time(1, Some(&clocks)), Some(Time(0)));
        assert_eq!((wall.of_time(Time(1), None), own.of_time(Time(7), None)), (None, Some(7)));
    }
}
