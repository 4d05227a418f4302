//! CPU profiles: read from what everyone writes, looked at so that one starved core is seen, written to what everyone reads.
//!
//! ```text
//! perf.data ─┐                       ┌─ views: heatmaps, monopolies, flame graphs, differences, risers
//! perf script┼─ import ─▶ model ─────┼─ export: folded, pprof, speedscope, SVG
//! folded ────┤   │      (Profile)    └─ recording: our own file, which import reads again
//! recording ─┘   └── Report: what could not be read, with its first line numbers
//! ```
//!
//! [`model::Profile`] holds one row per sample in columns, with strings, frames and stacks interned; its size follows the
//! number of samples and of distinct stacks, never the size of the text it came from. Where only stacks and their weights are
//! wanted, [`import::perf_script::fold`] goes from text to folded stacks without keeping samples at all.
//!
//! Nothing is dropped in silence: every importer returns an [`import::Report`] beside its result.

pub mod export;
pub mod import;
pub mod live;
pub mod model;
pub mod recording;
mod records;
pub mod symbols;
pub mod views;
