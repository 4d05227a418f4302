//! What the units of a node do: which of them loop, churn or fail, what each costs.
//!
//! Everything is derived from the evidence of a live node or of a recording. Whether a unit has any work here is judged in
//! [`crate::agents`].

pub mod audit;
pub mod churn;
pub mod containers;
pub mod cost;
pub mod loops;
pub mod paths;
pub mod protected;

pub use audit::{Audit, AuditedUnit, audit};
