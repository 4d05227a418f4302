//! The one time axis that everything on the page shares.
//!
//! For a file it is the recording's own clock (the node's CLOCK_MONOTONIC, or a profile's clock). Segments of a directory may be
//! from several boots, so there it is the wall clock. On the wire times are relative to the start of the axis, so that they fit
//! into JavaScript numbers exactly.

use coroner_evidence::{Clocks, Time, Wall};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clock {
    /// With simultaneous readings of it and of the wall clock, if known.
    Own(Option<(u64, Wall)>),
    Wall,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Axis {
    pub clock: Clock,
    /// Its start, in nanoseconds of its clock.
    pub start: u64,
}

impl Axis {
    /// Relative to the start of the axis.
    pub fn relative(&self, absolute: u64) -> i64 {
        absolute.wrapping_sub(self.start) as i64
    }

    pub fn absolute(&self, relative: u64) -> u64 {
        self.start.saturating_add(relative)
    }

    /// From wall-clock time, in nanoseconds since 1970, to this axis.
    pub fn of_real(&self, wall: Wall) -> Option<u64> {
        match self.clock {
            Clock::Wall => Some(wall.0),
            Clock::Own(clock) => {
                let (own, then) = clock?;
                u64::try_from(i128::from(wall.0) - i128::from(then.0) + i128::from(own)).ok()
            }
        }
    }

    /// From this axis to wall-clock time.
    pub fn real(&self, absolute: u64) -> Option<Wall> {
        match self.clock {
            Clock::Wall => Some(Wall(absolute)),
            Clock::Own(clock) => {
                let (own, wall) = clock?;
                u64::try_from(i128::from(absolute) - i128::from(own) + i128::from(wall.0)).ok().map(Wall)
            }
        }
    }

    /// From a time of evidence with these clocks to this axis.
    pub fn of_time(&self, at: Time, clocks: Option<&Clocks>) -> Option<u64> {
        match self.clock {
            Clock::Own(_) => Some(at.0),
            Clock::Wall => clocks.map(|clocks| clocks.wall_of(at).0),
        }
    }

    /// The reverse; 0 for times before the boot.
    pub fn to_time(self, absolute: u64, clocks: Option<&Clocks>) -> Option<Time> {
        match self.clock {
            Clock::Own(_) => Some(Time(absolute)),
            Clock::Wall => clocks.map(|clocks| clocks.time_of(Wall(absolute)).unwrap_or_default()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_convert_both_ways() {
        let own = Axis { clock: Clock::Own(Some((1000, Wall(5000)))), start: 900 };
        assert_eq!((own.of_real(Wall(5100)), own.real(1100), own.relative(1100)), (Some(1100), Some(Wall(5100)), 200));
        assert_eq!((own.of_real(Wall(100)), own.relative(800)), (None, -100));
        let clocks = Clocks { at: Time(1000), wall: Wall(5000), boot_ns: 0 };
        let wall = Axis { clock: Clock::Wall, start: 4000 };
        assert_eq!(wall.of_time(Time(1100), Some(&clocks)), Some(5100));
        assert_eq!(wall.to_time(5100, Some(&clocks)), Some(Time(1100)));
        assert_eq!(wall.to_time(1, Some(&clocks)), Some(Time(0)));
        assert_eq!((wall.of_time(Time(1), None), own.of_time(Time(7), None)), (None, Some(7)));
    }
}
