//! The flight recorder: always on, bounded, and it keeps the minutes that matter.
//!
//! ```text
//! thread "main"    probes at their own pace ─▶ Evidence ─┬─▶ store      (channel, bounded)
//!                                                        ├─▶ triggers ─▶ thread "incidents" ─▶ child: freeze
//!                                                        └─▶ meter ─▶ Status ─▶ thread "metrics"
//! thread "rings"   copies the perf rings' bytes ─────────┴─▶ store      (channel, bounded)
//! thread "store"   decodes samples, names frames, commits once a second, begins and evicts segments
//! thread "control" hears `coroner mark`
//! thread "diagnoses" every few minutes ─▶ child: diagnose ─▶ history
//! ```
//!
//! No thread waits for another: what a full channel cannot take is counted as lost. The directory:
//!
//! ```text
//! D/lock                          held by the recorder that runs
//! D/control.sock                  its ear
//! D/2026-05-28T20-26-40Z.coroner  segments, ten minutes each at most, complete in themselves
//! D/incidents/1.json, 1.coroner   what triggered, and the minutes around it
//! D/history.db                    what the diagnoses came to
//! ```

pub mod appender;
pub mod config;
pub mod control;
pub mod diagnoses;
pub mod freeze;
pub mod guest;
mod incident_thread;
pub mod incidents;
mod memory;
pub mod meter;
pub mod metrics;
pub mod notify;
pub mod real_time;
mod rings;
pub mod rollup;
pub mod run;
mod segments;
pub mod status;
mod store;
pub mod trigger;
pub mod triggers;

/// A line for whoever runs the recorder: its standard error, and so the journal of its service. The program decides how it is
/// written.
fn warn(text: &str) {
    log::warn!("{text}");
}
