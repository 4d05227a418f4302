//! What the units of a node do: which of them loop, churn or fail, and what each costs.
//!
//! Everything is derived from the evidence of a live node or of a recording. [`crate::agents`] judges whether a unit has any work
//! here.

pub mod audit;
pub mod churn;
pub mod containers;
pub mod cost;
pub mod loops;
pub mod paths;
pub mod protected;

pub use audit::{Audit, AuditedUnit, audit};
