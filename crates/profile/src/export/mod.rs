//! Writers of other tools' formats.

pub mod folded;
pub mod pprof;
pub mod speedscope;
pub mod svg;

#[cfg(test)]
mod tests;
