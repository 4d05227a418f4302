//! Writers of what others read.

pub mod folded;
