//! Incidents with a known cause, made for real on this machine.
//!
//! A scenario makes its trouble in cgroups and namespaces of its own, verifies that it is there, says as JSON what a diagnosis
//! must find ([`truth`]), holds it, and cleans up: through guards ([`guard`]) on every way out, and through [`leftovers`] after a
//! runner that was killed. The guards, [`HostLock`] and [`LiveScenario`] also serve the host tests of other crates.

pub mod actors;
pub mod bad_bus;
mod bus;
pub mod crowd;
pub mod draw;
pub mod guard;
pub mod hierarchy;
pub mod host_lock;
pub mod interrupt;
pub mod leftovers;
pub mod live;
pub mod node;
pub mod run_id;
pub mod scenarios;
pub mod score;
pub mod stage;
mod syscalls;
pub mod truth;

pub use guard::{Cgroup, Child, Ext4Mount, Netns, TmpfsMount};
pub use hierarchy::Hierarchy;
pub use host_lock::{HostLock, skip};
pub use live::LiveScenario;
pub use run_id::RunId;
pub use syscalls::{Mapping, die_with_parent};
