//! The command on this machine: real cgroups, a real systemd, real problems made by the lab. A separate binary, because `tests/it` would
//! disturb what these tests measure. Each takes the [`coroner_lab::HostLock`] first: for itself, or to share
//! the machine if it looks only at what it made.

#[path = "../support/mod.rs"]
mod support;

// All of them.
coroner_lab::tests_at_once!(100);

mod advice;
mod diagnose;
mod fix;
mod incidents;
mod profile;
mod recorder;
mod service;
mod units;
mod zombies;
