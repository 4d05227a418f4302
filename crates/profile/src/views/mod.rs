//! What people look at. A view takes samples one by one, as an importer or a profile gives them, and ends in plain data. A
//! [`Selector`] before it decides which samples it gets.

mod clocks;
pub mod cores;
pub mod diff;
mod filter;
pub mod flame;
pub mod heatmap;
pub mod kernel_work;
mod kinds;
pub mod monopolies;
pub mod risers;
mod sums;
mod usual;
mod window;

#[cfg(test)]
mod made;
#[cfg(test)]
mod tests;

pub use clocks::{Clocks, Ticking};
pub use filter::{Band, Filter, Selector};
pub use kinds::{Kind, Kinds};
pub use sums::{Owner, StackSums, Sum};
