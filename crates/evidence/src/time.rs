//! Time on the node's clocks.
//!
//! All evidence is stamped with the node's CLOCK_MONOTONIC: it never jumps, and perf can stamp samples with it. [`Clocks`] pairs
//! it with the wall clock, so that people see dates and recordings can be compared: the only way from [`Time`] to [`Wall`] and back.

use coroner_report::Wall;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::{Add, Sub};
use std::time::Duration;

/// Nanoseconds of CLOCK_MONOTONIC on the node.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Time(pub u64);

impl Time {
    pub fn from_secs(secs: u64) -> Time {
        Time(secs.saturating_mul(1_000_000_000))
    }

    pub fn from_millis(millis: u64) -> Time {
        Time(millis.saturating_mul(1_000_000))
    }

    /// Time since `earlier`; zero if that is later.
    pub fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Time {
    type Output = Time;
    fn add(self, d: Duration) -> Time {
        Time(self.0.saturating_add(d.as_nanos().min(u64::MAX as u128) as u64))
    }
}

impl Sub<Duration> for Time {
    type Output = Time;
    fn sub(self, d: Duration) -> Time {
        Time(self.0.saturating_sub(d.as_nanos().min(u64::MAX as u128) as u64))
    }
}

impl fmt::Debug for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}s", self.0 / 1_000_000_000, self.0 % 1_000_000_000)
    }
}

/// A stretch of time, both ends included.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    pub from: Time,
    pub to: Time,
}

impl Window {
    pub fn length(&self) -> Duration {
        self.to.since(self.from)
    }

    pub fn contains(&self, at: Time) -> bool {
        self.from <= at && at <= self.to
    }
}

/// Several clocks read at the same moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clocks {
    pub at: Time,
    pub wall: Wall,
    /// Nanoseconds since boot, time in suspend included (CLOCK_BOOTTIME).
    pub boot_ns: u64,
}

impl Clocks {
    /// The wall-clock time of `at`, by this pair.
    pub fn wall_of(&self, at: Time) -> Wall {
        self.wall + at.since(self.at) - self.at.since(at)
    }

    /// The monotonic time of a wall-clock moment, by this pair; `None` if that was before boot.
    pub fn time_of(&self, wall: Wall) -> Option<Time> {
        let at = i128::from(self.at.0) + i128::from(wall.0) - i128::from(self.wall.0);
        u64::try_from(at).ok().map(Time)
    }
}
