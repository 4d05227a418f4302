//! What begins an incident.

use coroner_evidence::Time;
use std::time::Duration;

/// Something happened that one will ask about later.
#[derive(Debug, Clone, PartialEq)]
pub struct Trigger {
    /// The code of the finding that it will probably be (`core-saturated`, `nic-reset` …), or `mark`.
    pub code: String,
    /// `core 3`, `eth0`, `ecs.service`; empty if there is none.
    pub subject: String,
    /// Whose doing it is, where that is known at once: the name of a thread. Another one's is another incident.
    pub by: Option<String>,
    /// The core to look at closely.
    pub core: Option<u32>,
    /// When it happened; not when it was noticed.
    pub at: Time,
    /// Since when it is so, of what lasts: that it is over is told, too.
    pub since: Option<Time>,
    /// In words: "core 3 was in the kernel without a pause".
    pub text: String,
}

/// What had begun is over.
#[derive(Debug, Clone, PartialEq)]
pub struct Over {
    /// As its trigger said them.
    pub code: String,
    pub subject: String,
    pub by: Option<String>,
    /// How long it was so; pauses are not in it.
    pub lasted: Duration,
    pub until: Time,
}

/// What was noticed in a fragment.
#[derive(Debug, Default)]
pub struct Noticed {
    pub begun: Vec<Trigger>,
    pub over: Vec<Over>,
}
