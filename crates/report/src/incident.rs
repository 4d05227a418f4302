//! An incident as it lies beside its file: `incidents/N.json`.

use serde::{Deserialize, Serialize};

pub const SCHEMA: &str = "coroner.incident/1";

/// The code of one that somebody asked for (`coroner mark`).
pub const MARK: &str = "mark";

/// So much else that happened while it was open is told one by one.
pub const MOST_ALSO: usize = 20;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Incident {
    pub schema: String,
    /// From 1 on; never used again.
    pub number: u64,
    pub code: String,
    pub subject: String,
    /// Whose doing it is, where the trigger knew.
    #[serde(default)]
    pub by: Option<String>,
    pub core: Option<u32>,
    pub text: String,
    /// Nanoseconds since 1970.
    pub triggered_real_ns: u64,
    /// Of what lasts: how long it lasted until now, repeats included, and whether it goes on.
    #[serde(default)]
    pub lasting: Option<Lasting>,
    pub from_real_ns: u64,
    pub until_real_ns: u64,
    pub state: State,
    /// When the minutes before were in its file.
    #[serde(default)]
    pub frozen_real_ns: Option<u64>,
    /// More of the same within the quiet time.
    pub repeats: u64,
    #[serde(default)]
    pub last_repeat_real_ns: Option<u64>,
    /// What the last of them said: the thread's number is another one.
    #[serde(default)]
    pub last_repeat_text: Option<String>,
    /// What else would have begun an incident while too many were open.
    #[serde(default)]
    pub also: Vec<Also>,
    /// … and how many more of it.
    #[serde(default)]
    pub also_more: u64,
    /// What went wrong while it was frozen.
    pub error: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lasting {
    /// All of it that is over.
    pub lasted_ns: u64,
    /// When it began for the last time.
    pub since_real_ns: u64,
    /// When that was over; `None` while it goes on.
    #[serde(default)]
    pub until_real_ns: Option<u64>,
    /// It went on when its recorder ended: nobody saw its end.
    #[serde(default)]
    pub end_unseen: bool,
    /// So it was once: it lasted longer than is known.
    #[serde(default)]
    pub at_least: bool,
}

impl Lasting {
    pub fn since(real_ns: u64) -> Lasting {
        Lasting { lasted_ns: 0, since_real_ns: real_ns, until_real_ns: None, end_unseen: false, at_least: false }
    }

    pub fn goes_on(&self) -> bool {
        self.until_real_ns.is_none() && !self.end_unseen
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Also {
    pub real_ns: u64,
    pub code: String,
    pub subject: String,
    pub text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// The minutes before are frozen or about to be; those after are still to come.
    Open,
    /// Its file has everything that will ever be there.
    Complete,
    /// There is no file, or not all of it; `error` says why.
    Failed,
}

impl State {
    pub fn as_str(self) -> &'static str {
        match self {
            State::Open => "open",
            State::Complete => "complete",
            State::Failed => "failed",
        }
    }
}
