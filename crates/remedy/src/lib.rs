//! From a diagnosis to the smallest step that removes the cause, and back.
//!
//! A [`plan::Plan`] is a pure function of a diagnosis and of [`facts::Facts`] about its targets. [`apply`] runs the chosen steps:
//! each writes the previous state to the [`journal`] before it acts, and then the node is measured again. [`undo`] restores from
//! the journal. [`guards`] says what is never touched, [`tree`] keeps us inside the node's own files, [`steps`] has one file per kind of step.

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
