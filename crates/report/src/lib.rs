//! The vocabulary that leaves a node: what was found, what caused what, and what could not be seen.
//!
//! Plain types that are written and read with serde; no database, no I/O. Whoever reads a document ignores fields it does not know, and keeps
//! codes and keys of facts that a newer node made up ([`Code::Other`], [`FactKey::Other`]). Documents name their schema; fields may be added under
//! the same version, never removed or renamed.

pub mod code;
pub mod fact;
pub mod fact_keys;
pub mod name;
pub mod proof;
pub mod subject;
pub mod timestamp;
pub mod verdict;
pub mod words;

pub use code::Code;
pub use fact::{Fact, FactValue, Unit};
pub use fact_keys::FactKey;
pub use name::Name;
pub use proof::{Certainty, Proof, Proofs};
pub use subject::{Severity, Subject, SubjectKind};
pub use verdict::{Conclusion, FindingRef, Link, Moment, RuledOut, Unexplained, Verdict};
