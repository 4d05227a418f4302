//! The command on recordings, images and files. Tests that load or measure the machine are in `tests/host`.

#[path = "../support/mod.rs"]
mod support;

mod architecture;
mod audit_of_an_image;
mod cli;
mod docs;
mod fix_plan;
mod golden;
mod hostile;
mod profile;
mod recorder_directory;
mod report;
mod view;
mod vm;
mod vm_zombies;
