//! When systemd is asked for its units: everything at the beginning and at the end, what may have changed in between.

use super::pace::Pace;
use crate::root::{Root, now};
use crate::units::{Look, UnitReader};
use coroner_evidence::{Evidence, Time};
use std::time::Duration;

/// Which units started anew; half of a shorter watch, so that there is a look in its middle.
const EVERY: Duration = Duration::from_secs(10);
/// However long systemd takes: a node on which everything is slow is the one whose history is wanted.
const AT_LEAST_EVERY: Duration = Duration::from_secs(60);
/// No look so short before the last one, which is at everything.
const BEFORE_END: Duration = Duration::from_secs(1);
/// The looks may take this part of one core: 1/200 = 0.5 %.
const SHARE: u32 = 200;
/// How long the end of the examination waits for systemd: a little longer than the reader itself, which then says why.
const PATIENCE: Duration = Duration::from_millis(3100);

pub struct UnitLooks {
    reader: UnitReader,
    pace: Pace,
    /// Looks at changes so far.
    looks: u64,
    all_wanted: bool,
}

impl UnitLooks {
    /// Of a watch of this duration.
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

    /// Everything is looked at again as soon as no other look is under way.
    pub fn tell_anew(&mut self) {
        self.reader.tell_anew();
        self.all_wanted = true;
    }

    /// Appends what was seen meanwhile, and looks again when it is time. PID 1 and the bus do the work, so a look is paid for with the
    /// time it took, not with our own CPU. The first one does not count: later ones ask a tenth of it.
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
