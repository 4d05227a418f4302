//! The command on this machine: real cgroups, a real systemd, real trouble made by the lab. A binary of its own, because what these tests
//! measure would be disturbed by the work of `tests/it`. Each test has the machine to itself: it takes the [`coroner_lab::HostLock`] first.

#[path = "../support/mod.rs"]
mod support;

mod diagnose;
mod fix;
mod incidents;
mod recorder;
mod service;
mod units;
mod zombies;
