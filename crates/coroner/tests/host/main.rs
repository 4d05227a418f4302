//! The command on this machine: real cgroups, a real systemd, real problems made by the lab. A separate binary, because `tests/it` would
//! disturb what these tests measure. Each test has the machine to itself: it takes the [`coroner_lab::HostLock`] first.

#[path = "../support/mod.rs"]
mod support;

mod diagnose;
mod fix;
mod incidents;
mod recorder;
mod service;
mod units;
mod zombies;
