//! When systemd is queried: for all units at the beginning and end, for possible changes in between.

use super::pace::Pace;
use crate::root::{Root, now};
use crate::units::{Look, UnitReader};
use coroner_evidence::{Evidence, Time};
use std::time::Duration;

/// How often changes are looked for; at half time in a shorter watch.
const EVERY: Duration = Duration::from_secs(10);
/// However slow systemd is: the history of a slow node is what people need.
const AT_LEAST_EVERY: Duration = Duration::from_secs(60);
/// No look this shortly before the last one, which reads everything.
const BEFORE_END: Duration = Duration::from_secs(1);
/// The looks may use this share of one core: 1/200 = 0.5 %.
const SHARE: u32 = 200;
/// How long the end waits for systemd: a little longer than the reader, which then reports why.
const PATIENCE: Duration = Duration::from_millis(3100);

pub struct UnitLooks {
    reader: UnitReader,
    pace: Pace,
    /// Looks at changes so far.
    looks: u64,
    all_wanted: bool,
}

impl UnitLooks {
    /// For a watch of this duration.
    pub fn new(root: Root, bus: Option<String>, duration: Duration) -> UnitLooks {
        UnitLooks {
            reader: UnitReader::new(root, bus),
            pace: Pace::new(EVERY.min(duration / 2), SHARE),
            looks: 0,
            all_wanted: false,
        }
    }

    /// The first or the last look, in the background.
    pub fn start(&mut self) {
        self.reader.start(now(), Look::All);
        self.pace.put_off(now(), Duration::ZERO);
    }

    /// Reads everything again as soon as no look is pending.
    pub fn tell_anew(&mut self) {
        self.reader.tell_anew();
        self.all_wanted = true;
    }

    /// Appends results and starts a new look when due. PID 1 and the bus do the work, so a look's cost is its duration, not our
    /// own CPU time. The first look is not counted: later ones ask for a tenth of it.
    pub fn look_if_due(&mut self, until: Time, evidence: &mut Evidence) {
        let idle = self.reader.collect(Duration::ZERO, evidence);
        if idle && self.all_wanted {
            self.all_wanted = false;
            return self.start();
        }
        if idle && self.pace.is_due() && until.since(now()) >= BEFORE_END {
            let cost = if self.looks > 0 { self.reader.took() } else { Duration::ZERO };
            self.looks += 1;
            self.pace.put_off(now(), cost.min(AT_LEAST_EVERY / SHARE));
            self.reader.start(now(), Look::Changes);
        }
    }

    /// Waits for the last look.
    pub fn finish(&mut self, evidence: &mut Evidence) {
        self.reader.collect(PATIENCE, evidence);
    }
}
