//! Real incidents with a known cause, made on this machine.
//!
//! A scenario makes its problem in its own cgroups and namespaces, verifies that it is there, prints as JSON what a diagnosis must
//! find ([`truth`]), holds it, and cleans up: with guards ([`guard`]) however it ends, and with [`leftovers`] if the runner was
//! killed. Host tests of other crates also use the guards, [`HostLock`] and [`LiveScenario`].

pub mod actors;
pub mod bad_bus;
mod bus;
pub mod crowd;
pub mod draw;
pub mod fleet;
pub mod guard;
pub mod hierarchy;
pub mod host_lock;
pub mod interrupt;
pub mod invent;
pub mod leftovers;
pub mod live;
pub mod loss;
pub mod node;
pub mod run_id;
pub mod scenarios;
pub mod score;
pub mod stage;
mod syscalls;
pub mod truth;

pub use guard::{Cgroup, Child, Ext4Mount, Freeze, Netns, TmpfsMount};
pub use hierarchy::Hierarchy;
pub use host_lock::{HostLock, skip};
pub use live::LiveScenario;
pub use run_id::RunId;
pub use syscalls::{Mapping, die_with_parent};
