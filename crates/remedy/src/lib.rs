//! From a diagnosis to the smallest step that removes the cause, and back.
//!
//! A [`plan::Plan`] is a pure function of a diagnosis and of [`facts::Facts`] about what it would change. [`apply`] does what was
//! chosen: each step writes the state before into the [`journal`] and only then acts; afterwards the node is measured again.
//! [`undo`] restores from the journal. What must never be touched is in [`guards`]; [`tree`] keeps us within the node's own files. One file for each kind of step is in [`steps`].

pub mod apply;
pub mod facts;
pub mod guards;
pub mod image;
pub mod journal;
pub mod measure;
pub mod plan;
pub mod planner;
pub mod reboot;
pub mod steps;
pub mod tree;
pub mod undo;

pub use facts::Facts;
pub use journal::{Journal, JournalError};
pub use plan::{Plan, Step};
pub use planner::{Wishes, plan};
