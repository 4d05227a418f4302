//! What makes the recorder freeze the minutes around: detection over fragments of evidence, as they are seen.
//!
//! A trigger is not a finding. It must be cheap (it runs five times a second for months), it must not miss, and it may be wrong
//! now and then: what really happened is diagnosed later, from the incident's file. Each kind keeps a small state of its own and
//! fires once for one thing: it fires again only after that thing was over (hysteresis).

mod cores;
mod growth;
mod log;
mod restarts;

use super::config::TriggerConfig;
use super::real_time::RealTimeThreads;
use super::trigger::{Noticed, Trigger};
use cores::CoreTriggers;
use coroner_diagnosis::Code;
use coroner_diagnosis::cores::timeline::Timeline;
use coroner_evidence::{Evidence, Time};
use growth::{SoftnetTrigger, ZombieTrigger};
use log::LogTriggers;
use restarts::RestartTriggers;

/// The code of an incident that a person asked for.
pub use coroner_source::incident::MARK;

pub struct Triggers {
    log: LogTriggers,
    cores: CoreTriggers,
    softnet: SoftnetTrigger,
    restarts: RestartTriggers,
    zombies: ZombieTrigger,
}

impl Triggers {
    pub fn new(config: &TriggerConfig) -> Triggers {
        Triggers {
            log: LogTriggers::new(config),
            cores: CoreTriggers::new(config.core_saturated),
            softnet: SoftnetTrigger::new(config.softnet_drops),
            restarts: RestartTriggers::new(config.unit_restarts),
            zombies: ZombieTrigger::new(config.zombie_growth),
        }
    }

    /// What begins and what ends with this fragment, which `cores` and `real_time` have taken. Fragments come in the order in
    /// which they were seen.
    pub fn look(&mut self, fragment: &Evidence, cores: &Timeline, real_time: &RealTimeThreads) -> Noticed {
        let mut noticed = Noticed::default();
        let found = &mut noticed.begun;
        // The log first: where it names the culprit's victim, that incident is the one to open.
        self.log.look(fragment, found);
        self.cores.look(cores, real_time, found, &mut noticed.over);
        self.softnet.look(fragment, found);
        self.restarts.look(fragment, found);
        self.zombies.look(fragment, found);
        noticed
    }
}

/// `coroner mark`.
pub fn mark(text: &str, at: Time) -> Trigger {
    Trigger {
        code: MARK.to_owned(),
        subject: String::new(),
        by: None,
        core: None,
        at,
        since: None,
        text: text.to_owned(),
    }
}

fn trigger(code: Code, subject: impl Into<String>, core: Option<u32>, at: Time, text: String) -> Trigger {
    Trigger { code: code.as_str().to_owned(), subject: subject.into(), by: None, core, at, since: None, text }
}
