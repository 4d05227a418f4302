//! The flight recorder: always on, bounded, and it keeps the minutes that matter.
//!
//! ```text
//! thread "main"    probes at their own pace ─▶ Evidence ─┬─▶ store      (channel, bounded)
//!                                                        ├─▶ triggers ─▶ thread "incidents" ─▶ child: freeze
//!                                                        └─▶ meter ─▶ Status ─▶ thread "metrics"
//! thread "rings"   copies bytes out of the perf rings ───┴─▶ store      (channel, bounded)
//! thread "store"   decodes samples, names frames, commits once a second, begins and evicts segments; adds up stacks for a fleet
//! thread "control" listens for `coroner mark`
//! thread "diagnoses" every few minutes ─▶ child: diagnose ─▶ history
//! thread "reporter" minutes, diagnoses, incidents, stacks ─▶ spool ─▶ a fleet's collector, if one is named
//! ```
//!
//! No thread waits for another: what a full channel cannot take is counted as lost. The directory:
//!
//! ```text
//! D/lock                          held by the running recorder
//! D/control.sock                  for `coroner mark`
//! D/2026-05-28T20-26-40Z.coroner  segments of at most ten minutes, each a complete recording
//! D/incidents/1.json, 1.coroner   the trigger, and the minutes around it
//! D/history.db                    conclusions of the diagnoses
//! D/node.key                      what the node proves itself with to the collector
//! D/spool/0000000000000042.zst    batches for the fleet's collector that it has not acknowledged
//! ```

pub mod appender;
pub mod config;
pub mod control;
pub mod diagnoses;
pub mod freeze;
pub mod guest;
mod heaviest;
mod identity;
mod incident_thread;
pub mod incidents;
mod memory;
pub mod meter;
pub mod metrics;
pub mod notify;
pub mod real_time;
pub mod reporter;
mod rings;
pub mod rollup;
pub mod run;
mod segments;
pub mod stacks;
pub mod status;
mod store;
pub mod trigger;
pub mod triggers;

/// A message for whoever runs the recorder: on standard error, and so in the service's journal. The program formats it.
fn warn(text: &str) {
    log::warn!("{text}");
}
