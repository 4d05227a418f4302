//! The vocabulary that leaves a node: what was found, what caused what, and what could not be seen.
//!
//! Plain serde types; no database, no I/O. Readers ignore unknown fields and keep codes and fact keys of newer versions ([`Code::Other`],
//! [`FactKey::Other`]). Documents name their schema; within a version fields may be added, never removed or renamed.

pub mod batch;
pub mod code;
pub mod concluded;
pub mod diagnosis;
pub mod fact;
pub mod fact_keys;
pub mod finding;
pub mod incident;
pub mod minute;
pub mod name;
mod named;
pub mod node;
pub mod proof;
pub mod reach;
pub mod stacks;
pub mod subject;
pub mod time_span;
pub mod unseen;
pub mod verdict;
pub mod wall;
pub mod wanted;
pub mod words;

pub use batch::{BatchHead, Dropped, ReportRow};
pub use code::Code;
pub use concluded::{Concluded, Problem};
pub use diagnosis::{Diagnosis, Outcome};
pub use fact::{Fact, FactValue, Unit};
pub use fact_keys::FactKey;
pub use finding::{Finding, Ties};
pub use incident::Incident;
pub use minute::{CoreMinute, Minute};
pub use name::Name;
pub use node::{Node, NodeIdentity};
pub use proof::{Certainty, Proof, Proofs};
pub use stacks::{HeaviestStacks, StackSamples};
pub use subject::{Severity, Subject, SubjectKind};
pub use time_span::TimeSpan;
pub use unseen::{About, Cost, Unseen};
pub use verdict::{Conclusion, FindingRef, Link, Moment, RuledOut, Unexplained, Verdict};
pub use wall::Wall;
pub use wanted::{Acknowledged, Received, WantedFile};
