//! Triggers: events in the fragments of evidence that make the recorder freeze the minutes around them.
//!
//! A trigger is not a finding. It must be cheap (it runs five times a second for months) and must not miss anything, but may be
//! wrong now and then: what really happened is diagnosed later, from the incident's file. Each kind keeps a small state and fires
//! once per event: it fires again only after that event was over (hysteresis).

mod cores;
mod growth;
mod log;
mod losses;
mod restarts;

use super::config::TriggerConfig;
use super::real_time::RealTimeThreads;
use super::trigger::{Noticed, Trigger};
use cores::CoreTriggers;
use coroner_diagnosis::Code;
use coroner_diagnosis::cores::timeline::Timeline;
use coroner_diagnosis::key::{KeySubject, key};
use coroner_evidence::{Evidence, Time};
use growth::{SoftnetTrigger, ZombieTrigger};
use log::LogTriggers;
use losses::LossTrigger;
use restarts::RestartTriggers;

/// The code of an incident that a user asked for.
pub use coroner_source::incident::MARK;

pub struct Triggers {
    log: LogTriggers,
    cores: CoreTriggers,
    softnet: SoftnetTrigger,
    restarts: RestartTriggers,
    zombies: ZombieTrigger,
    losses: LossTrigger,
}

impl Triggers {
    pub fn new(config: &TriggerConfig) -> Triggers {
        Triggers {
            log: LogTriggers::new(config),
            cores: CoreTriggers::new(config.core_saturated),
            softnet: SoftnetTrigger::new(config.softnet_drops),
            restarts: RestartTriggers::new(config.unit_restarts),
            zombies: ZombieTrigger::new(config.zombie_growth),
            losses: LossTrigger::new(config.starved),
        }
    }

    /// What begins and ends with this fragment, which `cores` and `real_time` have taken already. Fragments must come in order.
    pub fn look(&mut self, fragment: &Evidence, cores: &Timeline, real_time: &RealTimeThreads) -> Noticed {
        let mut noticed = Noticed::default();
        let found = &mut noticed.begun;
        // The log first: if it names the victim, that incident is the one to open.
        self.log.look(fragment, found);
        self.cores.look(cores, real_time, found, &mut noticed.over);
        self.softnet.look(fragment, found);
        self.restarts.look(fragment, found);
        self.zombies.look(fragment, found);
        // After the cores: what they tell is not told twice.
        self.losses.look(fragment, &self.cores, found, &mut noticed.over);
        noticed
    }
}

/// `coroner mark`.
pub fn mark(text: &str, at: Time) -> Trigger {
    Trigger {
        code: MARK.to_owned(),
        key: MARK.to_owned(),
        subject: String::new(),
        by: None,
        core: None,
        at,
        since: None,
        text: text.to_owned(),
    }
}

fn trigger(
    code: Code,
    about: Option<KeySubject<'_>>,
    subject: impl Into<String>,
    core: Option<u32>,
    at: Time,
    text: String,
) -> Trigger {
    let (key, subject) = (key(code, about), subject.into());
    Trigger { code: code.as_str().to_owned(), key, subject, by: None, core, at, since: None, text }
}
