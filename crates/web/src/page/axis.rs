//! The one time axis that everything on the page shares.
//!
//! Its times are nanoseconds after its start, as on the wire: they fit into JavaScript numbers exactly, and are the same kind of time
//! for a file and for a directory. It starts at a moment of the wall clock; only a profile without one starts at a reading of its own
//! clock. [`Axis`] is the only way from the clocks to [`AxisTime`] and back.

use coroner_evidence::{Clocks, Time, Wall};
use coroner_source::moment::Moment;
use serde::Serialize;
use std::ops::{Add, Sub};

/// Nanoseconds after the start of the axis; negative shortly before it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct AxisTime(i64);

impl AxisTime {
    pub const START: AxisTime = AxisTime(0);
    pub const MAX: AxisTime = AxisTime(i64::MAX);

    /// Nanoseconds since `earlier`; zero if that is later.
    pub fn since(self, earlier: AxisTime) -> u64 {
        if self > earlier { self.0.abs_diff(earlier.0) } else { 0 }
    }

    /// The same moment on an axis that starts there.
    pub fn rebased(self, start: AxisTime) -> AxisTime {
        AxisTime(self.0.saturating_sub(start.0))
    }

    /// For what takes monotonic times only, but gets looks of several boots: as if one clock had run since the start.
    pub fn as_time(self) -> Time {
        Time(self.since(AxisTime::START))
    }
}

impl Add<u64> for AxisTime {
    type Output = AxisTime;
    fn add(self, ns: u64) -> AxisTime {
        AxisTime(self.0.saturating_add_unsigned(ns))
    }
}

impl Sub<u64> for AxisTime {
    type Output = AxisTime;
    fn sub(self, ns: u64) -> AxisTime {
        AxisTime(self.0.saturating_sub_unsigned(ns))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clock {
    /// Evidence and samples of a file are stamped by one clock; with how far the wall clock is ahead of it, if known.
    File(Option<i128>),
    /// Segments may be from several boots, each with its own clocks. Their samples are read on the wall clock.
    Directory,
}

impl Clock {
    /// By simultaneous readings of a file's clock and of the wall clock.
    pub fn of_file(read: Option<(u64, Wall)>) -> Clock {
        Clock::File(read.map(|(own, wall)| i128::from(wall.0) - i128::from(own)))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Axis {
    clock: Clock,
    /// On the wall clock, or on the file's if that is all there is.
    start: i128,
}

impl Axis {
    pub fn of(clock: Clock) -> Axis {
        Axis { clock, start: 0 }
    }

    pub fn starting_at(self, at: AxisTime) -> Axis {
        Axis { start: self.start + i128::from(at.0), ..self }
    }

    pub fn is_of_directory(&self) -> bool {
        self.clock == Clock::Directory
    }

    /// Nanoseconds since 1970, or of the file's clock.
    pub fn start_ns(&self) -> u64 {
        unsigned(self.start)
    }

    fn at(&self, ns: i128) -> AxisTime {
        AxisTime((ns - self.start).clamp(i64::MIN.into(), i64::MAX.into()) as i64)
    }

    /// From the clock of the samples to that of the axis.
    fn ahead(&self) -> i128 {
        if let Clock::File(Some(ahead)) = self.clock { ahead } else { 0 }
    }

    /// `None` if the wall clock is unknown.
    pub fn of_wall(&self, wall: Wall) -> Option<AxisTime> {
        (self.clock != Clock::File(None)).then(|| self.at(wall.0.into()))
    }

    pub fn wall(&self, at: AxisTime) -> Option<Wall> {
        (self.clock != Clock::File(None)).then(|| Wall(unsigned(self.start + i128::from(at.0))))
    }

    /// A time of a sample as it is read.
    pub fn of_sample(&self, time: u64) -> AxisTime {
        self.at(i128::from(time) + self.ahead())
    }

    pub fn sample(&self, at: AxisTime) -> u64 {
        unsigned(self.start + i128::from(at.0) - self.ahead())
    }

    /// A time of evidence with these clocks.
    pub fn of_time(&self, at: Time, clocks: Option<&Clocks>) -> Option<AxisTime> {
        match self.clock {
            Clock::File(_) => Some(self.of_sample(at.0)),
            Clock::Directory => self.of_wall(clocks?.wall_of(at)),
        }
    }

    /// The reverse; 0 for times before the boot.
    pub fn time(&self, at: AxisTime, clocks: Option<&Clocks>) -> Option<Time> {
        match self.clock {
            Clock::File(_) => Some(Time(self.sample(at))),
            Clock::Directory => Some(clocks?.time_of(self.wall(at)?).unwrap_or_default()),
        }
    }

    /// To select samples by.
    pub fn moment(&self, at: AxisTime) -> Moment {
        match self.clock {
            Clock::File(_) => Moment::Clock(self.sample(at)),
            Clock::Directory => Moment::Wall(Wall(self.sample(at))),
        }
    }

    /// The reverse.
    pub fn of_moment(&self, moment: Moment) -> Option<AxisTime> {
        match moment {
            Moment::Clock(time) => Some(self.of_sample(time)),
            Moment::Wall(wall) => self.of_wall(wall),
            _ => None,
        }
    }
}

fn unsigned(ns: i128) -> u64 {
    ns.clamp(0, u64::MAX.into()) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_and_a_directory_have_the_same_times() {
        let clocks = Clocks { at: Time(1000), wall: Wall(5000), boot_ns: 0 };
        let file = Clock::of_file(Some((1000, Wall(5000))));
        for axis in [Axis::of(file), Axis::of(Clock::Directory)].map(|axis| axis.starting_at(AxisTime(4900))) {
            let at = AxisTime(200);
            assert_eq!((axis.of_wall(Wall(5100)), axis.wall(at), axis.start_ns()), (Some(at), Some(Wall(5100)), 4900));
            assert_eq!(axis.of_time(Time(1100), Some(&clocks)), Some(at));
            assert_eq!(axis.time(at, Some(&clocks)), Some(Time(1100)));
            assert_eq!(axis.of_moment(axis.moment(at)), Some(at));
            assert_eq!(axis.time(AxisTime(-4800), Some(&clocks)), Some(Time(0)), "before the boot");
            assert_eq!(axis.of_wall(Wall(4800)), Some(AxisTime(-100)));
        }
        assert_eq!(Axis::of(file).of_sample(1100), Axis::of(Clock::Directory).of_sample(5100));
    }

    #[test]
    fn without_a_wall_clock_a_file_has_its_own() {
        let axis = Axis::of(Clock::File(None)).starting_at(AxisTime(900));
        assert_eq!((axis.of_wall(Wall(7)), axis.wall(AxisTime(7))), (None, None));
        assert_eq!((axis.of_time(Time(1000), None), axis.sample(AxisTime(100))), (Some(AxisTime(100)), 1000));
        assert_eq!(Axis::of(Clock::Directory).of_time(Time(1), None), None);
    }

    #[test]
    fn order_and_distance() {
        let (early, late) = (AxisTime(-5), AxisTime(3));
        assert_eq!((late.since(early), early.since(late)), (8, 0));
        assert_eq!((AxisTime::MAX + 1, late.rebased(early)), (AxisTime::MAX, AxisTime(8)));
    }
}
