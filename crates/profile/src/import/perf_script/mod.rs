//! The text that `perf script` prints.
//!
//! One event is a line with the task and the time, its stack below it, leaf first, and an empty line:
//!
//! ```text
//! kubelet  1234 [003] 24915.802750:    1001001 cpu-clock:ppp:
//!         ffffffff821f04e5 irqentry_exit_to_user_mode+0x105 ([kernel.kallsyms])
//!                  8a4f756 runtime.mallocgc+0x1bc (/usr/bin/kubelet)
//! ```
//!
//! Which fields a line has depends on `-F`; [`header`] knows the forms. The text is long and says the same things again and
//! again, so [`scan`] remembers each frame line without its address and offset, and guesses that the line after it is the one
//! that came after it last time: most lines cost one comparison. Only a line never seen before is taken apart ([`frame`]).
//! Two users stand on it: [`fold`] keeps stacks and weights, [`samples`] passes every sample on.

mod bytes;
pub mod fold;
pub mod frame;
pub mod header;
mod memo;
mod read;
pub mod samples;
pub mod scan;
mod shape;

#[cfg(test)]
mod tests;
