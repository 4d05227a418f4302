//! Everything a scenario makes is a value whose drop undoes it: on success, failure, panic and Ctrl-C alike.
//!
//! Locals drop in reverse order: create the cgroup or namespace first, then what lives in it.

mod cgroup;
mod child;
mod freeze;
mod mount;
mod netns;

pub use cgroup::{Cgroup, Visit, remove_tree};
pub use child::Child;
pub use freeze::Freeze;
pub use mount::{Ext4Mount, TmpfsMount, remove_runtime_dir};
pub use netns::{NETNS_DIR, Netns, ip, remove_netns};

/// A drop cannot return an error, but must not be silent either.
fn complain(what: &str, error: &dyn std::fmt::Display) {
    eprintln!("coroner-lab: could not clean up {what}: {error}; `coroner-lab clean` tries again");
}
