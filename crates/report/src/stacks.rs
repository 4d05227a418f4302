//! What a node's cores ran, in its heaviest stacks: enough for a flame graph of many nodes.

use crate::Wall;
use serde::{Deserialize, Serialize};

/// The most stacks of a row, the longest text of a stack in bytes, and the most frames in it. A collector refuses more.
pub const MOST_STACKS: usize = 100;
pub const LONGEST_STACK: usize = 2048;
pub const DEEPEST_STACK: usize = 128;

/// The frame that stands for all smaller stacks above it.
pub const SMALLER: &str = "[smaller]";

/// Samples of some minutes. The idle time of cores is not in it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HeaviestStacks {
    /// The time they were taken in.
    pub from: Wall,
    pub until: Wall,
    /// All of them, also those of stacks that are not listed.
    pub samples: u64,
    pub stacks: Vec<StackSamples>,
}

/// One stack as folded text, `command;frame;…`, the root first: kernel frames end in `_[k]`, and numbers of threads are `*`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StackSamples {
    pub stack: String,
    pub samples: u64,
}
