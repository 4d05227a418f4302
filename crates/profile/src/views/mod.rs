//! What people look at. Each view is a function from a profile and a [`Filter`] to plain data.

pub mod cores;
pub mod diff;
mod filter;
pub mod flame;
pub mod heatmap;
mod kinds;
pub mod monopolies;
pub mod risers;

#[cfg(test)]
mod tests;

pub use filter::{Band, Filter, Selection};
pub use kinds::{Kind, Kinds};
