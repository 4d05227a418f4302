//! Kernel log lines.

use crate::time::Time;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLine {
    /// When it was logged, on CLOCK_MONOTONIC: the kernel's own stamp (local_clock, which drifts) plus the offset measured now.
    /// Lines that arrive while we watch are stamped on arrival if that is more precise.
    pub at: Time,
    /// How far off `at` may be.
    pub uncertainty_ns: u64,
    /// The kernel's own stamp, in µs of local_clock.
    pub stamp_us: u64,
    pub sequence: u64,
    /// 0 (emergency) to 7 (debug).
    pub level: u8,
    /// 0 is the kernel itself; anything else was written by user space and proves nothing.
    pub facility: u8,
    pub text: String,
}

impl LogLine {
    pub fn is_from_kernel(&self) -> bool {
        self.facility == 0
    }
}
