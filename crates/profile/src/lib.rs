//! CPU profiles: import the common formats, view them so that one starved core stands out, export to the common formats.
//!
//! ```text
//! perf.data ─┐                       ┌─ views: heatmaps, monopolies, flame graphs, differences, risers
//! perf script┼─ import ─▶ model ─────┼─ export: folded, pprof, speedscope, SVG
//! folded ────┤   │      (Profile)    └─ recording: our own file, which import reads again
//! recording ─┘   └── ImportReport: what could not be read, with the first line numbers
//! ```
//!
//! [`model::Profile`] holds one row per sample in columns, with strings, frames and stacks interned; its size follows the
//! number of samples and of distinct stacks, never the size of the text it came from. If only stacks and weights are needed,
//! [`import::perf_script::fold`] goes from text to folded stacks without keeping samples at all.
//!
//! Nothing is dropped silently: every importer returns an [`import::ImportReport`] with its result.

pub mod export;
pub mod import;
pub mod live;
pub mod model;
pub mod recording;
mod records;
pub mod symbols;
pub mod views;
