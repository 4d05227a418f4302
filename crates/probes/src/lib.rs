//! Reads a node into evidence.
//!
//! Each module is one plain reader: a struct that holds a [`Root`] and the state of its last look, with
//! `look(&mut self, at, &mut Evidence)`, which appends what it read and notes in [`Evidence::unseen`] what it could not read.
//! Parsers are functions from text to plain data, so that tests need no node.

pub mod agent_files;
pub mod bpf;
pub mod cgroups;
pub mod churn;
pub mod conntrack;
pub mod containers;
pub mod cores;
mod counter_file;
pub mod exits;
pub mod identity;
pub mod image;
pub mod interrupts;
pub mod journal;
pub mod kernel_log;
pub mod kernel_work;
pub mod memory;
pub mod nic;
pub mod packages;
mod perf;
pub mod pressure;
pub mod root;
pub mod sampler;
pub mod slab;
pub mod softirqs;
pub mod softnet;
pub mod tasks;
#[cfg(test)]
mod test_tree;
pub mod tree;
pub mod unit_files;
pub mod unit_sockets;
pub mod units;
pub mod waits;
pub mod watch;
pub mod zombies;

pub use coroner_evidence::Evidence;
pub use root::{ParseError, ReadError, Root};
