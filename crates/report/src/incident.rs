//! An incident as stored beside its file: `incidents/N.json`.

use crate::Wall;
use crate::named;
use serde::{Deserialize, Serialize};

pub const SCHEMA: &str = "coroner.incident/1";

/// The code of an incident that a user asked for (`coroner mark`).
pub const MARK: &str = "mark";

/// Up to this many other triggers during an incident are listed one by one.
pub const MOST_ALSO: usize = 20;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Incident {
    pub schema: String,
    /// Counts from 1; never reused.
    pub number: u64,
    pub code: String,
    /// The code and what it is about, as in the key of a finding: the same after a restart and on another node.
    #[serde(default)]
    pub key: Option<String>,
    pub subject: String,
    /// Who caused it, if the trigger knew.
    #[serde(default)]
    pub by: Option<String>,
    pub core: Option<u32>,
    pub text: String,
    #[serde(rename = "triggered_real_ns", serialize_with = "Wall::as_number")]
    pub triggered: Wall,
    /// If it lasts: for how long so far, repeats included, and whether it goes on.
    #[serde(default)]
    pub lasting: Option<Lasting>,
    #[serde(rename = "from_real_ns", serialize_with = "Wall::as_number")]
    pub from: Wall,
    #[serde(rename = "until_real_ns", serialize_with = "Wall::as_number")]
    pub until: Wall,
    pub state: IncidentState,
    /// When the minutes before it were in its file.
    #[serde(rename = "frozen_real_ns", default, serialize_with = "Wall::as_number")]
    pub frozen: Option<Wall>,
    /// More of the same within the quiet time.
    pub repeats: u64,
    #[serde(rename = "last_repeat_real_ns", default, serialize_with = "Wall::as_number")]
    pub last_repeat: Option<Wall>,
    /// The text of the last repeat: its thread ID differs.
    #[serde(default)]
    pub last_repeat_text: Option<String>,
    /// Triggers that started no incident because too many were open.
    #[serde(default)]
    pub also: Vec<Also>,
    /// How many more there were.
    #[serde(default)]
    pub also_more: u64,
    /// What went wrong while freezing it.
    pub error: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lasting {
    /// The part that is over.
    pub lasted_ns: u64,
    /// When it last began.
    #[serde(rename = "since_real_ns", serialize_with = "Wall::as_number")]
    pub since: Wall,
    /// When that ended; `None` while it goes on.
    #[serde(rename = "until_real_ns", default, serialize_with = "Wall::as_number")]
    pub until: Option<Wall>,
    /// It was going on when its recorder ended: its end was not seen.
    #[serde(default)]
    pub end_unseen: bool,
    /// An end was unseen once: it lasted at least this long.
    #[serde(default)]
    pub at_least: bool,
}

impl Lasting {
    pub fn since(since: Wall) -> Lasting {
        Lasting { lasted_ns: 0, since, until: None, end_unseen: false, at_least: false }
    }

    pub fn goes_on(&self) -> bool {
        self.until.is_none() && !self.end_unseen
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Also {
    #[serde(rename = "real_ns", serialize_with = "Wall::as_number")]
    pub at: Wall,
    pub code: String,
    pub subject: String,
    pub text: String,
}

named! {
    pub enum IncidentState {
        /// The minutes before are frozen or about to be; those after are yet to come.
        Open = "open",
        /// Its file is complete.
        Complete = "complete",
        /// The file is missing or incomplete; `error` says why.
        Failed = "failed",
    }
}
