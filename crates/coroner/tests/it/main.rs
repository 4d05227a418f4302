//! The command on recordings, images and files. What troubles the machine, or measures it, is in `tests/host`.

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
