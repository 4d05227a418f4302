//! The child that writes an incident's file: `coroner freeze-incident`.

use crate::guest::Guest;
use coroner_evidence::Time;
use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

/// For the minutes before the trigger: normally a fraction of a second.
const FIRST_LIMIT: Duration = Duration::from_secs(30);
/// With the diagnosis and an hour of samples for comparison, at low priority.
const WHOLE_LIMIT: Duration = Duration::from_secs(120);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// What there is so far.
    First,
    /// The window is over: all of it, with findings and risers.
    Whole,
}

pub struct Freezing {
    guest: Guest,
    pub purpose: Purpose,
}

impl Freezing {
    pub fn start(
        program: &[OsString],
        directory: &Path,
        number: u64,
        purpose: Purpose,
        now: Time,
    ) -> anyhow::Result<Freezing> {
        let mut args = vec!["freeze-incident".into(), directory.into(), number.to_string().into()];
        let limit = match purpose {
            Purpose::First => FIRST_LIMIT,
            Purpose::Whole => WHOLE_LIMIT,
        };
        args.extend((purpose == Purpose::Whole).then(|| "--whole".into()));
        Ok(Freezing { guest: Guest::start(program, &args, "freezing", limit, now)?, purpose })
    }

    /// `None` while it is running. Never waits.
    pub fn outcome(&mut self, now: Time) -> Option<Result<(), String>> {
        self.guest.outcome(now).map(|outcome| outcome.map(drop))
    }

    pub fn kill(&mut self) {
        self.guest.kill();
    }

    pub fn is_gone(&mut self) -> bool {
        self.guest.is_gone()
    }
}
