//! An incident as it lies beside its file: `incidents/N.json`.

use serde::{Deserialize, Serialize};

pub const SCHEMA: &str = "coroner.incident/1";

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Incident {
    pub schema: String,
    /// From 1 on; never used again.
    pub number: u64,
    pub code: String,
    pub subject: String,
    pub core: Option<u32>,
    pub text: String,
    /// Nanoseconds since 1970.
    pub triggered_real_ns: u64,
    pub from_real_ns: u64,
    pub until_real_ns: u64,
    pub state: State,
    /// More of the same within the quiet time.
    pub repeats: u64,
    /// What went wrong while it was frozen.
    pub error: Option<String>,
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
