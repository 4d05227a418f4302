//! The commands that read CPU profiles.

pub mod export;
pub mod flame;
pub mod heatmap;
pub mod import;
pub mod monopolies;
pub mod out;
