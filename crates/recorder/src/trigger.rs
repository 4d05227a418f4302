//! The events that begin and end an incident.

use coroner_evidence::Time;
use std::time::Duration;

/// An event that somebody will ask about later.
#[derive(Debug, Clone, PartialEq)]
pub struct Trigger {
    /// The code of the finding it will probably become (`core-saturated`, `nic-reset` …), or `mark`.
    pub code: String,
    /// As of the finding, without pids.
    pub key: String,
    /// `core 3`, `eth0`, `ecs.service`; empty if there is none.
    pub subject: String,
    /// The name of the thread that caused it, if known at once. Another thread makes another incident.
    pub by: Option<String>,
    /// The core to look at closely.
    pub core: Option<u32>,
    /// When it happened, not when it was noticed.
    pub at: Time,
    /// When it began, if it lasts: then an [`Over`] follows.
    pub since: Option<Time>,
    /// In words: "core 3 was full of kernel work".
    pub text: String,
}

/// The end of what a trigger reported.
#[derive(Debug, Clone, PartialEq)]
pub struct Over {
    /// As in its trigger.
    pub code: String,
    pub subject: String,
    pub by: Option<String>,
    /// How long it lasted, without pauses.
    pub lasted: Duration,
    pub until: Time,
}

/// What a fragment begins and ends.
#[derive(Debug, Default)]
pub struct Noticed {
    pub begun: Vec<Trigger>,
    pub over: Vec<Over>,
}
