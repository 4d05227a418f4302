//! What begins an incident.

use coroner_evidence::Time;

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
    /// In words: "core 3 was in the kernel for 1.0 s without a pause".
    pub text: String,
}
