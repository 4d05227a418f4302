//! Views take samples one by one, from an importer or a profile, and produce plain data. A [`Selector`] in front decides which
//! samples they get.

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
pub use kinds::{Kinds, SampleKind};
pub use sums::{Owner, StackSums, Sum};
